"""Which tasks make up a proof run: the subjects over their domains, by tier."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import msgspec

from reference.policy import POLICIES, Policy
from spec import lookup_subjects as lookups
from spec.boundary_domains import BOUNDARY_SIZES
from spec.claim import Claim
from spec.claims import boundaries as boundary_claims
from spec.claims import lookup as lookup_claims
from spec.claims import mask as mask_claims
from spec.claims import split as split_claims
from spec.domains import ALL_SIZES, FEATURES, OTHER_GRID, QUICK_SIZES, Features, Sizes
from spec.mask_domains import MASK_FEATURES, MASK_SIZES, QUICK_MASK_SIZES, MaskFeatures, MaskSizes
from spec.task import Task

Tier = Literal["quick", "full"]
TIERS: tuple[Tier, ...] = ("quick", "full")

Domain = tuple[str, str, Tier]
"""The names of sizes and of features, and the first tier that proves over them."""

RELEASES = tuple(POLICIES)

NAMED_AT_MOST = 12
"""So many sizes that a tier leaves out are named, more are counted."""

CONTROLS_FIRST = (("16/4", "partial hits"), ("16 in 64", "window, interval 0"))
"""The domains on which planted faults are tried first; the claims that they lack get theirs on others."""


@dataclass(frozen=True)
class Plan:
    """The domains of a subject under a policy, what its claims take for granted, and what no tier covers.

    ``engine_sizes``: the only sizes that are proved about an engine's own function; all where empty.
    """

    domains: Callable[[Policy], list[Domain]]
    premises: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    engine_sizes: tuple[str, ...] = ()


def split_domains(policy: Policy) -> list[Domain]:
    """All sizes with all features that a release has."""
    return [
        (sizes.name, features.name, "quick" if is_quick(sizes, features) else "full")
        for sizes in ALL_SIZES
        for features in FEATURES
        if features.exist_in(policy, sizes) and not refused(policy, sizes)
    ]


def refused(policy: Policy, sizes: Sizes) -> bool:
    """Whether a release does not start with such blocks: 0.26 and 0.27 hash by the scheduler block, which the smaller
    blocks do not divide (resolve_kv_cache_block_sizes)."""
    return sizes in OTHER_GRID and policy.tail_stop == "finer hashes"


def is_quick(sizes: Sizes, features: Features) -> bool:
    """The widest quick sizes come with the features that every release has; their paths are those of 16/4."""
    return sizes in QUICK_SIZES and (sizes is not QUICK_SIZES[-1] or features.name in ("plain", "partial hits"))


def mask_domains(policy: Policy) -> list[Domain]:
    """All sizes with both kinds of groups and all intervals."""
    return [
        (sizes.name, features.name, "quick" if is_quick_mask(sizes, features) else "full")
        for sizes in MASK_SIZES
        for features in MASK_FEATURES
        if features.exist_in(policy, sizes)
    ]


def is_quick_mask(sizes: MaskSizes, features: MaskFeatures) -> bool:
    """Segments of unknown sizes take longest."""
    return sizes in QUICK_MASK_SIZES and not (sizes.symbolic and features.interval == "interval above 0")


def boundary_domains(_: Policy) -> list[Domain]:
    """All sizes."""
    return [(sizes.name, "", "quick") for sizes in BOUNDARY_SIZES]


def lookup_domains(policy: Policy) -> list[Domain]:
    """All layouts that a release has."""
    return [
        (layout.name, "", "quick" if layout in lookups.QUICK else "full")
        for layout in lookups.FULL
        if not lookups.refusal(policy, layout)
    ]


def kept_domains(policy: Policy) -> list[Domain]:
    """All layouts of U1.suffices that a release has."""
    return [
        (layout.name, "", "quick" if layout in lookups.QUICK_KEPT else "full")
        for layout in lookups.KEPT
        if not lookups.refusal(policy, layout)
    ]


PLANS: dict[str, Plan] = {
    "split": Plan(
        split_domains,
        split_claims.PREMISES,
        (
            f"split: of unequal blocks only {' and '.join(repr(sizes.name) for sizes in OTHER_GRID)} are covered.",
            "split: with hashes that look ahead the EAGLE drop is off, as the engine has it.",
        ),
    ),
    "mask": Plan(mask_domains, mask_claims.PREMISES),
    "boundaries": Plan(boundary_domains, boundary_claims.PREMISES, engine_sizes=("4 in 4", "4 in 8")),
    "lookup": Plan(
        lookup_domains,
        lookup_claims.PREMISES,
        ("lookup: block sizes are small numbers and requests as long as the bound of the row; windows from 1.",),
    ),
    "kept": Plan(kept_domains, lookup_claims.PREMISES, engine_sizes=("none",)),
}
"""By subject. A further subject is one more entry here and one in ``spec.subjects``."""


def tasks(
    tier: Tier,
    releases: Iterable[str] = RELEASES,
    *,
    target: str = "reference",
    source: str = "",
    claims: Iterable[str] = (),
    sizes: Iterable[str] = (),
) -> list[Task]:
    """The tasks of a run. ``claims`` and ``sizes``: only these, all where empty; ``sizes`` that are named are not
    held back for a later tier."""
    wanted, only = frozenset(claims), frozenset(sizes)
    made = [
        Task(
            subject=subject,
            release=release,
            sizes=where,
            features=what,
            target=target,
            source=source,
            claims=tuple(sorted(wanted)),
        )
        for subject, plan in PLANS.items()
        for release in releases
        for where, what, first in plan.domains(POLICIES[release])
        if (where in only if only else first == "quick" or tier == "full")
        and (not source or not plan.engine_sizes or where in plan.engine_sizes)
    ]
    return with_controls([task for task in made if claims_of(task)])


def claims_of(task: Task) -> frozenset[str]:
    """The ids of the claims that a task proves."""
    return frozenset(claim.id for claim in task.chosen(task.build()))


def with_controls(made: Sequence[Task]) -> list[Task]:
    """The same tasks, of which a few also try the planted faults: so many that every claim has its turn.

    They are of the newest release: what was planted must be noticed where the claim holds.
    """
    newest = [task for task in made if task.release == made[-1].release]
    covered: set[tuple[str, str]] = set()
    chosen: set[Task] = set()
    for task in sorted(newest, key=lambda task: (task.sizes, task.features) not in CONTROLS_FIRST):
        new = {(task.subject, claim) for claim in claims_of(task)}
        if not new <= covered:
            chosen.add(task)
            covered |= new
    return [msgspec.structs.replace(task, controls=task in chosen) for task in made]


def cost(task: Task) -> float:
    """How long a task takes, roughly and in comparison with others."""
    fine = 8 if "partial hits" in task.features or "exact" in task.features else 1
    wide = 3 if task.sizes.partition("/")[0] in ("528", "816", "1600", "1648", "12288") else 1
    return fine * (10 if task.sizes == "B, H" else wide) * (2 if task.controls else 1)


@cache
def all_claims() -> Mapping[str, Claim]:
    """All claims about the reference or an engine by id, in the order of their subjects."""
    built = [task.build() for subject in PLANS for task in _examples(subject)]
    return {claim.id: claim for subject in built for claim in subject.claims}


def _examples(subject: str) -> list[Task]:
    """One task for each domain of the newest release, about the reference and about an engine."""
    release = RELEASES[-1]
    return [
        Task(subject=subject, release=release, sizes=where, features=what, source=source)
        for where, what, _ in PLANS[subject].domains(POLICIES[release])
        for source in ("", ".")
        if not source or subject != "kept"
    ]


def size_names() -> list[str]:
    """The names of all sizes that some subject has."""
    found: dict[str, None] = {}
    for plan in PLANS.values():
        for policy in POLICIES.values():
            found |= dict.fromkeys(where for where, _, _ in plan.domains(policy))
    return list(found)


def left_out(tier: Tier) -> list[str]:
    """What a tier leaves out, in sentences."""
    sentences: list[str] = []
    for subject, plan in PLANS.items():
        held_back = dict.fromkeys(
            where for policy in POLICIES.values() for where, _, first in plan.domains(policy) if first == "full"
        )
        if tier == "quick" and held_back:
            names = "; ".join(held_back) if len(held_back) <= NAMED_AT_MOST else f"{len(held_back)} others"
            sentences.append(f"{subject}: the tier full proves over these sizes, too: {names}.")
        sentences += plan.left_out
    return sentences
