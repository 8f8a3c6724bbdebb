"""Recall: each public bug is found on the releases that have it and on no other, and a wrong answer is seen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fuzz.bugs import BUGS, Recall, fuzz_alone, recall
from fuzz.commands import bug_table
from fuzz.engines.open import prepare_engine
from fuzz.engines.protocol import Engine
from fuzz.trial import Rules, Trial
from fuzz.vectors import vectors
from oracle.scenario import Scenario
from oracle.verdict import Verdict
from reference.rules import RULES


def test_bugs_name_rules_and_vectors_that_exist() -> None:
    names = {vector.name for vector in vectors()}
    for bug in BUGS:
        assert bug.rules <= RULES.keys()
        assert set(bug.vectors) <= names


@pytest.mark.parametrize(
    ("present", "found", "passes"), [(True, False, False), (False, True, False), (True, True, True)]
)
def test_what_is_not_as_documented_does_not_pass(present: bool, found: bool, passes: bool) -> None:
    assert Recall(BUGS[0].name, "0.26.0", present, found, judged=True).passed == passes
    assert not Recall(BUGS[0].name, "0.26.0", present, found, judged=False).passed
    assert not Recall(BUGS[0].name, "0.26.0", present, found, True, "the driver failed").passed


@pytest.mark.parametrize(("found", "word", "head"), [(True, "ok", "found"), (False, "WRONG", "missed")])
def test_the_table_says_what_is_wrong(found: bool, word: str, head: str) -> None:
    result = Recall(BUGS[0].name, "0.26.0", present=True, found=found, judged=True)
    first, second = bug_table._lines(bug_table._row(BUGS[0], [result]))
    assert first.split()[0] == word
    assert second.split() == [head, "0.26.0"]


@pytest.mark.parametrize("outcome", ["", "refused: it is too large", "the driver failed"])
def test_what_was_not_judged_does_not_pass(monkeypatch: pytest.MonkeyPatch, outcome: str) -> None:
    def nothing(engine: Engine, scenario: Scenario, rules: Rules = None) -> Trial:
        return Trial([], Verdict(), outcome)

    monkeypatch.setattr("fuzz.bugs.try_scenario", nothing)
    assert [result.bug for result in recall(prepare_engine("reference")) if result.passed] == []


@pytest.mark.engines
@pytest.mark.parametrize("release", ["0.26.0", "0.33.0"])
def test_bugs_are_found_where_they_are(release: str) -> None:
    results = list(recall(prepare_engine(f"vllm=={release}")))
    assert [result.bug for result in results] == [bug.name for bug in BUGS]
    assert [result.bug for result in results if not result.passed] == []
    assert sum(result.found for result in results) >= 4
    assert sum(result.present is False for result in results) >= 4


def test_fuzzing_alone_finds_a_planted_fault_and_nothing_on_the_conforming_engine() -> None:
    fault = replace(BUGS[0], rules=frozenset({"L2"}), part="")
    took, scenarios = fuzz_alone(prepare_engine("planted:never-hits"), fault, 20, 1)
    assert took is not None
    assert scenarios >= 1
    assert fuzz_alone(prepare_engine("reference"), fault, 1, 1)[0] is None
