"""``kvoracle bisect``: which release, or which commit, brought a finding or took it away?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from fuzz.bisect import Change, Tried, changes, commits, releases, search, title, worktree
from fuzz.commands.common import (
    CLEAN,
    FINDINGS,
    Problem,
    engine_options,
    json_option,
    leave,
    prepared_engine,
    print_json,
)
from fuzz.commands.replay import finding_at
from fuzz.engines.names import EngineError
from fuzz.engines.open import checked_policy, open_prepared
from fuzz.findings import FindingFile, kvoracle_version
from fuzz.replay import COULD_NOT_RUN, Item, replay
from fuzz.story import count

_SHORT_HASH = 12


@click.command()
@click.argument("finding", type=click.Path(exists=True))
@click.option("--from", "first", required=True, metavar="BUILD", help="The older end: vllm==X, or a commit.")
@click.option("--to", "last", required=True, metavar="BUILD", help="The newer end.")
@click.option(
    "--checkout",
    type=click.Path(exists=True, file_okay=False),
    metavar="PATH",
    help="Bisect the commits of this git checkout, not releases.",
)
@engine_options(named=False)
@json_option
def bisect(
    finding: str,
    first: str,
    last: str,
    checkout: str | None,
    policy: str | None,
    torch_index: str | None,
    allow_cuda: bool,
    as_json: bool,
) -> None:
    """Find the first build with, or without, the FINDING, by replaying its scenario.

    All releases between the two ends are tried, so that a finding that comes and goes is seen to. Commits
    are halved, which takes for granted that it comes or goes once between the ends; each is checked out in
    a temporary folder. What does not load, refuses the scenario or does not reach the decision is skipped
    and told.

    Each build is compared with its own policy, or with --policy.

    Exit status: 0 a change was found, 1 there is none between the ends, 2 could not judge.
    """
    checked_policy(policy)
    document = finding_at(Path(finding))
    repository = Path(checkout) if checkout is not None else None
    names = releases(first, last) if repository is None else commits(repository, first, last)
    builds = _Builds(Item(Path(finding), document.scenario, document), policy, torch_index, allow_cuda)

    def attempt(name: str) -> Tried:
        tried = builds.replay_on(name) if repository is None else builds.replay_on_commit(repository, name)
        if not as_json:
            click.echo(_line(tried))
        return tried

    if not as_json:
        click.echo(_heading(document, len(names), checkout))
    tried = [attempt(name) for name in names] if repository is None else search(names, attempt)
    found = changes(tried)
    status = _status(tried, found)
    if as_json:
        print_json(_as_json(document, tried, found, status))
    else:
        click.echo("\n" + _summary(tried, found))
    leave(status)


class _Builds:
    """Replays one finding on builds, one after another."""

    def __init__(self, item: Item, policy: str | None, torch_index: str | None, allow_cuda: bool) -> None:
        self._item = item
        self._options = policy, torch_index, allow_cuda

    def replay_on(self, name: str) -> Tried:
        """Replay on an engine; one that cannot be had tells nothing."""
        try:
            engine = open_prepared(prepared_engine(name, *self._options))
        except EngineError as error:
            return Tried(name, COULD_NOT_RUN, str(error))
        try:
            outcome = replay(engine, self._item)
        finally:
            engine.close()
        return Tried(name, outcome.word, outcome.why)

    def replay_on_commit(self, repository: Path, commit: str) -> Tried:
        """Replay on a commit; its folder is gone when this returns, so that nothing names it."""
        name = title(repository, commit)
        try:
            with worktree(repository, commit) as folder:
                tried = self.replay_on(str(folder))
        except EngineError as error:
            return Tried(name, COULD_NOT_RUN, str(error))
        return Tried(name, tried.word, tried.why.replace(str(folder), commit[:_SHORT_HASH]))


def _status(tried: Sequence[Tried], found: Sequence[Change]) -> int:
    """Raises Problem where nothing can be said."""
    if found:
        return CLEAN
    for end in (tried[0], tried[-1]):
        if end.shows is None:
            raise Problem(f"could not judge: {end.name}: {end.word}{f': {end.why}' if end.why else ''}")
    return FINDINGS


def _heading(document: FindingFile, number: int, checkout: str | None) -> str:
    how = "trying each" if checkout is None else "halving, as if it came or went once"
    found = f"{' · '.join(document.signature)}, found on {document.engine.name}"
    return f"kvoracle {kvoracle_version()}: {found}\n{count(number, 'build')}, {how}\n"


def _line(tried: Tried) -> str:
    return f"{tried.word:<13}  {tried.name}{f': {tried.why}' if tried.why else ''}"


def _summary(tried: Sequence[Tried], found: Sequence[Change]) -> str:
    if not found:
        word = "have" if tried[0].shows else "lack"
        return f"no change: both ends {word} it, and so does every build between them that was tried and tells"
    return "\n".join(_change_line(change) for change in found)


def _change_line(change: Change) -> str:
    after, before = ("with", "without") if change.comes else ("without", "with")
    line = f"first {after}: {change.after} (last {before}: {change.before})"
    if change.between:
        names = ", ".join(change.between) if len(change.between) < 4 else count(len(change.between), "build")
        line += f"; between them {names} told nothing"
    return line


def _as_json(document: FindingFile, tried: Sequence[Tried], found: Sequence[Change], status: int) -> dict[str, Any]:
    return {
        "signature": document.signature,
        "builds": [{"name": one.name, "word": one.word, "why": one.why, "shows": one.shows} for one in tried],
        "changes": found,
        "exit_status": status,
    }
