"""The decisions in a trace, free of what an engine may choose freely, so that two builds can be compared.

Left out are block ids, digests, the order among blocks that are committed or evicted together, and the calls in
which a decision is carried out (cache, take, touch, free, pin, table): what matters of them shows in the decisions
that follow. An evicted block is named by what it held.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from oracle import trace

Held = tuple[int, int]
"""A group, and the position up to which a hash stands for tokens."""


class Decision(msgspec.Struct, frozen=True):
    """One decision, of a record's ``kind``. ``facts``: names and values; ``record``, ``step``: where it stands."""

    kind: str
    request: str
    facts: tuple[tuple[str, Any], ...]
    step: int
    record: int

    @property
    def words(self) -> str:
        """The decision as a person reads it."""
        told = ", ".join(f"{name} {_plain(value)}" for name, value in self.facts)
        return " ".join(filter(None, (self.kind, self.request, told)))

    def same(self, other: Decision) -> bool:
        """Whether the two builds decided the same."""
        return (self.kind, self.request, self.facts) == (other.kind, other.request, other.facts)


def decisions(records: Iterable[trace.AnyRecord]) -> Iterator[Decision]:
    """The decisions of a trace, header left out, in order."""
    return _Reader().read(records)


class _Reader:
    """Follows what each block holds, and gathers what is committed or evicted in a row."""

    def __init__(self) -> None:
        self.held: dict[int, list[Held]] = {}
        self.step = 0
        self.row: list[Any] = []
        self.row_kind = ""
        self.row_record = 0

    def read(self, records: Iterable[trace.AnyRecord]) -> Iterator[Decision]:
        for number, record in enumerate(records):
            if isinstance(record, trace.Commit):
                yield from self._gather("commit", number, (record.request, record.group, record.position))
                self.held.setdefault(record.block, []).append((record.group, record.position))
            elif isinstance(record, trace.Evict):
                yield from self._gather("evict", number, tuple(sorted(self.held.pop(record.block, ()))))
            elif type(record) in _FACTS:
                yield from self._row()
                request = str(getattr(record, "request", ""))
                facts = _FACTS[type(record)](record)
                if isinstance(record, trace.Step):
                    self.step = record.index
                elif isinstance(record, trace.Reset) and record.done:
                    self.held.clear()
                yield Decision(_kind(record), request, facts, self.step, number)
        yield from self._row()

    def _gather(self, kind: str, number: int, what: Any) -> Iterator[Decision]:
        if kind != self.row_kind:
            yield from self._row()
            self.row_kind, self.row_record = kind, number
        self.row.append(what)

    def _row(self) -> Iterator[Decision]:
        if self.row:
            facts = (("blocks", tuple(sorted(self.row))),)
            yield Decision(self.row_kind, "", facts, self.step, self.row_record)
        self.row, self.row_kind = [], ""


def _kind(record: trace.AnyRecord) -> str:
    return str(type(record).__struct_config__.tag)


def _named(*names: str) -> Any:
    return lambda record: tuple((name, getattr(record, name)) for name in names)


def _step_facts(step: trace.Step) -> tuple[tuple[str, Any], ...]:
    scheduled = tuple(
        (one.request, one.start, one.tokens, one.drafts, one.accepted, one.samples, one.fresh) for one in step.scheduled
    )
    return (
        ("scheduled", scheduled),
        ("copies", len(step.copies)),
        ("preempted", tuple(sorted(step.preempted))),
        ("finished", tuple(sorted(step.finished))),
        ("waiting", step.waiting),
        ("running", step.running),
    )


_FACTS: dict[type, Any] = {
    trace.Add: _named("prompt_tokens"),
    trace.Lookup: _named("known", "hit", "junction"),
    trace.Split: _named("start", "asked", "granted", "known", "junction"),
    trace.Allocate: _named("computed", "tokens", "hit", "granted"),
    trace.Preempt: _named(),
    trace.Finish: _named("reason"),
    trace.Reset: _named("done"),
    trace.Step: _step_facts,
    trace.Output: _named("sampled"),
    trace.End: lambda record: (("unfinished", tuple(sorted(record.unfinished))),),
    trace.Crash: _named("kind", "where", "message"),
}


def _plain(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_plain, value))})"
    return str(value)
