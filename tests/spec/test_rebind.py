"""A copy of a function runs the same code with other builtins, and the function itself stays as it is."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from reference import split
from reference.policy import NEWEST, POLICIES
from reference.split import SplitSetting
from spec.claim import Claim
from spec.claims.split import CLAIMS, run_split
from spec.domains import Inputs
from spec.prove import Prover, Report
from spec.rebind import Copier, is_ours
from spec.solver import Limits
from spec.subjects import split_subject

HUGE = 10**9


def huge(*_: Any) -> int:
    return HUGE


def copier() -> Copier:
    """Makes copies whose ``max`` always gives a huge number."""
    return Copier({"max": huge})


NUMBERS = (NEWEST, SplitSetting(16, 4, 16, 100), 0, 20, 40, 40, 0)


# --- what a copy is ---------------------------------------------------------------------------------


def test_a_copy_shares_the_code() -> None:
    copied = copier().copy(split.split)
    assert copied is not split.split
    assert copied.__code__ is split.split.__code__
    assert copied.__defaults__ == split.split.__defaults__


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
def test_the_copies_of_a_claims_parts_share_their_code(claim: Claim) -> None:
    copies = copier()
    for part in (claim.predicate, claim.premise, claim.event, claim.control.plant):
        assert copies.copy(part).__code__ is part.__code__


def test_a_copy_keeps_defaults_and_closures() -> None:
    def shifted(by: int) -> Any:
        def largest(value: int, *, more: int = 3) -> int:
            return max(value + more + by, 0)

        largest.__module__ = "spec.imagined"
        return largest

    original = shifted(2)
    copied = Copier({"max": lambda value, _: value}).copy(original)
    assert (original(-9), copied(-9), copied(-9, more=0)) == (0, -4, -7)


def test_the_original_is_untouched() -> None:
    before = split.split(*NUMBERS)
    names = dict(split.split.__globals__)
    assert copier().copy(split.split)(*NUMBERS) == HUGE
    assert split.split(*NUMBERS) == before == 16
    assert names == split.split.__globals__
    assert "max" not in names


def test_helpers_are_copied_once_and_called_by_copies() -> None:
    copies = copier()
    copied = copies.copy(split.prefill_end)
    assert copies.copy(split.prefill_end) is copied
    assert copies.copy(split.split).__globals__["prefill_end"] is copied
    assert copied(3, 9) == HUGE


def test_a_module_of_ours_is_followed() -> None:
    inputs = Inputs(NUMBERS[1], 16, 0, 20, 40, 40, 0)
    assert run_split.__globals__["split"] is split
    assert run_split(NEWEST, None, inputs).granted == 16
    assert copier().copy(run_split)(NEWEST, None, inputs).granted == HUGE
    assert copier().copy(split).prefill_end(3, 9) == HUGE
    assert split.prefill_end(3, 9) == 8


def test_what_is_not_ours_stays_as_it_is() -> None:
    assert all(copier().copy(value) is value for value in (len, pytest, pytest.raises, SplitSetting, NEWEST, 7))


def test_only_the_rooms_of_proofs_are_ours() -> None:
    assert is_ours("reference.split")
    assert is_ours("spec.claims.split")
    assert not is_ours("specification")
    assert not is_ours("oracle.judge")


# --- merging builtins -------------------------------------------------------------------------------


SAMPLE = ("S1", "S2", "S3", "S4", "S5", "S9")


@cache
def proved(release: str, merge: bool) -> Report:
    subject = split_subject(POLICIES[release], "16/4", "plain", None, merge=merge)
    return Prover(subject, [claim for claim in subject.claims if claim.id in SAMPLE], Limits()).prove()


def verdicts(report: Report) -> dict[tuple[str, tuple[str, ...]], tuple[str, int]]:
    """The verdict of each claim in each regime, and how small a counterexample is in known tokens."""
    return {
        (claim, regime): (result.verdict, (result.counterexample or {}).get("known.blocks", 0))
        for claim, results in report.results.items()
        for regime, result in results.items()
    }


@pytest.mark.parametrize("release", ["0.26.0", "0.33.0"])
def test_merged_and_unmerged_verdicts_agree(release: str) -> None:
    merged, unmerged = proved(release, True), proved(release, False)
    assert verdicts(merged) == verdicts(unmerged)
    assert {verdict for verdict, _ in verdicts(merged).values()} <= {"proved", "refuted"}
    assert merged.covered == unmerged.covered == "all inputs"


def test_merging_saves_paths() -> None:
    assert proved("0.33.0", True).paths < proved("0.33.0", False).paths
