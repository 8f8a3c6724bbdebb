"""What single releases refuse: each rule on its releases and on no other."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fuzz.refusals import refused_by, withheld_features
from oracle.scenario import Scenario
from oracle.validate import check

RELEASES = ("0.26.0", "0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0")


def scenario(
    groups: list[tuple[str, int]],
    hash_block: int,
    *,
    budget: int = 16,
    threshold: int = 0,
    checkpoint: int = 0,
    **features: Any,
) -> Scenario:
    own = {"full": {}, "swa": {"window": 8}, "chunked": {"attention_chunk": 8}, "mamba": {"checkpoint": checkpoint}}
    made = [{"kind": kind, "block": block} | own[kind] for kind, block in groups]
    document = {
        "geometry": {"groups": made, "hash_block": hash_block, "blocks": 64},
        "limits": {"budget": budget, "sequences": 1, "long_prefill_threshold": threshold},
        "features": features,
        "steps": [{"at": 0, "add": [{"id": "r0", "prompt": ["a:8"]}]}],
    }
    return msgspec.convert(document, Scenario)


HYBRID = [("full", 4), ("mamba", 4)]
CHUNKED = [("full", 4), ("chunked", 4)]

CASES: dict[str, tuple[Scenario, tuple[str, ...]]] = {
    "nothing special": (scenario(HYBRID, 4), ()),
    "budget below the block": (scenario(HYBRID, 4, budget=3), RELEASES[:1]),
    "threshold below the block": (scenario(HYBRID, 4, threshold=3), RELEASES[:1]),
    "budget below the block, no Mamba": (scenario([("full", 4)], 4, budget=3), ()),
    "Mamba wider": (scenario([("full", 4), ("mamba", 8)], 4), RELEASES[:2]),
    "Mamba smaller": (scenario([("full", 8), ("mamba", 4)], 4), ()),
    "fine hits": (scenario(HYBRID, 2, partial_hits=True), ()),
    "fine hits beside a window": (
        scenario([*HYBRID, ("swa", 4)], 2, partial_hits=True),
        RELEASES[:2],
    ),
    "fine hits beside attention chunks": (
        scenario([*HYBRID, ("chunked", 4)], 2, partial_hits=True),
        RELEASES[:2],
    ),
    "fine hits beside attention chunks of as fine blocks": (
        scenario([*HYBRID, ("chunked", 2)], 2, partial_hits=True),
        RELEASES[:2],
    ),
    "attention chunks with drafts": (scenario(CHUNKED, 4, drafts=1), RELEASES[:7]),
    "attention chunks under the block drop": (scenario(CHUNKED, 4, drafts=1, lookahead_hashes=False), RELEASES),
    "attention chunks with drafts, no caching": (scenario(CHUNKED, 4, drafts=1, caching=False), ()),
    "interval 0, attention chunks": (scenario(CHUNKED, 4, retention=0), RELEASES[:3]),
    "groups all alike": (scenario([("full", 4), ("full", 4)], 4), RELEASES[:3]),
    "interval 0, full only": (scenario([("full", 4)], 4, retention=0), RELEASES[:3]),
    "states saved anywhere in a chunk": (scenario(HYBRID, 4, checkpoint=1), RELEASES[:3]),
    "states saved on hash blocks": (scenario(HYBRID, 2, checkpoint=2, partial_hits=True), RELEASES[:4]),
    "exact junctions": (scenario(HYBRID, 2, partial_hits=True, drafts=1, exact_junction=True), RELEASES[:4]),
    "budget within the drafts": (scenario([("full", 2)], 2, budget=2, drafts=2), RELEASES[7:]),
}


@pytest.mark.parametrize("name", CASES)
def test_a_rule_holds_on_its_releases_and_on_no_other(name: str) -> None:
    case, refusing = CASES[name]
    assert check(case) == [], "these are refused by a release, not by us"
    assert tuple(release for release in RELEASES if refused_by(case, release)) == refusing


def test_what_is_withheld_from_old_releases() -> None:
    assert withheld_features("0.29.0") == ("coarse-checkpoint", "exact-junction")
    assert withheld_features("0.26.0") == ("tiny-budget", "wide-mamba", "fine-swa", "checkpoint", "exact-junction")
    assert withheld_features("0.27.1") == ("wide-mamba", "fine-swa", "checkpoint", "exact-junction")
    assert withheld_features("0.28.0") == ("checkpoint", "exact-junction")
    assert all(withheld_features(release) == () for release in RELEASES[4:])


def test_a_release_that_is_none_is_an_error() -> None:
    with pytest.raises(ValueError, match="unpack"):
        refused_by(scenario(HYBRID, 4), "newest")
