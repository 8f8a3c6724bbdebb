"""Two builds on one scenario: same, better, worse, or not to be compared.

A candidate is judged by the invariants, as the baseline is. That it decides otherwise is a difference and no broken
rule; whether it is one to worry about is said by the rules and by the costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Literal

import msgspec

from oracle import trace
from oracle.costs import Costs, better_in, costs_of, worse_in
from oracle.decisions import Decision, decisions
from oracle.scenario import Scenario
from oracle.verdict import Finding

Word = Literal["identical", "refines", "regresses", "incomparable"]

CONTEXT = 6
"""Decisions that are shown before a first difference, which both builds took alike."""


class Difference(msgspec.Struct, frozen=True):
    """The first decision in which two builds differ. None: that build took no further decision.

    ``before``: the decisions that led there, the same on both; what both builds saw.
    """

    baseline: Decision | None
    candidate: Decision | None
    before: tuple[Decision, ...] = ()

    @property
    def kind(self) -> str:
        """The kind of decision, like ``split``."""
        return (self.candidate or self.baseline).kind  # type: ignore[union-attr]

    @property
    def step(self) -> int:
        """The engine step in which it was taken."""
        return (self.candidate or self.baseline).step  # type: ignore[union-attr]


class Outcome(msgspec.Struct, frozen=True):
    """One build on one scenario: the trace's lines, its costs, what was found in it by the invariants."""

    lines: tuple[bytes, ...]
    costs: Costs
    findings: tuple[Finding, ...] = ()

    @property
    def rules(self) -> frozenset[str]:
        """The rules that are broken."""
        return frozenset(finding.rule for finding in self.findings)


class Comparison(msgspec.Struct, frozen=True):
    """What a scenario says of two builds. ``broken``: findings of rules that held on the baseline; ``mended``: the
    other way round. ``worse`` and ``better``: the costs in which the candidate is."""

    difference: Difference | None = None
    broken: tuple[Finding, ...] = ()
    mended: tuple[Finding, ...] = ()
    worse: tuple[str, ...] = ()
    better: tuple[str, ...] = ()

    @property
    def word(self) -> Word:
        """The verdict."""
        return "regresses" if self.broken else self.word_by_cost

    @property
    def word_by_cost(self) -> Word:
        """The verdict if the broken rules did not count, as where they are known."""
        if self.worse:
            return "incomparable" if self.better or self.mended else "regresses"
        return "identical" if self.difference is None and not (self.mended or self.broken) else "refines"


def outcome_of(scenario: Scenario, lines: Sequence[bytes], findings: Iterable[Finding]) -> Outcome:
    """An outcome from a trace's lines, header first."""
    return Outcome(tuple(lines), costs_of(scenario, records_of(lines)), tuple(findings))


def records_of(lines: Sequence[bytes]) -> list[trace.AnyRecord]:
    """The records of a trace."""
    return [record for line in lines[1:] for record in trace.records_decoder.decode(line)]


def compare(baseline: Outcome, candidate: Outcome, tolerance: float = 0.0) -> Comparison:
    """Compare what two builds did with one scenario.

    ``tolerance``: by what share of the baseline's a cost may be worse without being counted as worse.
    """
    # Lines tell block ids and digests, too: equal ones need no closer look, and mostly they are equal.
    difference = None if baseline.lines[1:] == candidate.lines[1:] else first_difference(baseline, candidate)
    return Comparison(
        difference,
        tuple(one for one in candidate.findings if one.rule not in baseline.rules),
        tuple(one for one in baseline.findings if one.rule not in candidate.rules),
        worse_in(baseline.costs, candidate.costs, tolerance),
        better_in(baseline.costs, candidate.costs),
    )


def first_difference(baseline: Outcome, candidate: Outcome) -> Difference | None:
    """The first decision in which two traces differ, block ids and order among equals aside."""
    return difference_between(decisions(records_of(baseline.lines)), decisions(records_of(candidate.lines)))[1]


def difference_between(ours: Iterable[Decision], theirs: Iterable[Decision]) -> tuple[int, Difference | None]:
    """How many decisions were compared, and the first one in which two builds, or runs, differ."""
    before: list[Decision] = []
    for mine, other in zip_longest(ours, theirs):
        if mine is None or other is None or not mine.same(other):
            return len(before) + 1, Difference(mine, other, tuple(before[-CONTEXT:]))
        before.append(mine)
    return len(before), None


def overall(words: Iterable[Word], broken: bool) -> Word:
    """One word for many scenarios. ``broken``: a rule is, which weighs most. Better here and worse there is not to be
    compared."""
    seen = frozenset(words)
    if broken:
        return "regresses"
    if "incomparable" in seen or {"regresses", "refines"} <= seen:
        return "incomparable"
    return "regresses" if "regresses" in seen else "refines" if "refines" in seen else "identical"
