"""Makes a scenario smaller while the same finding recurs: requests, events, features, block sizes, tokens.

It works on the scenario document alone, so scenarios of users and of a replay shrink like drawn ones. A
candidate counts only if it can run and gives a finding of the same signature. Everything is tried in a
fixed order, so that the result depends on nothing but the scenario, the engine and the budget.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import msgspec

from fuzz import reductions
from fuzz.reductions import Knob
from oracle.scenario import Scenario
from oracle.validate import check, prompt_tokens
from oracle.verdict import Finding

ATTEMPTS = 1500
"""Trials that one signature may cost; most need a few hundred."""

Recurs = Callable[[Scenario], Finding | None]
"""Tries a scenario and gives its finding of the signature that is looked for, if it has one."""

_encoder = msgspec.json.Encoder()


class Shrunk(msgspec.Struct, frozen=True):
    """The smallest scenario found, its finding, and how it was found.

    ``finding`` is None when the scenario given did not show the finding at all. ``complete``: no reduction
    is left that would keep the finding; else attempts or time ran out.
    """

    scenario: Scenario
    finding: Finding | None
    attempts: int
    complete: bool


class _OutOfBudget(Exception):
    """Attempts or time ran out."""


def shrink(scenario: Scenario, recurs: Recurs, *, attempts: int = ATTEMPTS, deadline: float | None = None) -> Shrunk:
    """Reduce to a fixed point, within ``attempts`` trials and before ``deadline`` (``time.monotonic()``)."""
    finding = recurs(scenario)
    if finding is None:
        return Shrunk(scenario, None, 1, False)
    search = _Search(scenario, finding, recurs, attempts, deadline)
    try:
        search.to_fixed_point()
    except _OutOfBudget:
        return Shrunk(search.current, search.finding, search.attempts, False)
    return Shrunk(search.current, search.finding, search.attempts, True)


def size(scenario: Scenario) -> tuple[int, int, int, int]:
    """How large a scenario is to a reader: requests, events, tokens, and the blocks' sizes in tokens."""
    requests = scenario.requests()
    events = sum(len(s.add) + len(s.abort) + len(s.abort_in_flight) + s.reset for s in scenario.steps)
    tokens = sum(prompt_tokens(request) + request.max_output for request in requests)
    return len(requests), events, tokens, sum(group.block for group in scenario.geometry.groups)


class _Search:
    """The smallest scenario so far, and what may still be spent on a smaller one."""

    def __init__(
        self, scenario: Scenario, finding: Finding, recurs: Recurs, attempts: int, deadline: float | None
    ) -> None:
        self.current = scenario
        self.finding = finding
        self.attempts = 1
        self._recurs = recurs
        self._attempts_max = attempts
        self._deadline = deadline
        self._tried = {_encoder.encode(scenario)}

    def to_fixed_point(self) -> None:
        """Run all passes until none of them finds anything. The cheap and strong ones come first."""
        before: Scenario | None = None
        while before != self.current:
            before = self.current
            self._drop_requests()
            self._repeat(reductions.events)
            self._repeat(reductions.features)
            self._repeat(reductions.block_sizes)
            self._repeat(reductions.prompts)
            self._turn_knobs()
            self._turn_pairs()
            self._repeat(reductions.fewer_requests)
        self._accept(reductions.renamed(self.current))

    def _accept(self, candidate: Scenario) -> bool:
        """Make the candidate the smallest so far if it can run and shows the finding."""
        key = _encoder.encode(candidate)
        if key in self._tried:
            return False
        self._tried.add(key)
        if check(candidate):
            return False
        out_of_time = self._deadline is not None and time.monotonic() >= self._deadline
        if out_of_time or self.attempts >= self._attempts_max:
            raise _OutOfBudget
        self.attempts += 1
        finding = self._recurs(candidate)
        if finding is None:
            return False
        self.current, self.finding = candidate, finding
        return True

    def _repeat(self, candidates: Callable[[Scenario], Iterator[Scenario]]) -> None:
        """Take the first candidate that is accepted and start over from it, until none is."""
        while any(self._accept(candidate) for candidate in candidates(self.current)):
            pass

    def _drop_requests(self) -> None:
        """Leave out halves, quarters … and single requests, the later ones first."""
        width = len(self.current.requests()) // 2
        while width >= 1:
            end = len(self.current.requests())
            while end > 0 and len(self.current.requests()) > 1:
                ids = {request.id for request in self.current.requests()[max(0, end - width) : end]}
                self._accept(reductions.without_requests(self.current, ids))
                end -= width
            width //= 2

    def _turn_knobs(self) -> None:
        """Bring every number as low as it goes: first to its least, then by halving the distance."""
        for knob in reductions.knobs(self.current):
            low, high = knob.least, knob.read(self.current)
            if high is None or high <= low or self._turn(knob, low):
                continue
            low += 1
            while low < high:
                middle = (low + high) // 2
                if self._turn(knob, middle):
                    high = middle
                else:
                    low = middle + 1

    def _turn(self, knob: Knob, value: int) -> bool:
        return self._accept(knob.write(self.current, value))

    def _turn_pairs(self) -> None:
        """Lower two numbers at once by one: a prompt and the budget that just holds it, two prompts, …"""
        knobs = list(reductions.knobs(self.current))
        for number, first in enumerate(knobs):
            for second in knobs[number + 1 :]:
                while self._lower_both(first, second):
                    pass

    def _lower_both(self, first: Knob, second: Knob) -> bool:
        one, other = first.read(self.current), second.read(self.current)
        if one is None or other is None or one <= first.least or other <= second.least:
            return False
        return self._accept(second.write(first.write(self.current, one - 1), other - 1))
