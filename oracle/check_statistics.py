"""Checks of the engine's own statistics: T1, each admission is counted once, with what it really reused."""

from __future__ import annotations

from oracle.case import Case, RequestState
from oracle.trace import Allocate, Lookup, Statistics
from reference import rules

_NOTHING = (0, 0, 0)

Counts = tuple[int, int, int]
"""Admissions, tokens asked for in them, tokens reused."""


class StatisticsCheck:
    """Counts admissions as they happen, and compares with each report; ``asked``: tokens of the last lookup, by
    request, until it is admitted."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.asked: dict[str, int] = {}
        self.fresh: Counts = _NOTHING
        self.preempted: Counts = _NOTHING
        self.reports = 0
        self.broken = False

    def look_up(self, record: Lookup) -> None:
        """A request asks the cache, unless it is to skip that; it counts once the request is admitted."""
        if self.case.scenario.features.caching and record.request not in self.case.skips_lookup:
            self.asked[record.request] = record.known

    def admit(self, record: Allocate, state: RequestState) -> None:
        """Blocks were granted: to a request that waited, this is its admission."""
        queries = self.asked.pop(record.request, None)
        if queries is None:
            return
        if state.preemptions:
            self.preempted = _plus(self.preempted, queries, record.hit)
        else:
            self.fresh = _plus(self.fresh, queries, record.hit)

    def leave(self, request: str) -> None:
        """A request ended; one that still waited is never admitted."""
        self.asked.pop(request, None)

    def report(self, record: Statistics) -> None:
        """The engine reports what it counted since the last time."""
        self.reports += 1
        self._compare(
            (record.requests, record.queries, record.hits),
            (record.preempted_requests, record.preempted_queries, record.preempted_hits),
        )

    def end(self) -> None:
        """Nothing was left out, in a trace that has reports at all."""
        if self.reports:
            self._compare(_NOTHING, _NOTHING)

    def _compare(self, fresh: Counts, preempted: Counts) -> None:
        """What was counted against what happened, after which both begin anew."""
        happened, self.fresh, self.preempted = (self.fresh, self.preempted), _NOTHING, _NOTHING
        if not self.case.judged("T1") or self.broken:
            return
        for name, told, was in (("", fresh, happened[0]), ("resumed ", preempted, happened[1])):
            if not rules.counts_what_happened(told, was):
                self.broken = True
                self.case.report(
                    "T1",
                    "statistics",
                    f"since the last report {_words(name, was)}, and the engine counted {_words(name, told)}",
                    expected=_words(name, was),
                    actual=_words(name, told),
                )
                return


def _plus(counts: Counts, queries: int, hits: int) -> Counts:
    """One admission more."""
    return counts[0] + 1, counts[1] + queries, counts[2] + hits


def _words(name: str, counts: Counts) -> str:
    admissions = f"{counts[0]} {name}admission{'' if counts[0] == 1 else 's'}"
    return f"{admissions} asked for {counts[1]} tokens and reused {counts[2]}"
