"""Finding files: one JSON document per signature, on disk before anybody is told of it."""

from __future__ import annotations

import difflib
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from fuzz.shrink import size
from fuzz.story import Row
from fuzz.tally import Signature
from oracle.scenario import SCENARIO_FORMAT_VERSION, Scenario
from oracle.verdict import Finding
from reference.rules import RULES

FINDING_FORMAT_VERSION = 1
FOLDER = Path("kvoracle-findings")


class BadFinding(ValueError):
    """A file is no finding, or cannot be written. The message is one line: where, what, how to mend it."""


class EngineFacts(msgspec.Struct, frozen=True):
    """Which build was judged. ``name``: as typed; ``release``: whose policy it was compared with, if any."""

    name: str
    version: str
    runner: str
    release: str | None


class Origin(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a scenario came from: a campaign's seed, the scenario's number in it, and its features."""

    seed: int = -1
    index: int = -1
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    backend: str = "seeded"
    note: str = ""


class FindingFile(msgspec.Struct, frozen=True, kw_only=True):
    """The document. ``scenario`` is the smallest so far, ``original`` the one in which the finding was seen.

    ``shrunk``: nothing smaller shows it; ``attempts``: trials spent on that. ``count``: scenarios of the
    campaign that showed it. ``steps``: the decisions that lead to it, as a report prints them.
    """

    kvoracle_finding: int = FINDING_FORMAT_VERSION
    kvoracle: str
    signature: Signature
    sentence: str
    finding: Finding
    scenario: Scenario
    original: Scenario
    engine: EngineFacts
    origin: Origin
    shrunk: bool = False
    attempts: int = 0
    count: int = 1
    steps: tuple[Row, ...] = ()


def new_finding(
    finding: Finding, scenario: Scenario, engine: EngineFacts, origin: Origin, steps: Iterable[Row]
) -> FindingFile:
    """The document of a finding that was just seen in ``scenario``."""
    return FindingFile(
        kvoracle=kvoracle_version(),
        signature=finding.signature,
        sentence=sentence(finding.rule),
        finding=finding,
        scenario=scenario,
        original=scenario,
        engine=engine,
        origin=origin,
        steps=tuple(steps),
    )


def finding_document(finding: FindingFile) -> dict[str, Any]:
    """The document as data. Its scenarios name their format, so that each can be taken out and replayed."""
    document: dict[str, Any] = msgspec.to_builtins(finding)
    for name in ("scenario", "original"):
        document[name] = scenario_document(getattr(finding, name))
    return document


def scenario_document(scenario: Scenario) -> dict[str, Any]:
    """A scenario as data; msgspec alone would leave the format's version out, as it is the default."""
    return {"kvoracle_scenario": SCENARIO_FORMAT_VERSION, **msgspec.to_builtins(scenario)}


def representatives(found: Mapping[Signature, FindingFile]) -> list[Signature]:
    """One signature per rule and decision, the one with the smallest scenario; in order."""
    best: dict[tuple[str, str], Signature] = {}
    for signature in sorted(found, key=lambda s: (size(found[s].scenario), s)):
        best.setdefault(signature[:2], signature)
    return sorted(best.values())


def kvoracle_version() -> str:
    """The version of this installation."""
    try:
        return metadata.version("kvoracle")
    except metadata.PackageNotFoundError:
        return "0+source"


def sentence(rule: str) -> str:
    """The rule as a sentence."""
    return RULES[rule].sentence if rule in RULES else f"(a rule called {rule} is not known to this kvoracle)"


def no_such_rule(name: str) -> str:
    """What to tell a user who named a rule that does not exist."""
    near = difflib.get_close_matches(name.upper(), RULES, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}?" if near else f"rules are: {', '.join(RULES)}"
    return f"no such rule; {hint}"


def engine_folder(folder: Path, engine: str) -> Path:
    """Where the findings on this engine are kept."""
    return folder / _slug(engine)


def finding_path(folder: Path, engine: str, signature: Signature) -> Path:
    """Where the finding of this signature on this engine is kept."""
    return engine_folder(folder, engine) / f"{_slug('-'.join(signature))}.json"


def check_writable(folder: Path, option: str = "--folder") -> None:
    """Raise BadFinding if nothing can be stored in ``folder``; nothing is left there, not even the folder."""
    try:
        there = next(path for path in (folder, *folder.parents) if path.exists())
        with tempfile.NamedTemporaryFile(dir=there, prefix="."):
            pass
    except OSError as error:
        raise BadFinding(f"cannot write to {folder}: {error.strerror or error}; name another {option}") from None


def store(path: Path, document: FindingFile) -> None:
    """Write the document, unless a better one of the same signature and engine lies there.

    Better is the smaller scenario, and of equal ones the one that was shrunk to the end. Raises BadFinding
    if the folder cannot be written.
    """
    if not _is_better(path, document):
        write_whole(path, finding_document(document))


def write_whole(path: Path, document: dict[str, Any]) -> None:
    """Write JSON so that even a power cut leaves the old file or the new one, whole. Raises BadFinding."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", suffix=".part", delete=False) as file:
            _fill(file, msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")
        os.chmod(file.name, 0o644)
        os.replace(file.name, path)
        _sync_folder(path.parent)
    except OSError as error:
        raise BadFinding(
            f"cannot write {path}: {error.strerror or error}; free some space or name another --folder"
        ) from error


def _fill(file: Any, data: bytes) -> None:
    """Write and sync; what cannot be written to its end is removed."""
    try:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    except OSError:
        os.unlink(file.name)
        raise


def decode_finding(data: bytes, where: str) -> FindingFile:
    """Read a finding document; ``where`` names it in errors. Raises BadFinding."""
    try:
        document: Any = msgspec.json.decode(data)
        if not isinstance(document, dict) or "kvoracle_finding" not in document:
            raise BadFinding(f"{where}: not a finding; it has no field kvoracle_finding")
        if document["kvoracle_finding"] != FINDING_FORMAT_VERSION:
            raise BadFinding(
                f"{where}: finding format {document['kvoracle_finding']!r}, this kvoracle reads"
                f" {FINDING_FORMAT_VERSION}; replay its field `scenario` instead"
            )
        return msgspec.convert(document, FindingFile)
    except msgspec.DecodeError as error:
        raise BadFinding(f"{where}: damaged finding: {error}; write it anew with kvoracle fuzz") from None


def _is_better(path: Path, document: FindingFile) -> bool:
    """Whether the file at ``path`` holds a better document of the same finding."""
    try:
        earlier = decode_finding(path.read_bytes(), str(path))
    except (OSError, BadFinding):
        return False
    # Of the engine's facts the runner is the scenario's: the smallest scenario may ask for the other one.
    build, other = (msgspec.structs.replace(one.engine, runner="") for one in (earlier, document))
    return earlier.signature == document.signature and build == other and _rank(earlier) < _rank(document)


def _rank(document: FindingFile) -> tuple[tuple[int, ...], bool]:
    """Less is better."""
    return size(document.scenario), not document.shrunk


def _sync_folder(folder: Path) -> None:
    """Make the renaming itself durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.+]+", "-", text).strip("-.")[:120] or "engine"
