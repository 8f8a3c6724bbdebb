"""Checks of the split: S1 to S4, and M1 against the reference."""

from __future__ import annotations

from oracle.case import Case
from oracle.check_course import check_course, report
from oracle.trace import Split
from reference import rules, split
from reference.arithmetic import floor_to


def check_split(case: Case, record: Split) -> None:
    """Judge one chunk's split."""
    finish = split.prefill_end(record.prompt, record.known)
    prefills = record.start < finish
    case.cover("split")
    if record.granted < record.asked:
        case.cover("chunk stopped")
    if record.granted == 0:
        case.cover("empty chunk")
    if case.judged("S1") and not rules.chunk_within_asked(record.asked, record.granted):
        report(case, "S1", record, f"at most {record.asked} tokens", "the chunk is outside of what was asked")
    if prefills and not _saves(case, record, finish):
        tails = _tails(case, record.prompt)
        _check_end(case, record, finish, tails)
        last = tail = 0
        if case.policy is not None:
            last = split.last_cacheable_position(case.policy, case.split_setting, record.known)
            tail = split.tail_stop(record.prompt, last, tails[0])
        _check_stops(case, record, last, tail)
        _check_empty(case, record, finish)
        check_course(case, record, finish, last, tail)
    _check_junction(case, record)
    if case.policy is not None and case.judged("M1"):
        predicted = split.split(
            case.policy,
            case.split_setting,
            record.start,
            record.asked,
            record.prompt,
            record.known,
            record.junction,
        )
        if predicted != record.granted:
            report(
                case,
                "M1",
                record,
                f"{predicted} tokens (end {record.start + predicted})",
                "the split decided otherwise",
            )


def _saves(case: Case, record: Split, finish: int) -> bool:
    """Whether the split counted on a state that is saved inside the chunk, which stands in for stops.

    S2 to S6 and S8 are about the other chunks; that this one ends where it may is M1's to judge.
    """
    setting, policy = case.split_setting, case.policy
    if setting.checkpoint_alignment == 0 or policy is None:
        return False
    return split.saves_inside(policy, setting, record.start, record.start + record.asked, finish)


def _tails(case: Case, prompt: int) -> list[int]:
    """Where the partial tail may lie, in tokens: one position by the policy, without one all that any release has."""
    setting = case.split_setting
    if case.policy is not None:
        return [split.partial_tail(case.policy, setting, prompt)]
    unit = setting.hash_block
    if unit == setting.scheduler_block:
        return []
    return [floor_to(limit, unit) - lower for limit in (prompt, prompt - 1) for lower in (0, unit)]


def _check_end(case: Case, record: Split, finish: int, tails: list[int]) -> None:
    """S2: where a chunk short of the prefill end may end."""
    setting = case.split_setting
    stops = [*tails, record.junction] if setting.exact_junction else tails
    if case.judged("S2") and not rules.chunk_end_is_useful(
        record.start, record.granted, finish, case.mamba_blocks, stops, setting.room
    ):
        blocks = " and ".join(str(block) for block in case.mamba_blocks)
        report(
            case,
            "S2",
            record,
            f"an end on a multiple of {blocks}",
            f"prefill goes on to {finish}, and the state after {record.start + record.granted} tokens is no "
            "boundary state, so the next chunk starts inside a block",
        )


def _check_stops(case: Case, record: Split, last: int, tail: int) -> None:
    """S3: which positions a chunk may not run across. Without a policy only those that no release moves.

    ``last``: the last cacheable position; ``tail``: the partial tail, where it is a stop; 0 stands for none.
    """
    setting = case.split_setting
    stops = {}
    for block in case.mamba_blocks:
        if record.start % block != 0:
            stops[f"boundary of a block of {block}"] = (record.start // block + 1) * block
    if record.start < record.junction < record.start + record.granted:
        stops["junction"] = split.junction_stop(setting, record.start, record.prompt, record.junction)
    stops |= {"last cacheable position": last, "partial tail": tail}
    if case.judged("S3") and not rules.chunk_crosses_no_stop(record.start, record.granted, list(stops.values())):
        end = record.start + record.granted
        name, stop = min(
            ((name, stop) for name, stop in stops.items() if record.start < stop < end), key=lambda item: item[1]
        )
        report(case, "S3", record, f"a stop at {stop}", f"the chunk runs across the {name} at {stop}")


def _check_empty(case: Case, record: Split, finish: int) -> None:
    """S4: when a chunk may come out empty."""
    setting = case.split_setting
    if case.judged("S4") and not rules.chunk_empty_only_when_short(
        record.start, record.asked, record.granted, finish, setting.grid, setting.room
    ):
        wanted = "some tokens" if record.granted == 0 else "no tokens"
        report(case, "S4", record, wanted, "whether a chunk is empty follows from the next block boundary alone")


def _check_junction(case: Case, record: Split) -> None:
    """L3, its second part: the junction that the request carries is the one of its last lookup."""
    state = case.requests.get(record.request)
    if state is None or state.looked_up is None or not case.judged("L3"):
        return
    if record.junction != state.looked_up:
        case.report(
            "L3",
            "split",
            f"the lookup at its admission gave {record.request} the junction {state.looked_up}, and no lookup "
            f"came since, but the split sees {record.junction}",
            request=record.request,
            expected=state.looked_up,
            actual=record.junction,
        )
