"""Reports of gate runs, made from two real traces of the poisoning that 0.27 mended (``traces/``)."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
from msgspec.structs import replace

from fuzz.gate.model import Control, GateFinding, GateReport, Ground, KnownEntry, Place, Proof, Side
from oracle.compare import Comparison, Outcome, compare, outcome_of
from oracle.judge import judge_lines
from oracle.scenario import Scenario
from reference.rules import RULES

VECTOR = Path(__file__).parent.parent / "vectors" / "state-poisoned-by-fragment.json"
SCENARIO = msgspec.convert(json.loads(VECTOR.read_text())["scenario"], Scenario)
SPLIT = Place("v1/core/sched/scheduler.py", "Scheduler._mamba_block_aligned_split", 355)
COMMIT = Place("v1/core/single_type_kv_cache_manager.py", "MambaManager.cache_blocks", 1180)


def trace_lines(release: str) -> list[bytes]:
    """What the release did with the scenario, line by line."""
    return trace_path(release).read_bytes().splitlines()


def trace_path(release: str) -> Path:
    return Path(__file__).parent / "traces" / f"{VECTOR.stem}.{release}.jsonl"


def outcome(release: str) -> Outcome:
    """The outcome of a release, judged as the gate does."""
    lines = trace_lines(release)
    return outcome_of(SCENARIO, lines, judge_lines(lines, None).findings)


def regresses() -> GateReport:
    """0.26.0 as if it were a change to 0.27.1: the poisoning comes in."""
    baseline, candidate = outcome("0.27.1"), outcome("0.26.0")
    comparison = compare(baseline, candidate)
    return GateReport(
        kvoracle="0.1.0",
        baseline=side("0.27.1"),
        candidate=side("0.26.0"),
        word="regresses",
        settings={"seconds": 180.0, "seed": 1, "accept": []},
        scenarios=214,
        words={"identical": 201, "refines": 3, "regresses": 10, "incomparable": 0},
        mended={"P2": 3, "U3": 1},
        costs=(baseline.costs, candidate.costs),
        grounds=(
            Ground(SPLIT, "executed", lines=(360, 361, 362, 370), lines_hit=(360, 361, 370), scenarios=198),
            Ground(COMMIT, "proved equal", lines=(1181,)),
            Ground(Place("v1/request.py", "Request.__repr__", 40), "never executed", lines=(41, 42)),
            Ground(Place("v1/core/kv_cache_utils.py", "old_helper", 9), "removed", why="nobody calls it"),
        ),
        proof=Proof(rows=12, proved=11, refuted=("S2 on 16/4: known=2 prompt=2 start=0 asked=1",)),
        findings=tuple(finding(number, comparison, baseline, candidate) for number in range(len(comparison.broken))),
        known=(KnownEntry(("M1", "split", "full+mamba"), "no longer there", "an older split", "vllm #51113"),),
        controls=(
            Control("split-off-by-one", "A chunk may end one token late.", SPLIT, True, 40, "regresses"),
            Control("mask-empty", "Nothing is retained.", COMMIT, True, 12, "regresses"),
        ),
        seconds={"source": 1.25, "proof": 20.5, "vectors": 4.0, "fuzz": 120.75, "controls": 30.0},
        exit_status=1,
    )


def side(release: str) -> Side:
    return Side(f"vllm=={release}", release, None, "site/vllm")


def finding(number: int, comparison: Comparison, baseline: Outcome, candidate: Outcome) -> GateFinding:
    """A broken rule of the comparison as the gate's finding."""
    broken = comparison.broken[number]
    return GateFinding(
        signature=broken.signature,
        sentence=RULES[broken.rule].sentence,
        comparison=comparison,
        scenario=SCENARIO,
        costs=(baseline.costs, candidate.costs),
        lines=(baseline.lines, candidate.lines),
        layer="vector",
        seconds=3.5 + number,
        place=SPLIT if broken.decision == "split" else COMMIT,
        finding=broken,
        count=10 - number,
        path=f"kvoracle-findings/{broken.rule}.json",
    )


def refines() -> GateReport:
    """0.27.1 as a change to 0.26.0: no finding, and a difference to look at."""
    report, baseline, candidate = regresses(), outcome("0.26.0"), outcome("0.27.1")
    comparison = compare(baseline, candidate)
    difference = replace(
        report.findings[0],
        signature=("DIFF", "split", report.findings[0].signature[2]),
        sentence="The candidate splits otherwise.",
        comparison=comparison,
        costs=(baseline.costs, candidate.costs),
        lines=(baseline.lines, candidate.lines),
        finding=None,
        path="",
    )
    return replace(
        report,
        baseline=report.candidate,
        candidate=report.baseline,
        word="refines",
        costs=(baseline.costs, candidate.costs),
        findings=(),
        difference=difference,
        exit_status=0,
    )


def identical() -> GateReport:
    """A build against itself."""
    report = regresses()
    return replace(
        report,
        candidate=report.baseline,
        word="identical",
        costs=(report.costs[0],) * 2,
        grounds=(),
        findings=(),
        known=(),
        exit_status=0,
    )


def could_not_judge() -> GateReport:
    """Nothing but the reason."""
    report = regresses()
    return GateReport(
        kvoracle="0.1.0",
        baseline=report.baseline,
        candidate=report.candidate,
        word="could not judge",
        reason="the candidate cannot be imported: No module named 'vllm.v1'",
    )


def odd() -> GateReport:
    """What is typed and what engines say can be anything."""
    report = regresses()
    first = report.findings[0]
    assert first.finding is not None
    return replace(
        report,
        candidate=replace(report.candidate, name=ODD),
        findings=(
            replace(
                first,
                sentence=ODD,
                place=Place("v1/a,b:c %|<é>.py", "f<`|`>", 3),
                finding=replace(first.finding, reason=ODD),
            ),
        ),
        settings={"note": ODD},
    )


ODD = (
    "100% <script>alert('a')</script> & \"q\" | `` ` `` ]]> ::error::x, y: z\r\n"
    "# h\x1b[31m\x00 \ud800 [bold]b[/] {{ 1 }} é"
)
REPORTS = {
    "regresses": regresses,
    "refines": refines,
    "identical": identical,
    "could not judge": could_not_judge,
    "odd": odd,
}
"""One report of each kind."""
