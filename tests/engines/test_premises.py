"""What proofs about an engine's functions take for granted is counted on real traces, and what fails is declared.

The tests that drive a real build fail, and never skip, when it cannot be had; ``-m "not engines"`` leaves them out.
"""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import msgspec
import pytest

from fuzz.engines.open import open_prepared, prepare_engine
from fuzz.engines.sources import source_tree
from fuzz.generator import scenario_at
from fuzz.premise_counts import Counts, premises_text
from fuzz.premises import (
    BOUNDARIES,
    COMMITS,
    LOOKUPS,
    MASKS,
    PREMISES,
    SPLITS,
    UNSEEN,
    AnyPremise,
    Premise,
    alignment_of_masks,
    all_hold,
)
from fuzz.refusals import refused_by, withheld_features
from oracle import trace
from oracle.case import BadTrace, Case, RequestState
from oracle.scenario import Features, Geometry, Group, Limits, Request, Scenario, Step
from reference.policy import POLICIES
from spec.claims import mask as mask_claims
from spec.claims import split as split_claims
from spec.claims.mask import MaskInputs
from spec.domains import Inputs
from spec.engine_lookup import EngineLookup
from spec.engine_masks import EngineBoundaries, EngineMask
from spec.engine_split import EngineSplit
from spec.lift import SourceTree
from spec.plan import PLANS
from spec.space import Outside
from tests.setups import BLOCKS_OF_FOUR

RELEASES = ("0.33.0", "0.26.0")
SCENARIOS = 300
RARE = ("unequal", "wide-mamba", "fine-swa", "eagle-flag", "block-drop", "shared-prefix")
"""Features that seldom come together: windows beside hits inside a block, and groups of which only one drops."""
RARE_SCENARIOS = {"0.33.0": 100, "0.26.0": 0}

ON_BOTH = {
    "split: a step asks for tokens that the request has",
    "split: there is no long-prefill threshold",
    "split: split grid, Mamba block and scheduler block are one size",
    "split: in prefill, every premise at once",
    "split: in prefill, every premise at once, and one size",
    "boundaries: the junction is a multiple of the scheduler block",
    "boundaries: there are several groups",
    "boundaries: nothing is cached yet",
    "boundaries: a scheduler block is hashed",
    "boundaries: a group drops where any does",
    "boundaries: every premise at once",
    "boundaries: the sizes and the prompt are within the bound",
    "lookup: the layout has a row, and the request is within its bound",
}
FAILS = {
    "0.33.0": ON_BOTH
    | {
        "split: in prefill, a step asks for tokens that the request has",
        "split: hashes do not look ahead",
        "mask: blocks, alignment and scheduler block are of a shape that has rows",
    },
    "0.26.0": ON_BOTH
    | {
        "mask: the junction is a multiple of the mask's unit",
        "mask: every premise at once",
    },
}
NEVER_SAYS_ANYTHING = {
    "0.33.0": set(),
    "0.26.0": {
        "split: the opt-in to the exact junction has partial hits",
        "split: hashes that look ahead replace the EAGLE drop",
        "lookup: with partial hits, a window's block is the hash block",
    },
}
NEVER_DRIVEN = {"split: the backend saves no state inside a chunk"}
"""What an engine may do that no engine is driven to do here."""


# --- real builds -------------------------------------------------------------------------------------


@cache
def counted(release: str) -> Counts:
    """The premises on what a real build decides in generated scenarios."""
    drawn = [scenario_at(1, index, without=withheld_features(release)) for index in range(SCENARIOS)]
    drawn += [scenario_at(1, index, only=RARE) for index in range(RARE_SCENARIOS[release])]
    counts = Counts()
    engine = open_prepared(prepare_engine(f"vllm=={release}"))
    try:
        for scenario in drawn:
            if not refused_by(scenario, release):
                counts.add(engine.run(scenario).lines, release)
    finally:
        engine.close()
    return counts


@pytest.mark.engines
@pytest.mark.parametrize("release", RELEASES)
def test_what_did_not_always_hold_is_what_is_known(release: str) -> None:
    counts = counted(release)
    assert counts.failed == FAILS[release], premises_text(counts)
    assert counts.undeclared == frozenset(), premises_text(counts)


@pytest.mark.engines
@pytest.mark.parametrize("release", RELEASES)
def test_what_always_held_did_so_on_many_decisions(release: str) -> None:
    """The control of the test above: a premise that says nothing has not held, and is named."""
    counts = counted(release)
    silent = {key for key, count in counts.by_key.items() if count.held + count.failed == 0}
    assert silent == NEVER_SAYS_ANYTHING[release], premises_text(counts)
    assert min(counts.by_key[group[0].key].total for group in (SPLITS, MASKS, LOOKUPS, COMMITS)) > 1000


def test_what_may_fail_is_declared_and_nothing_else_is() -> None:
    declared = {premise.key for premise in PREMISES if premise.outside}
    assert declared == FAILS["0.33.0"] | FAILS["0.26.0"] | NEVER_DRIVEN


@pytest.mark.engines
@pytest.mark.parametrize("release", RELEASES)
def test_every_sentence_of_the_ledger_is_counted_or_said_to_be_unseen(release: str) -> None:
    tree = SourceTree(source_tree(f"vllm=={release}"))
    stated = {
        "split": EngineSplit(tree).premises,
        "mask": (*EngineMask(tree, "mamba").premises, *EngineMask(tree, "swa").premises),
        "boundaries": EngineBoundaries(tree).premises,
        "lookup": EngineLookup(tree).premises,
    }
    for about, lifted in stated.items():
        sentences = {*PLANS[about].premises, *lifted}
        beginnings = {one.stated for one in (*PREMISES, *UNSEEN) if one.about == about and one.stated}
        found = {begin: [sentence for sentence in sentences if sentence.startswith(begin)] for begin in beginnings}
        assert {begin: len(matching) for begin, matching in found.items()} == dict.fromkeys(beginnings, 1)
        assert {sentence for matching in found.values() for sentence in matching} == sentences


# --- decisions made by hand --------------------------------------------------------------------------

GROUPS = (Group("full", 4), Group("mamba", 4))
SCENARIO = Scenario(Geometry(GROUPS, 4, 40), Limits(16, 2), (Step(0, (Request("r", ("a:10",)),)),))
HEADER = trace.Header("vllm", "0.33.0", "v1", BLOCKS_OF_FOUR, SCENARIO)

ADD = trace.Add("r", ("a:10",), "r", 10)
LOOKUP = trace.Lookup("r", 10, 4, 8, ((1,), (2,)))
SPLIT = trace.Split("r", 4, 6, 4, 10, 10, 8)
CACHE = trace.Cache("r", 1, 8)
COMMIT = trace.Commit("r", 1, 3, 8, 12345)

DECISIONS: tuple[tuple[tuple[AnyPremise, ...], trace.Record], ...] = (
    (SPLITS, SPLIT),
    (MASKS, CACHE),
    (BOUNDARIES, CACHE),
    (LOOKUPS, LOOKUP),
    (COMMITS, COMMIT),
)
BASE = {premise.key: record for premises, record in DECISIONS for premise in premises}
SILENT = {
    "split: the opt-in to the exact junction has partial hits",
    "split: hashes that look ahead replace the EAGLE drop",
    "split: with partial hits, hashes are finer than the scheduler block",
    "mask: a window's block divides the alignment",
    "boundaries: the block of a group that drops divides the scheduler block",
    "lookup: with partial hits, a window's block is the hash block",
}
"""What says nothing of the decisions above."""
OUT_OF_BOUND = "lookup: the layout has a row, and the request is within its bound"
LATER = "boundaries: nothing is cached yet"

WINDOW = {"groups": (Group("full", 4), Group("swa", 4, 6))}
FINE = {"hash_block": 2, "alignment": 2, "partial_hits": True}
BREAKS: dict[str, dict[str, Any]] = {
    "split: a step asks for tokens that the request has": {"record": {"asked": 7}},
    "split: in prefill, a step asks for tokens that the request has": {"record": {"start": 9, "asked": 2}, "drafts": 1},
    "split: in prefill, a step asks for tokens that the request has, or pads its last with drafts": {
        "record": {"start": 9, "asked": 3},
        "drafts": 1,
    },
    "split: the prompt has a token and is known": {"record": {"prompt": 11}},
    "split: the junction lies inside the request": {"record": {"junction": 12}},
    "split: the junction is a multiple of the unit of hits": {"record": {"junction": 6}},
    "split: a step has room": {"limits": Limits(0, 2)},
    "split: there is a Mamba group, in align mode": WINDOW,
    "split: the opt-in to the exact junction has partial hits": {"setup": {"exact_junction": True}},
    "split: hashes that look ahead replace the EAGLE drop": {"setup": {"lookahead_hash": 1, "block_drop": True}},
    "split: there is no long-prefill threshold": {"limits": Limits(16, 2, 8)},
    "split: split grid, Mamba block and scheduler block are one size": {"setup": {"split_grid": 2}},
    "split: in prefill, every premise at once": {"record": {"junction": 6}},
    "split: in prefill, every premise at once, and one size": {"setup": {"scheduler_block": 8}},
    "split: the hash block divides the grid": {"setup": {"hash_block": 3}},
    "split: with partial hits, hashes are finer than the scheduler block": {"setup": {"partial_hits": True}},
    "split: hashes do not look ahead": {"setup": {"lookahead_hash": 1}},
    "split: the backend saves no state inside a chunk": {"setup": {"checkpoint_alignment": 1}},
    "mask: the interval is whole scheduler blocks": {"setup": {"retention": 6}},
    "mask: the junction is a multiple of the mask's unit": {"junction": 6},
    "mask: the prompt has a token": {"prompt": 0},
    "mask: a window's block divides the alignment": {**WINDOW, "setup": {"alignment": 6}},
    "mask: every premise at once": {"junction": 6},
    "mask: blocks, alignment and scheduler block are of a shape that has rows": {
        "setup": {**FINE, "scheduler_block": 8}
    },
    "boundaries: the prompt has a token": {"prompt": 0},
    "boundaries: the junction is a multiple of the scheduler block": {"junction": 6},
    "boundaries: the block of a group that drops divides the scheduler block": {
        "setup": {"drop_groups": (False, True), "scheduler_block": 6}
    },
    "boundaries: there are several groups": {
        "groups": (Group("mamba", 4),),
        "setup": {"drop_groups": (False,)},
        "record": {"group": 0},
    },
    LATER: {"cached": [1, 1]},
    "boundaries: a scheduler block is hashed": {"known": 3},
    "boundaries: caching is on": {"caching": False},
    "boundaries: a group drops where any does": {"setup": {"drop_groups": (True, False)}},
    "boundaries: every premise at once": {"junction": 6},
    "boundaries: the sizes and the prompt are within the bound": {"prompt": 17},
    "lookup: the request has a token": {"record": {"known": 0}},
    "lookup: hit and junction leave a token": {"record": {"hit": 8, "known": 8, "junction": 0}},
    "lookup: the hash block divides every block": {"setup": {"hash_block": 3}},
    "lookup: the alignment is the hash block with partial hits, else the scheduler block": {"setup": {"alignment": 2}},
    "lookup: every premise at once": {"setup": {"alignment": 2}},
    "lookup: with partial hits, a window's block is the hash block": {
        "groups": (Group("mamba", 4), Group("swa", 4, 6)),
        "setup": FINE,
    },
    OUT_OF_BOUND: {"record": {"known": 400}},
    "lookup: what enters the cache has a hash": {"record": {"position": 12}},
}


BLOCKS_OF_16 = {
    "groups": (Group("full", 16), Group("mamba", 16)),
    "setup": dict.fromkeys(("scheduler_block", "hash_block", "split_grid", "alignment"), 16),
}
"""A layout that has a row."""


def case_of(
    setup: dict[str, Any],
    groups: tuple[Group, ...] = GROUPS,
    limits: Limits = SCENARIO.limits,
    drafts: int = 0,
    caching: bool = True,
    prompt: int = 10,
    known: int = 10,
    junction: int = 8,
    cached: list[int] | None = None,
    release: str = "0.33.0",
) -> Case:
    """The facts of a trace with one request, in which nothing is cached yet."""
    scenario = replace_in(
        SCENARIO, geometry=Geometry(groups, 4, 40), limits=limits, features=Features(drafts=drafts, caching=caching)
    )
    header = replace_in(HEADER, setup=replace_in(BLOCKS_OF_FOUR, **setup), scenario=scenario)
    case = Case(header, release, frozenset())
    case.requests["r"] = RequestState("r", [], "r", prompt, known, len(groups), junction)
    case.requests["r"].cached = cached or [0] * len(groups)
    return case


def replace_in(struct: Any, **changes: Any) -> Any:
    return msgspec.structs.replace(struct, **changes)


def holds(premise: AnyPremise, *, record: dict[str, Any] | None = None, **facts: Any) -> bool | None:
    """What a premise says of the decision above with some of its numbers changed."""
    decision: Any = replace_in(BASE[premise.key], **(record or {}))
    return premise.holds(case_of(facts.pop("setup", {}), **facts), decision)


def by_key(key: str) -> AnyPremise:
    return next(premise for premise in PREMISES if premise.key == key)


@pytest.mark.parametrize("key", [premise.key for premise in PREMISES])
def test_a_decision_that_breaks_a_premise_is_seen(key: str) -> None:
    assert holds(by_key(key), **BREAKS[key]) is False


@pytest.mark.parametrize("key", [premise.key for premise in PREMISES])
def test_a_decision_that_keeps_all_premises_is_left_alone(key: str) -> None:
    """The control of the test above."""
    facts = BLOCKS_OF_16 if key == OUT_OF_BOUND else {}
    assert holds(by_key(key), **facts) is (None if key in SILENT else True)


def test_keys_tell_premises_apart() -> None:
    assert len(BREAKS) == len({premise.key for premise in PREMISES}) == len(PREMISES)


def line(*records: trace.Record) -> bytes:
    return trace.encoder.encode(records)


def test_a_trace_that_breaks_premises_is_counted() -> None:
    """One request: a hit, a chunk of which more is asked than there is, blocks of two groups, and another request."""
    counts = Counts()
    asked_too_much = replace_in(SPLIT, asked=7)
    decoded = trace.Split("r", 10, 1, 1, 11, 10, 8)
    lines = [
        trace.encoder.encode(HEADER),
        line(ADD, LOOKUP, asked_too_much, replace_in(CACHE, group=0), CACHE, COMMIT, trace.Output(0, (("r", 1),))),
        line(decoded, replace_in(COMMIT, position=12), trace.Preempt("r"), replace_in(LOOKUP, known=11, hit=0), CACHE),
    ]
    counts.add(lines)
    told = {key: (count.held, count.failed, count.silent) for key, count in counts.by_key.items()}
    assert told["split: a step asks for tokens that the request has"] == (1, 1, 0)
    assert told["split: in prefill, a step asks for tokens that the request has"] == (0, 1, 1)
    assert told["mask: the prompt has a token"] == (2, 0, 0)
    assert told[LATER] == (1, 1, 0)
    assert told["lookup: the request has a token"] == (2, 0, 0)
    assert told["lookup: what enters the cache has a hash"] == (1, 1, 0)
    assert counts.undeclared == {
        "split: in prefill, a step asks for tokens that the request has, or pads its last with drafts",
        "lookup: what enters the cache has a hash",
    }
    text = premises_text(counts)
    assert 'UNDECLARED: nothing says why; the first: ["split","r",4,7,4,10,10,8]' in text
    assert all(unseen.reason in text for unseen in UNSEEN)


@pytest.mark.parametrize(
    "lines",
    [[], [b"{}"], [trace.encoder.encode(HEADER), b"["], [trace.encoder.encode(HEADER), line(CACHE)]],
    ids=["nothing", "no header", "cut off", "a request that was never added"],
)
def test_what_is_no_trace_is_told(lines: list[bytes]) -> None:
    with pytest.raises(BadTrace):
        Counts().add(lines)


# --- the proofs' own guards --------------------------------------------------------------------------


def stated_by(premises: tuple[Premise[Any], ...], sentences: tuple[str, ...]) -> list[Premise[Any]]:
    return [one for one in premises if one.stated and any(sentence.startswith(one.stated) for sentence in sentences)]


def test_the_premises_of_the_split_are_its_guard() -> None:
    """What is counted is what the proof leaves out, on plain numbers."""
    counted_here, case = stated_by(SPLITS, split_claims.PREMISES), case_of({})
    source, answers = random.Random(1), []
    for _ in range(2000):
        start, asked, prompt, known, junction = (source.randint(0, 9) for _ in range(5))
        record = trace.Split("r", start, asked, 0, known, prompt, junction)
        inputs = Inputs(case.split_setting, 4, start, start + asked, prompt, known, junction)
        answers.append(split_claims.is_legal(inputs))
        assert all_hold(counted_here, case, record) == answers[-1]
    assert set(answers) == {True, False}


@pytest.mark.parametrize("release", RELEASES)
def test_the_premises_of_the_mask_are_its_guard(release: str) -> None:
    counted_here, source, answers = stated_by(MASKS, mask_claims.PREMISES), random.Random(1), []
    for _ in range(500):
        prompt, junction = source.randint(0, 9), source.randint(0, 9)
        case = case_of({**FINE, "retention": None}, prompt=prompt, junction=junction, release=release)
        alignment = alignment_of_masks(case)
        inputs = MaskInputs(case.groups[1], alignment, 4, None, prompt, junction, 0, 0, 0, 1, ())
        answers.append(is_inside(release, inputs))
        assert all_hold(counted_here, case, CACHE) == answers[-1]
    assert set(answers) == {True, False}


def is_inside(release: str, inputs: MaskInputs) -> bool:
    """Whether a proof about masks speaks of these numbers."""
    try:
        mask_claims.run_mask(POLICIES[release], None, inputs)
    except Outside:
        return False
    return True
