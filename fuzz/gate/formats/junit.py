"""The report as JUnit XML: one test case for the verdict, each finding, each changed function and each control."""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree.ElementTree import Element, SubElement, indent, tostring

import msgspec

from fuzz.gate.formats import text, words
from fuzz.gate.model import Control, GateFinding, GateReport, Ground

_NAME = "kvoracle gate"


class Case(msgspec.Struct, frozen=True):
    """A test case. ``outcome``: ``failure``, ``error``, ``skipped``, or empty if it passed."""

    kind: str
    name: str
    outcome: str = ""
    message: str = ""
    details: str = ""


def render(report: GateReport) -> str:
    """A document that readers of JUnit files take (``tests/gate/schemas``)."""
    cases = list(_cases(report))
    numbers = {
        "tests": str(len(cases)),
        "failures": str(sum(case.outcome == "failure" for case in cases)),
        "errors": str(sum(case.outcome == "error" for case in cases)),
        "time": f"{sum(report.seconds.values()):.3f}",
    }
    suites = Element("testsuites", {"name": _NAME, **numbers})
    skipped = sum(case.outcome == "skipped" for case in cases)
    suite = SubElement(suites, "testsuite", {"name": _NAME, "skipped": str(skipped), **numbers})
    _properties(suite, report)
    for case in cases:
        _add(suite, case)
    SubElement(suite, "system-out").text = text.render_plain(report)
    indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + tostring(suites, encoding="unicode") + "\n"


def _cases(report: GateReport) -> Iterator[Case]:
    outcome = {0: "", 1: "failure"}.get(report.exit_status, "error")
    name = f"{report.candidate.name} against {report.baseline.name}"
    yield Case("verdict", name, outcome, words.verdict(report) if outcome else "")
    yield from (_finding(report, one) for one in report.findings)
    lets_pass = "unseen" in report.settings.get("accept", ())
    yield from (_ground(one, lets_pass) for one in report.grounds)
    yield from (_control(one) for one in report.controls)


def _finding(report: GateReport, one: GateFinding) -> Case:
    """A known one is skipped: it is there, and does not count."""
    told = f"{words.reason(one)}\n{words.authority(report, one)}\n{words.reproduce(report, one)}"
    if one.known:
        return Case("finding", words.signature(one.signature), "skipped", f"known: {one.known}", told)
    return Case("finding", words.signature(one.signature), "failure", one.sentence, told)


def _ground(one: Ground, lets_pass: bool) -> Case:
    outcome = "error" if one.lines_unseen and not lets_pass else ""
    return Case("changed", words.place(one.place), outcome, words.ground(one))


def _control(one: Control) -> Case:
    return Case("control", one.name, "" if one.caught else "error", f"missed: {one.sentence} {one.why}".strip())


def _properties(suite: Element, report: GateReport) -> None:
    facts = {
        "kvoracle": report.kvoracle,
        "baseline": words.side(report.baseline),
        "candidate": words.side(report.candidate),
        "verdict": report.title,
        "scenarios": report.scenarios,
        **report.settings,
    }
    properties = SubElement(suite, "properties")
    for name, value in facts.items():
        SubElement(properties, "property", name=words.plain(name), value=words.plain(str(value)))


def _add(suite: Element, case: Case) -> None:
    element = SubElement(suite, "testcase", classname=f"kvoracle.gate.{case.kind}", name=words.plain(case.name))
    if case.outcome:
        told = SubElement(element, case.outcome, message=words.plain(case.message), type=case.kind)
        told.text = words.plain(case.details)
