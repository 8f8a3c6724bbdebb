"""Real vLLM builds are driven faithfully: every decision is seen, repeats itself, and known faults show.

These tests fail, and never skip, when an engine cannot be had; ``-m "not engines"`` leaves them out.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fuzz.engines.conforming import ReferenceEngine, open_reference
from fuzz.engines.open import Prepared, open_prepared, prepare_engine
from fuzz.engines.process import VllmEngine
from fuzz.generator import scenario_at
from fuzz.refusals import refused_by
from fuzz.smoke import smoke
from fuzz.supported import withheld
from fuzz.trial import try_scenario
from oracle.compare import first_difference, outcome_of
from oracle.geometry import saves_states
from oracle.judge import judge_lines
from oracle.scenario import Scenario
from oracle.trace import header_decoder
from oracle.validate import check

pytestmark = pytest.mark.engines

VECTORS = sorted((Path(__file__).parent.parent / "vectors").rglob("*.json"))


def scenarios(prepared: Prepared, seed: int, number: int) -> list[Scenario]:
    release = prepared.release or ""
    drawn = (scenario_at(seed, index, without=withheld(prepared)) for index in range(number))
    return [scenario for scenario in drawn if not refused_by(scenario, release)]


def vector(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_the_smoke_scenario_gives_its_known_decisions(engine: VllmEngine) -> None:
    assert smoke(engine).works


def test_every_decision_point_is_found(engine: VllmEngine, prepared: Prepared) -> None:
    scenario = scenarios(prepared, 1, 1)[0]
    header = header_decoder.decode(engine.run(scenario).lines[0])
    assert header.missing == ()
    assert header.runner == scenario.features.runner
    assert header.version == prepared.version


def test_its_decisions_are_those_of_its_policy(engine: VllmEngine, prepared: Prepared) -> None:
    judged: dict[str, int] = {}
    for scenario in scenarios(prepared, 5, 300):
        trial = try_scenario(engine, scenario)
        assert trial.could_not_run == ""
        conformance = [finding for finding in trial.verdict.findings if finding.rule.startswith(("M", "A", "L"))]
        assert conformance == [], msgspec.json.encode(scenario).decode()
        for rule, times in trial.verdict.judged.items():
            judged[rule] = judged.get(rule, 0) + times
    assert min(judged[rule] for rule in ("M1", "M2", "M3", "L1", "L3", "A1", "A2", "A3", "C1", "C2")) > 1000


def test_another_policy_is_told_apart(engine: VllmEngine, prepared: Prepared) -> None:
    """The control of the test above: judged by the other release's policy, decisions differ."""
    other = "0.26.0" if prepared.release == "0.33.0" else "0.33.0"
    rules = set()
    for scenario in scenarios(prepared, 5, 150):
        rules |= {finding.rule for finding in judge_lines(engine.run(scenario).lines, other).findings}
    assert {"M1", "M3"} <= rules


@pytest.mark.parametrize("path", VECTORS, ids=[path.stem for path in VECTORS])
def test_a_documented_scenario_has_its_verdict(engine: VllmEngine, prepared: Prepared, path: Path) -> None:
    document = vector(path)
    scenario = msgspec.convert(document["scenario"], Scenario)
    assert check(scenario) == []
    expected = document["expected"][prepared.release]
    run = engine.run(scenario)
    if expected is None:
        assert run.refused
        return
    assert run.refused == ""
    verdict = judge_lines(run.lines, prepared.release)
    assert sorted({finding.rule for finding in verdict.findings}) == expected


def test_vectors_show_faults_on_both_builds_and_silence_on_one(prepared: Prepared) -> None:
    """What is present on one release and absent on the other keeps the vectors from being vacuous."""
    documents = [vector(path)["expected"] for path in VECTORS]
    assert any(expected[prepared.release] for expected in documents)
    assert any(expected[prepared.release] == [] for expected in documents)


def test_a_scenario_alone_and_after_a_thousand_others_gives_the_same_bytes(prepared: Prepared) -> None:
    watched = scenarios(prepared, 3, 60)[::7][:3]
    alone = []
    for scenario in watched:
        fresh = open_prepared(prepared)
        alone.append(fresh.run(scenario).trace())
        fresh.close()
    used = open_prepared(prepared)
    try:
        for scenario in scenarios(prepared, 4, 1000):
            used.run(scenario)
        assert [used.run(scenario).trace() for scenario in watched] == alone
    finally:
        used.close()
    assert len({hashlib.sha256(trace).digest() for trace in alone}) == len(watched)


def test_recording_off_takes_the_same_decisions(engine: VllmEngine, prepared: Prepared) -> None:
    """Observation changes nothing: with it off the engine is built and run all the same, and says nothing."""
    scenario = scenarios(prepared, 6, 1)[0]
    before = engine.run(scenario).trace()
    silent = engine.run(scenario, record=False)
    assert silent.lines == []
    assert silent.cpu["calls"] > 0
    assert engine.run(scenario).trace() == before


def test_an_exception_in_the_engine_is_a_result_and_the_process_goes_on() -> None:
    document = next(vector(path) for path in VECTORS if path.stem == "padding-cut-by-the-threshold")
    engine = open_prepared(prepare_engine("vllm==0.33.0"))
    try:
        trial = try_scenario(engine, msgspec.convert(document["scenario"], Scenario))
        assert [finding.rule for finding in trial.verdict.findings] == ["P3"]
        assert "Scheduler.schedule" in trial.verdict.findings[0].decision
        assert smoke(engine).works
    finally:
        engine.close()


def test_a_state_saved_inside_a_chunk_moves_the_split_as_the_policy_says() -> None:
    """The newest release only: from 0.29 there are such backends. Judged as if there were none, decisions differ."""
    prepared = prepare_engine("vllm==0.33.0")
    only = ("mamba", "checkpoint", "partial-hits", "shared-prefix")
    engine = open_prepared(prepared)
    try:
        trials = [try_scenario(engine, scenario_at(3, index, only=only)) for index in range(120)]
    finally:
        engine.close()
    found = [finding for trial in trials for finding in trial.verdict.findings if finding.rule in ("M1", "M2", "S1")]
    assert found == []
    assert sum(trial.verdict.judged.get("M1", 0) for trial in trials) > 1000
    blind = [judge_lines(without_saved_states(trial.lines), "0.33.0", frozenset({"M1"})) for trial in trials]
    assert any(verdict.findings for verdict in blind)


@pytest.mark.parametrize("more", [("small-pool",), ("partial-hits",)], ids=lambda more: more[0])
def test_where_states_are_saved_the_reference_engine_decides_as_the_release(more: tuple[str, ...]) -> None:
    """Every decision of both, in scenarios without drafts: with them a resumed request begins otherwise."""
    only = ("mamba", "checkpoint", "retention-zero", "shared-prefix", *more)
    drawn = [scenario_at(5, index, only=only) for index in range(80)]
    reference = open_reference("0.33.0")
    engine = open_prepared(prepare_engine("vllm==0.33.0"))
    try:
        outcomes = [[outcome_of(one, build.run(one).lines, ()) for build in (reference, engine)] for one in drawn]
    finally:
        engine.close()
    assert [index for index, pair in enumerate(outcomes) if first_difference(*pair) is not None] == []
    saving = [scenario for scenario in drawn if saves_states(scenario.geometry)]
    assert len(saving) > 40
    assert any(
        first_difference(outcome_of(one, unsaved(reference, one), ()), pair[1])
        for one, pair in zip(drawn, outcomes, strict=True)
    )


def test_the_reference_engine_has_the_setting_of_the_release() -> None:
    """Where blocks are equal: else the release takes the smallest for the split's grid (54076)."""
    asked = ("mamba", "eagle", "partial-hits", "exact-junction")
    sets = (("mamba", "checkpoint", "coarse-checkpoint"), asked, (*asked, "block-drop"))
    drawn = [scenario_at(6, index, only=only) for only in sets for index in range(40)]
    features = ("hash_block", "alignment", "partial_hits", "block_drop", "lookahead_hash", "drop_groups")
    features += ("exact_junction", "checkpoint_alignment", "lookahead", "retention", "watermark_blocks")
    reference = open_reference("0.33.0")
    engine = open_prepared(prepare_engine("vllm==0.33.0"))
    seen: set[tuple[bool, bool]] = set()
    try:
        for scenario in drawn:
            if not refused_by(scenario, "0.33.0"):
                ours, theirs = (
                    header_decoder.decode(build.run(scenario).lines[0]).setup for build in (reference, engine)
                )
                assert [getattr(ours, name) for name in features] == [getattr(theirs, name) for name in features]
                seen.add((ours.exact_junction, ours.checkpoint_alignment > 0))
    finally:
        engine.close()
    assert seen == {(False, False), (True, False), (False, True)}


def unsaved(reference: ReferenceEngine, scenario: Scenario) -> list[bytes]:
    """What the reference engine does if no state is saved inside a chunk."""
    groups = tuple(msgspec.structs.replace(group, checkpoint=0) for group in scenario.geometry.groups)
    geometry = msgspec.structs.replace(scenario.geometry, groups=groups)
    return reference.run(msgspec.structs.replace(scenario, geometry=geometry)).lines


def without_saved_states(lines: list[bytes]) -> list[bytes]:
    """The same trace, said to be of a build that saves no state inside a chunk."""
    header = header_decoder.decode(lines[0])
    setup = msgspec.structs.replace(header.setup, checkpoint_alignment=0)
    return [msgspec.json.encode(msgspec.structs.replace(header, setup=setup)), *lines[1:]]
