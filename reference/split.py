"""The split: where a prefill chunk of a model with recurrent state may end.

Mamba keeps one state per block, the state after exactly that many tokens. A state is only worth
caching at a position where a later request can resume, so the split makes chunks end there.
"""

from __future__ import annotations

from dataclasses import dataclass

from reference.arithmetic import ceil_div, floor_to
from reference.policy import Policy


@dataclass(frozen=True)
class SplitSetting:
    """What is fixed for an engine. All sizes in tokens.

    ``grid``: the split's grid, the engine's configured block size. ``hash_block``: the unit of hashing.
    ``scheduler_block``: the least common multiple of the groups' blocks. ``room``: the most tokens one
    chunk can ever get, the step's budget or a smaller long-prefill threshold. ``block_drop``: the EAGLE
    drop is on. ``partial_hits``: hits inside a block are on. ``lookahead``: tokens a hash covers beyond
    its block. ``exact_junction``: the opt-in to stop at a junction inside a block.
    ``checkpoint_alignment``: unit of the position that a backend can save inside a chunk, 0 if it cannot.
    """

    grid: int
    hash_block: int
    scheduler_block: int
    room: int
    block_drop: bool = False
    partial_hits: bool = False
    lookahead: int = 0
    exact_junction: bool = False
    checkpoint_alignment: int = 0


def prefill_end(prompt: int, known: int) -> int:
    """Position at which prefill ends: the prompt, or for a resumed request all but its newest token."""
    return max(prompt, known - 1)


def resumable_position(policy: Policy, tokens: int, unit: int, block_drop: bool, lookahead: int) -> int:
    """The last multiple of ``unit`` at which a request over ``tokens`` tokens can be resumed.

    Under the EAGLE drop one unit lower, never below 0. Without the drop later releases leave the tokens
    that must be computed anyway: one for the logits, or all that the last hash looks ahead to.
    """
    limit = tokens
    if policy.keeps_one_token and not block_drop:
        limit = tokens - max(1, lookahead)
    position = floor_to(limit, unit)
    if block_drop:
        position = position - unit
    return max(position, 0)


def last_cacheable_position(policy: Policy, setting: SplitSetting, known: int) -> int:
    """The last block boundary whose state a later request can use."""
    return resumable_position(policy, known, setting.grid, setting.block_drop, setting.lookahead)


def partial_tail(policy: Policy, setting: SplitSetting, prompt: int) -> int:
    """The last hash boundary of the prompt at which a request can resume; 0 where the split has none."""
    if policy.tail_stop == "partial hits" and not setting.partial_hits:
        return 0
    if setting.hash_block == setting.scheduler_block:
        return 0
    drop = setting.block_drop and policy.tail_drops
    if setting.block_drop and not policy.tail_drops:
        return floor_to(prompt, setting.hash_block)
    return resumable_position(policy, prompt, setting.hash_block, drop, setting.lookahead)


def tail_stop(prompt: int, last: int, tail: int) -> int:
    """The partial tail where it is a stop, between the last cacheable position and the prompt's end; else 0."""
    return tail if last < tail < prompt else 0


def split_junction_floor(setting: SplitSetting, prompt: int, junction: int) -> int:
    """The position at which a prefill that began on the grid comes to its junction stop; 0 without a junction."""
    if setting.exact_junction and junction <= prompt:
        return junction
    return floor_to(junction, setting.grid)


def junction_stop(setting: SplitSetting, start: int, prompt: int, junction: int) -> int:
    """Where a junction stops a chunk: floored to whole grid steps from the start, or exactly there.

    The exact stop is an opt-in, and holds only inside the prompt: beyond it nothing is cached there.
    """
    if setting.exact_junction and junction <= prompt:
        return junction
    return start + floor_to(junction - start, setting.grid)


def saves_inside(policy: Policy, setting: SplitSetting, start: int, end: int, prefill_end: int) -> bool:
    """Whether the backend saves the state that matters inside this chunk, so that no stop is needed."""
    if setting.checkpoint_alignment == 0 or policy.internal_checkpoint == "none":
        return False
    if policy.internal_checkpoint == "aligned start":
        return not setting.block_drop and start % setting.grid == 0
    position = saved_position(policy, setting, prefill_end)
    return (
        end >= prefill_end
        and start % setting.hash_block == 0
        and ceil_div(end, setting.grid) - 2 > (start - 1) // setting.grid
        and start + setting.hash_block <= position
        and start < position < end
        and (position - start) % setting.checkpoint_alignment == 0
    )


def saved_position(policy: Policy, setting: SplitSetting, prefill_end: int) -> int:
    """The position whose state a backend saves inside the final chunk of a prefill, in tokens."""
    unit = setting.hash_block
    if policy.checkpoint_unit == "hash block if partial" and not setting.partial_hits:
        unit = setting.scheduler_block
    limit = prefill_end
    if not (policy.keeps_one_token and setting.block_drop):
        limit = prefill_end - max(1, setting.lookahead)
    return max(floor_to(limit, unit) - (unit if setting.block_drop else 0), 0)


def aligned_end(policy: Policy, setting: SplitSetting, start: int, end: int, limit: int) -> int:
    """The end floored to the grid where it falls short of ``limit``, unless that would stop a wide block."""
    if end >= limit:
        return end
    floored = floor_to(end, setting.grid)
    if policy.allows_wide_blocks and floored <= start and setting.grid > setting.room:
        return end
    return floored


def split(policy: Policy, setting: SplitSetting, start: int, asked: int, prompt: int, known: int, junction: int) -> int:
    """How many of the ``asked`` tokens from ``start`` a chunk gets; 0 makes the request wait.

    ``prompt``: the prompt's length, ``known``: all tokens of the request, ``junction``: its junction or 0.
    Past the prefill end the request decodes and is not cut. Otherwise the end is floored to the grid, then
    pulled back to the earliest stop strictly inside the chunk.
    """
    finish = prefill_end(prompt, known)
    if start >= finish:
        return asked
    end = start + asked
    inside = saves_inside(policy, setting, start, end, finish)
    last = 0 if inside else last_cacheable_position(policy, setting, known)
    if policy.aligns_to_prefill_end:
        # 0.29 leaves the ends of chunks that save inside alone; later releases floor them, too.
        if not (inside and policy.internal_checkpoint == "aligned start"):
            end = aligned_end(policy, setting, start, end, finish)
    else:
        end = aligned_end(policy, setting, start, end, last)
    return max(earliest_stop(policy, setting, start, end, last, inside, prompt, junction) - start, 0)


def earliest_stop(
    policy: Policy,
    setting: SplitSetting,
    start: int,
    end: int,
    last: int,
    inside: bool,
    prompt: int,
    junction: int,
) -> int:
    """The earliest stop strictly between ``start`` and ``end``, or ``end``."""
    best = end
    boundary = floor_to(start, setting.grid) + setting.grid
    realigns = start % setting.grid != 0 and not (inside and policy.internal_checkpoint == "final chunk")
    if realigns and (policy.aligns_to_prefill_end or boundary <= last):
        best = nearer(start, best, boundary)
    best = nearer(start, best, last)
    tail = partial_tail(policy, setting, prompt)
    # 0.29 keeps the tail stop even where the state is saved inside the chunk.
    if inside and policy.internal_checkpoint == "final chunk":
        tail = 0
    best = nearer(start, best, tail_stop(prompt, last, tail))
    if start < junction < end:
        best = nearer(start, best, junction_stop(setting, start, prompt, junction))
    return best


def nearer(start: int, end: int, stop: int) -> int:
    """``stop`` where it lies strictly between ``start`` and ``end``, else ``end``."""
    return stop if start < stop < end else end
