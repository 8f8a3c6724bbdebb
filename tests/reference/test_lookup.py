"""The lookup grants the longest prefix that the cache can serve, and says where a junction lies."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from reference.geometry import Group, blocks_needed_for_hit
from reference.lookup import LookupGroup, chunked_hit, full_hit, hybrid_hit, mamba_hit, single_hit, window_hit
from reference.policy import POLICIES
from reference.serving import served


def held(*positions: int) -> Callable[[int], bool]:
    return set(positions).__contains__


@given(present=st.sets(st.integers(1, 12)), limit=st.integers(0, 48), drop=st.booleans())
def test_full_attention_is_a_run_from_the_start(present: set[int], limit: int, drop: bool) -> None:
    positions = {4 * number for number in present}
    run = 0
    while run + 4 in positions and run + 4 <= limit:
        run += 4
    assert full_hit(positions.__contains__, limit, 4, 4, drop) == max(run - (4 if drop else 0), 0)


def test_full_attention_ends_inside_a_block_at_the_highest_hash() -> None:
    assert full_hit(held(8, 16, 18, 20), 23, 8, 2, False) == 20
    assert full_hit(held(8, 16, 18, 20), 19, 8, 2, False) == 18
    assert full_hit(held(8, 16, 18, 20), 23, 8, 2, True) == 18


@given(present=st.sets(st.integers(1, 12)), limit=st.integers(0, 48), step=st.sampled_from([1, 2, 3]))
def test_mamba_is_the_highest_aligned_state(present: set[int], limit: int, step: int) -> None:
    positions = {4 * number for number in present}
    usable = [position for position in positions if position <= limit and position % (4 * step) == 0]
    assert mamba_hit(positions.__contains__, limit, 4, 4 * step) == max(usable, default=0)


@given(present=st.sets(st.integers(0, 11)), window=st.integers(2, 20), limit=st.integers(0, 48))
def test_a_window_is_the_highest_position_whose_last_blocks_are_there(
    present: set[int], window: int, limit: int
) -> None:
    group = Group("swa", 4, window)
    positions = {4 * (number + 1) for number in present}
    need = blocks_needed_for_hit(group)
    best = 0
    for blocks in range(1, limit // 4 + 1):
        if all(number in present for number in range(max(blocks - need, 0), blocks)):
            best = blocks * 4
    assert window_hit(positions.__contains__, limit, group, 4, False) == best


@given(present=st.sets(st.integers(1, 12)), chunk=st.integers(1, 5), limit=st.integers(0, 48))
def test_chunked_local_attention_is_the_highest_position_whose_chunk_is_there_so_far(
    present: set[int], chunk: int, limit: int
) -> None:
    group = Group("chunked", 4, attention_chunk=4 * chunk)
    positions = {4 * number for number in present}
    for best in range(limit // 4 * 4, -1, -4):
        if all(position in positions for position in range(best // (4 * chunk) * 4 * chunk + 4, best + 1, 4)):
            break
    assert chunked_hit(positions.__contains__, limit, group) == best
    reach = range(0, limit + 1, 4)
    assert [p for p in reach if served(group, positions.__contains__, p, 0, 4)][-1] == best, "said without a search"


def test_a_hit_on_the_start_of_an_attention_chunk_needs_no_block_of_it() -> None:
    group = Group("chunked", 4, attention_chunk=8)
    assert chunked_hit(held(), 16, group) == 16
    assert chunked_hit(held(), 19, group) == 16
    assert chunked_hit(held(20), 20, group) == 20
    assert chunked_hit(held(8, 16), 15, group) == 8


def test_chunked_local_attention_looks_again_when_another_group_lowers_the_candidate() -> None:
    """At 28 it has what it reads; a state is cached at 12 only, where its chunk began at 8 and a block is missing."""
    chunked = LookupGroup(Group("chunked", 4, attention_chunk=8), held(28))
    groups = [
        LookupGroup(Group("full", 4), held(*range(4, 29, 4))),
        chunked,
        LookupGroup(Group("mamba", 4), held(4, 12)),
    ]
    found = hybrid_hit(POLICIES["0.33.0"], groups, known=32, hashed=32, alignment=4, hash_block=4)
    assert (found.hit, found.junction) == (0, 28)
    two = hybrid_hit(POLICIES["0.33.0"], groups[:2], known=32, hashed=32, alignment=4, hash_block=4)
    assert (two.hit, two.junction) == (28, 0)


def test_attention_chunks_of_two_sizes_are_two_groups() -> None:
    groups = [
        LookupGroup(Group("full", 4), held(4, 8, 12, 16, 20)),
        LookupGroup(Group("chunked", 4, attention_chunk=8), held(20)),
        LookupGroup(Group("chunked", 4, attention_chunk=16), held()),
    ]
    assert hybrid_hit(POLICIES["0.33.0"], groups, known=22, hashed=20, alignment=4, hash_block=4).hit == 16


def test_a_short_window_run_loses_a_unit_under_the_drop() -> None:
    """Where the run touches block 0 and is shorter than needed it is trimmed before and after the drop."""
    group = Group("swa", 4, 64, drops=True)
    assert window_hit(held(4, 8, 12, 16, 20), 40, group, 16, True) == 0
    assert window_hit(held(*range(4, 40, 4)), 40, group, 16, True) == 16


def test_one_group_has_no_junction() -> None:
    item = LookupGroup(Group("full", 4), held(4, 8, 12))
    assert single_hit(item, 16).hit == 12
    assert single_hit(item, 12).hit == 8, "one token is left to compute"
    assert single_hit(item, 16).junction == 0


def test_the_junction_is_what_full_attention_has_beyond_the_state() -> None:
    policy = POLICIES["0.33.0"]
    groups = [LookupGroup(Group("full", 4), held(4, 8, 12)), LookupGroup(Group("mamba", 4), held(4))]
    found = hybrid_hit(policy, groups, known=20, hashed=20, alignment=4, hash_block=4)
    assert (found.hit, found.junction) == (4, 12)
    agreed = hybrid_hit(policy, groups, known=6, hashed=4, alignment=4, hash_block=4)
    assert (agreed.hit, agreed.junction) == (4, 0)


def test_three_groups_lower_until_all_agree() -> None:
    policy = POLICIES["0.33.0"]
    groups = [
        LookupGroup(Group("mamba", 4), held(8, 16)),
        LookupGroup(Group("swa", 4, 5), held(4, 8, 12)),
        LookupGroup(Group("full", 4), held(4, 8, 12, 16, 20)),
    ]
    found = hybrid_hit(policy, groups, known=24, hashed=24, alignment=4, hash_block=4)
    assert (found.hit, found.junction) == (8, 20)


def test_equal_groups_must_all_hold_a_state() -> None:
    groups = [
        LookupGroup(Group("full", 4), held(4, 8)),
        LookupGroup(Group("mamba", 4), held(4, 8)),
        LookupGroup(Group("mamba", 4), held(4)),
    ]
    assert hybrid_hit(POLICIES["0.33.0"], groups, 12, 12, 4, 4).hit == 4


def test_a_peek_past_the_limit_came_with_0_32() -> None:
    """Before, the first group that drops could not look past tokens - 1, and a resend lost a unit more."""
    groups = [
        LookupGroup(Group("full", 4, drops=True), held(4, 8, 12)),
        LookupGroup(Group("mamba", 4, drops=True), held(4, 8, 12)),
    ]
    assert hybrid_hit(POLICIES["0.31.0"], groups, 12, 12, 4, 4).hit == 4
    assert hybrid_hit(POLICIES["0.32.0"], groups, 12, 12, 4, 4).hit == 8


def test_after_a_shorter_length_an_eagle_group_peeks_again() -> None:
    """The state lowers the length to 8, where the window has no block beyond to give up."""
    groups = [
        LookupGroup(Group("full", 4), held(*range(4, 32, 4))),
        LookupGroup(Group("swa", 4, 5, drops=True), held(4, 8, 24, 28)),
        LookupGroup(Group("mamba", 4), held(4, 8)),
    ]
    found = hybrid_hit(POLICIES["0.33.0"], groups, known=32, hashed=32, alignment=4, hash_block=4)
    assert (found.hit, found.longest) == (4, 28)


def test_an_eagle_group_looks_one_block_beyond_the_candidate() -> None:
    groups = [
        LookupGroup(Group("full", 4), held(4, 8)),
        LookupGroup(Group("swa", 4, 5, drops=True), held(4, 8, 12)),
    ]
    assert hybrid_hit(POLICIES["0.33.0"], groups, known=20, hashed=20, alignment=4, hash_block=4).hit == 8


def test_with_finer_hits_full_attention_peeks_one_hash_only() -> None:
    """A whole block beyond would grant the second group more than the first one holds."""
    groups = [
        LookupGroup(Group("full", 4), held(4, 6)),
        LookupGroup(Group("full", 8, drops=True), held(8, 10, 12)),
    ]
    assert hybrid_hit(POLICIES["0.33.0"], groups, known=20, hashed=20, alignment=2, hash_block=2).hit == 6


def test_one_equal_group_that_drops_makes_all_drop() -> None:
    groups = [
        LookupGroup(Group("full", 4), held(4, 8, 12)),
        LookupGroup(Group("swa", 4, 5), held(4, 8, 12)),
        LookupGroup(Group("swa", 4, 5, drops=True), held(4, 8, 12)),
    ]
    assert hybrid_hit(POLICIES["0.33.0"], groups, known=20, hashed=20, alignment=4, hash_block=4).hit == 8
