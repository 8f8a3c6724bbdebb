"""What each block of GPU memory holds after each step of a trace: the judge's own ghost, looked at step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from oracle import trace
from oracle.cache_index import Entry
from oracle.case import Case
from oracle.compare import records_of
from oracle.judge import Judge, read_header
from reference.worker import DRAFT, NULL_BLOCK, UNWRITTEN, Chunk, Memory, Read

Key = tuple[int, int]
"""A group and a block."""


class Run(msgspec.Struct, frozen=True):
    """Slots ``slot`` to ``slot_end`` of a block, which hold what belongs together.

    Attention: the tokens ``first`` to ``last`` of ``request``. Mamba: its state after ``last`` tokens. ``request`` is
    empty for what came from a draft that was wrong.
    """

    request: str
    first: int
    last: int
    slot: int
    slot_end: int


class Cell(msgspec.Struct, frozen=True):
    """A block after a step. ``runs``: what is really inside, in ``slots`` slots; ``content`` says it in words.

    ``hashed``: what its hashes name, in words, empty without one; ``agrees``: the content is that. ``read``,
    ``written``: in this step. ``free``: nobody holds it.
    """

    runs: tuple[Run, ...]
    slots: int
    content: str
    hashed: str
    agrees: bool
    read: bool
    written: bool
    free: bool


class Column(msgspec.Struct, frozen=True):
    """A step. ``computes``: request, first and last position of what the worker computed."""

    step: int
    computes: tuple[tuple[str, int, int], ...]
    cells: dict[Key, Cell]


class Timeline(msgspec.Struct, frozen=True):
    """All steps of a trace. ``groups``: their names. ``sizes``: their blocks in tokens. ``crash``: how the engine
    ended, if not well. ``note``: why hashes were not compared with contents, if so."""

    groups: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    columns: tuple[Column, ...] = ()
    crash: str = ""
    note: str = ""

    def keys(self, group: int) -> list[Key]:
        """The blocks that the group ever had, in order."""
        return sorted({key for column in self.columns for key in column.cells if key[0] == group})


def fold(lines: Sequence[bytes]) -> Timeline:
    """The timeline of a trace from its lines, header first; an empty one without lines. Raises BadTrace."""
    if not lines:
        return Timeline()
    watch = _Watch(read_header(lines[0]))
    columns, crash = [], ""
    for record in records_of(lines):
        watch.judge.feed_all([record])
        if isinstance(record, trace.Step):
            columns.append(watch.column(record))
        elif isinstance(record, trace.Crash):
            crash = f"{record.kind} in {record.where}: {record.message}"
    case = watch.judge.case
    names = tuple(case.name(number) for number in range(len(case.groups)))
    return Timeline(names, tuple(group.block for group in case.groups), tuple(columns), crash, watch.note)


def column_of(lines: Sequence[bytes], record: int) -> int:
    """In which column a record stands, counted from 0: that of the step that it leads to."""
    return sum(isinstance(one, trace.Step) for one in records_of(lines)[:record])


class _Watched(Memory):
    """The ghost, which also notes the blocks that a step reads and writes."""

    def __init__(self, memory: Memory) -> None:
        super().__init__(memory.groups)
        self.read: set[int] = set()
        self.changed: set[int] = set()
        self._running = False

    def content(self, group: int, block: int) -> list[int] | None:
        if self._running and block != NULL_BLOCK:
            self.read.add(block)
        return super().content(group, block)

    def zero(self, blocks: Iterable[int]) -> None:
        super().zero(blocks)
        self.changed |= self.written

    def copy(self, copies: Sequence[tuple[int, int]]) -> None:
        self.read.update(source for source, _ in copies)
        super().copy(copies)
        self.changed |= self.written

    def forward(self, chunks: Sequence[Chunk], report: Callable[[Read], None]) -> None:
        # What was found right once is not looked at again, unless somebody disturbs it: here all reads count.
        self.settled.clear()
        self.disturbances += 1
        self._running = True
        super().forward(chunks, report)
        self._running = False
        self.changed |= self.written


class _Watch:
    """A judge without rules: it keeps the ghost, reports nothing, and so mends nothing in it either."""

    def __init__(self, header: trace.Header) -> None:
        self.judge = Judge(header, None, frozenset())
        self.case = case = self.judge.case
        case.memory = self.memory = _Watched(case.memory)
        self.note = case.verdict.unjudged.get("C1", "")
        self.names = self.judge.forgetting.held_elsewhere = _names(case)

    def column(self, record: trace.Step) -> Column:
        """The blocks as they are now, right after the step was run."""
        computes = tuple((one.request, one.start, one.start + one.tokens) for one in record.scheduled)
        cells = {key: self._cell(*key) for key in sorted(set(self._keys()))}
        self.memory.read.clear()
        self.memory.changed.clear()
        return Column(record.index, computes, cells)

    def _keys(self) -> Iterator[Key]:
        """Blocks by group: of whom they hold content, in whose tables they are, for whom they are hashed."""
        yield from ((group, block) for block, group in self.memory.owner.items())
        for entries in self.case.index.by_block.values():
            yield from ((entry.group, entry.block) for entry in entries)
        for state in self.case.requests.values():
            for group, table in enumerate(state.tables):
                yield from ((group, block) for block in table if block != NULL_BLOCK)

    def _cell(self, group: int, block: int) -> Cell:
        content = self.memory.content(group, block)
        entries = [entry for entry in self.case.index.by_block.get(block, ()) if entry.group == group]
        is_state = self.case.groups[group].kind == "mamba"
        runs = self._runs(content or (), is_state)
        return Cell(
            runs=runs,
            slots=1 if is_state else self.case.groups[group].block,
            content=_words(runs, is_state),
            hashed="; ".join(_words(self._runs(entry.content, is_state), is_state) for entry in entries),
            agrees=bool(self.note) or all(_holds(content, entry) for entry in entries),
            read=block in self.memory.read,
            written=block in self.memory.changed,
            free=not self.judge.ledger.references.get(block),
        )

    def _runs(self, content: Sequence[int], is_state: bool) -> tuple[Run, ...]:
        """Neighbouring slots that go on with the same request, put together."""
        runs: list[Run] = []
        for slot, prefix in enumerate(content):
            if prefix == UNWRITTEN:
                continue
            request, end = ("", -1) if prefix == DRAFT else self.names.get(prefix, ("?", -1))
            last = runs[-1] if runs else None
            follows = last is not None and last.slot_end == slot and last.request == request
            if last is not None and follows and (end == last.last + 1 or end < 0):
                runs[-1] = Run(request, last.first, end, last.slot, slot + 1)
            else:
                runs.append(Run(request, end if is_state or end < 0 else end - 1, end, slot, slot + 1))
        return tuple(runs)


def _names(case: Case) -> dict[int, tuple[str, int]]:
    """Each prefix by the first request that has it, and its tokens; the same for all traces of one scenario."""
    scenario = case.scenario
    names: dict[int, tuple[str, int]] = {}
    in_flight = (scenario.features.drafts + 1) * (scenario.features.async_depth + 2)
    for request in scenario.requests():
        ids = case.prefixes.of_prompt(request.prompt)
        case.prefixes.extend(ids, request.output_stream, 0, request.max_output + in_flight)
        for tokens, prefix in enumerate(ids):
            names.setdefault(prefix, (request.id, tokens))
    return names


def _holds(content: Sequence[int] | None, entry: Entry) -> bool:
    return content is not None and list(content[: len(entry.content)]) == entry.content


def _words(runs: Iterable[Run], is_state: bool) -> str:
    return ", ".join(_run_words(run, is_state) for run in runs) or "nothing that was written"


def _run_words(run: Run, is_state: bool) -> str:
    if not run.request:
        return "a state after a wrong draft" if is_state else "wrong drafts"
    if run.last < 0:
        return "what no request of the scenario has"
    return f"{run.request} after {run.last}" if is_state else f"{run.request} {run.first} to {run.last}"
