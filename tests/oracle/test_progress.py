"""P2: who is next is served while there is room, or it is told after the stated number of steps."""

from __future__ import annotations

import msgspec

from fuzz.engines.conforming import open_reference
from fuzz.vectors import vectors
from oracle.judge import judge_lines
from oracle.scenario import Scenario
from oracle.verdict import Finding
from reference.rules import STARVED_STEPS_LIMIT

SCENARIOS = {vector.name: vector.scenario for vector in vectors()}
STARVES = SCENARIOS["decodes-starve-prefill"]


def findings(scenario: Scenario) -> list[Finding]:
    return judge_lines(open_reference().run(scenario).lines, "0.33.0", frozenset({"P2"})).findings


def test_a_prefill_that_decodes_leave_too_little_for_is_told_of() -> None:
    (finding,) = findings(STARVES)
    assert finding.request == "long"
    assert f"in {STARVED_STEPS_LIMIT} steps in a row" in finding.reason


def test_a_budget_one_token_larger_is_enough() -> None:
    assert findings(SCENARIOS["decodes-leave-a-block"]) == []


def test_without_a_free_sequence_nobody_is_passed_over() -> None:
    limits = msgspec.structs.replace(STARVES.limits, sequences=5)
    assert findings(msgspec.structs.replace(STARVES, limits=limits)) == []


def test_under_priorities_the_order_is_another_and_it_is_not_judged() -> None:
    features = msgspec.structs.replace(STARVES.features, policy="priority")
    assert findings(msgspec.structs.replace(STARVES, features=features)) == []


def test_a_shorter_wait_is_no_fault() -> None:
    steps = tuple(
        msgspec.structs.replace(
            step,
            add=tuple(msgspec.structs.replace(one, max_output=min(one.max_output, 30)) for one in step.add),
        )
        for step in STARVES.steps
    )
    assert findings(msgspec.structs.replace(STARVES, steps=steps)) == []
