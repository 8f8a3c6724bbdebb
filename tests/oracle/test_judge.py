"""The judge accepts a clean trace, and one changed record of it is the one finding that it should be."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from fuzz.engines.conforming import open_reference
from oracle import trace
from oracle.judge import BadTrace, Judge, judge_lines
from oracle.scenario import Features, Geometry, Group, Limits, Request, Scenario, Step
from oracle.verdict import Verdict

SIBLINGS = Scenario(
    Geometry((Group("full", 4), Group("mamba", 4)), 4, 40),
    Limits(budget=16, sequences=4),
    (
        Step(0, add=(Request("r0", ("sys:18", "a:5"), 2),)),
        Step(6, add=(Request("r1", ("sys:18", "b:5"), 2),)),
        Step(14, add=(Request("r2", ("sys:18", "c:5"), 2),)),
    ),
    Features(retention=0),
)
"""Three siblings under interval 0: the second finds the junction at 16, the third reuses it."""

Records = list[trace.AnyRecord]


@pytest.fixture(scope="module")
def clean() -> tuple[trace.Header, Records]:
    lines = open_reference().run(SIBLINGS).lines
    header = trace.header_decoder.decode(lines[0])
    return header, [record for line in lines[1:] for record in trace.records_decoder.decode(line)]


def verdict(header: trace.Header, records: Records, release: str | None = "0.33.0") -> Verdict:
    judge = Judge(header, release)
    for record in records:
        judge.feed(record)
    return judge.close()


def of(records: Records, kind: type, number: int = 0) -> int:
    """Where the ``number``-th record of a kind stands."""
    return [index for index, record in enumerate(records) if isinstance(record, kind)][number]


def change(record: msgspec.Struct, **fields: object) -> trace.AnyRecord:
    return msgspec.structs.replace(record, **fields)  # type: ignore[return-value]


def test_a_clean_trace_conforms_and_every_rule_had_something_to_judge(clean: tuple[trace.Header, Records]) -> None:
    found = verdict(*clean)
    assert found.findings == []
    assert found.word == "conforms"
    hits = [record.hit for record in clean[1] if isinstance(record, trace.Lookup)]
    junctions = [record.junction for record in clean[1] if isinstance(record, trace.Lookup)]
    assert (hits, junctions) == ([0, 0, 16], [0, 16, 0])
    for rule in ("S1", "S2", "S3", "S4", "R1", "R2", "L1", "L3", "C1", "C2", "A1", "A2", "A3", "M1", "M2", "M3", "P3"):
        assert found.judged.get(rule, 0) > 0, rule


def lose_a_free(records: Records) -> None:
    del records[of(records, trace.Free, -1)]


def hand_out_twice(records: Records) -> None:
    index = of(records, trace.Take, 1)
    records.insert(index + 1, records[index])


def share_without_the_cache(records: Records) -> None:
    held = records[of(records, trace.Table, -1)]
    assert isinstance(held, trace.Table)
    records.insert(of(records, trace.Step), trace.Touch(blocks=(39,)))


def overfill_a_step(records: Records) -> None:
    index = of(records, trace.Step)
    step = records[index]
    assert isinstance(step, trace.Step)
    records[index] = change(step, scheduled=(change(step.scheduled[0], tokens=17),))  # type: ignore[call-arg]


def claim_a_longer_hit(records: Records) -> None:
    index = of(records, trace.Lookup, 2)
    lookup = records[index]
    assert isinstance(lookup, trace.Lookup)
    records[index] = change(lookup, hit=20)


def claim_an_unaligned_hit(records: Records) -> None:
    index = of(records, trace.Lookup, 2)
    records[index] = change(records[index], hit=15)


def put_the_junction_on_the_hit(records: Records) -> None:
    index = of(records, trace.Lookup, 1)
    records[index] = change(records[index], hit=0, junction=-1)


def forget_the_junction(records: Records) -> None:
    for index, record in enumerate(records):
        if isinstance(record, trace.Split):
            records[index] = change(record, junction=0)


def grant_too_much(records: Records) -> None:
    index = of(records, trace.Split)
    split = records[index]
    assert isinstance(split, trace.Split)
    records[index] = change(split, granted=split.asked + 1)


def end_inside_a_block(records: Records) -> None:
    index = of(records, trace.Split)
    records[index] = change(records[index], granted=15)


def run_across_the_junction(records: Records) -> None:
    index = next(
        index for index, record in enumerate(records) if isinstance(record, trace.Split) and record.junction == 16
    )
    records[index] = change(records[index], asked=20, granted=20)


def wait_for_nothing(records: Records) -> None:
    index = of(records, trace.Split)
    records[index] = change(records[index], granted=0)


def drop_the_junction_commits(records: Records) -> None:
    doomed = [
        record
        for record in records
        if isinstance(record, trace.Commit) and record.group == 1 and record.position == 16 and record.request == "r1"
    ]
    assert doomed
    for record in doomed:
        records.remove(record)


def keep_one_block_more(records: Records) -> None:
    index = next(
        index
        for index, record in enumerate(records)
        if isinstance(record, trace.Commit) and record.group == 1 and record.request == "r0"
    )
    commit = records[index]
    assert isinstance(commit, trace.Commit)
    records.insert(index, change(commit, position=commit.position - 4, digest=1))


def lose_the_step_that_wrote(records: Records) -> None:
    index = of(records, trace.Step)
    step = records[index]
    assert isinstance(step, trace.Step)
    records[index] = change(step, scheduled=())


def read_from_elsewhere(records: Records) -> None:
    index = next(
        index
        for index, record in enumerate(records)
        if isinstance(record, trace.Step) and any(item.request == "r2" and item.fresh for item in record.scheduled)
    )
    step = records[index]
    assert isinstance(step, trace.Step)
    item = step.scheduled[0]
    moved = change(item, blocks=(tuple(38 for _ in item.blocks[0]), item.blocks[1]))  # type: ignore[attr-defined]
    records[index] = change(step, scheduled=(moved,))


def never_end(records: Records) -> None:
    records[of(records, trace.End)] = trace.End(steps=99, unfinished=("r2",))


def crash(records: Records) -> None:
    records[of(records, trace.End)] = trace.Crash(kind="exception", where="engine:schedule", message="boom")


@pytest.mark.parametrize(
    ("tamper", "rule"),
    [
        (lose_a_free, "A1"),
        (hand_out_twice, "A2"),
        (share_without_the_cache, "A2"),
        (overfill_a_step, "A3"),
        (claim_a_longer_hit, "L1"),
        (claim_an_unaligned_hit, "L1"),
        (put_the_junction_on_the_hit, "L3"),
        (forget_the_junction, "L3"),
        (grant_too_much, "S1"),
        (end_inside_a_block, "S2"),
        (run_across_the_junction, "S3"),
        (wait_for_nothing, "S4"),
        (end_inside_a_block, "M1"),
        (claim_a_longer_hit, "M2"),
        (drop_the_junction_commits, "R1"),
        (drop_the_junction_commits, "R2"),
        (drop_the_junction_commits, "M3"),
        (keep_one_block_more, "M3"),
        (lose_the_step_that_wrote, "C1"),
        (lose_the_step_that_wrote, "C2"),
        (read_from_elsewhere, "C2"),
        (never_end, "P1"),
        (crash, "P3"),
    ],
)
def test_one_changed_record_is_found(
    clean: tuple[trace.Header, Records], tamper: Callable[[Records], None], rule: str
) -> None:
    header, records = clean[0], list(clean[1])
    tamper(records)
    found = verdict(header, records)
    assert rule in {finding.rule for finding in found.findings}, found.findings
    assert found.word == "violates"


@pytest.mark.parametrize("tamper", [lose_a_free, claim_a_longer_hit, end_inside_a_block, drop_the_junction_commits])
def test_a_rule_that_is_not_asked_for_stays_silent(
    clean: tuple[trace.Header, Records], tamper: Callable[[Records], None]
) -> None:
    records = list(clean[1])
    tamper(records)
    judge = Judge(clean[0], "0.33.0", frozenset({"P1"}))
    for record in records:
        judge.feed(record)
    assert judge.close().findings == []


def test_a_snapshot_that_differs_from_the_deltas_is_found(clean: tuple[trace.Header, Records]) -> None:
    records = list(clean[1])
    index = of(records, trace.Snapshot, -1)
    snapshot = records[index]
    assert isinstance(snapshot, trace.Snapshot)
    records[index] = change(snapshot, cached=snapshot.cached[:-1])
    assert [finding.decision for finding in verdict(clean[0], records).findings] == ["snapshot"]


def test_without_a_policy_the_invariants_judge_and_conformance_is_named_as_not_judged(
    clean: tuple[trace.Header, Records],
) -> None:
    found = verdict(*clean, release=None)
    assert found.findings == []
    assert not {"M1", "M2", "M3"} & found.judged.keys()
    assert any("M1" in what for what in found.unjudged)


def test_a_request_that_breaks_a_rule_again_is_reported_once(clean: tuple[trace.Header, Records]) -> None:
    records = list(clean[1])
    for index, record in enumerate(records):
        if isinstance(record, trace.Split) and record.request == "r0":
            records[index] = change(record, granted=record.asked + 1)
    assert [finding.rule for finding in verdict(clean[0], records).findings].count("S1") == 1


def test_a_trace_that_breaks_off_is_not_a_pass(clean: tuple[trace.Header, Records]) -> None:
    found = verdict(clean[0], clean[1][: of(clean[1], trace.Step, 2)])
    assert "end" in found.unjudged
    assert "P3" not in found.judged


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([], "empty"),
        ([b"{}"], "header"),
        ([b"nonsense"], "header"),
        ([b"\xff\xfe"], "header"),
    ],
)
def test_what_is_no_trace_gets_one_line(lines: list[bytes], says: str) -> None:
    with pytest.raises(BadTrace) as raised:
        judge_lines(lines, "0.33.0")
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_damaged_line_is_named(clean: tuple[trace.Header, Records]) -> None:
    head = trace.encoder.encode(clean[0])
    with pytest.raises(BadTrace, match="line 3"):
        judge_lines([head, b"[]", b'[["lookup","r0"'], "0.33.0")
    with pytest.raises(BadTrace, match="never added"):
        judge_lines([head, b'[["preempt","nobody"]]'], "0.33.0")


def test_another_version_of_the_format_is_refused(clean: tuple[trace.Header, Records]) -> None:
    head = trace.encoder.encode(msgspec.structs.replace(clean[0], kvoracle_trace=2))
    with pytest.raises(BadTrace, match="format 2"):
        judge_lines([head], "0.33.0")
