"""``kvoracle bisect`` as a user sees it, with engines of our own in the place of releases."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fuzz.engines.names import EngineError
from fuzz.engines.open import Prepared, prepare_engine
from fuzz.findings import finding_document
from fuzz.smoke import SCENARIO
from tests.campaign.test_replay import found_by

from .conftest import Kvoracle, screen

FAULT = "planted:ends-inside-a-block"
BUILDS = ("vllm==0.26.0", "vllm==0.27.1", "vllm==0.28.0", "vllm==0.29.0")
ENDS = ("--from", BUILDS[0], "--to", BUILDS[-1])

Stand = Callable[[str], None]


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Stand:
    """``stand_in("+--?")``: which of the four releases has the fault, lacks it, or cannot be had."""

    def stand(signs: str) -> None:
        engines = {name: {"+": FAULT, "-": "reference"}.get(sign) for name, sign in zip(BUILDS, signs, strict=True)}

        def prepared(name: str, *_: Any) -> Prepared:
            if engines[name] is None:
                raise EngineError(f"{name} is not in the package index")
            return prepare_engine(engines[name])

        monkeypatch.setattr("fuzz.commands.bisect.prepared_engine", prepared)

    return stand


@pytest.fixture
def finding(kvoracle: Kvoracle) -> str:
    document = found_by("ends-inside-a-block").document
    assert document is not None
    Path("finding.json").write_bytes(msgspec.json.encode(finding_document(document)))
    return "finding.json"


def test_a_change_is_found(kvoracle: Kvoracle, stand_in: Stand, finding: str, snapshot: Any) -> None:
    stand_in("++--")
    result = kvoracle("bisect", finding, *ENDS)
    assert result.exit_code == 0
    assert result.stderr == ""
    assert screen(result.stdout) == snapshot


def test_each_change_is_told_with_what_tells_nothing(
    kvoracle: Kvoracle, stand_in: Stand, finding: str, snapshot: Any
) -> None:
    stand_in("+?-+")
    result = kvoracle("bisect", finding, *ENDS)
    assert result.exit_code == 0
    assert screen(result.stdout) == snapshot


@pytest.mark.parametrize(("signs", "word"), [("++++", "have"), ("-?--", "lack")])
def test_no_change_is_status_1(kvoracle: Kvoracle, stand_in: Stand, finding: str, signs: str, word: str) -> None:
    stand_in(signs)
    result = kvoracle("bisect", finding, *ENDS)
    assert result.exit_code == 1
    assert f"no change: both ends {word} it" in result.stdout.splitlines()[-1]


@pytest.mark.parametrize("signs", ["?+++", "---?", "????"])
def test_an_end_that_tells_nothing_is_status_2(kvoracle: Kvoracle, stand_in: Stand, finding: str, signs: str) -> None:
    stand_in(signs)
    result = kvoracle("bisect", finding, *ENDS)
    assert result.exit_code == 2
    end = BUILDS[0] if signs[0] == "?" else BUILDS[-1]
    assert result.stderr == f"kvoracle: could not judge: {end}: COULD NOT RUN: {end} is not in the package index\n"


def test_as_json(kvoracle: Kvoracle, stand_in: Stand, finding: str) -> None:
    stand_in("-?++")
    result = kvoracle("bisect", finding, *ENDS, "--json")
    document = json.loads(result.stdout)
    assert result.exit_code == document["exit_status"] == 0
    assert [build["shows"] for build in document["builds"]] == [False, None, True, True]
    assert document["changes"] == [{"before": BUILDS[0], "after": BUILDS[2], "comes": True, "between": [BUILDS[1]]}]


@pytest.mark.parametrize(
    "arguments",
    [
        ("finding.json", "--from", "vllm==0.28.0", "--to", "vllm==0.26.0"),
        ("finding.json", "--from", "vllm==0.1", "--to", "vllm==0.26.0"),
        ("finding.json", "--from", "HEAD~3", "--to", "HEAD"),
        ("finding.json", "--from", "HEAD~3", "--to", "HEAD", "--checkout", "."),
        ("finding.json", "--from", "HEAD~3", "--to", "HEAD", "--checkout", "none"),
        ("finding.json", "--to", "vllm==0.26.0"),
        ("scenario.json", *ENDS),
        ("empty.json", *ENDS),
        ("none.json", *ENDS),
        (".", *ENDS),
        ("finding.json", *ENDS, "--policy", "0.1"),
    ],
    ids=" ".join,
)
def test_bad_input_is_told_in_one_line(
    kvoracle: Kvoracle, finding: str, snapshot: Any, arguments: tuple[str, ...]
) -> None:
    Path("empty.json").write_bytes(b"")
    Path("scenario.json").write_bytes(msgspec.json.encode(SCENARIO))
    result = kvoracle("bisect", *arguments)
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr == snapshot


def test_help(kvoracle: Kvoracle, snapshot: Any) -> None:
    result = kvoracle("bisect", "--help")
    assert result.exit_code == 0
    assert result.output == snapshot
