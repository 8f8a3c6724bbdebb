"""The two scenarios of a metamorphic rule are made as the rule says, and a difference is told of, kept and replayed."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from fuzz import replay
from fuzz.engines.conforming import open_reference
from fuzz.engines.open import open_engine
from fuzz.engines.planted import FAULTS
from fuzz.engines.protocol import Run
from fuzz.findings import decode_finding
from fuzz.generator import scenario_at
from fuzz.metamorphic import FACTOR, FEWER_AFTER_ANOTHER_COURSE, RELATIONS, Sides
from fuzz.trial import try_scenario, try_twins
from fuzz.twins import TWIN_RULES, fits, run_twins
from oracle import trace
from oracle.compare import records_of
from oracle.scenario import Features, Geometry, Group, Limits, Request, Scenario, Step
from oracle.validate import check, prompt_tokens
from tests.campaign.test_campaign import run
from tests.oracle.siblings import SIBLINGS

EVERY_RULE = sorted(RELATIONS)
FAULT_OF = {fault.rule: name for name, fault in FAULTS.items() if fault.rule in TWIN_RULES}

WINDOW = Scenario(
    Geometry((Group("full", 4), Group("swa", 4, window=7)), 4, 40),
    Limits(budget=16, sequences=2),
    (
        Step(0, add=(Request("r0", ("sys:18", "a:5"), 3), Request("r1", ("sys:18", "b:5"), 3))),
        Step(4, add=(Request("r2", ("sys:18", "r0:2"), 3),), abort=("r1",)),
        Step(9, add=(Request("r3", ("sys:18", "a:5"), 2),)),
    ),
    Features(retention=0),
)
"""Every relation can be arranged for it."""


def twin(rule: str, scenario: Scenario) -> Scenario:
    return RELATIONS[rule].twin(scenario)


# What is made.


@pytest.mark.parametrize("rule", EVERY_RULE)
def test_both_scenarios_are_legal_and_the_arranged_one_is_arranged_already(rule: str) -> None:
    engine, made = open_reference(), 0
    for index in range(0, 1200, 15):  # a swarm, which has its features, holds 50
        scenario = scenario_at(3, index, without=("async",))
        ran = engine.run(scenario)
        arranged = RELATIONS[rule].arrange(scenario, ran.lines) if ran.lines else None
        if arranged is not None:
            made += 1
            assert check(arranged) == check(twin(rule, arranged)) == []
            assert twin(rule, arranged) != arranged
            assert fits(rule, arranged, engine.run(arranged))
    assert made > 10


def test_new_names_sort_the_other_way_round_and_share_what_the_old_ones_share() -> None:
    renamed = twin("V1", WINDOW)
    old, new = ([request.id for request in scenario.requests()] for scenario in (WINDOW, renamed))
    assert sorted(old) == old
    assert sorted(new) == new[::-1]
    extended = renamed.requests()[2]
    assert extended.prompt == (renamed.requests()[0].prompt[0], f"{new[0]}:2")
    assert renamed.steps[1].abort == (new[1],)


def test_attention_chunks_are_as_much_larger_as_blocks_are() -> None:
    chunked = Group("chunked", 4, attention_chunk=12)
    larger = twin("V3", replace(WINDOW, geometry=Geometry((Group("full", 4), chunked), 4, 40)))
    assert larger.geometry.groups[1] == Group("chunked", FACTOR * 4, attention_chunk=FACTOR * 12)


def test_a_window_reaches_as_much_further_as_blocks_are_larger() -> None:
    larger = twin("V3", WINDOW)
    for group, before in zip(larger.geometry.groups, WINDOW.geometry.groups, strict=True):
        assert group.block == FACTOR * before.block
        assert group.window is None or group.window - 1 == FACTOR * ((before.window or 0) - 1)
    assert [prompt_tokens(request) for request in larger.requests()] == [
        FACTOR * prompt_tokens(request) for request in WINDOW.requests()
    ]


def test_the_last_request_comes_when_all_is_quiet_and_alone_to_the_twin() -> None:
    lines = open_reference().run(WINDOW).lines
    arranged = RELATIONS["V4"].arrange(WINDOW, lines)
    assert arranged is not None
    *_, last = arranged.steps
    end = records_of(lines)[-1]
    assert isinstance(end, trace.End)
    assert last.at > end.steps
    assert last.reset
    assert last.add[0].prompt == WINDOW.requests()[0].prompt
    assert twin("V4", arranged).requests() == list(last.add)


@pytest.mark.parametrize(
    ("rule", "scenario"),
    [
        ("V1", replace(WINDOW, steps=(*WINDOW.steps[:2], Step(5, abort=("r0", "r2"))))),
        ("V2", SIBLINGS),
        ("V2", twin("V2", WINDOW)),
    ],
)
def test_no_twin_is_made_where_the_rule_does_not_hold(rule: str, scenario: Scenario) -> None:
    engine = open_reference()
    assert run_twins(engine, rule, scenario, engine.run(scenario)) is None


def test_a_run_that_crashed_has_no_twin() -> None:
    lines = open_engine("planted:raises-on-a-hit").run(SIBLINGS).lines
    assert run_twins(open_reference(), "V1", SIBLINGS, Run(lines)) is None


def test_a_twin_that_crashed_before_a_request_came_has_nothing_to_compare() -> None:
    lines = open_reference().run(SIBLINGS).lines
    crash = [[trace.Crash("exception", "somewhere", "something")]]
    twin_lines = [lines[0], *[trace.encoder.encode(records) for records in crash]]
    sides = Sides(SIBLINGS, records_of(lines), SIBLINGS, records_of(twin_lines))
    assert RELATIONS["V2"].compare(sides).number == 0


# What is compared.


@pytest.mark.parametrize("rule", EVERY_RULE)
def test_a_right_engine_is_silent(rule: str) -> None:
    trial = try_twins(open_reference(), WINDOW, rule)
    assert trial is not None
    assert trial.verdict.findings == []
    assert trial.verdict.judged[rule] > 0


def sides(fewer: Scenario, more: Scenario) -> Sides:
    engine = open_reference()
    return Sides(fewer, records_of(engine.run(fewer).lines), more, records_of(engine.run(more).lines))


def test_fewer_hits_are_a_finding_only_while_the_course_is_the_same() -> None:
    one_by_one = replace(SIBLINGS, limits=Limits(16, 1))
    dense = replace(one_by_one, features=Features())
    compare = RELATIONS["U2"].compare
    # The second sibling hits here and not there: up to it the course was the same.
    found = compare(sides(dense, one_by_one))
    assert found.difference is not None
    assert found.difference.request == "r1"
    assert compare(sides(one_by_one, dense)).difference is None
    # Smaller chunks from the beginning: what is reused later says nothing.
    slower = replace(one_by_one, limits=Limits(8, 1))
    outcome = compare(sides(dense, slower))
    assert (outcome.number, outcome.difference, outcome.allowed) == (1, None, FEWER_AFTER_ANOTHER_COURSE)


def test_a_reset_that_is_refused_when_all_is_quiet_is_told_of() -> None:
    engine = open_reference()
    arranged = RELATIONS["V4"].arrange(WINDOW, engine.run(WINDOW).lines)
    assert arranged is not None
    both = sides(arranged, twin("V4", arranged))
    refused = [trace.Reset(False) if isinstance(one, trace.Reset) else one for one in both.records]
    found = RELATIONS["V4"].compare(replace(both, records=refused)).difference
    assert found is not None
    assert found.decision == "reset"


# What a campaign, a replay and shrinking make of it.


@pytest.mark.parametrize("rule", EVERY_RULE)
def test_a_campaign_keeps_the_scenario_that_shows_it_again(rule: str, tmp_path: Path) -> None:
    name = f"planted:{FAULT_OF[rule]}"
    state = run(name, tmp_path, scenarios=200, rules=frozenset({rule}), twins_every=2)
    assert {signature[0] for signature in state.found} == {rule}
    assert state.tally.twins[rule] > 5
    signature = min(state.found)
    document = decode_finding(state.paths[signature].read_bytes(), "")
    assert document.shrunk
    engine = open_engine(name)
    assert try_scenario(engine, document.scenario, compared={rule}).verdict.judged[rule] > 0
    item = replay.Item(state.paths[signature], document.scenario, document)
    assert replay.replay(engine, item).word == replay.STILL_THERE
    assert replay.replay(open_reference(), item).word == replay.FIXED


def test_every_rule_has_its_turn(tmp_path: Path) -> None:
    state = run("reference", tmp_path, scenarios=200, twins_every=4)
    assert state.tally.twins.keys() == TWIN_RULES
    assert sum(state.tally.twins.values()) <= 50
