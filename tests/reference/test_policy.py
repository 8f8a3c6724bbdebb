"""Each release differs from the one before in exactly these ways."""

from __future__ import annotations

from dataclasses import asdict
from itertools import pairwise

from reference.policy import NEWEST, POLICIES

FIRST = {
    "release": "0.26.0",
    "aligns_to_prefill_end": False,
    "allows_wide_blocks": False,
    "keeps_one_token": False,
    "tail_stop": "finer hashes",
    "tail_drops": False,
    "internal_checkpoint": "none",
    "checkpoint_unit": "hash block",
    "reserves_for_last_chunk": False,
    "spares_at_saving": "move",
    "saved_kept": "beyond the prompt",
    "replay_positions": "last token",
    "junction_keeps_lower_block": False,
    "peek_ends_at": "limit",
    "full_tail_keeps_one_token": False,
    "tail_on_boundary": False,
    "mamba_tail_drop": "never",
    "mask_alignment": "scheduler block",
    "lookahead_hashes": False,
    "commits_at_output": False,
    "rounds_up_states": True,
    "retires_across_gaps": False,
    "names_tail_once": False,
    "lone_request_ignores_threshold": False,
}
CHANGES: dict[str, dict[str, object]] = {
    "0.27.1": {"aligns_to_prefill_end": True, "allows_wide_blocks": True},
    "0.28.0": {"tail_stop": "partial hits"},
    "0.29.0": {"internal_checkpoint": "aligned start", "mask_alignment": "hit alignment"},
    "0.30.0": {
        "internal_checkpoint": "final chunk",
        "spares_at_saving": "stay",
        "tail_drops": True,
        "mamba_tail_drop": "group",
        "replay_positions": "resume positions",
        "retires_across_gaps": True,
    },
    "0.31.0": {
        "mamba_tail_drop": "coordinator",
        "reserves_for_last_chunk": True,
        "saved_kept": "prompt's own or beyond",
        "rounds_up_states": False,
        "lone_request_ignores_threshold": True,
    },
    "0.32.0": {
        "keeps_one_token": True,
        "checkpoint_unit": "hash block if partial",
        "spares_at_saving": "reserved one stays",
        "saved_kept": "prompt's own or retained",
        "peek_ends_at": "hashed tokens",
        "full_tail_keeps_one_token": True,
        "tail_on_boundary": True,
    },
    "0.33.0": {
        "junction_keeps_lower_block": True,
        "lookahead_hashes": True,
        "commits_at_output": True,
        "names_tail_once": True,
    },
}


def test_the_first_release_decides_as_listed() -> None:
    assert asdict(next(iter(POLICIES.values()))) == FIRST


def test_each_release_changes_what_is_listed_and_nothing_else() -> None:
    found = {}
    for before, after in pairwise(map(asdict, POLICIES.values())):
        changed = {field: value for field, value in after.items() if before[field] != value}
        found[changed.pop("release")] = changed
    assert found == CHANGES


def test_the_newest_release_is_the_last() -> None:
    assert list(POLICIES) == [FIRST["release"], *CHANGES]
    assert list(POLICIES.values())[-1] is NEWEST
