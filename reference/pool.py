"""The block pool: references, the free list in order of eviction, and the hashes.

Block 0, the null block, stands for "none" and is never given out. The free list is taken from its front. A
block freed with a hash goes to the back, so that the least recently used hash is lost first; one without a
hash goes to the front, it is of no use to anybody.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from reference.decisions import Decisions
from reference.listener import Listener
from reference.worker import NULL_BLOCK

Hash = tuple[int, int, int]
"""A hash on a block: (group, digest, position), the position being the tokens that it stands for."""


class Pool:
    """``count`` blocks, the null block included."""

    def __init__(self, count: int, decisions: Decisions, listener: Listener) -> None:
        self.decisions = decisions
        self.listener = listener
        self.references = [0] * count
        self.free_list: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, count))
        self.hashes: dict[int, list[Hash]] = {}
        self.holders: dict[tuple[int, int], list[int]] = {}
        self.named_this_step: set[tuple[int, int] | None] = set()

    def take(self, count: int) -> list[int]:
        """Give out ``count`` free blocks, each with one reference and without its old hashes."""
        if count > len(self.free_list):
            raise RuntimeError(f"{count} blocks were asked for, {len(self.free_list)} are free")
        taken = []
        for _ in range(count):
            block = self.decisions.next_free(self.free_list)
            del self.free_list[block]
            if self.decisions.forgets_on_take(block):
                self.forget(block)
            self.references[block] = 1
            taken.append(block)
        if taken:
            self.listener.took(taken)
        return taken

    def touch(self, blocks: Sequence[int]) -> None:
        """One more reference each; a free block is free no longer."""
        touched = self.decisions.touched(blocks)
        for block in touched:
            self.free_list.pop(block, None)
            self.references[block] += 1
        if touched:
            self.listener.touched(touched)

    def free(self, blocks: Iterable[int]) -> None:
        """Give back one reference each, in the order in which the blocks may be evicted."""
        freed = [block for block in blocks if block != NULL_BLOCK]
        if freed:
            self.listener.freed(freed)
            self._give_back(freed)

    def pin(self, block: int) -> None:
        """A reference that no table holds, so that a block survives until it was copied."""
        self.listener.pinned((block,), 1)
        self.free_list.pop(block, None)
        self.references[block] += 1

    def _give_back(self, blocks: Sequence[int]) -> None:
        unnamed = []
        for block in blocks:
            self.references[block] = self.decisions.references_after_free(self.references[block])
            if self.references[block] != 0:
                continue
            if block in self.hashes:
                self.free_list[block] = None
            else:
                unnamed.append(block)
        for block in reversed(unnamed):
            self.free_list[block] = None
            self.free_list.move_to_end(block, last=False)

    def holds(self, group: int, digest: int) -> bool:
        """Whether a block of ``group`` has this hash."""
        return (group, digest) in self.holders

    def find(self, group: int, digest: int) -> int:
        """A block of ``group`` with this hash, the one named first; the null block if there is none."""
        holders = self.holders.get((group, digest))
        return holders[0] if holders else NULL_BLOCK

    def position(self, block: int) -> int:
        """The position of a block's first hash, 0 without any."""
        hashes = self.hashes.get(block)
        return hashes[0][2] if hashes else 0

    def first_hash(self, block: int) -> tuple[int, int] | None:
        """Group and digest of a block's first hash."""
        hashes = self.hashes.get(block)
        return hashes[0][:2] if hashes else None

    def name(self, request: str, group: int, block: int, position: int, digest: int) -> None:
        """Give a block a hash; it keeps those that it has."""
        self.hashes.setdefault(block, []).append((group, digest, position))
        self.holders.setdefault((group, digest), []).append(block)
        self.named_this_step.add((group, digest))
        self.listener.named(request, group, block, position, digest)

    def named(self, group: int, block: int, digest: int) -> bool:
        """Whether this very block has this hash."""
        return block in self.holders.get((group, digest), ())

    def forget(self, block: int) -> list[Hash]:
        """Take all hashes off a block; returns them."""
        hashes = self.hashes.pop(block, None)
        if hashes is None:
            return []
        for group, digest, _ in hashes:
            holders = self.holders[group, digest]
            holders.remove(block)
            if not holders:
                del self.holders[group, digest]
        self.listener.evicted(block)
        return hashes

    def move_names(self, source: int, target: int) -> None:
        """The hashes of ``source`` name ``target`` from now on."""
        for group, digest, position in self.forget(source):
            self.name("", group, target, position, digest)

    def reset(self) -> bool:
        """Take all hashes off all blocks, if no block is in use; whether it was done."""
        if not self.decisions.resets(any(self.references)):
            return False
        self.hashes.clear()
        self.holders.clear()
        return True
