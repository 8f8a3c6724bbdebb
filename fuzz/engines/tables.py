"""The block tables of the reference engine: what a request holds in each group, adopts, takes and caches.

One call gives a request the blocks of its next chunk. In order: blocks that are behind it go back, the
blocks of a hit are adopted, new ones are taken, full ones enter the prefix cache. Attention groups hold a
block for every started block of their slots. A Mamba group holds the block of the running state, in the
column where the chunk ends, and one more per draft token; columns that a chunk ran past stay null.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fuzz.engines.pool import NULL_BLOCK, Emit, Pool, PoolRules
from fuzz.engines.shape import Shape
from oracle.scenario import Request
from oracle.trace import Allocate, Cache, Lookup, Table
from reference import boundaries, lookup, retention, split, tails
from reference.arithmetic import ceil_div
from reference.geometry import Group, hashed_tokens

UNCHANGED = 1 << 60


@dataclass
class Running:
    """One request inside the engine. Sizes in tokens.

    ``ids``: prefix ids of the prompt and of all output to come. ``known``: tokens so far, ``computed``:
    those with keys, values and state. ``drafts``: proposed and not verified yet. ``verified``: verifying
    steps so far. Per group: ``tables``; ``cached``, how many leading blocks were considered for the cache;
    ``passed``, how many leading columns were given back; ``tail``, the column whose block holds a hash
    inside a block that the next chunk would overwrite (-1: none); ``changed``, the first table entry that
    the trace does not know yet; ``delivered``, how many entries the worker has.
    """

    request: Request
    arrival: int
    ids: list[int]
    prompt: int
    known: int
    groups: int
    computed: int = 0
    junction: int = 0
    drafts: int = 0
    verified: int = 0
    tables: list[list[int]] = field(default_factory=list)
    cached: list[int] = field(default_factory=list)
    passed: list[int] = field(default_factory=list)
    tail: list[int] = field(default_factory=list)
    changed: list[int] = field(default_factory=list)
    delivered: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.start_over()

    def start_over(self) -> None:
        """Hold nothing: new, preempted or ended."""
        self.computed = self.drafts = 0
        self.tables = [[] for _ in range(self.groups)]
        self.cached = [0] * self.groups
        self.passed = [0] * self.groups
        self.tail = [-1] * self.groups
        self.changed = [UNCHANGED] * self.groups
        self.delivered = [0] * self.groups


@dataclass(frozen=True)
class Found:
    """What a lookup found: the hit in tokens, the junction, and per group the blocks of the hit's columns."""

    hit: int
    junction: int
    columns: list[list[int]]


class Rules(PoolRules):
    """The decisions of the engine, one a method, each in its right form. A planted fault overrides one."""

    def cacheable(self, group: Group, tokens: int, scheduler_block: int, whole_units: bool) -> int:
        """How many of the first ``tokens`` tokens a group may cache."""
        return retention.cacheable_tokens(group, tokens, scheduler_block, whole_units)

    def budget(self, budget: int) -> int:
        """The tokens that one step may hold."""
        return budget

    def hit_and_junction(
        self, shape: Shape, items: list[lookup.LookupGroup], known: int, hashed: int
    ) -> tuple[int, int]:
        """What a request of ``known`` tokens finds, ``hashed`` of them hashed."""
        setup = shape.setup
        if len(items) == 1:
            found = lookup.single_hit(items[0], known)
        else:
            found = lookup.hybrid_hit(shape.policy, items, known, hashed, setup.alignment, setup.hash_block)
        return found.hit, found.junction

    def chunk(self, shape: Shape, start: int, asked: int, prompt: int, known: int, junction: int) -> int:
        """How many of the tokens asked for a chunk gets, in a model with recurrent state."""
        return split.split(shape.policy, shape.setting, start, asked, prompt, known, junction)

    def admits(self, hit: int, others_run: bool) -> bool:
        """Whether a request that waits may be admitted at all."""
        return True

    def victim(self, running: int, served: int) -> int:
        """The place of the request that is preempted, of so many ``running``, of which ``served`` have had a chunk."""
        return running - 1

    def waits_for(self, named_this_step: bool) -> bool:
        """Whether a hit must wait for the next step: what it copies from is only written in this one."""
        return named_this_step

    def passed_columns(self, group: Group, computed: int) -> int:
        """How many leading columns a request with ``computed`` tokens never reads again."""
        if group.kind == "swa":
            return max(computed - group.window + 1, 0) // group.block
        return max(computed - 1, 0) // group.block if group.kind == "mamba" else 0

    def boundaries(self, shape: Shape, group: Group, prompt: int, junction: int) -> tuple[int, ...]:
        """The boundary list of a request for one group."""
        setup = shape.setup
        drops = any(setup.drop_groups)
        return boundaries.boundary_list(shape.policy, group, prompt, junction, setup.scheduler_block, drops)

    def keeps(self, shape: Shape, group: Group, number: int, positions: tuple[int, ...], first: int) -> bool:
        """Whether a full block enters the prefix cache, wherever the blocks that are considered with it begin."""
        return retention.keep(group, number, shape.mask_alignment, shape.setup.retention, positions)

    def copies(self, copies: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """The copies that the worker is told to make."""
        return copies


class Tables:
    """The tables of all requests over one pool. ``copies``: those that this step's worker must make."""

    def __init__(self, shape: Shape, rules: Rules, emit: Emit) -> None:
        self.shape = shape
        self.rules = rules
        self.emit = emit
        self.pool = Pool(shape.scenario.geometry.blocks, rules, emit)
        self.copies: list[tuple[int, int]] = []
        self.sources: list[int] = []
        self.moved: list[int] = []

    # One step.

    def open_step(self) -> None:
        """What is hashed from here on is written by the step that now begins."""
        self.pool.named_this_step.clear()

    def close_step(self) -> list[tuple[int, int]]:
        """The copies of the step. No later step can spoil their ends, so these are held no longer."""
        copies = self.rules.copies(self.copies)
        self.pool.unpin(self.sources)
        self.pool.free(self.moved)
        self.copies, self.sources, self.moved = [], [], []
        return copies

    # The lookup.

    def find(self, request: Running) -> Found:
        """Look a request up."""
        groups = self.shape.groups
        hit = junction = 0
        if self.shape.scenario.features.caching:
            presences = [self._presence(request, number) for number in range(len(groups))]
            items = [lookup.LookupGroup(*pair) for pair in zip(groups, presences, strict=True)]
            hit, junction = self.rules.hit_and_junction(self.shape, items, request.known, self._hashed(request))
        columns = [self._columns(request, number, hit) for number in range(len(groups))]
        blocks = tuple(tuple(column) for column in columns)
        self.emit(Lookup(request.request.id, request.known, hit, junction, blocks))
        return Found(hit, junction, columns)

    def _presence(self, request: Running, group: int) -> lookup.Present:
        ids, known, holders = request.ids, request.known, self.pool.holders
        lookahead = self.shape.setup.lookahead_hash

        def present(tokens: int) -> bool:
            return tokens + lookahead <= known and (group, ids[tokens + lookahead]) in holders

        return present

    def _columns(self, request: Running, number: int, hit: int) -> list[int]:
        """The blocks that serve a hit in one group; null where none is needed."""
        if hit == 0:
            return []
        group = self.shape.groups[number]
        width = ceil_div(hit, group.block)
        columns = [NULL_BLOCK] * width
        for column in range(_first_column(group, hit), width):
            end = (column + 1) * group.block
            positions = [end] if end <= hit else [hit]
            if group.kind == "full" and end > hit:
                # Any block that holds more of the same tokens serves as well.
                positions = list(range(end, hit - 1, -self.shape.setup.hash_block))
            for position in positions:
                if columns[column] == NULL_BLOCK:
                    columns[column] = self._holder(request, number, position)
        return columns

    def _holder(self, request: Running, number: int, position: int) -> int:
        """A block that is hashed as the request's first ``position`` tokens."""
        reach = position + self.shape.setup.lookahead_hash
        return self.pool.find(number, request.ids[reach]) if reach <= request.known else NULL_BLOCK

    # Blocks for a chunk.

    def admit(self, request: Running, found: Found, tokens: int, others_run: bool) -> bool:
        """Give a waiting request its hit and the blocks of its first chunk; False if it must wait."""
        setup, features = self.shape.setup, self.shape.scenario.features
        start, end = found.hit, found.hit + tokens
        spare = setup.watermark_blocks if others_run else 0
        fits = not self._must_wait(found)
        if fits and features.reserve_full_sequence:
            fits = self._needed(request, found, request.known, request.known, True) + spare <= self._free
        if fits:
            fits = self._needed(request, found, end, end + setup.lookahead, False) + spare <= self._free
        if fits:
            self._adopt(request, found)
            self._grow(request, end, fresh=True)
            self._settle(request)
            self.cache(request, min(end, request.known))
        self.emit(Allocate(request.request.id, start, tokens, found.hit, fits))
        return fits

    def extend(self, request: Running, tokens: int) -> bool:
        """Give a running request the blocks of its next chunk; False if there are too few."""
        start, end = request.computed, request.computed + tokens
        self._release_passed(request)
        fits = self._needed(request, None, end, end + self.shape.setup.lookahead, False) <= self._free
        if fits:
            self._grow(request, end, fresh=False)
        self._settle(request)
        if fits:
            self.cache(request, min(end, request.known))
        self.emit(Allocate(request.request.id, start, tokens, 0, fits))
        return fits

    @property
    def _free(self) -> int:
        return len(self.pool.free_list)

    def _must_wait(self, found: Found) -> bool:
        """Whether the hit takes a state, or copies a block, that only this very step writes.

        Attention may read what another request writes in the same step; a state or a copy may not.
        """
        return any(
            self.rules.waits_for(columns[-1] in self.pool.named_this_step)
            for columns, group in zip(found.columns, self.shape.groups, strict=True)
            if columns and (group.kind == "mamba" or found.hit % group.block != 0)
        )

    def _needed(self, request: Running, found: Found | None, end: int, slots: int, whole: bool) -> int:
        """Free blocks that the next chunk uses up: new ones, and those of the hit that are free.

        The chunk ends at ``end``, attention needs ``slots`` slots. ``whole``: asked for the whole sequence,
        of which a sliding window never holds more than its window and one step.
        """
        total = 0
        for number, group in enumerate(self.shape.groups):
            columns = found.columns[number] if found else request.tables[number]
            inside = found is not None and bool(columns) and found.hit % group.block != 0
            if group.kind == "mamba":
                grown = ceil_div(end, group.block) + self.shape.drafts - len(columns)
                most = 1 + (self.shape.drafts if found else 0)
                total += min(max(grown, 0), most) + (inside or request.tail[number] >= 0)
            else:
                required = ceil_div(slots, group.block)
                if whole and group.kind == "swa":
                    reach = group.window - 1 + self.shape.scenario.limits.budget
                    required = min(required, ceil_div(reach, group.block) + 1)
                total += max(required - len(columns), 0) + inside
            if found:
                total += sum(block in self.pool.free_list for block in columns)
        return total

    def _adopt(self, request: Running, found: Found) -> None:
        """Take the blocks of the hit; all groups' before any new block is taken, which might evict them."""
        request.computed, request.junction = found.hit, found.junction
        for number, group in enumerate(self.shape.groups):
            columns = found.columns[number]
            if not columns:
                continue
            shared = [block for block in columns if block != NULL_BLOCK]
            if found.hit % group.block != 0 and shared:
                self.sources.append(shared.pop())
                self.pool.pin(self.sources[-1])
            if shared:
                self.pool.touch(shared)
            request.tables[number] = columns
            request.cached[number] = found.hit // group.block
            request.changed[number] = 0

    def _release_passed(self, request: Running) -> None:
        """Give back the blocks that no later chunk reads, the last ones first."""
        for number, group in enumerate(self.shape.groups):
            table, first = request.tables[number], request.passed[number]
            end = min(self.rules.passed_columns(group, request.computed), len(table))
            if end <= first:
                continue
            freed = [table[column] for column in range(end - 1, first - 1, -1) if table[column] != NULL_BLOCK]
            request.passed[number] = end
            if freed:
                self.pool.free(freed)
                table[first:end] = [NULL_BLOCK] * (end - first)
                request.changed[number] = min(request.changed[number], first)

    def _grow(self, request: Running, end: int, *, fresh: bool) -> None:
        """New blocks, group by group, and the private copies of blocks that are shared or named."""
        for number, group in enumerate(self.shape.groups):
            table, before = request.tables[number], len(request.tables[number])
            if fresh and request.computed % group.block != 0 and table:
                self._make_private(request, number)
            if request.tail[number] >= 0:
                self._keep_tail(request, number)
            if group.kind == "mamba":
                self._grow_states(request, number, end, fresh=fresh)
            else:
                slots = end + self.shape.setup.lookahead
                table += self.pool.take(max(ceil_div(slots, group.block) - before, 0))
            if len(table) > before:
                request.changed[number] = min(request.changed[number], before)

    def _make_private(self, request: Running, number: int) -> None:
        """A hit ended inside a block: the request writes on in a copy of its own."""
        table = request.tables[number]
        (copy,) = self.pool.take(1)
        self.copies.append((table[-1], copy))
        table[-1] = copy

    def _keep_tail(self, request: Running, number: int) -> None:
        """A state inside a block is in the cache, and this chunk would overwrite it: the cache gets a copy.

        The request stays where it is, for its worker's table can only be appended to.
        """
        source = request.tables[number][request.tail[number]]
        (copy,) = self.pool.take(1)
        self.pool.move_names(source, copy)
        self.copies.append((source, copy))
        self.moved.append(copy)
        request.tail[number] = -1

    def _grow_states(self, request: Running, number: int, end: int, *, fresh: bool) -> None:
        """Room for the state at ``end`` in its column, and after it one block per draft token.

        Spare blocks that the state moves past go along with it.
        """
        table, spare = request.tables[number], self.shape.drafts
        before = len(table)
        state_column = ceil_div(end, self.shape.groups[number].block) - 1
        table += [NULL_BLOCK] * (state_column - before)
        if not fresh:
            for column in range(before - spare, min(before, state_column)):
                table.append(table[column])
                table[column] = NULL_BLOCK
                request.changed[number] = min(request.changed[number], column)
        table += self.pool.take(max(state_column + 1 + spare - len(table), 0))

    def _settle(self, request: Running) -> None:
        """Say what changed in the request's tables."""
        for number, first in enumerate(request.changed):
            if first != UNCHANGED:
                blocks = tuple(request.tables[number][first:])
                self.emit(Table(request.request.id, number, first, blocks))
                request.changed[number] = UNCHANGED

    # Blocks for the cache.

    def cache(self, request: Running, tokens: int) -> None:
        """The request's first ``tokens`` tokens may enter the prefix cache."""
        if not self.shape.scenario.features.caching:
            return
        for number in range(len(self.shape.groups)):
            within = self._cacheable(number, tokens)
            self.emit(Cache(request.request.id, number, within))
            self._cache_blocks(request, number, within)
            self._cache_tail(request, number, within)

    def _cacheable(self, number: int, tokens: int) -> int:
        """How many tokens one group may cache."""
        setup, groups = self.shape.setup, self.shape.groups
        whole_units = len(groups) > 1 and not setup.partial_hits
        return self.rules.cacheable(groups[number], tokens, setup.scheduler_block, whole_units)

    def _hashed(self, request: Running) -> int:
        setup = self.shape.setup
        return hashed_tokens(request.known, setup.hash_block, setup.lookahead_hash)

    def _cache_blocks(self, request: Running, number: int, tokens: int) -> None:
        """Full blocks that are new and that retention keeps. What is passed over once stays out."""
        group, table = self.shape.groups[number], request.tables[number]
        reach = min(tokens, self._hashed(request))
        first, end = request.cached[number], reach // group.block
        if end <= first:
            return
        positions = self.rules.boundaries(self.shape, group, request.prompt, request.junction)
        for column in range(first, min(end, len(table))):
            block = table[column]
            if block != NULL_BLOCK and self.rules.keeps(self.shape, group, column, positions, first):
                self.pool.forget(block)
                self._name(request, number, block, (column + 1) * group.block)
        request.cached[number] = end

    def _cache_tail(self, request: Running, number: int, tokens: int) -> None:
        """The prompt's last hash boundary, inside a block."""
        group, table, policy = self.shape.groups[number], request.tables[number], self.shape.policy
        setup = self.shape.setup
        if group.kind == "swa":
            return
        if group.kind == "full":
            if group.block == setup.hash_block:
                return
            position = tails.full_tail(policy, group, request.prompt, setup.hash_block, self._hashed(request))
            if position > tokens:
                return
        else:
            position = tails.mamba_tail(
                policy, group, request.prompt, setup.hash_block, setup.block_drop, setup.lookahead_hash
            )
            if position != tokens:
                return
        column = ceil_div(position, group.block) - 1
        if position == 0 or column >= len(table) or table[column] == NULL_BLOCK:
            return
        block = table[column]
        if self.pool.named(number, block, request.ids[position + setup.lookahead_hash]):
            return
        if self.pool.position(block) < position:
            self.pool.forget(block)
        self._name(request, number, block, position)
        if group.kind == "mamba" and position % group.block != 0:
            request.tail[number] = column

    def _name(self, request: Running, number: int, block: int, position: int) -> None:
        digest = request.ids[position + self.shape.setup.lookahead_hash]
        self.pool.name(request.request.id, number, block, position, digest)

    # The end of a request's stay.

    def release(self, request: Running) -> None:
        """Give everything back, each group's last blocks first, for they are the least likely to be hit."""
        for number, table in enumerate(request.tables):
            if table:
                self.pool.free(reversed(table))
                self.emit(Table(request.request.id, number, 0, ()))
        request.start_over()


def _first_column(group: Group, hit: int) -> int:
    """The first table column that a hit needs: all, those of the window, or the one with the state."""
    if group.kind == "full":
        return 0
    if group.kind == "swa":
        return max(hit - group.window + 1, 0) // group.block
    return ceil_div(hit, group.block) - 1
