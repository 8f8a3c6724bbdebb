"""The GitHub Action: its inputs reach the command line, its outputs what the gate said."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
from pathlib import Path

import pytest

CLONE = Path(__file__).parents[2]
ACTION = (CLONE / "action.yml").read_text()

FAKE = """#!/usr/bin/env bash
printf '%s\\n' "$@" > "$ARGUMENTS"
for one in "$@"; do case "$one" in json=*) printf '{"word": "%s"}' "$WORD" > "${one#json=}" ;; esac; done
exit "$STATUS"
"""


def run(tmp_path: Path, word: str, status: int, **inputs: str) -> tuple[int, list[str], str]:
    """The step of the action with a command in the place of kvoracle: status, its arguments, the step's outputs."""
    fake = tmp_path / "kvoracle"
    fake.write_text(FAKE)
    fake.chmod(0o755)
    output = tmp_path / "output"
    environment = {"ENGINE": ".", "BASELINE": "vllm", "TIME": "5m", "KNOWN": "", "ACCEPT": "", "REQUIRE_PROOF": "false",
                   "ARGUMENTS": str(tmp_path / "arguments"), "WORD": word, "STATUS": str(status),
                   "GITHUB_OUTPUT": str(output), "PATH": os.environ["PATH"]} | inputs  # fmt: skip
    script = str(CLONE / ".ci" / "action.sh")
    done = subprocess.run(["bash", script, str(fake), str(tmp_path / "out")], env=environment, check=False)
    return done.returncode, (tmp_path / "arguments").read_text().splitlines(), output.read_text()


@pytest.mark.parametrize(("word", "status"), [("identical", 0), ("regresses", 1), ("could not judge", 2)])
def test_the_step_ends_as_the_gate_does_and_tells_its_verdict(tmp_path: Path, word: str, status: int) -> None:
    code, _, output = run(tmp_path, word, status)
    assert code == status
    assert f"verdict={word}\n" in output
    assert f"report={tmp_path / 'out'}\n" in output


def test_inputs_become_options(tmp_path: Path) -> None:
    inputs = {"ENGINE": "my checkout", "BASELINE": "vllm==0.32.0", "TIME": "3m", "KNOWN": "known.toml",
              "ACCEPT": "incomparable unseen", "REQUIRE_PROOF": "true"}  # fmt: skip
    _, arguments, _ = run(tmp_path, "identical", 0, **inputs)
    pairs = list(itertools.pairwise(arguments))
    for pair in (
        ("--engine", "my checkout"),
        ("--baseline", "vllm==0.32.0"),
        ("--time", "3m"),
        ("--known", "known.toml"),
        ("--accept", "incomparable"),
        ("--accept", "unseen"),
    ):
        assert pair in pairs
    assert "--require-proof" in arguments


def test_an_input_is_never_run_as_code(tmp_path: Path) -> None:
    _, arguments, _ = run(tmp_path, "identical", 0, ENGINE="$(touch hacked); `touch hacked`")
    assert "$(touch hacked); `touch hacked`" in arguments
    steps = ACTION[ACTION.index("runs:") :]
    scripts = re.findall(r"run: (?:\|\n(?:        .*\n)+|.*\n)", steps)
    assert scripts
    assert not [script for script in scripts if "inputs." in script]


def test_without_options_none_is_passed(tmp_path: Path) -> None:
    _, arguments, _ = run(tmp_path, "identical", 0)
    assert not {"--known", "--accept", "--require-proof"} & {*arguments}


def test_every_input_of_the_action_is_used() -> None:
    names = re.findall(r"^  ([a-z-]+):\n    description", ACTION[: ACTION.index("outputs:")], re.MULTILINE)
    assert set(names) == {"engine", "baseline", "time", "known-findings", "accept", "require-proof", "python-version"}
    assert not [name for name in names if f"inputs.{name} " not in ACTION]
