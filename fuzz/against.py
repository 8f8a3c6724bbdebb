"""What an engine's decisions cost beside the reference engine's, on the same scenarios under the same policy.

A difference is a statistic and never a finding: an engine may choose otherwise and be right.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from oracle import trace
from oracle.compare import records_of
from oracle.costs import COSTS, MORE_IS_BETTER, Costs, costs_of
from oracle.scenario import Scenario

LOSSES = ("hit_tokens", "steps")
"""The costs of which the scenario is named in which the engine loses most."""


class Loss(msgspec.Struct, frozen=True):
    """A scenario by its number, and a cost of it on the engine and on the reference engine."""

    index: int
    engine: int
    reference: int

    @property
    def amount(self) -> int:
        """By how much they differ."""
        return abs(self.engine - self.reference)


class Against(msgspec.Struct):
    """Costs added up over ``scenarios``. ``unlike``: scenarios that one of the two did not run to its end.

    ``largest``: by cost the scenario in which the engine loses most, if it ever does.
    """

    scenarios: int = 0
    unlike: int = 0
    engine: Costs = Costs()
    reference: Costs = Costs()
    largest: dict[str, Loss] = msgspec.field(default_factory=dict)

    def add(self, index: int, scenario: Scenario, engine: Sequence[bytes], reference: Sequence[bytes]) -> None:
        """Count scenario ``index`` by the traces of both."""
        costs = [_costs_to_the_end(scenario, lines) for lines in (engine, reference)]
        if costs[0] is None or costs[1] is None:
            self.unlike += 1
            return
        self.scenarios += 1
        self.engine += costs[0]
        self.reference += costs[1]
        for name in LOSSES:
            ours, theirs = getattr(costs[0], name), getattr(costs[1], name)
            if ours < theirs if name in MORE_IS_BETTER else ours > theirs:
                self._note(name, Loss(index, ours, theirs))

    def merge(self, other: Against) -> None:
        """Add what another counted."""
        self.scenarios += other.scenarios
        self.unlike += other.unlike
        self.engine += other.engine
        self.reference += other.reference
        for name, loss in other.largest.items():
            self._note(name, loss)

    def _note(self, name: str, loss: Loss) -> None:
        """Keep the larger loss; of equal ones the scenario with the lower number, in whatever order they come."""
        known = self.largest.get(name)
        if known is None or (loss.amount, -loss.index) > (known.amount, -known.index):
            self.largest[name] = loss

    def ratio(self, name: str) -> float | None:
        """The engine's cost in units of the reference engine's; None where that is 0 and the engine's is not."""
        ours, theirs = getattr(self.engine, name), getattr(self.reference, name)
        return 1.0 if ours == theirs else ours / theirs if theirs else None

    def document(self) -> dict[str, object]:
        """All of it as data."""
        costs = {
            name: {
                "engine": getattr(self.engine, name),
                "reference": getattr(self.reference, name),
                "ratio": self.ratio(name),
            }
            for name in COSTS
        }
        return {"scenarios": self.scenarios, "unlike": self.unlike, "costs": costs, "largest_losses": self.largest}


def _costs_to_the_end(scenario: Scenario, lines: Sequence[bytes]) -> Costs | None:
    """The costs of a trace that ends as it should, so that they can be compared."""
    records = records_of(lines) if lines else []
    if not records or not isinstance(records[-1], trace.End):
        return None
    return costs_of(scenario, records)
