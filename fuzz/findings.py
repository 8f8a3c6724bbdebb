"""Finding files: one JSON document per signature, on disk before anybody is told of it."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from fuzz.shrink import size
from fuzz.story import Row
from fuzz.tally import Signature
from oracle.scenario import Scenario
from oracle.verdict import Finding
from reference.rules import RULES

FINDING_FORMAT_VERSION = 1
FOLDER = Path("kvoracle-findings")

_encoder = msgspec.json.Encoder()


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


def finding_path(folder: Path, engine: str, signature: Signature) -> Path:
    """Where the finding of this signature on this engine is kept."""
    return folder / _slug(engine) / f"{_slug('-'.join(signature))}.json"


def store(path: Path, document: FindingFile, *, keep_smaller: bool = False) -> None:
    """Write the document so that even a power cut leaves the old one or the new one, whole.

    ``keep_smaller`` leaves an earlier document of the same signature and build alone when its scenario is
    smaller. Raises BadFinding if the folder cannot be written.
    """
    if keep_smaller and _is_smaller(path, document):
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", suffix=".part", delete=False) as file:
            file.write(msgspec.json.format(_encoder.encode(document), indent=1) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.chmod(file.name, 0o644)
        os.replace(file.name, path)
        _sync_folder(path.parent)
    except OSError as error:
        raise BadFinding(
            f"cannot write {path}: {error.strerror or error}; free some space or name another --folder"
        ) from error


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


def _is_smaller(path: Path, document: FindingFile) -> bool:
    try:
        earlier = decode_finding(path.read_bytes(), str(path))
    except (OSError, BadFinding):
        return False
    same = earlier.signature == document.signature and earlier.engine == document.engine
    return same and size(earlier.scenario) < size(document.scenario)


def _sync_folder(folder: Path) -> None:
    """Make the renaming itself durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.+]+", "-", text).strip("-.")[:120] or "engine"
