"""The shape of a cache: its groups and the units that follow from their block sizes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from reference.arithmetic import ceil_div, floor_to

Kind = Literal["full", "swa", "mamba", "chunked"]


@dataclass(frozen=True)
class Group:
    """A KV-cache group: layers that share a block table.

    ``block``: block size in tokens. ``window``: attention window in tokens, for ``swa`` only (0
    otherwise). ``drops``: under the EAGLE drop this group gives up (attention) its last matched block.
    ``attention_chunk``: for ``chunked`` only (0 otherwise), a multiple of the block in tokens: a token attends to those
    before it in its own attention chunk, and the chunks follow one another from the first token on.
    """

    kind: Kind
    block: int
    window: int = 0
    drops: bool = False
    attention_chunk: int = 0

    @property
    def spec(self) -> tuple[str, int, int, int]:
        """What makes two groups look alike to the lookup, which then treats them as one."""
        return (self.kind, self.block, self.window, self.attention_chunk)


def scheduler_block(blocks: Iterable[int]) -> int:
    """The least common multiple of the groups' ``blocks``, in tokens: what whole-block hits align to."""
    return math.lcm(*blocks)


def hashed_tokens(known: int, hash_block: int, lookahead: int) -> int:
    """How many of ``known`` tokens have hashes; each covers ``lookahead`` tokens beyond its hash block."""
    return floor_to(max(known - lookahead, 0), hash_block)


def blocks_needed_for_hit(group: Group) -> int:
    """*Need*: how many blocks in a row a hit of a sparse group takes.

    1 for Mamba, whose one block holds the whole state. For a sliding window the window less the token
    that is about to be computed, in blocks, and one more where EAGLE peeks a block ahead.
    Full attention needs every block, and chunked-local attention those of the attention chunk so far
    (``chunk_start``), so they have no such number (ValueError).
    """
    if group.kind == "mamba":
        return 1
    if group.kind == "swa":
        return ceil_div(group.window - 1, group.block) + (1 if group.drops else 0)
    raise ValueError("a full-attention hit needs every block of the prefix, a chunked-local one those of its chunk")


def chunk_start(group: Group, position: int) -> int:
    """Where the attention chunk of the token at ``position`` begins: that token reads nothing before it. In tokens."""
    return floor_to(position, group.attention_chunk)


def first_read(group: Group, position: int) -> int:
    """The first position that the token at ``position`` reads in an attention group, in tokens."""
    if group.kind == "swa":
        return max(position - group.window + 1, 0)
    return chunk_start(group, position) if group.kind == "chunked" else 0
