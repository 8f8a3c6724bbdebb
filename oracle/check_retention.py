"""Checks of retention, R1 to R6: which of a request's full blocks stay reusable.

R1, R2, R4 and R5 are judged at every call that caches blocks; R3 and R6 once a prefill is over, on all that it cached.
"""

from __future__ import annotations

from collections.abc import Iterable

from oracle.case import Case, RequestState
from reference import boundaries, retention, rules
from reference.arithmetic import floor_to
from reference.geometry import Group
from reference.policy import Policy
from reference.serving import given_back
from reference.split import prefill_end


def mask_alignment(case: Case, policy: Policy) -> int:
    """The unit that masks floor boundaries to, in tokens."""
    if policy.mask_alignment == "scheduler block":
        return case.setup.scheduler_block
    return case.setup.alignment


def boundary_list(case: Case, policy: Policy, state: RequestState, group: int) -> tuple[int, ...]:
    """The request's boundary list for a group."""
    return boundaries.boundary_list(
        policy,
        case.groups[group],
        state.prompt,
        state.looked_up or 0,
        case.setup.scheduler_block,
        any(case.setup.drop_groups),
    )


def saved_in(case: Case, state: RequestState, group: int) -> tuple[int, int] | None:
    """The position and the column of a state that is saved inside the request's last chunk in a Mamba group."""
    if case.reservations is None or case.groups[group].kind != "mamba":
        return None
    return case.reservations.saved(*state.chunk, prefill_end(state.prompt, state.known))


def reserves_for_state(case: Case, state: RequestState, start: int, end: int) -> bool:
    """Whether Mamba groups count on a block more for tokens up to ``end``, for a state that is saved before it."""
    if case.reservations is None:
        return False
    return case.reservations.reserve(start, end, prefill_end(state.prompt, state.known))


def check_new_blocks(
    case: Case,
    state: RequestState,
    group: int,
    numbers: range,
    seen: set[tuple[int, int]],
    positions: tuple[int, ...],
) -> None:
    """Judge what a call made of the blocks ``numbers`` of a sparse group, and remember it.

    ``seen``: the positions and blocks that it committed. A block that had its hash before was not its to decide on, nor
    is one in which a state is saved inside the chunk.
    ``positions``: the boundary list, where there is a policy.
    """
    table, block = state.tables[group], case.groups[group].block
    _, saved_column = saved_in(case, state, group) or (0, -1)
    kept = {
        number: case.index.has(group, table[number], (number + 1) * block)
        for number in numbers[: max(len(table) - numbers.start, 0)]
        if table[number] and number != saved_column
    }
    decided = {n: is_kept for n, is_kept in kept.items() if not is_kept or ((n + 1) * block, table[n]) in seen}
    state.kept[group].update(decided)
    junction = state.looked_up or 0
    if junction > 0 and case.setup.retention == 0:
        _check_tails(case, state, group, kept, "R1", (junction,), "junction")
    if case.policy is None:
        return
    _check_tails(case, state, group, kept, "R2", positions, "boundary list")
    _check_nothing_else(case, state, group, decided, positions, mask_alignment(case, case.policy))


def check_prefill(case: Case, state: RequestState) -> None:
    """R3 and R6, for a request whose prefill is over."""
    if case.policy is None or not case.scenario.features.caching:
        return
    for group, spec in enumerate(case.groups):
        kept = state.kept[group]
        if spec.kind == "full" or not kept:
            continue
        _check_at_once(case, case.policy, state, group)
        if case.setup.retention == 0 and case.setup.alignment == case.setup.scheduler_block:
            for what, limit in (("resend", state.prompt - 1), ("extension", state.prompt)):
                position = floor_to(resume_limit(case, limit, state.prompt), case.setup.scheduler_block)
                _check_resumable(case, state, group, what, position)


def _tail_units(case: Case, group: int) -> set[int]:
    """The units that a boundary is floored to; without a policy both that releases use, which must agree."""
    found = case.tail_units.get(group)
    if found is not None:
        return found
    units = {case.setup.scheduler_block, case.setup.alignment}
    if case.policy is not None:
        units = {mask_alignment(case, case.policy)}
    spec = case.groups[group]
    units = {spec.block if spec.kind == "swa" and unit % spec.block != 0 else unit for unit in units}
    return case.tail_units.setdefault(group, units)


def _in_every_tail(spec: Group, number: int, positions: list[int], units: set[int]) -> bool:
    """Whether a block is in the tail of one of the positions, by whichever of the units it is floored to."""
    for position in positions:
        for unit in units:
            if not retention.in_tail(spec, number, position, unit):
                break
        else:
            return True
    return False


def _check_tails(
    case: Case,
    state: RequestState,
    group: int,
    kept: dict[int, bool],
    rule: str,
    positions: tuple[int, ...],
    what: str,
) -> None:
    """R1 and R2: every block of the tails of ``positions`` that this call passed over, and that exists, is kept."""
    spec = case.groups[group]
    units = _tail_units(case, group)
    # A boundary below the first aligned position is a hit of 0 tokens, which needs nothing.
    first = max(units)
    reachable = [position for position in positions if position >= first]
    if not reachable:
        return
    for number, is_kept in kept.items():
        serves = _in_every_tail(spec, number, reachable, units)
        if not serves or not case.judged(rule):
            continue
        if not rules.kept_if_served(is_kept, serves):
            _report(
                case,
                state,
                group,
                rule,
                number,
                f"has the {what} {', '.join(map(str, positions))}; the block is part of its tail, was full, and was "
                "not kept",
                kept=True,
            )
            return


def _check_nothing_else(
    case: Case,
    state: RequestState,
    group: int,
    kept: dict[int, bool],
    positions: tuple[int, ...],
    alignment: int,
) -> None:
    """R4: what is kept, dense keeps. R5: interval 0 keeps the tails of the boundary list and nothing else."""
    spec, interval = case.groups[group], case.setup.retention
    judges_tails = interval == 0 and alignment % spec.block == 0
    for number in _masked(case, state, group, kept):
        dense = retention.keep(spec, number, alignment, None, ())
        if case.judged("R4") and not rules.kept_implies(True, dense):
            if number == 0 and spec.drops:
                # A boundary that floors to 0 has no tail, but where EAGLE peeks: one block, which nobody reads.
                case.allow("block 0 kept for a boundary that floors to 0")
            else:
                _report(case, state, group, "R4", number, "keeps a block that a dense cache leaves out", kept=False)
        if not judges_tails or not case.judged("R5"):
            continue
        wanted = any(retention.in_tail(spec, number, position, alignment) for position in positions)
        if not rules.kept_implies(True, wanted):
            listed = ", ".join(map(str, positions))
            _report(case, state, group, "R5", number, f"keeps a block that no tail of {listed} needs", kept=False)


def _masked(case: Case, state: RequestState, group: int, kept: dict[int, bool]) -> Iterable[int]:
    """The blocks that are kept by the mask, and not as a partial tail or at the exact junction, on a boundary."""
    block = case.groups[group].block
    others = (state.mamba_tails[group], (state.looked_up or 0) if case.setup.exact_junction else 0)
    return [number for number, is_kept in kept.items() if is_kept and (number + 1) * block not in others]


def _check_at_once(case: Case, policy: Policy, state: RequestState, group: int) -> None:
    """R3: what was kept chunk by chunk is what the mask over the whole prefill keeps."""
    spec, kept = case.groups[group], state.kept[group]
    if not case.judged("R3"):
        return
    mask = retention.mask(
        spec,
        0,
        max(kept) + 1,
        mask_alignment(case, policy),
        case.setup.retention,
        boundary_list(case, policy, state, group),
    )
    by_mask = set(_masked(case, state, group, kept))
    for number, is_kept in kept.items():
        if is_kept == (number in by_mask) and not rules.kept_alike(is_kept, mask[number]):
            why = "kept" if is_kept else "not kept"
            text = f"has {why} a block, and one mask over its whole prefill decides otherwise"
            _report(case, state, group, "R3", number, text, kept=mask[number])
            return


def resume_limit(case: Case, limit: int, hashed: int) -> int:
    """The tokens up to ``limit`` within which the drop rule lets a request resume.

    Beyond them each group that drops has matched a block more: within the limit or, by some policies, within the
    ``hashed`` tokens.
    """
    end = case.peek_end(limit, hashed)
    matched = [
        floor_to(end, group.block) - given_back(group, case.setup.alignment)
        for group in case.groups
        if group.drops and group.kind != "mamba"
    ]
    if case.setup.block_drop and not matched:
        # Where no attention group gives a block back, the split stops a block lower all the same.
        matched = [floor_to(hashed, case.setup.scheduler_block) - case.setup.scheduler_block]
    return max(min([limit, *matched]), 0)


def _check_resumable(case: Case, state: RequestState, group: int, what: str, position: int) -> None:
    """R6: the blocks that a hit at ``position`` needs, and that were there to keep, are kept."""
    spec, kept = case.groups[group], state.kept[group]
    needed = [n for n in kept if retention.in_tail(spec, n, position, case.setup.scheduler_block)]
    if position == 0 or not needed or not case.judged("R6"):
        return
    for number in needed:
        held = [position] if kept[number] else []
        if rules.position_is_listed(position, case.setup.scheduler_block, held):
            continue
        if what == "extension" and not any(case.setup.drop_groups):
            # Without the drop no release lists it: a prompt of whole units is kept for a resend only.
            case.allow("a prompt of whole units is not kept for its extension")
        else:
            why = f"does not keep a block that its {what} needs, which can resume at {position}"
            _report(case, state, group, "R6", number, why, kept=True, decision=what)
        return


def _report(
    case: Case,
    state: RequestState,
    group: int,
    rule: str,
    number: int,
    what: str,
    *,
    kept: bool,
    decision: str = "commit",
) -> None:
    """A finding about one block of a request. ``kept``: what it should be."""
    block = case.groups[group].block
    words = ("not kept", "kept")
    case.report(
        rule,
        decision,
        f"{state.name} (prompt {state.prompt}, junction {state.looked_up or 0}) {what}, under interval "
        f"{case.setup.retention}: block {number} of {case.name(group)}, up to token {(number + 1) * block}",
        request=state.name,
        group=group,
        block=state.tables[group][number] if number < len(state.tables[group]) else -1,
        expected=f"block up to {(number + 1) * block} {words[kept]}",
        actual=words[not kept],
    )
