"""Where a campaign's scenarios come from: number in, scenario out, the same for every worker."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Literal

import msgspec

from fuzz.generator import scenario_at, swarm_at
from oracle.scenario import Scenario

Backend = Literal["seeded", "hypothesis"]

_BATCH = 100
"""Scenarios that Hypothesis draws in one go; it avoids repeating itself within them."""


class Scenarios(msgspec.Struct, frozen=True, kw_only=True):
    """A campaign's scenarios. ``only`` and ``without`` name features."""

    seed: int
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    backend: Backend = "seeded"


def scenario_source(scenarios: Scenarios) -> Callable[[int], Scenario]:
    """A function from a scenario's number to the scenario."""
    if scenarios.backend == "hypothesis":
        return _Hypothesis(scenarios)
    return lambda index: scenario_at(scenarios.seed, index, only=scenarios.only, without=scenarios.without)


def features_at(scenarios: Scenarios, index: int) -> frozenset[str]:
    """The features of the swarm that scenario ``index`` belongs to; none where Hypothesis draws it."""
    if scenarios.backend == "hypothesis":
        return frozenset()
    return swarm_at(scenarios.seed, index, only=scenarios.only, without=scenarios.without).on


class _Hypothesis:
    """Batches of examples, each from a seed of its own, so that any worker can make any of them."""

    def __init__(self, scenarios: Scenarios) -> None:
        self._scenarios = scenarios
        self._batch = lru_cache(maxsize=2)(self._draw)

    def __call__(self, index: int) -> Scenario:
        batch = self._batch(index // _BATCH)
        return batch[index % _BATCH % len(batch)]

    def _draw(self, number: int) -> list[Scenario]:
        # Imported here: only this back end pays for it.
        import hypothesis

        from fuzz.strategies import scenarios as strategy

        drawn: list[Scenario] = []

        @hypothesis.seed(self._scenarios.seed * 1_000_003 + number)
        @hypothesis.settings(
            max_examples=_BATCH,
            database=None,
            deadline=None,
            phases=[hypothesis.Phase.generate],
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.given(strategy(self._scenarios.only, self._scenarios.without))
        def draw(scenario: Scenario) -> None:
            drawn.append(scenario)

        draw()
        return drawn
