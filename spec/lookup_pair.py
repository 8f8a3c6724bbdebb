"""Do two builds look up the same? Their own hit functions, both lifted, beside each other on any content of the cache.

M2 speaks of the length of a hit and of the junction. Here the blocks that a lookup gives must be the same, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from reference.geometry import hashed_tokens
from reference.lookup import LookupGroup
from reference.policy import POLICIES
from spec.claim import Claim, Control
from spec.claims.lookup import Layout
from spec.engine_lookup import EngineLookup, Found
from spec.lift import ShapeChanged
from spec.lookup_subjects import QUICK, Inputs, chosen, contents, full, lookup_subject, mamba, refusal
from spec.prove import Prover, Result, Subject
from spec.row import Row
from spec.solver import Limits
from spec.task import for_people

LAYOUTS: tuple[Layout, ...] = (
    *QUICK,
    Layout((full(4), full(8, True), mamba(8)), 4, 4, 17),
    Layout((full(4), mamba(4), mamba(4)), 4, 4, 17),
)
"""Layouts of every shape, and two with several groups of a kind."""


@dataclass(frozen=True)
class PairCase:
    """One lookup by two builds."""

    ours: Found
    theirs: Found


def run_pair(layout: Layout, ours: EngineLookup, theirs: EngineLookup, inputs: Inputs) -> PairCase:
    """The case of one lookup."""
    known = chosen(inputs.known, 1, layout.most)
    hashed = hashed_tokens(known, layout.hash_block, layout.lookahead)
    present = contents(layout, inputs, hashed)
    items = [LookupGroup(group, holds) for group, holds in zip(layout.groups, present, strict=True)]
    return PairCase(find(ours, layout, items, known, hashed), find(theirs, layout, items, known, hashed))


def find(engine: EngineLookup, layout: Layout, items: Sequence[LookupGroup], known: int, hashed: int) -> Found:
    """What one build finds."""
    if layout.alone:
        group = items[0].group
        return engine.found_alone(group, items[0].present, known - 1, layout.alignment, group.drops)
    partial_hits = any(layout.alignment < group.block for group in layout.groups)
    return engine.found_by_all(items, known, hashed, layout.alignment, layout.hash_block, partial_hits)


def _one_block_more(case: PairCase) -> PairCase:
    first, *others = case.theirs.blocks
    return replace(case, theirs=replace(case.theirs, blocks=((*first, "one more"), *others)))


SAME = Claim(
    "M2.pair",
    "M2",
    lambda case: case.ours == case.theirs,
    lambda case: case.ours.hit > 0,
    "there is a hit",
    Control("The lookup gives the same hit and one block more.", _one_block_more),
    note="Both builds give the same blocks, the same hit and the same surplus.",
)


def pair_subject(release: str, layout: Layout, ours: EngineLookup, theirs: EngineLookup) -> Subject:
    """The lookups of two builds in one layout; ``release`` is the one next to the first."""
    alone = lookup_subject(POLICIES[release], layout)
    return replace(
        alone,
        name=f"{alone.name}, two builds",
        claims=(SAME,),
        run=run_pair,
        arguments=lambda names: (layout, ours, theirs),
    )


def layouts(release: str) -> list[Layout]:
    """The layouts that a release has."""
    return [layout for layout in LAYOUTS if not refusal(POLICIES[release], layout)]


def prove_pair(release: str, layout: Layout, ours: EngineLookup, theirs: EngineLookup) -> Row:
    """Do the builds look up the same in one layout?"""
    subject = pair_subject(release, layout, ours, theirs)
    report = Prover(subject, subject.claims, Limits()).prove()
    ((regime, result),) = report.results[SAME.id].items()
    if result.reason.startswith(f"raised {ShapeChanged.__name__}"):
        result = Result("unknown", reason=f"shape changed: {result.reason}")
    return Row(
        claim=SAME.id,
        rule=SAME.rule,
        subject="lookup of two builds",
        target="engine",
        release=release,
        sizes=layout.name,
        features="",
        regime=", ".join(regime),
        verdict=result.verdict,
        reason=result.reason,
        bound=subject.bound,
        paths=report.paths,
        queries=report.queries,
        counterexample=result.counterexample,
        shown=for_people(subject, result.counterexample),
    )


def equal_words(release: str, ours: EngineLookup, theirs: EngineLookup) -> str:
    """What is proved once every layout is, to which bound and under which premise."""
    where = layouts(release)
    most = [layout.most for layout in where]
    own = "" if ours.retains_longer_hit or theirs.retains_longer_hit else ", none of which retains a longer hit"
    return (
        f"{SAME.id}: to a bound both builds find the same blocks, hit and surplus, in {len(where)} layouts of full, swa"
        f" and mamba groups, any cache content, requests up to {min(most)} tokens, in some up to {max(most)}; taken for"
        " granted: each group is served by FullAttentionManager, SlidingWindowManager or MambaManager itself and by no"
        f" subclass{own}; all groups are cacheable and share one block pool; there is no context parallelism"
    )
