"""Blocks that a request gets, counts and gives back: each differs from a clean trace in one place, and is found."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from fuzz.engines.conforming import open_reference
from oracle import trace
from oracle.judge import Judge
from oracle.scenario import Features, Geometry, Group, Limits, Request, Scenario, Step
from oracle.verdict import Verdict

Records = list[trace.AnyRecord]

TAIL_AND_HIT = Scenario(
    Geometry((Group("full", 4), Group("swa", 2, 5), Group("mamba", 4)), 2, 40),
    Limits(budget=16, sequences=4),
    (
        Step(0, add=(Request("r0", ("sys:23",), 4),)),
        Step(8, add=(Request("r1", ("sys:23", "b:5"), 4),)),
    ),
    Features(retention=0, partial_hits=True),
)
"""A tail inside a block that its own request overwrites, and a hit that ends on it."""


def recorded(release: str = "0.33.0", scenario: Scenario = TAIL_AND_HIT) -> tuple[trace.Header, Records]:
    lines = open_reference(release).run(scenario).lines
    header = trace.header_decoder.decode(lines[0])
    return header, [record for line in lines[1:] for record in trace.records_decoder.decode(line)]


def judged(header: trace.Header, records: Records, release: str | None = "0.33.0") -> Verdict:
    judge = Judge(header, release)
    judge.feed_all(records)
    return judge.close()


def at(records: Records, kind: type, number: int = 0, **facts: object) -> int:
    """Where the ``number``-th record of a kind with these facts stands."""
    found = [
        index
        for index, record in enumerate(records)
        if isinstance(record, kind) and all(getattr(record, name) == value for name, value in facts.items())
    ]
    return found[number]


def replace(records: Records, index: int, **facts: object) -> None:
    records[index] = msgspec.structs.replace(records[index], **facts)  # type: ignore[type-var,assignment]


def refuse_what_fits(records: Records) -> None:
    replace(records, at(records, trace.Allocate, -1), granted=False)


def count_one_more(records: Records) -> None:
    index = at(records, trace.Allocate, request="r1")
    allocate = records[index]
    assert isinstance(allocate, trace.Allocate)
    assert allocate.promised is not None
    replace(records, index, promised=allocate.promised + 1)


def end_from_the_front(records: Records) -> None:
    index = at(records, trace.Finish, request="r0") + 1
    free = records[index]
    assert isinstance(free, trace.Free)
    replace(records, index, blocks=free.blocks[::-1])


def keep_the_window(records: Records) -> None:
    step = at(records, trace.Step)
    index = next(i for i in range(step, len(records)) if isinstance(records[i], trace.Free))
    del records[index]


def lose_a_group_at_the_end(records: Records) -> None:
    del records[at(records, trace.Free, -1)]


def copy_elsewhere(records: Records) -> None:
    index = next(i for i, record in enumerate(records) if isinstance(record, trace.Step) and record.copies)
    step = records[index]
    assert isinstance(step, trace.Step)
    replace(records, index, copies=tuple((source, 39) for source, _ in step.copies))


def copy_what_is_whole(records: Records) -> None:
    replace(records, step_without_copies(records), copies=((1, 39),))


def free_before_a_step(records: Records) -> None:
    records.insert(step_without_copies(records), trace.Free((1,)))


def step_without_copies(records: Records) -> int:
    return next(i for i, record in enumerate(records) if isinstance(record, trace.Step) and not record.copies)


def use_another_column(records: Records) -> None:
    index = at(records, trace.Table, request="r0", group=2)
    table = records[index]
    assert isinstance(table, trace.Table)
    replace(records, index, blocks=(*table.blocks, 0))


@pytest.mark.parametrize(
    ("tamper", "found"),
    [
        (refuse_what_fits, ("M5", "allocate")),
        (count_one_more, ("M5", "allocate")),
        (count_one_more, ("X2", "allocate")),
        (end_from_the_front, ("M4", "free")),
        (keep_the_window, ("M4", "free")),
        (lose_a_group_at_the_end, ("M4", "free")),
        (copy_elsewhere, ("M4", "copy")),
        (copy_what_is_whole, ("M4", "copy")),
        (free_before_a_step, ("M4", "free")),
        (use_another_column, ("M4", "table")),
    ],
    ids=lambda value: getattr(value, "__name__", None) or " ".join(value),
)
def test_one_changed_record_is_found(tamper: Callable[[Records], None], found: tuple[str, str]) -> None:
    header, records = recorded()
    assert judged(header, records).findings == []
    tamper(records)
    assert found in {(finding.rule, finding.decision) for finding in judged(header, records).findings}


def test_a_refusal_is_told_with_its_reason() -> None:
    header, records = recorded()
    index = at(records, trace.Add)
    header = msgspec.structs.replace(header, setup=msgspec.structs.replace(header.setup, watermark_blocks=39))
    del records[index + 2 :]
    records += [
        trace.Lookup("r0", 23, 0, 0, ((), (), ())),
        trace.Allocate("r0", 0, 16, 0, granted=False),
        trace.Step(0, (), (), (), (), (), 1, 0),
    ]
    (finding,) = [one for one in judged(header, records).findings if one.rule == "M5"]
    assert (finding.expected, finding.actual) == ("granted", "refused")
    assert "its chunk needs 13 blocks, and 39 may be used" in finding.reason


def test_tokens_in_flight_keep_their_window() -> None:
    header, records = recorded()
    # The output of the first step comes a step later, so the second gives nothing back.
    first = at(records, trace.Output, index=0)
    output = records.pop(first)
    records.insert(at(records, trace.Step, index=1) + 1, output)
    reasons = [finding.reason for finding in judged(header, records).findings if finding.rule == "M4"]
    assert len(reasons) == 1
    assert "16 of them in flight, so the pool gets nothing" in reasons[0]


@pytest.mark.parametrize("release", ["0.26.0", "0.30.0"])
def test_what_releases_count_twice_is_an_allowed_difference(release: str) -> None:
    verdict = judged(*recorded(release), release)
    assert [finding for finding in verdict.findings if finding.rule in {"M4", "M5", "X2"}] == []
    assert verdict.allowed["a copy of a state is counted twice where the chunk ends in the same block"] > 0
    newer = judged(*recorded(release), "0.31.0")
    assert "X2" in {finding.rule for finding in newer.findings}


def test_without_a_policy_only_the_promise_is_judged() -> None:
    header, records = recorded()
    count_one_more(records)
    replace(records, at(records, trace.Allocate), promised=1)
    verdict = judged(header, records, None)
    assert {finding.rule for finding in verdict.findings} == {"X2"}
    assert {"M4", "M5"} <= verdict.unjudged.keys()


def test_a_trace_without_promises_has_no_promise_to_judge() -> None:
    header, records = recorded()
    for index, record in enumerate(records):
        if isinstance(record, trace.Allocate):
            replace(records, index, promised=None)
    verdict = judged(header, records)
    assert verdict.findings == []
    assert "X2" not in verdict.judged
    assert verdict.judged["M5"] > 0


def test_a_hit_that_no_lookup_offered_is_told_and_its_blocks_are_followed() -> None:
    header, records = recorded()
    for name in ("r0", "r1"):
        index = at(records, trace.Allocate, request=name)
        allocate = records[index]
        assert isinstance(allocate, trace.Allocate)
        replace(records, index, hit=allocate.hit + 1)
    told = [finding for finding in judged(header, records).findings if finding.rule in {"M4", "M5", "X2"}]
    assert [(finding.rule, finding.request) for finding in told] == [("M5", "r0"), ("M5", "r1")]


def test_blocks_without_any_lookup_are_followed_and_not_judged() -> None:
    header, records = recorded()
    blind = [record for record in records if not isinstance(record, trace.Lookup)]
    assert {finding.rule for finding in judged(header, blind).findings} & {"M4", "M5", "X2"} == set()


@pytest.mark.parametrize(("step", "done"), [(2, False), (40, True)], ids=["in-use", "idle"])
def test_a_reset_is_done_if_no_block_is_in_use_and_only_then(step: int, done: bool) -> None:
    scenario = msgspec.structs.replace(TAIL_AND_HIT, steps=(TAIL_AND_HIT.steps[0], Step(step, reset=True)))
    header, records = recorded(scenario=scenario)
    alone = [record for record in records if not isinstance(record, trace.Snapshot)]
    index = at(alone, trace.Reset, done=done)
    assert judged(header, alone).findings == []
    replace(alone, index, done=not done)
    assert ("M4", "reset") in {(finding.rule, finding.decision) for finding in judged(header, alone).findings}
