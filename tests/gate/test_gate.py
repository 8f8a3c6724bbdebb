"""``kvoracle gate`` on real builds: what changes nothing passes, what changes something for the worse does not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fuzz.cli import cli
from fuzz.engines.sources import source_tree
from fuzz.gate.source_file import read_source

RELEASE = "vllm==0.33.0"
SCHEDULER = "v1/core/sched/scheduler.py"
FEW = ("--time", "20m", "--scenarios", "240")


def gate(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["gate", "--baseline", RELEASE, *arguments])


def report(result: Result) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(result.stdout)
    return document


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout of the release that can be changed."""
    folder = tmp_path_factory.mktemp("checkout")
    shutil.copytree(source_tree(RELEASE) / "vllm", folder / "vllm", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def edited(folder: Path, file: str, old: str, new: str) -> str:
    """Replace a text that is there once; gives the file as it was."""
    path = folder / "vllm" / file
    before = path.read_text()
    assert before.count(old) == 1, old
    path.write_text(before.replace(old, new))
    return before


def split_text(folder: Path) -> str:
    """The source of the split."""
    source = read_source(folder, SCHEDULER)
    function = source.functions["Scheduler._mamba_block_aligned_split"][-1]
    return "\n".join(source.text.splitlines()[function.lineno - 1 : function.end_lineno])


@pytest.mark.engines
def test_a_build_is_identical_to_itself_and_that_is_not_taken_for_granted(tmp_path: Path) -> None:
    result = gate("--engine", RELEASE, *FEW, "--format", "json", "--folder", str(tmp_path))
    told = report(result)
    assert result.exit_code == 0, result.stderr
    assert told["word"] == "identical"
    assert told["scenarios"] >= 200
    assert told["words"] == {"identical": told["scenarios"]}
    assert told["controls"]
    assert all(control["caught"] for control in told["controls"])
    assert told["grounds"] == []
    assert not list(tmp_path.rglob("*.json"))


POOL, MANAGERS = "v1/core/block_pool.py", "v1/core/single_type_kv_cache_manager.py"
PRESERVING = (
    (
        SCHEDULER,
        "prefill_end = max(request.num_prompt_tokens, request.num_tokens - 1)\n        if start >= prefill_end:",
        "prefill_end = request.num_tokens - 1\n        if prefill_end < request.num_prompt_tokens:\n"
        "            prefill_end = request.num_prompt_tokens\n        if start >= prefill_end:",
    ),
    (
        SCHEDULER,
        "next_block_boundary = (start // block_size + 1) * block_size",
        "next_block_boundary = block_size * (1 + start // block_size)",
    ),
    (SCHEDULER, "            aligned_end = end // block_size * block_size\n            if aligned_end > start",
     "            aligned_end = end - end % block_size\n            if start < aligned_end"),
    (MANAGERS, "        shift = 1 if use_eagle else 0\n", "        shift = 0 if not use_eagle else 1\n"),
    (POOL, "                self.free_block_queue.remove(block)\n            block.ref_cnt += 1",
     "                self.free_block_queue.remove(block)\n            block.ref_cnt = 1 + block.ref_cnt"),
)  # fmt: skip
"""Texts of the release, and others that do the same: a split that is rewritten, operands in another order."""


@pytest.mark.engines
def test_what_is_written_otherwise_is_identical_and_the_split_and_mask_are_proved_equal(
    checkout: Path, tmp_path: Path
) -> None:
    before = {file: (checkout / "vllm" / file).read_text() for file in (SCHEDULER, POOL, MANAGERS)}
    for file, old, new in PRESERVING:
        edited(checkout, file, old, new)
    body = split_text(checkout)
    path = checkout / "vllm" / SCHEDULER
    path.write_text(path.read_text().replace(body, body.replace("junction_stop", "stop_at_junction")))
    try:
        result = gate("--engine", str(checkout), *FEW, "--format", "json", "--folder", str(tmp_path))
    finally:
        for file, text in before.items():
            (checkout / "vllm" / file).write_text(text)
    told = report(result)
    assert (result.exit_code, told["word"], told["findings"]) == (0, "identical", []), (told["reason"], told["proof"])
    status = {ground["place"]["function"]: ground["status"] for ground in told["grounds"]}
    assert status == {
        "BlockPool.touch": "executed",
        "Scheduler._mamba_block_aligned_split": "proved equal",
        "SlidingWindowManager.reachable_block_mask": "proved equal",
    }


@pytest.mark.engines
def test_a_split_that_decides_otherwise_regresses_and_its_finding_can_be_replayed(
    checkout: Path, tmp_path: Path
) -> None:
    before = edited(checkout, SCHEDULER, "if end < prefill_end:", "if end <= prefill_end:")
    page = tmp_path / "gate.html"
    try:
        arguments = ["--engine", str(checkout), *FEW, "--format", "json", "--format", f"html={page}"]
        result = gate(*arguments, "--folder", str(tmp_path / "findings"))
        told = report(result)
        first = told["findings"][0]
        replayed = CliRunner().invoke(cli, ["replay", first["path"], "--engine", str(checkout)])
    finally:
        (checkout / "vllm" / SCHEDULER).write_text(before)
    assert (result.exit_code, told["word"]) == (1, "regresses"), result.stderr
    assert first["layer"] in ("directed", "vector", "fuzz")
    assert "STILL THERE" in replayed.output
    assert page.stat().st_size > 10_000


@pytest.mark.engines
def test_a_candidate_that_cannot_be_imported_is_no_verdict(checkout: Path, tmp_path: Path) -> None:
    before = edited(checkout, SCHEDULER, "class Scheduler(SchedulerInterface):", "class Scheduler(NoSuchInterface):")
    try:
        result = gate("--engine", str(checkout), "--time", "60s", "--folder", str(tmp_path))
    finally:
        (checkout / "vllm" / SCHEDULER).write_text(before)
    assert result.exit_code == 2
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("kvoracle: could not judge:")
    assert "NoSuchInterface" in last


@pytest.mark.engines
def test_a_time_that_is_too_short_for_a_scenario_is_no_verdict(tmp_path: Path) -> None:
    result = gate("--engine", RELEASE, "--time", "1s", "--folder", str(tmp_path))
    assert result.exit_code == 2
    assert "no scenario ran on both builds in the time given" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--engine", "reference"], "reference is no build of vLLM"),
        (["--engine", "vllm=="], "not a released vLLM version"),
        (["--format", "pdf"], "there is no format 'pdf'"),
        (["--format", "json", "--format", "sarif"], "stdout is taken by json"),
        (["--format", "json=no-such-folder/x"], "there is no folder no-such-folder"),
        (["--accept", "regresses"], "regresses"),
        (["--known", "no-such.toml"], "no-such.toml"),
        (["--time", "soon"], "'soon' is no time"),
        (["--policy", "0.1"], "no such policy"),
    ],
)
def test_bad_input_is_one_line_and_status_2(arguments: list[str], says: str, tmp_path: Path) -> None:
    result = gate(*arguments, "--folder", str(tmp_path))
    assert result.exit_code == 2
    assert says in result.stderr.strip().splitlines()[-1]
