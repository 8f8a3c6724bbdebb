"""Two traces of a scenario: what is legal freedom is no difference, and what is worse is told as worse."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from fuzz.engines.conforming import open_reference
from fuzz.engines.planted import open_planted
from fuzz.trial import try_scenario
from oracle import trace
from oracle.compare import Comparison, Outcome, compare, outcome_of, overall, records_of
from oracle.costs import COSTS, Costs, better_in, costs_of, worse_in
from oracle.decisions import decisions
from oracle.scenario import Features, Geometry, Group, Limits, Request, Scenario, Step
from oracle.verdict import Finding
from tests.oracle.siblings import SIBLINGS

CROWDED = Scenario(
    Geometry((Group("full", 4),), 4, 10),
    Limits(budget=8, sequences=4),
    (Step(0, add=(Request("r0", ("a:13",), 9), Request("r1", ("b:13",), 9))),),
    Features(reserve_full_sequence=False),
)

Lines = tuple[bytes, ...]


def outcome(scenario: Scenario, engine: str = "") -> Outcome:
    made = open_planted(engine, "0.33.0") if engine else open_reference()
    trial = try_scenario(made, scenario)
    return outcome_of(scenario, trial.lines, trial.verdict.findings)


def changed(base: Outcome, change: Callable[[trace.AnyRecord], trace.AnyRecord | None]) -> Outcome:
    """The same outcome with records changed, or left out where the change gives None."""
    lines = [base.lines[0]]
    for line in base.lines[1:]:
        records = [change(record) for record in trace.records_decoder.decode(line)]
        lines.append(trace.encoder.encode([record for record in records if record is not None]))
    return outcome_of(SIBLINGS, lines, base.findings)


def renumbered(record: trace.AnyRecord) -> trace.AnyRecord:
    """Another choice of free blocks: every id but the null block's is another one."""
    other = {number: number and 1 + number * 7 % 101 for number in range(101)}
    if isinstance(record, trace.Lookup):
        blocks = tuple(tuple(other[block] for block in group) for group in record.blocks)
        return msgspec.structs.replace(record, blocks=blocks)
    if isinstance(record, trace.Commit | trace.Evict):
        return msgspec.structs.replace(record, block=other[record.block])
    if isinstance(record, trace.Take | trace.Touch | trace.Free | trace.Pin | trace.Table):
        return msgspec.structs.replace(record, blocks=tuple(other[block] for block in record.blocks))
    return record


def test_the_same_trace_is_identical() -> None:
    one = outcome(SIBLINGS)
    assert compare(one, outcome(SIBLINGS)) == Comparison()
    assert Comparison().word == "identical"


def test_other_block_ids_are_no_difference() -> None:
    one = outcome(SIBLINGS)
    other = changed(one, renumbered)
    assert other.lines != one.lines
    assert compare(one, other).word == "identical"


def test_a_first_difference_is_shown_with_what_both_saw_before() -> None:
    one = outcome(SIBLINGS)

    def shorter(record: trace.AnyRecord) -> trace.AnyRecord:
        if isinstance(record, trace.Split) and record.request == "r1":
            return msgspec.structs.replace(record, granted=record.granted - 1)
        return record

    found = compare(one, changed(one, shorter)).difference
    assert found is not None
    assert found.kind == "split"
    assert found.baseline is not None
    assert found.candidate is not None
    assert dict(found.baseline.facts)["granted"] == dict(found.candidate.facts)["granted"] + 1
    assert [decision.kind for decision in found.before][-1] == "lookup"


def test_a_trace_that_ends_early_differs_where_it_ends() -> None:
    one = outcome(SIBLINGS)
    found = compare(one, changed(one, lambda record: None if isinstance(record, trace.End) else record)).difference
    assert found is not None
    assert found.candidate is None
    assert found.kind == "end"


def test_a_rule_that_is_newly_broken_regresses_and_the_other_way_round_is_mended() -> None:
    good, bad = outcome(SIBLINGS), outcome(SIBLINGS, "ends-inside-a-block")
    assert bad.findings, "the planted fault is not seen in this scenario, so it shows nothing"
    assert compare(good, bad).word == "regresses"
    assert compare(good, bad).broken
    back = compare(bad, good)
    assert not back.broken
    assert {finding.rule for finding in back.mended} == bad.rules


def test_a_rule_that_both_break_is_neither_broken_nor_mended() -> None:
    bad = outcome(SIBLINGS, "ends-inside-a-block")
    found = compare(bad, changed(bad, lambda record: None if isinstance(record, trace.End) else record))
    assert found.difference is not None
    assert (found.broken, found.mended) == ((), ())


@pytest.mark.parametrize(
    ("worse", "better", "mended", "word"),
    [
        ((), (), (), "refines"),
        ((), ("steps",), (), "refines"),
        (("steps",), (), (), "regresses"),
        (("steps",), ("hit_tokens",), (), "incomparable"),
        (("steps",), (), (Finding("S2", "split", "full", 0, 0, ""),), "incomparable"),
    ],
)
def test_a_difference_is_judged_by_its_costs(
    worse: tuple[str, ...], better: tuple[str, ...], mended: tuple[Finding, ...], word: str
) -> None:
    difference = compare(outcome(SIBLINGS), changed(outcome(SIBLINGS), lambda record: None)).difference
    assert Comparison(difference, (), mended, worse, better).word == word


def test_many_scenarios_have_one_word() -> None:
    assert overall(["identical"], False) == "identical"
    assert overall(["identical", "refines"], False) == "refines"
    assert overall(["identical", "regresses"], False) == "regresses"
    assert overall(["refines", "regresses"], False) == "incomparable"
    assert overall(["incomparable", "identical"], False) == "incomparable"
    assert overall(["incomparable", "refines"], True) == "regresses"


def test_costs_are_counted_from_the_decisions() -> None:
    one = outcome(SIBLINGS)
    records = records_of(one.lines)
    assert one.costs.steps == sum(isinstance(record, trace.Step) for record in records)
    assert one.costs.hit_tokens == 16
    # 23 tokens a step of 16: two chunks each, of the third request only what its hit leaves.
    assert one.costs.chunks == sum(
        scheduled.start < 23 for record in records if isinstance(record, trace.Step) for scheduled in record.scheduled
    )
    assert one.costs.pinned_blocks == sum(isinstance(r, trace.Commit) and r.group == 1 for r in records)
    assert (one.costs.preemptions, one.costs.unfinished) == (0, 0)


def test_what_a_preempted_request_runs_again_is_counted() -> None:
    crowded = outcome(CROWDED).costs
    assert crowded.preemptions > 0
    assert crowded.recomputed_tokens > 0
    roomy = outcome(msgspec.structs.replace(CROWDED, geometry=Geometry((Group("full", 4),), 4, 40))).costs
    assert (roomy.preemptions, roomy.recomputed_tokens) == (0, 0)


def test_a_cost_is_worse_only_beyond_the_tolerance() -> None:
    baseline, candidate = Costs(chunks=100, hit_tokens=100), Costs(chunks=104, hit_tokens=96)
    assert worse_in(baseline, candidate) == ("chunks", "hit_tokens")
    assert worse_in(baseline, candidate, 0.05) == ()
    assert worse_in(baseline, candidate, 0.03) == ("chunks", "hit_tokens")
    assert better_in(candidate, baseline) == ("chunks", "hit_tokens")


def test_costs_of_scenarios_add_up() -> None:
    one = costs_of(SIBLINGS, records_of(outcome(SIBLINGS).lines))
    assert [getattr(one + one, name) for name in COSTS] == [2 * getattr(one, name) for name in COSTS]


def test_what_a_block_held_before_a_reset_is_forgotten() -> None:
    records = [trace.Commit("r", 0, 1, 4, 9), trace.Reset(True), trace.Commit("r", 0, 1, 8, 10), trace.Evict(1)]
    *_, evicted = decisions(records)
    assert evicted.facts == (("blocks", (((0, 8),),)),)
