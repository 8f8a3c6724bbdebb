"""P2: who is next is served while there is room, or it is told after the stated number of steps."""

from __future__ import annotations

import msgspec

from fuzz.engines.conforming import open_reference
from fuzz.vectors import vectors
from oracle import trace
from oracle.judge import Judge, judge_lines
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


def test_without_budget_left_nobody_is_passed_over() -> None:
    lines = open_reference().run(STARVES).lines
    judge = Judge(trace.header_decoder.decode(lines[0]), "0.33.0", frozenset({"P2"}))
    for line in lines[1:]:
        judge.feed_all(map(with_all_budget_used, trace.records_decoder.decode(line)))
    assert judge.close().findings == []


def with_all_budget_used(record: trace.AnyRecord) -> trace.AnyRecord:
    """A step whose first chunk takes what the others leave of the budget."""
    if not isinstance(record, trace.Step) or not record.scheduled:
        return record
    first, *others = record.scheduled
    left = STARVES.limits.budget - sum(item.tokens for item in record.scheduled)
    more = msgspec.structs.replace(first, tokens=first.tokens + left)
    return msgspec.structs.replace(record, scheduled=(more, *others))


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
