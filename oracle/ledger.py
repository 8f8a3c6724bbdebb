"""The ledger of blocks: who holds what, folded from the pool's own calls; rules A1 and A2.

References come from ``take``, ``touch``, ``free`` and ``pin``; holders from ``table``. The two are
independent accounts of the same thing, so they must agree whenever the engine is at rest.
"""

from __future__ import annotations

from collections.abc import Iterable

from oracle.case import Case, RequestState
from oracle.free_list import FreeList
from oracle.trace import Snapshot, Table


class Ledger:
    """Reference counts and holders per block; ``dirty`` blocks changed since the last check."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.references: dict[int, int] = {}
        self.holders: dict[int, int] = {}
        self.dirty: set[int] = set()
        self.reported: set[int] = set()
        self.free_list = FreeList(case)

    def take(self, blocks: Iterable[int]) -> None:
        """Blocks leave the free list: nobody may have a reference to them.

        Tables are not asked here: within a call they lag behind the pool.
        """
        blocks = tuple(blocks)
        self.case.judged("A2", len(blocks))
        for block in blocks:
            references = self.references.get(block, 0)
            if references != 0:
                self._report("A2", "take", block, f"it was handed out as free, and has {references} references")
            self.references[block] = 1
        self.dirty.update(blocks)
        self.free_list.take(blocks)

    def touch(self, blocks: Iterable[int]) -> None:
        """Blocks get a second holder: only the cache may hand out a block that somebody else may hold."""
        blocks = tuple(blocks)
        self.case.judged("A2", len(blocks))
        for block in blocks:
            if block not in self.case.index.by_block:
                self._report("A2", "touch", block, "it was shared, though no hash of it is in the cache")
        self.add(blocks, 1)

    def add(self, blocks: tuple[int, ...], delta: int) -> None:
        """Blocks get or lose references."""
        references = self.references
        released = []
        for block in blocks:
            references[block] = references.get(block, 0) + delta
            self.dirty.add(block)
            if references[block] == 0:
                released.append(block)
            if references[block] < 0:
                self._report("A1", "free", block, f"its reference count fell to {references[block]}")
                references[block] = 0
        if delta > 0:
            self.free_list.hold(blocks)
        else:
            self.free_list.give_back(released)

    def table(self, state: RequestState, record: Table) -> None:
        """A table changed from entry ``start`` on."""
        group, start, blocks = record.group, record.start, record.blocks
        table = state.tables[group]
        if not 0 <= group < len(state.tables) or start > len(table):
            raise IndexError(f"group {group}, entry {start} of a table of {len(table)}")
        holders = self.holders
        for block in table[start:]:
            if block:
                holders[block] = holders.get(block, 0) - 1
                self.dirty.add(block)
        table[start:] = blocks
        for block in blocks:
            if block:
                holders[block] = holders.get(block, 0) + 1
                self.dirty.add(block)

    def check(self, decision: str) -> None:
        """A1 and A2 for every block that changed since the last check.

        Asked when the engine is at rest: pins for copies last only within a call of ``schedule()``.
        """
        if not self.dirty:
            return
        self.case.judged("A1")
        self.case.judged("A2")
        for block in self.dirty:
            references, holders = self.references.get(block, 0), self.holders.get(block, 0)
            if references == 0 and holders > 0:
                self._report("A2", decision, block, f"it is free, and {holders} table entries hold it")
            elif references != holders:
                self._report(
                    "A1",
                    decision,
                    block,
                    f"its reference count is {references}, and {holders} table entries hold it",
                )
        self.dirty.clear()

    def _report(self, rule: str, decision: str, block: int, what: str) -> None:
        """One finding a block."""
        if block in self.reported:
            return
        self.reported.add(block)
        self.case.report(rule, decision, f"block {block}: {what}", block=block)

    def compare(self, snapshot: Snapshot) -> str:
        """How a snapshot differs from the folded state, in words; empty if it does not."""
        self.free_list.compare(snapshot.free)
        folded = {block: count for block, count in self.references.items() if count}
        if dict(snapshot.references) != folded:
            return f"reference counts differ on blocks {_differing(dict(snapshot.references), folded)}"
        free = sorted(snapshot.free)
        if free != [block for block in range(1, self.case.scenario.geometry.blocks) if block not in folded]:
            return "the free list is not, each once, the blocks without a reference"
        tables = {(request, group): list(blocks) for request, group, blocks in snapshot.tables if blocks}
        known = {
            (state.name, group): table
            for state in self.case.requests.values()
            for group, table in enumerate(state.tables)
            if table
        }
        if tables != known:
            odd = sorted(key for key in tables.keys() | known.keys() if tables.get(key) != known.get(key))
            return f"the tables of {odd[:3]} differ"
        cached = {(group, block, digest) for group, block, digest in snapshot.cached}
        index = {
            (entry.group, entry.block, entry.digest)
            for entries in self.case.index.by_block.values()
            for entry in entries
        }
        if cached != index:
            more, less = sorted(cached - index)[:3], sorted(index - cached)[:3]
            return f"the cache holds {more} beyond the trace, and lacks {less} of it"
        return ""


def _differing(left: dict[int, int], right: dict[int, int]) -> list[int]:
    """Keys on which two counts differ."""
    return sorted(block for block in left.keys() | right.keys() if left.get(block, 0) != right.get(block, 0))
