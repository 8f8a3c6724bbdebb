"""Counts, on traces, how often each premise of the proofs about an engine's own functions held."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import get_args

import msgspec

from fuzz.engines.names import nearest_release
from fuzz.premises import (
    BOUNDARIES,
    COMMITS,
    LOOKUPS,
    MASKS,
    PREMISES,
    SPLITS,
    UNSEEN,
    About,
    AnyPremise,
    Premise,
    R,
)
from oracle.case import BadTrace, Case, RequestState
from oracle.judge import read_header
from oracle.trace import Add, Cache, Commit, Lookup, Output, Preempt, Record, Split, encoder, records_decoder


@dataclass
class Count:
    """Decisions on which a premise held, did not hold, and said nothing; ``first``: the first on which it did not."""

    held: int = 0
    failed: int = 0
    silent: int = 0
    first: str = ""

    @property
    def total(self) -> int:
        """All decisions of its kind."""
        return self.held + self.failed + self.silent


class Counts:
    """How often each premise held, over any number of traces. ``by_key``: by ``Premise.key``, in the order above."""

    def __init__(self) -> None:
        self.by_key = {premise.key: Count() for premise in PREMISES}

    def add(self, lines: Iterable[bytes], release: str | None = None) -> None:
        """Count the decisions of a trace. ``release``: whose policy stands for the build, the nearest if None.

        Raises BadTrace for lines that are no trace, EngineNameError for a build that no release stands for.
        """
        lines = iter(lines)
        header = read_header(next(lines, b""))
        reading = _Reading(self, Case(header, release or nearest_release(header.version), frozenset()))
        for line in lines:
            try:
                for record in records_decoder.decode(line):
                    reading.feed(record)
            except (msgspec.DecodeError, IndexError) as error:
                raise BadTrace(f"the trace is not whole: {error}") from None

    def note(self, premises: Sequence[Premise[R]], case: Case, record: R) -> None:
        """Count one decision."""
        for premise in premises:
            count, holds = self.by_key[premise.key], premise.holds(case, record)
            if holds is None:
                count.silent += 1
            elif holds:
                count.held += 1
            else:
                count.failed += 1
                count.first = count.first or encoder.encode(record).decode()

    @property
    def failed(self) -> frozenset[str]:
        """The keys of those that did not always hold."""
        return frozenset(key for key, count in self.by_key.items() if count.failed)

    @property
    def undeclared(self) -> frozenset[str]:
        """The keys of those that did not always hold though nothing says why they may not."""
        return self.failed - {premise.key for premise in PREMISES if premise.outside}


class _Reading:
    """Reads one trace. Of a request it knows its tokens, its junction, and how many blocks were considered."""

    def __init__(self, counts: Counts, case: Case) -> None:
        self._counts = counts
        self._case = case

    def feed(self, record: Record) -> None:
        case, note = self._case, self._counts.note
        match record:
            case Add(request=name, prompt_tokens=prompt):
                case.requests[name] = RequestState(name, [], record.output, prompt, prompt, len(case.groups))
            case Lookup():
                self._look_up(record)
                note(LOOKUPS, case, record)
            case Split():
                note(SPLITS, case, record)
            case Cache():
                self._cache(record)
            case Commit():
                note(COMMITS, case, record)
            case Output():
                for name, tokens in record.sampled:
                    case.request(name).known += tokens
            case Preempt():
                state = case.request(record.request)
                state.cached = [0] * len(case.groups)

    def _look_up(self, record: Lookup) -> None:
        state = self._case.request(record.request)
        state.known, state.looked_up = record.known, record.junction
        state.cached = [record.hit // group.block for group in self._case.groups]

    def _cache(self, record: Cache) -> None:
        """A sparse group is asked for its mask, and given its boundary list, where it has filled a block."""
        case, group = self._case, self._case.groups[record.group]
        state = case.request(record.request)
        end = min(record.tokens, case.hashed(state.known)) // group.block
        if end <= state.cached[record.group]:
            return
        if group.kind != "full":
            self._counts.note(MASKS, case, record)
            self._counts.note(BOUNDARIES, case, record)
        state.cached[record.group] = end


def premises_text(counts: Counts) -> str:
    """The counts as a table by subject, why a premise did not always hold, and what no trace shows."""
    lines = [f"{'held':>9} {'did not':>9} {'silent':>9}   (silent: a decision of which the premise says nothing)"]
    for about in get_args(About):
        lines += ["", about]
        for premise in PREMISES:
            if premise.about == about:
                lines += _told(premise, counts.by_key[premise.key])
        lines += [
            f"{'not seen':>29}   {unseen.stated} …: {unseen.reason}" for unseen in UNSEEN if unseen.about == about
        ]
    return "\n".join(lines)


def _told(premise: AnyPremise, count: Count) -> list[str]:
    lines = [f"{count.held:>9,} {count.failed:>9,} {count.silent:>9,}   {premise.name}"]
    if count.failed:
        lines.append(f"{'':>32} {premise.outside or 'UNDECLARED: nothing says why'}; the first: {count.first}")
    return lines
