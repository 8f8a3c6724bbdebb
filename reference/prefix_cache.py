"""The prefix cache over the pool: what a request finds in it, and what of a request enters it."""

from __future__ import annotations

from dataclasses import dataclass

from reference import holdings, lookup, tails
from reference.arithmetic import ceil_div
from reference.decisions import Decisions
from reference.geometry import Group, hashed_tokens
from reference.listener import Listener
from reference.pool import Pool
from reference.request import Running
from reference.shape import Shape
from reference.worker import NULL_BLOCK


@dataclass(frozen=True)
class Found:
    """What a lookup found: the hit in tokens, the junction, and per group the blocks of the hit's columns."""

    hit: int
    junction: int
    columns: list[list[int]]


class PrefixCache:
    """The hashes on the blocks of a pool, by what they stand for."""

    def __init__(self, shape: Shape, decisions: Decisions, listener: Listener, pool: Pool) -> None:
        self.shape = shape
        self.decisions = decisions
        self.listener = listener
        self.pool = pool

    # What a request finds.

    def find(self, running: Running) -> Found:
        """Look a request up."""
        groups = self.shape.groups
        hit = junction = 0
        if self.shape.caching and self.decisions.looks_up(running.request.skips_lookup):
            presences = [self._presence(running, number) for number in range(len(groups))]
            items = [lookup.LookupGroup(*pair) for pair in zip(groups, presences, strict=True)]
            hit, junction = self.decisions.hit_and_junction(self.shape, items, running.known, self._hashed(running))
        columns = [self._columns(running, number, hit) for number in range(len(groups))]
        self.listener.looked_up(running.request.name, running.known, hit, junction, columns)
        if not self.decisions.adopts(hit):
            return Found(0, junction, [[] for _ in groups])
        return Found(hit, junction, columns)

    def _presence(self, running: Running, group: int) -> lookup.Present:
        ids, known, holders = running.request.prefixes, running.known, self.pool.holders
        lookahead = self.shape.setting.lookahead

        def present(tokens: int) -> bool:
            return tokens + lookahead <= known and (group, ids[tokens + lookahead]) in holders

        return present

    def _columns(self, running: Running, number: int, hit: int) -> list[int]:
        """The blocks that serve a hit in one group; null where none is needed."""
        if hit == 0:
            return []
        group = self.shape.groups[number]
        width = ceil_div(hit, group.block)
        columns = [NULL_BLOCK] * width
        for column in range(holdings.passed_columns(group, hit), width):
            end = (column + 1) * group.block
            positions = [end] if end <= hit else [hit]
            if group.kind == "full" and end > hit:
                # Any block that holds more of the same tokens serves as well.
                positions = list(range(end, hit - 1, -self.shape.setting.hash_block))
            for position in positions:
                if columns[column] == NULL_BLOCK:
                    columns[column] = self._holder(running, number, position)
        return columns

    def _holder(self, running: Running, number: int, position: int) -> int:
        """A block that is hashed as the request's first ``position`` tokens."""
        reach = position + self.shape.setting.lookahead
        return self.pool.find(number, running.request.prefixes[reach]) if reach <= running.known else NULL_BLOCK

    # What enters.

    def offer(self, running: Running, tokens: int) -> None:
        """The request's first ``tokens`` tokens may enter the prefix cache."""
        if not self.shape.caching:
            return
        for number in range(len(self.shape.groups)):
            within = self._cacheable(number, tokens)
            self.listener.offered(running.request.name, number, within)
            first = running.held[number].cached
            self._cache_blocks(running, number, within)
            if running.saved is not None and self.shape.groups[number].kind == "mamba":
                self._cache_saved(running, number, within, *running.saved)
            else:
                self._cache_tail(running, number, within)
            self._note_written(running, number, first)

    def _cacheable(self, number: int, tokens: int) -> int:
        """How many tokens one group may cache."""
        setting, groups = self.shape.setting, self.shape.groups
        whole_units = len(groups) > 1 and not setting.partial_hits
        return self.decisions.cacheable(groups[number], tokens, setting.scheduler_block, whole_units)

    def _hashed(self, running: Running) -> int:
        setting = self.shape.setting
        return hashed_tokens(running.known, setting.hash_block, setting.lookahead)

    def _cache_blocks(self, running: Running, number: int, tokens: int) -> None:
        """Full blocks that are new and that retention keeps. What is passed over once stays out."""
        group, table = self.shape.groups[number], running.tables[number]
        reach = min(tokens, self._hashed(running))
        first, end = running.held[number].cached, reach // group.block
        if end <= first:
            return
        positions = self.decisions.boundaries(self.shape, group, running.request.prompt, running.junction)
        for column in range(first, min(end, len(table))):
            block = table[column]
            if block != NULL_BLOCK and self.decisions.keeps(self.shape, group, column, positions, first):
                self.pool.forget(block)
                self._name(running, number, block, (column + 1) * group.block)
        running.held[number].cached = end

    def _note_written(self, running: Running, number: int, first: int) -> None:
        """Releases take the hash that a state had before for one of this step, from the ``first`` new column on."""
        if self.shape.groups[number].kind != "mamba":
            return
        for block in running.tables[number][first : running.held[number].cached]:
            if self.pool.first_hash(block) is not None:
                self.pool.named_this_step.add(self.pool.first_hash(block))

    def _cache_saved(self, running: Running, number: int, tokens: int, position: int, column: int) -> None:
        """A state that is saved inside the chunk, if it is kept: in its column, whatever that was to hold."""
        shape, prompt, junction = self.shape, running.request.prompt, running.junction
        block = running.tables[number][column]
        if not self.decisions.keeps_saved(shape, shape.groups[number], position, prompt, junction, tokens):
            self.pool.forget(block)
        elif self.pool.position(block) != position:
            self.pool.forget(block)
            self._name(running, number, block, position)

    def _cache_tail(self, running: Running, number: int, tokens: int) -> None:
        """A position inside a block: the prompt's last hash boundary, or its exact junction."""
        group, table, policy = self.shape.groups[number], running.tables[number], self.shape.policy
        position = self._tail(running, group, tokens)
        column = ceil_div(position, group.block) - 1
        if position == 0 or column >= len(table) or table[column] == NULL_BLOCK:
            return
        block = table[column]
        digest = running.request.prefixes[position + self.shape.setting.lookahead]
        if self.pool.named(number, block, digest):
            if group.kind == "mamba" and not policy.names_tail_once:
                self.pool.named_this_step.add((number, digest))
            return
        if group.kind == "mamba" and position <= running.computed:
            # An earlier chunk ended there, and what it left may be overwritten by now.
            return
        if self.pool.position(block) < position:
            self.pool.forget(block)
        self._name(running, number, block, position)
        if group.kind == "mamba" and position % group.block != 0:
            running.held[number].tail = column

    def _tail(self, running: Running, group: Group, tokens: int) -> int:
        """The position inside a block that enters the cache with the first ``tokens`` tokens; 0 for none."""
        policy, setting, prompt = self.shape.policy, self.shape.setting, running.request.prompt
        unit = setting.hash_block
        if group.kind == "full" and group.block != unit:
            position = tails.full_tail(policy, group, prompt, unit, self._hashed(running))
            return position if position <= tokens else 0
        if group.kind != "mamba":
            return 0
        if tails.at_exact_junction(setting, tokens, running.junction, running.computed, prompt):
            return tokens
        position = tails.mamba_tail(policy, group, prompt, unit, setting.block_drop, setting.lookahead)
        return position if position == tokens else 0

    def _name(self, running: Running, number: int, block: int, position: int) -> None:
        digest = running.request.prefixes[position + self.shape.setting.lookahead]
        self.pool.name(running.request.name, number, block, position, digest)
