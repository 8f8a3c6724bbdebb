"""A prompt registers one hash boundary inside a block, where its release lets a later request resume."""

from __future__ import annotations

import pytest

from reference.geometry import Group
from reference.policy import POLICIES
from reference.split import SplitSetting
from reference.tails import at_exact_junction, full_tail, mamba_tail


@pytest.mark.parametrize(
    ("release", "drops", "prompt", "tail"),
    [
        ("0.31.0", False, 24, 24),
        # One token is left to compute, but a group that drops gives the last unit back anyway.
        ("0.32.0", False, 24, 20),
        ("0.32.0", True, 24, 24),
        ("0.33.0", False, 24, 20),
        ("0.33.0", True, 24, 24),
        # On a block boundary the block itself is registered.
        ("0.31.0", False, 32, 0),
        ("0.32.0", False, 17, 0),
        ("0.32.0", True, 32, 0),
    ],
)
def test_full_attention_registers_the_last_hash_of_the_prompt(
    release: str, drops: bool, prompt: int, tail: int
) -> None:
    assert full_tail(POLICIES[release], Group("full", 16, drops=drops), prompt, 4, 40) == tail


def test_full_attention_registers_only_what_is_hashed() -> None:
    group = Group("full", 16, drops=True)
    for policy in POLICIES.values():
        assert full_tail(policy, group, 28, 4, 28) == 28
        assert full_tail(policy, group, 28, 4, 24) == 24


@pytest.mark.parametrize(
    ("release", "drops", "block_drop", "tail"),
    [
        ("0.29.0", True, True, 24),
        # The group's own flag, then the coordinator's.
        ("0.30.0", False, True, 24),
        ("0.30.0", True, True, 20),
        ("0.31.0", False, True, 20),
        ("0.31.0", False, False, 24),
        ("0.32.0", False, True, 20),
        ("0.32.0", False, False, 24),
    ],
)
def test_whose_eagle_flag_lowers_the_state_that_is_registered(
    release: str, drops: bool, block_drop: bool, tail: int
) -> None:
    assert mamba_tail(POLICIES[release], Group("mamba", 16, drops=drops), 26, 4, block_drop, 0) == tail


@pytest.mark.parametrize(("prompt", "block_drop"), [(18, False), (22, True)])
def test_a_state_on_a_block_boundary_is_a_tail_from_0_32(prompt: int, block_drop: bool) -> None:
    group = Group("mamba", 16)
    assert mamba_tail(POLICIES["0.31.0"], group, prompt, 4, block_drop, 0) == 0
    assert mamba_tail(POLICIES["0.32.0"], group, prompt, 4, block_drop, 0) == 16


def test_a_state_leaves_what_the_last_hash_looks_ahead_to_from_0_32() -> None:
    group = Group("mamba", 16)
    assert mamba_tail(POLICIES["0.31.0"], group, 24, 4, False, 0) == 24
    assert mamba_tail(POLICIES["0.32.0"], group, 24, 4, False, 0) == 20
    assert mamba_tail(POLICIES["0.32.0"], group, 24, 4, False, 5) == 16


@pytest.mark.parametrize(
    ("tokens", "junction", "computed", "prompt", "is_it"),
    [
        (12, 12, 0, 26, True),
        (12, 12, 11, 12, True),
        (12, 16, 0, 26, False),
        # No hash ends there; it was computed before; it is no part of the prompt.
        (14, 14, 0, 26, False),
        (12, 12, 12, 26, False),
        (12, 12, 0, 11, False),
    ],
)
def test_where_an_exact_junction_is_registered(
    tokens: int, junction: int, computed: int, prompt: int, is_it: bool
) -> None:
    opted_in = SplitSetting(16, 4, 16, 100, exact_junction=True)
    assert at_exact_junction(opted_in, tokens, junction, computed, prompt) == is_it
    assert not at_exact_junction(SplitSetting(16, 4, 16, 100), tokens, junction, computed, prompt)
