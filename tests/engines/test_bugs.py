"""Recall: each public bug is found on the releases that have it and on no other, and a wrong answer is seen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fuzz.bugs import BUGS, Recall, fuzz_alone, recall
from fuzz.engines.open import prepare_engine
from fuzz.vectors import vectors
from reference.rules import RULES


def test_bugs_name_rules_and_vectors_that_exist() -> None:
    names = {vector.name for vector in vectors()}
    for bug in BUGS:
        assert bug.rules <= RULES.keys()
        assert set(bug.vectors) <= names
        assert bool(bug.miss) == bool(bug.missed_on)


def test_at_most_one_bug_is_missed() -> None:
    assert sum(bool(bug.miss) for bug in BUGS) <= 1


@pytest.mark.parametrize(
    ("present", "found", "passes"), [(True, False, False), (False, True, False), (True, True, True)]
)
def test_what_is_not_as_documented_does_not_pass(present: bool, found: bool, passes: bool) -> None:
    assert Recall(BUGS[0].name, "0.26.0", present, found).passed(BUGS[0]) == passes


@pytest.mark.engines
@pytest.mark.parametrize("release", ["0.26.0", "0.33.0"])
def test_bugs_are_found_where_they_are(release: str) -> None:
    results = list(recall(prepare_engine(f"vllm=={release}")))
    assert [result.bug for result in results] == [bug.name for bug in BUGS]
    assert [result.bug for result, bug in zip(results, BUGS, strict=True) if not result.passed(bug)] == []
    assert sum(result.found for result in results) >= 4
    assert sum(result.present is False for result in results) >= 4


def test_fuzzing_alone_finds_a_planted_fault_and_nothing_on_the_conforming_engine() -> None:
    fault = replace(BUGS[0], rules=frozenset({"L2"}), part="")
    took, scenarios = fuzz_alone(prepare_engine("planted:never-hits"), fault, 20, 1)
    assert took is not None
    assert scenarios >= 1
    assert fuzz_alone(prepare_engine("reference"), fault, 1, 1)[0] is None
