"""The user's cache of engines: folders that are whole or not there at all."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import filelock

from fuzz.engines.names import EngineError

MARKER = "complete.json"

_LOCK_MINUTES = 60
"""How long one run waits for another that prepares the same folder, before it gives up."""

Say = Callable[[str], None]
Facts = dict[str, str]


class ProvisionError(EngineError):
    """An engine could not be prepared; the message is one line that says how to mend it."""


def cache_folder() -> Path:
    """Where engines are kept: ``$KVORACLE_CACHE``, or ``kvoracle`` in ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    if chosen := os.environ.get("KVORACLE_CACHE"):
        return Path(chosen).expanduser().absolute()
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home).expanduser() if home else Path.home() / ".cache").absolute() / "kvoracle"


def read_marker(folder: Path) -> Facts | None:
    """What the finished folder says of itself; None if it is not there or not finished."""
    try:
        facts = json.loads((folder / MARKER).read_text())
    except (OSError, ValueError):
        return None
    return facts if isinstance(facts, dict) else None


def build_once(folder: Path, build: Callable[[Path], Facts], *, say: Say) -> Facts:
    """Make ``folder`` with ``build``, unless it stands already; return its facts.

    ``build`` fills an empty sibling folder and returns the facts to be kept in the marker. Only then
    does the folder get its name, in one rename, so whoever finds it finds it whole. A build that was
    interrupted, even by a power cut, leaves at most a sibling that the next one sweeps away. Two runs
    that want the same folder take turns; the second finds it made.

    Raises ProvisionError if the cache cannot be written or the other run does not finish.
    """
    if (facts := read_marker(folder)) is not None:
        return facts
    with _writable(folder.parent), _lock(folder, say):
        if (facts := read_marker(folder)) is not None:
            return facts
        _sweep(folder)
        # The name is this process's own: a killed run may leave a child that still writes into its part.
        part = folder.with_name(f".{folder.name}.part-{os.getpid()}")
        try:
            part.mkdir()
            facts = build(part)
            (part / MARKER).write_text(json.dumps(facts, indent=1) + "\n")
            part.rename(folder)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return facts


def remove_folder(folder: Path, *, say: Say) -> None:
    """Remove a folder of the cache; it vanishes at once, then its files are deleted."""
    with _writable(folder.parent), _lock(folder, say):
        doomed = folder.with_name(f".{folder.name}.gone")
        shutil.rmtree(doomed, ignore_errors=True)
        folder.rename(doomed)
        shutil.rmtree(doomed)


def size_bytes(folder: Path) -> int:
    """Bytes on disk of all files below ``folder``."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # a file may go away while we count
                total += os.lstat(os.path.join(parent, name)).st_blocks * 512
    return total


def _sweep(folder: Path) -> None:
    """Delete what an interrupted build or removal left, and a folder of that name without a marker."""
    parts = folder.parent.glob(f".{folder.name}.part-*")
    for leftover in (*parts, folder.with_name(f".{folder.name}.gone"), folder):
        if leftover.exists():
            shutil.rmtree(leftover)


@contextlib.contextmanager
def _lock(folder: Path, say: Say) -> Iterator[None]:
    """Hold the folder's lock; it is the operating system's, so it ends with the process that holds it."""
    lock = filelock.FileLock(folder.with_name(f".{folder.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        say(f"another run is preparing {folder.name}; waiting for it")
        try:
            lock.acquire(timeout=_LOCK_MINUTES * 60)
        except filelock.Timeout:
            raise ProvisionError(
                f"another run has been preparing {folder} for {_LOCK_MINUTES} minutes; stop it and try again"
            ) from None
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _writable(parent: Path) -> Iterator[None]:
    """Turn what the file system refuses (full, read-only) into one clear line."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise ProvisionError(
            f"cannot write the engine cache {parent}: {error.strerror or error};"
            f" free some space or set KVORACLE_CACHE to another folder"
        ) from error
