"""Whole screens, as a user sees them. ``pytest --snapshot-update`` writes them anew; read the difference."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
import zstandard

from fuzz.engines.open import open_engine
from fuzz.report import width
from fuzz.smoke import SCENARIO
from oracle.judge import BadTrace

from .conftest import Kvoracle, screen

FAULT = "planted:ends-inside-a-block"
FUZZ = ("fuzz", "--engine", FAULT, "--seed", "1", "--scenarios", "20", "--workers", "1")


@pytest.mark.parametrize(
    "command", ["", "fuzz", "judge", "replay", "shrink", "engines", "features", "schema", "selftest"]
)
def test_help(kvoracle: Kvoracle, snapshot: Any, command: str) -> None:
    result = kvoracle(*command.split(), "--help")
    assert result.exit_code == 0
    assert result.output == snapshot


def test_fuzz_with_findings(kvoracle: Kvoracle, snapshot: Any) -> None:
    result = kvoracle(*FUZZ)
    assert result.exit_code == 1
    # On a busy machine it says where it is.
    assert [line for line in result.stderr.splitlines() if not line.startswith(("fuzzing:", "shrinking:"))] == []
    assert screen(result.stdout) == snapshot


def test_fuzz_without_findings(kvoracle: Kvoracle, snapshot: Any) -> None:
    result = kvoracle("fuzz", "--engine", "reference", "--seed", "1", "--scenarios", "20", "--workers", "2")
    assert result.exit_code == 0
    assert screen(result.stdout) == snapshot


def test_fuzz_that_could_not_judge(kvoracle: Kvoracle, snapshot: Any) -> None:
    only = ("--only", "shared-prefix", "--rule", "S2,L1")
    result = kvoracle("fuzz", "--engine", "reference", "--seed", "1", "--scenarios", "5", "--workers", "1", *only)
    assert result.exit_code == 2
    assert result.stderr == "kvoracle: could not judge: nothing to judge by S2\n"
    assert screen(result.stdout) == snapshot


def test_fuzz_against_the_reference_engine(kvoracle: Kvoracle, snapshot: Any) -> None:
    command = ("fuzz", "--engine", "planted:never-hits", "--seed", "1", "--scenarios", "20", "--rule", "A1")
    result = kvoracle(*command, "--workers", "1", "--against", "reference")
    assert result.exit_code == 0
    assert screen(result.stdout) == snapshot
    document = json.loads(kvoracle(*command, "--workers", "2", "--against", "reference", "--json").stdout)["against"]
    told = re.search(r"hit tokens +0 +([\d,]+) +0\.000", result.stdout)
    assert told is not None
    hits = document["costs"]["hit_tokens"]
    assert hits == {"engine": 0, "reference": int(told[1].replace(",", "")), "ratio": 0.0}
    assert set(document["largest_losses"]) == {"hit_tokens", "steps"}
    assert json.loads(kvoracle(*command, "--json").stdout)["against"] is None


def test_costs_are_not_compared_without_a_policy(kvoracle: Kvoracle) -> None:
    result = kvoracle("fuzz", "--engine", "reference", "--policy", "none", "--against", "reference")
    assert result.exit_code == 2
    assert "the reference engine follows a policy" in result.stderr


def test_fuzz_as_json(kvoracle: Kvoracle) -> None:
    result = kvoracle(*FUZZ, "--json")
    document = json.loads(result.stdout)
    assert result.exit_code == document["exit_status"] == 1
    assert document["engine"]["name"] == FAULT
    assert document["settings"]["source"]["seed"] == 1
    assert all(Path(finding["path"]).is_file() for finding in document["findings"])
    assert result.stderr.startswith(FAULT)


def stored(kvoracle: Kvoracle) -> Path:
    kvoracle(*FUZZ, "--rule", "S2")
    return min(Path("kvoracle-findings").rglob("S2*.json"))


def test_replay(kvoracle: Kvoracle, snapshot: Any) -> None:
    path = str(stored(kvoracle))
    again = kvoracle("replay", path, "--engine", FAULT)
    fixed = kvoracle("replay", path, "--engine", "reference")
    assert (again.exit_code, fixed.exit_code) == (1, 0)
    assert screen(again.stdout) == snapshot(name="still there")
    assert screen(fixed.stdout) == snapshot(name="fixed")


def test_replay_as_json(kvoracle: Kvoracle) -> None:
    stored(kvoracle)
    result = kvoracle("replay", "kvoracle-findings", "--engine", "reference", "--json")
    document = json.loads(result.stdout)
    assert {item["word"] for item in document["items"]} == {"FIXED"}
    assert document["engine"]["runner"] == "v1"


def test_a_finding_is_replayed_by_the_policy_that_it_was_found_by(kvoracle: Kvoracle) -> None:
    fault = "planted:stops-a-block-early"
    found = kvoracle(
        "fuzz", "--engine", fault, "--seed", "1", "--scenarios", "20", "--rule", "m1", "--policy", "0.30.0"
    )
    told = re.search(rf"(\S+/M1\S*\.json) --engine {fault} --policy 0\.30\.0\n", found.stdout)
    assert told is not None
    path = told[1]
    again = kvoracle("replay", path, "--engine", fault)
    assert again.exit_code == 1
    assert "policy of 0.30.0" in again.stdout.splitlines()[0]
    other = kvoracle("replay", path, "--engine", fault, "--policy", "0.33.0")
    assert "policy of 0.33.0" in other.stdout.splitlines()[0]


def test_replay_writes_traces_to_judge(kvoracle: Kvoracle) -> None:
    path = str(stored(kvoracle))
    kvoracle("replay", path, path, "--engine", FAULT, "--trace", "traces")
    traces = sorted(str(file) for file in Path("traces").iterdir())
    assert traces == [f"traces/{Path(path).stem}-2.jsonl.zst", f"traces/{Path(path).stem}.jsonl.zst"]
    judged = kvoracle("judge", *traces)
    assert judged.exit_code == 1
    assert judged.stdout.count(": violates") == 2


def test_replay_of_what_cannot_run(kvoracle: Kvoracle, snapshot: Any) -> None:
    Path("bad.json").write_bytes(msgspec.json.encode(SCENARIO).replace(b'"budget":16', b'"budget":1'))
    result = kvoracle("replay", "bad.json", "--engine", "reference")
    assert result.exit_code == 2
    assert screen(result.stdout) == snapshot


def test_shrink(kvoracle: Kvoracle, snapshot: Any) -> None:
    Path("scenario.json").write_bytes(msgspec.json.encode(SCENARIO))
    result = kvoracle("shrink", "scenario.json", "--engine", FAULT, "--rule", "S2")
    assert result.exit_code == 1
    assert screen(result.stdout) == snapshot


def test_a_short_shrink_takes_nothing_back(kvoracle: Kvoracle) -> None:
    path = stored(kvoracle)
    before = json.loads(path.read_bytes())
    result = kvoracle("shrink", str(path), "--engine", FAULT, "--attempts", "1", "--json")
    (document,) = json.loads(result.stdout)
    assert document["path"] == str(path)
    assert (document["shrunk"], document["attempts"]) == (True, before["attempts"] + 1)
    assert json.loads(path.read_bytes())["shrunk"]


def test_shrink_by_a_rule_that_says_nothing(kvoracle: Kvoracle) -> None:
    Path("scenario.json").write_bytes(msgspec.json.encode(SCENARIO))
    result = kvoracle("shrink", "scenario.json", "--engine", FAULT, "--rule", "p3")
    assert result.exit_code == 2
    assert f"{FAULT} gives no finding by P3 on it (there is one by " in result.stderr


def test_shrink_of_what_shows_nothing(kvoracle: Kvoracle) -> None:
    Path("scenario.json").write_bytes(msgspec.json.encode(SCENARIO))
    result = kvoracle("shrink", "scenario.json", "--engine", "reference")
    assert result.exit_code == 2
    assert result.stderr == "kvoracle: scenario.json: reference gives no finding on it; there is nothing to shrink\n"


def trace(engine: str) -> bytes:
    return open_engine(engine).run(SCENARIO).trace()


def test_judge(kvoracle: Kvoracle, snapshot: Any) -> None:
    Path("bad.jsonl.zst").write_bytes(zstandard.compress(trace(FAULT)))
    Path("good.jsonl").write_bytes(trace("reference"))
    result = kvoracle("judge", "good.jsonl", "bad.jsonl.zst", "--rule", "S2,C1")
    assert result.exit_code == 1
    assert result.stderr == ""
    assert screen(result.stdout) == snapshot


@pytest.mark.parametrize("compressed", [False, True])
def test_judge_keeps_the_verdict_on_what_was_not_cut_off(kvoracle: Kvoracle, compressed: bool) -> None:
    head, tail = trace(FAULT)[:-200], trace(FAULT)[-200:]
    # A recorder that flushes now and then writes several frames.
    data = zstandard.compress(head) + zstandard.compress(tail)[:-10] if compressed else head
    Path("cut.jsonl").write_bytes(data)
    result = kvoracle("judge", "cut.jsonl", "--json")
    (document,) = json.loads(result.stdout)
    assert document["word"] == "violates"
    assert result.exit_code == 1
    assert "cut off" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_an_archive_of_which_nothing_is_left_is_told(kvoracle: Kvoracle) -> None:
    Path("cut.zst").write_bytes(zstandard.compress(trace(FAULT))[:-10])
    result = kvoracle("judge", "cut.zst")
    assert result.exit_code == 2
    assert result.stderr.startswith("kvoracle: cut.zst: the archive is cut off")


def test_a_cut_off_clean_trace_is_no_pass(kvoracle: Kvoracle) -> None:
    Path("cut.jsonl").write_bytes(trace("reference")[:-10])
    result = kvoracle("judge", "cut.jsonl")
    assert result.exit_code == 2


@pytest.mark.parametrize("cut", ["at a line's end", "inside a line", "inside the archive"])
def test_a_trace_without_its_end_is_no_pass(kvoracle: Kvoracle, cut: str) -> None:
    lines = trace("reference").splitlines(keepends=True)
    whole = b"".join(lines[:-1])
    data = {
        "at a line's end": whole,
        "inside a line": whole[:-10],
        "inside the archive": zstandard.compress(whole) + zstandard.compress(lines[-1])[:-4],
    }[cut]
    Path("cut").write_bytes(data)
    result = kvoracle("judge", "cut")
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert "cut: not judged" in result.stdout


@pytest.mark.parametrize("error", [KeyError("x"), ZeroDivisionError("x"), BadTrace("it does not fit")])
def test_what_does_not_fit_is_told_with_its_line(
    kvoracle: Kvoracle, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    Path("good.jsonl").write_bytes(trace("reference"))

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("oracle.judge.Judge.feed_all", fail)
    result = kvoracle("judge", "good.jsonl")
    assert result.exit_code == 2
    assert result.stderr.startswith("kvoracle: good.jsonl: line 2")
    assert len(result.stderr.splitlines()) == 1


def test_judge_says_which_rules_had_nothing_to_judge(kvoracle: Kvoracle) -> None:
    Path("good.jsonl").write_bytes(trace("reference").replace(b'"version":"0.33.0"', b'"version":"0.99.0"'))
    text = kvoracle("judge", "good.jsonl").stdout
    (document,) = json.loads(kvoracle("judge", "good.jsonl", "--json").stdout)
    assert "D1" in document["not_judged"]
    assert f"  not judged: {', '.join(document['not_judged'])}\n" in text
    assert "  note: vllm 0.99.0 is newer than all supported releases" in text


def test_selftest(kvoracle: Kvoracle) -> None:
    result = kvoracle("selftest", "--json")
    document = json.loads(result.stdout)
    assert document["missed"] == []
    assert result.exit_code == 0
    assert {control["rule"] for control in document["controls"]} >= {"C1", "C2", "A1", "A2", "A3", "D1"}


def test_the_matrix_marks_each_fault_under_its_rule(kvoracle: Kvoracle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuzz.commands.selftest.controls", lambda: ["budget-plus-one", "junction-never-found"])
    lines = kvoracle("selftest", "--matrix").stdout.splitlines()
    assert [line.split() for line in lines if line.startswith((" ", "budget", "junction"))] == [
        ["U1", "A3", "M1", "M2"],
        ["budget-plus-one", ".", "X", "+", "."],
        ["junction-never-found", "X", ".", ".", "+"],
    ]


def test_selftest_fails_when_a_control_is_missed(kvoracle: Kvoracle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuzz.commands.selftest.controls", lambda: ["stale-hash"])
    # The first scenario takes no block that was hashed before.
    result = kvoracle("selftest", "--workers", "1", "--scenarios", "1")
    assert result.exit_code == 1
    assert "MISSED" in result.stdout


def test_engines(kvoracle: Kvoracle, snapshot: Any) -> None:
    assert screen(kvoracle("engines", "list").stdout) == snapshot(name="list")
    assert kvoracle("engines", "check", "reference").stdout == snapshot(name="check")
    broken = kvoracle("engines", "check", "planted:junction-ignored")
    assert broken.exit_code == 1


@pytest.mark.parametrize("document", ["scenario", "header", "records", "finding"])
def test_schema_describes_what_is_written(kvoracle: Kvoracle, document: str) -> None:
    result = kvoracle("schema", document)
    assert result.exit_code == 0
    assert "$ref" in json.loads(result.stdout) or "items" in json.loads(result.stdout)


@pytest.mark.parametrize(
    "arguments",
    [
        ("fuzz", "--engine", "vlm"),
        ("fuzz", "--engine", "planted:stale-hsh"),
        ("fuzz", "--engine", "reference", "--policy", "0.1"),
        ("fuzz", "--engine", "reference", "--rule", "S99"),
        ("fuzz", "--engine", "reference", "--only", "mambo"),
        ("fuzz", "--engine", "reference", "--only", "mamba", "--without", "mamba"),
        ("fuzz", "--engine", "reference", "--known", "none.toml"),
        ("replay", "empty.json", "--engine", "reference"),
        ("shrink", "empty.json", "--engine", "reference"),
        ("judge", "empty.json"),
        ("judge", "none.jsonl"),
        ("engines", "remove", "vllm==9.9.9"),
        ("engines", "check"),
        ("fuzz", "--engine", "reference", "--policy", "0.28.0", "--only", "checkpoint"),
        ("fuzz", "--engine", "reference", "--only", "eagle-flag", "--without", "eagle"),
        ("fuzz", "--engine", "reference", "--folder", "empty.json"),
        ("fuzz", "--engine", "reference", "--folder", "empty.json/x"),
        ("shrink", "empty.json", "--engine", "reference", "--time", "soon"),
        ("fuzz", "--workers", "0"),
        ("selftest", "--time", "5m"),
        ("selftest", "--bugs", "--workers", "1"),
        ("fuz",),
        ("--fast", "fuzz"),
    ],
    ids=" ".join,
)
def test_bad_input_is_told_in_one_line(kvoracle: Kvoracle, snapshot: Any, arguments: tuple[str, ...]) -> None:
    Path("empty.json").write_bytes(b"")
    result = kvoracle(*arguments)
    assert result.exit_code == 2
    assert len(screen(result.output).strip().splitlines()) <= 2
    assert screen(result.output) == snapshot


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (KeyboardInterrupt(), "kvoracle: interrupted"),
        (click.Abort(), "kvoracle: interrupted"),
        (RuntimeError("oh"), "kvoracle failed, please report this"),
        (EOFError(), "kvoracle failed, please report this"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_no_mistake_of_ours_looks_like_a_finding(
    kvoracle: Kvoracle, monkeypatch: pytest.MonkeyPatch, error: BaseException, says: str
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("fuzz.commands.selftest.controls", fail)
    result = kvoracle("selftest")
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1] == says
    assert ("Traceback" in result.stderr) == (says == "kvoracle failed, please report this")


def test_a_report_is_as_wide_as_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert width() == 100
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    for columns, expected in (("80", 80), ("200", 100), ("20", 60)):
        monkeypatch.setenv("COLUMNS", columns)
        assert width() == expected
