"""The report for GitHub Actions: workflow commands that annotate lines, and the summary of a step."""

from __future__ import annotations

from collections.abc import Iterator

from fuzz.gate.formats import markdown, words
from fuzz.gate.model import GateFinding, GateReport, Place

SUMMARY_BYTES_MAX = 1 << 20
"""GitHub drops the summary of a step that is larger."""

_CUT = "\n\n(cut: GitHub takes no more; the other formats have it all)\n"


def render(report: GateReport) -> str:
    """Workflow commands, one a line, to be printed."""
    return "".join(f"{command}\n" for command in _commands(report))


def summary(report: GateReport) -> str:
    """Markdown to be appended to the file that ``$GITHUB_STEP_SUMMARY`` names."""
    text = markdown.render(report)
    if len(text.encode()) <= SUMMARY_BYTES_MAX:
        return text
    room = SUMMARY_BYTES_MAX - len(_CUT.encode())
    return text.encode()[:room].decode(errors="ignore") + _CUT


def _commands(report: GateReport) -> Iterator[str]:
    judged = report.word != "could not judge"
    yield _command("notice" if judged else "error", words.verdict(report), "kvoracle gate")
    for one in report.findings:
        yield _finding(report, one)
    for ground in report.grounds:
        for line in ground.lines_unseen[:1]:
            place = Place(ground.place.file, ground.place.function, line)
            yield _command("warning", f"{ground.place.function}: {words.ground(ground)}", "not judged", place)


def _finding(report: GateReport, one: GateFinding) -> str:
    title = words.signature(one.signature)
    if one.known:
        return _command("notice", f"known: {one.known}", title, one.place)
    told = f"{one.sentence}\n{words.reason(one)}\n{words.reproduce(report, one)}"
    return _command("error", told, title, one.place)


def _command(name: str, message: str, title: str, place: Place | None = None) -> str:
    """A command as the runner reads it. Source: ``command.ts`` of GitHub's ``@actions/core``."""
    properties = {"title": title}
    if place is not None:
        properties = {"file": words.path(place), "line": str(max(1, place.line)), "title": title}
    told = ",".join(f"{key}={_property(value)}" for key, value in properties.items())
    return f"::{name} {told}::{_message(message)}"


def _message(text: str) -> str:
    return words.plain(text).replace("%", "%25").replace("\n", "%0A")


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")
