"""Proves the claims of one subject over one domain, and says of each what came out.

All paths of the subject's function are explored once; on each, every claim's premise and predicate are
explored further. A path on which a predicate can be false gives a counterexample, which is made small
and then run again on plain integers with the same function objects.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import z3

from spec.claim import Case, Claim
from spec.domains import Plain, Source
from spec.lemmas import LemmaMaker
from spec.minimise import as_small, others_as_small, smaller, smallest
from spec.rebind import Copier
from spec.solver import NEW_ARITHMETIC, Limits
from spec.space import GAP_LEMMAS, ExplorationError, Outside, Raised, Space
from spec.symbolic import SymbolicError
from spec.unknowns import Sample

Values = dict[str, int]

SAMPLES_LOOKED_AT = 12
"""Of each path, for regimes and witnesses; what no sample shows is looked for on all paths at the end."""


OTHERS_TRIED = 60
"""Samples whose values are put in the place of a counterexample's, to see which inputs matter."""


@dataclass(frozen=True)
class Subject:
    """What claims are about: a function and its inputs over one domain.

    ``build`` makes the inputs from a source; ``run`` gives the case of one call (Outside: not legal), or raises;
    ``arguments`` of ``run`` before the inputs, made from the stand-ins for builtins (none for plain numbers).
    ``regime``: which of the subject's regimes a case is in; ``measure``: what a small counterexample is small in,
    most important first; ``examples``: plain inputs, most of them legal, to begin with; ``named``: the inputs by name,
    for people. ``builtins``: makes the stand-ins for builtins from the space, None for none; ``lemmas``: what the
    solver is told about products, and ``arithmetic``: which of Z3's it uses. ``bound``: how far the domain goes, where
    it does not hold all inputs.
    """

    name: str
    claims: tuple[Claim, ...]
    build: Callable[[Source], Any]
    run: Callable[..., Case]
    arguments: Callable[[Mapping[str, Any]], tuple[Any, ...]]
    regime: Callable[[Case], tuple[str, ...]]
    measure: Callable[[Any], Sequence[Any]]
    examples: Callable[[random.Random, int], Iterator[Values]]
    builtins: Callable[[Space], Mapping[str, Any]] | None = None
    bound: str = ""
    named: Callable[[Any], Mapping[str, Any]] = vars
    lemmas: LemmaMaker = GAP_LEMMAS
    arithmetic: int = NEW_ARITHMETIC

    def space(self, limits: Limits) -> Space:
        """A new space with the solver that suits the subject."""
        return Space(limits, self.lemmas, self.arithmetic)


@dataclass
class Result:
    """What came out for a claim in one regime. ``verdict``: proved, proved to bound, refuted, unknown or vacuous.

    ``unique``: no other input is as small in the most important number. ``free``: inputs that do not matter."""

    verdict: str = "proved"
    counterexample: Values | None = None
    unique: bool = True
    free: tuple[str, ...] = ()
    witness: Values | None = None
    reason: str = ""


@dataclass
class Report:
    """All results of one exploration, by claim and regime, and what it took."""

    results: dict[str, dict[tuple[str, ...], Result]] = field(default_factory=dict)
    paths: int = 0
    forks: int = 0
    queries: int = 0
    undecided: int = 0
    covered: str = ""
    problem: str = ""


class Prover:
    """One exploration of a subject."""

    def __init__(self, subject: Subject, claims: Sequence[Claim], limits: Limits, space: Space | None = None) -> None:
        self.subject = subject
        self.limits = limits
        self.claims = claims
        self.space = space or subject.space(limits)
        self.report = Report(results={claim.id: {} for claim in claims})
        names = subject.builtins(self.space) if subject.builtins is not None else {}
        self._copy = Copier(names).copy if names else lambda function: function
        self._arguments = subject.arguments(names)
        self._plain_arguments = subject.arguments({})
        self._inputs = subject.build(self.space)
        self._regimes: set[tuple[str, ...]] = set()
        self._others_tried: list[Sample] = []

    def prove(self) -> Report:
        """Explore everything; a failure of the exploration makes every claim unknown."""
        run = self._copy(self.subject.run)
        self._sow()
        try:
            covered = self.space.explore(lambda: run(*self._arguments, self._inputs), self._at_end)
            self._find_witnesses(run)
            answer = self.space.solver.left_over(covered)
            self.report.covered = {"unsat": "all inputs"}.get(answer, f"not shown to be all inputs ({answer})")
            if answer != "unsat":
                self.report.problem = "the paths are not shown to cover the premise"
        except (ExplorationError, SymbolicError, z3.Z3Exception, MemoryError) as error:
            self.report.problem = str(error) or type(error).__name__
        self._conclude()
        return self.report

    def _sow(self) -> None:
        """Samples to begin with: they save Z3 the search for most of what can happen."""
        numbers = self.space.unknowns.inputs
        for values in self.subject.examples(random.Random(1), self.limits.samples):
            sample = {number: values.get(name, 0) for name, number in numbers.items()}
            if self.space.admits(sample):
                self.space.samples.append(sample)
        self._others_tried = self.space.samples[:OTHERS_TRIED]

    def _conclude(self) -> None:
        report, stats, solver = self.report, self.space.stats, self.space.solver
        report.paths, report.forks = stats.paths, stats.forks
        report.queries, report.undecided = solver.queries, solver.undecided
        for claim in self.claims:
            results = report.results[claim.id]
            if not results:
                results[("all",)] = Result("vacuous", reason="no path satisfies the premise")
            for result in results.values():
                if result.counterexample is not None and not result.reason:
                    result.free = self._free(claim, result.counterexample)
                if self.subject.bound and result.verdict == "proved":
                    result.verdict, result.reason = "proved to bound", self.subject.bound
                if report.problem and result.verdict != "refuted":
                    result.verdict, result.reason = "unknown", report.problem
                elif result.verdict.startswith("proved") and result.witness is None:
                    result.verdict, result.reason = "vacuous", f"no case in which {claim.event_text}"

    # One path of the subject

    def _at_end(self, case: Case) -> None:
        if isinstance(case, Raised):
            for claim in self.claims:
                self._raised(claim, case)
            return
        self._replay(case)
        if not all(self.space.covers(self._explore(claim, case)) for claim in self.claims):
            raise ExplorationError("the paths through a predicate are not shown to cover the path that led to it")

    def _replay(self, case: Case) -> None:
        """The first sample of a path must give on plain numbers what the path says."""
        for number, sample in enumerate(self.space.current_samples()[:SAMPLES_LOOKED_AT]):
            plain = self.plain(self.space.unknowns.plain(sample))
            if plain is None:
                raise ExplorationError("a sample of a path is outside of the premise on plain numbers")
            self._regimes.add(self.subject.regime(plain))
            if number:
                continue
            wanted = getattr(plain, "granted", None)
            if wanted is not None and self.space.value(case.granted, sample) != wanted:
                raise ExplorationError("a path and its replay on plain numbers differ")

    def _explore(self, claim: Claim, case: Case) -> Any:
        """Explore a claim on the path at hand; the Z3 formula of what was covered."""
        premise, predicate = self._copy(claim.premise), self._copy(claim.predicate)
        regime = self._copy(self.subject.regime)

        def run() -> tuple[str, ...] | None:
            if not premise(case):
                raise Outside
            # Which regime a path is in matters, and costs forks, only where the predicate is broken.
            words: tuple[str, ...] | None = None if predicate(case) else regime(case)
            return words

        return self.space.explore(run, lambda result: self._judge(claim, result))

    def _judge(self, claim: Claim, result: Any) -> None:
        if isinstance(result, Raised):
            self._raised(claim, result)
        elif result is not None:
            self._refute(claim, result, self.report.results[claim.id].setdefault(result, Result()), "")
        else:
            self._holds(claim)

    def _raised(self, claim: Claim, raised: Raised) -> None:
        results = self.report.results[claim.id]
        regime = ("all",)
        self._refute(claim, regime, results.setdefault(regime, Result()), f"raised {raised.error!r}")

    def _holds(self, claim: Claim) -> None:
        """A path on which the predicate is true: note the regimes of its samples, and the event where one shows it."""
        results = self.report.results[claim.id]
        if all(regime in results and results[regime].witness is not None for regime in self._regimes):
            return
        for sample in self.space.current_samples()[:SAMPLES_LOOKED_AT]:
            values = self.space.unknowns.plain(sample)
            plain = self.plain(values)
            if plain is None or not claim.premise(plain):
                continue
            if not claim.predicate(plain):
                raise ExplorationError("a path on which the predicate holds and its replay on plain numbers differ")
            outcome = results.setdefault(self.subject.regime(plain), Result())
            if outcome.witness is None and claim.event(plain):
                outcome.witness = values

    def _shown(self, claim: Claim, values: Values) -> Values | None:
        """The values if, on plain numbers, the premise holds and the event happens."""
        plain = self.plain(values)
        return values if plain is not None and claim.premise(plain) and claim.event(plain) else None

    def _find_witnesses(self, run: Callable[..., Case]) -> None:
        """Look on all paths again for the events that no sample showed."""
        lacking = [
            claim
            for claim in self.claims
            if not self.report.results[claim.id]
            or any(r.verdict == "proved" and r.witness is None for r in self.report.results[claim.id].values())
        ]
        if lacking:
            paths, self.space.stats.paths = self.space.stats.paths, 0
            self.space.explore(lambda: run(*self._arguments, self._inputs), partial(self._find_all, lacking))
            self.space.stats.paths = paths

    def _find_all(self, claims: Sequence[Claim], case: Case) -> None:
        for claim in claims:
            self._find(claim, case)

    def _find(self, claim: Claim, case: Case) -> None:
        premise, event, regime = (self._copy(part) for part in (claim.premise, claim.event, self.subject.regime))

        def happens() -> tuple[str, ...]:
            if not (premise(case) and event(case)):
                raise Outside
            words: tuple[str, ...] = regime(case)
            return words

        def note(words: Any) -> None:
            known = results.get(words) if isinstance(words, tuple) else None
            if isinstance(words, tuple) and (known is None or known.witness is None):
                sample = smallest(self.space, ())
                shown = None if sample is None else self._shown(claim, self.space.unknowns.plain(sample))
                if shown is not None:
                    results.setdefault(words, Result()).witness = shown

        results = self.report.results[claim.id]
        if not results or any(result.witness is None for result in results.values()):
            self.space.explore(happens, note)

    def _refute(self, claim: Claim, regime: tuple[str, ...], outcome: Result, reason: str) -> None:
        """A path on which the predicate is false: find plain numbers, make them small, run them again."""
        measures = self.subject.measure(self._inputs)
        if outcome.counterexample is not None:
            best = self.subject.measure(self.subject.build(Plain(outcome.counterexample)))
            if not smaller(self.space, measures, best):
                outcome.unique = outcome.unique and not as_small(self.space, measures, best)
                return
        before = None if outcome.counterexample is None else best[0]
        sample = smallest(self.space, measures)
        if sample is None:
            if outcome.verdict == "proved":
                outcome.verdict, outcome.reason = "unknown", "Z3 cannot exclude a path, and no numbers take it"
            return
        values = self.space.unknowns.plain(sample)
        if self.refutes(claim, values):
            outcome.verdict, outcome.reason, outcome.counterexample = "refuted", reason, values
            found = [self.space.value(measure, sample) for measure in measures]
            outcome.unique = found[0] != before and not others_as_small(self.space, measures, found)
        elif outcome.verdict == "proved":
            outcome.verdict, outcome.reason = "unknown", "spurious: the predicate holds on the plain numbers found"

    # Plain numbers

    def _free(self, claim: Claim, values: Values) -> tuple[str, ...]:
        """Names of inputs that can be given any of many other values without mending the counterexample."""
        free = []
        named = self.subject.named(self.subject.build(Plain(values)))
        for name in named:
            parts = [part for part in values if part == name or part.partition(".")[0] == name]
            tried = [self._plain_verdict(claim, values | other) for other in self._others(values, parts)]
            legal = [verdict for verdict in tried if verdict is not None]
            if len(legal) > 2 and not any(legal):
                free.append(name)
        return tuple(free)

    def _others(self, values: Values, parts: Sequence[str]) -> Iterator[Values]:
        """The values of some inputs in the first samples, which owe nothing to what Z3 found."""
        for sample in self._others_tried if parts else ():
            found = self.space.unknowns.plain(sample)
            yield {part: found[part] for part in parts}

    def _plain_verdict(self, claim: Claim, values: Values) -> bool | None:
        """Whether the predicate holds of plain inputs; None where they are not legal."""
        try:
            case = self.plain(values)
            return bool(claim.predicate(case)) if case is not None and claim.premise(case) else None
        except Exception:  # as in ``refutes``
            return False

    def plain(self, values: Values) -> Case | None:
        """The case of plain inputs, None where they are outside of the domain or the premise."""
        source = Plain(values)
        inputs = self.subject.build(source)
        if not source.admits:
            return None
        try:
            return self.subject.run(*self._plain_arguments, inputs)
        except Outside:
            return None

    def refutes(self, claim: Claim, values: Values) -> bool:
        """Whether plain inputs satisfy the premise and break the predicate, by the original functions."""
        try:
            case = self.plain(values)
            return case is not None and bool(claim.premise(case)) and not claim.predicate(case)
        except Exception:  # whatever the function raises, it does so on inputs that satisfy the premise
            return True
