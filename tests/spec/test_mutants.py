"""A changed place in the reference is noticed by a claim, by the engine alone, or by nobody as it changes nothing."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from fuzz.engines.sources import source_tree
from reference import arithmetic, boundaries, retention, rules, split
from spec.mutants import (
    Finding,
    Ground,
    Mutant,
    find_broken_claims,
    find_differences,
    judge,
    mutants,
    planted,
    try_samples,
)

ALL = mutants()


def mutant(function: str, change: str) -> Mutant:
    (found,) = [one for one in ALL if (one.function, one.change) == (function, change)]
    return found


def judged(ground: Ground, *changed: Mutant) -> list[Finding]:
    return judge(changed, [ground], lambda _: None)


def verdicts(findings: Iterable[Finding]) -> list[str]:
    return [finding.verdict for finding in findings]


@pytest.fixture(scope="module")
def plain_split() -> Ground:
    return Ground("split", "16/4", "plain", None, 1000)


def test_a_mutant_is_one_changed_place() -> None:
    assert len({one.name for one in ALL}) == len(ALL) > 250
    assert {one.change for one in ALL if one.function == "nearer"} == {
        "start < stop < end -> True",
        "start < stop < end -> False",
        "start < stop < end -> start <= stop < end",
        "start < stop < end -> start < stop <= end",
    }
    assert [one.place for one in ALL if one.change == "known - 1 -> known + 1"] == ["reference/split.py:40:24"]
    assert mutant("prefill_end", "max -> min").changed(5, 9) == 5


def test_a_mutant_replaces_its_function_in_the_reference_and_not_in_the_rules() -> None:
    changed = Mutant("", "floor_to", "", arithmetic.floor_to, lambda value, unit: value)
    with planted(changed):
        assert [module.floor_to(5, 4) for module in (arithmetic, split, retention, boundaries)] == [5] * 4
        assert rules.floor_to(5, 4) == 4
        assert split.junction_stop(split.SplitSetting(4, 4, 4, 9), 0, 9, 5) == 5
    assert {module.floor_to(5, 4) for module in (arithmetic, split, retention, boundaries)} == {4}


def test_a_claim_refutes_what_it_speaks_about(plain_split: Ground) -> None:
    late = mutant("nearer", "start < stop < end -> start <= stop < end")
    (finding,) = judged(plain_split, late)
    assert (finding.verdict, finding.where) == ("invariant", plain_split.name)
    assert finding.invariant in {claim.id for claim in plain_split.subject.claims}


def test_z3_finds_what_no_sample_shows(plain_split: Ground) -> None:
    changed = mutant("nearer", "start < stop < end -> start <= stop < end")
    for find, differs in ((find_differences, False), (find_broken_claims, True)):
        finding = Finding(changed, differs=differs)
        find([finding], plain_split)
        assert finding.differs
        assert finding.invariant


def test_what_decides_the_same_everywhere_is_equivalent(plain_split: Ground) -> None:
    same = mutant("nearer", "start < stop < end -> start < stop <= end")
    other_release = mutant("saves_inside", "start % setting.grid == 0 -> start % setting.grid != 0")
    assert verdicts(judged(plain_split, same, other_release)) == ["equivalent", "equivalent"]


def test_a_mutant_that_raises_counts_as_refuted(plain_split: Ground) -> None:
    def fails(*_: int) -> int:
        raise LookupError

    finding = Finding(Mutant("", "nearer", "", split.nearer, fails))
    try_samples(finding, plain_split, plain_split.samples)
    assert finding.invariant == "raises LookupError"


@pytest.mark.engines
def test_the_engine_contradicts_what_no_claim_pins_down() -> None:
    source = source_tree("vllm==0.33.0", say=lambda _: None)
    ground = Ground("mask", "16 in 64", "Mamba, interval above 0", source, 500)
    assert all(sample.engine == sample.decision for sample in ground.samples)
    keeps_all = mutant("ends_segment", "need >= per_segment -> True")
    assert verdicts(judged(ground, keeps_all)) == ["equality only"]


@pytest.mark.engines
def test_a_claim_pins_down_that_dense_keeps_all() -> None:
    source = source_tree("vllm==0.33.0", say=lambda _: None)
    forgets_dense = mutant("keep", "group.kind == 'mamba' and interval is None -> False")
    assert verdicts(judged(Ground("mask", "16 in 64", "Mamba, dense", source, 500), forgets_dense)) == ["invariant"]
