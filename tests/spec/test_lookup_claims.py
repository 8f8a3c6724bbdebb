"""Every claim about the lookup has the verdict that is expected of it, and a planted fault refutes it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from fuzz.engines.names import SUPPORTED_RELEASES
from fuzz.engines.sources import source_tree
from reference.policy import POLICIES
from reference.serving import given_back, served
from spec.claim import Claim
from spec.claims.lookup import ENGINE_CLAIMS, KEPT_CLAIMS, Layout
from spec.lift import SourceTree
from spec.lookup_subjects import (
    FAR_LOOKAHEAD,
    FULL,
    KEPT,
    QUICK,
    QUICK_KEPT,
    chosen,
    engine_lookup_subject,
    engine_lookup_subjects,
    full,
    lookup_subjects,
    mamba,
    swa,
)
from spec.prove import Prover, Report, Subject
from spec.solver import Limits

ONE_TOKEN_WINDOW = ("window of one token",)
ALL = ("all",)

REFUTED: dict[str, dict[str, tuple[str, ...]]] = {
    # A whole block is no hit for a shorter length inside it: only entries for exactly that length are looked for.
    " full(8), hits to 2,": {"L2.tokens": ALL},
    " full(8, drops), hits to 2,": {"L2.tokens": ALL},
    " full(8) + mamba(8), hits to 4, hashes of 4.": {"L2.tokens": ALL},
    "0.31.0, full(8, drops) + mamba(8), hits to 4,": {"L2.tokens": ALL},
    " full(8) + swa(4, window 5) + mamba(8), hits to 4,": {"L2.tokens": ALL},
    " full(4) + full(8, drops) + mamba(8), hits to 4,": {"L2.tokens": ALL},
    # A window of one token needs no block, and the lookup wants one all the same; the mask keeps none.
    " swa(4, window 1), hits to": {"L2": ALL, "U1.agreed": ALL, "U1.suffices": ONE_TOKEN_WINDOW},
    " in what is kept, swa(4, window 0), hits to": {"U1.suffices": ONE_TOKEN_WINDOW},
    # A run from block 0 that is shorter than a full window is floored to the alignment before and after the drop.
    " swa(4, window 13, drops), hits to 8,": {"L2": ALL, "U1.agreed": ALL},
    " swa(4, window 13, drops) + mamba(8), hits to 8,": {"U1.suffices": ALL},
    # A group that drops can lower the length without making the others look beyond the lower length.
    " swa(4, window 5, drops) + mamba(4, drops), hits to 4,": {"L1": ALL, "U1.agreed": ALL},
    " swa(4, window 5, drops) + swa(4, window 9, drops), hits to 4,": {"L1": ALL, "U1.agreed": ALL},
}
"""The claims that are refuted, with their regime, by a part of a subject's name; all others are proved to the bound."""


def expected_of(subject: Subject) -> set[tuple[str, tuple[str, ...]]]:
    """The refuted claims of a subject with their regimes."""
    made = {claim.id for claim in subject.claims}
    parts = [claims for part, claims in REFUTED.items() if part in f"{subject.name}."]
    return {(claim, regime) for claims in parts for claim, regime in claims.items() if claim in made}


def planted(claim: Claim) -> Claim:
    """The claim about cases with its planted fault."""

    def predicate(case: Any) -> Any:
        return claim.predicate(claim.control.plant(case))

    return replace(claim, id=f"{claim.id} planted", predicate=predicate)


def prove(subject: Subject, claims: tuple[Claim, ...]) -> Report:
    report = Prover(subject, claims, Limits()).prove()
    assert (report.problem, report.covered) == ("", "all inputs")
    return report


def refuted_in(report: Report) -> set[tuple[str, tuple[str, ...]]]:
    """The refuted claims of a report with their regimes; all others must be proved to the bound."""
    verdicts = {(claim, regime): one for claim, results in report.results.items() for regime, one in results.items()}
    refuted = {key for key, result in verdicts.items() if result.verdict == "refuted"}
    assert {result.verdict for key, result in verdicts.items() if key not in refuted} <= {"proved to bound"}
    assert all(verdicts[key].counterexample for key in refuted)
    return refuted


@pytest.mark.parametrize("subject", lookup_subjects(QUICK, QUICK_KEPT), ids=lambda subject: subject.name)
def test_the_verdicts_are_the_expected_ones_and_planted_faults_are_refuted(subject: Subject) -> None:
    report = prove(subject, (*subject.claims, *map(planted, subject.claims)))
    refuted = refuted_in(report)
    assert {key for key in refuted if not key[0].endswith("planted")} == expected_of(subject)
    assert {claim for claim, _ in refuted if claim.endswith("planted")} == {
        f"{claim.id} planted" for claim in subject.claims
    }


def test_every_claim_is_made_in_the_quick_list_and_every_expectation_is_of_some_subject() -> None:
    made = {claim.id for subject in lookup_subjects(QUICK, QUICK_KEPT) for claim in subject.claims}
    assert made == {claim.id for claim in (*ENGINE_CLAIMS, *KEPT_CLAIMS)} - {"M2"}
    names = [f"{subject.name}." for subject in lookup_subjects(FULL, KEPT)]
    assert all(any(part in name for name in names) for part in REFUTED)


def test_what_a_hit_reads_is_said_without_the_lookup() -> None:
    layout = Layout((full(8), swa(4, 6), mamba(4)), 2, 2, 32)
    held = {4, 8, 12, 18}.__contains__
    assert served(swa(4, 6), held, 12, 0, layout.hash_block)
    assert not served(swa(4, 6), held, 16, 0, layout.hash_block), "the last of five tokens before 16 is not held"
    assert not served(swa(4, 6), held, 12, 4, layout.hash_block), "the peeked block is missing"
    assert served(swa(4, 1), held, 16, 0, layout.hash_block), "a window of one token reads nothing"
    assert served(full(8), held, 10, 0, layout.hash_block), "the entry at 12 holds the first ten tokens, too"
    assert not served(full(8), held, 16, 0, layout.hash_block)
    assert served(mamba(4), held, 18, 0, layout.hash_block)
    assert not served(mamba(4), held, 6, 0, layout.hash_block)
    assert [given_back(group, 2) for group in (full(8, True), swa(4, 6, True), mamba(4, True), full(8))] == [2, 4, 0, 0]


def test_a_number_is_chosen_within_its_bounds() -> None:
    assert [chosen(value, 2, 4) for value in (2, 3, 4)] == [2, 3, 4]


# --- engines -------------------------------------------------------------------------------------------------


@cache
def sources(release: str) -> SourceTree:
    return SourceTree(source_tree(f"vllm=={release}"))


@pytest.mark.engines
@pytest.mark.parametrize("release", SUPPORTED_RELEASES)
def test_an_engine_looks_up_what_the_reference_does(release: str) -> None:
    for subject in engine_lookup_subjects(sources(release), POLICIES[release], QUICK):
        claims = tuple(claim for claim in subject.claims if claim.id == "M2")
        assert refuted_in(prove(subject, (*claims, *map(planted, claims)))) == {("M2 planted", ALL)}, subject.name


@pytest.mark.engines
def test_an_engine_is_refuted_where_its_reference_is() -> None:
    layout = Layout((swa(4, 5, True), mamba(4, True)), 4, 4, 17)
    subject = engine_lookup_subject(sources("0.31.0"), POLICIES["0.31.0"], layout)
    assert refuted_in(prove(subject, subject.claims)) == {("L1", ALL), ("U1.agreed", ALL)}


@pytest.mark.engines
def test_hashes_that_look_far_ahead_break_a_lookup_without_full_attention() -> None:
    """The lookup of 0.33 asks for a hash that does not exist yet."""
    subject = engine_lookup_subject(sources("0.33.0"), POLICIES["0.33.0"], FAR_LOOKAHEAD)
    report = prove(subject, subject.claims)
    result = report.results["M2"][ALL]
    assert (result.verdict, result.reason) == ("refuted", "raised IndexError('list index out of range')")
    assert result.counterexample is not None
    assert result.counterexample["known"] == 5
