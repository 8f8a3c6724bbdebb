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
from reference import admission, boundaries, holdings, lookup, retention, split, tails
from reference.admission import Share
from reference.arithmetic import ceil_div
from reference.geometry import Group, hashed_tokens
from reference.holdings import Change, Holding
from reference.policy import Policy

UNCHANGED = 1 << 60


@dataclass
class Running:
    """One request inside the engine. Sizes in tokens.

    ``ids``: prefix ids of the prompt and of all output to come. ``known``: tokens so far, ``computed``:
    those with keys, values and state. ``drafts``: proposed and not verified yet. ``verified``: verifying
    steps so far; ``preemptions``: times that it was preempted. Per group: ``tables``; ``held``, what it holds;
    ``changed``, the first table entry that the trace does not know yet; ``delivered``, how many entries the worker has.
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
    preemptions: int = 0
    tables: list[list[int]] = field(default_factory=list)
    held: list[Holding] = field(default_factory=list)
    changed: list[int] = field(default_factory=list)
    delivered: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.start_over()

    def start_over(self) -> None:
        """Hold nothing: new, preempted or ended."""
        self.computed = self.drafts = 0
        self.tables = [[] for _ in range(self.groups)]
        self.held = [Holding() for _ in range(self.groups)]
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

    def counts_lookup(self, admitted: bool) -> bool:
        """Whether a lookup enters the statistics: when it is made, or when its request is ``admitted``."""
        return admitted

    def victim(self, running: int, served: int) -> int:
        """The place of the request that is preempted, of so many ``running``, of which ``served`` have had a chunk."""
        return running - 1

    def waits_for(self, named_this_step: bool) -> bool:
        """Whether a hit must wait for the next step: what it copies from is only written in this one."""
        return named_this_step

    def admits_by_blocks(self, whole: int | None, chunk: int, usable: int, unwritten: bool) -> bool:
        """Whether a request gets its blocks; see ``admission.refusal``."""
        return not admission.refusal(whole, chunk, usable, unwritten)

    def counted(self, share: Share) -> Share:
        """What a group has of a request, as it counts when the blocks are counted that are still needed."""
        return share

    def released(self, table: list[int]) -> list[int]:
        """The blocks of a table in the order in which a request that goes gives them back."""
        return table[::-1]

    def gives_back(self, policy: Policy, group: Group, held: Holding, computed: int) -> list[list[int]]:
        """The columns that a request with ``computed`` tokens gives back before its next chunk, by call."""
        return holdings.give_back_passed(policy, group, held, computed)

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
    """The tables of all requests over one pool. ``copies``: per group, those that this step's worker must make."""

    def __init__(self, shape: Shape, rules: Rules, emit: Emit) -> None:
        self.shape = shape
        self.rules = rules
        self.emit = emit
        self.pool = Pool(shape.scenario.geometry.blocks, rules, emit)
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
        return self.rules.copies(copies)

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
        for column in range(holdings.passed_columns(group, hit), width):
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
        usable = len(self.pool.free_list) - (setup.watermark_blocks if others_run else 0)
        shares = [self._offered(number, found) for number in range(len(self.shape.groups))]
        whole = self._needed(shares, request.known, request.known, True) if features.reserve_full_sequence else None
        return self._give(request, found, tokens, shares, whole, usable)

    def extend(self, request: Running, tokens: int) -> bool:
        """Give a running request the blocks of its next chunk; False if there are too few."""
        self._release_passed(request)
        shares = [Share(held.columns, copies=held.tail >= 0, started=held.started) for held in request.held]
        return self._give(request, None, tokens, shares, None, len(self.pool.free_list))

    def _give(
        self, request: Running, found: Found | None, tokens: int, shares: list[Share], whole: int | None, usable: int
    ) -> bool:
        """The blocks of a chunk, if there are so many; what they hold may then enter the cache."""
        hit = found.hit if found else 0
        start = request.computed + hit
        end = start + tokens
        needed = self._needed(shares, end, end + self.shape.setup.lookahead, False)
        waits = any(share.unwritten or share.copies_unwritten for share in shares)
        fits = self.rules.admits_by_blocks(whole, needed, usable, self.rules.waits_for(waits))
        if fits and found:
            self._adopt(request, found)
        if fits:
            self._grow(request, found, end)
        self._settle(request)
        if fits:
            self.cache(request, min(end, request.known))
        counted = needed if fits or whole is None or whole <= usable else whole
        self.emit(Allocate(request.request.id, start, tokens, hit, fits, counted))
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

    def _needed(self, shares: list[Share], end: int, slots: int, whole: bool) -> int:
        """Free blocks used up by a chunk up to ``end`` or the ``whole`` sequence; attention needs ``slots`` slots."""
        total = 0
        for group, share in zip(self.shape.groups, map(self.rules.counted, shares), strict=True):
            if group.kind == "mamba":
                total += admission.state_blocks(self.shape.policy, end, group.block, self.shape.drafts, share)
                continue
            most = None
            if whole and group.kind == "swa":
                budget = self.shape.scenario.limits.budget
                most = admission.window_blocks_most(group, budget, self.shape.setup.model_length)
            total += admission.attention_blocks(slots, group.block, share, most)
        return total

    def _adopt(self, request: Running, found: Found) -> None:
        """Take the blocks of the hit; all groups' before any new block is taken, which might evict them."""
        request.computed, request.junction = found.hit, found.junction
        for number, group in enumerate(self.shape.groups):
            columns = found.columns[number]
            if columns:
                self._change(request, number, holdings.adopt(group, request.held[number], found.hit, columns))
                self.pool.touch([block for block in columns if block != NULL_BLOCK])

    def _release_passed(self, request: Running) -> None:
        """Give back the blocks that no later chunk reads, the last ones first."""
        for number, group in enumerate(self.shape.groups):
            table, held = request.tables[number], request.held[number]
            for columns in self.rules.gives_back(self.shape.policy, group, held, request.computed):
                self.pool.free([table[column] for column in columns])
                for column in columns:
                    del held.blocks[column]
                self._change(request, number, dict.fromkeys(columns, NULL_BLOCK))

    def _grow(self, request: Running, found: Found | None, end: int) -> None:
        """New blocks, group by group, and the copies of blocks that are shared or whose hash must stay.

        A hit that ended inside a block goes on in a copy of its own. A state inside a block that is in the cache, and
        that this chunk would overwrite, stays where it is, for the worker's table can only be appended to: the cache
        gets the copy.
        """
        slots, spare = end + self.shape.setup.lookahead, self.shape.drafts
        for number, group in enumerate(self.shape.groups):
            table, held = request.tables[number], request.held[number]
            inside, tail = -1, held.tail
            if found and table and found.hit % group.block != 0:
                inside = found.hit // group.block
            source = table[inside] if inside >= 0 else table[tail] if tail >= 0 else NULL_BLOCK
            change, copy = holdings.grow(group, held, end, slots, spare, inside, self.pool.take)
            if copy != NULL_BLOCK:
                self.copies[number].append((source, copy))
                if tail >= 0:
                    self.pool.move_names(source, copy)
                self.pool.pin(source if tail >= 0 else copy)
            self._change(request, number, change)

    def _change(self, request: Running, number: int, change: Change) -> None:
        """Bring a table up to date."""
        table = request.tables[number]
        for column, block in sorted(change.items()):
            table[column : column + 1] = [block]
        request.changed[number] = min(request.changed[number], min(change, default=UNCHANGED))

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
        first, end = request.held[number].cached, reach // group.block
        if end <= first:
            return
        positions = self.rules.boundaries(self.shape, group, request.prompt, request.junction)
        for column in range(first, min(end, len(table))):
            block = table[column]
            if block != NULL_BLOCK and self.rules.keeps(self.shape, group, column, positions, first):
                self.pool.forget(block)
                self._name(request, number, block, (column + 1) * group.block)
            elif group.kind == "mamba" and self.pool.first_hash(block) is not None:
                # Releases take the hash that a block had before for one of this step.
                self.pool.named_this_step.add(self.pool.first_hash(block))
        request.held[number].cached = end

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
        digest = request.ids[position + setup.lookahead_hash]
        if self.pool.named(number, block, digest):
            if group.kind == "mamba" and not policy.names_tail_once:
                self.pool.named_this_step.add((number, digest))
            return
        if self.pool.position(block) < position:
            self.pool.forget(block)
        self._name(request, number, block, position)
        if group.kind == "mamba" and position % group.block != 0:
            request.held[number].tail = column

    def _name(self, request: Running, number: int, block: int, position: int) -> None:
        digest = request.ids[position + self.shape.setup.lookahead_hash]
        self.pool.name(request.request.id, number, block, position, digest)

    # The end of a request's stay.

    def release(self, request: Running) -> None:
        """Give everything back, each group's last blocks first, for they are the least likely to be hit."""
        for number, table in enumerate(request.tables):
            if table:
                self.pool.free(self.rules.released(table))
                self.emit(Table(request.request.id, number, 0, ()))
        request.start_over()
