"""How many tokens a chunk asks for: budget, threshold and what is missing, with steps in flight and drafts, too."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from fuzz.engines.conforming import open_reference
from oracle import trace
from oracle.judge import Judge, judge_lines
from oracle.scenario import Features, Geometry, Group, Limits, Request, Scenario, Step
from oracle.verdict import Verdict

FULL = Scenario(
    Geometry((Group("full", 4),), 4, 60),
    Limits(budget=10, sequences=4, long_prefill_threshold=7),
    (
        Step(0, add=(Request("r0", ("a:23",), 3),)),
        Step(2, add=(Request("r1", ("b:19",), 3), Request("r2", ("c:2",), 3))),
    ),
)
"""One request alone, then three: the threshold, the budget and what is missing each bind once."""
MAMBA = replace(FULL, geometry=Geometry((Group("full", 4), Group("mamba", 4)), 4, 60))
DRAFTS = replace(FULL, features=Features(drafts=2))
IN_FLIGHT = replace(FULL, features=Features(async_depth=1))


def recorded(scenario: Scenario, release: str = "0.33.0") -> list[bytes]:
    return open_reference(release).run(scenario).lines


def with_one_token_less(lines: list[bytes], kind: type) -> Verdict:
    """The verdict on M1 alone, where the first chunk of ``r1`` asks for a token less than it might."""
    changed = []
    for line in lines[1:]:
        records = trace.records_decoder.decode(line)
        for index, record in enumerate(records):
            if isinstance(record, kind) and record.request == "r1":  # type: ignore[attr-defined]
                field = "asked" if kind is trace.Split else "tokens"
                records[index] = replace(record, **{field: getattr(record, field) - 1})
        changed.append(msgspec.json.encode(records))
    return judge_lines([lines[0], *changed], "0.33.0", frozenset({"M1"}))


@pytest.mark.parametrize("scenario", [FULL, MAMBA, DRAFTS, IN_FLIGHT], ids=["full", "mamba", "drafts", "in-flight"])
def test_a_chunk_that_asks_for_less_is_told_and_the_right_ones_are_not(scenario: Scenario) -> None:
    lines = recorded(scenario)
    clean = judge_lines(lines, "0.33.0", frozenset({"M1"}))
    assert clean.findings == []
    assert clean.judged["M1"] > 3
    kind = trace.Split if scenario is MAMBA else trace.Allocate
    assert {finding.decision for finding in with_one_token_less(lines, kind).findings} == {kind.__name__.lower()}


@pytest.mark.parametrize(("release", "other"), [("0.30.0", "0.33.0"), ("0.33.0", "0.30.0")])
def test_a_lone_request_heeds_the_threshold_or_not_as_its_release_does(release: str, other: str) -> None:
    lines = recorded(FULL, release)
    assert judge_lines(lines, release, frozenset({"M1"})).findings == []
    assert [finding.request for finding in judge_lines(lines, other, frozenset({"M1"})).findings] == ["r0"]


@pytest.mark.parametrize(("again", "found"), [(7, False), (8, True)])
def test_who_preempts_another_asks_again_for_what_it_was_refused(again: int, found: bool) -> None:
    """The one that goes had a token of this step, which is free then; releases do not count anew."""
    header = trace.header_decoder.decode(recorded(replace(FULL, limits=Limits(budget=8, sequences=4)))[0])
    judge = Judge(header, "0.33.0", frozenset({"M1"}))
    judge.feed_all(
        [
            trace.Add("r0", ("a:1",), "r0", 1),
            trace.Add("r1", ("b:12",), "r1", 12),
            trace.Allocate("r0", 0, 1, 0, granted=True),
            trace.Allocate("r1", 0, 7, 0, granted=False),
            trace.Preempt("r0"),
            trace.Allocate("r1", 0, again, 0, granted=True),
        ]
    )
    assert bool(judge.close().findings) == found
