"""A request uses up as many free blocks as it takes or adopts, by the count of its release."""

from __future__ import annotations

import pytest

from reference.admission import (
    Share,
    attention_blocks,
    chunk_blocks_most,
    counted_for_nothing,
    held_most,
    refusal,
    state_blocks,
    used_up,
    window_blocks_most,
)
from reference.geometry import Group
from reference.policy import POLICIES


@pytest.mark.parametrize(
    ("slots", "share", "most", "blocks"),
    [
        (17, Share(0), None, 2),
        (16, Share(0), None, 1),
        (40, Share(2), None, 1),
        (16, Share(3), None, 0),
        # Blocks of the hit that are free are used up, too; so is the one that the copy goes to.
        (40, Share(2, reclaimed=2), None, 3),
        (40, Share(3, copies=True), None, 1),
        # A window never holds more than so many.
        (160, Share(2), 4, 2),
        (160, Share(6), 4, 0),
    ],
)
def test_attention_needs_a_block_for_each_started_block(
    slots: int, share: Share, most: int | None, blocks: int
) -> None:
    assert attention_blocks(slots, 16, share, most) == blocks


@pytest.mark.parametrize(
    ("end", "spare", "share", "blocks"),
    [
        # The first time a state and its spare blocks, later one at most, however long the chunk.
        (64, 0, Share(0), 1),
        (64, 2, Share(0), 3),
        (64, 2, Share(3, started=True), 1),
        (16, 2, Share(3, started=True), 0),
        # After drafts were taken back a table is longer than it needs to be.
        (16, 2, Share(4, started=True), -1),
        # A tail in the cache is copied before the chunk overwrites it.
        (16, 0, Share(1, copies=True, started=True), 1),
        (17, 0, Share(1, copies=True, started=True), 2),
        (64, 1, Share(1, reclaimed=1), 3),
    ],
)
def test_mamba_needs_the_block_of_the_state_and_one_for_each_draft(
    end: int, spare: int, share: Share, blocks: int
) -> None:
    assert state_blocks(POLICIES["0.33.0"], end, 16, spare, share) == blocks


@pytest.mark.parametrize(("release", "blocks"), [("0.26.0", 2), ("0.30.0", 2), ("0.31.0", 1), ("0.33.0", 1)])
def test_until_0_30_a_copy_inside_a_block_is_counted_twice(release: str, blocks: int) -> None:
    assert state_blocks(POLICIES[release], 16, 16, 0, Share(1, copies=True, started=True)) == blocks


@pytest.mark.parametrize(("in_flight", "model_length", "blocks"), [(16, 256, 3), (17, 256, 4), (64, 20, 3)])
def test_a_window_holds_what_it_reaches_and_what_is_in_flight(in_flight: int, model_length: int, blocks: int) -> None:
    assert window_blocks_most(Group("swa", 16, 17), in_flight, model_length) == blocks


@pytest.mark.parametrize(("in_flight", "model_length", "blocks"), [(16, 256, 3), (17, 256, 4), (64, 20, 2)])
def test_chunked_local_attention_holds_a_chunk_and_what_is_in_flight(
    in_flight: int, model_length: int, blocks: int
) -> None:
    assert chunk_blocks_most(Group("chunked", 16, attention_chunk=32), in_flight, model_length) == blocks


def test_all_groups_together_use_up_what_each_does_and_a_window_no_more_than_it_holds() -> None:
    groups = [Group("full", 16), Group("swa", 16, 17), Group("mamba", 16), Group("chunked", 16, attention_chunk=16)]
    shares, policy = [Share(0)] * 4, POLICIES["0.33.0"]
    assert used_up(policy, groups, shares, 160, 160, 2) == 10 + 10 + 3 + 10
    most = held_most(groups, budget=16, steps_unseen=0, model_length=256)
    assert most == [None, 3, None, 2]
    assert used_up(policy, groups, shares, 160, 160, 2, most) == 10 + 3 + 3 + 2


@pytest.mark.parametrize(
    ("whole", "chunk", "usable", "unwritten", "reason"),
    [
        (None, 3, 3, False, ""),
        (3, 1, 3, False, ""),
        (4, 1, 3, False, "whole sequence needs 4 blocks, and 3"),
        (None, 4, 3, False, "chunk needs 4 blocks, and 3"),
        (1, 1, 9, True, "this very step writes"),
    ],
)
def test_a_refusal_has_a_reason(whole: int | None, chunk: int, usable: int, unwritten: bool, reason: str) -> None:
    found = refusal(whole, chunk, usable, unwritten)
    assert reason in found
    assert bool(found) == bool(reason)


RUNS = Share(3, started=True, saves=True)


@pytest.mark.parametrize(
    ("release", "share", "end", "blocks", "for_nothing"),
    [
        # Fresh: the state, its two spare blocks, and the one that is saved.
        *((release, Share(0, saves=True), 80, 4, 0) for release in ("0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0")),
        # Running: spare blocks move along, or are needed anew; 0.30 counts the columns in between.
        ("0.29.0", RUNS, 96, 2, 0),
        ("0.30.0", RUNS, 96, 5, 1),
        ("0.31.0", RUNS, 96, 4, 0),
        ("0.32.0", RUNS, 96, 2, 0),
        # 0.29 counts one for the very column of the hit.
        ("0.29.0", Share(1, saves=True), 20, 4, 1),
        ("0.29.0", Share(1, saves=True), 40, 4, 0),
        ("0.33.0", Share(3, copies=True, started=True, saves=True), 96, 3, 0),
        ("0.33.0", RUNS.saving(False), 96, 1, 0),
    ],
)
def test_a_state_inside_the_chunk_needs_a_block_more(
    release: str, share: Share, end: int, blocks: int, for_nothing: int
) -> None:
    policy = POLICIES[release]
    assert state_blocks(policy, end, 16, 2, share) == blocks
    assert counted_for_nothing(policy, end, 16, share) == for_nothing
