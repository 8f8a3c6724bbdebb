"""The worker: what each block of GPU memory really holds after the worker ran a step.

Content is named by *prefix ids*: the id of a prefix stands for its exact tokens, ``prefixes[n]`` for a
request's first n tokens. The attention slot of position p holds ``prefixes[p + 1]`` (keys and values
depend on all tokens up to p), a Mamba block holds ``prefixes[n]``, the state after n tokens. Within a step
the engine's worker drops finished requests, zeroes new blocks, runs the block copies as one gather and
scatter, appends to its block tables, then for Mamba carries the running state into the block of this
step, runs the forward pass, and with drafts moves the accepted boundary state to its own block. Source:
the releases' ``v1/worker/gpu_model_runner.py`` and ``v1/worker/mamba_utils.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from reference.arithmetic import ceil_div, floor_to
from reference.exports import Exports
from reference.geometry import Group, first_read

UNWRITTEN = 0
"""Content of a slot that nothing was written to (or zeroes)."""
DRAFT = -1
"""Content that came from a draft token which turned out wrong."""
MIXED = -2
"""A state that is part one position's and part another's: a chunk's last state and one saved on the way, in one block.

Which part a backend writes last differs (the window of the convolution, the recurrent state), so it is neither.
"""

NULL_BLOCK = 0


@dataclass(frozen=True)
class Read:
    """A read that did not find what it needs. ``found`` is what is there, ``needed`` the prefix id."""

    request: str
    group: int
    block: int
    position: int
    needed: int
    found: int


@dataclass(slots=True, eq=False)
class Running:
    """What the worker keeps of one request: its block table per group and its running Mamba state.

    ``state_column``: per group, the table column that held the state last (-1: none yet).
    ``accepted``: per group, how many columns past it, plus one, the state of the last step ended.
    ``vouched``: per full-attention group, the blocks of the leading columns that were found right in full,
    and ``as_of`` what ``Memory.disturbances`` was then.
    """

    tables: list[list[int]]
    state_column: list[int]
    accepted: list[int]
    vouched: list[list[int]] = field(default_factory=list)
    as_of: list[int] = field(default_factory=list)


class Chunk:
    """What the worker computes of one request in one step (tokens).

    It computes ``tokens`` tokens from position ``start``; the last ``drafts`` are draft tokens of which
    the first ``accepted`` are right. ``fresh``: new or resumed, so ``blocks`` is its whole table; else
    ``blocks`` is appended. ``prefixes``: prefix ids of at least its first start + tokens tokens.
    """

    def __init__(
        self,
        request: str,
        start: int,
        tokens: int,
        drafts: int,
        accepted: int,
        fresh: bool,
        blocks: Sequence[Sequence[int]],
        prefixes: Sequence[int],
    ) -> None:
        self.request = request
        self.start = start
        self.tokens = tokens
        self.drafts = drafts
        self.accepted = accepted
        self.fresh = fresh
        self.blocks = blocks
        self.prefixes = prefixes


class Memory:
    """The blocks of the pool, as the worker leaves them. ``exports``: the states that it also saves inside a chunk.

    A block's bytes are shared by all groups, so a block holds content of the one group that wrote it last.
    ``owner[b]`` is that group, ``slots[b]`` its content (one prefix id a token slot; one in all for Mamba),
    ``written`` collects blocks as they are written, for whoever empties it. ``settled`` counts per block the
    running requests that vouch for it (found it right in full); ``disturbances`` counts writes to such
    blocks, after which all look again.
    """

    def __init__(self, groups: Sequence[Group], exports: Exports | None = None) -> None:
        self.groups = groups
        self.mamba = [number for number, spec in enumerate(groups) if spec.kind == "mamba"]
        self.exports = exports
        self.owner: dict[int, int] = {}
        self.slots: dict[int, list[int]] = {}
        self.settled: dict[int, int] = {}
        self.disturbances = 0
        self.sequences: dict[str, Running] = {}
        self.written: set[int] = set()

    def content(self, group: int, block: int) -> list[int] | None:
        """What a block holds as seen by ``group``, or None if another group (or nobody) wrote it."""
        return self.slots[block] if self.owner.get(block) == group else None

    def _open(self, group: int, block: int) -> list[int]:
        """The slots of a block for writing by ``group``."""
        self._note_write(block)
        if self.owner.get(block) != group:
            self.owner[block] = group
            spec = self.groups[group]
            self.slots[block] = [UNWRITTEN] * (1 if spec.kind == "mamba" else spec.block)
        return self.slots[block]

    def _note_write(self, block: int) -> None:
        """A block changes."""
        self.written.add(block)
        if self.settled.get(block):
            self.settled.clear()
            self.disturbances += 1

    def drop(self, requests: Iterable[str]) -> None:
        """Finished and preempted requests leave the worker's batch."""
        for request in requests:
            sequence = self.sequences.pop(request, None)
            if sequence is None:
                continue
            for number, blocks in enumerate(sequence.vouched):
                for block in blocks if sequence.as_of[number] == self.disturbances else ():
                    self.settled[block] -= 1

    def zero(self, blocks: Iterable[int]) -> None:
        """Blocks are zeroed before anything else happens in the step."""
        for block in blocks:
            self.owner.pop(block, None)
            self._note_write(block)

    def copy(self, copies: Sequence[tuple[int, int]]) -> None:
        """All copies at once: a copy never sees another one of the same step."""
        gathered = [(target, self.owner.get(source), list(self.slots.get(source, ()))) for source, target in copies]
        for target, owner, slots in gathered:
            self._note_write(target)
            if owner is None:
                self.owner.pop(target, None)
            else:
                self.owner[target] = owner
                self.slots[target] = slots

    def append_tables(self, chunk: Chunk) -> Running:
        """Bring the worker's table of a request up to date."""
        if chunk.fresh or chunk.request not in self.sequences:
            self.drop((chunk.request,))
            count = len(self.groups)
            self.sequences[chunk.request] = Running(
                [list(blocks) for blocks in chunk.blocks],
                [-1] * count,
                [1] * count,
                [[] for _ in range(count)],
                [self.disturbances] * count,
            )
            for number, spec in enumerate(self.groups):
                if spec.kind == "mamba" and chunk.start > 0:
                    self.sequences[chunk.request].state_column[number] = (chunk.start - 1) // spec.block
            return self.sequences[chunk.request]
        sequence = self.sequences[chunk.request]
        for table, blocks in zip(sequence.tables, chunk.blocks, strict=True):
            table.extend(blocks)
        return sequence

    def forward(self, chunks: Sequence[Chunk], report: Callable[[Read], None]) -> None:
        """Run one step. Every read that does not find the content it needs is given to ``report``.

        Mamba first carries its running states over, in all groups, before any layer writes. Attention then
        writes all of a layer's new slots before it reads, so a request may read what another writes in the
        same step; Mamba has no such order, so initial states are read before any is written.
        """
        running = [(chunk, self.append_tables(chunk)) for chunk in chunks]
        mamba = self.mamba
        for number in mamba:
            self._carry_states(number, running)
        for number in mamba:
            for chunk, sequence in running:
                self._read_state(number, chunk, sequence, report)
        for number, spec in enumerate(self.groups):
            if spec.kind == "mamba":
                for chunk, sequence in running:
                    self._write_states(number, chunk, sequence)
                continue
            for chunk, sequence in running:
                self._write_slots(number, spec, chunk, sequence, report)
            for chunk, sequence in running:
                self._read_slots(number, spec, chunk, sequence, report)
        for number in mamba:
            moves = [self._accepted_boundary(number, chunk, sequence) for chunk, sequence in running]
            if any(moves):
                self._move_states(number, [move for move in moves if move is not None])

    def _write_slots(
        self, number: int, spec: Group, chunk: Chunk, sequence: Running, report: Callable[[Read], None]
    ) -> None:
        """Write the new slots of one chunk: real tokens and right drafts, then the drafts that were wrong."""
        table = sequence.tables[number]
        real_end = chunk.start + chunk.tokens - chunk.drafts + chunk.accepted
        end = chunk.start + chunk.tokens
        position = chunk.start
        while position < end:
            column = position // spec.block
            stop = min((column + 1) * spec.block, end)
            block = table[column] if column < len(table) else NULL_BLOCK
            if block == NULL_BLOCK:
                report(Read(chunk.request, number, NULL_BLOCK, position, chunk.prefixes[position + 1], UNWRITTEN))
            else:
                right = max(min(stop, real_end) - position, 0)
                new = chunk.prefixes[position + 1 : position + 1 + right]
                if right < stop - position:
                    new = [*new, *[DRAFT] * (stop - position - right)]
                offset = position - column * spec.block
                self._open(number, block)[offset : offset + len(new)] = new
            position = stop

    def _read_slots(
        self, number: int, spec: Group, chunk: Chunk, sequence: Running, report: Callable[[Read], None]
    ) -> None:
        """Check the slots before ``start`` that the chunk's tokens attend to.

        What a sparse group reads is looked at anew in each step. The columns of full attention that were found right
        are not, until one that somebody vouched for is written to.
        """
        first = first_read(spec, chunk.start)
        if sequence.as_of[number] != self.disturbances:
            sequence.vouched[number], sequence.as_of[number] = [], self.disturbances
        table, vouched = sequence.tables[number], sequence.vouched[number]
        for column in range(first // spec.block + len(vouched), ceil_div(chunk.start, spec.block)):
            block = table[column] if column < len(table) else NULL_BLOCK
            begin = max(column * spec.block, first)
            stop = min((column + 1) * spec.block, chunk.start)
            holds = self._slots_hold(number, spec, chunk, block, begin, stop, report)
            if holds and spec.kind == "full" and stop % spec.block == 0 and column == len(vouched):
                vouched.append(block)
                self.settled[block] = self.settled.get(block, 0) + 1

    def _slots_hold(
        self,
        number: int,
        spec: Group,
        chunk: Chunk,
        block: int,
        begin: int,
        stop: int,
        report: Callable[[Read], None],
    ) -> bool:
        """Whether a block holds the request's own tokens at positions ``begin`` to ``stop``."""
        content = self.content(number, block) if block != NULL_BLOCK else None
        needed = chunk.prefixes[begin + 1 : stop + 1]
        offset = begin % spec.block
        if content is not None and content[offset : offset + len(needed)] == needed:
            return True
        found = content[offset : offset + len(needed)] if content is not None else [UNWRITTEN] * len(needed)
        for index, (want, have) in enumerate(zip(needed, found, strict=True)):
            if want != have:
                report(Read(chunk.request, number, block, begin + index, want, have))
                break
        return False

    def _carry_states(self, number: int, running: Sequence[tuple[Chunk, Running]]) -> None:
        """Copy each running state into the column of this step, where that is another one."""
        block_tokens = self.groups[number].block
        moves = []
        for chunk, sequence in running:
            current = ceil_div(chunk.start + chunk.tokens, block_tokens) - 1
            previous = sequence.state_column[number]
            if previous not in (-1, current):
                source = self._column(sequence, number, previous + sequence.accepted[number] - 1)
                moves.append((source, self._column(sequence, number, current)))
                sequence.accepted[number] = 1
            sequence.state_column[number] = current
        if moves:
            self._move_states(number, moves)

    def _column(self, sequence: Running, number: int, column: int) -> int:
        """The block in a table's column, the null block where the table does not reach."""
        table = sequence.tables[number]
        return table[column] if 0 <= column < len(table) else NULL_BLOCK

    def _move_states(self, number: int, moves: Sequence[tuple[int, int]]) -> None:
        """Copy states between blocks, all sources read before any target is written."""
        gathered = [(self.content(number, source), target) for source, target in moves]
        for content, target in gathered:
            if target != NULL_BLOCK:
                self._open(number, target)[0] = content[0] if content is not None else UNWRITTEN

    def _read_state(self, number: int, chunk: Chunk, sequence: Running, report: Callable[[Read], None]) -> None:
        """The forward pass starts from the state after ``start`` tokens."""
        if chunk.start == 0:
            return
        column = sequence.state_column[number] + sequence.accepted[number] - 1
        block = self._column(sequence, number, column)
        content = self.content(number, block) if block != NULL_BLOCK else None
        found = content[0] if content is not None else UNWRITTEN
        if found != chunk.prefixes[chunk.start]:
            report(Read(chunk.request, number, block, chunk.start, chunk.prefixes[chunk.start], found))

    def _write_states(self, number: int, chunk: Chunk, sequence: Running) -> None:
        """Without drafts one state, after the last token, and one that is saved on the way; with drafts one after each
        token, a column each.
        """
        current = sequence.state_column[number]
        if chunk.drafts == 0:
            end = chunk.start + chunk.tokens
            self._write_state(number, sequence, current, chunk.prefixes[end])
            if self.exports is not None and (saved := self.exports(chunk.start, end)) is not None:
                position, column = saved
                running = self._column(sequence, number, current)
                aliased = self._column(sequence, number, column) == running
                self._write_state(number, sequence, column, MIXED if aliased else chunk.prefixes[position])
            return
        real = chunk.tokens - chunk.drafts + chunk.accepted
        for index in range(chunk.drafts + 1):
            tokens = chunk.tokens - chunk.drafts + index
            state = chunk.prefixes[chunk.start + tokens] if tokens <= real else DRAFT
            self._write_state(number, sequence, current + index, state)

    def _write_state(self, number: int, sequence: Running, column: int, state: int) -> None:
        """Write one state to the block in a column, if there is one."""
        block = self._column(sequence, number, column)
        if block != NULL_BLOCK:
            self._open(number, block)[0] = state

    def _accepted_boundary(self, number: int, chunk: Chunk, sequence: Running) -> tuple[int, int] | None:
        """With drafts: where the accepted tokens passed a block boundary, its state moves to its own block.

        Gives the source and the target block of that move, or None.
        """
        if chunk.drafts == 0:
            sequence.accepted[number] = 1
            return None
        sequence.accepted[number] = chunk.accepted + 1
        block_tokens = self.groups[number].block
        first = chunk.start + chunk.tokens - chunk.drafts
        boundary = floor_to(first + chunk.accepted, block_tokens)
        if boundary < first:
            return None
        column = sequence.state_column[number] + boundary - first
        target = boundary // block_tokens - 1
        return (self._column(sequence, number, column), self._column(sequence, number, target))
