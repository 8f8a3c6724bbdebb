"""Replays findings and scenarios on an engine, and says of each what became of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from fuzz.engines.protocol import Engine
from fuzz.findings import BadFinding, FindingFile, decode_finding
from fuzz.tally import by_signature
from fuzz.trial import Trial, try_scenario
from fuzz.twins import TWIN_RULES
from oracle.scenario import Scenario
from oracle.validate import BadScenario, check, decode_scenario
from oracle.verdict import Finding
from reference.rules import RULES

STILL_THERE, FIXED, NOT_REACHED, COULD_NOT_RUN = "STILL THERE", "FIXED", "NOT REACHED", "COULD NOT RUN"
VIOLATES, CONFORMS = "VIOLATES", "CONFORMS"

_decoder = msgspec.json.Decoder()


class Item(msgspec.Struct):
    """Something to replay: a scenario, and the finding that it gave (None: a bare scenario)."""

    path: Path
    scenario: Scenario
    document: FindingFile | None = None


class Replayed(msgspec.Struct):
    """What became of an item. ``word`` is one of the constants above, ``why`` one line, empty if plain.

    ``finding`` is the one that is still there; ``others`` are findings that were not looked for.
    """

    path: Path
    word: str
    why: str
    lines: list[bytes] = msgspec.field(default_factory=list)
    runner: str = ""
    judged: dict[str, int] = msgspec.field(default_factory=dict)
    finding: Finding | None = None
    others: list[Finding] = msgspec.field(default_factory=list)


def items(path: Path) -> Iterator[Item | Replayed]:
    """What a file or folder holds; what cannot be read comes as a ``Replayed`` that says why."""
    if path.is_dir():
        found = sorted(file for file in path.rglob("*.json") if file.is_file())
        if not found:
            yield Replayed(path, COULD_NOT_RUN, "the folder holds no .json file")
        for file in found:
            yield from items(file)
        return
    try:
        data = path.read_bytes()
        if b'"kvoracle_finding"' in data[:200]:
            document = decode_finding(data, str(path))
            yield Item(path, document.scenario, document)
        else:
            yield Item(path, decode_scenario(data, str(path)))
    except OSError as error:
        yield Replayed(path, COULD_NOT_RUN, error.strerror or str(error))
    except (BadFinding, BadScenario) as error:
        yield Replayed(path, COULD_NOT_RUN, str(error).removeprefix(f"{path}: "))


def replay(engine: Engine, item: Item) -> Replayed:
    """Run an item on the engine. A finding is FIXED only if what it was about was judged, to the end."""
    reasons = check(item.scenario)
    if reasons:
        return Replayed(item.path, COULD_NOT_RUN, "; ".join(reasons))
    expected = item.document.finding if item.document else None
    wanted = frozenset(RULES) if expected is None else frozenset({expected.rule})
    trial = try_scenario(engine, item.scenario, compared=wanted)
    word, why, finding = _judge(trial, expected)
    if word == FIXED and item.document and (other := _by_another_policy(engine, item.document)):
        word, why = NOT_REACHED, other
    others = [
        other
        for signature, other in by_signature(trial.verdict.findings).items()
        if finding is None or signature != finding.signature
    ]
    return Replayed(item.path, word, why, trial.lines, trial.runner, trial.verdict.judged, finding, others)


def _by_another_policy(engine: Engine, document: FindingFile) -> str:
    """Why a conformance finding that is gone says nothing of the build: it was compared with something else."""
    was, rule = document.engine, document.signature[0]
    if rule not in RULES or not RULES[rule].conformance or engine.release == was.release:
        return ""
    if (engine.name, engine.version) != (was.name, was.version):
        return ""
    return f"could not compare: it was found by {_policy(was.release)}, and this is {_policy(engine.release)}"


def _policy(release: str | None) -> str:
    return f"the policy of {release}" if release else "no policy"


def _judge(trial: Trial, expected: Finding | None) -> tuple[str, str, Finding | None]:
    if trial.could_not_run:
        return COULD_NOT_RUN, trial.could_not_run, None
    if expected is None:
        if trial.verdict.findings:
            return VIOLATES, "", trial.verdict.findings[0]
        return (CONFORMS, "", None) if any(trial.verdict.judged.values()) else (NOT_REACHED, "nothing judged", None)
    found = by_signature(trial.verdict.findings)
    if again := found.get(expected.signature):
        return STILL_THERE, "", again
    # Another build may take the wrong turn at another decision; to call that fixed would be wrong.
    if elsewhere := next((f for f in found.values() if f.rule == expected.rule), None):
        return STILL_THERE, f"at another decision: {elsewhere.decision}", elsewhere
    if missing := not_reached(trial, expected):
        return NOT_REACHED, missing, None
    return FIXED, "", None


def not_reached(trial: Trial, expected: Finding) -> str:
    """Why a trace without the finding does not show that it is gone; empty when it does."""
    records = [record for line in trial.lines[1:] for record in _decoder.decode(line)]
    last = records[-1] if records else ["nothing"]
    if last[0] == "crash":
        return f"the engine ended with {last[1]} in {last[2]}: {last[3]}"
    if last[0] != "end":
        return "the trace breaks off before its end"
    if expected.rule == "P3":
        return ""  # to have run to the end is what was asked
    if last[2]:
        return f"{', '.join(last[2])} did not end"
    if not trial.verdict.judged.get(expected.rule):
        return f"{expected.rule} had nothing to judge"
    if not any(_is_about(record, expected) for record in records):
        about = f" of {expected.request}" if expected.request else ""
        return f"no {expected.decision}{about} was seen"
    return ""


def _is_about(record: list[Any], expected: Finding) -> bool:
    """Whether the record is a decision of the kind, for the request or the group, that the finding was about.

    Block ids are the engine's free choice, so a finding about a block is looked for in its group.
    """
    if expected.rule == "D1" or expected.rule in TWIN_RULES:
        return True
    kind = record[0]
    if kind != expected.decision:
        # Findings of the books and of progress come at a decision that every trace has: its end.
        return expected.decision in ("end", "snapshot") and kind == "end"
    if kind == "step":
        return not expected.request or any(item[0] == expected.request for item in record[2])
    if kind in ("cache", "commit"):
        right_request = not expected.request or record[1] == expected.request
        return right_request and (expected.group < 0 or record[2] == expected.group)
    return not expected.request or record[1] == expected.request
