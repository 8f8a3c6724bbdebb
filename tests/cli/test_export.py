"""``kvoracle replay --export``: what is written, from the finding's file alone, and what cannot be exported."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from fuzz.export.upstream import LINE_WIDTH, NoExport, upstream_test
from fuzz.findings import FindingFile, decode_finding, finding_document
from fuzz.smoke import SCENARIO
from oracle.scenario import Request, Scenario, Step
from tests.campaign.test_replay import found_by

from .conftest import Kvoracle

STORED = [
    decode_finding(line, "")
    for line in (Path(__file__).parent.parent / "engines" / "findings-vllm-0.33.0.jsonl").read_bytes().splitlines()
]
NEEDED = {"collections", "importlib", "itertools", "json", "pytest", "torch", "typing", "vllm"}


def stored(rule: str, kind: str = "") -> FindingFile:
    return next(one for one in STORED if one.signature[0] == rule and kind in one.signature[2])


def written(document: FindingFile, name: str = "finding.json") -> str:
    Path(name).write_bytes(msgspec.json.encode(finding_document(document)))
    return name


def with_rule(document: FindingFile, rule: str, decision: str, **finding: Any) -> FindingFile:
    return replace(
        document,
        signature=(rule, decision, document.signature[2]),
        finding=replace(document.finding, rule=rule, decision=decision, **finding),
    )


def test_the_file_is_printed_or_written(kvoracle: Kvoracle, snapshot: Any) -> None:
    path = written(stored("S3"))
    printed = kvoracle("replay", path, "--export", "upstream")
    assert printed.exit_code == 0
    assert printed.stdout == snapshot
    told = kvoracle("replay", path, "--export", "upstream", "--output", "test_it.py")
    assert told.exit_code == 0
    assert told.stdout == "wrote test_it.py, from a finding on vllm==0.33.0 (version 0.33.0)\n"
    assert Path("test_it.py").read_text() == printed.stdout


def test_a_report_is_written(kvoracle: Kvoracle, snapshot: Any) -> None:
    document = stored("S2")
    result = kvoracle("replay", written(document), "--export", "issue")
    assert result.exit_code == 0
    head, test = result.stdout.split("```python\n")
    assert test.startswith(upstream_test(document))
    assert head == snapshot


@pytest.mark.parametrize("document", STORED, ids=lambda one: "-".join(one.signature))
def test_every_stored_finding_gives_a_file_of_vllm_s_own_style(document: FindingFile) -> None:
    text = upstream_test(document)
    tree = ast.parse(text)
    modules = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    modules |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {module.partition(".")[0] for module in modules} <= NEEDED
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert len([name for name in functions if name.startswith("test_")]) == 1
    assert max(map(len, text.splitlines())) <= LINE_WIDTH
    assert "kvoracle" not in text
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    imported = {name.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for name in node.names}
    assert imported <= names
    assert upstream_test(document) == text


def test_what_the_scenario_does_not_need_is_not_there() -> None:
    plain = upstream_test(stored("S3", "full+mamba/unequal/fine"))
    rich = upstream_test(stored("C1", "full+swa+mamba/eagle/fine"))
    for piece in ("SpeculativeConfig", "DraftTokenIds", "deque", "Worker", "Memory", "AsyncScheduler", "ABORTS"):
        assert piece not in plain, piece
    for piece in ("SpeculativeConfig", "deque", "Worker", "Memory", "AsyncScheduler"):
        assert piece in rich, piece


def test_events_and_limits_are_all_there() -> None:
    document = stored("P3", "full/eagle")
    request = replace(document.scenario.requests()[0], priority=3, accept=(1, 0), output="x", max_output=9)
    scenario = Scenario(
        replace(document.scenario.geometry, blocks=256),
        replace(document.scenario.limits, long_prefill_threshold=2),
        (
            Step(at=0, add=(request, replace(request, id="long", prompt=tuple(f"part{n}:11" for n in range(9))))),
            Step(at=2, abort=("long",), reset=True),
            Step(at=3, abort_in_flight=(request.id,)),
        ),
        replace(document.scenario.features, policy="priority", watermark=0.25, reserve_full_sequence=False),
    )
    text = upstream_test(replace(document, scenario=scenario))
    assert max(map(len, text.splitlines())) <= LINE_WIDTH
    for piece in (
        "priority=3",
        'policy="priority"',
        "watermark=0.25",
        "scheduler_reserve_full_isl=False",
        "long_prefill_token_threshold=2",
        'ABORTS = {2: ["long"]}',
        f'ABORTS_IN_FLIGHT = {{3: ["{request.id}"]}}',
        "if step in (2,):\n            scheduler.reset_prefix_cache()",
        f'OUTPUTS = {{"{request.id}": "x", "long": "x"}}',
        f'ACCEPTED = {{"{request.id}": [1, 0], "long": [1, 0]}}',
        '+ text("part8", 11)',
    ):
        assert piece in text, piece
    ast.parse(text)


def test_a_finding_cannot_break_out_of_the_files_docstring() -> None:
    hostile = 'it said """ and \\ and\n"""\nimport os'
    document = with_rule(stored("P3"), "P3", "exception x", reason=hostile)
    tree = ast.parse(upstream_test(document))
    assert not any(isinstance(node, ast.Import) and node.names[0].name == "os" for node in tree.body)


def deep(document: FindingFile) -> FindingFile:
    features = replace(document.scenario.features, async_depth=2)
    geometry = replace(document.scenario.geometry, blocks=99)
    return replace(document, scenario=replace(document.scenario, features=features, geometry=geometry))


def long(document: FindingFile) -> FindingFile:
    steps = (Step(at=0, add=(Request("r0", ("a:5000",)),)),)
    scenario = replace(document.scenario, steps=steps, geometry=replace(document.scenario.geometry, blocks=99_999))
    return replace(document, scenario=scenario)


def planted(_: FindingFile) -> FindingFile:
    document = found_by("ends-inside-a-block").document
    assert document is not None
    return document


REFUSED: dict[str, tuple[str, Callable[[FindingFile], FindingFile], str]] = {
    "conformance": ("S2", lambda one: with_rule(one, "M1", "split"), "M1 compares the engine with kvoracle's"),
    "unknown": ("S2", lambda one: with_rule(one, "X1", "split"), "there is no export for rule X1; there is one for S1"),
    "hang": ("P3", lambda one: with_rule(one, "P3", "hang x"), "hung or died"),
    "invisible": ("P3", lambda one: with_rule(one, "D1", "lookup"), "the runs differ in a lookup"),
    "call": ("P3", lambda one: with_rule(one, "A1", "free"), "in a call of the block pool"),
    "stop": ("S3", lambda one: with_rule(one, "S3", "split", reason="?"), "which stop was run across"),
    "kept": ("S3", lambda one: with_rule(one, "R1", "commit", expected="?"), "which block had to be kept"),
    "group": ("C1", lambda one: with_rule(one, "C1", "commit", group=-1), "does not name the group"),
    "deep": ("S3", deep, "more than one step in flight"),
    "long": ("C1", long, "too long to follow"),
    "planted": ("S3", planted, "which is no vLLM build"),
    "cannot run": (
        "S3",
        lambda one: replace(one, scenario=replace(one.scenario, limits=replace(one.scenario.limits, budget=0))),
        "its scenario cannot run",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_export_says_why_in_one_line(kvoracle: Kvoracle, name: str) -> None:
    rule, change, says = REFUSED[name]
    path = written(change(stored(rule)))
    result = kvoracle("replay", path, "--export", "upstream", "--output", "test_it.py")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"kvoracle: {path}: no export: ")
    assert says in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not Path("test_it.py").exists()


def test_a_report_of_what_has_no_test_says_so(kvoracle: Kvoracle) -> None:
    document = with_rule(stored("S2"), "M1", "split")
    engine = replace(document.engine, name="/somewhere/of/mine")
    result = kvoracle("replay", written(replace(document, engine=engine)), "--export", "issue")
    assert result.exit_code == 0
    assert "There is no stand-alone test: M1 compares the engine" in result.stdout
    assert "kvoracle replay scenario.json --engine CHECKOUT" in result.stdout
    assert "/somewhere" not in result.stdout


def test_a_planted_fault_is_nothing_to_report() -> None:
    with pytest.raises(NoExport, match="no vLLM build"):
        upstream_test(planted(stored("S3")))


@pytest.mark.parametrize(
    "arguments",
    [
        ("finding.json", "--export", "upstream", "--engine", "vllm==0.26.0"),
        ("finding.json", "--export", "upstream", "--policy", "none"),
        ("finding.json", "--export", "issue", "--json"),
        ("finding.json", "finding.json", "--export", "issue"),
        ("finding.json", "--output", "x"),
        ("finding.json", "--export", "html"),
        ("finding.json", "--export", "issue", "--output", "none/x"),
        ("scenario.json", "--export", "issue"),
        ("empty.json", "--export", "issue"),
        (".", "--export", "issue"),
    ],
    ids=" ".join,
)
def test_bad_input_is_told_in_one_line(kvoracle: Kvoracle, snapshot: Any, arguments: tuple[str, ...]) -> None:
    written(stored("S2"))
    Path("scenario.json").write_bytes(msgspec.json.encode(SCENARIO))
    Path("empty.json").write_bytes(b"")
    result = kvoracle("replay", *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr == snapshot


def test_nothing_is_run(kvoracle: Kvoracle, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("an engine was asked for")

    monkeypatch.setattr("fuzz.commands.replay.prepared_engine", never)
    monkeypatch.setattr("fuzz.commands.replay.open_prepared", never)
    assert kvoracle("replay", written(stored("C2")), "--export", "upstream").exit_code == 0
    assert not os.path.exists("kvoracle-findings")
