"""Checks of a prefill's course: S5, S6 and S8, the stops that it must come to and the chunks that it may take."""

from __future__ import annotations

from oracle.case import Case
from oracle.trace import Split
from reference import rules, split
from reference.arithmetic import floor_to


def check_course(case: Case, record: Split, finish: int, last: int, tail: int) -> None:
    """Judge one chunk of a prefill that asks for no more than the request has.

    ``last``: the last cacheable position; ``tail``: the partial tail, where it is a stop; 0 stands for none.
    """
    if record.start + record.asked > record.known:
        return
    setting = case.split_setting
    if record.asked >= setting.grid or record.start + record.asked == record.known:
        _check_junction_is_met(case, record)
        stops = [tail, record.junction if setting.exact_junction else 0]
        if case.judged("S8") and not rules.chunk_uses_up_a_stop(
            record.start, record.granted, finish, setting.grid, stops
        ):
            left = rules.chunks_left(record.start, finish, setting.grid, stops)
            report(case, "S8", record, f"fewer than {left} chunks left", "the chunk comes no nearer to the end")
    is_next = record.start < tail and finish <= record.start + record.asked and _is_earliest(case, record, last, tail)
    if is_next and case.judged("S6") and not rules.chunk_ends_at(record.start, record.granted, tail):
        report(case, "S6", record, f"a stop at {tail}", "the partial tail is the earliest stop ahead")


def _check_junction_is_met(case: Case, record: Split) -> None:
    """S5, one chunk from before the junction stop."""
    stop = split.split_junction_floor(case.split_setting, record.prompt, record.junction)
    if record.start >= stop or not case.judged("S5"):
        return
    if not rules.junction_stop_is_met(record.start, record.granted, stop):
        report(case, "S5", record, f"an end after {record.start}, up to {stop}", f"the junction stop is {stop}")


def _is_earliest(case: Case, record: Split, last: int, tail: int) -> bool:
    """Whether no other stop lies between the start and the tail."""
    start, setting = record.start, case.split_setting
    stops = [last, *(floor_to(start, block) + block for block in case.mamba_blocks if start % block != 0)]
    if record.junction > start:
        stops.append(split.junction_stop(setting, start, record.prompt, record.junction))
    return not any(start < stop < tail for stop in stops)


def report(case: Case, rule: str, record: Split, expected: str, why: str) -> None:
    """A finding about a chunk, with the whole decision in words."""
    end = record.start + record.granted
    case.report(
        rule,
        "split",
        f"{record.request} (prompt {record.prompt}, known {record.known}, junction {record.junction}) asked for "
        f"{record.asked} tokens from {record.start} and got {record.granted}, up to {end}: {why}",
        request=record.request,
        expected=expected,
        actual=f"{record.granted} tokens (end {end})",
    )
