"""Which scenarios a gate run tries: stored ones, those made from the solver's inputs, steered ones."""

from __future__ import annotations

from itertools import islice

import msgspec
import pytest

from fuzz.gate.directed import _family, mask_scenarios
from fuzz.gate.steer import LIVENESS, NEEDED, generated, liveness
from fuzz.generator import FEATURES, scenario_at, swarm_at
from fuzz.vectors import vectors
from oracle.scenario import Scenario
from oracle.validate import check
from spec.row import Row

ROW = Row(
    claim="M3",
    rule="M3",
    subject="mask",
    target="engine",
    release="0.33.0",
    sizes="16 in 64",
    features="window, interval 0",
    regime="all",
    verdict="refuted",
    reason="",
    counterexample={"prompt.whole": 2},
    shown={"prompt": 130, "junction": 64, "window": 20},
)


def always_runs(_: Scenario) -> bool:
    return False


def kinds(scenario: Scenario) -> set[str]:
    return {group.kind for group in scenario.geometry.groups}


def test_the_stored_vectors_can_be_read_and_run() -> None:
    found = vectors()
    assert {"state-poisoned-by-fragment", "third-sibling-hits"} <= {vector.name for vector in found}
    assert not [vector.name for vector in found if check(vector.scenario)]


def test_every_decision_point_asks_for_features_that_exist() -> None:
    assert {feature for rows in NEEDED.values() for row in rows for feature in row} <= set(FEATURES)
    assert set(LIVENESS) <= set(FEATURES)


def test_half_of_the_scenarios_bear_on_what_changed() -> None:
    steered = list(islice(generated(1, (), {"pool"}, always_runs), 400))
    plain = list(islice(generated(1, (), set(), always_runs), 400))
    assert steered[0::2] == plain[0::2]
    chosen = [index for index in range(2000) if "small-pool" in swarm_at(1, index)]
    contending = {msgspec.json.encode(scenario_at(1, index)) for index in chosen}
    assert all(msgspec.json.encode(scenario) in contending for scenario in steered[1::2])
    assert not all(msgspec.json.encode(scenario) in contending for scenario in plain[1::2])


def test_a_change_of_chunked_local_attention_is_tried_with_it() -> None:
    steered = islice(generated(1, (), {"chunked-local"}, always_runs), 400)
    plain = islice(generated(1, (), set(), always_runs), 400)
    share, usual = (sum("chunked" in kinds(one) for one in made) / 400 for made in (steered, plain))
    assert share > 1.5 * usual > 0


def test_without_a_known_point_every_scenario_has_its_turn() -> None:
    assert list(islice(generated(7, (), set(), always_runs), 20)) == [scenario_at(7, index) for index in range(20)]


def test_what_a_build_refuses_is_left_out_and_the_rest_stays() -> None:
    everything = [scenario_at(1, index) for index in range(100)]
    few_blocks = [scenario for scenario in everything if scenario.geometry.blocks <= 40]
    assert 10 < len(few_blocks) < 90
    found = islice(generated(1, (), set(), lambda one: one.geometry.blocks > 40), len(few_blocks))
    assert list(found) == few_blocks


def test_liveness_makes_requests_contend() -> None:
    found = liveness(1, 20, (), always_runs)
    assert len(found) == 20
    assert any(not scenario.features.reserve_full_sequence for scenario in found)


def test_what_would_be_no_legal_scenario_is_left_out() -> None:
    """Where an alignment is finer than a window's block no hit can end: windows have no partial hits."""
    row = msgspec.structs.replace(ROW, sizes="16 by 4", features="window, interval 0")
    assert [scenario for scenario in _family(row) if check(scenario)]
    assert not [scenario for scenario in mask_scenarios([row]) if check(scenario)]


@pytest.mark.parametrize("features", ["window, interval 0", "Mamba, interval 0", "Mamba, interval above 0"])
def test_a_mask_that_differs_gives_legal_scenarios_around_its_positions(features: str) -> None:
    found = list(islice(mask_scenarios([msgspec.structs.replace(ROW, features=features)]), 200))
    assert len(found) > 20
    assert not [scenario for scenario in found if check(scenario)]
    prompts = {request.prompt[0] for scenario in found for request in scenario.requests()}
    assert {"a:64", "a:130"} <= prompts
    assert ({"swa"} if features.startswith("window") else {"mamba"}) <= set.union(*map(kinds, found))


def test_a_boundary_list_that_differs_gives_scenarios_and_a_split_does_not() -> None:
    boundaries = msgspec.structs.replace(ROW, subject="boundaries", sizes="4 in 8", features="")
    assert list(islice(mask_scenarios([boundaries]), 5))
    assert not list(mask_scenarios([msgspec.structs.replace(ROW, subject="split", sizes="16/4", features="plain")]))
