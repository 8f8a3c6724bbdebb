"""Retention keeps what a later request needs, and with interval 0 nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference import retention
from reference.boundaries import boundary_list, replay_boundaries
from reference.geometry import Group, blocks_needed_for_hit
from reference.policy import POLICIES


@st.composite
def cases(draw: st.DrawFn) -> tuple[Group, int, int, tuple[int, ...]]:
    """A sparse group, its alignment, a number of blocks and a boundary list."""
    block = draw(st.integers(1, 4))
    alignment = block * draw(st.integers(1, 4))
    kind = draw(st.sampled_from(["swa", "mamba"]))
    group = Group(kind, block, draw(st.integers(1, 20)) if kind == "swa" else 0, draw(st.booleans()))
    blocks = draw(st.integers(1, 24))
    boundaries = tuple(draw(st.lists(st.integers(0, blocks * block), max_size=3)))
    return group, alignment, blocks, boundaries


def kept(case: tuple[Group, int, int, tuple[int, ...]], interval: int | None) -> set[int]:
    group, alignment, blocks, boundaries = case
    mask = retention.mask(group, 0, blocks, alignment, interval, boundaries)
    return {number for number, keeps in enumerate(mask) if keeps}


def tails(case: tuple[Group, int, int, tuple[int, ...]]) -> set[int]:
    """The tails of the boundary list, written out."""
    group, alignment, blocks, boundaries = case
    need = blocks_needed_for_hit(group)
    found = set()
    for boundary in boundaries:
        end = boundary // alignment * alignment // group.block + (group.kind == "swa" and group.drops)
        found |= set(range(max(end - need, 0), min(end, blocks)))
    return found


@given(case=cases())
def test_interval_zero_keeps_the_tails_and_nothing_else(case: tuple[Group, int, int, tuple[int, ...]]) -> None:
    assert kept(case, 0) == tails(case)


@given(case=cases(), segments=st.integers(1, 3))
def test_every_interval_keeps_the_tails_and_dense_keeps_the_most(
    case: tuple[Group, int, int, tuple[int, ...]], segments: int
) -> None:
    _, alignment, _, _ = case
    some = kept(case, segments * alignment)
    assert tails(case) <= some
    assert some <= kept(case, None) | tails(case)


@given(case=cases(), cut=st.integers(0, 24), interval=st.sampled_from([None, 0, 1, 2]))
def test_masks_of_parts_are_the_mask_of_the_whole(
    case: tuple[Group, int, int, tuple[int, ...]], cut: int, interval: int | None
) -> None:
    group, alignment, blocks, boundaries = case
    tokens = interval * alignment if interval else interval
    cut = min(cut, blocks)
    whole = retention.mask(group, 0, blocks, alignment, tokens, boundaries)
    parts = retention.mask(group, 0, cut, alignment, tokens, boundaries)
    parts += retention.mask(group, cut, blocks, alignment, tokens, boundaries)
    assert parts == whole


def test_full_and_chunked_local_attention_are_never_thinned_out() -> None:
    groups = [Group("full", 4), Group("chunked", 4, attention_chunk=8), Group("swa", 4, 8), Group("mamba", 4)]
    assert [retention.keeps_all(group) for group in groups] == [True, True, False, False]


def test_how_many_blocks_a_hit_of_chunked_local_attention_needs_is_no_one_number() -> None:
    with pytest.raises(ValueError, match="those of its chunk"):
        blocks_needed_for_hit(Group("chunked", 4, attention_chunk=8))


def test_a_window_of_one_token_needs_nothing_and_keeps_nothing() -> None:
    assert not any(retention.mask(Group("swa", 4, 1), 0, 8, 8, 0, (15, 31)))


def test_a_dense_window_keeps_one_tail_a_scheduler_block() -> None:
    assert retention.mask(Group("swa", 4, 5), 0, 8, 16, None, ()) == [False, False, False, True] * 2
    # One block more, one block further, where EAGLE peeks.
    peeks = Group("swa", 4, 5, drops=True)
    assert retention.mask(peeks, 0, 9, 16, None, ()) == [
        False, False, False, True, True, False, False, True, True,
    ]  # fmt: skip


def test_replay_boundaries_know_the_eagle_drop_from_0_30() -> None:
    """Public report 53504: an identical resend resumes one block lower, and that block was not kept."""
    assert replay_boundaries(POLICIES["0.29.0"], 1191, 160, True) == (1190,)
    assert replay_boundaries(POLICIES["0.30.0"], 1191, 160, True) == (960,)
    assert replay_boundaries(POLICIES["0.30.0"], 1280, 160, True) == (960, 1120)
    assert replay_boundaries(POLICIES["0.30.0"], 1191, 160, False) == (1190,)


def test_the_junction_joins_the_list() -> None:
    group = Group("swa", 16, 40, drops=True)
    assert boundary_list(POLICIES["0.32.0"], group, 100, 64, 32, True) == (*(64, 64, 64)[:1], 64)
    assert boundary_list(POLICIES["0.33.0"], group, 100, 64, 32, True)[-1] == 48
    assert boundary_list(POLICIES["0.33.0"], group, 100, 0, 32, True) == (64,)


def test_a_segment_that_is_all_tail_keeps_its_first_block_too() -> None:
    """Two blocks a segment and two needed: all are kept, though the tails lie a block further under EAGLE."""
    assert all(retention.mask(Group("swa", 4, 5, drops=True), 0, 6, 8, 8, ()))
    assert retention.mask(Group("swa", 4, 5, drops=True), 0, 4, 12, 12, ()) == [False, False, True, True]


def test_only_a_group_that_drops_keeps_the_block_below_the_junction() -> None:
    policy = POLICIES["0.33.0"]
    assert boundary_list(policy, Group("swa", 16, 40), 200, 80, 32, True) == (160, 80)
    assert boundary_list(policy, Group("swa", 16, 40, drops=True), 200, 80, 32, True) == (160, 80, 64)


def test_whole_scheduler_blocks_may_be_cached_and_the_block_that_eagle_peeks_at() -> None:
    plain, drops = Group("full", 4), Group("full", 4, drops=True)
    assert retention.cacheable_tokens(plain, 30, 12, whole_units=True) == 24
    assert retention.cacheable_tokens(drops, 30, 12, whole_units=True) == 28
    assert retention.cacheable_tokens(drops, 26, 12, whole_units=True) == 26, "never more than there is"
    assert retention.cacheable_tokens(drops, 11, 12, whole_units=True) == 0
    assert retention.cacheable_tokens(drops, 30, 12, whole_units=False) == 30
