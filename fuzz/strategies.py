"""Hypothesis strategies of scenarios, for this test suite and for the property tests of others.

Use: ``@given(scenarios(without=("async",)))`` over a test that takes a ``Scenario``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies
from hypothesis.strategies import SearchStrategy

from fuzz.draw import HypothesisDraw
from fuzz.generator import generate
from fuzz.swarm import check_features, draw_swarm
from oracle.scenario import Scenario


@strategies.composite
def _scenarios(draw: Callable[[SearchStrategy[Any]], Any], only: tuple[str, ...], without: tuple[str, ...]) -> Scenario:
    source = HypothesisDraw(draw)
    return generate(source, draw_swarm(source, only, without))


def scenarios(only: Sequence[str] = (), without: Sequence[str] = ()) -> SearchStrategy[Scenario]:
    """Scenarios that can run; ``only`` and ``without`` name features as ``--only`` and ``--without`` do.

    Each example draws its own swarm. Raises UnknownFeature at once for a name that is no feature.
    """
    check_features(only, without)
    return _scenarios(tuple(only), tuple(without))
