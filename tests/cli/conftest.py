"""Runs the command line in an empty folder and returns what a user sees."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fuzz.cli import cli
from fuzz.findings import kvoracle_version

Kvoracle = Callable[..., Result]


@pytest.fixture
def kvoracle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kvoracle:
    """``kvoracle("fuzz", "--seed", "1")``: the result of the command in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KVORACLE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments: str) -> Result:
        result = CliRunner().invoke(cli, arguments, prog_name="kvoracle")
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
        return result

    return run


def screen(text: str) -> str:
    """A screen without what differs from run to run (times, shares of CPU) and from folder to folder."""
    text = text.replace(f"kvoracle {kvoracle_version()}", "kvoracle VERSION")
    text = re.sub(r"^(Time|CPU) .*(?:\n {12}.*)*", r"\1         …", text, flags=re.MULTILINE)
    return re.sub(r"/\S*/cache\b", "CACHE", text)
