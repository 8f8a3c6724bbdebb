"""Two builds side by side: each scenario runs on both, and what they did is compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import msgspec

from fuzz.gate.model import Layer
from fuzz.gate.side import Answer, Batch, Ran, Show, Side
from fuzz.tally import Signature
from oracle.compare import Comparison, Outcome, compare
from oracle.geometry import geometry_class
from oracle.scenario import Scenario

BATCH_SCENARIOS = 24
"""Scenarios that both sides are given at a time: so few that time is kept, so many that waiting is rare."""

COST, DIFFERENCE = "COST", "DIFF"
"""What stands for a rule in the signature of something that breaks none."""


class Compared(msgspec.Struct, frozen=True):
    """One scenario on both builds. ``comparison``: None where a build could not run it. ``sides``: baseline and
    candidate. ``lines``: the traces, where they differ in anything."""

    scenario: Scenario
    layer: Layer
    sides: tuple[Ran, Ran]
    comparison: Comparison | None
    lines: tuple[tuple[bytes, ...], tuple[bytes, ...]] = ((), ())

    @property
    def signatures(self) -> tuple[Signature, ...]:
        """What the candidate is worse in; or, if in nothing, the decision in which it differs; empty if in none."""
        found = self.comparison
        if found is None or found.word == "identical":
            return ()
        if found.broken:
            return tuple(dict.fromkeys(one.signature for one in found.broken))
        kind = found.difference.kind if found.difference is not None else "rule"
        return ((DIFFERENCE if found.word == "refines" else COST, kind, geometry_class(self.scenario)),)


class Pair:
    """Two sides. ``tolerance``: the share by which a cost may be worse."""

    def __init__(self, baseline: Side, candidate: Side, tolerance: float) -> None:
        self.baseline, self.candidate = baseline, candidate
        self.tolerance = tolerance
        self.judged: dict[str, int] = {}

    def wait(self) -> None:
        """Wait until both engines have loaded. Raises SideError."""
        for side in (self.baseline, self.candidate):
            side.wait()

    def run(self, scenarios: Iterable[tuple[Layer, Scenario]], is_over: Callable[[], bool]) -> Iterator[Compared]:
        """Run scenarios until there are no more or it is over, which is looked at between batches."""
        left = iter(scenarios)
        while not is_over() and (batch := list(islice(left, BATCH_SCENARIOS))):
            yield from self._batch(batch)

    def one(self, scenario: Scenario, layer: Layer = "fuzz") -> Compared:
        """Run a single scenario."""
        return next(self._batch([(layer, scenario)]))

    def _batch(self, batch: list[tuple[Layer, Scenario]]) -> Iterator[Compared]:
        order = Batch(tuple(scenario for _, scenario in batch))
        sides = (self.baseline, self.candidate)
        for side in sides:
            side.ask(order)
        answers = [side.take(Answer) for side in sides]
        for rule, times in answers[1].judged.items():
            self.judged[rule] = self.judged.get(rule, 0) + times
        ran = list(zip(*(answer.ran for answer in answers), strict=True))
        places = tuple(place for place, pair in enumerate(ran) if _differ(*pair))
        lines = dict(zip(places, self._show(places), strict=True))
        for place, (layer, scenario) in enumerate(batch):
            yield self._compared(scenario, layer, ran[place], lines.get(place, ((), ())))

    def _show(self, places: tuple[int, ...]) -> list[tuple[tuple[bytes, ...], tuple[bytes, ...]]]:
        if not places:
            return []
        for side in (self.baseline, self.candidate):
            side.ask(Show(places))
        return list(zip(self.baseline.take(tuple), self.candidate.take(tuple), strict=True))

    def _compared(
        self, scenario: Scenario, layer: Layer, ran: tuple[Ran, Ran], lines: tuple[tuple[bytes, ...], tuple[bytes, ...]]
    ) -> Compared:
        if ran[0].could_not_run or ran[1].could_not_run:
            return Compared(scenario, layer, ran, None)
        outcomes = [Outcome(text, one.costs, one.findings) for one, text in zip(ran, lines, strict=True)]
        return Compared(scenario, layer, ran, compare(outcomes[0], outcomes[1], self.tolerance), lines)

    def close(self) -> None:
        """End both sides."""
        self.baseline.close()
        self.candidate.close()


def _differ(baseline: Ran, candidate: Ran) -> bool:
    could = not baseline.could_not_run and not candidate.could_not_run
    return could and (baseline.digest, baseline.findings) != (candidate.digest, candidate.findings)
