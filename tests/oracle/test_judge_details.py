"""Small differences that only one part of the judge can see, each in the scenario that shows it."""

from __future__ import annotations

import msgspec
import pytest

from fuzz.engines.conforming import open_reference
from oracle import trace
from oracle.judge import Judge
from oracle.scenario import Features, Geometry, Group, Limits, Request, Scenario, Step
from oracle.verdict import Verdict

Records = list[trace.AnyRecord]
FULL_MAMBA = (Group("full", 4), Group("mamba", 4))


def scenario(groups: tuple[Group, ...], *requests: tuple[int, Request], **more: object) -> Scenario:
    """Requests by the step that they come in."""
    steps = tuple(
        Step(at, add=tuple(r for when, r in requests if when == at)) for at in sorted({at for at, _ in requests})
    )
    return Scenario(
        Geometry(groups, int(str(more.pop("hash_block", 4))), 60),
        Limits(budget=16, sequences=4),
        steps,
        msgspec.convert(more, Features),
    )


def recorded(given: Scenario) -> tuple[trace.Header, Records]:
    lines = open_reference().run(given).lines
    records = [record for line in lines[1:] for record in trace.records_decoder.decode(line)]
    header = trace.header_decoder.decode(lines[0])
    assert judged(header, records).findings == [], "the untouched trace is clean"
    return header, records


def judged(header: trace.Header, records: Records) -> Verdict:
    judge = Judge(header, "0.33.0")
    judge.feed_all(records)
    return judge.close()


def change(record: msgspec.Struct, **fields: object) -> trace.AnyRecord:
    return msgspec.structs.replace(record, **fields)  # type: ignore[return-value]


def where(records: Records, kind: type, **fields: object) -> int:
    return next(
        index
        for index, record in enumerate(records)
        if isinstance(record, kind) and all(getattr(record, name) == value for name, value in fields.items())
    )


def test_a_preempted_request_that_goes_on_with_its_old_table_is_found() -> None:
    header, records = recorded(scenario(FULL_MAMBA, (0, Request("r0", ("a:30",), 3))))
    index = where(records, trace.Step, index=1)
    records[index] = change(records[index], preempted=("r0",))
    assert "C2" in {finding.rule for finding in judged(header, records).findings}


def test_a_partial_tail_that_is_not_registered_is_found() -> None:
    given = scenario(FULL_MAMBA, (0, Request("r0", ("a:23",), 3)), hash_block=2, partial_hits=True, retention=0)
    header, records = recorded(given)
    index = where(records, trace.Commit, group=1, request="r0", position=22)
    del records[index]
    assert ("M3", "commit") in {(f.rule, f.decision) for f in judged(header, records).findings}


def test_a_hit_on_the_block_of_another_prompt_is_found() -> None:
    given = scenario(
        (Group("full", 4),),
        (0, Request("r0", ("x:18",), 1)),
        (5, Request("r1", ("y:18",), 1)),
        (10, Request("r2", ("x:18", "c:4"), 1)),
    )
    header, records = recorded(given)
    other = records[where(records, trace.Table, request="r1", group=0, start=0)]
    index = where(records, trace.Lookup, request="r2")
    lookup = records[index]
    assert isinstance(other, trace.Table)
    assert isinstance(lookup, trace.Lookup)
    assert lookup.hit == 16
    records[index] = change(lookup, blocks=((*lookup.blocks[0][:-1], other.blocks[3]),))
    assert ("L1", "lookup") in {(f.rule, f.decision) for f in judged(header, records).findings}


def test_every_block_that_a_window_needs_must_be_there() -> None:
    groups = (Group("full", 4), Group("swa", 4, 8))
    given = scenario(groups, (0, Request("r0", ("x:20",), 1)), (5, Request("r1", ("x:20", "c:4"), 1)))
    header, records = recorded(given)
    index = where(records, trace.Lookup, request="r1")
    lookup = records[index]
    assert isinstance(lookup, trace.Lookup)
    window = lookup.blocks[1]
    lowest = next(column for column, block in enumerate(window) if block)
    assert len(window) - lowest == 2, "a window of 8 tokens needs two blocks of 4"
    records[index] = change(lookup, blocks=(lookup.blocks[0], (*window[:lowest], 0, *window[lowest + 1 :])))
    assert ("L1", "lookup") in {(f.rule, f.decision) for f in judged(header, records).findings}


def test_every_block_of_an_attention_chunk_that_a_hit_needs_must_be_there() -> None:
    groups = (Group("full", 4), Group("chunked", 4, attention_chunk=16))
    given = scenario(groups, (0, Request("r0", ("x:28",), 1)), (5, Request("r1", ("x:28", "c:4"), 1)))
    header, records = recorded(given)
    index = where(records, trace.Lookup, request="r1")
    lookup = records[index]
    assert isinstance(lookup, trace.Lookup)
    chunk = lookup.blocks[1]
    assert [bool(block) for block in chunk] == [False] * 4 + [True] * 3, "what lies before the chunk is not needed"
    records[index] = change(lookup, blocks=(lookup.blocks[0], (*chunk[:4], 0, *chunk[5:])))
    assert ("L1", "lookup") in {(f.rule, f.decision) for f in judged(header, records).findings}


def test_a_block_of_an_attention_chunk_that_does_not_enter_the_cache_is_found() -> None:
    groups = (Group("full", 4), Group("chunked", 4, attention_chunk=16))
    header, records = recorded(scenario(groups, (0, Request("r0", ("x:28",), 1))))
    del records[where(records, trace.Commit, group=1, request="r0", position=8)]
    assert ("M3", "commit") in {(f.rule, f.decision) for f in judged(header, records).findings}


def test_an_attention_chunk_that_is_over_and_not_given_back_is_found() -> None:
    groups = (Group("full", 4), Group("chunked", 4, attention_chunk=16))
    header, records = recorded(scenario(groups, (0, Request("r0", ("x:28",), 3))))
    del records[where(records, trace.Free)]
    assert "M4" in {finding.rule for finding in judged(header, records).findings}


def test_a_reference_too_few_is_found_while_another_holder_remains() -> None:
    given = scenario((Group("full", 4),), (0, Request("r0", ("x:18",), 12)), (4, Request("r1", ("x:18", "c:4"), 1)))
    header, records = recorded(given)
    del records[where(records, trace.Touch)]
    assert ("A1", "step") in {(f.rule, f.decision) for f in judged(header, records).findings}


@pytest.mark.parametrize(
    ("hash_block", "start", "end", "stop"), [(4, 16, 23, "last cacheable position"), (2, 20, 23, "partial tail")]
)
def test_the_stop_that_a_chunk_runs_across_is_named(hash_block: int, start: int, end: int, stop: str) -> None:
    fine = hash_block < 4
    given = scenario(FULL_MAMBA, (0, Request("r0", ("a:23",), 3)), hash_block=hash_block, partial_hits=fine)
    header, records = recorded(given)
    index = where(records, trace.Split, start=start)
    records[index] = change(records[index], granted=end - start)
    reasons = [finding.reason for finding in judged(header, records).findings if finding.rule == "S3"]
    assert len(reasons) == 1
    assert stop in reasons[0]


def tail_of_a_prompt_in_flight() -> tuple[trace.Header, Records]:
    """A prompt whose partial tail is its end, and one step in flight: the first decode step is about the tail again."""
    given = scenario(FULL_MAMBA, (0, Request("r0", ("a:6",), 3)), hash_block=2, partial_hits=True, async_depth=1)
    lines = open_reference("0.31.0").run(given).lines
    return trace.header_decoder.decode(lines[0]), [
        record for line in lines[1:] for record in trace.records_decoder.decode(line)
    ]


def test_a_tail_that_was_registered_is_not_missed_when_a_call_comes_back_to_it() -> None:
    header, records = tail_of_a_prompt_in_flight()
    calls = [
        record for record in records if isinstance(record, trace.Cache) and (record.group, record.tokens) == (1, 6)
    ]
    assert len(calls) > 1
    judge = Judge(header, "0.31.0")
    judge.feed_all(records)
    assert judge.close().findings == []


def test_a_tail_that_the_chunk_which_ends_on_it_did_not_register_is_missed() -> None:
    header, records = tail_of_a_prompt_in_flight()
    first = where(records, trace.Commit, group=1, position=6, request="r0")
    judge = Judge(header, "0.31.0", frozenset({"M3"}))
    judge.feed_all(records[:first] + records[first + 1 :])
    assert [(finding.rule, finding.decision) for finding in judge.close().findings] == [("M3", "commit")]


def skipping(skips: bool) -> Scenario:
    """A prompt that is sent three times; the second time it may be that nothing is taken from the cache."""
    sent = [Request(f"r{number}", ("a:23",), 2, skips_lookup=skips and number == 1) for number in range(3)]
    return scenario(FULL_MAMBA, *((6 * number, request) for number, request in enumerate(sent)))


def test_a_request_that_skips_the_lookup_gets_nothing_and_breaks_no_promise() -> None:
    _, records = recorded(skipping(skips=True))
    assert [record.hit for record in records if isinstance(record, trace.Lookup)] == [0, 0, 20]


def test_a_hit_of_a_request_that_skips_the_lookup_is_found() -> None:
    header, records = recorded(skipping(skips=False))
    told = msgspec.structs.replace(header, scenario=skipping(skips=True))
    # What it reused, it must not count either.
    assert {finding.rule for finding in judged(told, records).findings} == {"M2", "T1"}
