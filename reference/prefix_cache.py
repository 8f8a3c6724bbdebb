"""The prefix cache over the pool: what a request finds in it, and what of a request enters it."""

from __future__ import annotations

from dataclasses import dataclass

from reference import holdings, lookup, tails
from reference.arithmetic import ceil_div
from reference.decisions import Decisions
from reference.geometry import hashed_tokens
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
            self._cache_blocks(running, number, within)
            self._cache_tail(running, number, within)

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
            elif group.kind == "mamba" and self.pool.first_hash(block) is not None:
                # Releases take the hash that a block had before for one of this step.
                self.pool.named_this_step.add(self.pool.first_hash(block))
        running.held[number].cached = end

    def _cache_tail(self, running: Running, number: int, tokens: int) -> None:
        """The prompt's last hash boundary, inside a block."""
        group, table, policy = self.shape.groups[number], running.tables[number], self.shape.policy
        setting = self.shape.setting
        if group.kind in ("swa", "chunked"):
            return
        if group.kind == "full":
            if group.block == setting.hash_block:
                return
            position = tails.full_tail(policy, group, running.request.prompt, setting.hash_block, self._hashed(running))
            if position > tokens:
                return
        else:
            position = tails.mamba_tail(
                policy, group, running.request.prompt, setting.hash_block, setting.block_drop, setting.lookahead
            )
            if position != tokens:
                return
        column = ceil_div(position, group.block) - 1
        if position == 0 or column >= len(table) or table[column] == NULL_BLOCK:
            return
        block = table[column]
        digest = running.request.prefixes[position + setting.lookahead]
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

    def _name(self, running: Running, number: int, block: int, position: int) -> None:
        digest = running.request.prefixes[position + self.shape.setting.lookahead]
        self.pool.name(running.request.name, number, block, position, digest)
