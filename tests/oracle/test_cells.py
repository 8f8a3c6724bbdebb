"""A coverage cell counts the traces that hold all of it, and no other."""

from __future__ import annotations

from typing import Any

import pytest

from fuzz.engines.open import open_engine
from fuzz.generator import scenario_at
from oracle.cells import TOGETHER, cells
from oracle.judge import judge_lines, read_header
from oracle.scenario import Features, Geometry, Group, Limits, Request, Scenario, Step

GROUPS = (Group("full", 4), Group("mamba", 4), Group("swa", 4, 8))
EVICTED = {"eviction": 1}


def found(groups: tuple[Group, ...], coverage: dict[str, int], **features: Any) -> list[str]:
    features = {"drafts": 2, "retention": 0} | features
    step = Step(0, (Request("r0", ("sys:16",), 3),))
    scenario = Scenario(Geometry(groups, 4, 60), Limits(32, 4), (step,), Features(**features))
    return list(cells(read_header(open_engine("reference").run(scenario).lines[0]), coverage))


@pytest.mark.parametrize("event", ["eviction", "preemption", "allocation refused"])
def test_all_together_in_tight_memory(event: str) -> None:
    assert found(GROUPS, {event: 1}) == [TOGETHER]


@pytest.mark.parametrize(
    ("groups", "coverage", "features"),
    [
        (GROUPS[:2], EVICTED, {}),
        ((GROUPS[0], GROUPS[2]), EVICTED, {}),
        (GROUPS, EVICTED, {"drafts": 0}),
        (GROUPS, EVICTED, {"retention": None}),
        (GROUPS, EVICTED, {"retention": 4}),
        (GROUPS, {"hit": 1}, {}),
    ],
    ids=["no window", "no Mamba", "no drafts", "dense", "an interval", "room enough"],
)
def test_any_part_missing(groups: tuple[Group, ...], coverage: dict[str, int], features: dict[str, Any]) -> None:
    assert found(groups, coverage, **features) == []


def test_swarms_of_all_together_reach_the_cell_in_half_of_their_scenarios() -> None:
    engine = open_engine("reference")
    reached = ran = 0
    for index in range(60):
        scenario = scenario_at(1, index, only=("together", "shared-prefix"))
        run = engine.run(scenario)
        if run.lines:
            ran += 1
            reached += TOGETHER in judge_lines(run.lines, "0.33.0").coverage
    assert ran > 20
    assert reached > ran / 2
