"""T1: what an engine's statistics say is what was admitted and reused, no more, no less, and in the right column."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from msgspec.structs import replace

from fuzz.engines.conforming import open_reference
from fuzz.engines.planted import open_planted
from fuzz.vectors import vectors
from oracle import trace
from oracle.judge import Judge, judge_lines
from oracle.scenario import Features, Geometry, Group, Limits, Request, Scenario, Step
from oracle.verdict import Verdict
from tests.oracle.siblings import SIBLINGS

RETRIES = next(vector.scenario for vector in vectors() if vector.name == "lookups-counted-per-retry")
PREEMPTED = Scenario(
    Geometry((Group("full", 2),), 2, 9),
    Limits(budget=8, sequences=2),
    (Step(0, add=(Request("r0", ("a:5",), 7), Request("r1", ("b:5",), 7))),),
    Features(reserve_full_sequence=False),
)
"""Both grow until the blocks run out; the second one comes back for what it had cached."""
ONLY = frozenset({"T1"})


def reports(scenario: Scenario) -> list[trace.Statistics]:
    records = (record for line in open_reference().run(scenario).lines[1:] for record in decode(line))
    return [record for record in records if isinstance(record, trace.Statistics)]


def decode(line: bytes) -> list[trace.AnyRecord]:
    return trace.records_decoder.decode(line)


def judged_with(scenario: Scenario, change: Callable[[trace.Statistics], list[trace.AnyRecord]]) -> Verdict:
    """The verdict on a right trace whose reports are changed."""
    first, *lines = open_reference().run(scenario).lines
    judge = Judge(trace.header_decoder.decode(first), "0.33.0", ONLY)
    for line in lines:
        for record in decode(line):
            judge.feed_all(change(record) if isinstance(record, trace.Statistics) else [record])
    return judge.close()


def test_right_reports_are_silent() -> None:
    for scenario in (SIBLINGS, RETRIES, PREEMPTED):
        verdict = judge_lines(open_reference().run(scenario).lines, "0.33.0", ONLY)
        assert verdict.findings == []
        assert verdict.judged["T1"] == len(reports(scenario)) + 1


def test_a_resumed_request_is_counted_apart() -> None:
    assert [record.preempted_requests for record in reports(PREEMPTED)] == [0, 1]
    assert reports(PREEMPTED)[-1].preempted_hits > 0


def test_each_retry_that_is_counted_is_told_of() -> None:
    (finding,) = judge_lines(open_planted("counted-per-retry").run(RETRIES).lines, "0.33.0", ONLY).findings
    assert finding.decision == "statistics"
    assert finding.expected == "0 admissions asked for 0 tokens and reused 0"
    assert finding.actual == "1 admission asked for 80 tokens and reused 0"


@pytest.mark.parametrize("field", trace.Statistics.__struct_fields__)
def test_every_number_is_compared(field: str) -> None:
    verdict = judged_with(PREEMPTED, lambda record: [replace(record, **{field: getattr(record, field) + 1})])
    assert [finding.rule for finding in verdict.findings] == ["T1"]


def test_an_admission_that_is_left_out_is_told_of_at_the_end() -> None:
    last = reports(SIBLINGS)[-1]
    verdict = judged_with(SIBLINGS, lambda record: [] if record == last else [record])
    assert [finding.expected for finding in verdict.findings] == ["1 admission asked for 23 tokens and reused 16"]


def test_a_trace_without_any_report_says_nothing_of_statistics() -> None:
    verdict = judged_with(SIBLINGS, lambda record: [])
    assert verdict.findings == []
    assert "T1" not in verdict.judged


def test_without_caching_nothing_is_asked_for() -> None:
    plain = replace(PREEMPTED, features=replace(PREEMPTED.features, caching=False))
    assert reports(plain) == []
    counted = msgspec.json.encode([trace.Statistics(1, 5, 0, 0, 0, 0)])
    first, *lines = open_reference().run(plain).lines
    assert [finding.rule for finding in judge_lines([first, counted, *lines], "0.33.0", ONLY).findings] == ["T1"]


def test_a_request_that_leaves_while_it_waits_is_forgotten() -> None:
    first, *lines = open_reference().run(replace(RETRIES, steps=(*RETRIES.steps, Step(2, abort=("second",))))).lines
    judge = Judge(trace.header_decoder.decode(first), "0.33.0", ONLY)
    for line in lines:
        judge.feed_all(decode(line))
    assert judge.statistics.asked == {}
    assert judge.close().findings == []
