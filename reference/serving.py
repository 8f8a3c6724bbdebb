"""What a hit reads: whether a group's cached blocks serve a hit at a position, said without how a lookup searches."""

from __future__ import annotations

from reference.arithmetic import floor_to
from reference.geometry import Group, first_read
from reference.lookup import Present


def given_back(group: Group, alignment: int) -> int:
    """The tokens beyond a hit that are matched and computed again under EAGLE. Mamba matches nothing beyond."""
    if not group.drops or group.kind == "mamba":
        return 0
    return min(alignment, group.block) if group.kind == "full" else group.block


def served(group: Group, present: Present, position: int, beyond: int, hash_block: int) -> bool:
    """Whether a group has what a hit at ``position`` reads: for Mamba the state there, for a sliding window each
    block with one of the ``window - 1`` tokens before it, for chunked-local attention each block of the attention chunk
    before it, for full attention all tokens before it; and, for attention, the next ``beyond`` tokens, too. In tokens.
    """
    if position == 0:
        return True
    if group.kind == "mamba":
        return present(position)
    end = position + beyond
    if group.kind == "full":
        return all_tokens_held(group.block, present, end, hash_block)
    first = first_read(group, position)
    return all(present(number * group.block) for number in range(first // group.block + 1, end // group.block + 1))


def all_tokens_held(block: int, present: Present, end: int, hash_block: int) -> bool:
    """Whether full attention holds the first ``end`` tokens: each whole block, and a block's part that goes on as far
    or farther."""
    whole = floor_to(end, block)
    if not all(present(position) for position in range(block, whole + 1, block)):
        return False
    return end == whole or any(present(position) for position in range(end, whole + block + 1, hash_block))
