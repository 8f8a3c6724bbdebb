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


@pytest.mark.parametrize(("lookahead", "end"), [(0, 8), (1, 8), (2, 4), (3, 4)])
def test_all_that_the_last_hash_looks_ahead_to_is_left_to_compute(lookahead: int, end: int) -> None:
    setting = split.SplitSetting(grid=4, hash_block=4, scheduler_block=4, room=16, lookahead=lookahead)
    assert split.split(POLICIES["0.32.0"], setting, 0, 9, 9, 9, 0) == end
    assert split.split(POLICIES["0.31.0"], setting, 0, 9, 9, 9, 0) == 8, "which came with 0.32"


def test_the_exact_junction_holds_only_inside_the_prompt() -> None:
    """A resumed request recomputes what it generated, too; a junction there is floored like without the opt-in."""
    setting = split.SplitSetting(grid=4, hash_block=4, scheduler_block=4, room=64, exact_junction=True)
    for policy in ALL:
        assert split.split(policy, setting, 0, 30, 10, 30, 9) == 9
        assert split.split(policy, setting, 0, 30, 10, 30, 10) == 10
        assert split.split(policy, setting, 0, 30, 10, 30, 18) == 16


def test_a_tail_before_the_last_cacheable_position_is_no_stop() -> None:
    """The tail is the prompt's, the last cacheable position the resumed request's."""
    setting = split.SplitSetting(grid=4, hash_block=2, scheduler_block=4, room=64, partial_hits=True)
    for policy in ALL:
        assert split.partial_tail(policy, setting, 11) == 10
        assert split.split(policy, setting, 0, 30, 11, 30, 0) == 28


def saving(**more: int | bool) -> split.SplitSetting:
    """Blocks of 4 tokens and hashes of 2, on a backend that saves states inside a chunk."""
    sizes: dict[str, int] = {"grid": 4, "hash_block": 2, "scheduler_block": 4, "room": 64, "checkpoint_alignment": 1}
    return split.SplitSetting(**{**sizes, "partial_hits": True, **more})


@pytest.mark.parametrize("policy", LATER, ids=name)
def test_without_a_backend_that_saves_inside_all_stops_hold(policy: Policy) -> None:
    assert split.split(policy, saving(checkpoint_alignment=0), 0, 11, 11, 11, 0) == 8
    assert split.split(policy, saving(checkpoint_alignment=0), 8, 3, 11, 11, 0) == 2


@pytest.mark.parametrize("policy", LATER[:2], ids=name)
def test_before_0_29_no_state_is_saved_inside(policy: Policy) -> None:
    assert split.split(policy, saving(), 0, 11, 11, 11, 0) == 8


@pytest.mark.parametrize(
    ("start", "asked", "changes", "granted"),
    [
        # No stop at 8 and no floor to 4 either; the partial tail is still one.
        (0, 11, {"partial_hits": False}, 11),
        (0, 7, {"partial_hits": False}, 7),
        (0, 11, {}, 10),
        # Not from inside a block, and not under the EAGLE drop.
        (2, 9, {"partial_hits": False}, 2),
        (2, 1, {"partial_hits": False}, 0),
        (0, 11, {"partial_hits": False, "block_drop": True}, 4),
        (0, 7, {"partial_hits": False, "block_drop": True}, 4),
    ],
)
def test_0_29_saves_inside_every_chunk_that_starts_on_a_block(
    start: int, asked: int, changes: dict[str, bool], granted: int
) -> None:
    assert split.split(POLICIES["0.29.0"], saving(**changes), start, asked, 11, 11, 0) == granted


@pytest.mark.parametrize("policy", LATER[3:], ids=name)
@pytest.mark.parametrize(
    ("start", "asked", "granted"),
    [
        # The last cacheable position, the partial tail and the next boundary are no stops.
        (0, 11, 11),
        (2, 9, 9),
        # A chunk that is not the final one is floored.
        (0, 7, 4),
        # Not where the chunk starts off the hashes, or spans too few blocks.
        (1, 10, 3),
        (6, 5, 2),
    ],
)
def test_from_0_30_the_final_chunk_saves_inside(policy: Policy, start: int, asked: int, granted: int) -> None:
    assert split.split(policy, saving(), start, asked, 11, 11, 0) == granted


@pytest.mark.parametrize(
    ("release", "tokens", "changes", "granted"),
    [
        # The saved position is 10, which this backend cannot save; 0.32 on without partial hits it is 8.
        ("0.31.0", 11, {"partial_hits": False}, 8),
        ("0.32.0", 11, {"partial_hits": False}, 11),
        ("0.32.0", 11, {}, 8),
        # With hashes that look ahead it is 8 again.
        ("0.32.0", 11, {"lookahead": 3}, 11),
        # Under the EAGLE drop one unit lower than 10, and 0.32 on than 12.
        ("0.31.0", 12, {"block_drop": True}, 12),
        ("0.32.0", 12, {"block_drop": True}, 8),
        ("0.32.0", 11, {"block_drop": True}, 11),
    ],
)
def test_a_position_is_saved_inside_only_where_the_backend_can(
    release: str, tokens: int, changes: dict[str, int], granted: int
) -> None:
    setting = saving(checkpoint_alignment=8, **changes)
    assert split.split(POLICIES[release], setting, 0, tokens, tokens, tokens, 0) == granted


@pytest.mark.parametrize("policy", LATER[3:], ids=name)
def test_from_0_30_a_chunk_short_of_the_prefill_end_saves_nothing(policy: Policy) -> None:
    """Under the EAGLE drop the position to save, 8, is inside the chunk, but the stop at 4 holds."""
    assert split.split(policy, saving(block_drop=True), 0, 10, 11, 11, 0) == 4
