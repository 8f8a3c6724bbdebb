"""The path explorer: runs plain functions on symbolic integers until every path through them was taken.

A run is repeated from its start with the decisions of the run before up to a fork, where it takes the other
side. Samples, plain numbers that satisfy all decisions so far, show that a side can be taken; Z3 is asked
only about sides that no sample took.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import z3

from spec.coverage import EXCLUDED, covered_if, left_over
from spec.lemmas import LemmaMaker, gap, lemmas, without
from spec.solver import NEW_ARITHMETIC, Key, Limits, Meaning, Solver
from spec.symbolic import Linear, SymbolicError, SymBool, SymInt, is_zero, simplified
from spec.unknowns import Sample, Unknown, Unknowns

GAP_LEMMAS = lemmas(gap)


class Outside(Exception):
    """The inputs of this path do not satisfy the premise."""


class Infeasible(Exception):
    """No input takes this path; it was entered because Z3 could not decide a fork before."""


class ExplorationError(Exception):
    """The exploration cannot be completed, so that it proves nothing."""


@dataclass(frozen=True)
class Raised:
    """The explored function raised on a path."""

    error: Exception


@dataclass
class Fork:
    """A decision on the path at hand; ``samples`` satisfy it and all before it."""

    key: Key
    value: bool
    forced: bool
    samples: list[Sample]
    pending: list[Sample] | None
    """The samples of the other side while that is still to be explored."""
    covered: Any = None
    """Which inputs the side that was explored first covers, as a Z3 formula."""


@dataclass
class Stats:
    """What an exploration took."""

    paths: int = 0
    outside: int = 0
    forks: int = 0


class Space:
    """Unknowns, a solver, and the path at hand."""

    def __init__(
        self, limits: Limits | None = None, lemmas: LemmaMaker = GAP_LEMMAS, arithmetic: int = NEW_ARITHMETIC
    ) -> None:
        self.limits = limits or Limits()
        self.unknowns = Unknowns()
        self.solver = Solver(self.unknowns.name, self.limits, lemmas, arithmetic)
        self.stats = Stats()
        self.samples: list[Sample] = []
        self.forks: list[Fork] = []
        self.repeat: Callable[[list[Any], SymInt], Any] | None = None
        self._position = 0
        self._base = 0
        self._lasting: list[tuple[Key, bool]] = []
        self._ranges: dict[Linear, tuple[int | None, int | None]] = {}
        self._unequal: set[Key] = set()
        self._axioms: list[SymBool] = []
        self._positive: dict[Key, bool] = {}
        self._computed: dict[Any, SymInt] = {}
        self._small: set[Any] = set()

    # Unknowns and what is known of them

    def integer(self, name: str, low: int | None = None, high: int | None = None) -> Any:
        """An input, an integer from ``low`` to ``high`` (None: unbounded); the number itself where both are equal."""
        if low is not None and low == high:
            return low
        number = self.unknowns.inputs.get(name)
        if number is None:
            return self._unknown(Unknown(name, low, high))
        return SymInt(self, {(number,): 1}, 0)

    def boolean(self, name: str) -> Any:
        """An input that is true or false."""
        return self.integer(name, 0, 1) >= 1

    def axiom(self, condition: Any) -> None:
        """Restrict the inputs for good: the bounds of a domain, never the premise of a claim."""
        if isinstance(condition, bool):
            if not condition:
                raise ExplorationError("an axiom of the domain is false")
            return
        self._axioms.append(condition)
        self.solver.axiom(condition)
        self._note(condition.key, not condition.negated)

    def size(self, value: Any) -> None:
        """Declare a positive size whose multiples the lemmas speak about, before anything else mentions it."""
        if isinstance(value, SymInt):
            self.solver.sizes.extend(value.terms.items())
            self.axiom(value >= 1)
        elif value > 1:
            self.solver.numbers.append(value)

    def remainder(self, value: Any, size: Any) -> None:
        """Declare that ``value`` lies in [0, size), so that ``value // size`` is 0."""
        self.axiom(value >= 0)
        self.axiom(value < size)
        self._small.add((key_of(value), key_of(size)))

    def _unknown(self, unknown: Unknown, depends: tuple[int, ...] = ()) -> SymInt:
        number = self.unknowns.add(unknown)
        term = self.solver.monomial((number,))
        facts = [] if unknown.low is None else [term >= unknown.low]
        facts += [] if unknown.high is None else [term <= unknown.high]
        self.solver.meanings[number] = Meaning(depends, facts)
        return SymInt(self, {(number,): 1}, 0)

    def _means(self, value: SymInt, *conditions: Any) -> None:
        """Add facts about a computed unknown, with the lemmas that they need."""
        facts = self.solver.meanings[next(iter(value.terms))[0]].facts
        for condition in conditions:
            if isinstance(condition, SymBool):
                facts.append(self.solver.of(condition))
                facts.extend(self.solver.lemmas_about(condition.linear, condition.constant))

    # Arithmetic beyond polynomials

    def divide(self, value: Any, unit: Any) -> Any:
        """``value // unit``: whole multiples are taken out exactly, the rest gets a quotient of its own."""
        if is_negative(unit):
            value, unit = -value, -unit
        self._prove_positive(unit)
        whole, rest = multiples(self, value, unit)
        low, high = self.unknowns.range_of(rest)
        if isinstance(unit, int) and low is not None and high is not None and low // unit == high // unit:
            return whole + low // unit
        if rest == 0 if isinstance(rest, int) else (key_of(rest), key_of(unit)) in self._small:
            return whole
        name = ("quotient", key_of(rest), key_of(unit))
        if name not in self._computed:
            bounds = (
                (low // unit if low is not None else None, high // unit if high is not None else None)
                if isinstance(unit, int)
                else (None, None)
            )
            quotient = self._unknown(
                Unknown(
                    f"q{len(self.unknowns.all)}",
                    *bounds,
                    lambda sample: self.value(rest, sample) // self.value(unit, sample),
                ),
                (*numbers(rest), *numbers(unit)),
            )
            self._means(quotient, quotient * unit <= rest, rest < quotient * unit + unit)
            self._computed[name] = quotient
        return whole + self._computed[name]

    def _prove_positive(self, unit: Any) -> None:
        positive = unit >= 1
        if isinstance(positive, SymBool):
            known = self._known(positive)
            positive = self._is_positive(positive) if known is None else known
        if not positive:
            raise SymbolicError(f"the divisor {unit!r} is not proved to be positive on this path")

    def _is_positive(self, positive: SymBool) -> bool:
        """Whether a divisor is proved to be positive: by the bounds of the domain, once for all, or on this path."""
        if positive.key not in self._positive:
            self._positive[positive.key] = self.solver.follows_from_axioms(positive)
        return self._positive[positive.key] or self._impossible(positive.key, not positive.negated)

    def merge(self, larger: bool, left: Any, right: Any) -> Any:
        """The larger (or smaller) of two values without a fork, as an unknown that is one of them and bounds both."""
        order = left >= right if larger else left <= right
        known = order if isinstance(order, bool) else self._known(order)
        if known is not None:
            return left if known else right
        name = ("merged", larger, key_of(left), key_of(right))
        if name not in self._computed:
            pick = max if larger else min
            ranges = zip(self.unknowns.range_of(left), self.unknowns.range_of(right), strict=True)
            low, high = (None if a is None or b is None else pick(a, b) for a, b in ranges)
            merged = self._unknown(
                Unknown(
                    f"m{len(self.unknowns.all)}",
                    low,
                    high,
                    lambda sample: pick(self.value(left, sample), self.value(right, sample)),
                ),
                (*numbers(left), *numbers(right)),
            )
            sides = (left, right)
            self._means(merged, *(merged >= side if larger else merged <= side for side in sides))
            equal = [is_zero(merged - side) for side in sides]
            self.solver.meanings[next(iter(merged.terms))[0]].facts.append(
                z3.Or([self.solver.of(item) for item in equal])
            )
            self._computed[name] = merged
        return self._computed[name]

    def repeated(self, items: list[Any], count: SymInt) -> Any:
        """``items * count`` for a symbolic count: only where masks are seen at one point, see ``spec.pointwise``."""
        if self.repeat is None:
            raise SymbolicError(f"the list {items!r} was repeated {count!r} times")
        return self.repeat(items, count)

    def value(self, value: Any, sample: Sample) -> int:
        """A value, or the truth of a condition, on plain numbers."""
        if isinstance(value, SymBool):
            return self.unknowns.holds(*value.key, sample) != value.negated
        return self.unknowns.value(value, sample)

    def text(self, value: SymInt) -> str:
        """A polynomial as text."""
        return self.unknowns.text(tuple(sorted(value.terms.items())), value.constant)

    def text_of(self, linear: Linear, constant: int) -> str:
        """A polynomial, given by its key, as text."""
        return self.unknowns.text(linear, constant)

    # What follows from the decisions so far without the solver

    def _note(self, key: Key, value: bool) -> None:
        kind, linear, constant = key
        low, high = self._range(linear)
        if kind == "le" and value:
            high = -constant if high is None else min(high, -constant)
        elif kind == "le":
            low = 1 - constant if low is None else max(low, 1 - constant)
        elif value:
            low = high = -constant
        else:
            self._unequal.add(key)
            low = low + 1 if low is not None and low == -constant else low
            high = high - 1 if high is not None and high == -constant else high
        self._ranges[linear] = (low, high)

    def _range(self, linear: Linear) -> tuple[int | None, int | None]:
        return self._ranges.get(linear) or self.unknowns.range_of(SymInt(self, dict(linear), 0))

    def _known(self, condition: SymBool) -> bool | None:
        kind, linear, constant = condition.key
        low, high = self._range(linear)
        below = high is not None and high < -constant
        above = low is not None and low > -constant
        value: bool | None = None
        if kind == "le" and (below or above or high == -constant):
            value = not above
        elif kind == "eq" and (below or above or condition.key in self._unequal):
            value = False
        elif kind == "eq" and low is not None and low == high:
            value = True
        return value if value is None else value != condition.negated

    # Decisions

    def decide(self, condition: SymBool) -> bool:
        """The truth of a condition on the path at hand; a fork where both sides can be taken."""
        known = self._known(condition)
        if known is not None:
            return known
        if self._position == len(self.forks):
            self._extend(condition.key)
        fork = self.forks[self._position]
        if fork.key != condition.key:
            raise ExplorationError(f"a repeated run met {condition!r} where the run before met another condition")
        self._position += 1
        self._note(fork.key, fork.value)
        return fork.value != condition.negated

    def _extend(self, key: Key) -> None:
        sides: dict[bool, list[Sample]] = {True: [], False: []}
        here = self.current_samples()
        for sample in here:
            sides[self.unknowns.holds(*key, sample)].append(sample)
        can = {side: bool(sides[side]) or not self._impossible(key, not side, sides[side]) for side in (True, False)}
        if len(here) < len(sides[True]) + len(sides[False]):
            # What Z3 found serves the explorations that come here later, too.
            here[:] = sides[True] + sides[False]
        if not any(can.values()):
            raise Infeasible
        value = can[True]
        both = all(can.values())
        if not both and all(fork.forced for fork in self.forks[self._base :]):
            self._lasting.append((key, value))
        self.forks.append(Fork(key, value, not both, sides[value], sides[not value] if both else None))
        if both:
            self.stats.forks += 1
            self.solver.push(key, value)

    def _impossible(self, key: Key, negated: bool, found: list[Sample] | None = None) -> bool:
        """Whether Z3 proves that a condition cannot hold here; a sample that shows that it can goes to ``found``."""
        self.solver.tell(key[1], key[2])
        answer, model = self.solver.check([self.solver.formula(key, not negated)])
        if answer == "sat" and found is not None:
            sample = self.sample_of(model)
            if self.follows(sample) and self.unknowns.holds(*key, sample) != negated:
                found.append(sample)
        return answer == "unsat"

    def sample_of(self, model: Any) -> Sample:
        return {
            number: model.eval(self.solver.monomial((number,)), model_completion=True).as_long()
            for number in self.unknowns.inputs.values()
        }

    def admits(self, sample: Sample) -> bool:
        """Whether plain inputs lie within the bounds and axioms of the space."""
        for number in self.unknowns.inputs.values():
            unknown = self.unknowns.all[number]
            value = sample.get(number, unknown.low or 0)
            if (unknown.low is not None and value < unknown.low) or (unknown.high is not None and value > unknown.high):
                return False
        return all(self.value(axiom, sample) for axiom in self._axioms)

    def follows(self, sample: Sample) -> bool:
        """Whether plain inputs take the path at hand (a model of the linear abstraction need not)."""
        return self.admits(sample) and all(self.unknowns.holds(*fork.key, sample) == fork.value for fork in self.forks)

    def current_samples(self) -> list[Sample]:
        """The samples that satisfy every decision so far."""
        return self.forks[self._position - 1].samples if self._position else self.samples

    # Exploration

    def explore(self, run: Callable[[], Any], at_end: Callable[[Any], None]) -> Any:
        """Take every path of ``run`` from the path at hand on; ``at_end`` gets each result while its path is at hand.

        Returns which inputs were covered, as ``spec.coverage`` has it. Explorations nest: ``at_end`` may explore.
        A function's exception becomes a ``Raised`` result. Raises ExplorationError where the paths pass the
        limit or a run is not repeatable, and SymbolicError where a symbolic value was used as a number.
        """
        base, ranges, unequal = self._position, dict(self._ranges), set(self._unequal)
        outer, self._base, self._lasting = (self._base, self._lasting), base, []
        while True:
            self._position, self._ranges, self._unequal = base, dict(ranges), set(unequal)
            covered = self._take(run, at_end)
            while len(self.forks) > base:
                fork = self.forks[-1]
                if fork.pending is not None:
                    self._turn(fork, covered)
                    break
                covered = self._covered(fork, covered)
                self.forks.pop()
                if not fork.forced:
                    self.solver.pop()
            else:
                self._position, self._ranges, self._unequal = base, ranges, unequal
                # What was found to hold on all of this path need not be asked again by the next exploration of it.
                for key, value in self._lasting:
                    self._note(key, value)
                self._base, self._lasting = outer
                return covered

    def _take(self, run: Callable[[], Any], at_end: Callable[[Any], None]) -> Any:
        try:
            result = run()
        except Outside:
            self.stats.outside += 1
            return z3.BoolVal(True)
        except Infeasible:
            return EXCLUDED
        except (SymbolicError, ExplorationError, z3.Z3Exception, MemoryError):
            raise
        except Exception as error:
            result = Raised(error)
        self.stats.paths += 1
        if self.stats.paths > self.limits.paths:
            raise ExplorationError(f"more than {self.limits.paths} paths")
        at_end(result)
        return z3.BoolVal(True)

    def _turn(self, fork: Fork, covered: Any) -> None:
        self.solver.pop()
        fork.covered = covered
        fork.value = not fork.value
        fork.samples = fork.pending or []
        fork.pending = None
        self.solver.push(fork.key, fork.value)

    def _covered(self, fork: Fork, covered: Any) -> Any:
        left_out = EXCLUDED if fork.forced else z3.BoolVal(False)
        other = left_out if fork.covered is None else fork.covered
        if z3.is_true(covered) and z3.is_true(other):
            return covered
        return z3.If(self.solver.formula(fork.key, fork.value), covered, other)

    def covers(self, covered: Any) -> bool:
        """Whether what an exploration from the path at hand has covered is all of that path.

        A side that Z3 excluded was excluded on its very path, and is not asked about again: Z3 forgets what it has
        learned with each path, and takes as long for the second answer as for the first.
        """
        return left_over(lambda formulas: self.solver.check(formulas)[0], covered_if(True, covered)) == "unsat"

    def find(self, condition: Any) -> tuple[str, Sample | None]:
        """Whether a condition can hold on the path at hand: "sat" with a sample, "unsat", or "unknown"."""
        if condition is False:
            return "unsat", None
        if condition is True:
            return ("sat", self.current_samples()[0]) if self.current_samples() else ("unknown", None)
        for sample in self.current_samples():
            if self.value(condition, sample):
                return "sat", sample
        found: list[Sample] = []
        if self._impossible(condition.key, condition.negated, found):
            return "unsat", None
        return ("sat", found[0]) if found else ("unknown", None)


def is_negative(unit: Any) -> bool:
    """Whether a divisor is written as the negative of a size."""
    return unit < 0 if isinstance(unit, int) else not unit.constant and all(f < 0 for f in unit.terms.values())


def key_of(value: Any) -> Any:
    """A value as something that can be a key of a dictionary."""
    return value if isinstance(value, int) else (tuple(sorted(value.terms.items())), value.constant)


def numbers(value: Any) -> tuple[int, ...]:
    """The numbers of the unknowns in a value."""
    if isinstance(value, int):
        return ()
    return tuple(dict.fromkeys(number for monomial in value.terms for number in monomial))


def multiples(space: Space, value: Any, unit: Any) -> tuple[Any, Any]:
    """``value`` as ``whole * unit + rest``, with all monomials that are multiples of ``unit`` in ``whole``."""
    if isinstance(value, int):
        return (value // unit, value % unit) if isinstance(unit, int) else (0, value)
    terms: dict[Any, int] = {}
    rest = dict(value.terms)
    constant = value.constant
    if isinstance(unit, int):
        for monomial, factor in value.terms.items():
            times = abs(factor) // unit * (1 if factor > 0 else -1)
            if times:
                terms[monomial] = times
                rest[monomial] = factor - times * unit
        whole = constant // unit
        return simplified(space, terms, whole), simplified(
            space, {m: f for m, f in rest.items() if f}, constant - whole * unit
        )
    if len(unit.terms) != 1 or unit.constant:
        return 0, value
    ((size, scale),) = unit.terms.items()
    whole = 0
    for monomial, factor in value.terms.items():
        quotient = without(monomial, size)
        if quotient is None or factor % scale:
            continue
        del rest[monomial]
        if quotient:
            terms[quotient] = factor // scale
        else:
            whole = factor // scale
    return simplified(space, terms, whole), simplified(space, rest, constant)
