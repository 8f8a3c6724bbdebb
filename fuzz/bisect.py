"""Finds between which builds a finding came or went: among releases by trying all, among commits by halving.

A build *shows* the finding when the replay of its scenario says STILL THERE, and *lacks* it when it says FIXED;
anything else (the scenario is refused, the build does not load, what it was about did not come up) *tells nothing*.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from fuzz.engines.names import SUPPORTED_RELEASES, EngineError, parse_engine_name
from fuzz.engines.provision import clean_environment
from fuzz.replay import FIXED, STILL_THERE

_GIT_SECONDS = 300.0
"""Time for git to check a revision out, which for vLLM takes a few seconds."""


class BadRange(EngineError):
    """The two ends name no range of builds; the message is one line for the user."""


class Tried(msgspec.Struct, frozen=True):
    """One build: its name, the word of its replay, and one line that says more where there is more to say."""

    name: str
    word: str
    why: str = ""

    @property
    def shows(self) -> bool | None:
        """Whether the build has the finding; None if it told nothing."""
        return {STILL_THERE: True, FIXED: False}.get(self.word)


class Change(msgspec.Struct, frozen=True):
    """Where the finding comes or goes: the last build before, the first after, and those between that tell nothing."""

    before: str
    after: str
    comes: bool
    between: tuple[str, ...] = ()


Try = Callable[[str], Tried]
"""Replays the finding on the build of that name."""


def changes(tried: Sequence[Tried]) -> list[Change]:
    """Every change among builds in their order."""
    found: list[Change] = []
    last: Tried | None = None
    unknown: list[str] = []
    for one in tried:
        if one.shows is None:
            unknown.append(one.name)
            continue
        if last is not None and last.shows != one.shows:
            found.append(Change(last.name, one.name, bool(one.shows), tuple(unknown)))
        last, unknown = one, []
    return found


# --- releases ------------------------------------------------------------------------------------------


def releases(first: str, last: str) -> list[str]:
    """The names of all supported releases from ``first`` to ``last``, both of them included, as given.

    They are so few that all are tried: a finding may come and go more than once. Raises BadRange.
    """
    ends = []
    for name in (first, last):
        parsed = parse_engine_name(name) if name.startswith("vllm") else None
        if parsed is None or parsed.kind != "release":
            raise BadRange(
                f"{name} is no release; write --from and --to like vllm=={SUPPORTED_RELEASES[0]}, or add --checkout"
            )
        ends.append(parsed.target)
    if _order(ends[0]) >= _order(ends[1]):
        raise BadRange(f"--from {first} is not before --to {last}; name the older release first")
    inner = [release for release in SUPPORTED_RELEASES if _order(ends[0]) < _order(release) < _order(ends[1])]
    return [f"vllm=={release}" for release in (ends[0], *inner, ends[1])]


def _order(version: str) -> tuple[list[int], int, str]:
    """Versions in order: a release, what led to it (``rc1``, ``.dev1``) before it, what came after (``.post1``)."""
    numbers = re.findall(r"\d+", version)[:3]
    suffix = version.removeprefix(".".join(numbers))
    rank = 1 if not suffix else 2 if suffix.startswith(".post") else 0
    return [int(number) for number in numbers], rank, suffix


# --- commits -------------------------------------------------------------------------------------------


def search(names: Sequence[str], attempt: Try) -> list[Tried]:
    """Try the two ends, then halve, until the builds next to the change are known; in the order of ``names``.

    This takes for granted that the finding comes or goes once. What tells nothing is skipped for its nearest
    neighbour. Where the ends do not differ, or one of them tells nothing, nothing else is tried.
    """
    tried = {0: attempt(names[0]), len(names) - 1: attempt(names[-1])}
    low, high = 0, len(names) - 1
    if None not in (tried[low].shows, tried[high].shows) and tried[low].shows != tried[high].shows:
        while (middle := _untried(low, high, tried)) is not None:
            tried[middle] = attempt(names[middle])
            if tried[middle].shows == tried[low].shows:
                low = middle
            elif tried[middle].shows == tried[high].shows:
                high = middle
    return [tried[index] for index in sorted(tried)]


def _untried(low: int, high: int, tried: dict[int, Tried]) -> int | None:
    """The number strictly between the two that is nearest to their middle and was not tried; None if all were."""
    left = [index for index in range(low + 1, high) if index not in tried]
    return min(left, key=lambda index: (abs(2 * index - low - high), index), default=None)


def commits(checkout: Path, first: str, last: str) -> list[str]:
    """The commits from ``first`` to ``last``, both included, the oldest first; of a merge only the first parent.

    Raises BadRange where git does not know them, or does not find the one before the other.
    """
    hashes = [_commit(checkout, name) for name in (first, last)]
    if hashes[0] == hashes[1]:
        raise BadRange(f"--from {first} and --to {last} are the same commit")
    ancestors = _git(checkout, "merge-base", "--is-ancestor", *hashes)
    if ancestors.returncode:
        raise BadRange(f"--from {first} is not before --to {last}; name two commits of one line, the older one first")
    listed = _git(checkout, "rev-list", "--first-parent", "--reverse", f"{hashes[0]}..{hashes[1]}")
    return [hashes[0], *listed.stdout.split()]


def _commit(checkout: Path, name: str) -> str:
    if not name.startswith("-"):
        found = _git(checkout, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
        if found.returncode == 0:
            return found.stdout.strip()
    raise BadRange(f"{checkout} has no commit {name}; is it a git repository, and was it fetched whole?")


def title(checkout: Path, commit: str) -> str:
    """A commit as one line: its short hash and its subject."""
    return _git(checkout, "log", "-1", "--format=%h %s", commit).stdout.strip() or commit


@contextlib.contextmanager
def worktree(checkout: Path, commit: str) -> Iterator[Path]:
    """The commit's files in a temporary folder, which is removed in the end, whatever happens.

    Raises BadRange if git cannot check it out. The user's own checkout is not touched.
    """
    with tempfile.TemporaryDirectory(prefix="kvoracle-bisect-") as scratch:
        folder = Path(scratch) / commit[:12]
        try:
            made = _git(checkout, "worktree", "add", "--detach", str(folder), commit)
            if made.returncode:
                said = made.stderr.strip().splitlines()
                raise BadRange(f"git cannot check out {commit[:12]}: {said[-1] if said else 'it says nothing'}")
            yield folder
        finally:
            if _git(checkout, "worktree", "remove", "--force", "--force", str(folder)).returncode:
                _git(checkout, "worktree", "prune", "--expire", "now")


def _git(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What git says; it is not to ask for anything, and its hooks are not to run. Raises BadRange without git."""
    command = ["git", "-C", str(checkout), "-c", "core.hooksPath=/dev/null", *arguments]
    environment = clean_environment() | {"GIT_TERMINAL_PROMPT": "0"}
    try:
        return subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=_GIT_SECONDS, env=environment
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BadRange(f"git could not be run in {checkout}: {error}") from error
