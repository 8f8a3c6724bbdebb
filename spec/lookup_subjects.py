"""The subjects about the lookup: the reference's and an engine's own, in small layouts and any content of the cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any

from reference import lookup
from reference.geometry import Group, hashed_tokens
from reference.lookup import Hit, LookupGroup, Present
from reference.policy import POLICIES, Policy
from reference.retention import keep
from spec.claims import lookup as lookup_claims
from spec.claims.lookup import KeptCase, Layout, LookupCase, unit_of
from spec.domains import Source
from spec.engine_lookup import EngineLookup
from spec.lift import SourceTree
from spec.prove import Subject

MOST_WINDOW = 9
"""U1.suffices is proved for windows of 1 to so many tokens."""


@dataclass(frozen=True)
class Inputs:
    """The inputs of a lookup. ``held``: 1 for each entry, by group and tokens, that is cached."""

    known: Any
    held: dict[tuple[int, int], Any]


@dataclass(frozen=True)
class KeptInputs:
    """The inputs of a lookup that finds what a mask kept for ``boundary``; a lone window is any."""

    known: Any
    boundary: Any
    groups: tuple[Group, ...]


def lookup_inputs(source: Source, layout: Layout) -> Inputs:
    """A request of any length up to the layout's, and any content."""
    known = source.integer("known", 1, layout.most)
    held = {
        (index, tokens): source.integer(f"{index}.{tokens}", 0, 1)
        for index in range(len(layout.groups))
        for tokens in range(unit_of(layout, index), layout.most + 1, unit_of(layout, index))
    }
    return Inputs(known, held)


def kept_inputs(source: Source, layout: Layout) -> KeptInputs:
    """A request and a boundary up to the layout's length."""
    groups = layout.groups
    if layout.alone and groups[0].kind == "swa":
        groups = (replace(groups[0], window=source.integer("window", 1, MOST_WINDOW)),)
    return KeptInputs(source.integer("known", 1, layout.most), source.integer("boundary", 0, layout.most), groups)


def named(inputs: Inputs) -> dict[str, Any]:
    """The request and what is cached, for people: ``group 0 at 8``: its entry for the first 8 tokens."""
    held = {f"group {index} at {tokens}": value for (index, tokens), value in inputs.held.items() if value}
    return {"known": inputs.known, **held}


def named_kept(inputs: KeptInputs) -> dict[str, Any]:
    """The request, the boundary and the windows, for people."""
    windows = {f"window of group {index}": group.window for index, group in enumerate(inputs.groups) if group.window}
    return {"known": inputs.known, "boundary": inputs.boundary, **windows}


def examples(layout: Layout, random: Random, number: int) -> Iterator[dict[str, int]]:
    """Plain inputs to begin with: mostly full caches of long requests, where most can happen."""
    for _ in range(number):
        share = random.choice((0.3, 0.6, 0.9))
        values = {"known": random.randint(1, layout.most), "boundary": random.randint(0, layout.most)}
        values["window"] = random.randint(1, MOST_WINDOW)
        for index in range(len(layout.groups)):
            for tokens in range(1, layout.most + 1):
                values[f"{index}.{tokens}"] = int(random.random() < share)
        yield values


def chosen(value: Any, low: int, high: int) -> int:
    """The plain number that a value is: one path for each."""
    for number in range(low, high):
        if value == number:
            return number
    return high


def contents(layout: Layout, inputs: Inputs, hashed: int) -> tuple[Present, ...]:
    """What each group holds: nothing of what has no hash."""

    def present_in(index: int) -> Present:
        return lambda tokens: tokens <= hashed and bool(inputs.held[index, tokens] >= 1)

    return tuple(present_in(index) for index in range(len(layout.groups)))


def run_lookup(policy: Policy, layout: Layout, engine: EngineLookup | None, inputs: Inputs) -> LookupCase:
    """The case of one lookup, by the engine where one is given, else by the reference."""
    known = chosen(inputs.known, 1, layout.most)
    hashed = hashed_tokens(known, layout.hash_block, layout.lookahead)
    present = contents(layout, inputs, hashed)
    items = [LookupGroup(group, holds) for group, holds in zip(layout.groups, present, strict=True)]
    expected = look_up(policy, layout, items, known, hashed)
    found = expected if engine is None else engine_looks_up(engine, layout, items, known, hashed)
    return LookupCase(policy, layout, known, hashed, present, found, expected)


def look_up(policy: Policy, layout: Layout, items: Sequence[LookupGroup], known: int, hashed: int) -> Hit:
    """What the reference finds."""
    if not layout.alone:
        return lookup.hybrid_hit(policy, items, known, hashed, layout.alignment, layout.hash_block)
    if layout.alignment == items[0].group.block:
        return lookup.single_hit(items[0], known)
    hit = lookup.group_hit(items[0], known - 1, layout.alignment, items[0].group.drops)
    return Hit(hit, hit)


def engine_looks_up(engine: EngineLookup, layout: Layout, items: Sequence[LookupGroup], known: int, hashed: int) -> Hit:
    """What the engine finds."""
    if not layout.alone:
        partial_hits = any(layout.alignment < group.block for group in layout.groups)
        return engine.hybrid_hit(items, known, hashed, layout.alignment, layout.hash_block, partial_hits)
    group, present = items[0].group, items[0].present
    if group.kind == "full":
        hit = engine.full_hit(present, known - 1, group.block, layout.alignment, group.drops)
    elif group.kind == "swa":
        hit = engine.window_hit(present, known - 1, group, layout.alignment, group.drops)
    else:
        hit = engine.mamba_hit(present, known - 1, group.block, layout.alignment)
    return Hit(hit, hit)


def run_kept(policy: Policy, layout: Layout, inputs: KeptInputs) -> KeptCase:
    """The case of a lookup by the reference in what the mask keeps for one boundary under interval 0."""
    known = chosen(inputs.known, 1, layout.most)
    boundary = chosen(inputs.boundary, 0, layout.most)
    hashed = hashed_tokens(known, layout.hash_block, layout.lookahead)
    items = [LookupGroup(group, kept(group, layout, boundary, hashed)) for group in inputs.groups]
    found = look_up(policy, layout, items, known, hashed)
    return KeptCase(policy, layout, inputs.groups, known, hashed, boundary, found.hit)


def kept(group: Group, layout: Layout, boundary: int, hashed: int) -> Present:
    """What the mask keeps of a group."""

    def present(tokens: int) -> bool:
        return tokens <= hashed and keep(group, tokens // group.block - 1, layout.alignment, 0, [boundary])

    return present


def lookup_subject(policy: Policy, layout: Layout) -> Subject:
    """The reference's lookup under a release's policy."""
    return Subject(
        f"lookup of {policy.release}, {layout.name}",
        tuple(claim for claim in lookup_claims.CLAIMS if claim.applies(policy, layout)),
        lambda source: lookup_inputs(source, layout),
        run_lookup,
        lambda names: (policy, layout, None),
        lookup_claims.only_regime,
        lookup_claims.measure_of,
        partial(examples, layout),
        bound=f"up to {layout.most} tokens, any cache content",
        named=named,
    )


def kept_subject(policy: Policy, layout: Layout) -> Subject:
    """The reference's lookup in what its mask keeps for one boundary."""
    return Subject(
        f"lookup of {policy.release} in what is kept, {layout.name}",
        lookup_claims.KEPT_CLAIMS,
        lambda source: kept_inputs(source, layout),
        run_kept,
        lambda names: (policy, layout),
        lookup_claims.regime_of_kept,
        lookup_claims.measure_of_kept,
        partial(examples, layout),
        named=named_kept,
        bound=f"up to {layout.most} tokens" + f", windows up to {MOST_WINDOW} tokens" * layout.alone,
    )


def engine_lookup_subject(tree: SourceTree, policy: Policy, layout: Layout) -> Subject:
    """An engine's own lookup, beside the reference's under its release's policy."""
    subject = lookup_subject(policy, layout)
    return replace(
        subject,
        name=f"engine's {subject.name}",
        claims=tuple(claim for claim in lookup_claims.ENGINE_CLAIMS if claim.applies(policy, layout)),
        arguments=lambda names: (policy, layout, EngineLookup(tree)),
    )


def full(block: int, drops: bool = False) -> Group:
    return Group("full", block, 0, drops)


def swa(block: int, window: int, drops: bool = False) -> Group:
    return Group("swa", block, window, drops)


def mamba(block: int, drops: bool = False) -> Group:
    return Group("mamba", block, 0, drops)


QUICK: tuple[Layout, ...] = (
    Layout((full(4),), 4, 4, 33),
    Layout((full(8, True),), 2, 2, 21),
    Layout((full(4, True),), 4, 8, 33),
    Layout((mamba(16),), 16, 16, 97),
    Layout((mamba(8),), 2, 2, 13),
    Layout((swa(4, 1),), 4, 4, 25),
    Layout((swa(4, 6),), 4, 4, 25),
    Layout((swa(4, 9, True),), 4, 8, 25),
    Layout((swa(4, 13, True),), 4, 8, 25),
    Layout((full(16), mamba(16)), 16, 16, 65),
    Layout((full(4, True), mamba(8)), 4, 8, 25),
    Layout((full(8, True), mamba(8)), 4, 4, 21),
    Layout((full(4), swa(4, 5, True)), 4, 4, 17),
    Layout((full(8), swa(4, 13, True)), 4, 8, 21),
    Layout((swa(4, 5, True), mamba(4, True)), 4, 4, 17),
    Layout((swa(4, 5), mamba(4)), 4, 4, 17, 1),
    Layout((full(4, True), swa(4, 5, True), mamba(4)), 4, 4, 17),
    Layout((full(8), swa(4, 5), mamba(8)), 4, 4, 13),
)
"""Layouts of every shape, and each that is known to refute a claim.

With hits inside blocks a window's block is the hash block: else releases from 0.28 switch such hits off
(HybridKVCacheCoordinator.__init__), and before SlidingWindowManager.find_longest_cache_hit stops at an assertion.
"""

ALONE: tuple[Layout, ...] = (
    Layout((full(4, True),), 4, 4, 33),
    Layout((full(8),), 2, 2, 25),
    Layout((full(8, True),), 2, 2, 25),
    Layout((mamba(16),), 16, 16, 113),
    Layout((mamba(8),), 2, 2, 17),
    Layout((mamba(4),), 4, 8, 33),
    *(Layout((swa(4, window, drops),), 4, 4, 25) for window in (1, 5, 6, 9) for drops in (False, True)),
    *(Layout((swa(4, window, drops),), 4, 8, 25) for window in (1, 5, 9, 13) for drops in (False, True)),
)
"""One group by itself."""

HYBRID: tuple[Layout, ...] = (
    Layout((full(16), mamba(16)), 16, 16, 81),
    Layout((full(16), mamba(16)), 16, 16, 81, 1),
    Layout((full(16, True), mamba(16)), 16, 16, 81),
    Layout((full(16, True), mamba(16, True)), 16, 16, 81),
    Layout((full(4), mamba(8)), 4, 8, 25),
    Layout((full(4), mamba(8)), 4, 4, 21),
    Layout((full(4, True), mamba(8)), 4, 4, 21),
    Layout((full(8), mamba(8)), 4, 4, 21),
    Layout((full(8), mamba(8)), 4, 4, 21, 1),
    *(Layout((full(4), swa(4, window, drops)), 4, 4, 21) for window in (1, 5, 8) for drops in (False, True)),
    Layout((full(4, True), swa(4, 5)), 4, 4, 21),
    Layout((full(4, True), swa(4, 5, True)), 4, 4, 21),
    Layout((full(8), swa(4, 9)), 4, 8, 25),
    Layout((full(8), swa(4, 9, True)), 4, 8, 25),
    Layout((full(4), full(8, True)), 4, 8, 25),
    Layout((swa(4, 5), mamba(4)), 4, 4, 21),
    Layout((swa(4, 5, True), mamba(4)), 4, 4, 21),
    Layout((swa(4, 5, True), swa(4, 9, True)), 4, 4, 21),
    Layout((full(4), swa(4, 5), mamba(4)), 4, 4, 17),
    Layout((full(4), swa(4, 5), mamba(4)), 4, 4, 17, 1),
    Layout((full(4), swa(4, 5), mamba(4)), 4, 4, 17, 2),
    Layout((full(4), swa(4, 5, True), mamba(4)), 4, 4, 17),
    Layout((full(4, True), swa(4, 5, True), mamba(4, True)), 4, 4, 17),
    Layout((full(8, True), swa(4, 5, True), mamba(8)), 4, 4, 13),
    Layout((full(4), full(8, True), mamba(8)), 4, 4, 17),
    Layout((full(4), mamba(4), mamba(4)), 4, 4, 17),
)
"""What several groups agree on."""

FAR_LOOKAHEAD = Layout((swa(4, 5), mamba(4)), 4, 4, 13, 2)
"""Without full attention nothing brings the cap of 0.33's lookup, known - 1, down to the hashed tokens."""

FULL: tuple[Layout, ...] = tuple(dict.fromkeys((*QUICK, *ALONE, *HYBRID, FAR_LOOKAHEAD)))

KEPT: tuple[Layout, ...] = (
    *(Layout((full(4, drops),), 4, alignment, 17) for alignment in (4, 8) for drops in (False, True)),
    *(Layout((mamba(4),), 4, alignment, 17) for alignment in (4, 8)),
    *(Layout((swa(4, 0, drops),), 4, alignment, 17) for alignment in (4, 8) for drops in (False, True)),
    Layout((full(4), mamba(4)), 4, 4, 17),
    Layout((full(4, True), mamba(8)), 4, 8, 25),
    Layout((full(4), swa(4, 1)), 4, 4, 17),
    Layout((full(4, True), swa(4, 6, True), mamba(4)), 4, 4, 17),
    Layout((full(4), swa(4, 6, True), mamba(8)), 4, 8, 25),
    Layout((full(4), swa(4, 13, True), mamba(8)), 4, 8, 25),
    Layout((swa(4, 6), mamba(4)), 4, 4, 17, 1),
)
"""For U1.suffices. Whole blocks, as masks know no parts of blocks; a lone window is any."""

QUICK_KEPT = (*KEPT[:10], KEPT[13], KEPT[15])

PEEK_LIMITS = (POLICIES["0.31.0"], POLICIES["0.33.0"])
"""One policy for each value of ``peek_ends_at``, the only thing in a policy that the lookup knows."""


def policies_for(layout: Layout) -> tuple[Policy, ...]:
    """The policies that differ for a layout."""
    return PEEK_LIMITS if layout.peeks and not layout.alone else PEEK_LIMITS[-1:]


def refusal(policy: Policy, layout: Layout) -> str:
    """Why a release has no such layout; empty where it has."""
    if layout.lookahead and not policy.lookahead_hashes:
        return "hashes look ahead from 0.33 on (VllmConfig.num_hash_lookahead_tokens)"
    return ""


def lookup_subjects(layouts: Sequence[Layout], kept_layouts: Sequence[Layout]) -> list[Subject]:
    """Every subject about the reference's lookup in some layouts."""
    found = [lookup_subject(policy, layout) for layout in layouts for policy in policies_for(layout)]
    return found + [kept_subject(policy, layout) for layout in kept_layouts for policy in policies_for(layout)]


def engine_lookup_subjects(tree: SourceTree, policy: Policy, layouts: Sequence[Layout]) -> list[Subject]:
    """Every subject about an engine's lookup in those layouts that its release has."""
    return [engine_lookup_subject(tree, policy, layout) for layout in layouts if not refusal(policy, layout)]
