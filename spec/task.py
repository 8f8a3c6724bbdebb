"""A unit of proof work: one subject over one domain, named by words so that any process can build it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import z3

from reference.policy import POLICIES, Policy
from spec.claim import Case, Claim
from spec.domains import Plain
from spec.expected import expected_verdict
from spec.prove import Prover, Report, Result, Subject
from spec.row import ControlRow, Row
from spec.solver import Limits, Recorder
from spec.subjects import SUBJECTS


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """``subject``, ``sizes``, ``features``: keys of the subject's domain. ``source``: folder that holds an engine's
    ``vllm``, empty for the reference; ``target``: its name for people. ``claims``: only these, empty for all.
    ``controls``: also prove that each claim notices its planted fault."""

    subject: str
    release: str
    sizes: str
    features: str
    target: str = "reference"
    source: str = ""
    claims: tuple[str, ...] = ()
    controls: bool = False

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.subject} {self.release}, {self.sizes}, {self.features}"

    def chosen(self, subject: Subject) -> list[Claim]:
        """The claims of the subject that the task proves."""
        return [claim for claim in subject.claims if not self.claims or claim.id in self.claims]

    def build(self, policy: Policy | None = None) -> Subject:
        """The subject, under the release's policy unless another object stands for it."""
        source = Path(self.source) if self.source else None
        return SUBJECTS[self.subject](policy or POLICIES[self.release], self.sizes, self.features, source)


class TaskResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came out of a task. ``seconds``: for benchmarks, never in the ledger."""

    rows: tuple[Row, ...]
    controls: tuple[ControlRow, ...] = ()
    paths: int = 0
    forks: int = 0
    queries: int = 0
    undecided: int = 0
    seconds: float = 0.0


def run_task(task: Task, limits: Limits, subject: Subject | None = None, record: Recorder | None = None) -> TaskResult:
    """Prove all claims of a task. ``subject``: the task's own, where it has been built already; ``record`` gets
    the questions that are put to Z3."""
    began = time.perf_counter()
    subject = subject or task.build()
    claims = task.chosen(subject)
    grounds = grounds_of(claims, subject)
    planted = [with_fault(claim) for claim in claims] if task.controls else []
    prover = _Prover(subject, [*claims, *grounds, *planted], limits)
    prover.planted = frozenset(claim.id for claim in planted)
    prover.space.solver.record = record
    report = prover.prove()
    for claim in claims:
        rest_on_grounds(claim, report)
    rows = tuple(
        row_of(task, subject, claim, regime, result, report)
        for claim in claims
        for regime, result in sorted(report.results[claim.id].items())
    )
    controls = tuple(
        ControlRow(
            claim=claim.id,
            target=task.target,
            release=task.release,
            domain=f"{task.sizes}, {task.features}",
            planted=claim.control.sentence,
            verdict=worst(report.results[fault.id].values()),
        )
        for claim, fault in zip(claims, planted, strict=False)
    )
    seconds = time.perf_counter() - began
    return TaskResult(
        rows=rows,
        controls=controls,
        paths=report.paths,
        forks=report.forks,
        queries=report.queries,
        undecided=report.undecided,
        seconds=seconds,
    )


def grounds_of(claims: Sequence[Claim], subject: Subject) -> list[Claim]:
    """The claims, beside these, that these rest on."""
    needed = {ground for claim in claims for ground in claim.through} - {claim.id for claim in claims}
    return [claim for claim in subject.claims if claim.id in needed]


def rest_on_grounds(claim: Claim, report: Report) -> None:
    """A claim that rests on others is unknown where one of them is not proved."""
    missing = [ground for ground in claim.through if not _is_proved(report.results.get(ground, {}))]
    for result in report.results[claim.id].values() if missing else ():
        result.verdict, result.reason = "unknown", f"it rests on {' and '.join(missing)}, which is not proved here"


def _is_proved(results: Mapping[tuple[str, ...], Result]) -> bool:
    return bool(results) and all(result.verdict.startswith("proved") for result in results.values())


class _Prover(Prover):
    """Leaves a claim with a planted fault alone once it was noticed: making its counterexamples small takes long."""

    planted: frozenset[str] = frozenset()

    def _explore(self, claim: Claim, case: Case) -> Any:
        results = self.report.results[claim.id].values()
        if claim.id in self.planted and any(result.verdict == "refuted" for result in results):
            return z3.BoolVal(True)
        return super()._explore(claim, case)


def with_fault(claim: Claim) -> Claim:
    """The same claim about the case with its planted fault."""
    plant = claim.control.plant
    return replace(
        claim,
        id=f"{claim.id} with a planted fault",
        premise=lambda case: claim.premise(plant(case)),
        predicate=lambda case: claim.predicate(plant(case)),
        event=lambda case: claim.event(plant(case)),
    )


def worst(results: Any) -> str:
    """The verdict that says most against a claim."""
    verdicts = {result.verdict for result in results}
    return next(
        (verdict for verdict in ("refuted", "unknown", "vacuous", "proved to bound") if verdict in verdicts), "proved"
    )


def for_people(subject: Subject, values: dict[str, int] | None) -> dict[str, int]:
    """Inputs by the names and in the units that people use."""
    return {} if values is None else dict(subject.named(subject.build(Plain(values))))


def row_of(task: Task, subject: Subject, claim: Claim, regime: tuple[str, ...], result: Result, report: Report) -> Row:
    """The ledger's line for one result."""
    row = Row(
        claim=claim.id,
        rule=claim.rule,
        subject=task.subject,
        target=task.target,
        release=task.release,
        sizes=task.sizes,
        features=task.features,
        regime=", ".join(regime),
        verdict=result.verdict,
        reason=result.reason,
        bound=subject.bound,
        paths=report.paths,
        queries=report.queries,
        witness=result.witness or {},
        counterexample=result.counterexample,
        shown=for_people(subject, result.counterexample),
        witnessed=for_people(subject, result.witness),
        unique=result.unique,
        free=result.free,
    )
    return with_expectation(row)


def with_expectation(row: Row) -> Row:
    """The row with the verdict that it should have, as the data says now."""
    regime = tuple(row.regime.split(", "))
    expected, known = expected_verdict(row.claim, row.subject, row.release, row.sizes, row.features, regime)
    if row.bound and expected == "proved":
        expected = "proved to bound"
    return msgspec.structs.replace(row, expected=expected, known=known)


def undone(task: Task, reason: str) -> TaskResult:
    """What is left of a task that could not be run: its claims, unknown, with the reason."""
    try:
        rules = {claim.id: claim.rule for claim in task.chosen(task.build())}
    except Exception:  # whatever kept the task from running may keep its subject from being built
        rules = {name: name for name in task.claims or ("all",)}
    rows = tuple(
        Row(
            claim=claim,
            rule=rule,
            subject=task.subject,
            target=task.target,
            release=task.release,
            sizes=task.sizes,
            features=task.features,
            regime="all",
            verdict="unknown",
            reason=reason,
        )
        for claim, rule in rules.items()
    )
    return TaskResult(rows=rows)
