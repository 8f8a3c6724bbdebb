"""States saved inside a chunk: the blocks reserved for them are judged, and so are the chunks that save none."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from oracle import trace
from oracle.judge import Judge
from oracle.prefixes import Prefixes
from oracle.scenario import Geometry, Group, Limits, Request, Scenario, Step
from oracle.verdict import Verdict
from tests.setups import BLOCKS_OF_FOUR

Records = list[trace.AnyRecord]

RELEASES = ("0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0")
PROMPT = ("a:13",)
SCENARIO = Scenario(
    Geometry((Group("full", 4), Group("mamba", 4, checkpoint=1)), 4, 40),
    Limits(budget=24, sequences=4),
    (Step(0, add=(Request("r0", PROMPT, 2),)),),
)
SETUP = msgspec.structs.replace(BLOCKS_OF_FOUR, retention=None, zeroing=True, checkpoint_alignment=1, model_length=256)


def recorded() -> Records:
    """A prompt of 13 tokens in one chunk, inside which the state at 12 is saved in column 2; then a token more."""
    ids = Prefixes().of_prompt(PROMPT)
    return [
        trace.Add("r0", PROMPT, "r0", 13),
        trace.Lookup("r0", 13, 0, 0, ((), ())),
        trace.Split("r0", 0, 13, 13, 13, 13, 0),
        trace.Take((1, 2, 3, 4)),
        trace.Take((5, 6)),
        trace.Table("r0", 0, 0, (1, 2, 3, 4)),
        trace.Table("r0", 1, 0, (0, 0, 5, 6)),
        trace.Cache("r0", 0, 12),
        *(trace.Commit("r0", 0, number, number * 4, ids[number * 4]) for number in (1, 2, 3)),
        trace.Cache("r0", 1, 12),
        trace.Commit("r0", 1, 5, 12, ids[12]),
        trace.Allocate("r0", 0, 13, 0, granted=True, promised=6),
        trace.Step(0, (chunk(0, 13, ((1, 2, 3, 4), (0, 0, 5, 6))),), (1, 2, 3, 4), (), (), (), 0, 1),
        trace.Output(0, (("r0", 1),)),
        trace.Split("r0", 13, 1, 1, 14, 13, 0),
        trace.Free((5,)),
        trace.Table("r0", 1, 2, (0, 6)),
        trace.Cache("r0", 0, 12),
        trace.Cache("r0", 1, 12),
        trace.Allocate("r0", 13, 1, 0, granted=True, promised=0),
        trace.Step(1, (chunk(13, 1, ((), ())),), (), (), (), (), 0, 1),
        trace.Output(1, (("r0", 1),)),
        trace.Finish("r0", "length"),
        trace.Free((4, 3, 2, 1)),
        trace.Free((6,)),
        trace.Table("r0", 0, 0, ()),
        trace.Table("r0", 1, 0, ()),
        trace.End(2, ()),
    ]


def chunk(start: int, tokens: int, blocks: tuple[tuple[int, ...], ...]) -> trace.Scheduled:
    return trace.Scheduled("r0", start, start, tokens, 0, 0, True, start == 0, blocks)


def judged(records: Records, release: str | None = "0.33.0", **setup: object) -> Verdict:
    changed = msgspec.structs.replace(SETUP, **setup)
    hash_block = changed.hash_block
    scenario = msgspec.structs.replace(
        SCENARIO, geometry=msgspec.structs.replace(SCENARIO.geometry, hash_block=hash_block)
    )
    judge = Judge(trace.Header("vllm", release or "0.33.0", "v1", changed, scenario), release)
    judge.feed_all(records)
    return judge.close()


def change(records: Records, kind: type, number: int = 0, **facts: object) -> None:
    """Other facts in the ``number``-th record of a kind."""
    index = [index for index, record in enumerate(records) if isinstance(record, kind)][number]
    records[index] = msgspec.structs.replace(records[index], **facts)  # type: ignore[type-var,assignment]


def count_no_block_for_it(records: Records) -> None:
    change(records, trace.Allocate, promised=5)


def refuse_what_fits(records: Records) -> None:
    change(records, trace.Allocate, granted=False)


def take_no_block_for_it(records: Records) -> None:
    change(records, trace.Take, 1, blocks=(6,))
    change(records, trace.Table, 1, blocks=(0, 0, 0, 6))


def place_it_a_column_before(records: Records) -> None:
    change(records, trace.Table, 1, blocks=(0, 5, 0, 6))


def keep_it_when_passed(records: Records) -> None:
    records.remove(trace.Free((5,)))
    change(records, trace.Table, 2, blocks=(5, 6))


@pytest.mark.parametrize("release", RELEASES)
def test_the_block_of_a_saved_state_is_counted_taken_placed_and_given_back(release: str) -> None:
    verdict = judged(recorded(), release)
    assert verdict.findings == []
    assert {"M4", "M5", "X2"} <= verdict.judged.keys()


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("tamper", "found"),
    [
        (count_no_block_for_it, {("M5", "allocate"), ("X2", "allocate")}),
        (refuse_what_fits, {("M5", "allocate")}),
        (take_no_block_for_it, {("M4", "table"), ("X2", "allocate")}),
        (place_it_a_column_before, {("M4", "table")}),
        (keep_it_when_passed, {("M4", "free")}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_one_changed_record_is_found(
    release: str, tamper: Callable[[Records], None], found: set[tuple[str, str]]
) -> None:
    records = recorded()
    tamper(records)
    findings = {(finding.rule, finding.decision) for finding in judged(records, release).findings}
    assert found <= findings


def test_without_a_policy_nobody_knows_what_is_saved() -> None:
    verdict = judged(recorded(), None)
    assert verdict.findings == []
    assert {"S2", "S5", "X2", "M4", "M5", "C1"} <= verdict.unjudged.keys()


COURSE = {"S2", "S3", "S4", "S5", "S6", "S8"}


@pytest.mark.parametrize(
    ("start", "asked", "granted", "junction", "rule"),
    [
        (0, 7, 7, 0, "S2"),
        (5, 5, 5, 0, "S3"),
        (0, 8, 0, 0, "S4"),
        (0, 12, 12, 8, "S5"),
        (0, 8, 0, 0, "S8"),
    ],
)
def test_a_chunk_inside_which_nothing_is_saved_stops_as_ever(
    start: int, asked: int, granted: int, junction: int, rule: str
) -> None:
    records = [*recorded()[:2], trace.Split("r0", start, asked, granted, 13, 13, junction)]
    assert rule in {finding.rule for finding in judged(records).findings}


@pytest.mark.parametrize(("granted", "found"), [(2, False), (3, True)])
def test_a_partial_tail_stops_a_chunk_too_short_to_save_anything(granted: int, found: bool) -> None:
    records = [trace.Add("r0", ("a:15",), "r0", 15), trace.Lookup("r0", 15, 0, 0, ((), ()))]
    records.append(trace.Split("r0", 12, 3, granted, 15, 15, 0))
    verdict = judged(records, hash_block=2, alignment=2, partial_hits=True)
    assert verdict.judged["S6"] == 1
    assert ("S6" in {finding.rule for finding in verdict.findings}) == found


@pytest.mark.parametrize("release", RELEASES)
def test_where_a_state_is_saved_inside_no_stop_is_asked_for(release: str) -> None:
    verdict = judged(recorded()[:3], release)
    assert COURSE & verdict.judged.keys() == set()
    assert verdict.judged["M1"] == 2  # what it asks for, and what it gets


@pytest.mark.parametrize(("granted", "found"), [(False, False), (True, True)])
@pytest.mark.parametrize("release", RELEASES)
def test_the_whole_sequence_needs_its_block_too(release: str, granted: bool, found: bool) -> None:
    """Attention needs four blocks and Mamba two for all 13 tokens, and five are free: the chunk of 4 has to wait."""
    geometry = msgspec.structs.replace(SCENARIO.geometry, blocks=6)
    header = trace.Header("vllm", release, "v1", SETUP, msgspec.structs.replace(SCENARIO, geometry=geometry))
    judge = Judge(header, release)
    judge.feed_all([*recorded()[:2], trace.Allocate("r0", 0, 4, 0, granted=granted, promised=6)])
    assert ("M5" in {finding.rule for finding in judge.close().findings}) == found


@pytest.mark.parametrize(("granted", "found"), [(False, False), (True, True)])
@pytest.mark.parametrize("release", ["0.30.0", "0.31.0", "0.32.0", "0.33.0"])
def test_a_hit_waits_for_a_state_that_this_step_saves(release: str, granted: bool, found: bool) -> None:
    """The state at 14 is saved inside a chunk of 15 tokens, and another request is to start from it at once."""
    prompt, longer = ("a:15",), ("a:15", "b:5")
    ids = Prefixes().of_prompt(prompt)
    records: Records = [
        trace.Add("r0", prompt, "r0", 15),
        trace.Add("r1", longer, "r1", 20),
        trace.Lookup("r0", 15, 0, 0, ((), ())),
        trace.Split("r0", 0, 15, 15, 15, 15, 0),
        trace.Take((1, 2, 3, 4)),
        trace.Take((5, 6)),
        trace.Table("r0", 0, 0, (1, 2, 3, 4)),
        trace.Table("r0", 1, 0, (0, 0, 5, 6)),
        trace.Cache("r0", 1, 15),
        trace.Commit("r0", 1, 5, 14, ids[14]),
        trace.Allocate("r0", 0, 15, 0, granted=True, promised=6),
        trace.Lookup("r1", 20, 14, 0, ((1, 2, 3, 4), (0, 0, 0, 5))),
        trace.Allocate("r1", 14, 6, 14, granted=granted, promised=None),
    ]
    verdict = judged(records, release, hash_block=2, alignment=2, partial_hits=True)
    assert ("M5" in {finding.rule for finding in verdict.findings if finding.request == "r1"}) == found


@pytest.mark.parametrize(("granted", "found"), [(False, False), (True, True)])
@pytest.mark.parametrize("release", ["0.32.0", "0.33.0"])
def test_a_hit_waits_for_a_saved_state_beyond_what_is_cached_in_whole_blocks(
    release: str, granted: bool, found: bool
) -> None:
    """Under EAGLE the state at 12 is saved in the column up to 32; of the chunk of 35 tokens 24 may be cached."""
    geometry = Geometry((Group("full", 12), Group("mamba", 4, checkpoint=1)), 4, 40)
    setup = msgspec.structs.replace(SETUP, scheduler_block=12, alignment=12, block_drop=True)
    prompt, longer = ("a:35",), ("a:35", "b:5")
    judge = Judge(
        trace.Header("vllm", release, "v1", setup, msgspec.structs.replace(SCENARIO, geometry=geometry)), release
    )
    judge.feed_all(
        [
            trace.Add("r0", prompt, "r0", 35),
            trace.Add("r1", longer, "r1", 40),
            trace.Lookup("r0", 35, 0, 0, ((), ())),
            trace.Split("r0", 0, 35, 35, 35, 35, 0),
            trace.Take((1, 2, 3)),
            trace.Take((5, 6)),
            trace.Table("r0", 0, 0, (1, 2, 3)),
            trace.Table("r0", 1, 0, (0, 0, 0, 0, 0, 0, 0, 5, 6)),
            trace.Cache("r0", 1, 24),
            trace.Commit("r0", 1, 5, 12, Prefixes().of_prompt(prompt)[12]),
            trace.Allocate("r0", 0, 35, 0, granted=True, promised=5),
            trace.Lookup("r1", 40, 12, 0, ((1,), (0, 0, 5))),
            trace.Allocate("r1", 12, 12, 12, granted=granted, promised=None),
        ]
    )
    findings = judge.close().findings
    assert ("M5" in {finding.rule for finding in findings if finding.request == "r1"}) == found


@pytest.mark.parametrize(("release", "drop", "rules"), [("0.29.0", True, {"C1", "C2"}), ("0.29.0", False, set())])
def test_what_a_backend_saves_unasked_is_not_judged(release: str, drop: bool, rules: set[str]) -> None:
    """Under EAGLE 0.29 reserves blocks for saved states, though its split counts on none."""
    setup = msgspec.structs.replace(SETUP, block_drop=drop, checkpoint_alignment=0)
    judge = Judge(trace.Header("vllm", release, "v1", setup, SCENARIO), release)
    assert {"C1", "C2"} - judge.case.rules == rules == {"C1", "C2"} & judge.close().unjudged.keys()
