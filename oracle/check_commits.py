"""Checks of what enters the cache: M3 against the reference; retention's own rules are in ``check_retention``.

A ``cache`` record opens a window: the commits of that group and request that follow, until a record of
another kind, are what the engine made of it.
"""

from __future__ import annotations

from oracle.case import Case, RequestState
from oracle.check_retention import boundary_list, check_new_blocks, mask_alignment, saved_in
from oracle.trace import Allocate, Cache
from reference import exports, retention, tails
from reference.arithmetic import ceil_div
from reference.policy import NEWEST, Policy


class Window:
    """One call of a group's caching: its record, the block numbers considered, and the commits seen.

    ``positions``: the request's boundary list, where the group is sparse and there is a policy.
    """

    def __init__(self, record: Cache, state: RequestState, first: int, end: int, positions: tuple[int, ...]) -> None:
        self.record = record
        self.state = state
        self.first = first
        self.end = end
        self.positions = positions
        self.expected: set[tuple[int, int]] = set()
        self.seen: set[tuple[int, int]] = set()


def check_cache_calls(case: Case, state: RequestState, record: Allocate, calls: dict[int, int]) -> None:
    """M3: an allocation told every group how many tokens it may cache, and told it right.

    ``calls``: the tokens that each group was told. Drafts are never among them.
    """
    if not case.judged("M3"):
        return
    whole_units = len(case.groups) > 1 and not case.setup.partial_hits
    tokens = min(record.computed + record.tokens, state.known)
    for number, spec in enumerate(case.groups):
        expected = retention.cacheable_tokens(spec, tokens, case.setup.scheduler_block, whole_units)
        told = calls.get(number)
        if told != expected:
            case.report(
                "M3",
                "cache",
                f"{state.name} has {record.computed} tokens computed and {record.tokens} in this step, of "
                f"{state.known} known, so {case.name(number)} may cache {expected}",
                request=state.name,
                group=number,
                expected=f"{expected} tokens",
                actual="no call" if told is None else f"{told} tokens",
            )
            return


def nothing_new(case: Case, record: Cache, state: RequestState) -> bool:
    """Whether a call can neither fill a block nor reach a partial tail, so that nothing may be committed."""
    group, tokens = record.group, record.tokens
    spec = case.groups[group]
    if tokens // spec.block > state.cached[group] or saved_in(case, state, group) is not None:
        return False
    if spec.kind == "full":
        return spec.block == case.setup.hash_block
    if spec.kind in ("swa", "chunked"):
        return True
    return not (tokens == state.mamba_tails[group] or case.setup.exact_junction)


def open_window(case: Case, record: Cache) -> Window:
    """Work out what this call should commit, as pairs of position and block, and move the cursor."""
    state = case.requests[record.request]
    policy = case.policy
    spec = case.groups[record.group]
    first = state.cached[record.group]
    hashed = case.hashed(state.known)
    state.cached[record.group] = end = max(min(record.tokens, hashed) // spec.block, first)
    if policy is None:
        return Window(record, state, first, end, ())
    positions = () if retention.keeps_all(spec) or end == first else boundary_list(case, policy, state, record.group)
    window = Window(record, state, first, end, positions)
    if end > first:
        _expect_blocks(case, policy, window)
    if spec.kind == "mamba" or (spec.kind == "full" and spec.block != case.setup.hash_block):
        _expect_tail(case, policy, window, hashed)
    return window


def _expect_blocks(case: Case, policy: Policy, window: Window) -> None:
    """Full blocks that the mask keeps and that the table still holds."""
    group, positions, expected = window.record.group, window.positions, window.expected
    table, spec = window.state.tables[group], case.groups[group]
    alignment, interval = mask_alignment(case, policy), case.setup.retention
    keeps_all = retention.keeps_all(spec)
    for number in range(window.first, min(window.end, len(table))):
        if table[number] and (keeps_all or retention.keep(spec, number, alignment, interval, positions)):
            expected.add(((number + 1) * spec.block, table[number]))


def _expect_tail(case: Case, policy: Policy, window: Window, hashed: int) -> None:
    """The partial tail, where this call reaches it. ``hashed``: the request's hashed tokens."""
    record, state, spec = window.record, window.state, case.groups[window.record.group]
    table = state.tables[record.group]
    position = 0
    saved = saved_in(case, state, record.group)
    if saved is not None:
        _expect_saved(case, policy, window, *saved)
        return
    if spec.kind == "full":
        position = tails.full_tail(policy, spec, state.prompt, case.setup.hash_block, hashed)
        if position > record.tokens:
            position = 0
    elif record.tokens == state.mamba_tails[record.group] or tails.at_exact_junction(
        case.split_setting, record.tokens, state.looked_up or 0, state.computed, state.prompt
    ):
        position = record.tokens
    column = ceil_div(position, spec.block) - 1
    if position > 0 and column < len(table) and table[column]:
        window.expected.add((position, table[column]))


def _expect_saved(case: Case, policy: Policy, window: Window, position: int, column: int) -> None:
    """A state that is saved inside the chunk, if it is kept: in its column, whatever that was to hold."""
    state, group = window.state, window.record.group
    spec = case.groups[group]
    setting, alignment, interval = case.split_setting, mask_alignment(case, policy), case.setup.retention
    junction, tokens = state.looked_up or 0, window.record.tokens
    kept = exports.keeps_saved(policy, setting, spec, position, state.prompt, junction, tokens, alignment, interval)
    table = state.tables[group]
    if kept and column < len(table):
        window.expected.add((position, table[column]))


def mamba_tails(case: Case, state: RequestState) -> list[int]:
    """Per group the position of the partial tail that the request's prompt has there (0: none, or no Mamba)."""
    policy, setup = case.policy or NEWEST, case.setup
    return [
        tails.mamba_tail(policy, spec, state.prompt, setup.hash_block, setup.block_drop, setup.lookahead_hash)
        if spec.kind == "mamba"
        else 0
        for spec in case.groups
    ]


def close_window(case: Case, window: Window) -> None:
    """Compare what was committed with what should have been."""
    if case.policy is not None and case.judged("M3") and window.expected != window.seen:
        # A block that has the very hash already gets no commit.
        missing = {
            pair
            for pair in window.expected - window.seen
            if not case.index.has(window.record.group, *reversed(pair)) and not _was_reached(case, window, pair[0])
        }
        extra = window.seen - window.expected
        if missing or extra:
            _report_difference(case, window, missing, extra)
    group = window.record.group
    # R1 to R6 have nothing to say of a group that is never thinned out.
    if window.end > window.first and not retention.keeps_all(case.groups[group]):
        check_new_blocks(case, window.state, group, range(window.first, window.end), window.seen, window.positions)


def _was_reached(case: Case, window: Window, position: int) -> bool:
    """Whether an earlier chunk ended on this Mamba tail, and registered it then.

    With a step in flight the tokens that are known do not grow, so the next call is about the same position again.
    Releases before 0.32 then register the tail once more. Whether the block still holds that state is C1's to judge.
    """
    is_tail = case.groups[window.record.group].kind == "mamba" and position == window.record.tokens
    return is_tail and position <= window.state.computed


def _report_difference(case: Case, window: Window, missing: set[tuple[int, int]], extra: set[tuple[int, int]]) -> None:
    """M3: the mask or the tails differ from the reference's."""
    record, state = window.record, window.state
    case.report(
        "M3",
        "commit",
        f"{record.request} (prompt {state.prompt}, known {state.known}, junction {state.looked_up or 0}) may cache "
        f"its first {record.tokens} tokens in {case.name(record.group)}, blocks {window.first} to {window.end - 1} "
        f"are new; the reference keeps {_positions(window.expected)}, the engine committed {_positions(window.seen)}",
        request=record.request,
        group=record.group,
        expected=f"also {_positions(missing)}" if missing else "nothing more",
        actual=f"also {_positions(extra)}" if extra else "nothing more",
    )


def _positions(pairs: set[tuple[int, int]]) -> str:
    """Positions in words."""
    if not pairs:
        return "nothing"
    return "positions " + ", ".join(str(position) for position, _ in sorted(pairs))
