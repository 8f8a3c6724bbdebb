"""Bisecting on real builds: over releases, and over the commits of a repository with a release's sources."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from fuzz.cli import cli
from fuzz.engines.open import open_engine
from fuzz.findings import EngineFacts, Origin, finding_document, new_finding
from fuzz.trial import try_scenario
from oracle.scenario import Scenario

pytestmark = pytest.mark.engines

SourceCopy = Callable[[str, Path, str], None]

VECTORS = Path(__file__).parent.parent / "vectors"
SCHEDULER = Path("vllm/v1/core/sched/scheduler.py")

SPLIT_IS_GONE = "\n\nScheduler._mamba_block_aligned_split = lambda self, request, asked, *computed: asked\n"
DOES_NOT_LOAD = "\n\nraise RuntimeError('half of a change')\n"
"""Changes to a release's scheduler."""


@pytest.fixture(scope="module")
def finding(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The poisoning of 0.26.0, by rule S2."""
    document: dict[str, Any] = json.loads((VECTORS / "state-poisoned-by-fragment.json").read_text())
    scenario = msgspec.convert(document["scenario"], Scenario)
    engine = open_engine("vllm==0.26.0")
    try:
        trial = try_scenario(engine, scenario)
    finally:
        engine.close()
    facts = EngineFacts(engine.name, engine.version, trial.runner, engine.release)
    found = next(found for found in trial.verdict.findings if found.rule == "S2")
    path = tmp_path_factory.mktemp("finding") / "finding.json"
    path.write_bytes(msgspec.json.encode(finding_document(new_finding(found, scenario, facts, Origin(), ()))))
    return path


def bisect(*arguments: str) -> tuple[Result, dict[str, Any]]:
    result = CliRunner().invoke(cli, ["bisect", *arguments, "--json"], prog_name="kvoracle")
    return result, json.loads(result.stdout)


def test_the_poisoning_went_with_027(finding: Path) -> None:
    result, document = bisect(str(finding), "--from", "vllm==0.26.0", "--to", "vllm==0.27.1")
    assert result.exit_code == 0
    words = {build["name"]: build["word"] for build in document["builds"]}
    assert words == {"vllm==0.26.0": "STILL THERE", "vllm==0.27.1": "FIXED"}
    assert document["changes"] == [{"before": "vllm==0.26.0", "after": "vllm==0.27.1", "comes": False, "between": []}]


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(tmp_path: Path, source_copy: SourceCopy) -> Path:
    """0.33.0's sources; the third of five commits does not load, from the fourth on there is no split."""
    folder = tmp_path / "repository"
    source_copy("0.33.0", folder, "")
    released = (folder / SCHEDULER).read_text()
    git(folder, "init", "--quiet", "--initial-branch=main")
    for name, appended in (
        ("release", ""),
        ("comment", "\n# nothing new\n"),
        ("half a change", DOES_NOT_LOAD),
        ("the change", SPLIT_IS_GONE),
        ("more", f"{SPLIT_IS_GONE}# more\n"),
    ):
        (folder / SCHEDULER).write_text(released + appended)
        git(folder, "add", "--all")
        git(folder, "commit", "--quiet", "--message", name)
    return folder


def test_a_commit_is_found_and_one_that_does_not_load_is_told(finding: Path, repository: Path) -> None:
    before = git(repository, "status", "--porcelain")
    ends = ("--from", "HEAD~4", "--to", "main", "--checkout", str(repository))
    result, document = bisect(str(finding), *ends)
    assert result.exit_code == 0, result.output
    words = {build["name"].partition(" ")[2]: build["word"] for build in document["builds"]}
    assert words == {
        "release": "FIXED",
        "comment": "FIXED",
        "half a change": "COULD NOT RUN",
        "the change": "STILL THERE",
        "more": "STILL THERE",
    }
    (change,) = document["changes"]
    assert change["comes"]
    assert [name.partition(" ")[2] for name in (change["before"], change["after"])] == ["comment", "the change"]
    assert [name.partition(" ")[2] for name in change["between"]] == ["half a change"]
    (reason,) = [build["why"] for build in document["builds"] if build["word"] == "COULD NOT RUN"]
    assert "half of a change" in reason
    assert "kvoracle-bisect-" not in reason
    assert len(git(repository, "worktree", "list").splitlines()) == 1
    assert git(repository, "status", "--porcelain") == before
