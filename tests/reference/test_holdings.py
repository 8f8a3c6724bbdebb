"""What a group gives back before a chunk, what it adopts, and where new blocks go."""

from __future__ import annotations

import pytest

from reference.geometry import Group
from reference.holdings import Holding, Take, adopt, give_back_passed, grow, is_open
from reference.policy import POLICIES

NEWEST = POLICIES["0.33.0"]
FULL, WINDOW, MAMBA = Group("full", 4), Group("swa", 4, 9), Group("mamba", 4)
CHUNKED = Group("chunked", 4, attention_chunk=8)


def held(*blocks: int, **more: int) -> Holding:
    """A holding with these blocks by column, 0 for none."""
    by_column = {column: block for column, block in enumerate(blocks) if block}
    return Holding(len(blocks), by_column, started=True, **more)  # type: ignore[arg-type]


def give(*blocks: int) -> Take:
    """A pool that gives these blocks, and no more."""
    left = list(blocks)
    return lambda count: [left.pop(0) for _ in range(count)]


@pytest.mark.parametrize(
    ("computed", "calls"), [(8, []), (11, []), (12, [[0]]), (16, [[1, 0]]), (20, [[2, 1, 0]]), (60, [[3, 2, 1, 0]])]
)
def test_a_window_gives_back_what_lies_before_it_the_last_column_first(computed: int, calls: list[list[int]]) -> None:
    assert give_back_passed(NEWEST, WINDOW, held(1, 2, 3, 4), computed) == calls


@pytest.mark.parametrize(("computed", "calls"), [(7, []), (8, [[1, 0]]), (15, [[1, 0]]), (16, [[3, 2, 1, 0]])])
def test_an_attention_chunk_is_given_back_once_it_is_computed(computed: int, calls: list[list[int]]) -> None:
    assert give_back_passed(NEWEST, CHUNKED, held(1, 2, 3, 4), computed) == calls


def test_a_hit_is_adopted_without_earlier_attention_chunks() -> None:
    holding = Holding()
    assert adopt(CHUNKED, holding, 12, (0, 0, 7)) == {0: 0, 1: 0, 2: 7}
    assert adopt(CHUNKED, Holding(), 16, (0, 0, 7, 8)) == {0: 0, 1: 0, 2: 0, 3: 0}
    assert (holding.columns, holding.blocks, holding.cached) == (3, {2: 7}, 3)


def test_full_attention_gives_nothing_back() -> None:
    assert give_back_passed(NEWEST, FULL, held(1, 2, 3), 100) == []


@pytest.mark.parametrize(("release", "calls"), [("0.29.0", [[3]]), ("0.30.0", [[3, 0]])])
def test_states_beyond_a_gap_are_given_back_since_0_30(release: str, calls: list[list[int]]) -> None:
    assert give_back_passed(POLICIES[release], MAMBA, held(5, 0, 0, 6, 7), 17) == calls


def test_the_state_that_was_copied_on_is_given_back_by_a_call_of_its_own() -> None:
    first = held(5, 0, 0, 6, previous=0)
    assert give_back_passed(POLICIES["0.29.0"], MAMBA, first, 4) == []
    assert give_back_passed(POLICIES["0.29.0"], MAMBA, first, 16) == [[0]]


def test_a_hit_is_adopted_without_what_the_window_does_not_read() -> None:
    window = Holding()
    assert adopt(WINDOW, window, 16, (0, 0, 8, 9)) == {0: 0, 1: 0, 2: 8, 3: 9}
    assert (window.columns, window.blocks, window.cached) == (4, {2: 8, 3: 9}, 4)


def test_attention_takes_a_block_for_each_started_one() -> None:
    holding = held(1, 2)
    assert grow(NEWEST, FULL, holding, 9, 13, 0, -1, give(7, 8)) == ({2: 7, 3: 8}, 0)
    assert holding.columns == 4


def test_a_hit_inside_a_block_goes_on_in_a_copy() -> None:
    assert grow(NEWEST, FULL, held(1, 2), 9, 9, 0, 1, give(7, 8)) == ({1: 7, 2: 8}, 7)
    fresh = Holding(2, {1: 2})
    assert grow(NEWEST, MAMBA, fresh, 9, 9, 0, 1, give(7, 8)) == ({1: 7, 2: 8}, 7)
    assert (fresh.previous, fresh.columns) == (1, 3)


def test_a_state_runs_ahead_and_takes_its_spare_blocks_along() -> None:
    holding = held(5, 6, 7)
    assert grow(NEWEST, MAMBA, holding, 16, 16, 2, -1, give(9)) == ({1: 0, 2: 0, 3: 6, 4: 7, 5: 9}, 0)
    assert (holding.blocks, holding.previous) == ({0: 5, 3: 6, 4: 7, 5: 9}, 0)


def test_a_tail_in_the_cache_stays_and_its_copy_is_no_part_of_the_table() -> None:
    holding = held(5, tail=0)
    assert grow(NEWEST, MAMBA, holding, 4, 4, 0, -1, give(9)) == ({}, 9)
    assert (holding.blocks, holding.tail) == ({0: 5}, -1)


def test_nothing_is_taken_where_the_table_is_long_enough() -> None:
    holding = held(5, 6, 7)
    assert grow(NEWEST, MAMBA, holding, 4, 4, 2, -1, give()) == ({}, 0)
    assert holding.previous == -1


def test_a_state_inside_the_chunk_has_the_column_before_the_running_one() -> None:
    fresh = Holding()
    assert grow(NEWEST, MAMBA, fresh, 13, 13, 1, -1, give(7, 8, 9), saves=True) == ({0: 0, 1: 0, 2: 7, 3: 8, 4: 9}, 0)
    assert (fresh.columns, fresh.blocks) == (5, {2: 7, 3: 8, 4: 9})
    assert give_back_passed(NEWEST, MAMBA, fresh, 13) == [[2]]


@pytest.mark.parametrize(
    ("release", "change"),
    [
        ("0.29.0", {1: 0, 2: 0, 3: 0, 4: 6, 5: 7, 6: 8, 7: 9}),
        ("0.30.0", {3: 0, 4: 8, 5: 9, 6: 10, 7: 11}),
        ("0.31.0", {3: 0, 4: 8, 5: 9, 6: 10, 7: 11}),
        ("0.32.0", {1: 0, 2: 0, 3: 0, 4: 6, 5: 7, 6: 8, 7: 9}),
    ],
)
def test_whether_spare_blocks_move_along_where_a_state_is_saved(release: str, change: dict[int, int]) -> None:
    policy, holding = POLICIES[release], held(5, 6, 7)
    blocks = give(*range(8, 12))
    assert grow(policy, MAMBA, holding, 24, 24, 2, -1, blocks, saves=True)[0] == change


def test_the_spare_block_in_the_reserved_column_stays() -> None:
    assert grow(NEWEST, MAMBA, held(5, 6, 7), 16, 16, 2, -1, give(8, 9), saves=True)[0] == {1: 0, 3: 6, 4: 8, 5: 9}


@pytest.mark.parametrize(
    ("release", "column", "is_it"),
    [
        ("0.29.0", 3, True),
        ("0.29.0", 2, False),
        ("0.33.0", 2, True),
        ("0.33.0", 1, False),
        ("0.33.0", 0, True),
    ],
)
def test_which_columns_are_open_for_a_state_inside_the_chunk(release: str, column: int, is_it: bool) -> None:
    assert is_open(POLICIES[release], held(0, 6, 7), column, spare=1) == is_it


def test_what_a_hit_brought_is_no_spare_block() -> None:
    assert not is_open(NEWEST, Holding(2, {1: 4}), 1, spare=1)
