"""The reducer reaches a minimum, keeps the finding, and does the same every time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fuzz.engines.open import open_engine, prepare_engine
from fuzz.generator import scenario_at
from fuzz.reductions import block_sizes, renamed
from fuzz.shrink import shrink, size
from fuzz.supported import unsupported
from fuzz.tally import by_signature
from fuzz.trial import try_scenario
from oracle.scenario import Scenario
from oracle.validate import check, prompt_tokens
from oracle.verdict import Finding

FINDING = Finding("S1", "split", "full", 0, 0, "because")


def large() -> Scenario:
    """A drawn scenario with many requests and features."""
    return max((scenario_at(3, index) for index in range(60)), key=size)


def when(holds: Callable[[Scenario], bool]) -> Callable[[Scenario], Finding | None]:
    return lambda scenario: FINDING if holds(scenario) else None


def test_what_any_scenario_shows_shrinks_to_almost_nothing() -> None:
    small = shrink(large(), when(lambda scenario: True))
    assert small.complete
    assert size(small.scenario)[:3] == (1, 1, 2)  # one request, one event, one prompt and one output token
    assert small.scenario.limits.budget == 1
    assert all(group.block == 1 for group in small.scenario.geometry.groups)


@pytest.mark.parametrize(("least", "left"), [(0, 0), (1, 1)])
def test_states_saved_inside_a_chunk_go_or_are_saved_anywhere(least: int, left: int) -> None:
    def saved(scenario: Scenario) -> int:
        return max(group.checkpoint for group in scenario.geometry.groups)

    drawn = (scenario_at(3, index, only=("coarse-checkpoint", "partial-hits")) for index in range(60))
    start = next(scenario for scenario in drawn if saved(scenario) > 1)
    assert saved(shrink(start, when(lambda scenario: saved(scenario) >= least)).scenario) == left


@pytest.mark.parametrize("blocks", [1, 2])
def test_an_attention_chunk_shrinks_by_blocks_and_with_them(blocks: int) -> None:
    def longest(scenario: Scenario) -> int:
        return max((group.attention_chunk or 0) // group.block for group in scenario.geometry.groups)

    def chunks(scenario: Scenario) -> list[int]:
        return [group.attention_chunk for group in scenario.geometry.groups if group.attention_chunk]

    drawn = (scenario_at(3, index, only=("chunked-local",)) for index in range(60))
    start = next(scenario for scenario in drawn if longest(scenario) > 2 and len(chunks(scenario)) == 1)
    assert chunks(shrink(start, when(lambda scenario: longest(scenario) >= blocks)).scenario) == [blocks]


def test_smaller_blocks_leave_an_attention_chunk_its_number_of_blocks() -> None:
    drawn = (scenario_at(3, index, only=("chunked-local",)) for index in range(60))
    start = next(s for s in drawn if any((g.attention_chunk or 0) > g.block > 1 for g in s.geometry.groups))
    blocks = [(group.attention_chunk or 0) // group.block for group in start.geometry.groups]
    smaller = list(block_sizes(start))
    assert any(one.geometry.groups != start.geometry.groups for one in smaller)
    for one in smaller:
        assert [(group.attention_chunk or 0) / group.block for group in one.geometry.groups] == blocks


def test_a_prompt_and_the_budget_that_holds_it_shrink_together() -> None:
    def holds(scenario: Scenario) -> bool:
        tokens = [prompt_tokens(request) for request in scenario.requests()]
        return len(tokens) >= 2 and tokens[0] >= 5 and tokens[1] == scenario.limits.budget

    start = large()
    budget = prompt_tokens(start.requests()[1])
    limits = type(start.limits)(budget, 1)
    small = shrink(Scenario(start.geometry, limits, start.steps, start.features), when(holds))
    assert [prompt_tokens(request) for request in small.scenario.requests()] == [5, 1]
    assert small.scenario.limits.budget == 1


def test_every_trial_is_legal_and_none_is_repeated() -> None:
    tried: list[Scenario] = []

    def recurs(scenario: Scenario) -> Finding | None:
        tried.append(scenario)
        return FINDING if len(scenario.requests()) >= 2 else None

    shrink(large(), recurs)
    assert not [scenario for scenario in tried if check(scenario)]
    assert len(tried) == len(set(map(str, tried)))


def test_a_scenario_that_does_not_show_it_is_returned_as_it_is() -> None:
    start = large()
    small = shrink(start, when(lambda scenario: False))
    assert small.finding is None
    assert small.scenario is start
    assert small.attempts == 1


def test_attempts_are_a_limit() -> None:
    small = shrink(large(), when(lambda scenario: len(scenario.requests()) >= 2), attempts=10)
    assert small.attempts == 10
    assert not small.complete


def test_renaming_keeps_which_prompts_share_what() -> None:
    start = large()
    named = renamed(start)
    assert not check(named)
    assert size(named) == size(start)

    def sharing(scenario: Scenario) -> list[list[bool]]:
        prompts = [request.prompt for request in scenario.requests()]
        return [[one[0] == other[0] for other in prompts] for one in prompts]

    assert sharing(named) == sharing(start)


@pytest.mark.parametrize("fault", ["ends-inside-a-block", "runs-across-stops", "stale-hash", "second-best-hit"])
def test_a_planted_fault_shrinks_to_a_scenario_that_fits_on_a_screen(fault: str) -> None:
    engine = open_engine(f"planted:{fault}")
    supported = unsupported(prepare_engine(f"planted:{fault}"))

    def first_seen() -> tuple[Scenario, Finding]:
        for index in range(200):
            scenario = scenario_at(1, index, without=("async",))
            if not supported(scenario) and (found := try_scenario(engine, scenario).verdict.findings):
                return scenario, found[0]
        raise AssertionError("not found")

    scenario, finding = first_seen()

    def recurs(candidate: Scenario) -> Finding | None:
        return by_signature(try_scenario(engine, candidate).verdict.findings).get(finding.signature)

    small = shrink(scenario, recurs)
    again = shrink(scenario, recurs)
    assert small.complete
    assert small == again
    assert recurs(small.scenario) == small.finding
    assert len(small.scenario.requests()) <= 2
    assert all(prompt_tokens(request) <= 8 for request in small.scenario.requests())
