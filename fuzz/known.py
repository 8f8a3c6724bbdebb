"""The known-findings file: signatures that are expected, each with a reason, a report and an expiry date."""

from __future__ import annotations

import datetime
import difflib
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from fuzz.findings import BadFinding, decode_finding, no_such_rule
from fuzz.tally import Signature
from oracle.scenario import Scenario
from oracle.validate import BadScenario, decode_scenario
from reference.rules import RULES

_FIELDS = ("signature", "scenario", "reason", "report", "expires")


class BadKnown(ValueError):
    """The file is malformed. The message is one line: where, what is wrong, how to mend it."""


class Known(msgspec.Struct, frozen=True):
    """One entry. ``scenario`` is re-run in every campaign; the entry excuses its signature only if it recurs.

    From ``expires`` on it excuses nothing.
    """

    signature: Signature
    scenario: Scenario
    reason: str
    report: str
    expires: datetime.date

    def expired(self, today: datetime.date) -> bool:
        """Whether the entry has run out."""
        return today >= self.expires


def load_known(path: Path, also: tuple[str, ...] = ()) -> tuple[Known, ...]:
    """Read the file. ``also``: what may stand for a rule in a signature.

    Raises BadKnown for anything that is not as ``kvoracle fuzz --help`` describes it.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadKnown(f"--known {path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadKnown(f"--known {path}: not TOML: {error}") from None
    entries = document.pop("known", [])
    if document or not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        stray = f" (found {', '.join(document)})" if document else ""
        raise BadKnown(f"--known {path}: it holds [[known]] tables and nothing else{stray}")
    known = tuple(_entry(entry, f"--known {path}, entry {n}", path.parent, also) for n, entry in enumerate(entries, 1))
    signatures = [entry.signature for entry in known]
    if twice := next((s for s in signatures if signatures.count(s) > 1), None):
        raise BadKnown(f"--known {path}: {' '.join(twice)} is listed twice; keep one entry")
    return known


def _entry(entry: dict[str, Any], where: str, folder: Path, also: tuple[str, ...]) -> Known:
    for name in entry:
        if name not in _FIELDS:
            near = difflib.get_close_matches(name, _FIELDS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"fields are {', '.join(_FIELDS)}"
            raise BadKnown(f"{where}: unknown field {name}; {hint}")
    if missing := [name for name in _FIELDS if name not in entry]:
        raise BadKnown(f"{where}: {', '.join(missing)} missing; an entry has {', '.join(_FIELDS)}")
    signature, expires = entry["signature"], entry["expires"]
    if not (isinstance(signature, list) and len(signature) == 3 and all(isinstance(s, str) for s in signature)):
        raise BadKnown(f'{where}: signature must be ["RULE", "decision", "geometry"], as a summary prints it')
    if signature[0] not in RULES and signature[0] not in also:
        raise BadKnown(f"{where}: {signature[0]}: {no_such_rule(signature[0])}")
    if isinstance(expires, datetime.datetime) or not isinstance(expires, datetime.date):
        raise BadKnown(f"{where}: expires must be a date like 2026-12-31, without quotes")
    for name in ("scenario", "reason", "report"):
        if not isinstance(entry[name], str) or not entry[name].strip():
            raise BadKnown(f"{where}: {name} must be a text that is not empty")
    scenario = _scenario(entry["scenario"], where, folder)
    return Known((signature[0], signature[1], signature[2]), scenario, entry["reason"], entry["report"], expires)


def _scenario(text: str, where: str, folder: Path) -> Scenario:
    """The scenario of an entry: inline JSON, or a file beside the known-findings file."""
    try:
        if text.lstrip().startswith("{"):
            return decode_scenario(text.encode(), where)
        return read_scenario((folder / text).read_bytes(), f"{where}: {text}")
    except OSError as error:
        raise BadKnown(f"{where}: scenario {text}: {error.strerror or error}") from None
    except (BadScenario, BadFinding) as error:
        raise BadKnown(str(error)) from None


def read_scenario(data: bytes, where: str) -> Scenario:
    """The scenario that a scenario file or a finding file holds. Raises BadScenario or BadFinding."""
    if b'"kvoracle_finding"' in data[:200]:
        return decode_finding(data, where).scenario
    return decode_scenario(data, where)
