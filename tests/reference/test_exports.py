"""States saved inside a chunk: where a backend saves one, for which a block is reserved, and which is kept."""

from __future__ import annotations

import pytest

from reference.exports import Reservations, exporter, keeps_saved, last_boundary
from reference.geometry import Group
from reference.policy import POLICIES
from reference.split import SplitSetting

FINE = SplitSetting(4, 2, 4, 100, partial_hits=True, checkpoint_alignment=1)
COARSE = SplitSetting(4, 4, 4, 100, checkpoint_alignment=1)


def saves(release: str, setting: SplitSetting, start: int, end: int, asked_unit: int = 2) -> tuple[int, int] | None:
    export = exporter(POLICIES[release], setting, 4, asked_unit)
    assert export is not None
    return export(start, end)


def test_the_last_hash_boundary_that_leaves_a_token_is_saved_in_the_column_before_the_last() -> None:
    assert saves("0.33.0", FINE, 0, 13) == (12, 2)
    assert saves("0.33.0", FINE, 0, 12) == (10, 1)
    assert saves("0.33.0", COARSE, 0, 13) == (12, 2)
    assert saves("0.33.0", COARSE, 0, 12) == (8, 1)


@pytest.mark.parametrize(
    ("start", "end"),
    [(0, 4), (1, 13), (8, 12), (4, 5)],
    ids=["one column", "not on a hash block", "no column between", "no unit"],
)
def test_a_chunk_without_room_for_it_saves_nothing(start: int, end: int) -> None:
    assert saves("0.33.0", FINE, start, end) is None


def test_the_position_lies_a_multiple_of_the_alignment_after_the_start() -> None:
    by_four = SplitSetting(4, 2, 4, 100, partial_hits=True, checkpoint_alignment=4)
    assert saves("0.33.0", by_four, 0, 13) == (12, 2)
    assert saves("0.33.0", by_four, 0, 12) is None


def test_029_saves_the_last_block_boundary() -> None:
    assert saves("0.29.0", FINE, 0, 13) == (12, 2) == last_boundary(4, 0, 13)
    assert saves("0.29.0", FINE, 0, 12) is None
    assert saves("0.29.0", FINE, 0, 11) == (8, 1)


def test_before_032_a_backend_goes_by_the_unit_that_was_asked_for_or_by_its_block() -> None:
    unequal = SplitSetting(2, 2, 4, 100, partial_hits=True, checkpoint_alignment=1)
    assert saves("0.31.0", unequal, 0, 15, asked_unit=2) == (14, 2)
    assert saves("0.31.0", unequal, 0, 15, asked_unit=0) == (12, 2)
    assert saves("0.32.0", unequal, 0, 15, asked_unit=0) == (14, 2)


def test_nothing_is_saved_where_no_backend_can() -> None:
    assert exporter(POLICIES["0.28.0"], FINE, 4, 2) is None
    assert exporter(POLICIES["0.33.0"], SplitSetting(4, 2, 4, 100), 4, 2) is None


def test_under_interval_0_later_releases_reserve_for_the_last_chunk_only() -> None:
    for interval in (None, 4):
        assert Reservations(POLICIES["0.33.0"], FINE, 4, interval).saved(0, 13, 40) == (12, 2)
    assert Reservations(POLICIES["0.33.0"], FINE, 4, 0).saved(0, 13, 40) is None
    assert Reservations(POLICIES["0.33.0"], FINE, 4, 0).saved(0, 13, 13) == (12, 2)
    assert Reservations(POLICIES["0.30.0"], FINE, 4, 0).saved(0, 13, 40) == (12, 2)
    assert Reservations(POLICIES["0.29.0"], FINE, 4, 0).saved(0, 13, 13) is None


@pytest.mark.parametrize(
    ("release", "own", "beyond", "short"),
    [("0.30.0", False, True, False), ("0.31.0", True, True, False), ("0.32.0", True, False, False)],
)
def test_which_saved_states_are_kept(release: str, own: bool, beyond: bool, short: bool) -> None:
    """The prompt's own position in a short call, another one beyond the prompt, another one short of it."""

    def kept(position: int, tokens: int, junction: int = 0, interval: int | None = 0) -> bool:
        return keeps_saved(POLICIES[release], FINE, Group("mamba", 4), position, 13, junction, tokens, 4, interval)

    assert kept(12, 8) == own
    assert kept(10, 13) == beyond
    assert kept(10, 8) == short
    assert kept(10, 8, junction=10)
    for interval in (None, 8):
        assert kept(8, 8, interval=interval)
        # What is no end of a block is kept by an interval before 0.32 only.
        assert kept(10, 8, interval=interval) == (release != "0.32.0")
    assert kept(4, 8, interval=8) == (release != "0.32.0")


@pytest.mark.parametrize(
    ("release", "start", "end", "is_it"),
    [
        ("0.29.0", 0, 13, True),
        ("0.29.0", 0, 12, False),
        ("0.29.0", 2, 13, False),
        ("0.29.0", 0, 3, False),
        ("0.33.0", 0, 13, True),
        ("0.33.0", 0, 12, True),
        ("0.33.0", 8, 12, False),
        ("0.28.0", 0, 13, False),
    ],
)
def test_for_which_chunks_a_block_is_reserved(release: str, start: int, end: int, is_it: bool) -> None:
    assert Reservations(POLICIES[release], FINE, 4, None).reserve(start, end, 13) == is_it


def test_0_29_reserves_under_eagle_where_its_split_counts_on_nothing_saved() -> None:
    unused = SplitSetting(4, 2, 4, 100, block_drop=True, partial_hits=True)
    assert Reservations(POLICIES["0.29.0"], unused, 4, None).reserve(0, 13, 13)
    assert not Reservations(POLICIES["0.30.0"], unused, 4, None).reserve(0, 13, 13)
