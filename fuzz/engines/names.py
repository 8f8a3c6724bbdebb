"""Engine names: what a user may type after ``--engine``, and which release a build is compared with."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["release", "checkout", "interpreter", "reference", "planted"]

SUPPORTED_RELEASES: tuple[str, ...] = (
    "0.26.0",
    "0.27.1",
    "0.28.0",
    "0.29.0",
    "0.30.0",
    "0.31.0",
    "0.32.0",
    "0.33.0",
)
NEWEST_RELEASE = SUPPORTED_RELEASES[-1]
OLDEST_RELEASE = SUPPORTED_RELEASES[0]

_VERSION = re.compile(
    r"v?(?P<major>\d+)\.(?P<minor>\d+)(?:\.(?P<patch>\d+))?"
    r"(?P<suffix>(?:(?:a|b|rc)\d+)?(?:\.post\d+)?(?:\.dev\d+)?)(?P<local>\+[A-Za-z0-9.]+)?"
)
_FORMS = "vllm, vllm==VERSION, python:PATH, planted:NAME, reference, or the folder of a vLLM checkout"


class EngineError(Exception):
    """Base of the errors that mean *this engine cannot be used*; the message is one line for the user."""


class EngineNameError(EngineError):
    """An engine's name, or the version that it leads to, is not one that can be driven."""


@dataclass(frozen=True)
class EngineName:
    """A parsed engine name.

    ``typed`` is what the user typed. ``target`` depends on ``kind``: a version (``release``), an
    absolute path (``checkout``, ``interpreter``), the fault's name (``planted``), or empty (``reference``).
    """

    typed: str
    kind: Kind
    target: str = ""


def parse_engine_name(typed: str, *, planted: Collection[str] | None = None) -> EngineName:
    """Parse what the user typed.

    ``planted`` names the planted faults that exist; None leaves that check to the caller.
    Raises EngineNameError, with what is wrong and how to mend it in one line.
    """
    name = typed.strip()
    if name == "reference":
        return EngineName(typed, "reference")
    if name == "vllm":
        return EngineName(typed, "release", NEWEST_RELEASE)
    if name.startswith("vllm=="):
        return EngineName(typed, "release", _release_version(name))
    if name.startswith("python:"):
        return EngineName(typed, "interpreter", str(_interpreter(name)))
    if name.startswith("planted:"):
        return EngineName(typed, "planted", _planted_fault(name, planted))
    folder = Path(name).expanduser()
    if name and folder.exists():
        return EngineName(typed, "checkout", str(_checkout(folder)))
    raise EngineNameError(_unknown(name, planted))


def nearest_release(version: str) -> str:
    """The supported release that stands for ``version``: the one with the largest minor not above its own.

    A version newer than all of them gives the newest; ``is_newer_than_supported`` tells.
    Raises EngineNameError for a version that is malformed or older than every supported release.
    """
    major_minor = _parse(version)[:2]
    below = [release for release in SUPPORTED_RELEASES if _parse(release)[:2] <= major_minor]
    if not below:
        raise EngineNameError(
            f"vLLM {version} is older than {OLDEST_RELEASE}, the oldest release that can be driven;"
            f" use vllm=={OLDEST_RELEASE} or newer"
        )
    return below[-1]


def is_newer_than_supported(version: str) -> bool:
    """Whether ``version`` has a larger minor than every supported release, so that its policy is a guess."""
    return _parse(version)[:2] > _parse(NEWEST_RELEASE)[:2]


def _parse(version: str) -> tuple[int, int, int, str]:
    """(major, minor, patch, suffix) of a version such as ``0.33.0``, ``v0.33`` or ``0.34.0rc1+g1a2b``."""
    match = _VERSION.fullmatch(version.strip())
    if match is None:
        raise EngineNameError(f"{version!r} is not a version; write it like {NEWEST_RELEASE}")
    return int(match["major"]), int(match["minor"]), int(match["patch"] or 0), match["suffix"]


def _release_version(name: str) -> str:
    """The version in ``vllm==VERSION``, always with three numbers: one spelling, one folder in the cache."""
    asked = name.removeprefix("vllm==").strip()
    if _VERSION.fullmatch(asked) is None or "+" in asked:
        raise EngineNameError(
            f"{asked!r} is not a released vLLM version; write it like vllm=={NEWEST_RELEASE}"
            f" (supported: {', '.join(SUPPORTED_RELEASES)})"
        )
    nearest_release(asked)
    major, minor, patch, suffix = _parse(asked)
    return f"{major}.{minor}.{patch}{suffix}"


def _interpreter(name: str) -> Path:
    """The interpreter that ``python:PATH`` means.

    Its symbolic links stay unresolved: a venv's interpreter is a link, and resolved it leaves the venv.
    """
    typed = name.removeprefix("python:").strip()
    path = Path(typed).expanduser()
    if not typed or not path.exists():
        raise EngineNameError(
            f"{name}: there is no {typed or 'path'}; name an interpreter or a venv folder, like python:.venv"
        )
    if path.is_file():
        return path.absolute()
    for candidate in (path / "bin" / "python", path / "bin" / "python3"):
        if candidate.is_file():
            return candidate.absolute()
    raise EngineNameError(f"{name}: {typed} has no bin/python, so it is no venv; name a venv or an interpreter")


def _checkout(folder: Path) -> Path:
    if (folder / "vllm" / "__init__.py").is_file():
        return folder.resolve()
    if folder.name == "vllm" and (folder / "__init__.py").is_file():
        raise EngineNameError(f"{folder} is the package itself; name the folder that holds it: {folder.parent}")
    if (folder / "bin" / "python").is_file():
        raise EngineNameError(f"{folder} is a venv; write python:{folder} to use the vLLM installed in it")
    raise EngineNameError(f"{folder} is no vLLM checkout: it has no vllm/__init__.py")


def _planted_fault(name: str, planted: Collection[str] | None) -> str:
    fault = name.removeprefix("planted:").strip()
    if not fault:
        raise EngineNameError("planted: needs the name of a fault, like planted:NAME")
    if planted is not None and fault not in planted:
        raise EngineNameError(f"there is no planted fault {fault!r}{_close(fault, planted)}")
    return fault


def _close(name: str, known: Collection[str]) -> str:
    """A ``; did you mean …?`` for the names in ``known`` that look like ``name``, or nothing."""
    matches = difflib.get_close_matches(name, sorted(known), n=3, cutoff=0.6)
    return f"; did you mean {' or '.join(matches)}?" if matches else ""


def _unknown(name: str, planted: Collection[str] | None) -> str:
    known = ["reference", "vllm", *(f"vllm=={release}" for release in SUPPORTED_RELEASES)]
    known += [f"planted:{fault}" for fault in planted or ()]
    if "/" in name or name.startswith((".", "~")):
        return f"there is no folder {name}"
    return f"no engine is called {name!r}{_close(name, known)} (an engine is {_FORMS})"
