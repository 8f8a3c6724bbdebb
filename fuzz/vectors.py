"""The stored vectors: documented scenarios, each known to show a fault of some release, or to show none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from oracle.scenario import Scenario

_INSTALLED = Path(__file__).with_name("vectors")
_CLONE = Path(__file__).parents[1] / "tests" / "vectors"


class Vector(msgspec.Struct, frozen=True):
    """One vector; ``expected``: per release the rules that are broken, None where the release refuses it."""

    name: str
    mechanism: str
    report: str
    expected: dict[str, list[str] | None]
    scenario: Scenario


def vectors() -> list[Vector]:
    """All vectors, in a folder of the installed package, or with the tests of a clone; public bugs come first."""
    folder = _INSTALLED if _INSTALLED.is_dir() else _CLONE
    return [_read(path.read_bytes()) for path in sorted(folder.rglob("*.json"))]


def _read(data: bytes) -> Vector:
    document: dict[str, Any] = msgspec.json.decode(data)
    return msgspec.convert(document, Vector)
