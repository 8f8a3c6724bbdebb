"""The report as SARIF 2.1.0: findings on the lines of the candidate's source that take the decision."""

from __future__ import annotations

import hashlib
from typing import Any
from urllib.parse import quote

import msgspec

from fuzz.findings import scenario_document
from fuzz.gate.formats import words
from fuzz.gate.model import GateFinding, GateReport, Ground, Place
from reference.rules import RULES

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"

_SCHEDULER = Place("v1/core/sched/scheduler.py", "Scheduler.schedule", 1)
"""Where a finding is put whose function is not known: code scanning takes no result without a file."""


def render(report: GateReport) -> str:
    """One log with one run."""
    run = {
        "tool": {"driver": {"name": "kvoracle", "version": report.kvoracle, "rules": _rules(report)}},
        "invocations": [_invocation(report)],
        "results": [_result(report, one) for one in report.findings],
        "columnKind": "unicodeCodePoints",
        "properties": {"verdict": report.title, "baseline": report.baseline.name, "candidate": report.candidate.name},
    }
    document = words.plain_document({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]})
    return msgspec.json.format(msgspec.json.encode(document), indent=1).decode() + "\n"


def _ids(report: GateReport) -> list[str]:
    """The rules of the findings, each once."""
    return list(dict.fromkeys(one.signature[0] for one in report.findings))


def _rules(report: GateReport) -> list[dict[str, Any]]:
    sentences = {one.signature[0]: one.sentence for one in reversed(report.findings)}
    return [
        {
            "id": rule,
            "shortDescription": {"text": sentences[rule]},
            "fullDescription": {"text": sentences[rule]},
            "help": {"text": f"kvoracle explain {rule}" if rule in RULES else sentences[rule]},
            "defaultConfiguration": {"level": "error"},
        }
        for rule in _ids(report)
    ]


def _result(report: GateReport, one: GateFinding) -> dict[str, Any]:
    told = f"{one.sentence}\n\n{words.reason(one)}\n\n{words.authority(report, one)}"
    result = {
        "ruleId": one.signature[0],
        "ruleIndex": _ids(report).index(one.signature[0]),
        "level": "note" if one.known else "error",
        "message": {"text": f"{told}\n\n{words.reproduce(report, one)}"},
        "locations": [_location(one.place or _SCHEDULER)],
        "partialFingerprints": {"kvoracleSignature/v1": _fingerprint(one)},
        "occurrenceCount": max(1, one.count),
        "properties": {"signature": list(one.signature), "scenario": scenario_document(one.scenario)},
    }
    if one.known:
        result["suppressions"] = [{"kind": "external", "status": "accepted", "justification": one.known}]
    return result


def _fingerprint(one: GateFinding) -> str:
    """The same for the same fault in every run, wherever its lines move."""
    return hashlib.sha256("\n".join(one.signature).encode("utf-8", "replace")).hexdigest()


def _location(place: Place) -> dict[str, Any]:
    uri = quote(words.plain(words.path(place)))
    return {
        "physicalLocation": {
            "artifactLocation": {"uri": uri, "uriBaseId": "%SRCROOT%"},
            "region": {"startLine": max(1, place.line)},
        },
        "logicalLocations": [{"fullyQualifiedName": place.function, "kind": "function"}],
    }


def _invocation(report: GateReport) -> dict[str, Any]:
    """Whether there was a judgement, and what stands in its way."""
    judged = report.word != "could not judge"
    notes = [] if judged else [{"level": "error", "message": {"text": words.verdict(report)}}]
    notes += [_unseen(ground) for ground in report.grounds if ground.lines_unseen]
    invocation = {"executionSuccessful": judged, "exitCode": report.exit_status}
    return {**invocation, "toolExecutionNotifications": notes} if notes else invocation


def _unseen(ground: Ground) -> dict[str, Any]:
    place = msgspec.structs.replace(ground.place, line=ground.lines_unseen[0])
    text = f"{words.place(ground.place)}: {words.ground(ground)}"
    return {"level": "warning", "message": {"text": text}, "locations": [_location(place)]}
