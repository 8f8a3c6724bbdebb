"""An exported test needs nothing of kvoracle, fails on a build that has the fault and passes on one that has not."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from fuzz.engines.open import Prepared, open_prepared, prepare_engine
from fuzz.engines.protocol import Engine
from fuzz.export.upstream import upstream_test
from fuzz.findings import EngineFacts, FindingFile, Origin, decode_finding, new_finding
from fuzz.generator import scenario_at
from fuzz.replay import FIXED, STILL_THERE, Item, replay
from fuzz.smoke import SCENARIO
from fuzz.supported import withheld
from fuzz.trial import try_scenario
from oracle.scenario import Features, Request, Scenario, Step
from oracle.verdict import Finding

pytestmark = pytest.mark.engines

RunTests = Callable[[Any, dict[str, str]], dict[str, tuple[str, str]]]
SourceCopy = Callable[[str, Path, str], None]

HERE = Path(__file__).parent
VECTORS = HERE.parent / "vectors"
KNOWN_TO_CI = HERE.parent.parent / ".ci" / "expected" / "vllm-0.33.0.json"
STORED = [
    decode_finding(line, "findings-vllm-0.33.0.jsonl")
    for line in (HERE / "findings-vllm-0.33.0.jsonl").read_bytes().splitlines()
]
"""One finding for each signature that was ever seen on 0.33.0."""

SAYS = {
    "S2": r"AssertionError: \S+: the chunk from \d+ to \d+ ends inside a Mamba block",
    "S3": r"AssertionError: \S+: the chunk from \d+ to \d+ runs across the end of a Mamba block, \d+",
    "S6": r"AssertionError: the chunk from \d+ ends at \d+ and not at \d+",
    "C1": r"AssertionError: block \d+ is hashed as .* (holds that after|holds none|does not hold position) ?\d*",
    "C2": r"AssertionError: \S+ reads (position|the state after) \d+.*, which does not hold it",
    "P2": r"AssertionError: no token for \S+ in 40 steps with room, while others advanced",
    "P3": r"(assert|AssertionError).*",
    "R6": r"AssertionError: position \d+ is not kept",
    "U1": r"AssertionError: hits of \[.*\] tokens",
    "U3": r"AssertionError: hits of \[.*\] tokens",
}
"""The first line of what the test of a rule fails with."""

NO_KVORACLE = """
import importlib.util


def test_kvoracle_is_not_there():
    for room in ("fuzz", "oracle", "reference", "spec", "kvoracle"):
        assert importlib.util.find_spec(room) is None
"""
"""A test beside the exported ones: what they are run in has nothing of ours."""


@pytest.fixture(scope="module")
def opened() -> Iterator[dict[str, tuple[Prepared, Engine]]]:
    """Releases that are open, each opened once."""
    engines: dict[str, tuple[Prepared, Engine]] = {}
    yield engines
    for _, engine in engines.values():
        engine.close()


def on(opened: dict[str, tuple[Prepared, Engine]], name: str) -> tuple[Prepared, Engine]:
    if name not in opened:
        prepared = prepare_engine(name)
        opened[name] = prepared, open_prepared(prepared)
    return opened[name]


def findings(prepared: Prepared, engine: Engine, scenario: Scenario) -> dict[str, FindingFile]:
    """The findings that a scenario gives, the first of each rule."""
    trial = try_scenario(engine, scenario, compared={"D1"})
    facts = EngineFacts(prepared.name.typed, prepared.version, trial.runner, prepared.release)
    documents: dict[str, FindingFile] = {}
    for finding in trial.verdict.findings:
        documents.setdefault(finding.rule, new_finding(finding, scenario, facts, Origin(), ()))
    return documents


def vector(name: str) -> Scenario:
    document: dict[str, Any] = json.loads((VECTORS / f"{name}.json").read_text())
    return msgspec.convert(document["scenario"], Scenario)


def named(documents: list[FindingFile]) -> dict[str, FindingFile]:
    return {re.sub(r"\W+", "_", "-".join(document.signature)): document for document in documents}


def launch(name: str) -> Any:
    found = prepare_engine(name).launch
    assert found is not None
    return found


def test_the_poisoning_of_026_is_gone_in_027(opened: dict[str, tuple[Prepared, Engine]], run_tests: RunTests) -> None:
    documents = findings(*on(opened, "vllm==0.26.0"), vector("state-poisoned-by-fragment"))
    assert sorted(documents) == ["C1", "S2", "S3"]
    files = {rule: upstream_test(document) for rule, document in documents.items()} | {"nothing": NO_KVORACLE}
    faulty = run_tests(launch("vllm==0.26.0"), files)
    assert {rule: outcome for rule, (outcome, _) in faulty.items()} == dict.fromkeys(documents, "failure") | {
        "nothing": "passed"
    }
    assert all(re.fullmatch(SAYS[rule], faulty[rule][1]) for rule in documents)
    assert run_tests(launch("vllm==0.27.1"), files) == dict.fromkeys(files, ("passed", ""))


@pytest.mark.parametrize(
    ("name", "rules"), [("eagle-resend-misses", ["R6", "U3"]), ("eagle-resend-misses-inside-a-block", ["U3"])]
)
def test_a_resend_that_misses_under_eagle_is_mended_since(
    opened: dict[str, tuple[Prepared, Engine]], run_tests: RunTests, name: str, rules: list[str]
) -> None:
    documents = findings(*on(opened, "vllm==0.26.0"), vector(f"bugs/{name}"))
    assert sorted(documents) == rules
    files = {rule: upstream_test(document) for rule, document in documents.items()}
    faulty = run_tests(launch("vllm==0.26.0"), files)
    assert {rule: outcome for rule, (outcome, _) in faulty.items()} == dict.fromkeys(documents, "failure")
    assert all(re.fullmatch(SAYS[rule], faulty[rule][1]) for rule in documents)
    assert run_tests(launch("vllm==0.33.0"), files)["U3"] == ("passed", "")


def test_a_finding_is_stored_for_each_signature_that_ci_knows() -> None:
    known = {tuple(signature) for signature in json.loads(KNOWN_TO_CI.read_text())}
    assert known - {document.signature for document in STORED} == set()


def test_every_finding_on_033_fails_there(opened: dict[str, tuple[Prepared, Engine]], run_tests: RunTests) -> None:
    _, engine = on(opened, "vllm==0.33.0")
    documents = named(STORED)
    for document in STORED:
        assert replay(engine, Item(HERE, document.scenario, document)).word == STILL_THERE, document.signature
    told = run_tests(launch("vllm==0.33.0"), {name: upstream_test(one) for name, one in documents.items()})
    assert told.keys() == documents.keys()
    for name, (outcome, message) in told.items():
        assert outcome == "failure", name
        assert re.fullmatch(SAYS[documents[name].signature[0]], message), (name, message)


def test_an_export_says_of_another_release_what_a_replay_says(
    opened: dict[str, tuple[Prepared, Engine]], run_tests: RunTests
) -> None:
    """The control of the test above: where the fault is not, the same files pass."""
    _, engine = on(opened, "vllm==0.26.0")
    documents = named(STORED)
    told = run_tests(launch("vllm==0.26.0"), {name: upstream_test(one) for name, one in documents.items()})
    replays = {name: replay(engine, Item(HERE, one.scenario, one)) for name, one in documents.items()}
    # A scenario may break another rule there, by which its test cannot run to the end; statistics stop no test.
    words = {name: one.word for name, one in replays.items() if all(finding.rule == "T1" for finding in one.others)}
    expected = {STILL_THERE: "failure", FIXED: "passed"}
    compared = {name: expected[word] for name, word in words.items() if word in expected}
    assert {name: told[name][0] for name in compared} == compared
    assert list(compared.values()).count("passed") > 5


NOT_EXPORTED = ("async-deep", "runner-v2", "exact-junction", "checkpoint")
"""What an exported test does not stand in for."""


def claims(scenario: Scenario) -> list[tuple[str, str, int]]:
    """What can be tested of a scenario: rule, decision, and the group that it is about."""
    groups = range(len(scenario.geometry.groups))
    found = [claim for group in groups for claim in (("C1", "commit", group), ("C2", "step", group))]
    has_mamba = any(group.kind == "mamba" for group in scenario.geometry.groups)
    return [*found, ("S2", "split", -1)] if has_mamba else found


def test_exports_and_the_judge_agree_on_drawn_scenarios(
    opened: dict[str, tuple[Prepared, Engine]], run_tests: RunTests
) -> None:
    """A test of content simulates the worker; were that wrong, it would fail where the judge finds nothing."""
    prepared, engine = on(opened, "vllm==0.33.0")
    facts = EngineFacts(prepared.name.typed, prepared.version, "v1", prepared.release)
    files: dict[str, str] = {}
    expected: dict[str, str] = {}
    for number in range(40):
        scenario = scenario_at(11, number, without=(*withheld(prepared), *NOT_EXPORTED))
        broken = {(finding.rule, finding.group) for finding in try_scenario(engine, scenario).verdict.findings}
        for rule, decision, group in claims(scenario):
            if rule == "C2" and ("C1", group) in broken:
                continue  # once a hash is reported, the judge goes on as if the block held what it names
            finding = Finding(rule, decision, "", 0, 0, "any", group=group)
            name = f"{rule}_{number}_{group + 1}"
            files[name] = upstream_test(new_finding(finding, scenario, facts, Origin(), ()))
            expected[name] = "failure" if (rule, group) in broken else "passed"
    told = run_tests(launch("vllm==0.33.0"), files)
    assert {name: outcome for name, (outcome, _) in told.items()} == expected
    assert len(files) > 150


# --- rules that no release breaks ------------------------------------------------------------------------


def faulty_scenario(fault: str) -> Scenario:
    """Four prompts that share their beginning, called so that the fault is on."""
    requests = [replace(request, id=f"{fault}-{request.id}") for request in SCENARIO.requests()]
    if fault == "A3":
        limits = replace(SCENARIO.limits, sequences=1)
        return replace(SCENARIO, limits=limits, steps=(Step(at=0, add=tuple(requests)),))
    if fault == "S3tail":
        geometry = replace(SCENARIO.geometry, hash_block=2)
        steps = (Step(at=0, add=(Request("S3tail-r0", ("a:31",)),)),)
        return Scenario(geometry, SCENARIO.limits, steps, Features(partial_hits=True, retention=0))
    steps = tuple(replace(step, add=(one,)) for step, one in zip(SCENARIO.steps, requests, strict=True))
    return replace(SCENARIO, steps=steps)


FAULTS = ("A1", "A2", "A3", "D1", "L1", "L3", "P1", "R1", "R2", "S1", "S3junction", "S3last", "S3tail", "S4")


def test_the_other_rules_fail_on_a_build_with_their_fault_and_pass_without(
    tmp_path: Path, source_copy: SourceCopy, run_tests: RunTests
) -> None:
    source_copy("0.33.0", tmp_path, (HERE / "faults" / "scheduler_faults.py").read_text())
    prepared = prepare_engine(str(tmp_path))
    engine = open_prepared(prepared)
    try:
        documents = {fault: findings(prepared, engine, faulty_scenario(fault))[fault[:2]] for fault in FAULTS}
        assert findings(prepared, engine, faulty_scenario("none")) == {}
    finally:
        engine.close()
    files = {fault: upstream_test(document) for fault, document in documents.items()}
    faulty = run_tests(prepared.launch, files)
    assert {fault: outcome for fault, (outcome, _) in faulty.items()} == dict.fromkeys(FAULTS, "failure")
    assert all(message.startswith("AssertionError: ") for _, message in faulty.values()), faulty
    assert run_tests(launch("vllm==0.33.0"), files) == dict.fromkeys(FAULTS, ("passed", ""))
