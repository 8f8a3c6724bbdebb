"""The subjects over their domains: which function is proved about, on which inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

from reference.policy import Policy
from spec import lookup_subjects as lookups
from spec.boundary_domains import BOUNDARY_SIZES, boundary_examples, boundary_inputs
from spec.claims import boundaries as boundary_claims
from spec.claims import mask as mask_claims
from spec.claims import split as split_claims
from spec.claims.mask import MaskInputs
from spec.domains import ALL_SIZES, FEATURES, OTHER_GRID, Source, split_examples, split_inputs
from spec.engine_masks import EngineBoundaries, EngineMask
from spec.engine_split import EngineSplit
from spec.lemmas import lemmas, sharp_gap
from spec.lift import SourceTree
from spec.mask_domains import MASK_FEATURES, MASK_SIZES, mask_examples, mask_inputs
from spec.pointwise import Point
from spec.prove import Subject
from spec.solver import NEW_ARITHMETIC, OLD_ARITHMETIC
from spec.space import Space


def merging(space: Space) -> Mapping[str, Any]:
    """``min`` and ``max`` that give one unknown for two values instead of two paths."""

    def merged(larger: bool, builtin: Callable[..., Any], *values: Any, **options: Any) -> Any:
        return space.merge(larger, *values) if len(values) == 2 and not options else builtin(*values, **options)

    return {"max": partial(merged, True, max), "min": partial(merged, False, min)}


def split_subject(policy: Policy, sizes: str, features: str, source: Path | None, merge: bool = True) -> Subject:
    """The split: of the reference under a release's policy, or of the engine whose sources are in ``source``.

    ``merge``: with merging builtins where all sizes are numbers.
    """
    where, what = SIZES[sizes], FEATURE_SETS[features]

    def arguments(names: Mapping[str, Any]) -> tuple[Any, ...]:
        return policy, engine_split(source, names) if source is not None else None

    claims = (*split_claims.CLAIMS, *(split_claims.ENGINE_CLAIMS if source is not None else ()))
    return Subject(
        f"split of {policy.release}, {sizes}, {features}",
        tuple(claim for claim in claims if claim.applies(policy, where, what)),
        lambda inputs: split_inputs(inputs, where, what),
        split_claims.run_split,
        arguments,
        split_claims.regime_of,
        split_claims.measure_of,
        partial(split_examples, where),
        merging if merge and not where.symbolic else None,
        named=split_claims.named,
        arithmetic=NEW_ARITHMETIC if where in OTHER_GRID else OLD_ARITHMETIC,
    )


@cache
def tree_of(source: Path) -> SourceTree:
    """The sources of an engine, read once a process."""
    return SourceTree(source)


def engine_split(source: Path, names: Mapping[str, Any]) -> Callable[..., Any]:
    """The engine's own split, called as the reference's."""
    lifted = EngineSplit(tree_of(source), rebind=names)

    def decide(_: Policy, *numbers: Any) -> Any:
        return lifted(*numbers)

    return decide


def mask_subject(policy: Policy, sizes: str, features: str, source: Path | None) -> Subject:
    """The retention mask of a sparse group, at one arbitrary block."""
    where, what = MASK_SIZE_NAMES[sizes], MASK_FEATURE_NAMES[features]

    def build(inputs: Source) -> MaskInputs:
        return mask_inputs(inputs, where, what)

    def builtins(space: Space) -> Mapping[str, Any]:
        inputs = build(space)
        merged = {} if where.symbolic else merging(space)
        return {**merged, **Point(inputs.number, inputs.start).builtins(space)}

    def arguments(names: Mapping[str, Any]) -> tuple[Any, ...]:
        return policy, EngineMask(tree_of(source), what.kind, rebind=names) if source is not None else None

    claims = mask_claims.CLAIMS if source is None else mask_claims.engine_claims(what.kind, what.interval)
    return Subject(
        f"mask of {policy.release}, {sizes}, {features}",
        tuple(claim for claim in claims if claim.applies(policy, where, what)),
        build,
        mask_claims.run_mask,
        arguments,
        mask_claims.regime_of,
        mask_claims.measure_of,
        partial(mask_examples, where, what),
        builtins,
        named=mask_claims.named,
        lemmas=SHARP_LEMMAS,
        arithmetic=NEW_ARITHMETIC if source is None else OLD_ARITHMETIC,
    )


def boundary_subject(policy: Policy, sizes: str, features: str, source: Path | None) -> Subject:
    """The boundary list of a request; ``features`` is empty."""
    where = BOUNDARY_SIZE_NAMES[sizes]
    most = 4 * where.scheduler_block

    def arguments(_: Mapping[str, Any]) -> tuple[Any, ...]:
        return policy, EngineBoundaries(tree_of(source)) if source is not None else None, most

    claims = (*boundary_claims.CLAIMS, *(boundary_claims.ENGINE_CLAIMS if source is not None else ()))
    return Subject(
        f"boundary list of {policy.release}, {sizes}",
        claims,
        partial(boundary_inputs, where),
        boundary_claims.run_boundaries,
        arguments,
        boundary_claims.regime_of,
        boundary_claims.measure_of,
        partial(boundary_examples, where),
        bound=f"prompts up to {most} tokens" if source is not None else "",
        named=boundary_claims.named,
        lemmas=SHARP_LEMMAS,
    )


def lookup_subject(policy: Policy, sizes: str, features: str, source: Path | None) -> Subject:
    """The lookup in a layout that ``sizes`` names; ``features`` is empty."""
    layout = LAYOUTS[sizes]
    if source is None:
        return lookups.lookup_subject(policy, layout)
    return lookups.engine_lookup_subject(tree_of(source), policy, layout)


def kept_subject(policy: Policy, sizes: str, features: str, source: Path | None) -> Subject:
    """The reference's lookup in what its mask keeps, in a layout that ``sizes`` names; ``features`` is empty."""
    return lookups.kept_subject(policy, KEPT_LAYOUTS[sizes])


SHARP_LEMMAS = lemmas(sharp_gap)

SIZES = {sizes.name: sizes for sizes in ALL_SIZES}
FEATURE_SETS = {features.name: features for features in FEATURES}
BOUNDARY_SIZE_NAMES = {sizes.name: sizes for sizes in BOUNDARY_SIZES}
LAYOUTS = {layout.name: layout for layout in lookups.FULL}
KEPT_LAYOUTS = {layout.name: layout for layout in lookups.KEPT}
MASK_SIZE_NAMES = {sizes.name: sizes for sizes in MASK_SIZES}
MASK_FEATURE_NAMES = {features.name: features for features in MASK_FEATURES}
SUBJECTS: dict[str, Callable[[Policy, str, str, Path | None], Subject]] = {
    "split": split_subject,
    "mask": mask_subject,
    "boundaries": boundary_subject,
    "lookup": lookup_subject,
    "kept": kept_subject,
}
