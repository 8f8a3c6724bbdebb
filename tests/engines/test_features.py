"""Features that a build only has when it is told so are on when a scenario asks for them, and are judged."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from fuzz.engines.open import Prepared, open_prepared, prepare_engine
from fuzz.engines.process import VllmEngine
from fuzz.generator import scenario_at
from fuzz.supported import unsupported, withheld
from fuzz.trial import Trial, try_scenario
from oracle import trace
from oracle.judge import Judge, judge_lines
from oracle.scenario import Features, Geometry, Group, Limits, Request, Scenario, Step
from oracle.trace import header_decoder

pytestmark = pytest.mark.engines

FULL_MAMBA = (Group("full", 8), Group("mamba", 8))


def drawn(prepared: Prepared, number: int, *only: str) -> list[Scenario]:
    """Scenarios with these features, of those that the build does not refuse."""
    refused = unsupported(prepared)
    features = tuple(feature for feature in only if feature not in withheld(prepared))
    found = [scenario_at(23, index, only=features) for index in range(number)]
    return [scenario for scenario in found if not refused(scenario)]


def records(trial: Trial) -> list[trace.AnyRecord]:
    assert trial.could_not_run == ""
    return [record for line in trial.lines[1:] for record in trace.records_decoder.decode(line)]


def decisions(trial: Trial) -> list[trace.AnyRecord]:
    """All but the snapshots, which the text of the scenario places."""
    return [record for record in records(trial) if not isinstance(record, trace.Snapshot)]


def kinds(trial: Trial, kind: type) -> list[trace.AnyRecord]:
    return [record for record in records(trial) if isinstance(record, kind)]


def test_a_request_that_skips_the_lookup_gets_nothing_and_serves_others(engine: VllmEngine) -> None:
    sent = [Request(f"r{number}", ("a:19",), 2, skips_lookup=number == 1) for number in range(3)]
    given = Scenario(
        Geometry(FULL_MAMBA, 8, 60), Limits(16, 4), tuple(Step(8 * n, add=(one,)) for n, one in enumerate(sent))
    )
    trial = try_scenario(engine, given)
    assert trial.verdict.findings == []
    assert [record.hit for record in kinds(trial, trace.Lookup) if isinstance(record, trace.Lookup)] == [0, 0, 16]
    alone = replace(given, steps=given.steps[1:])
    assert [r.hit for r in kinds(try_scenario(engine, alone), trace.Lookup) if isinstance(r, trace.Lookup)] == [0, 16]


def test_both_flavours_of_the_runner_are_driven_and_decide_alike(prepared: Prepared, engine: VllmEngine) -> None:
    """Without drafts nothing that the scheduler decides depends on the flavour."""
    resumed = 0
    for scenario in drawn(prepared, 40, "mamba", "small-pool", "optimistic", "shared-prefix", "spread", "async"):
        one, two = (
            try_scenario(engine, replace(scenario, features=replace(scenario.features, runner=runner)))
            for runner in ("v1", "v2")
        )
        assert (one.runner, two.runner) == ("v1", "v2")
        assert decisions(one) == decisions(two)
        resumed += two.verdict.coverage.get("resumed", 0)
    assert resumed > 0


@pytest.mark.parametrize("more", [(), ("async",)])
def test_drafts_that_runner_v2_keeps_are_accepted(
    prepared: Prepared, engine: VllmEngine, more: tuple[str, ...]
) -> None:
    accepted = 0
    for scenario in drawn(prepared, 40, "eagle", "runner-v2", "block-drop", *more):
        trial = try_scenario(engine, scenario)
        assert not {finding.rule for finding in trial.verdict.findings} & {"C1", "C2", "M3", "P3"}
        if scenario.features.runner == "v2":
            accepted += trial.verdict.coverage.get("draft accepted", 0)
    assert accepted > 40


SAVES = Scenario(
    Geometry((Group("full", 4), Group("mamba", 4, checkpoint=1)), 2, 60),
    Limits(32, 4),
    tuple(Step(6 * n, add=(Request(f"r{n}", ("a:18", f"u{n}:3"), 2),)) for n in range(3)),
    Features(partial_hits=True, retention=0),
)


@pytest.fixture(scope="module")
def saved() -> Iterator[list[bytes]]:
    """The trace of a build whose backend saves states inside chunks."""
    opened = open_prepared(prepare_engine("vllm==0.33.0"))
    yield try_scenario(opened, SAVES).lines
    opened.close()


def test_states_that_are_saved_inside_a_chunk_are_judged(saved: list[bytes]) -> None:
    verdict = judge_lines(saved, "0.33.0")
    assert verdict.findings == []
    assert all(verdict.judged[rule] for rule in ("C1", "C2", "M3", "R2", "R3"))


def test_a_backend_that_saves_nothing_is_found(saved: list[bytes]) -> None:
    judge = Judge(header_decoder.decode(saved[0]), "0.33.0", frozenset({"C1"}))
    judge.case.memory.exports = None
    for line in saved[1:]:
        judge.feed_all(trace.records_decoder.decode(line))
    assert {finding.rule for finding in judge.close().findings} == {"C1"}


def test_a_saved_state_that_is_not_named_is_found(saved: list[bytes]) -> None:
    judge = Judge(header_decoder.decode(saved[0]), "0.33.0", frozenset({"M3"}))
    for line in saved[1:]:
        found = trace.records_decoder.decode(line)
        judge.feed_all(r for r in found if not (isinstance(r, trace.Commit) and (r.group, r.position) == (1, 20)))
    assert {finding.rule for finding in judge.close().findings} == {"M3"}


def test_a_chunk_ends_on_a_junction_inside_a_block_if_asked_to() -> None:
    """The second sibling finds the junction at 10, its chunk ends there, and the third hits as much."""
    asked = Features(drafts=1, partial_hits=True, retention=0, lookahead_hashes=False, exact_junction=True)
    given = Scenario(
        Geometry((Group("full", 8), Group("mamba", 8)), 2, 60),
        Limits(32, 4),
        tuple(Step(8 * n, add=(Request(f"r{n}", ("a:13", f"u{n}:14"), 2),)) for n in range(3)),
        asked,
    )
    opened = open_prepared(prepare_engine("vllm==0.33.0"))
    trial = try_scenario(opened, given)
    plain = try_scenario(opened, replace(given, features=replace(asked, exact_junction=False)))
    opened.close()
    assert trial.verdict.findings == plain.verdict.findings == []
    hits = [[r.hit for r in kinds(one, trace.Lookup) if isinstance(r, trace.Lookup)] for one in (trial, plain)]
    junctions = [r.junction for r in kinds(trial, trace.Lookup) if isinstance(r, trace.Lookup)]
    ends = {r.start + r.granted for r in kinds(trial, trace.Split) if isinstance(r, trace.Split)}
    assert header_decoder.decode(trial.lines[0]).setup.exact_junction
    assert junctions[1] in ends
    assert hits[0][2] == junctions[1]
    assert hits[1][2] < junctions[1]


def test_chunked_local_attention_is_driven_and_judged(prepared: Prepared, engine: VllmEngine) -> None:
    """Beside full attention alone nothing is known against it; 0.26.0 counts every lookup that is tried again (T1)."""
    features = ("chunked-local", "shared-prefix", "repeat", "late-sibling", "small-pool", "threshold", "async")
    trials = [try_scenario(engine, scenario) for scenario in drawn(prepared, 60, *features)]
    assert {finding.rule for trial in trials for finding in trial.verdict.findings} <= {"T1"}
    hits = [record.hit for trial in trials for record in kinds(trial, trace.Lookup) if isinstance(record, trace.Lookup)]
    assert sum(hit > 0 for hit in hits) > 20


def test_five_drafts_are_verified_at_once(engine: VllmEngine) -> None:
    given = Scenario(
        Geometry(FULL_MAMBA, 8, 60),
        Limits(32, 4),
        (Step(0, add=(Request("r0", ("a:19",), 12, accept=(5,)),)),),
        Features(drafts=5, lookahead_hashes=False),
    )
    trial = try_scenario(engine, given)
    steps = [record for record in kinds(trial, trace.Step) if isinstance(record, trace.Step)]
    assert max(item.accepted for step in steps for item in step.scheduled) == 5
    assert "C2" not in {finding.rule for finding in trial.verdict.findings}


def test_the_ratios_of_real_models_run(prepared: Prepared, engine: VllmEngine) -> None:
    seen: set[tuple[int, ...]] = set()
    for scenario in drawn(prepared, 60, "mamba", "unequal", "wide-mamba", "real-blocks", "shared-prefix"):
        trial = try_scenario(engine, scenario)
        assert trial.could_not_run == ""
        assert not {finding.rule for finding in trial.verdict.findings} & {"A1", "A2", "A3", "L1", "M2", "P3"}
        seen.add(tuple(sorted(group.block for group in scenario.geometry.groups)))
    assert {(16, 1600), (816, 1648), (51, 103)} <= seen
