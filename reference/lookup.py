"""The lookup: how long a prefix each group can serve, and what all groups agree on.

What is cached is given as a function ``present(tokens)``: the group holds, for this request, a block
whose hash stands for exactly its first ``tokens`` tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from reference.arithmetic import floor_to
from reference.geometry import Group, blocks_needed_for_hit, chunk_start
from reference.policy import Policy

Present = Callable[[int], bool]


def full_hit(present: Present, limit: int, block: int, alignment: int, drop: bool) -> int:
    """The hit of a full-attention group, in tokens: a run of blocks from the start, then a part of one.

    With ``alignment`` finer than the block, the hit may end inside the first block that is missing, at the
    highest hash boundary that is cached. ``drop`` gives up the last matched unit.
    """
    fine = alignment < block and block % alignment == 0
    hit = 0
    while hit + block <= limit and present(hit + block):
        hit += block
    if fine:
        inside = min(hit + block - alignment, floor_to(limit, alignment))
        while inside > hit and not present(inside):
            inside -= alignment
        hit = max(hit, inside)
    if drop and hit > 0:
        hit -= min(alignment, block)
    return floor_to(hit, alignment)


def window_hit(present: Present, limit: int, group: Group, alignment: int, drop: bool) -> int:
    """The hit of a sliding-window group: the highest aligned position whose last blocks are all cached.

    The search goes down from the limit. A run that starts at block 0 is a hit however short it is. With
    ``drop`` the run must be one block longer, and its last block is given up.
    """
    block = group.block
    need = blocks_needed_for_hit(Group("swa", block, group.window, drop))
    run = 0
    top = 0
    number = limit // block
    while number > 0:
        number -= 1
        if not present((number + 1) * block):
            run = 0
            continue
        if run == 0:
            usable = number if drop else number + 1
            if block != alignment and usable * block % alignment != 0:
                continue
            top = number + 1
        run += 1
        if run >= need:
            break
    hit_blocks = top if run >= need and run > 0 else floor_to_blocks(run, block, alignment)
    if drop and hit_blocks > 0:
        hit_blocks = floor_to_blocks(hit_blocks - 1, block, alignment)
    return hit_blocks * block


def floor_to_blocks(blocks: int, block: int, alignment: int) -> int:
    """The most blocks, at most ``blocks``, whose tokens are a multiple of ``alignment``."""
    while blocks * block % alignment != 0:
        blocks -= 1
    return blocks


def mamba_hit(present: Present, limit: int, block: int, alignment: int) -> int:
    """The hit of a Mamba group: the highest position whose state is cached. Mamba never drops or peeks.

    With ``alignment`` finer than the block every hash boundary is looked at, else every aligned block.
    """
    unit = alignment if alignment < block and block % alignment == 0 else block
    position = floor_to(limit, unit)
    while position > 0:
        if position % alignment == 0 and present(position):
            return position
        position -= unit
    return 0


def chunked_hit(present: Present, limit: int, group: Group) -> int:
    """The hit of a chunked-local group: a run of blocks from the start of the attention chunk that the limit lies in.

    What lies before that chunk nobody reads, so it is granted whether it is cached or not. It never drops or peeks.
    """
    hit = chunk_start(group, limit)
    while hit + group.block <= limit and present(hit + group.block):
        hit += group.block
    return hit


@dataclass(slots=True)
class LookupGroup:
    """A group in a lookup. Groups of equal spec are one: ``present`` holds for all of them together."""

    group: Group
    present: Present


@dataclass(frozen=True)
class Hit:
    """The outcome: the agreed ``hit``, the ``longest`` hit seen on the way (both in tokens)."""

    hit: int
    longest: int

    @property
    def junction(self) -> int:
        """The longest hit where it is beyond the agreed one, else 0."""
        return self.longest if self.longest > self.hit else 0


def merged(groups: Sequence[LookupGroup]) -> list[LookupGroup]:
    """Groups of equal spec joined (all must hold a block, one that drops makes all drop), full first."""
    joined: list[list[LookupGroup]] = []
    for item in groups:
        for members in joined:
            if members[0].group.spec == item.group.spec:
                members.append(item)
                break
        else:
            joined.append([item])
    joined.sort(key=lambda members: members[0].group.kind != "full")
    return [join(members) for members in joined]


def join(members: Sequence[LookupGroup]) -> LookupGroup:
    """One group that holds what every member holds."""
    if len(members) == 1:
        return members[0]
    first = members[0].group
    drops = any(member.group.drops for member in members)
    presents = [member.present for member in members]
    return LookupGroup(
        Group(first.kind, first.block, first.window, drops, first.attention_chunk),
        lambda tokens: all(has(tokens) for has in presents),
    )


def group_hit(item: LookupGroup, limit: int, alignment: int, drop: bool) -> int:
    """The hit of one group within ``limit`` tokens."""
    if item.group.kind == "full":
        return full_hit(item.present, limit, item.group.block, alignment, drop)
    if item.group.kind == "swa":
        return window_hit(item.present, limit, item.group, alignment, drop)
    if item.group.kind == "chunked":
        return chunked_hit(item.present, limit, item.group)
    return mamba_hit(item.present, limit, item.group.block, alignment)


def single_hit(item: LookupGroup, known: int) -> Hit:
    """The hit of a cache with one group: it aligns to its own block and has no junction."""
    hit = group_hit(item, known - 1, item.group.block, item.group.drops)
    return Hit(hit, hit)


def hybrid_hit(
    policy: Policy, groups: Sequence[LookupGroup], known: int, hashed: int, alignment: int, hash_block: int
) -> Hit:
    """What several groups agree on for a request of ``known`` tokens, ``hashed`` of them hashed.

    Each group in turn accepts the candidate length or lowers it; a lowered length makes everyone look
    again, except in the simplest hybrid (full attention and one other kind), where one round is enough.
    An attention group that drops looks one unit beyond the candidate, once per candidate length.
    """
    members = merged(groups)
    simple = len(members) == 2 and members[0].group.kind == "full"
    limit = known - 1
    hit, longest = limit, 0
    full_hits: dict[int, int] = {}
    dropped: set[int] = set()
    while True:
        candidate = hit
        for index, item in enumerate(members):
            if item.group.kind == "full" and index in full_hits:
                # What full attention holds of a longer prefix it holds of a shorter one.
                candidate = full_hits[index] = min(candidate, full_hits[index])
                continue
            drop = item.group.drops and index not in dropped
            reach = candidate
            if drop and item.group.kind != "mamba":
                unit = item.group.block
                if item.group.kind == "full" and alignment < unit:
                    unit = min(unit, hash_block)
                reach = min(candidate + unit, limit if policy.peek_ends_at == "limit" else hashed)
            found = group_hit(item, reach, alignment, drop)
            if drop:
                dropped.add(index)
            elif found < candidate:
                dropped.clear()
            candidate = found
            if item.group.kind == "full":
                full_hits[index] = found
            longest = max(longest, candidate)
        if candidate >= hit:
            break
        hit = candidate
        if simple:
            break
    return Hit(hit, longest)
