"""Holdings: what one group holds of a request, what it takes for a chunk and what it gives back.

Attention holds a block for every started block of its slots, a sliding window and chunked-local attention those that a
later token may read.
Mamba holds the block of the running state, in the column where the chunk ends, a spare one after it for each draft
token, and the state before it until that was copied; columns that a chunk ran past have no block, but for one where a
state is saved inside the chunk.
Source: ``allocate_new_blocks`` and ``remove_skipped_blocks`` of the managers, all releases.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from reference.arithmetic import ceil_div
from reference.geometry import Group, first_read
from reference.policy import Policy
from reference.worker import NULL_BLOCK


@dataclass(slots=True)
class Holding:
    """What a group holds of one request.

    ``columns``: entries of its table. ``blocks``: by column, what a sparse group holds; full attention gives
    nothing back before the end, so it is not looked at. ``started``: it has been given new blocks. ``previous``: the
    column of the state before the running one; ``tail``: the column of a state inside a block that is in the cache
    and that the next chunk would overwrite (-1: none). ``cached``: leading blocks considered for the cache.
    """

    columns: int = 0
    blocks: dict[int, int] = field(default_factory=dict)
    started: bool = False
    previous: int = -1
    tail: int = -1
    cached: int = 0


Change = dict[int, int]
"""Table entries that changed: the block by column, the null block where there is none any more."""
Take = Callable[[int], Sequence[int]]
"""Gives so many free blocks."""


def passed_columns(group: Group, computed: int) -> int:
    """How many leading columns a request with ``computed`` tokens never reads again."""
    first = max(computed - 1, 0) if group.kind == "mamba" else first_read(group, computed)
    return first // group.block


def give_back_passed(policy: Policy, group: Group, holding: Holding, computed: int) -> list[list[int]]:
    """Columns that are given back before a chunk, a list for each call to the pool, in the order of the call.

    ``computed``: tokens whose outputs are known; what a step in flight may read is kept.
    """
    calls: list[list[int]] = []
    if group.kind == "full":
        return calls
    end = min(passed_columns(group, computed), holding.columns)
    if group.kind == "mamba" and policy.retires_across_gaps:
        passed = [column for column in holding.blocks if column < end]
        passed.sort(reverse=True)
    else:
        first = end
        while first - 1 in holding.blocks:
            first -= 1
        passed = list(range(end - 1, first - 1, -1))
    if passed:
        calls.append(passed)
    previous = holding.previous
    copied = group.kind == "mamba" and previous < ceil_div(computed, group.block) - 1
    if copied and previous in holding.blocks and previous not in passed:
        calls.append([previous])
    return calls


def adopt(group: Group, holding: Holding, hit: int, found: Sequence[int]) -> Change:
    """The blocks of a hit of ``hit`` tokens, ``found`` by column, less those that no later token reads."""
    first = passed_columns(group, hit)
    change = {column: block if column >= first else NULL_BLOCK for column, block in enumerate(found)}
    change.update(dict.fromkeys(range(len(found), first), NULL_BLOCK))
    holding.columns, holding.cached = max(len(found), first), hit // group.block
    _note(group, holding, change)
    return change


def is_open(policy: Policy, holding: Holding, column: int, spare: int) -> bool:
    """Whether a block can be reserved in a column: none is there, or, since 0.30, one of the ``spare`` ones."""
    if column >= holding.columns or column not in holding.blocks:
        return True
    return policy.internal_checkpoint == "final chunk" and holding.started and column >= holding.columns - spare


def grow(
    policy: Policy,
    group: Group,
    holding: Holding,
    end: int,
    slots: int,
    spare: int,
    inside: int,
    take: Take,
    saves: bool = False,
) -> tuple[Change, int]:
    """New blocks for a chunk that ends at ``end``, where attention needs ``slots`` slots.

    ``inside``: the column of a block inside which a hit ends, for which a copy is taken first (-1: none). ``saves``: a
    Mamba group reserves a block for a state inside the chunk. Gives the entries that changed, and the block that holds
    the copy (the null block: no copy is made).
    """
    if group.kind == "mamba":
        return _grow_states(policy, group, holding, end, spare, inside, take, saves)
    change: Change = {}
    copy, required = NULL_BLOCK, ceil_div(slots, group.block)
    if inside < 0 and required <= holding.columns:
        return change, copy
    if inside >= 0:
        (copy,) = take(1)
        change[inside] = copy
    columns = range(holding.columns, required)
    change.update(zip(columns, take(len(columns)), strict=True))
    holding.columns += len(columns)
    _note(group, holding, change)
    return change, copy


def _grow_states(
    policy: Policy, group: Group, holding: Holding, end: int, spare: int, inside: int, take: Take, saves: bool
) -> tuple[Change, int]:
    """Room for the state at ``end`` in its column and for ``spare`` ones after it; and if one ``saves``, before it.

    Spare blocks that the state moves past go along with it. A tail stays where it is and its hash moves to the copy;
    a hit's block is replaced by the copy.
    """
    state = ceil_div(end, group.block) - 1
    before, started = holding.columns, holding.started
    holding.started = True
    if state + 1 + spare <= before and inside < 0 and holding.tail < 0:
        return {}, NULL_BLOCK
    if started:
        holding.previous = before - 1 - spare
    elif before > 0:
        holding.previous = before - 1
    first = state - saves
    change: Change = dict.fromkeys(range(before, first), NULL_BLOCK)
    columns = max(before, first)
    for column in range(before - spare, min(before, _spares_end(policy, state, saves))) if started else ():
        change[columns], change[column] = holding.blocks.get(column, NULL_BLOCK), NULL_BLOCK
        columns += 1
    copies = 1 if inside >= 0 or holding.tail >= 0 else 0
    new = range(columns, state + 1 + spare)
    taken = take(len(new) + copies)
    copy = taken[0] if copies else NULL_BLOCK
    if inside >= 0:
        change[inside] = copy
    change.update(zip(new, taken[copies:], strict=True))
    holding.columns = columns + len(new)
    holding.tail = -1
    _note(group, holding, change)
    return change, copy


def _spares_end(policy: Policy, state: int, saves: bool) -> int:
    """The column before which spare blocks move along to the new ``state``'s."""
    if not saves or policy.spares_at_saving == "move":
        return state
    return state - 1 if policy.spares_at_saving == "reserved one stays" else 0


def _note(group: Group, holding: Holding, change: Change) -> None:
    """Bring ``blocks`` up to date."""
    if group.kind == "full":
        return
    for column, block in change.items():
        if block == NULL_BLOCK:
            holding.blocks.pop(column, None)
        else:
            holding.blocks[column] = block
