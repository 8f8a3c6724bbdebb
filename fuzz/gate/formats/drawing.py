"""Where everything of a block timeline stands: both builds' blocks as rows, steps as columns, in pixels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import msgspec

from fuzz.gate.formats import words
from fuzz.gate.timeline import Cell, Key, Run, Timeline

HUES = 12
"""Colours of requests, after which they repeat; names in the bars tell them apart."""
SHADES = 6

_WIDE = ((5, 200), (9, 152), (14, 92), (24, 64))
"""Up to so many steps columns have so many pixels, and texts; beyond that they are as narrow as marks allow."""
_NARROW = 18
_TALL, _TALL_ROWS, _LOW = 22, 40, 14


class Segment(msgspec.Struct, frozen=True):
    """A part of a bar from ``top`` down, in the colour of one request and position."""

    top: float
    height: float
    look: str


class Bar(msgspec.Struct, frozen=True):
    """A block over steps in which nothing of it changes. ``label``: its content, short; ``title``: all of it."""

    x: int
    width: int
    segments: tuple[Segment, ...]
    look: str
    label: str
    title: str


class Lane(msgspec.Struct, frozen=True):
    """A row: one block. ``reads``, ``writes``: left edges of the columns in which it was."""

    block: int
    y: int
    bars: tuple[Bar, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]


class Panel(msgspec.Struct, frozen=True):
    """The blocks of one group."""

    name: str
    height: int
    lanes: tuple[Lane, ...]


class Build(msgspec.Struct, frozen=True):
    """One build. ``computes``: per column its left edge and what was computed. ``wrong``: in words, the blocks whose
    hash names what they do not hold."""

    name: str
    computes: tuple[tuple[int, tuple[str, ...]], ...]
    panels: tuple[Panel, ...]
    wrong: tuple[str, ...]
    crash: str
    note: str


class Drawing(msgspec.Struct, frozen=True):
    """All of it. ``column``, ``row``: pixels of one. ``rule``: x of the first difference, None without one."""

    column: int
    row: int
    texts: bool
    width: int
    steps: tuple[tuple[int, int], ...]
    builds: tuple[Build, ...]
    requests: tuple[tuple[str, str], ...]
    rule: int | None
    rule_label: str


def draw(names: Sequence[str], timelines: Sequence[Timeline], rule_column: int | None, rule_label: str) -> Drawing:
    """Both timelines on one grid of columns; ``rule_column``: the one with the first difference."""
    longest = max(timelines, key=lambda one: len(one.columns))
    count = len(longest.columns)
    column = next((pixels for most, pixels in _WIDE if count <= most), _NARROW)
    rows = max(sum(len(one.keys(group)) for group in range(len(one.groups))) for one in timelines)
    row = _TALL if rows <= _TALL_ROWS else _LOW
    requests = _requests(timelines)
    grid = _Grid(column, row, {name: f"h{number % HUES}" for number, name in enumerate(requests)})
    return Drawing(
        column=column,
        row=row,
        texts=column > _NARROW,
        width=column * count,
        steps=tuple((number * column, one.step) for number, one in enumerate(longest.columns)),
        builds=tuple(grid.build(name, one) for name, one in zip(names, timelines, strict=True)),
        requests=tuple(grid.hues.items()),
        rule=None if rule_column is None else rule_column * column,
        rule_label=rule_label,
    )


def _requests(timelines: Sequence[Timeline]) -> list[str]:
    """The requests that something was computed of, in order; the same colours in both builds."""
    return list(dict.fromkeys(name for one in timelines for column in one.columns for name, _, _ in column.computes))


class _Grid:
    """Sizes and colours that both builds share."""

    def __init__(self, column: int, row: int, hues: dict[str, str]) -> None:
        self.column = column
        self.row = row
        self.hues = hues

    def build(self, name: str, timeline: Timeline) -> Build:
        panels = [self._panel(timeline, group) for group in range(len(timeline.groups))]
        computes = tuple(
            (number * self.column, tuple(f"{request} {start}–{end}" for request, start, end in one.computes))
            for number, one in enumerate(timeline.columns)
        )
        wrong = tuple(
            bar.title for panel in panels for lane in panel.lanes for bar in lane.bars if "wrong" in bar.look.split()
        )
        return Build(name, computes, tuple(panels), wrong, words.plain(timeline.crash), timeline.note)

    def _panel(self, timeline: Timeline, group: int) -> Panel:
        lanes = tuple(self._lane(timeline, key, n * self.row) for n, key in enumerate(timeline.keys(group)))
        return Panel(timeline.groups[group], len(lanes) * self.row, lanes)

    def _lane(self, timeline: Timeline, key: Key, y: int) -> Lane:
        cells = [column.cells.get(key) for column in timeline.columns]
        return Lane(
            block=key[1],
            y=y,
            bars=tuple(self._bars(timeline, key, cells, y)),
            reads=tuple(n * self.column for n, cell in enumerate(cells) if cell and cell.read),
            writes=tuple(n * self.column for n, cell in enumerate(cells) if cell and cell.written),
        )

    def _bars(self, timeline: Timeline, key: Key, cells: Sequence[Cell | None], y: int) -> Iterator[Bar]:
        """One bar for each row of steps in which the block stays as it is."""
        for still, group in groupby(range(len(cells)), key=lambda n: _still(cells[n])):
            numbers = list(group)
            cell = cells[numbers[0]]
            if still is None or cell is None:
                continue
            steps = [timeline.columns[n].step for n in numbers]
            yield Bar(
                x=numbers[0] * self.column,
                width=len(numbers) * self.column,
                segments=tuple(self._segment(run, cell, timeline.sizes[key[0]], y) for run in cell.runs),
                look=" ".join(_look(cell)),
                label=_label(cell, len(numbers) * self.column) if self.column > _NARROW else "",
                title=words.plain(_title(timeline, key, cell, steps, [cells[n] for n in numbers])),
            )

    def _segment(self, run: Run, cell: Cell, size: int, y: int) -> Segment:
        """As high as the share of the block's slots that it fills."""
        scale = (self.row - 4) / cell.slots
        hue = self.hues.get(run.request, "draft")
        shade = (2 * (run.first // size) + (run.first % size > 0 and cell.slots == 1)) % SHADES
        return Segment(
            top=round(y + 2 + run.slot * scale, 2),
            height=round((run.slot_end - run.slot) * scale, 2),
            look=f"{hue} k{shade}" if run.last >= 0 else "draft",
        )


def _still(cell: Cell | None) -> Cell | None:
    """The cell, but for what a single step does with it."""
    return cell and msgspec.structs.replace(cell, read=False, written=False)


def _look(cell: Cell) -> Iterator[str]:
    if cell.hashed:
        yield "hashed"
    if not cell.agrees:
        yield "wrong"
    if cell.free:
        yield "free"


def _label(cell: Cell, width: int) -> str:
    """The content, if it fits in between the marks."""
    short = cell.content.replace(" to ", "–") if cell.runs else ""
    short = short if cell.agrees else f"{short} ≠ {cell.hashed.replace(' to ', '–')}"
    room = (width - 26) // 6
    return short if len(short) <= room else f"{short[: room - 1]}…"


def _title(timeline: Timeline, key: Key, cell: Cell, steps: Sequence[int], cells: Sequence[Cell | None]) -> str:
    """A bar in words."""
    group, block = key
    when = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
    told = [f"block {block} of {timeline.groups[group]}, {when}: holds {cell.content}"]
    if cell.hashed:
        told.append(f"hashed as {cell.hashed}" + ("" if cell.agrees else ", which it DOES NOT HOLD"))
    told.append("free" if cell.free else "in use")
    for name in ("written", "read"):
        done = [str(step) for step, one in zip(steps, cells, strict=True) if one is not None and getattr(one, name)]
        told += [f"{name} in step{'s' if len(done) > 1 else ''} {', '.join(done)}"] if done else []
    return "; ".join(told)
