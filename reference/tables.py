"""The block tables: what a request holds in each group, adopts, takes and gives back.

One call gives a request the blocks of its next chunk. In order: blocks that are behind it go back, the
blocks of a hit are adopted, new ones are taken, full ones are offered to the prefix cache.
"""

from __future__ import annotations

from reference import admission, exports, holdings
from reference.admission import Share
from reference.decisions import Decisions
from reference.holdings import Change
from reference.listener import Listener
from reference.pool import Pool
from reference.prefix_cache import Found, PrefixCache
from reference.request import UNCHANGED, Running
from reference.shape import Shape
from reference.split import prefill_end
from reference.worker import NULL_BLOCK


class Tables:
    """The tables of all requests over one pool.

    ``held_most``: see ``admission.held_most``. ``copies``: per group, those that this step's worker must make.
    """

    def __init__(self, shape: Shape, decisions: Decisions, listener: Listener, pool: Pool, cache: PrefixCache) -> None:
        self.shape = shape
        self.decisions = decisions
        self.listener = listener
        self.pool = pool
        self.cache = cache
        self.held_most = admission.held_most(shape.groups, shape.budget, shape.steps_unseen, shape.model_length)
        # All Mamba groups have one block size, and it is the split's grid.
        self.reservations = exports.Reservations(shape.policy, shape.setting, shape.setting.grid, shape.retention)
        self.copies: list[list[tuple[int, int]]] = [[] for _ in shape.groups]

    # One step.

    def open_step(self) -> None:
        """What is hashed from here on is written by the step that now begins."""
        self.pool.named_this_step.clear()

    def close_step(self) -> list[tuple[int, int]]:
        """The copies of the step. No later step can spoil their ends, so these are held no longer."""
        copies = [copy for copies in self.copies for copy in copies]
        self.pool.free(block for copy in copies for block in copy)
        self.copies = [[] for _ in self.shape.groups]
        return self.decisions.copies(copies)

    # Blocks for a chunk.

    def admit(self, running: Running, found: Found, tokens: int, others_run: bool) -> bool:
        """Give a waiting request its hit and the blocks of its first chunk; False if it must wait."""
        usable = len(self.pool.free_list) - (self.shape.watermark_blocks if others_run else 0)
        shares = [self._offered(number, found) for number in range(len(self.shape.groups))]
        whole = None
        if self.shape.reserves_full_sequence:
            of_all = self._saving(running, shares, found.hit, running.known)
            whole = self._needed(of_all, running.known, running.known, self.held_most)
        return self._give(running, found, tokens, shares, whole, usable)

    def extend(self, running: Running, tokens: int) -> bool:
        """Give a running request the blocks of its next chunk; False if there are too few."""
        self._release_passed(running)
        shares = [Share(held.columns, copies=held.tail >= 0, started=held.started) for held in running.held]
        return self._give(running, None, tokens, shares, None, len(self.pool.free_list))

    def _give(
        self, running: Running, found: Found | None, tokens: int, shares: list[Share], whole: int | None, usable: int
    ) -> bool:
        """The blocks of a chunk, if there are so many; what they hold may then enter the cache."""
        hit = found.hit if found else 0
        start = running.computed + hit
        end = start + tokens
        shares = self._saving(running, shares, start, end)
        needed = self._needed(shares, end, end + self.shape.drafts)
        waits = any(share.unwritten or share.copies_unwritten for share in shares)
        fits = self.decisions.admits_by_blocks(whole, needed, usable, self.decisions.waits_for(waits))
        if fits and found:
            self._adopt(running, found)
        if fits:
            self._grow(running, found, end, shares)
            self._note_saved(running, start, end, shares)
        self._settle(running)
        if fits:
            self.cache.offer(running, min(end, running.known))
        counted = needed if fits or whole is None or whole <= usable else whole
        self.listener.allocated(running.request.name, start, tokens, hit, fits, counted)
        return fits

    def _offered(self, number: int, found: Found) -> Share:
        """What a hit gives one group.

        Attention may read what another request writes in the same step; a state, or the source of a copy, may not.
        """
        group, columns = self.shape.groups[number], found.columns[number]
        copies = bool(columns) and found.hit % group.block != 0
        unwritten = bool(columns) and self.pool.first_hash(columns[-1]) in self.pool.named_this_step
        return Share(
            columns=len(columns),
            reclaimed=sum(block in self.pool.free_list for block in columns),
            copies=copies,
            unwritten=unwritten and group.kind == "mamba",
            copies_unwritten=unwritten and copies,
        )

    def _saving(self, running: Running, shares: list[Share], start: int, end: int) -> list[Share]:
        """The shares, with the block that a Mamba group reserves for a state saved inside the tokens up to ``end``."""
        shape = self.shape
        if not shape.saves:
            return shares
        finish = prefill_end(running.request.prompt, running.known)
        if not self.reservations.reserve(start, end, finish):
            return shares
        column = exports.saved_column(end, shape.setting.grid)
        return [
            share.saving(group.kind == "mamba" and holdings.is_open(shape.policy, held, column, shape.drafts))
            for group, held, share in zip(shape.groups, running.held, shares, strict=True)
        ]

    def _note_saved(self, running: Running, start: int, end: int, shares: list[Share]) -> None:
        """Remember the state that is saved inside a chunk, if its position is known when it is planned."""
        running.saved = None
        if any(share.saves for share in shares):
            finish = prefill_end(running.request.prompt, running.known)
            running.saved = self.reservations.saved(start, end, finish)

    def _needed(self, shares: list[Share], end: int, slots: int, most: list[int | None] | None = None) -> int:
        """Free blocks used up by tokens up to ``end``; see ``admission.used_up``."""
        shape = self.shape
        counted = [self.decisions.counted(share) for share in shares]
        return admission.used_up(shape.policy, shape.groups, counted, end, slots, shape.drafts, most)

    def _adopt(self, running: Running, found: Found) -> None:
        """Take the blocks of the hit; all groups' before any new block is taken, which might evict them."""
        running.computed, running.junction = found.hit, found.junction
        for number, group in enumerate(self.shape.groups):
            columns = found.columns[number]
            if columns:
                self._change(running, number, holdings.adopt(group, running.held[number], found.hit, columns))
                self.pool.touch([block for block in columns if block != NULL_BLOCK])

    def _release_passed(self, running: Running) -> None:
        """Give back the blocks that no later chunk reads, the last ones first.

        What steps in flight compute may be taken back, so it counts as not computed.
        """
        computed = max(running.computed - running.in_flight, 0)
        for number, group in enumerate(self.shape.groups):
            table, held = running.tables[number], running.held[number]
            for columns in self.decisions.gives_back(self.shape.policy, group, held, computed):
                self.pool.free([table[column] for column in columns])
                for column in columns:
                    del held.blocks[column]
                self._change(running, number, dict.fromkeys(columns, NULL_BLOCK))

    def _grow(self, running: Running, found: Found | None, end: int, shares: list[Share]) -> None:
        """New blocks, group by group, and the copies of blocks that are shared or whose hash must stay.

        A hit that ended inside a block goes on in a copy of its own. A state inside a block that is in the cache, and
        that this chunk would overwrite, stays where it is, for the worker's table can only be appended to: the cache
        gets the copy.
        """
        slots, spare = end + self.shape.drafts, self.shape.drafts
        for number, group in enumerate(self.shape.groups):
            table, held = running.tables[number], running.held[number]
            inside, tail = -1, held.tail
            if found and table and found.hit % group.block != 0:
                inside = found.hit // group.block
            source = table[inside] if inside >= 0 else table[tail] if tail >= 0 else NULL_BLOCK
            saves, take = shares[number].saves, self.pool.take
            change, copy = holdings.grow(self.shape.policy, group, held, end, slots, spare, inside, take, saves)
            if copy != NULL_BLOCK:
                self.copies[number].append((source, copy))
                if tail >= 0:
                    self.pool.move_names(source, copy)
                self.pool.pin(source if tail >= 0 else copy)
            self._change(running, number, change)

    def _change(self, running: Running, number: int, change: Change) -> None:
        """Bring a table up to date."""
        table = running.tables[number]
        for column, block in sorted(change.items()):
            table[column : column + 1] = [block]
        running.changed[number] = min(running.changed[number], min(change, default=UNCHANGED))

    def _settle(self, running: Running) -> None:
        """Say what changed in the request's tables."""
        for number, first in enumerate(running.changed):
            if first != UNCHANGED:
                blocks = running.tables[number][first:]
                self.listener.table_changed(running.request.name, number, first, blocks)
                running.changed[number] = UNCHANGED

    # The end of a request's stay.

    def release(self, running: Running) -> None:
        """Give everything back, each group's last blocks first, for they are the least likely to be hit."""
        for number, table in enumerate(running.tables):
            if table:
                self.pool.free(self.decisions.released(table))
                self.listener.table_changed(running.request.name, number, 0, ())
        running.start_over()
