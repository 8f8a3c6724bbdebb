"""The reference engine gives no finding, its traces add up, and each planted fault is seen by its rule."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec
import pytest

from fuzz.engines.conforming import ReferenceEngine, open_reference
from fuzz.engines.names import EngineNameError
from fuzz.engines.planted import FAULTS, Fault, open_planted
from fuzz.engines.shape import derive, refusal
from fuzz.generator import scenario_at
from fuzz.limits import LIMITS, Limit
from fuzz.traces import TraceFile, judge_file, write_trace
from fuzz.trial import crash_kind, try_scenario, try_twins
from fuzz.twins import TWIN_RULES
from oracle import trace
from oracle.geometry import saves_states
from oracle.judge import judge_lines
from oracle.prefixes import Prefixes
from oracle.scenario import Features, Geometry, Group, Limits, Request, Scenario, Step
from oracle.verdict import Finding
from reference import geometry
from reference.policy import POLICIES
from reference.rules import RULES
from reference.worker import Chunk, Memory

SCENARIOS = 600
SEED = 2
NEWEST = "0.33.0"
OLDER = ("0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0")


DEEP = ("async", "async-deep", "eagle", "mamba", "swa", "optimistic", "small-pool", "shared-prefix", "abort-in-flight")
"""Two steps in flight, and what makes their output come to nothing: wrong drafts, preemptions, aborts."""

SHORT_RUN = Scenario(
    Geometry((Group("full", 3), Group("swa", 1, window=5, eagle=True)), 1, 11),
    Limits(1, 1),
    (Step(0, add=(Request("r0", ("a:3",)), Request("r1", ("a:5",)), Request("r2", ("a:5",)))),),
    Features(drafts=1, lookahead_hashes=False),
)
"""A run from block 0 that is shorter than the window, which random scenarios seldom have."""

VECTORS = Path(__file__).parent.parent / "vectors"
SAVED_NAMES = ("passed-columns-counted-as-blocks", "state-saved-over-the-running-state")
SAVED = [
    msgspec.convert(json.loads((VECTORS / f"{name}.json").read_text())["scenario"], Scenario) for name in SAVED_NAMES
]
"""Releases go wrong there, by what they save inside a chunk."""


@cache
def scenarios(seed: int = SEED, count: int = SCENARIOS) -> list[Scenario]:
    """Generated scenarios that the engine can run."""
    drawn = (scenario_at(seed, index) for index in range(count))
    return [scenario for scenario in drawn if not refusal(scenario, POLICIES[NEWEST])]


def small(**changes: object) -> Scenario:
    """Full attention and Mamba, three requests that share a prefix, one after another."""
    scenario = Scenario(
        Geometry((Group("full", 4), Group("mamba", 4)), 4, 40),
        Limits(16, 2),
        tuple(Step(at, add=(Request(f"r{at}", ("sys:10", f"u{at}:5"), 2),)) for at in (0, 6, 12)),
        Features(retention=0),
    )
    return msgspec.structs.replace(scenario, **changes)


def records_of(lines: list[bytes]) -> Iterator[trace.AnyRecord]:
    """All records of a trace."""
    for line in lines[1:]:
        yield from trace.records_decoder.decode(line)


# The conforming engine.


def test_generated_scenarios_give_no_finding_and_reach_the_hard_cases() -> None:
    engine, coverage, judged = open_reference(), Counter(), Counter()
    for scenario in scenarios():
        verdict = try_scenario(engine, scenario).verdict
        assert verdict.findings == []
        coverage.update(verdict.coverage)
        judged.update(verdict.judged)
    assert sum(saves_states(scenario.geometry) for scenario in scenarios()) > 30
    assert sum(scenario.features.exact_junction for scenario in scenarios()) > 20
    for event in (
        "hit",
        "junction",
        "partial hit",
        "copy",
        "eviction",
        "preemption",
        "resumed",
        "reset",
        "abort",
    ):
        assert coverage[event] > 10, event
    # The others compare two runs.
    assert {rule for rule in RULES if not judged[rule]} == {"D1", *TWIN_RULES}


@pytest.mark.parametrize("rule", sorted(TWIN_RULES))
def test_the_twins_of_generated_scenarios_give_no_finding(rule: str) -> None:
    engine, compared = open_reference(), 0
    for scenario in scenarios()[:150]:
        trial = try_twins(engine, scenario, rule)
        if trial is not None:
            assert trial.verdict.findings == []
            compared += trial.verdict.judged.get(rule, 0)
    assert compared > 50


@pytest.mark.parametrize("release", OLDER)
def test_older_policies_give_no_finding(release: str) -> None:
    engine = open_reference(release)
    for scenario in scenarios()[:200]:
        assert try_scenario(engine, scenario).verdict.findings == []


@pytest.mark.parametrize("release", ["0.27.1", NEWEST])
def test_two_steps_unseen_give_no_finding(release: str) -> None:
    engine, coverage = open_reference(release), Counter[str]()
    for index in range(400):
        scenario = scenario_at(SEED, index, only=DEEP)
        if not refusal(scenario, POLICIES[release]):
            verdict = try_scenario(engine, scenario).verdict
            assert verdict.findings == []
            coverage.update(verdict.coverage)
    assert all(coverage[event] > 5 for event in ("hit", "preemption", "resumed", "draft accepted", "abort")), coverage


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: f"{limit.rules[0]} {limit.part} {limit.last}")
def test_what_a_policy_does_not_keep_is_seen_under_it(limit: Limit) -> None:
    # A limit that nothing falls under would hide the next fault of its kind.
    release = limit.last or NEWEST
    engine = open_reference(release)
    for scenario in (SHORT_RUN, *SAVED, *scenarios(count=3000)):
        lines = engine.run(scenario).lines
        findings = judge_lines(lines, release).findings if lines else []
        if any(limit.explains(finding, release, saves_states(scenario.geometry)) for finding in findings):
            return
    pytest.fail("never seen")


@pytest.mark.parametrize("limit", [limit for limit in LIMITS if limit.saving], ids=lambda limit: limit.rules[0])
def test_what_is_about_saved_states_is_allowed_where_there_are_any(limit: Limit) -> None:
    finding = Finding(limit.rules[0], limit.decision, limit.part, 1, 1, "")
    release = limit.last or NEWEST
    assert limit.explains(finding, release, saves=True)
    assert not limit.explains(finding, release, saves=False)


def test_a_stored_trace_is_allowed_what_its_policy_does_not_keep(tmp_path: Path) -> None:
    lines = open_reference().run(SHORT_RUN).lines
    assert judge_lines(lines, NEWEST).findings
    write_trace(tmp_path / "short.jsonl.zst", lines)
    judgement = judge_file(TraceFile(tmp_path / "short.jsonl.zst"), None, None)
    assert judgement.verdict.findings == []
    assert judgement.verdict.allowed


def test_the_first_policy_reproduces_its_fault_and_conforms() -> None:
    engine, rules = open_reference("0.26.0"), set()
    for scenario in scenarios(1):
        rules.update(finding.rule for finding in try_scenario(engine, scenario).verdict.findings)
    assert rules == {"C1", "S2", "S3", "S5"}


@pytest.mark.parametrize("release", ["0.29.0", "0.30.0", "0.31.0", "0.32.0"])
def test_saved_states_beside_drafts_give_no_finding_under_older_policies(release: str) -> None:
    engine, ran = open_reference(release), 0
    for index in range(150):
        scenario = scenario_at(SEED, index, only=("mamba", "checkpoint", "eagle", "retention-zero"))
        if not refusal(scenario, POLICIES[release]):
            assert try_scenario(engine, scenario).verdict.findings == []
            ran += saves_states(scenario.geometry)
    assert ran > 50


@pytest.mark.parametrize("scenario", SAVED, ids=SAVED_NAMES)
@pytest.mark.parametrize("release", ["0.30.0", "0.31.0", "0.32.0", NEWEST])
def test_what_a_release_saves_wrongly_is_allowed_to_the_engine_of_its_policy(scenario: Scenario, release: str) -> None:
    assert try_scenario(open_reference(release), scenario).verdict.findings == []


def test_0_29_reserves_for_saved_states_under_eagle_and_its_split_counts_on_none() -> None:
    document = small(geometry=Geometry((Group("full", 4), Group("mamba", 4, checkpoint=1)), 4, 40))
    under_eagle = msgspec.structs.replace(document, features=Features(drafts=1))
    for release, scenario, unit in (("0.29.0", document, 1), ("0.29.0", under_eagle, 0), ("0.30.0", under_eagle, 1)):
        shape = derive(scenario, POLICIES[release])
        assert (shape.saves, shape.setting.checkpoint_alignment) == (True, unit)


def test_deltas_fold_to_every_snapshot() -> None:
    engine = open_reference()
    for scenario in scenarios()[:300]:
        references: Counter[int] = Counter()
        cached: dict[int, set[tuple[int, int]]] = {}
        tables: dict[tuple[str, int], list[int]] = {}
        for record in records_of(engine.run(scenario).lines):
            fold(record, references, cached, tables)
            if isinstance(record, trace.Snapshot):
                assert dict(record.references) == {b: count for b, count in references.items() if count}
                assert set(record.free) == set(range(1, scenario.geometry.blocks)) - {
                    block for block, count in references.items() if count
                }
                assert sorted(record.cached) == sorted((g, b, d) for b, names in cached.items() for g, d in names)
                assert {(r, g): list(blocks) for r, g, blocks in record.tables} == tables
                held = Counter(block for table in tables.values() for block in table if block)
                assert held == +references


def fold(
    record: trace.AnyRecord,
    references: Counter[int],
    cached: dict[int, set[tuple[int, int]]],
    tables: dict[tuple[str, int], list[int]],
) -> None:
    """Apply one record to references, hashes and tables."""
    match record:
        case trace.Take(blocks) | trace.Touch(blocks):
            references.update(blocks)
        case trace.Free(blocks):
            references.subtract(blocks)
        case trace.Pin(blocks, delta):
            for block in blocks:
                references[block] += delta
        case trace.Commit(_, group, block, _, digest):
            cached.setdefault(block, set()).add((group, digest))
        case trace.Evict(block):
            del cached[block]
        case trace.Reset(True):
            cached.clear()
        case trace.Table(request, group, start, blocks):
            table = tables.setdefault((request, group), [])
            table[start:] = blocks
            if not table:
                del tables[request, group]


def test_every_read_finds_its_content() -> None:
    """The ghost alone, without the judge."""
    engine = open_reference()
    for scenario in filter(lambda one: not saves_states(one.geometry), scenarios()[:300]):
        prefixes, ids = Prefixes(), {}
        for request in scenario.requests():
            ids[request.id] = prefixes.of_prompt(request.prompt)
            prefixes.extend(ids[request.id], request.output_stream, 0, request.max_output + 8)
        groups = [
            geometry.Group(g.kind, g.block, g.window or 0, attention_chunk=g.attention_chunk or 0)
            for g in scenario.geometry.groups
        ]
        memory, wrong = Memory(groups), []
        for record in records_of(engine.run(scenario).lines):
            if isinstance(record, trace.Step):
                memory.drop((*record.finished, *record.preempted))
                memory.copy(record.copies)
                memory.forward([chunk_of(item, ids[item.request]) for item in record.scheduled], wrong.append)
        assert wrong == []


def chunk_of(item: trace.Scheduled, ids: list[int]) -> Chunk:
    """A scheduled request as the worker sees it."""
    return Chunk(item.request, item.start, item.tokens, item.drafts, item.accepted, item.fresh, item.blocks, ids)


def test_the_third_sibling_reuses_the_junction() -> None:
    lookups = [record for record in records_of(open_reference().run(small()).lines) if isinstance(record, trace.Lookup)]
    assert [(lookup.hit, lookup.junction) for lookup in lookups] == [(0, 0), (0, 8), (8, 0)]


def test_the_same_scenario_gives_the_same_bytes() -> None:
    for scenario in scenarios()[:50]:
        assert open_reference().run(scenario).trace() == open_reference().run(scenario).trace()


def test_without_recording_there_is_no_trace() -> None:
    run = open_reference().run(small(), record=False)
    assert run.lines == []
    assert run.refused == ""


def test_the_header_names_engine_and_release() -> None:
    header = trace.header_decoder.decode(open_reference("0.30.0").run(small()).lines[0])
    assert (header.engine, header.version, header.setup.split_grid) == ("reference", "0.30.0", 4)


@pytest.mark.parametrize(
    ("scenario", "release", "reason"),
    [
        (
            small(geometry=Geometry((Group("full", 4), Group("mamba", 4, checkpoint=1)), 4, 40)),
            "0.28.0",
            "0.28.0 saves no state inside a chunk",
        ),
        (
            small(geometry=Geometry((Group("full", 4), Group("mamba", 4, checkpoint=4)), 4, 40)),
            "0.29.0",
            "0.29.0 knows no unit for states that are saved inside a chunk; set checkpoint to 1",
        ),
        (
            small(geometry=Geometry((Group("mamba", 4, checkpoint=4), Group("mamba", 4)), 4, 40)),
            NEWEST,
            "Mamba groups save states in different units; give all of them the same checkpoint",
        ),
        (
            small(
                geometry=Geometry((Group("full", 4), Group("mamba", 4)), 2, 40),
                features=Features(drafts=1, partial_hits=True, exact_junction=True),
            ),
            "0.29.0",
            "0.29.0 has no opt-in for exact junctions",
        ),
        (small(limits=Limits(3, 2)), "0.26.0", "never advances inside a Mamba block"),
        (
            small(geometry=Geometry((Group("full", 4), Group("mamba", 4)), 4, 3)),
            NEWEST,
            "geometry.blocks is 3",
        ),
        (
            small(geometry=Geometry((Group("mamba", 4), Group("mamba", 6)), 2, 90)),
            NEWEST,
            "Mamba groups of different block sizes",
        ),
    ],
)
def test_what_it_cannot_run_it_refuses_with_the_reason(scenario: Scenario, release: str, reason: str) -> None:
    run = open_reference(release).run(scenario)
    assert reason in run.refused
    assert run.lines == []


def test_an_unknown_release_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"no policy for release '0\.1\.0'; there is 0\.26\.0"):
        open_reference("0.1.0")


# The planted faults.


def test_every_rule_has_a_planted_fault() -> None:
    assert {fault.rule for fault in FAULTS.values()} == set(RULES)


def spoken(engine: ReferenceEngine, scenario: Scenario, rule: str, rules: frozenset[str] | None = None) -> set[str]:
    """The rules that speak in a scenario, which is judged by ``rule`` among ``rules``."""
    found = try_scenario(engine, scenario, rules, compared={rule} - TWIN_RULES).verdict.findings
    if rule in TWIN_RULES and (twins := try_twins(engine, scenario, rule)):
        found += twins.verdict.findings
    return {finding.rule for finding in found}


def first_seen(engine: ReferenceEngine, rule: str) -> set[str]:
    """The rules that speak in the first scenario in which ``rule`` does; none if it never does."""
    for scenario in scenarios():
        found = spoken(engine, scenario, rule)
        if rule in found:
            return found
    return set()


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_each_planted_fault_is_found_by_its_rule(fault: Fault) -> None:
    assert fault.rule in first_seen(open_planted(fault.name), fault.rule)


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_each_planted_fault_is_found_with_every_other_rule_off(fault: Fault) -> None:
    engine, alone = open_planted(fault.name), frozenset({fault.rule})
    for scenario in scenarios():
        if spoken(engine, scenario, fault.rule, alone) == alone:
            return
    pytest.fail("never found")


@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if fault.rule[0] in "MPD"])
def test_another_choice_that_is_sound_breaks_no_rule_of_content_or_accounting(name: str) -> None:
    seen = first_seen(open_planted(name), FAULTS[name].rule)
    assert not {rule for rule in seen if rule[0] in "AC" or rule in {"S1", "S2", "S3", "L1", "L3"}}


def test_an_exception_inside_becomes_a_crash_record() -> None:
    lines = open_planted("raises-on-a-hit").run(small()).lines
    assert crash_kind(lines) == "exception"
    crash = list(records_of(lines))[-1]
    assert crash == trace.Crash(
        "exception", "fuzz.engines.planted:_RaisesOnAHit.admits", "AssertionError: a hit of 8 tokens"
    )


def test_a_request_that_waits_for_ever_ends_the_run() -> None:
    end = list(records_of(open_planted("hit-never-admitted").run(small()).lines))[-1]
    assert isinstance(end, trace.End)
    assert end.unfinished == ("r12",)


def test_an_unknown_fault_is_an_error_with_close_matches() -> None:
    with pytest.raises(ValueError, match=r"no planted fault 'stale-hsh'; did you mean stale-hash\?") as error:
        open_planted("stale-hsh")
    assert isinstance(error.value, EngineNameError)
    assert "\n" not in str(error.value)
