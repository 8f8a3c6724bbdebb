"""The report as one HTML file that needs nothing else: verdict, costs, grounds, findings, and a block timeline."""

from __future__ import annotations

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from fuzz.gate.formats import words
from fuzz.gate.formats.drawing import HUES, SHADES, Drawing, draw
from fuzz.gate.model import GateFinding, GateReport
from fuzz.gate.timeline import column_of, fold
from fuzz.report import scenario_lines, scenario_size
from fuzz.story import count


def render(report: GateReport) -> str:
    """The page."""
    findings = words.shown(report.new_findings)
    others = [one for one in report.new_findings if one not in findings]
    shown = findings or ([report.difference] if report.difference and not report.findings else [])
    page = _template().render(
        report=report,
        words=words,
        count=count,
        hues=[round(30 + (0.6 + 0.382 * number) % 1 * 300) for number in range(HUES)],
        shades=SHADES,
        findings=[_told(report, one) for one in shown],
        others=others,
        drawing=_drawing(report, shown[0]) if shown else None,
    )
    return page.strip() + "\n"


@cache
def _template() -> Template:
    # What goes into the page is text, whoever wrote it: engines, file names and prompts are escaped.
    loader = PackageLoader("fuzz.gate.formats", "")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["plain"] = words.plain
    return environment.get_template("gate.html.j2")


def _told(report: GateReport, one: GateFinding) -> dict[str, Any]:
    """A finding's parts, in the order of all reports."""
    return {
        "signature": words.signature(one.signature),
        "sentence": one.sentence,
        "size": scenario_size(one.scenario),
        "scenario": "\n".join(scenario_lines(one.scenario)),
        "seen": words.seen(one),
        "pairs": words.pairs(one),
        "reason": words.reason(one),
        "authority": words.authority(report, one),
        "reproduce": words.reproduce(report, one),
        "export": words.export(report, one),
    }


def _drawing(report: GateReport, one: GateFinding) -> Drawing | None:
    """The timeline of the finding's smallest scenario; None where there is no trace of it."""
    timelines = [fold(lines) for lines in one.lines]
    if not any(timeline.columns for timeline in timelines):
        return None
    column, label = None, ""
    difference = one.comparison.difference
    if difference is not None:
        sides = zip(one.lines, (difference.baseline, difference.candidate), strict=True)
        column = min(column_of(lines, decision.record) for lines, decision in sides if decision is not None)
        label = words.decision(difference.candidate or difference.baseline)
    names = (f"baseline: {report.baseline.name}", f"candidate: {report.candidate.name}")
    return draw(names, timelines, column, f"first difference: {label}")
