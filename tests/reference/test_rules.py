"""Predicates of rules that no trace is judged by: each of their conditions matters."""

from __future__ import annotations

import pytest

from reference.rules import saved_state_can_be_saved

SAVED = {"position": 12, "start": 0, "end": 13, "prefill_end": 13, "hash_block": 4, "unit": 1, "block": 4}
"""A prompt of 13 tokens in one chunk, in blocks of 4; the state at 12 goes to column 2, the chunk's last to 3."""


def test_a_state_can_be_saved_inside_the_last_chunk() -> None:
    assert saved_state_can_be_saved(**SAVED)
    assert saved_state_can_be_saved(**SAVED | {"start": 8})


@pytest.mark.parametrize(
    "changed",
    [
        {"prefill_end": 14},
        {"start": 2},
        {"position": 13},
        {"position": 12, "start": 12},
        {"position": 10, "start": 8},
        {"unit": 8},
        {"block": 8, "start": 8},
        {"block": 16},
    ],
    ids=lambda changed: ", ".join(f"{name} {value}" for name, value in changed.items()),
)
def test_and_nowhere_else(changed: dict[str, int]) -> None:
    assert not saved_state_can_be_saved(**SAVED | changed)
