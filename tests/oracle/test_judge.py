"""The judge accepts a clean trace, and one changed record of it is the one finding that it should be."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from fuzz.engines.conforming import open_reference
from fuzz.engines.planted import open_planted
from fuzz.generator import scenario_at
from oracle import trace
from oracle.judge import BadTrace, Judge, judge_lines
from oracle.verdict import Verdict
from tests.oracle.siblings import SIBLINGS

Records = list[trace.AnyRecord]


@pytest.fixture(scope="module")
def clean() -> tuple[trace.Header, Records]:
    lines = open_reference().run(SIBLINGS).lines
    header = trace.header_decoder.decode(lines[0])
    return header, [record for line in lines[1:] for record in trace.records_decoder.decode(line)]


def verdict(header: trace.Header, records: Records, release: str | None = "0.33.0") -> Verdict:
    judge = Judge(header, release)
    judge.feed_all(records)
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
    judge.feed_all(records)
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
    ("what_follows", "found_rules"),
    [
        ([trace.Crash(kind="exception", where="engine:cache_blocks", message="boom")], {"P3"}),
        ([], set()),
        ([trace.Reset(done=False)], {"M3"}),
    ],
    ids=["crash", "end of file", "next record"],
)
def test_a_cache_call_is_judged_once_the_engine_came_back_from_it(
    clean: tuple[trace.Header, Records], what_follows: Records, found_rules: set[str]
) -> None:
    records = clean[1]
    hashed = next(index for index, record in enumerate(records) if isinstance(record, trace.Commit) and record.request)
    found = verdict(clean[0], [*records[:hashed], *what_follows])
    assert {finding.rule for finding in found.findings} & {"M3", "P3"} == found_rules


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


def find(records: Records, kind: type, **fields: object) -> int:
    """Where the first record of a kind with these fields stands."""
    return next(
        index
        for index, record in enumerate(records)
        if isinstance(record, kind) and all(getattr(record, name) == value for name, value in fields.items())
    )


def more_than_the_split_gave(records: Records) -> None:
    index = of(records, trace.Split)
    records[index] = change(records[index], granted=12)


def forget_to_cache(records: Records) -> None:
    del records[find(records, trace.Cache, request="r0", group=1)]


def cache_too_little(records: Records) -> None:
    index = find(records, trace.Cache, request="r0", group=1)
    records[index] = change(records[index], tokens=0)


def commit_outside_of_a_call(records: Records) -> None:
    index = of(records, trace.Commit)
    records.insert(of(records, trace.Step, 2), change(records[index], digest=5, position=4, block=30))


def name_it_after_other_tokens(records: Records) -> None:
    first, second = of(records, trace.Commit), find(records, trace.Commit, request="r0", position=8)
    digest = records[first].digest  # type: ignore[union-attr]
    records[second] = change(records[second], digest=digest)


def run_too_many(records: Records) -> None:
    index = of(records, trace.Step)
    records[index] = change(records[index], running=5)


def schedule_nothing_of_a_request(records: Records) -> None:
    index = of(records, trace.Step)
    step = records[index]
    assert isinstance(step, trace.Step)
    records[index] = change(step, scheduled=(change(step.scheduled[0], tokens=0),))  # type: ignore[call-arg]


def wait_forever(records: Records) -> None:
    idle = trace.Step(50, (), (), (), (), (), 1, 0)
    at = of(records, trace.End)
    records[at:at] = [idle] * 40


def overwrite_a_cached_block(records: Records) -> None:
    """A later step of another request writes into the first block of what r0 left in the cache."""
    index = next(
        index
        for index, record in enumerate(records)
        if isinstance(record, trace.Step) and any(item.request == "r1" and item.fresh for item in record.scheduled)
    )
    cached = next(record for record in records if isinstance(record, trace.Commit) and record.request == "r0")
    step = records[index]
    assert isinstance(step, trace.Step)
    records[index] = change(step, zero=(cached.block,))


def lose_a_touch(records: Records) -> None:
    del records[of(records, trace.Touch)]


def hit_another_block(records: Records) -> None:
    index = of(records, trace.Lookup, 2)
    lookup = records[index]
    assert isinstance(lookup, trace.Lookup)
    full = lookup.blocks[0]
    records[index] = change(lookup, blocks=((full[1], *full[1:]), lookup.blocks[1]))


@pytest.mark.parametrize(
    ("tamper", "rule", "decision"),
    [
        (more_than_the_split_gave, "S1", "step"),
        (forget_to_cache, "M3", "cache"),
        (cache_too_little, "M3", "cache"),
        (commit_outside_of_a_call, "M3", "commit"),
        (name_it_after_other_tokens, "C1", "commit"),
        (run_too_many, "A3", "step"),
        (schedule_nothing_of_a_request, "A3", "step"),
        (wait_forever, "P1", "step"),
        (overwrite_a_cached_block, "C1", "commit"),
        (lose_a_touch, "A2", "step"),
        (hit_another_block, "L1", "lookup"),
    ],
)
def test_one_changed_record_is_found_where_it_is(
    clean: tuple[trace.Header, Records], tamper: Callable[[Records], None], rule: str, decision: str
) -> None:
    header, records = clean[0], list(clean[1])
    tamper(records)
    found = verdict(header, records)
    assert (rule, decision) in {(finding.rule, finding.decision) for finding in found.findings}, found.findings


@pytest.mark.parametrize(
    "changes",
    [
        {"free": lambda free: free[1:]},
        {"free": lambda free: (*free, free[0])},
        {"tables": lambda tables: (("r2", 0, (3,)),)},
        {"references": lambda references: ((5, 1),)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_every_part_of_a_snapshot_is_compared(
    clean: tuple[trace.Header, Records], changes: dict[str, Callable[[object], object]]
) -> None:
    records = list(clean[1])
    index = of(records, trace.Snapshot, -1)
    part, make = next(iter(changes.items()))
    records[index] = change(records[index], **{part: make(getattr(records[index], part))})
    found = {(finding.rule, finding.decision) for finding in verdict(clean[0], records).findings}
    # The order of the free list is a rule of its own.
    assert found - {("M4", "snapshot")} == {("A1", "snapshot")}


def test_the_order_of_the_free_list_is_compared_once(clean: tuple[trace.Header, Records]) -> None:
    records = list(clean[1])
    for index, record in enumerate(records):
        if isinstance(record, trace.Snapshot):
            records[index] = change(record, free=(record.free[1], record.free[0], *record.free[2:]))
    found = [(finding.rule, finding.decision) for finding in verdict(clean[0], records).findings]
    assert found == [("M4", "snapshot")]


def test_a_draft_layer_of_another_continuation_is_allowed_and_counted() -> None:
    """Under the block drop a hit may end in a block that somebody wrote for another next token."""
    engine = open_reference("0.32.0")
    features = ("eagle", "block-drop", "shared-prefix", "extend", "spread", "late-sibling")
    found = [judge_lines(engine.run(scenario_at(1, index, only=features)).lines, "0.32.0") for index in range(150)]
    assert not any(verdict.findings for verdict in found)
    allowed = [verdict for verdict in found if verdict.allowed]
    assert allowed
    assert {verdict.word for verdict in allowed} == {"allowed difference"}
    assert {name for verdict in allowed for name in verdict.allowed} == {"draft layer of another continuation"}


def test_a_trace_that_breaks_off_is_called_not_judged(clean: tuple[trace.Header, Records]) -> None:
    assert verdict(clean[0], clean[1][: of(clean[1], trace.Step, 2)]).word == "not judged"


def test_a_wrong_hash_on_a_running_state_is_one_finding_and_its_owner_reads_what_it_wrote(
    clean: tuple[trace.Header, Records],
) -> None:
    """C1 says it all: the owner's own state is right, and whoever takes the hash at its word was warned of."""
    # Without snapshots, which do not know of the hash that is planted here.
    header, records = clean[0], [record for record in clean[1] if not isinstance(record, trace.Snapshot)]
    first = of(records, trace.Step)
    step = records[first]
    assert isinstance(step, trace.Step)
    assert (step.scheduled[0].request, step.scheduled[0].start, step.scheduled[0].tokens) == ("r0", 0, 16)
    running = step.scheduled[0].blocks[1][-1]
    records.insert(first, trace.Commit("r0", 1, running, 12, 1 << 40))
    found = verdict(header, records, None).findings
    # The engine knows nothing of the hash that is planted here, so no lookup finds it either.
    assert {finding.rule for finding in found} == {"C1", "L2"}
    assert found[0].block == running


def test_a_wrong_hash_is_one_finding_and_who_was_misled_by_it_is_no_second() -> None:
    """The state that the third sibling takes at the hash's word is not what the hash names; C1 has said so."""
    engine = open_planted("stale-hash")
    traces = (engine.run(scenario_at(1, index, without=("async",))).lines for index in range(400))
    # By C2 alone nothing was said before, so the same read is told.
    misled = (lines for lines in traces if judge_lines(lines, None, frozenset({"C2"})).findings)
    rules = {finding.rule for finding in judge_lines(next(misled), None).findings}
    assert rules & {"C1", "C2"} == {"C1"}
