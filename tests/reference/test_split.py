"""The split keeps its rules where the releases keep them, and breaks them where public reports say so."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from reference import rules, split
from reference.policy import POLICIES, Policy

LATER = [policy for release, policy in POLICIES.items() if release != "0.26.0"]
ALL = list(POLICIES.values())


def name(policy: Policy) -> str:
    return policy.release


@st.composite
def chunks(draw: st.DrawFn) -> tuple[split.SplitSetting, dict[str, int]]:
    """A setting and one chunk's numbers, small, so that boundaries meet often."""
    hash_block = draw(st.integers(1, 4))
    grid = hash_block * draw(st.integers(1, 4))
    setting = split.SplitSetting(
        grid=grid,
        hash_block=hash_block,
        scheduler_block=grid,
        room=draw(st.integers(1, 3 * grid)),
        block_drop=draw(st.booleans()),
        partial_hits=hash_block < grid,
    )
    prompt = draw(st.integers(1, 6 * grid))
    known = prompt + draw(st.sampled_from([0, 0, 1, grid, grid + 1]))
    start = draw(st.integers(0, prompt))
    asked = draw(st.integers(1, min(setting.room, known - start) if known > start else 1))
    junction = draw(st.sampled_from([0, 0, start + 1, start + grid, prompt - 1]))
    return setting, {
        "start": start, "asked": asked, "prompt": prompt, "known": known, "junction": max(junction, 0),
    }  # fmt: skip


@pytest.mark.parametrize("policy", ALL, ids=name)
@given(chunk=chunks())
def test_a_chunk_stays_within_what_was_asked(policy: Policy, chunk: tuple[split.SplitSetting, dict[str, int]]) -> None:
    setting, numbers = chunk
    assert rules.chunk_within_asked(numbers["asked"], split.split(policy, setting, **numbers))


@pytest.mark.parametrize("policy", LATER, ids=name)
@given(chunk=chunks())
def test_a_chunk_short_of_the_prefill_end_is_useful(
    policy: Policy, chunk: tuple[split.SplitSetting, dict[str, int]]
) -> None:
    setting, numbers = chunk
    finish = split.prefill_end(numbers["prompt"], numbers["known"])
    granted = split.split(policy, setting, **numbers)
    tail = split.partial_tail(policy, setting, numbers["prompt"])
    # Starts off the grid come from wide blocks only, or from the tail; both are reached by fresh chunks.
    assume(numbers["start"] % setting.grid == 0)
    assert rules.chunk_end_is_useful(numbers["start"], granted, finish, (setting.grid,), (tail,), setting.room)


@pytest.mark.parametrize("policy", LATER, ids=name)
@given(chunk=chunks())
def test_a_chunk_is_empty_only_when_it_is_short(
    policy: Policy, chunk: tuple[split.SplitSetting, dict[str, int]]
) -> None:
    setting, numbers = chunk
    finish = split.prefill_end(numbers["prompt"], numbers["known"])
    granted = split.split(policy, setting, **numbers)
    assert rules.chunk_empty_only_when_short(
        numbers["start"], numbers["asked"], granted, finish, setting.grid, setting.room
    )


@pytest.mark.parametrize("policy", LATER, ids=name)
@given(chunk=chunks())
def test_a_chunk_crosses_no_stop(policy: Policy, chunk: tuple[split.SplitSetting, dict[str, int]]) -> None:
    setting, numbers = chunk
    granted = split.split(policy, setting, **numbers)
    last = split.last_cacheable_position(policy, setting, numbers["known"])
    boundary = (numbers["start"] // setting.grid + 1) * setting.grid
    stops = [last, boundary if numbers["start"] % setting.grid else 0]
    assert numbers["start"] >= split.prefill_end(numbers["prompt"], numbers["known"]) or rules.chunk_crosses_no_stop(
        numbers["start"], granted, stops
    )


def test_0_26_runs_over_a_boundary_under_eagle() -> None:
    """Public report 43559: past the last cacheable position (4 - 4 = 0 here) ends were free."""
    setting = split.SplitSetting(grid=4, hash_block=4, scheduler_block=4, room=8, block_drop=True)
    policy = POLICIES["0.26.0"]
    first = split.split(policy, setting, 0, 3, 5, 5, 0)
    assert first == 3, "the first chunk ends inside the block"
    assert not rules.chunk_end_is_useful(0, first, 5, (4,), (0,), 8)
    second = split.split(policy, setting, 3, 2, 5, 5, 0)
    assert second == 2, "and the second runs over its boundary"
    assert not rules.chunk_crosses_no_stop(3, second, (4,))


@pytest.mark.parametrize("policy", LATER, ids=name)
def test_later_releases_wait_or_stop_there(policy: Policy) -> None:
    setting = split.SplitSetting(grid=4, hash_block=4, scheduler_block=4, room=8, block_drop=True)
    assert split.split(policy, setting, 0, 3, 5, 5, 0) == 0
    assert split.split(policy, setting, 3, 2, 5, 5, 0) == 1


@pytest.mark.parametrize(
    ("release", "asked", "prompt", "junction", "drop", "end"),
    [
        # A junction at 21 stops a chunk at its block floor.
        ("0.33.0", 40, 40, 21, False, 16),
        # The last block boundary: 0.32 on leaves one token of an aligned prompt to compute.
        ("0.31.0", 32, 32, 0, False, 32),
        ("0.32.0", 32, 32, 0, False, 16),
        # The EAGLE drop lowers it by a block.
        ("0.33.0", 40, 40, 0, True, 16),
        ("0.33.0", 40, 40, 0, False, 32),
    ],
)
def test_stops(release: str, asked: int, prompt: int, junction: int, drop: bool, end: int) -> None:
    setting = split.SplitSetting(grid=16, hash_block=16, scheduler_block=16, room=64, block_drop=drop)
    assert split.split(POLICIES[release], setting, 0, asked, prompt, prompt, junction) == end


def test_a_tail_on_the_budget_is_floored() -> None:
    """A chunk that ends on the partial tail by its budget alone is floored to the block (0.27 on)."""
    setting = split.SplitSetting(grid=16, hash_block=4, scheduler_block=16, room=64, block_drop=True, partial_hits=True)
    policy = POLICIES["0.33.0"]
    assert split.split(policy, setting, 0, 24, 24, 24, 0) == 20
    assert split.split(policy, setting, 0, 20, 24, 24, 0) == 16


def test_decoding_is_never_cut() -> None:
    setting = split.SplitSetting(grid=16, hash_block=16, scheduler_block=16, room=64)
    for policy in ALL:
        assert split.split(policy, setting, 30, 7, 30, 31, 0) == 7
