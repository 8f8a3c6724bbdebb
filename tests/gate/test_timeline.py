"""The block timeline shows what the judge's ghost holds, and marks as wrong exactly what the judge finds wrong."""

from __future__ import annotations

import pytest

from fuzz.engines.open import open_engine, prepare_engine
from fuzz.gate.timeline import Timeline, column_of, fold
from fuzz.generator import scenario_at
from fuzz.supported import unsupported, withheld
from fuzz.trial import try_scenario
from oracle.compare import records_of
from oracle.judge import judge_lines
from oracle.trace import Step

from .gate_reports import outcome, trace_lines

FULL, MAMBA = 0, 1
POISONED = (MAMBA, 6)
"""The block that 0.26.0 hashes as the state after 4 tokens while it holds the state after 3."""


def wrong(timeline: Timeline) -> list[tuple[int, tuple[int, int]]]:
    return [(column.step, key) for column in timeline.columns for key, cell in column.cells.items() if not cell.agrees]


def test_the_poisoned_block_is_wrong_from_the_step_that_hashes_it() -> None:
    timeline = fold(trace_lines("0.26.0"))
    assert wrong(timeline) == [(1, POISONED), (2, POISONED)]
    cell = timeline.columns[1].cells[POISONED]
    assert (cell.content, cell.hashed) == ("b after 3", "b after 4")
    assert not timeline.columns[0].cells[POISONED].hashed


def test_nothing_is_wrong_where_the_poisoning_is_mended() -> None:
    assert wrong(fold(trace_lines("0.27.1"))) == []


def test_content_is_told_by_request_and_position() -> None:
    columns = fold(trace_lines("0.26.0")).columns
    told = {key: [column.cells[key].content for column in columns if key in column.cells] for key in columns[2].cells}
    assert told[FULL, 1] == ["a 0 to 4"] * 3
    assert told[FULL, 2] == ["a 4 to 5", "a 4 to 6, wrong drafts", "a 4 to 6, wrong drafts"]
    assert told[MAMBA, 4] == ["nothing that was written", *["a state after a wrong draft"] * 2]


def test_reads_writes_and_free_blocks_are_marked() -> None:
    columns = fold(trace_lines("0.26.0")).columns

    def marks(step: int, group: int, block: int) -> tuple[bool, bool, bool]:
        cell = columns[step].cells[group, block]
        return cell.read, cell.written, cell.free

    assert [marks(step, FULL, 1) for step in range(3)] == [
        (False, True, False),
        (True, False, False),
        (False, False, True),
    ]
    # The running state is carried over: what was wrong in it is read from there, too.
    assert marks(1, *POISONED) == (True, False, False)
    assert marks(1, MAMBA, 7) == (True, True, False)


def test_an_empty_trace_and_one_that_breaks_off_have_a_timeline() -> None:
    assert fold([]).columns == ()
    crash = b'[["crash","hang","Scheduler.schedule","no answer"]]'
    timeline = fold([*trace_lines("0.26.0")[:2], crash])
    assert len(timeline.columns) == 1
    assert timeline.crash == "hang in Scheduler.schedule: no answer"


def test_states_saved_inside_a_chunk_are_not_compared() -> None:
    header, *lines = trace_lines("0.26.0")
    timeline = fold([header.replace(b'"checkpoint_alignment":0', b'"checkpoint_alignment":4'), *lines])
    assert wrong(timeline) == []
    assert timeline.note == "no policy: which states are saved inside a chunk is the release's"


def test_a_record_stands_in_the_column_of_the_step_that_it_leads_to() -> None:
    lines = trace_lines("0.26.0")
    steps = [number for number, record in enumerate(records_of(lines)) if isinstance(record, Step)]
    assert [column_of(lines, number) for number in steps] == [0, 1, 2]
    difference = outcome("0.26.0").findings[1]
    assert difference.rule == "S3"
    assert column_of(lines, difference.record) == 1


@pytest.mark.parametrize(("name", "faulty"), [("reference", False), ("planted:stale-hash", True)])
def test_the_first_wrong_blocks_are_those_that_the_judge_finds(name: str, faulty: bool) -> None:
    """Later ones can differ: the judge takes a fault as mended once it is told, the timeline shows what is there."""
    prepared = prepare_engine(name)
    engine, refused = open_engine(name), unsupported(prepared)
    seen = 0
    for scenario in (scenario_at(7, index, without=withheld(prepared)) for index in range(60)):
        if refused(scenario):
            continue
        trial = try_scenario(engine, scenario)
        found = [(one.step, one.block) for one in judge_lines(trial.lines, None, frozenset({"C1"})).findings]
        shown = [(step, block) for step, (_, block) in wrong(fold(trial.lines))]
        assert firsts(shown) == firsts(found)
        seen += bool(found)
    assert bool(seen) == faulty


def firsts(placed: list[tuple[int, int]]) -> set[tuple[int, int]]:
    return {one for one in placed if one[0] == min(placed)[0]}
