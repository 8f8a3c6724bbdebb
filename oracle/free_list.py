"""M4: the order in which free blocks become evictable, folded from the pool's own calls, and when all may be reset."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from oracle.case import Case


class FreeList:
    """The free blocks, next to be taken first.

    A call that gives blocks back puts those without a hash before all others, for they are of no use to anybody, and
    those with one behind; both keep the order of the call. Source: ``BlockPool.free_blocks``, all releases. With
    caching off releases differ, and there is nothing to evict: it is not judged.
    """

    def __init__(self, case: Case) -> None:
        self.case = case
        self.free = OrderedDict.fromkeys(range(1, case.scenario.geometry.blocks))
        self.lost = not case.scenario.features.caching

    def take(self, blocks: tuple[int, ...]) -> None:
        """Blocks are handed out: the first ones of the list."""
        if not self.lost and self.case.judged("M4", len(blocks)):
            for block, expected in zip(blocks, self.free, strict=False):
                if block != expected:
                    self._report("take", expected, block)
                    break
        self.hold(blocks)

    def hold(self, blocks: Iterable[int]) -> None:
        """Blocks are free no longer."""
        for block in blocks:
            self.free.pop(block, None)

    def give_back(self, blocks: list[int]) -> None:
        """Blocks whose last reference went, in the order of the call."""
        by_block = self.case.index.by_block
        for block in blocks:
            self.free[block] = None
        for block in reversed([block for block in blocks if block not in by_block]):
            self.free.move_to_end(block, last=False)

    def reset(self, *, done: bool) -> None:
        """The cache is to be emptied, which is done if and only if no block is in use."""
        all_free = len(self.free) == self.case.scenario.geometry.blocks - 1
        if self.case.judged("M4") and done != all_free:
            self.case.report(
                "M4",
                "reset",
                f"{'no block is' if all_free else 'blocks are'} in use when the prefix cache is to be reset",
                expected="a reset that is done" if all_free else "one that is refused",
                actual="done" if done else "refused",
            )

    def compare(self, free: tuple[int, ...]) -> None:
        """The whole list as a snapshot shows it."""
        if self.lost or not self.case.judged("M4") or free == tuple(self.free):
            return
        pairs = zip(free, self.free, strict=False)
        block, expected = next(((block, expected) for block, expected in pairs if block != expected), (0, 0))
        self._report("snapshot", expected, block)

    def _report(self, decision: str, expected: int, block: int) -> None:
        """One finding a trace: from here on the two lists are no longer alike."""
        self.lost = True
        self.case.report(
            "M4",
            decision,
            f"block {block} is next to be taken; by the order in which blocks were given back it is block {expected}",
            block=block,
            expected=f"block {expected}",
            actual=f"block {block}",
        )
