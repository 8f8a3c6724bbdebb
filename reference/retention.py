"""Retention: which of a request's full blocks enter the prefix cache, in closed form and as a mask."""

from __future__ import annotations

from collections.abc import Sequence

from reference.arithmetic import floor_to
from reference.geometry import Group, blocks_needed_for_hit


def cacheable_tokens(group: Group, tokens: int, scheduler_block: int, whole_units: bool) -> int:
    """How many of a request's first ``tokens`` tokens a group may cache.

    With several groups and no partial hits (``whole_units``) only whole scheduler blocks, and for a group that
    drops the block that it peeks at. Source: ``cache_blocks`` of the releases' hybrid coordinator.
    """
    if not whole_units:
        return tokens
    whole = floor_to(tokens, scheduler_block)
    if group.drops and whole > 0:
        return min(tokens, whole + group.block)
    return whole


def in_tail(group: Group, block: int, boundary: int, alignment: int) -> bool:
    """Whether block number ``block`` is one of the blocks that a hit at ``boundary`` needs.

    The tail is the ``need`` blocks that end on the boundary floored to ``alignment`` tokens, one block
    further for a sliding window that peeks.
    """
    end = floor_to(boundary, alignment) // group.block
    if group.kind == "swa" and group.drops:
        end = end + 1
    return end - blocks_needed_for_hit(group) <= block < end


def ends_segment(group: Group, block: int, segment: int) -> bool:
    """Whether block number ``block`` is in the tail of its retention segment of ``segment`` tokens."""
    per_segment = segment // group.block
    need = blocks_needed_for_hit(group)
    if need >= per_segment:
        return True
    shift = 1 if group.kind == "swa" and group.drops else 0
    return block >= shift and (block - shift) % per_segment >= per_segment - need


def keeps_all(group: Group) -> bool:
    """Whether every full block of a group enters the cache, whatever the interval, so that ``keep`` is not asked."""
    return group.kind in ("full", "chunked")


def keep(group: Group, block: int, alignment: int, interval: int | None, boundaries: Sequence[int]) -> bool:
    """Whether a full block enters the cache.

    ``block``: its number in the request, from 0. ``alignment``: the unit of hits, in tokens. ``interval``:
    the retention interval in tokens (None dense, 0 boundaries only). ``boundaries``: the boundary list.
    Full attention keeps all, and so does a sliding window whose block does not divide the alignment.
    """
    if group.kind == "full":
        return True
    if group.kind == "mamba" and interval is None:
        return True
    if group.kind == "swa" and alignment % group.block != 0:
        return True
    segment = alignment if interval is None else interval
    if segment > 0 and ends_segment(group, block, segment):
        return True
    if interval is None:
        return False
    return any(in_tail(group, block, boundary, alignment) for boundary in boundaries)


def mask(
    group: Group, start: int, end: int, alignment: int, interval: int | None, boundaries: Sequence[int]
) -> list[bool]:
    """``keep`` for the block numbers ``start`` to ``end`` (exclusive)."""
    return [keep(group, block, alignment, interval, boundaries) for block in range(start, end)]
