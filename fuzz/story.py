"""The decisions of a trace that lead to a finding, as rows that a person can read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import msgspec

from oracle.verdict import Finding

ROWS_MAX = 40

_CONFORMANCE = {"split": "M1", "lookup": "M2", "commit": "M3", "allocate": "M5"}
"""The rule that compares each kind of decision with the reference."""

_decoder = msgspec.json.Decoder()


class Row(msgspec.Struct, frozen=True, omit_defaults=True):
    """One decision. ``expected`` is what the rule or the reference asks, where the decision ``differs``.

    ``compared``: the reference was asked, and gave the same.
    """

    step: int
    what: str
    actual: str
    expected: str = ""
    differs: bool = False
    compared: bool = False


def story(lines: Iterable[bytes], finding: Finding, judged: Mapping[str, int]) -> tuple[Row, ...]:
    """The decisions up to the one in which the finding was seen, which is the last row and differs.

    Of a long trace only what concerns the finding's request or block is kept, and the last of that.
    ``lines`` are the trace's, header first; they may be gone through twice. ``judged``: as in the verdict.
    """
    compared = {kind for kind, rule in _CONFORMANCE.items() if judged.get(rule)}
    rows = list(_rows(lines, finding, compared, whole=True))
    if len(rows) > ROWS_MAX:
        rows = list(_rows(lines, finding, compared, whole=False))
    if len(rows) > ROWS_MAX:
        left_out = len(rows) - ROWS_MAX
        rows = [Row(rows[0].step, "…", f"{left_out} decisions left out"), *rows[-ROWS_MAX:]]
    return tuple(rows)


def _rows(lines: Iterable[bytes], finding: Finding, compared: set[str], *, whole: bool) -> Iterator[Row]:
    step = 0
    for number, record in enumerate(_records(lines)):
        kind = record[0]
        seen = number >= finding.record
        what, actual = _WORDS[kind](record) if kind in _WORDS else (kind, "")
        if seen and kind == "crash":
            yield Row(step, what, actual, finding.expected, True)
            return
        if seen and kind == finding.decision:
            yield Row(step, what, finding.actual or actual, finding.expected, True)
            return
        if actual and (whole or _concerns(record, finding)):
            yield Row(step, what, actual, compared=kind in compared)
        if seen:
            break
        if kind == "step":
            step = record[1] + 1
    # What was wrong may show only later: a hash is judged once the step that fills its block has run.
    what = f"{finding.request} {finding.decision}".strip()
    yield Row(finding.step, what, finding.actual, finding.expected, True)


def count(number: int, noun: str) -> str:
    """``1 step``, ``2 steps``, ``12,345 steps``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _records(lines: Iterable[bytes]) -> Iterable[list[Any]]:
    for line in islice(lines, 1, None):
        yield from _decoder.decode(line)


def _concerns(record: list[Any], finding: Finding) -> bool:
    """Whether the record is about the finding's request or block, or about everything."""
    kind = record[0]
    if kind in ("reset", "step", "crash"):
        return kind != "step" or any(item[0] == finding.request for item in record[2])
    if kind == "evict":
        return bool(record[1] == finding.block)
    if kind == "commit" and finding.block > 0:
        return bool(record[3] == finding.block)
    return not finding.request or record[1] == finding.request


def _lookup(record: list[Any]) -> tuple[str, str]:
    _, request, known, hit, junction, _ = record
    beyond = f", junction {junction}" if junction else ""
    return f"{request} lookup", f"hit {hit} of {count(known, 'token')}{beyond}"


def _split(record: list[Any]) -> tuple[str, str]:
    _, request, start, asked, granted, *_ = record
    cut = f" (asked {asked})" if asked != granted else ""
    return f"{request} split", f"tokens {start} to {start + granted}{cut}"


def _allocate(record: list[Any]) -> tuple[str, str]:
    _, request, computed, tokens, _, granted, *_ = record
    return f"{request} allocate", "" if granted else f"refused: {count(tokens, 'token')} after {computed}"


def _commit(record: list[Any]) -> tuple[str, str]:
    _, request, group, block, position, _ = record
    return (
        f"{request or 'a copy'} commit",
        f"block {block} of group {group} stands for {count(position, 'token')}",
    )


def _step(record: list[Any]) -> tuple[str, str]:
    _, _, scheduled, zero, copies, preempted, _, _, _ = record
    parts = []
    if preempted:
        parts.append(f"drops {', '.join(preempted)}")
    if zero:
        parts.append(f"zeroes {', '.join(map(str, zero))}")
    parts += [f"copies block {source} to {target}" for source, target in copies]
    for request, start, _, tokens, drafts, accepted, *_ in scheduled:
        guessed = f" ({count(drafts, 'draft')}, {accepted} right)" if drafts else ""
        parts.append(f"computes {request} from {start} to {start + tokens}{guessed}")
    return "worker", "; ".join(parts)


_WORDS: dict[str, Callable[[list[Any]], tuple[str, str]]] = {
    "add": lambda record: (f"{record[1]} added", f"{' '.join(record[2])} ({count(record[4], 'token')})"),
    "lookup": _lookup,
    "split": _split,
    "allocate": _allocate,
    "commit": _commit,
    "evict": lambda record: ("evict", f"block {record[1]} leaves the cache"),
    "preempt": lambda record: (f"{record[1]} preempted", "back to the queue"),
    "finish": lambda record: (f"{record[1]} ended", record[2]),
    "reset": lambda record: ("reset", "done" if record[1] else "refused"),
    "step": _step,
    "crash": lambda record: ("crash", f"{record[1]} in {record[2]}: {record[3]}"),
}
