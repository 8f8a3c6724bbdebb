"""Promises of reuse: kept by a clean trace, seen when they are broken, void when what they need is gone."""

from __future__ import annotations

import msgspec
import pytest

from fuzz.engines.conforming import open_reference
from oracle import trace
from oracle.judge import Judge
from oracle.scenario import Features, Geometry, Group, Limits, Request, Scenario, Step
from oracle.verdict import Verdict
from tests.oracle.siblings import SIBLINGS

Records = list[trace.AnyRecord]

RESENDS = Scenario(
    Geometry((Group("full", 4), Group("mamba", 4)), 4, 40),
    Limits(budget=32, sequences=4),
    (Step(0, add=(Request("r0", ("a:14",)),)), Step(6, add=(Request("r1", ("a:14",)),))),
    Features(retention=0),
)
WINDOWS = Scenario(
    Geometry((Group("full", 4), Group("swa", 4, window=8)), 4, 40),
    Limits(budget=32, sequences=4),
    (Step(0, add=(Request("r0", ("a:21",)),)), Step(6, add=(Request("r1", ("a:18", "b:4")),))),
)
"""Dense: what one block less shares is kept, too."""
CHUNKS = Scenario(
    Geometry((Group("full", 4), Group("chunked", 4, attention_chunk=16)), 4, 40),
    Limits(budget=32, sequences=4),
    (Step(0, add=(Request("r0", ("a:14",)),)), Step(6, add=(Request("r1", ("a:14",)),))),
)
INSIDE = Scenario(
    Geometry((Group("full", 8), Group("mamba", 8)), 2, 40),
    Limits(budget=32, sequences=4),
    (Step(0, add=(Request("r0", ("a:8",)),)), Step(6, add=(Request("r1", ("a:8",)),))),
    Features(retention=0, partial_hits=True),
)
"""The whole block leaves a resend no token to compute; a part of it is what it can hit."""
EAGLE = Features(drafts=1, lookahead_hashes=False, retention=0, partial_hits=True)
DROPPED = msgspec.structs.replace(
    INSIDE,
    steps=(Step(0, add=(Request("r0", ("a:15",)),)), Step(8, add=(Request("r1", ("a:15",)),))),
    features=EAGLE,
)
"""The part of a block that is matched up to 14 is given back up to 12."""
BESIDE_A_WINDOW = msgspec.structs.replace(
    DROPPED,
    geometry=Geometry((Group("full", 2), Group("swa", 2, window=5), Group("mamba", 8)), 2, 80),
    features=Features(partial_hits=True),
)
SHORTER = msgspec.structs.replace(CHUNKS, steps=(CHUNKS.steps[0], Step(6, add=(Request("r1", ("a:8", "b:9")),))))


def recorded(scenario: Scenario) -> tuple[trace.Header, Records]:
    lines = open_reference().run(scenario).lines
    records = [record for line in lines[1:] for record in trace.records_decoder.decode(line)]
    return trace.header_decoder.decode(lines[0]), records


def judged(header: trace.Header, records: Records, rule: str, release: str | None = "0.33.0") -> Verdict:
    judge = Judge(header, release, frozenset({rule}))
    judge.feed_all(records)
    return judge.close()


def last_lookup(records: Records) -> int:
    return max(index for index, record in enumerate(records) if isinstance(record, trace.Lookup))


def with_hit(records: Records, hit: int) -> Records:
    """The trace up to its last lookup, which finds ``hit`` tokens."""
    index = last_lookup(records)
    lookup = records[index]
    assert isinstance(lookup, trace.Lookup)
    return [*records[:index], msgspec.structs.replace(lookup, hit=hit, junction=0)]


CASES = [("U1", "lookup", SIBLINGS, 16), ("U3", "lookup", RESENDS, 12), ("U3", "divergence", WINDOWS, 16)]
CASES += [
    ("U3", "lookup", CHUNKS, 12),
    ("U3", "divergence", SHORTER, 8),
    ("U3", "tail", INSIDE, 6),
    ("U3", "tail", DROPPED, 12),
]


@pytest.mark.parametrize(("rule", "decision", "scenario", "hit"), CASES)
def test_a_promise_is_kept_or_seen_broken(rule: str, decision: str, scenario: Scenario, hit: int) -> None:
    header, records = recorded(scenario)
    clean = judged(header, records, rule)
    assert clean.findings == []
    assert clean.judged[rule] >= 1
    assert judged(header, with_hit(records, hit), rule).findings == []
    broken = judged(header, with_hit(records, hit - 4), rule).findings
    assert [(finding.rule, finding.decision) for finding in broken] == [(rule, decision)]


@pytest.mark.parametrize(("rule", "decision", "scenario", "hit"), CASES)
def test_a_promise_is_void_once_a_block_that_it_needs_is_evicted(
    rule: str, decision: str, scenario: Scenario, hit: int
) -> None:
    header, records = recorded(scenario)
    cut = with_hit(records, 0)
    commits = [record for record in cut if isinstance(record, trace.Commit)]
    first = min(record.position for record in commits if record.group == 0)
    evictions = [trace.Evict(record.block) for record in commits if (record.group, record.position) == (0, first)]
    assert judged(header, [*cut[:-1], *evictions, cut[-1]], rule).judged.get(rule, 0) == 0


def test_what_was_lost_when_a_step_is_over_is_promised_no_more() -> None:
    """Though somebody computes it anew later: a hash that moves is back within the step."""
    header, records = recorded(RESENDS)
    cut = with_hit(records, 0)
    commit = next(record for record in cut if isinstance(record, trace.Commit) and record.position == 4)
    steps = [index for index, record in enumerate(cut) if isinstance(record, trace.Step)]
    again = [*cut[: steps[-1]], trace.Evict(commit.block), *cut[steps[-1] : -1], commit, cut[-1]]
    assert judged(header, cut, "U3").findings != []
    assert judged(header, again, "U3").judged.get("U3", 0) == 0


def test_what_is_kept_inside_a_block_is_the_policys_to_promise() -> None:
    header, records = recorded(INSIDE)
    assert judged(header, with_hit(records, 0), "U3", release=None).judged.get("U3", 0) == 0


def test_a_state_that_moves_to_a_copy_is_promised_on_and_one_that_is_lost_is_not() -> None:
    header, records = recorded(INSIDE)
    cut = with_hit(records, 0)
    commits = [index for index, record in enumerate(cut) if isinstance(record, trace.Commit)]
    (copied,) = [index for index in commits if not cut[index].request]
    assert isinstance(cut[copied - 1], trace.Evict)
    assert judged(header, cut, "U3").findings != []
    assert judged(header, [*cut[:copied], *cut[copied + 1 :]], "U3").judged.get("U3", 0) == 0


def test_what_is_kept_inside_a_block_beside_a_window_is_not_promised() -> None:
    header, records = recorded(BESIDE_A_WINDOW)
    assert judged(header, with_hit(records, 0), "U3").judged.get("U3", 0) == 0


def test_a_sibling_is_promised_nothing_without_the_whole_block_that_is_given_back() -> None:
    """Also where hits end inside blocks: only a resend, which has no more tokens, matches a part."""
    steps = tuple(Step(8 * n, add=(Request(f"r{n}", ("sys:30", f"u{n}:9")),)) for n in range(3))
    header, records = recorded(msgspec.structs.replace(DROPPED, steps=steps))
    cut = with_hit(records, 0)
    assert [finding.expected for finding in judged(header, cut, "U1").findings] == ["a hit of at least 16"]
    commits = [record for record in cut if isinstance(record, trace.Commit)]
    evictions = [trace.Evict(record.block) for record in commits if (record.group, record.position) == (0, 24)]
    assert judged(header, [*cut[:-1], *evictions, cut[-1]], "U1").judged.get("U1", 0) == 0


def test_a_hit_in_a_later_attention_chunk_promises_nothing_of_the_one_before() -> None:
    """What r1 hits at 16 may have lost the blocks before it by then, so that r2 need not find them through r1."""
    steps = tuple(
        Step(6 * number, add=(Request(f"r{number}", prompt),))
        for number, prompt in enumerate([("a:17",), ("a:17",), ("a:12", "b:9")])
    )
    header, records = recorded(msgspec.structs.replace(CHUNKS, steps=steps))
    second = [index for index, record in enumerate(records) if isinstance(record, trace.Lookup)][1]
    lost = [
        trace.Evict(record.block)
        for record in records
        if isinstance(record, trace.Commit) and (record.group, record.position) == (1, 12)
    ]
    cut = with_hit(records, 0)
    assert judged(header, cut, "U3").findings != []
    assert judged(header, [*cut[:second], *lost, *cut[second:]], "U3").findings == []


def test_another_number_of_tokens_is_no_resend() -> None:
    header, records = recorded(RESENDS)
    index = last_lookup(records)
    lookup = records[index]
    assert isinstance(lookup, trace.Lookup)
    shorter = msgspec.structs.replace(lookup, known=lookup.known - 1, hit=0)
    assert judged(header, [*records[:index], shorter], "U3").judged.get("U3", 0) == 0


def test_a_longer_request_is_no_resend_either() -> None:
    steps = (RESENDS.steps[0], Step(6, add=(Request("r1", ("a:14", "b:5")),)))
    header, records = recorded(msgspec.structs.replace(RESENDS, steps=steps))
    assert judged(header, with_hit(records, 0), "U3").judged.get("U3", 0) == 0


def test_a_prefill_that_was_broken_off_promises_nothing() -> None:
    header, records = recorded(RESENDS)
    first = next(index for index, record in enumerate(records) if isinstance(record, trace.Step))
    cut = with_hit(records, 0)
    assert judged(header, [*cut[:first], trace.Preempt("r0"), *cut[first:]], "U3").judged.get("U3", 0) == 0


def test_a_reset_voids_every_promise() -> None:
    header, records = recorded(RESENDS)
    cut = with_hit(records, 0)
    assert judged(header, [*cut[:-1], trace.Reset(True), cut[-1]], "U3").judged.get("U3", 0) == 0
