"""The report for a terminal; what is no terminal gets it without colours, at the width of a file."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fuzz.gate.formats import words
from fuzz.gate.model import GateFinding, GateReport
from fuzz.report import scenario_lines, scenario_size, width

_STYLES = {"identical": "bold green", "refines": "bold green", "regresses": "bold red"}
_TRENDS = {"better": "green", "worse": "red", "": ""}
_WIDE = 11
"""Columns that a name takes at the left."""


def render(report: GateReport) -> str:
    """The whole report."""
    return _printed(report, Console(width=width(), markup=False, emoji=False, highlight=False))


def render_plain(report: GateReport) -> str:
    """The whole report without colours, wherever it goes."""
    return _printed(report, Console(width=width(), markup=False, emoji=False, highlight=False, color_system=None))


def _printed(report: GateReport, console: Console) -> str:
    with console.capture() as capture:
        console.print(words.verdict(report), style=_STYLES.get(report.word, "bold yellow"), soft_wrap=True)
        console.print()
        _fact(console, "Baseline", [words.side(report.baseline)])
        _fact(console, "Candidate", [words.side(report.candidate)])
        _grounds(console, report)
        _fact(console, "Proof", words.proof(report))
        told = ", ".join(f"{word} {number:,}" for word, number in report.words.items())
        _fact(console, "Scenarios", [f"{report.scenarios:,}" + (f": {told}" if told else "")])
        _fact(console, "Mended", filter(None, [words.mended(report)]))
        _costs(console, report)
        _findings(console, report)
        _fact(console, "Known", words.known(report))
        _fact(console, "Controls", [words.controls(report), *words.missed(report)])
        _fact(console, "Time", [words.seconds(report.seconds)])
        _fact(console, "Settings", [words.facts({"kvoracle": report.kvoracle, **report.settings})])
    return "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"


def _fact(console: Console, name: str, texts: Iterable[str]) -> None:
    """A name at the left, and lines of text beside it; nothing without a text."""
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(width=_WIDE, style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for number, text in enumerate(texts):
        table.add_row(name if number == 0 else "", Text(words.plain(text)))
    if table.row_count:
        console.print(table)


def _grounds(console: Console, report: GateReport) -> None:
    told = [f"{words.place(one.place)}: {words.ground(one)}" for one in report.grounds]
    _fact(console, "Changed", told or (["no function in scope"] if report.scenarios else []))


def _costs(console: Console, report: GateReport) -> None:
    if not report.scenarios:
        return
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("Cost")
    for head in ("baseline", "candidate", "difference"):
        table.add_column(head, justify="right")
    table.add_column("")
    for row in words.cost_rows(report.costs):
        numbers = (f"{row.baseline:,}", f"{row.candidate:,}", row.difference)
        table.add_row(row.name, *numbers, row.trend, style=_TRENDS[row.trend])
    console.print()
    console.print(table)
    console.print()


def _findings(console: Console, report: GateReport) -> None:
    told = words.shown(report.new_findings)
    for one in told:
        _finding(console, report, one)
    others = [one for one in report.new_findings if one not in told]
    _fact(console, "Also", [f"{words.signature(one.signature)}: {words.seen(one)}" for one in others])
    if not report.findings and report.difference is not None:
        _finding(console, report, report.difference)
    elif others:
        console.print()


def _finding(console: Console, report: GateReport, one: GateFinding) -> None:
    console.rule(words.signature(one.signature), align="left", style="")
    console.print(words.plain(one.sentence))
    console.print()
    _finding_body(console, report, one)


def _finding_body(console: Console, report: GateReport, one: GateFinding) -> None:
    """Scenario, steps, reason, authority, what to do; in this order."""
    console.print(f"Smallest scenario: {words.plain(scenario_size(one.scenario))}", style="bold")
    console.print(Text(words.plain("\n".join(scenario_lines(one.scenario)))))
    _section(console, "", words.seen(one))
    _steps(console, one)
    _section(console, "Why", words.reason(one))
    _section(console, "Authority", words.authority(report, one))
    # Lines for a shell are not broken: they are there to be copied.
    console.print("Reproduce", style="bold")
    console.print(f"  {words.reproduce(report, one)}\n", soft_wrap=True)
    console.print("Export", style="bold")
    for line in words.export(report, one).splitlines():
        console.print(f"  {line}", soft_wrap=True)
    console.print()


def _section(console: Console, name: str, text: str) -> None:
    if name:
        console.print(name, style="bold")
    console.print(Padding(Text(text), (0, 0, 1, 2)))


def _steps(console: Console, one: GateFinding) -> None:
    """Both sides, what they have in common told once, the first difference marked."""
    console.print("Steps", style="bold")
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="")
    table.add_column("", no_wrap=True)
    table.add_column("step", justify="right", no_wrap=True)
    for head in ("decision", "baseline", "candidate"):
        table.add_column(head, overflow="fold")
    for pair in words.pairs(one):
        texts = [Text(text) for text in (f"  {pair.mark}", str(pair.step), pair.what, pair.baseline, pair.other)]
        table.add_row(*texts, style="bold" if pair.first or pair.broken else "")
    console.print(table if table.row_count else "  (none were recorded)")
    console.print(f"  {words.MARKS}\n")
