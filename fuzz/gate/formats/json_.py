"""The whole report as one JSON document; traces are in it as the lines that they are."""

from __future__ import annotations

from typing import Any

import msgspec

from fuzz.findings import scenario_document
from fuzz.gate.formats import words
from fuzz.gate.model import GATE_FORMAT_VERSION, GateFinding, GateReport


def render(report: GateReport) -> str:
    """The document; the order of fields is that of ``fuzz.gate.model``."""
    document: dict[str, Any] = {"kvoracle_gate": GATE_FORMAT_VERSION, **_builtins(report)}
    document["title"] = report.title
    document["findings"] = [_finding(one) for one in report.findings]
    document["difference"] = _finding(report.difference) if report.difference else None
    for ground, one in zip(document["grounds"], report.grounds, strict=True):
        ground["lines_unseen"] = one.lines_unseen
    return msgspec.json.format(msgspec.json.encode(words.plain_document(document)), indent=1).decode() + "\n"


def _finding(one: GateFinding) -> dict[str, Any]:
    """Scenarios name their format, so that they can be taken out and replayed."""
    return {**_builtins(one), "scenario": scenario_document(one.scenario)}


def _builtins(struct: msgspec.Struct) -> dict[str, Any]:
    # Bytes would become base64; here they are lines of JSON.
    document: dict[str, Any] = msgspec.to_builtins(struct, builtin_types=(bytes,))
    return {name: _texts(value) for name, value in document.items()}


def _texts(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _texts(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_texts(inner) for inner in value]
    return value.decode() if isinstance(value, bytes) else value
