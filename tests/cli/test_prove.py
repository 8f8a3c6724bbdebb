"""``kvoracle prove`` and ``kvoracle explain``: what they print, and with which status they end."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fuzz.proofs import exit_status, proofs_text
from fuzz.public_reports import REPORTS
from reference.rules import CATALOGUE, RULES
from spec.expected import Reason
from spec.row import ControlRow, Row

from .conftest import Kvoracle

ROOT = Path(__file__).parents[2]
REGIMES = tuple(f"{drop}, {request}" for drop in ("EAGLE drop", "no drop") for request in ("fresh", "resumed"))
PROVE = ("prove", "s1", "--domain", "16/16", "--release", "0.33.0", "--jobs", "2")


def screen(text: str) -> str:
    """What was printed, without versions and the limits that are the default today."""
    text = re.sub(r"^limits: .*$", "limits: LIMITS", text, flags=re.MULTILINE)
    return re.sub(r"^kvoracle .*, Z3 .*, Python .*$", "kvoracle VERSIONS", text, flags=re.MULTILINE)


def row(verdict: str, expected: str = "proved") -> Row:
    return Row(
        claim="S1",
        rule="S1",
        subject="split",
        target="reference",
        release="0.33.0",
        sizes="B",
        features="plain",
        regime="all",
        verdict=verdict,
        expected=expected,
    )


def control(verdict: str) -> ControlRow:
    return ControlRow(claim="S1", target="reference", release="0.33.0", domain="B", planted="", verdict=verdict)


def test_what_a_claim_rests_on_is_told_with_it() -> None:
    rows = [msgspec.structs.replace(row("proved"), claim=claim) for claim in ("R4.inside", "R4.through_M3")]
    lines = proofs_text(rows, [], []).splitlines()
    assert "Claimed where: no boundary floors to 0." in lines
    assert "Through M3 and M3.zero and M3.dense." in lines


@pytest.mark.parametrize("command", ["prove", "explain"])
def test_help(kvoracle: Kvoracle, snapshot: Any, command: str) -> None:
    assert kvoracle(command, "--help").output == snapshot


def test_prove(kvoracle: Kvoracle, snapshot: Any) -> None:
    result = kvoracle(*PROVE)
    assert result.exit_code == 0
    assert screen(result.stdout) == snapshot
    again = kvoracle(*PROVE)
    assert again.stdout == result.stdout
    assert "5 of 5 tasks were proved before" in again.stderr


def test_a_wrong_expectation_is_a_finding(kvoracle: Kvoracle, monkeypatch: pytest.MonkeyPatch, snapshot: Any) -> None:
    wrong = {("S1", regime, "plain", "16/16", "0.33.0"): "refuted" for regime in REGIMES}
    monkeypatch.setattr("spec.expected._cells", lambda: wrong)
    monkeypatch.setattr("spec.expected.REASONS", (Reason(("S1",), "so we thought"),))
    result = kvoracle(*PROVE)
    assert result.exit_code == 1
    assert screen(result.stdout) == snapshot


def test_prove_as_json(kvoracle: Kvoracle) -> None:
    result = kvoracle(*PROVE, "--json")
    document = json.loads(result.stdout)
    assert result.exit_code == document["exit_status"] == 0
    parts = {"settings", "rows", "controls", "summary", "exit_status", "stats", "cvc5", "left_out", "engine"}
    assert set(document) == parts
    assert {one["claim"] for one in document["rows"]} == {"S1"}
    assert all(one["as_expected"] and one["verdict"] == "proved" and one["witness"] for one in document["rows"])
    assert [one["caught"] for one in document["controls"]] == [True]
    assert document["settings"]["limits"]["paths"] > 0


def test_an_engine_of_another_shape_could_not_be_judged(kvoracle: Kvoracle) -> None:
    Path("engine/vllm").mkdir(parents=True)
    Path("engine/vllm/__init__.py").touch()
    result = kvoracle("prove", "M1", "--domain", "16/16", "--engine", "engine")
    assert result.exit_code == 2
    assert "shape changed: " in result.stdout
    assert result.stderr.splitlines()[-1].startswith("kvoracle: could not judge: ")


def test_questions_are_written_and_asked_again(kvoracle: Kvoracle) -> None:
    pytest.importorskip("cvc5")
    result = kvoracle(*PROVE, "--smt", "smt", "--cvc5", "5")
    assert result.exit_code == 0
    assert re.search(r"^cvc5: \d of 5 agree", result.stdout, re.MULTILINE)
    assert list(Path("smt").rglob("*-path-*.smt2"))


def test_the_ledger_is_written_in_a_clone(kvoracle: Kvoracle) -> None:
    assert kvoracle(*PROVE, "--write-ledger").exit_code == 2
    Path("spec").mkdir()
    assert kvoracle(*PROVE, "--write-ledger").exit_code == 0
    assert Path("spec/LEDGER.md").read_text().startswith("# What is proved\n")


@pytest.mark.parametrize(
    ("rows", "controls", "status"),
    [
        ([row("proved"), row("refuted", "refuted")], [control("refuted")], 0),
        ([row("proved to bound", "proved to bound")], [], 0),
        ([row("proved"), row("refuted")], [], 1),
        ([row("proved", "refuted")], [], 1),
        ([row("refuted"), row("unknown")], [control("proved")], 1),
        ([row("proved"), row("unknown")], [], 2),
        ([row("proved"), row("vacuous")], [], 2),
        ([row("proved")], [control("proved")], 2),
        ([row("refuted", "refuted")], [], 2),
        ([], [], 2),
    ],
)
def test_exit_status(rows: list[Row], controls: list[ControlRow], status: int) -> None:
    assert exit_status(rows, controls) == status


@pytest.mark.parametrize(
    "arguments",
    [
        ("prove", "S33"),
        ("prove", "--domain", "16/5"),
        ("prove", "--release", "0.33"),
        ("prove", "--engine", "vlm"),
        ("prove", "--engine", "planted:junction-ignored"),
        ("prove", "M1", "--domain", "16/16"),
        ("prove", "--tier", "slow"),
        ("explain", "S33"),
        ("explain",),
    ],
    ids=" ".join,
)
def test_bad_input_is_told_in_one_line(kvoracle: Kvoracle, snapshot: Any, arguments: tuple[str, ...]) -> None:
    result = kvoracle(*arguments)
    assert result.exit_code == 2
    assert len(result.output.strip().splitlines()) == 1
    assert result.output == snapshot


def test_cvc5_that_is_missing_is_told(kvoracle: Kvoracle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cvc5", None)
    result = kvoracle(*PROVE, "--cvc5", "5")
    assert result.exit_code == 2
    assert result.output == "kvoracle: --cvc5 needs cvc5; install it with: pip install 'kvoracle[cvc5]'\n"


@pytest.mark.parametrize("rule", ["s2", "S3i", "C1"])
def test_explain(kvoracle: Kvoracle, snapshot: Any, rule: str) -> None:
    result = kvoracle("explain", rule)
    assert result.exit_code == 0
    assert result.output == snapshot


@pytest.mark.parametrize("rule", CATALOGUE)
def test_every_rule_is_explained(kvoracle: Kvoracle, rule: str) -> None:
    document = json.loads(kvoracle("explain", rule, "--json").stdout)
    assert document["rule"] == rule
    assert bool(document["judged"]) == (rule in RULES)
    if document["judged"]:
        judges = document["judged"].split(", ")
        assert all(f'"{rule}"' in (ROOT / file).read_text() for file in judges)


def test_public_reports_name_rules_that_exist() -> None:
    assert {rule for report in REPORTS for rule in report.rules} <= CATALOGUE.keys()
