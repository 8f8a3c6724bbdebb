"""Generated scenarios can all run, are determined by seed and index, and reach what they should reach."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import hypothesis
import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from fuzz.draw import HypothesisDraw, SeededDraw
from fuzz.generator import SWARM_SCENARIOS, generate, scenario_at, swarm_at
from fuzz.refusals import refused_by, withheld_features
from fuzz.strategies import scenarios
from fuzz.swarm import FEATURES, Swarm, UnknownFeature, check_features, describe, draw_swarm
from oracle.geometry import geometry_class, hits_inside_blocks, scheduler_block
from oracle.scenario import Group, Scenario
from oracle.validate import blocks_needed, check, prompt_tokens

SAMPLE = 2000


@pytest.fixture(scope="module")
def sample() -> list[Scenario]:
    # Spread over hundreds of swarms: forty of them would make the shares a matter of luck.
    return [scenario_at(11, 17 * index) for index in range(SAMPLE)]


# ---- every generated scenario can run


def test_20_000_generated_scenarios_can_run() -> None:
    for index in range(20_000):
        scenario = scenario_at(3, index)
        assert check(scenario) == [], (index, check(scenario))


@pytest.mark.parametrize("feature", FEATURES)
def test_scenarios_with_only_one_feature_can_run(feature: str) -> None:
    for index in range(100):
        assert check(scenario_at(5, index, only=(feature,))) == []


@pytest.mark.parametrize("feature", FEATURES)
def test_scenarios_without_one_feature_can_run(feature: str) -> None:
    for index in range(100):
        assert check(scenario_at(5, index * SWARM_SCENARIOS, without=(feature,))) == []


@settings(max_examples=300, suppress_health_check=list(HealthCheck))
@given(scenarios())
def test_scenarios_from_hypothesis_can_run(scenario: Scenario) -> None:
    assert check(scenario) == []


@pytest.mark.parametrize("release", ["0.26.0", "0.27.1", "0.28.0", "0.29.0", "0.33.0"])
def test_no_release_refuses_what_is_generated_for_it(release: str) -> None:
    without = withheld_features(release)
    for index in range(4000):
        assert refused_by(scenario_at(7, index, without=without), release) == ""


def test_withholding_is_needed_on_old_releases(sample: list[Scenario]) -> None:
    """The twin of the test above: with all features on, 0.26 does refuse some."""
    refused = sum(bool(refused_by(scenario, "0.26.0")) for scenario in sample)
    assert refused > SAMPLE // 50


def test_scenarios_stay_small(sample: list[Scenario]) -> None:
    for scenario in sample:
        block, widest = scheduler_block(scenario.geometry), max(group.block for group in groups(scenario))
        assert 1 <= len(scenario.requests()) <= 8
        # Extensions add up to half of an output of 90 tokens to a prompt within the bound.
        assert all(prompt_tokens(each) <= max(260, 2 * widest + 100) for each in scenario.requests())
        assert block <= 36 or widest in (32, 48, 64, 66, 103, 200, 528, 1600, 1648)


# ---- the same seed and index give the same scenario


def test_a_scenario_depends_on_seed_and_index_alone() -> None:
    forward = [msgspec.json.encode(scenario_at(1, index)) for index in range(120)]
    backward = [msgspec.json.encode(scenario_at(1, index)) for index in reversed(range(120))]
    assert forward == backward[::-1]
    assert len(set(forward)) > 115
    assert msgspec.json.encode(scenario_at(2, 0)) != forward[0]


def test_the_first_scenarios_of_seed_1_are_known() -> None:
    """A change of the generator changes what every recorded seed means: say so in the change."""
    digest = hashlib.sha256()
    for index in range(200):
        digest.update(msgspec.json.encode(scenario_at(1, index)))
    assert digest.hexdigest()[:16] == "b3805e95a94b7c2c"


def test_defaults_are_left_out_of_a_generated_document() -> None:
    plain = msgspec.json.encode(scenario_at(0, 0, only=("repeat",)))
    assert b"watermark" not in plain
    assert b"accept" not in plain


def test_a_swarm_lasts_for_a_batch_and_leaves_features_out() -> None:
    first = swarm_at(4, 0)
    assert all(swarm_at(4, index) == first for index in range(SWARM_SCENARIOS))
    swarms = {swarm_at(4, batch * SWARM_SCENARIOS) for batch in range(40)}
    assert len(swarms) > 30
    for feature in FEATURES:
        assert any(feature in swarm for swarm in swarms) or feature == "async-deep", feature
        assert any(feature not in swarm for swarm in swarms), feature


def test_states_are_saved_inside_a_chunk_in_units_of_a_token_or_a_hash_block() -> None:
    asked = [scenario_at(1, index, only=("coarse-checkpoint", "partial-hits")) for index in range(100)]
    units = {group.checkpoint for scenario in asked for group in groups(scenario) if group.kind == "mamba"}
    assert {0, 1} < units


def test_two_unseen_steps_come_only_when_asked_for() -> None:
    asked = [scenario_at(1, index, only=("async", "async-deep")) for index in range(100)]
    assert sum(scenario.features.async_depth == 2 for scenario in asked) > 20
    assert not any(scenario_at(1, index).features.async_depth == 2 for index in range(500))


def test_leaving_a_feature_out_keeps_the_others() -> None:
    needs_eagle = {"eagle", "eagle-flag", "block-drop", "together", "exact-junction"}
    for seed in range(50):
        whole = draw_swarm(SeededDraw(seed))
        assert draw_swarm(SeededDraw(seed), without=("eagle",)).on == whole.on - needs_eagle


@pytest.mark.parametrize(
    ("only", "on"),
    [
        (("eagle",), "eagle"),
        (("block-drop",), "eagle block-drop"),
        (("retention-zero", "swa"), "swa retention-zero"),
        (("fine-swa",), "mamba swa partial-hits fine-swa"),
    ],
)
def test_only_brings_what_a_feature_needs(only: tuple[str, ...], on: str) -> None:
    assert str(draw_swarm(SeededDraw(0), only)) == on


def test_a_feature_whose_need_is_off_is_not_shown_as_on() -> None:
    for seed in range(300):
        swarm = draw_swarm(SeededDraw(seed), without=("mamba", "eagle"))
        assert not swarm.on & {"two-mamba", "wide-mamba", "partial-hits", "fine-swa", "eagle-flag", "exact-junction"}
        if "swa" not in swarm:
            assert not swarm.on & {"unequal", "retention-zero", "sparse-alone"}


def test_without_chunked_local_attention_a_scenario_is_what_it_was() -> None:
    """It is drawn last: those that do not get it are the same with the feature and without."""
    for index in range(0, 4000, 3):
        scenario = scenario_at(2, index)
        if "chunked" not in kinds(scenario):
            assert scenario == scenario_at(2, index, without=("chunked-local",))


def test_a_chunked_local_group_stands_beside_what_was_there_or_in_the_place_of_a_window() -> None:
    places, sizes = set(), set()
    for index in range(0, 4000, 3):
        scenario, before = scenario_at(2, index), scenario_at(2, index, without=("chunked-local",))
        if "chunked" in kinds(scenario):
            gone = [kind for kind in kinds(before) if kind not in kinds(scenario)]
            places.add(tuple(gone))
            local = {group.attention_chunk for group in groups(scenario) if group.kind == "chunked"}
            assert len(local) == kinds(scenario).count("chunked")
            sizes.add(len(local))
            assert scenario.steps == before.steps
            assert scenario.geometry.blocks - blocks_needed(scenario) == before.geometry.blocks - blocks_needed(before)
    assert places == {(), ("swa",)}
    assert sizes == {1, 2}


@pytest.mark.parametrize(("seed", "index"), [(-1, 0), (0, -1)])
def test_negative_seeds_and_indices_are_refused(seed: int, index: int) -> None:
    with pytest.raises(ValueError, match="negative"):
        scenario_at(seed, index)


# ---- features


def groups(scenario: Scenario) -> tuple[Group, ...]:
    return scenario.geometry.groups


def kinds(scenario: Scenario) -> list[str]:
    return [group.kind for group in groups(scenario)]


def own_blocks(scenario: Scenario) -> list[int]:
    """The blocks that were drawn as such: that of a chunked-local group follows from the others."""
    return [group.block for group in groups(scenario) if group.kind != "chunked"]


def unequal(scenario: Scenario) -> bool:
    return len({group.block for group in groups(scenario)}) > 1


def wide_mamba(scenario: Scenario) -> bool:
    smallest = min(group.block for group in groups(scenario))
    return any(group.kind == "mamba" and group.block > smallest for group in groups(scenario))


def prompts(scenario: Scenario) -> list[tuple[str, ...]]:
    return [request.prompt for request in scenario.requests()]


def tiny(scenario: Scenario) -> bool:
    smallest = min(group.block for group in groups(scenario))
    return scenario.limits.budget < smallest or 0 < scenario.limits.long_prefill_threshold < smallest


def extends(scenario: Scenario) -> bool:
    outputs = {request.output_stream for request in scenario.requests()}
    return any(part.partition(":")[0] in outputs for prompt in prompts(scenario) for part in prompt)


def shares(scenario: Scenario) -> bool:
    return sum(prompt[0].startswith("sys:") for prompt in prompts(scenario)) > 1


def late(scenario: Scenario) -> bool:
    """Two arrivals further apart than the gaps of requests that merely are spread."""
    at = [step.at for step in scenario.steps if step.add]
    return any(b - a > 4 for a, b in itertools.pairwise(at))


# Feature: how to see it in a scenario, and the least share of scenarios in percent that must have it.
SEEN: dict[str, tuple[Callable[[Scenario], bool], int]] = {
    "mamba": (lambda s: kinds(s).count("mamba") > 0 and len(kinds(s)) > 1, 35),
    "two-mamba": (lambda s: kinds(s).count("mamba") == 2, 5),
    "swa": (lambda s: "swa" in kinds(s) and len(kinds(s)) > 1, 15),
    "sparse-alone": (lambda s: kinds(s) in (["swa"], ["mamba"]), 1),
    "unequal": (unequal, 20),
    "wide-mamba": (wide_mamba, 6),
    "real-blocks": (lambda s: max(own_blocks(s), default=0) > 16, 2),
    "partial-hits": (lambda s: s.features.partial_hits, 5),
    "fine-swa": (lambda s: "swa" in kinds(s) and hits_inside_blocks(s.geometry), 1),
    "eagle": (lambda s: s.features.drafts > 0, 35),
    "eagle-flag": (lambda s: any(group.eagle for group in groups(s)), 8),
    "block-drop": (lambda s: not s.features.lookahead_hashes, 8),
    "retention-zero": (lambda s: s.features.retention == 0, 8),
    "retention-interval": (lambda s: bool(s.features.retention), 8),
    "tiny-budget": (tiny, 8),
    "threshold": (lambda s: s.limits.long_prefill_threshold > 0, 20),
    "priority": (lambda s: s.features.policy == "priority", 20),
    "async": (lambda s: s.features.async_depth > 0, 20),
    "async-deep": (lambda s: s.features.async_depth == 2, 0),
    "watermark": (lambda s: s.features.watermark > 0, 10),
    "optimistic": (lambda s: not s.features.reserve_full_sequence, 25),
    "small-pool": (
        lambda s: len(s.requests()) > 1 and s.geometry.blocks <= blocks_needed(s) + 2,
        10,
    ),
    "shared-prefix": (shares, 30),
    "repeat": (lambda s: len(set(prompts(s))) < len(prompts(s)), 20),
    "extend": (extends, 15),
    "long-output": (lambda s: any(request.max_output >= 40 for request in s.requests()), 6),
    "spread": (lambda s: len([step for step in s.steps if step.add]) > 1, 30),
    "late-sibling": (late, 15),
    "abort": (lambda s: any(step.abort for step in s.steps), 12),
    "abort-in-flight": (lambda s: any(step.abort_in_flight for step in s.steps), 12),
    "reset": (lambda s: any(step.reset for step in s.steps), 8),
    "checkpoint": (lambda s: any(group.checkpoint for group in groups(s)), 4),
    "together": (lambda s: s.features.drafts > 0 and {"mamba", "swa"} <= {*kinds(s)} and s.features.retention == 0, 3),
    "coarse-checkpoint": (lambda s: any(group.checkpoint > 1 for group in groups(s)), 1),
    "skip-lookup": (lambda s: any(request.skips_lookup for request in s.requests()), 8),
    "runner-v2": (lambda s: s.features.runner == "v2", 20),
    "exact-junction": (lambda s: s.features.exact_junction, 1),
    "chunked-local": (lambda s: "chunked" in kinds(s), 2),
}


def test_every_feature_has_a_check() -> None:
    assert tuple(SEEN) == FEATURES


@pytest.mark.parametrize("feature", FEATURES)
def test_each_feature_is_reached_often_enough(feature: str, sample: list[Scenario]) -> None:
    seen, floor = SEEN[feature]
    share = 100 * sum(map(seen, sample)) / SAMPLE
    assert share >= floor, f"{feature}: {share:.1f} %"
    assert share < 97, f"{feature} is never left out"


# These can come about by chance, without their feature: a small share is no fault.
BY_CHANCE = {"small-pool", "wide-mamba", "fine-swa", "shared-prefix", "spread", "late-sibling", "repeat", "together"}


@pytest.mark.parametrize("feature", [feature for feature in FEATURES if feature not in BY_CHANCE])
def test_a_feature_left_out_does_not_occur(feature: str) -> None:
    seen = SEEN[feature][0]
    for index in range(0, 50 * SWARM_SCENARIOS, 5):
        assert not seen(scenario_at(9, index, without=(feature,)))


def test_mamba_is_never_wide_and_windows_never_meet_fine_hits_when_left_out() -> None:
    for index in range(0, 100 * SWARM_SCENARIOS, 5):
        assert not wide_mamba(scenario_at(9, index, without=("wide-mamba",)))
        assert not SEEN["fine-swa"][0](scenario_at(9, index, without=("fine-swa",)))


def test_a_swarm_has_equal_or_unequal_blocks_never_both() -> None:
    for batch in range(60):
        first = batch * SWARM_SCENARIOS
        scenarios_of_swarm = [scenario_at(6, index) for index in range(first, first + 20)]
        several = [s for s in scenarios_of_swarm if len(groups(s)) > 1]
        assert len({unequal(scenario) for scenario in several}) <= 1


CORNERS: dict[str, Callable[[Scenario], bool]] = {
    "one-token budget": lambda s: s.limits.budget == 1,
    "three drafts": lambda s: s.features.drafts == 3,
    "five drafts": lambda s: s.features.drafts == 5,
    "full, Mamba and window": lambda s: {"full", "mamba", "swa"} == set(kinds(s)),
    "eagle, full, Mamba and window": lambda s: s.features.drafts > 0 and len(set(kinds(s))) == 3,
    "blocks of which neither divides": lambda s: any(
        math.lcm(a.block, b.block) > max(a.block, b.block) for a in groups(s) for b in groups(s)
    ),
    "interval of three scheduler blocks": lambda s: s.features.retention == 3 * scheduler_block(s.geometry),
    "the least pool": lambda s: s.geometry.blocks == blocks_needed(s),
    "a prompt that ends on the scheduler block": lambda s: any(
        prompt_tokens(each) % scheduler_block(s.geometry) == 0 for each in s.requests()
    ),
    "a prompt one token past it": lambda s: any(
        prompt_tokens(each) % scheduler_block(s.geometry) == 1 for each in s.requests()
    ),
    "a resend that generates the same": lambda s: any(each.output for each in s.requests()),
    "priority, threshold, optimistic, later arrival": lambda s: (
        s.features.policy == "priority"
        and s.limits.long_prefill_threshold > 0
        and not s.features.reserve_full_sequence
        and len(s.steps) > 1
    ),
    "everything accepted and nothing": lambda s: any(
        {0, s.features.drafts} <= set(each.accept) for each in s.requests() if s.features.drafts
    ),
}


@pytest.mark.parametrize("corner", CORNERS)
def test_each_corner_is_reached(corner: str, sample: list[Scenario]) -> None:
    assert sum(map(CORNERS[corner], sample)) >= SAMPLE // 200


REAL_PAIRS = [(16, 1600), (2, 200), (16, 528), (2, 66), (816, 1648), (51, 103)]


@pytest.mark.parametrize("pair", REAL_PAIRS)
def test_the_ratios_of_real_models_are_drawn_and_scaled_down(pair: tuple[int, int]) -> None:
    """Each beside a wide Mamba block, with prompts that fill it."""

    def seen(scenario: Scenario) -> bool:
        blocks = {group.block for group in groups(scenario)}
        return blocks == set(pair) and max(map(prompt_tokens, scenario.requests())) >= pair[1]

    only = ("mamba", "unequal", "wide-mamba", "real-blocks")
    assert sum(seen(scenario_at(12, index, only=only)) for index in range(400)) >= 5


def test_wide_blocks_are_hashed_in_units_of_16() -> None:
    only = ("mamba", "partial-hits", "real-blocks")
    drawn = [scenario_at(12, index, only=only) for index in range(400)]
    assert sum(s.geometry.hash_block == 16 and groups(s)[0].block == 528 for s in drawn) >= 10


# ---- names of features


@pytest.mark.parametrize(
    ("only", "without", "message"),
    [
        (("eagl",), (), "did you mean eagle"),
        ((), ("abort-inflight",), "abort-in-flight"),
        (("zzz",), (), "features are: mamba"),
        (("eagle",), ("eagle",), "both in --only and in --without"),
    ],
)
def test_a_wrong_feature_is_refused_with_near_matches(
    only: tuple[str, ...], without: tuple[str, ...], message: str
) -> None:
    for use in (
        lambda: check_features(only, without),
        lambda: draw_swarm(SeededDraw(0), only, without),
        lambda: scenario_at(0, 0, only=only, without=without),
        lambda: scenarios(only, without),
    ):
        with pytest.raises(UnknownFeature, match=message):
            use()


def test_a_swarm_prints_as_one_line_in_a_fixed_order() -> None:
    assert str(Swarm(frozenset({"reset", "mamba", "eagle"}))) == "mamba eagle reset"
    assert str(Swarm(frozenset())) == "(plain)"
    assert all(describe(feature) for feature in FEATURES)


# ---- the two sources of choices


class Recorder:
    """A source that notes what it was asked, and answers from another."""

    def __init__(self, source: Any) -> None:
        self.source, self.asked = source, set[str]()

    def integer(self, low: int, high: int) -> int:
        assert low <= high
        value = self.source.integer(low, high)
        assert type(value) is int
        assert low <= value <= high
        self.asked.add("integer")
        return value

    def choice(self, options: Sequence[Any]) -> Any:
        value = self.source.choice(options)
        assert value in options
        self.asked.add("choice")
        return value

    def chance(self, percent: int) -> bool:
        value = self.source.chance(percent)
        assert type(value) is bool
        self.asked.add("chance")
        return value


def test_the_seeded_source_keeps_to_the_protocol() -> None:
    recorder = Recorder(SeededDraw(1))
    for _ in range(200):
        generate(recorder, draw_swarm(recorder))
    assert recorder.asked == {"integer", "choice", "chance"}


@settings(max_examples=50, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_the_hypothesis_source_keeps_to_the_protocol(data: st.DataObject) -> None:
    recorder = Recorder(HypothesisDraw(data.draw))
    assert check(generate(recorder, draw_swarm(recorder))) == []


@pytest.mark.parametrize("percent", [0, 30, 100])
def test_a_chance_is_about_its_percentage(percent: int) -> None:
    draw = SeededDraw(2)
    share = sum(draw.chance(percent) for _ in range(5000)) / 50
    assert abs(share - percent) < 3


@pytest.mark.parametrize("part", ["+mamba", "/unequal", "/eagle", "/fine", "swa"])
def test_both_sources_reach_the_same_kinds_of_scenario(part: str) -> None:
    """What the seeded source finds within a few swarms, Hypothesis finds too."""

    def seen(scenario: Scenario) -> bool:
        return part in geometry_class(scenario)

    assert any(seen(scenario_at(1, index)) for index in range(0, 2000, 10))
    # Without shrinking, which takes long and is not what is tested.
    quick = settings(max_examples=1000, database=None, phases=[Phase.generate])
    assert seen(hypothesis.find(scenarios(), seen, settings=quick))


# ---- the class of a geometry


@pytest.mark.parametrize(
    ("blocks", "hash_block", "drafts", "name"),
    [
        ([("full", 4)], 4, 0, "full"),
        ([("mamba", 4), ("full", 4)], 4, 0, "full+mamba"),
        ([("mamba", 4), ("full", 4), ("mamba", 4)], 4, 1, "full+2mamba/eagle"),
        ([("mamba", 4), ("swa", 2), ("full", 4)], 2, 0, "full+swa+mamba/unequal/fine"),
        ([("full", 4), ("mamba", 2)], 2, 0, "full+mamba/unequal"),
        ([("full", 4), ("mamba", 4)], 2, 3, "full+mamba/eagle/fine"),
        ([("mamba", 4)], 4, 0, "mamba"),
    ],
)
def test_a_geometry_class_names_kinds_and_traits(
    blocks: list[tuple[Any, int]], hash_block: int, drafts: int, name: str
) -> None:
    base = scenario_at(0, 0, only=("eagle",))
    made = tuple(Group(kind, block, 8 if kind == "swa" else None) for kind, block in blocks)
    geometry = msgspec.structs.replace(base.geometry, groups=made, hash_block=hash_block)
    features = msgspec.structs.replace(base.features, drafts=drafts)
    assert geometry_class(msgspec.structs.replace(base, geometry=geometry, features=features)) == name
