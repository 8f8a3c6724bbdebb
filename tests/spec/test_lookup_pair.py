"""Two builds look up the same only where they find the same blocks, too."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from fuzz.engines.sources import source_tree
from reference.lookup import LookupGroup
from spec.engine_lookup import EngineLookup, Found
from spec.lift import SourceTree
from spec.lookup_pair import LAYOUTS, SAME, PairCase, find, layouts, pair_subject, prove_pair
from spec.prove import Prover
from spec.solver import Limits
from spec.task import with_fault

FOUND = Found(4, 8, (("one",), ("two", "three")))


@pytest.mark.parametrize(
    "other", [replace(FOUND, hit=3), replace(FOUND, longest=4), replace(FOUND, blocks=(("one",), ("two",)))]
)
def test_hit_surplus_and_blocks_all_count(other: Found) -> None:
    assert SAME.predicate(PairCase(FOUND, FOUND))
    assert not SAME.predicate(PairCase(FOUND, other))


def test_hashes_that_look_ahead_are_left_out_where_a_release_has_none() -> None:
    assert layouts("0.33.0") == [*LAYOUTS]
    assert [layout for layout in LAYOUTS if layout not in layouts("0.31.0")] == [
        layout for layout in LAYOUTS if layout.lookahead
    ]


@cache
def lookup(release: str) -> EngineLookup:
    return EngineLookup(SourceTree(source_tree(f"vllm=={release}")))


@pytest.mark.engines
def test_a_release_looks_up_what_it_does_itself_and_one_block_more_is_noticed() -> None:
    engine = lookup("0.33.0")
    for layout in layouts("0.33.0")[:4]:
        assert prove_pair("0.33.0", layout, engine, engine).verdict == "proved to bound"
        planted = with_fault(SAME)
        report = Prover(pair_subject("0.33.0", layout, engine, engine), [planted], Limits()).prove()
        assert [result.verdict for result in report.results[planted.id].values()] == ["refuted"]


@pytest.mark.engines
def test_a_release_that_looks_up_otherwise_is_refuted_with_its_inputs() -> None:
    """From 0.32 on a lookup peeks beyond the cap of a request's tokens, as far as there are hashes."""
    ours, theirs = lookup("0.31.0"), lookup("0.33.0")
    rows = [prove_pair("0.31.0", layout, ours, theirs) for layout in layouts("0.31.0") if layout.peeks]
    refuted = [row for row in rows if row.verdict == "refuted"]
    assert refuted
    assert all(row.shown for row in refuted)


@pytest.mark.engines
def test_blocks_are_told_apart_by_group_and_tokens() -> None:
    layout = next(layout for layout in LAYOUTS if len(layout.groups) == 3)
    items = [LookupGroup(group, lambda tokens: True) for group in layout.groups]
    found = find(lookup("0.33.0"), layout, items, layout.most, layout.most)
    assert found.hit
    assert all(f"group {number} " in blocks[-1] for number, blocks in enumerate(found.blocks))
