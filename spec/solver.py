"""Z3 behind one door: conditions in, "can this hold on the path" out.

Every monomial is an unknown of its own, so that the solver sees linear arithmetic; what that loses about
products comes back as lemmas. What an unknown means (its bounds, the quotient that it stands for) is told to
the solver before the first condition that mentions it, and forgotten with the fork under which that was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import z3

from spec.coverage import covered_if, left_over
from spec.lemmas import LemmaMaker, Size, cases, multiple
from spec.symbolic import Linear, Monomial, SymBool

Key = tuple[str, Linear, int]

Recorder = Callable[[str, Callable[[], str], str], None]
"""Gets a question's kind ("path" or "coverage"), what makes its SMT-LIB script while it is at hand, and the answer."""


@dataclass(frozen=True)
class Limits:
    """Where a proof stops. ``paths``: of one exploration; ``resource``: Z3's own count of work a query;
    ``memory_mib``: Z3's memory in MiB; ``samples``: how many plain inputs an exploration begins with."""

    paths: int = 20_000
    resource: int = 1_500_000
    memory_mib: int = 3_000
    samples: int = 4_000


OLD_ARITHMETIC, NEW_ARITHMETIC = 2, 6
"""Z3's ``arith.solver``. On an engine's masks the new one takes ten seconds or minutes, as its terms happen to be
numbered, the old one ten seconds, and on splits a tenth less. Elsewhere the old one is the slower one, or takes all
memory (the reference's mask, 16 in 1600)."""

HANG_MS = 4_000
"""After so long Z3 is taken to hang on a question, which is then put to solvers without a past."""

AFRESH = 5
"""How many times as much work these may do."""

AT_ONCE = 20
"""How many times as much work a question about all inputs may be, before it is put gap by gap."""


@dataclass
class Meaning:
    """What the solver must know about an unknown: which others it is defined from, and the facts."""

    depends: tuple[int, ...] = ()
    facts: list[Any] = field(default_factory=list)


class Solver:
    """An incremental Z3 solver with one scope a fork."""

    def __init__(self, name_of: Callable[[int], str], limits: Limits, lemmas: LemmaMaker, arithmetic: int) -> None:
        z3.set_param("memory_max_size", limits.memory_mib)
        self.meanings: dict[int, Meaning] = {}
        self.sizes: list[Size] = []
        self.numbers: list[int] = []
        self.queries = 0
        self.undecided = 0
        self.record: Recorder | None = None
        self._lemma_maker = lemmas
        self._name_of = name_of
        self._solver = z3.SimpleSolver()
        self._solver.set("arith.solver", arithmetic)
        self._solver.set("rlimit", limits.resource)
        # Z3's arithmetic can run for minutes on large block sizes without counting that as work.
        self._solver.set("timeout", HANG_MS)
        self._limits = limits
        self._monomials: dict[Monomial, Any] = {}
        self._formulas: dict[Key, Any] = {}
        self._keys: dict[int, Key] = {}
        self._lemmas: dict[tuple[Linear, int], list[Any]] = {}
        self._axioms: list[Any] = []
        self._told: list[set[Any]] = [set()]

    def monomial(self, monomial: Monomial) -> Any:
        """The Z3 integer that stands for a monomial."""
        term = self._monomials.get(monomial)
        if term is None:
            term = self._monomials[monomial] = z3.Int("*".join(self._name_of(number) for number in monomial))
        return term

    def term(self, linear: Linear, constant: int) -> Any:
        """The Z3 term of a polynomial."""
        parts = [self.monomial(mono) if factor == 1 else factor * self.monomial(mono) for mono, factor in linear]
        if constant or not parts:
            parts.append(z3.IntVal(constant))
        return parts[0] if len(parts) == 1 else z3.Sum(parts)

    def formula(self, key: Key, value: bool = True) -> Any:
        """The Z3 formula that a condition has this value."""
        formula = self._formulas.get(key)
        if formula is None:
            kind, linear, constant = key
            total = self.term(linear, 0)
            formula = self._formulas[key] = total <= -constant if kind == "le" else total == -constant
            self._keys[formula.get_id()] = key
        return formula if value else z3.Not(formula)

    def of(self, condition: SymBool) -> Any:
        """The Z3 formula of a condition."""
        return self.formula(condition.key, not condition.negated)

    def lemmas_about(self, linear: Linear, constant: int) -> list[Any]:
        """The lemmas that a comparison of this polynomial needs."""
        if not self.sizes and not self.numbers:
            return []
        key = (linear, constant)
        if key not in self._lemmas:
            products = [*self._lemma_maker(linear, constant, self.sizes, self.term)]
            for size in self.sizes[-1:]:
                # A comparison of counts is one of their multiples, too, where those are spoken of.
                whole = multiple(linear, constant, size)
                if all(monomial in self._monomials for monomial, _ in whole):
                    products += self._lemma_maker(whole, 0, [size], self.term)
            self._lemmas[key] = [*products, *cases(linear, constant, self.numbers, self.term)]
        return self._lemmas[key]

    def axiom(self, condition: SymBool) -> None:
        """A condition that holds on every path."""
        self.tell(condition.linear, condition.constant)
        self._axioms.append(self.of(condition))
        self._solver.add(self._axioms[-1])

    def tell(self, linear: Linear, constant: int) -> None:
        """Make sure that the solver knows what the unknowns of a polynomial mean."""
        for fact in self._known_of(linear, constant, self._told):
            self._solver.add(fact)

    def _known_of(self, linear: Linear, constant: int, told: list[set[Any]]) -> Iterator[Any]:
        """What must be known of a polynomial, less what was ``told`` already: what its unknowns mean, and lemmas."""
        if any((linear, constant) in level for level in told):
            return
        told[-1].add((linear, constant))
        for monomial, _ in linear:
            for number in monomial:
                yield from self._meaning_of(number, told)
        yield from self.lemmas_about(linear, constant)

    def _meaning_of(self, number: int, told: list[set[Any]]) -> Iterator[Any]:
        if any(number in level for level in told):
            return
        told[-1].add(number)
        meaning = self.meanings[number]
        for inner in meaning.depends:
            yield from self._meaning_of(inner, told)
        yield from meaning.facts

    def push(self, key: Key, value: bool) -> None:
        """Go down a fork: from here on the condition has this value."""
        self.tell(key[1], key[2])
        self._solver.push()
        self._told.append(set())
        self._solver.add(self.formula(key, value))

    def pop(self) -> None:
        """Come back up from a fork."""
        self._solver.pop()
        self._told.pop()

    def check(self, formulas: Iterable[Any]) -> tuple[str, Any]:
        """Whether the formulas can hold on this path: "sat" with a model, "unsat" or "unknown"."""
        formulas = list(formulas)
        self.queries += 1
        answer = str(self._solver.check(*formulas))
        model = self._solver.model() if answer == "sat" else None
        if answer == "unknown":
            answer, model = self._afresh(formulas)
        if self.record is not None:
            self.record("path", lambda: self.script(formulas), answer)
        return answer, model

    def _afresh(self, formulas: Sequence[Any]) -> tuple[str, Any]:
        """``check`` once more, by solvers without a past, which often decide at once what was too hard before."""
        answer, solver = self._decide([*self._solver.assertions(), *formulas])
        if answer == "unknown":
            self.undecided += 1
        return answer, solver.model() if answer == "sat" else None

    def _decide(self, formulas: Sequence[Any]) -> tuple[str, Any]:
        """The answer of the first solver without a past that has one, with the solver."""
        for make in (z3.SimpleSolver, partial(z3.SolverFor, "QF_LIA")):
            solver = make()
            solver.set("rlimit", self._limits.resource * AFRESH)
            solver.set("timeout", HANG_MS * AFRESH)
            solver.add(*formulas)
            answer = str(solver.check())
            if answer != "unknown":
                break
        return answer, solver

    def script(self, formulas: Iterable[Any]) -> str:
        """The question of ``check`` as an SMT-LIB script."""
        self._solver.push()
        try:
            for formula in formulas:
                self._solver.add(formula)
            return f"(set-logic QF_LIA)\n{self._solver.to_smt2()}"
        finally:
            self._solver.pop()

    def left_over(self, covered: Any) -> str:
        """Whether an input can be outside of what was covered: "sat", "unsat" or "unknown"."""
        return left_over(self._of_its_own, covered_if(False, covered), self._at_gap)

    def follows_from_axioms(self, condition: SymBool) -> bool:
        """Whether a condition holds of all inputs within the bounds of the domain."""
        self.lemmas_about(condition.linear, condition.constant)
        return self._of_its_own([z3.Not(self.of(condition))]) == "unsat"

    def _of_its_own(self, formulas: Sequence[Any]) -> str:
        """``check`` without a path, by a solver of its own that knows every unknown."""
        solver = z3.SolverFor("QF_LIA")
        solver.set("rlimit", self._limits.resource * AT_ONCE)
        for meaning in self.meanings.values():
            solver.add(*meaning.facts)
        for lemmas in self._lemmas.values():
            solver.add(*lemmas)
        solver.add(*self._axioms, *formulas)
        return self._recorded(str(solver.check()), solver)

    def _at_gap(self, gap: Sequence[Any]) -> str:
        """``check`` of the conditions that lead to a gap, with what must be known of them and no more."""
        conditions = [*self._axioms, *gap]
        known: list[Any] = []
        told: list[set[Any]] = [set()]
        for condition in conditions:
            _, linear, constant = self._keys[_without_nots(condition).get_id()]
            known += self._known_of(linear, constant, told)
        return self._recorded(*self._decide([*known, *conditions]))

    def _recorded(self, answer: str, solver: Any) -> str:
        self.queries += 1
        if self.record is not None:
            self.record("coverage", lambda: f"(set-logic QF_LIA)\n{solver.to_smt2()}", answer)
        return answer


def _without_nots(condition: Any) -> Any:
    while z3.is_not(condition):
        condition = condition.arg(0)
    return condition
