"""What a person reads of a proof run, what a program reads, and the exit status that follows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from fuzz.report import width
from spec.ledger import Line, for_every_size, lines_of, summary, words_of
from spec.row import ControlRow, Row

CLEAN, FINDINGS, COULD_NOT_JUDGE = 0, 1, 2
UNDECIDED = ("unknown", "vacuous")


def exit_status(rows: Sequence[Row], controls: Sequence[ControlRow]) -> int:
    """1: a verdict was not expected; 2: something is undecided, a planted fault was missed, or nothing is proved."""
    if any(not row.as_expected for row in rows if row.verdict not in UNDECIDED):
        return FINDINGS
    proved = any(row.verdict.startswith("proved") for row in rows)
    undecided = any(row.verdict in UNDECIDED for row in rows)
    return CLEAN if proved and not undecided and all(control.caught for control in controls) else COULD_NOT_JUDGE


def proofs_text(rows: Sequence[Row], controls: Sequence[ControlRow], left_out: Sequence[str]) -> str:
    """The whole report: claim by claim, what was planted, what was left out, and the summary."""
    console = Console(width=width(), color_system=None, highlight=False)
    lines = lines_of(rows)
    with console.capture() as capture:
        for claim in dict.fromkeys(line.claim for line in lines):
            _print_claim(console, claim, [line for line in lines if line.claim == claim])
        _print_list(console, "Proved for every block size", for_every_size(rows))
        _print_controls(console, controls)
        _print_list(console, "Left out", left_out)
        console.print(summary(rows, controls))
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def _print_list(console: Console, head: str, sentences: Sequence[str]) -> None:
    console.print(head)
    for sentence in sentences or ("nothing",):
        console.print(Padding(escape(sentence), (0, 0, 0, 2)))
    console.print()


def _print_claim(console: Console, claim: str, lines: Sequence[Line]) -> None:
    console.rule(f"{claim} · {lines[0].subject}", align="left")
    for words in filter(None, words_of(claim)):
        console.print(escape(words))
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="")
    for head in ("verdict", "releases", "sizes", "requests", "features"):
        table.add_column(head, overflow="fold")
    for line in lines:
        verdict = line.verdict if line.expected else f"{line.verdict}!"
        table.add_row(*map(escape, (verdict, line.releases, line.sizes, line.regime, line.features)))
    console.print(table)
    for line in lines:
        if line.counterexample or line.reason:
            surprise = "" if line.expected else ", NOT as expected"
            reason = escape(line.reason or "no reason is known")
            console.print(Padding(f"{line.verdict}{surprise}: {reason}", (0, 0, 0, 2)))
        if line.counterexample:
            console.print(Padding(escape(line.counterexample), (0, 0, 0, 4)))
    console.print()


def _print_controls(console: Console, controls: Sequence[ControlRow]) -> None:
    """Only what was missed is told at length."""
    console.print("Planted faults")
    caught = [control.claim for control in controls if control.caught]
    if caught:
        console.print(Padding(f"noticed by {', '.join(dict.fromkeys(caught))}", (0, 0, 0, 2)))
    for control in controls:
        if not control.caught:
            missed = f"MISSED by {control.claim} ({control.verdict}): {control.planted}, {control.domain}"
            console.print(Padding(escape(missed), (0, 0, 0, 2)))
    if not controls:
        console.print("  none was tried")
    console.print()


def proofs_document(
    rows: Sequence[Row], controls: Sequence[ControlRow], settings: dict[str, Any], stats: dict[str, Any]
) -> dict[str, Any]:
    """The run as data; only ``stats`` differs from run to run."""
    return {
        "settings": settings,
        "rows": [{**_fields(row), "as_expected": row.as_expected} for row in rows],
        "controls": [{**_fields(control), "caught": control.caught} for control in controls],
        "summary": summary(rows, controls),
        "exit_status": exit_status(rows, controls),
        "stats": stats,
    }


def _fields(row: Row | ControlRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in row.__struct_fields__}
