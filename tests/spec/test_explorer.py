"""The explorer takes every path, proves nothing that it did not see, and says so when it could not look."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count, product
from types import SimpleNamespace
from typing import Any

import pytest
import z3

from spec.claim import Claim, Control, always
from spec.coverage import EXCLUDED, left_over
from spec.prove import Prover, Report, Result, Subject
from spec.solver import Limits, Solver
from spec.space import Fork, Outside, Space
from spec.symbolic import SymbolicError, SymInt
from spec.unknowns import Sample

Bounds = Mapping[str, tuple[int | None, int | None]]

ALONE = Limits(samples=0)
"""No samples to begin with, so that Z3 decides every fork."""


@dataclass
class Path:
    """One path: what decides that an input takes it, and what the function gives on it."""

    decisions: list[Fork]
    result: Any


def taken(run: Callable[..., Any], bounds: Bounds) -> tuple[Space, list[Path], Any]:
    """All paths of a function of unknowns within bounds, and the formula of what they cover."""
    space = Space(ALONE)
    unknowns = {name: space.integer(name, *ends) for name, ends in bounds.items()}
    paths: list[Path] = []
    covered = space.explore(
        lambda: run(**unknowns),
        lambda result: paths.append(Path([Fork(fork.key, fork.value, True, [], None) for fork in space.forks], result)),
    )
    return space, paths, covered


def takes(space: Space, path: Path, sample: Sample) -> bool:
    return all(space.unknowns.holds(*fork.key, sample) == fork.value for fork in path.decisions)


def claim(predicate: Callable[[Any], Any], **parts: Any) -> Claim:
    """A claim about the case of a small subject."""
    named = {"event": always, "event_text": "anything happens", "control": Control("", lambda case: case)}
    return Claim("it holds", "S1", predicate, **{**named, **parts})


def subject(
    run: Callable[..., Any],
    made: Claim,
    bounds: Bounds,
    examples: tuple[dict[str, int], ...] = (),
    lies: Mapping[str, Any] | None = None,
    regime: Callable[[Any], tuple[str, ...]] = lambda case: ("all",),
) -> Subject:
    """A small subject: ``run`` gives the case of inputs; with ``lies`` it gets them in place of builtins."""
    return Subject(
        "a small function",
        (made,),
        lambda source: SimpleNamespace(**{name: source.integer(name, *ends) for name, ends in bounds.items()}),
        run,
        lambda names: (names,) if lies else (),
        regime,
        lambda inputs: tuple(vars(inputs).values()),
        lambda random, number: iter(examples),
        builtins=(lambda space: lies) if lies else None,
    )


def report(made: Subject, limits: Limits = ALONE) -> Report:
    return Prover(made, made.claims, limits).prove()


def outcome(made: Subject, limits: Limits = ALONE) -> Result:
    """The result of the only claim in the only regime."""
    (results,) = report(made, limits).results.values()
    (result,) = results.values()
    return result


def itself(inputs: Any) -> Any:
    return inputs


SMALL: Bounds = {"x": (0, 9), "y": (0, 9)}
FREE: Bounds = {"x": (0, None), "y": (0, None)}
THREE: Bounds = {**FREE, "z": (0, None)}


# --- every path is taken ----------------------------------------------------------------------------


def three_ways(x: Any, y: Any) -> str:
    if x < 3:
        return "low"
    return "five" if x == 5 else "high"


def corners(x: Any, y: Any) -> Any:
    if x < y and y - x != 2:
        return (x + 2 * y) // 3
    return x % 4 if x + y >= 7 or x * 3 == y else max(x, y) - min(x, y)


def nothing_to_decide(x: Any, y: Any) -> Any:
    return 2 * x if x >= 0 and x + y >= x else -1


def asks_twice(x: Any, y: Any) -> tuple[bool, bool, bool]:
    return bool(x < y), bool(2 * y > 2 * x), bool(not (y <= x))


@pytest.mark.parametrize(
    ("function", "paths"), [(three_ways, 3), (corners, 8), (nothing_to_decide, 1), (asks_twice, 2)]
)
def test_each_input_takes_exactly_one_path_and_gets_its_result(function: Callable[..., Any], paths: int) -> None:
    space, found, _ = taken(function, SMALL)
    assert space.stats.paths == len(found) == paths
    for values in product(range(10), repeat=2):
        plain = dict(zip(("x", "y"), values, strict=True))
        sample = {space.unknowns.inputs[name]: value for name, value in plain.items()}
        (path,) = [path for path in found if takes(space, path, sample)]
        result = space.value(path.result, sample) if isinstance(path.result, SymInt) else path.result
        assert result == function(**plain)


@pytest.mark.parametrize("function", [three_ways, corners, nothing_to_decide])
def test_the_paths_cover_the_premise(function: Callable[..., Any]) -> None:
    space, _, covered = taken(function, SMALL)
    assert space.solver.left_over(covered) == "unsat"


def a_gap(x: Any) -> Any:
    """What an exploration covered that took one fork fully, and of the other only the side where ``x`` is above 3."""
    return z3.If(x <= 5, z3.If(x <= 3, z3.BoolVal(False), z3.BoolVal(True)), z3.BoolVal(True))


@pytest.mark.parametrize(("bound", "answer"), [(4, "unsat"), (3, "sat")])
def test_what_is_too_hard_at_once_is_asked_gap_by_gap(bound: int, answer: str) -> None:
    x = z3.Int("x")
    asked = []

    def check(formulas: Any) -> str:
        asked.append(formulas)
        solver = z3.Solver()
        solver.add(x >= bound, *formulas)
        return "unknown" if len(asked) == 1 else str(solver.check())

    assert left_over(check, a_gap(x)) == answer
    assert [len(formulas) for formulas in asked] == [1, 2]


@pytest.mark.parametrize("function", [three_ways, corners])
def test_gap_by_gap_the_same_is_found(monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any]) -> None:
    space, _, covered = taken(function, SMALL)
    monkeypatch.setattr(Solver, "_of_its_own", lambda self, formulas: "unknown")
    assert space.solver.left_over(covered) == "unsat"


def test_a_gap_is_asked_about_with_what_is_known_of_its_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Solver, "_of_its_own", lambda self, formulas: "unknown")
    space = Space(ALONE)
    size, x = space.integer("size"), space.integer("x", 0, 9)
    space.size(size)
    for impossible in (x * size <= -1, size <= 0):
        assert space.solver.left_over(z3.If(space.solver.of(impossible), EXCLUDED, z3.BoolVal(True))) == "unsat"
    possible = z3.If(space.solver.of(x * size <= 0), EXCLUDED, z3.BoolVal(True))
    assert space.solver.left_over(possible) == "sat"


def test_what_z3_excluded_is_asked_again_once_for_all_paths() -> None:
    """Of a predicate's paths it counts as covered; the paths of the subject are shown to be all inputs without it."""
    space = Space(ALONE)
    x = space.integer("x", 0, 9)
    wrongly_excluded = z3.If(space.solver.of(x <= 3), EXCLUDED, z3.BoolVal(True))
    assert space.covers(wrongly_excluded)
    assert space.solver.left_over(wrongly_excluded) == "sat"
    dropped = z3.If(space.solver.of(x <= 3), z3.BoolVal(False), z3.BoolVal(True))
    assert not space.covers(dropped)


def test_a_gap_that_cannot_be_decided_stays_open() -> None:
    assert left_over(lambda formulas: "unknown", a_gap(z3.Int("x"))) == "unknown"
    assert left_over(lambda formulas: "unknown", z3.BoolVal(True)) == "unsat"


def test_a_question_that_is_too_hard_is_put_to_solvers_without_a_past(monkeypatch: pytest.MonkeyPatch) -> None:
    space = Space(ALONE)
    x, y, z = (space.integer(name, 0, 9) for name in "xyz")
    space.axiom(x <= y)
    space.axiom(y <= z)
    monkeypatch.setattr(space.solver._solver, "check", lambda *_: z3.unknown)
    assert (space.find(z < x), space.solver.undecided) == (("unsat", None), 0)
    assert space.find(x < z)[0] == "sat"
    for name in ("SimpleSolver", "SolverFor"):
        monkeypatch.setattr(f"spec.solver.z3.{name}", lambda *_: NeverDecides())
    assert (space.find(z < x), space.solver.undecided) == (("unknown", None), 1)


class NeverDecides:
    """A solver for which every question is too hard."""

    def set(self, *_: Any) -> None:
        """Limits are all the same to it."""

    add = set

    def check(self) -> Any:
        """It gives up."""
        return z3.unknown


def test_inputs_outside_of_the_premise_give_no_result() -> None:
    def odd_ones_are_outside(x: Any, y: Any) -> Any:
        if x % 2 == 1:
            raise Outside
        return x

    space, found, covered = taken(odd_ones_are_outside, SMALL)
    assert (len(found), space.stats.outside) == (1, 1)
    assert space.solver.left_over(covered) == "unsat"


def test_explorations_nest() -> None:
    space = Space(ALONE)
    x, y = space.integer("x", 0, 9), space.integer("y", 0, 9)
    found = []

    def inner(outer: bool) -> None:
        space.explore(lambda: bool(y < x), lambda result: found.append((outer, result)))

    space.explore(lambda: bool(x < 1), inner)
    assert sorted(found) == [(False, False), (False, True), (True, False)]


# --- a symbolic value is no plain number ------------------------------------------------------------

AS_PLAIN: dict[str, Callable[[Any], Any]] = {
    "index": lambda x: [1, 2, 3][x],
    "range": range,
    "int": int,
    "float": float,
    "complex": complex,
    "hash": hash,
    "member of a set": lambda x: x in {1, 2},
    "round": round,
    "trunc": math.trunc,
    "true division": lambda x: x / 2,
    "true division by it": lambda x: 2 / x,
    "power": lambda x: x**2,
    "exponent": lambda x: 2**x,
    "shift": lambda x: x << 1,
    "bits": lambda x: x & 1,
    "list of unknown length": lambda x: [0] * x,
}


@pytest.mark.parametrize("use", AS_PLAIN.values(), ids=AS_PLAIN.keys())
def test_a_symbolic_integer_used_as_a_plain_number_ends_the_proof(use: Callable[[Any], Any]) -> None:
    with pytest.raises(SymbolicError):
        use(Space().integer("x", 0, 2))
    used = subject(lambda inputs: use(inputs.x), claim(always), {"x": (0, 2)})
    assert outcome(used).verdict == "unknown"


@pytest.mark.parametrize("use", [int, hash, lambda truth: truth + 1, lambda truth: 3 * truth, lambda truth: [0][truth]])
def test_a_condition_used_as_a_plain_number_ends_the_proof(use: Callable[[Any], Any]) -> None:
    with pytest.raises(SymbolicError):
        use(Space().integer("x", 0, 2) < 1)


# --- exceptions -------------------------------------------------------------------------------------


def raising(error: Exception) -> Callable[[Any], Any]:
    """A function that raises at x = 7."""

    def run(inputs: Any) -> Any:
        if inputs.x == 7:
            raise error
        return inputs

    return run


ERRORS = (
    ValueError("seven"),
    AssertionError("seven"),
    KeyError("seven"),
    ZeroDivisionError("seven"),
    *(error for error in (RuntimeError("seven"), AttributeError("seven"), StopIteration("seven"))),
)


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_an_exception_on_one_path_refutes_and_is_replayed(error: Exception) -> None:
    made = subject(raising(error), claim(always), FREE)
    result = outcome_of(report(made), ("all",))
    assert (result.verdict, result.counterexample) == ("refuted", {"x": 7, "y": 0})
    assert repr(error) in result.reason
    with pytest.raises(type(error), match="seven"):
        made.run(SimpleNamespace(**(result.counterexample or {})))


def outcome_of(made: Report, regime: tuple[str, ...]) -> Result:
    (results,) = made.results.values()
    return results[regime]


def test_an_exception_in_a_predicate_refutes() -> None:
    result = outcome(subject(itself, claim(raising(ValueError())), FREE))
    assert (result.verdict, result.counterexample) == ("refuted", {"x": 7, "y": 0})


def test_an_exception_elsewhere_leaves_a_counterexample_as_it_is() -> None:
    def raises_at_nine(case: Any) -> Any:
        if case.x == 9:
            raise ZeroDivisionError
        return case.x < 5

    result = outcome(subject(itself, claim(raises_at_nine), SMALL))
    assert (result.verdict, result.counterexample) == ("refuted", {"x": 5, "y": 0})


def test_an_exception_where_no_input_comes_is_none() -> None:
    def raises_nowhere(inputs: Any) -> Any:
        if inputs.x < inputs.y and inputs.y < inputs.x:
            raise ValueError
        return inputs

    assert outcome(subject(raises_nowhere, claim(always), FREE)).verdict == "proved"


def test_an_exception_that_plain_numbers_do_not_raise_is_spurious() -> None:
    result = outcome(subject(lambda inputs: inputs.x.bit_length(), claim(always), FREE))
    assert result.verdict == "unknown"
    assert "spurious" in result.reason


# --- what the solver cannot decide ------------------------------------------------------------------


def between(inputs: Any) -> bool:
    """True, and only Z3 sees that: no three numbers are each below the next, all around."""
    return not (inputs.x < inputs.y and inputs.y < inputs.z and inputs.z < inputs.x)


def unequal(inputs: Any) -> Any:
    return inputs.x + inputs.y != 13


def clueless(solver: Solver, formulas: Any) -> tuple[str, Any]:
    """A solver that decides nothing."""
    solver.undecided += 1
    return "unknown", None


@pytest.mark.parametrize("examples", [(), ({"x": 1, "y": 2, "z": 3}, {"x": 2, "y": 1, "z": 0})])
def test_an_undecided_fork_is_taken_both_ways_and_proves_nothing(
    examples: tuple[dict[str, int], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = subject(itself, claim(between), THREE, examples)
    monkeypatch.setattr(Solver, "check", clueless)
    result = outcome(made)
    assert (result.verdict, result.reason) == ("unknown", "Z3 cannot exclude a path, and no numbers take it")


def test_a_decided_fork_proves_the_same_claim() -> None:
    assert outcome(subject(itself, claim(between), THREE, ({"x": 1, "y": 2, "z": 3},)), Limits(samples=9)).verdict == (
        "proved"
    )


def test_an_undecided_fork_does_not_hide_a_counterexample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Solver, "check", clueless)
    result = outcome(subject(itself, claim(unequal), FREE, ({"x": 1, "y": 1}, {"x": 9, "y": 4})))
    assert (result.verdict, result.counterexample) == ("refuted", {"x": 9, "y": 4})


def test_an_undecided_fork_leaves_a_proof_whole_where_the_claim_holds_on_both_sides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def either(inputs: Any) -> bool:
        return bool(inputs.x < inputs.y or inputs.x + 1 > inputs.y)

    def forks_first(inputs: Any) -> Any:
        return inputs if inputs.x <= 2 * inputs.y else SimpleNamespace(x=inputs.x, y=inputs.y)

    monkeypatch.setattr(Solver, "check", clueless)
    made = report(subject(forks_first, claim(either), FREE, EXAMPLES))
    assert made.paths > 2
    assert made.undecided
    assert outcome_of(made, ("all",)).verdict == "proved"


EXAMPLES = ({"x": 3, "y": 5}, {"x": 5, "y": 1})


def test_a_solver_without_resources_proves_nothing() -> None:
    assert outcome(subject(itself, claim(between), THREE), Limits(resource=1, samples=0)).verdict == "unknown"


# --- explorations that cannot be completed ----------------------------------------------------------


def test_a_function_with_hidden_state_proves_nothing() -> None:
    calls = count()

    def remembers(inputs: Any) -> Any:
        return inputs if inputs.x < 3 + next(calls) else None

    made = report(subject(remembers, claim(always), FREE))
    assert "met another condition" in made.problem
    assert outcome_of(made, ("all",)).verdict == "unknown"


def test_a_divisor_that_can_be_zero_proves_nothing() -> None:
    made = report(subject(lambda inputs: inputs.x // inputs.y, claim(always), FREE))
    assert "not proved to be positive" in made.problem
    assert outcome_of(made, ("all",)).verdict == "unknown"


def test_a_divisor_is_fine_where_the_path_makes_it_positive() -> None:
    def guarded(inputs: Any) -> Any:
        return inputs.x // inputs.y if inputs.y >= 1 else inputs.x

    assert outcome(subject(guarded, claim(always), SMALL)).verdict == "proved"


@pytest.mark.parametrize(("limit", "verdict"), [(20, "proved"), (19, "unknown")])
def test_more_paths_than_allowed_prove_nothing(limit: int, verdict: str) -> None:
    """Ten paths of the function, and one of the predicate on each."""
    made = subject(ten_ways, claim(always), {"x": (0, 9)})
    assert outcome(made, Limits(paths=limit, samples=0)).verdict == verdict


def ten_ways(inputs: Any) -> Any:
    return next(number for number in range(10) if inputs.x == number)


def test_the_search_for_witnesses_has_the_same_limit_for_itself() -> None:
    rare = claim(always, event=lambda case: 7 * case.x == 11 * case.y + 123_456)
    assert outcome(subject(two_ways, rare, FREE, EXAMPLES), Limits(paths=4, samples=9)).verdict == "proved"


def two_ways(inputs: Any) -> Any:
    return SimpleNamespace(x=inputs.x, y=inputs.y, low=bool(inputs.x < 5))


def test_a_dropped_side_of_a_fork_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    extend = Space._extend

    def drop(space: Space, key: Any) -> None:
        extend(space, key)
        space.forks[-1].pending = None

    made = subject(lambda inputs: three_ways(**vars(inputs)), claim(always), FREE)
    assert report(made).covered == "all inputs"
    monkeypatch.setattr(Space, "_extend", drop)
    dropped = report(made)
    assert dropped.covered == "not shown to be all inputs (sat)"
    assert outcome_of(dropped, ("all",)).verdict == "unknown"


def test_a_dropped_side_of_a_fork_in_a_predicate_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    extend = Space._extend

    def drop(space: Space, key: Any) -> None:
        extend(space, key)
        space.forks[-1].pending = None

    monkeypatch.setattr(Space, "_extend", drop)
    assert outcome(subject(itself, claim(lambda case: case.x <= 6), FREE)).verdict == "unknown"


def test_a_side_that_is_wrongly_thought_impossible_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Solver, "check", lambda solver, formulas: ("unsat", None))
    made = subject(lambda inputs: three_ways(**vars(inputs)), claim(always), FREE, ({"x": 8},))
    assert outcome(made).verdict == "unknown"


# --- a path and its replay --------------------------------------------------------------------------


def larger(names: Mapping[str, Any], inputs: Any = None) -> Any:
    if inputs is None:
        names, inputs = {}, names
    return SimpleNamespace(granted=names.get("max", max)(inputs.x, inputs.y))


def replayed(lie: Callable[[Any, Any], Any]) -> Report:
    """The larger of two numbers, under a stand-in for ``max`` that plain numbers do not get."""
    return report(
        subject(larger, claim(lambda case: case.granted >= 0), FREE, EXAMPLES, {"max": lie}), Limits(samples=9)
    )


def test_a_run_that_differs_from_its_replay_proves_nothing() -> None:
    assert replayed(lambda x, y: x if x >= y else y).problem == ""
    lied = replayed(lambda x, y: x)
    assert lied.problem == "a path and its replay on plain numbers differ"
    assert outcome_of(lied, ("all",)).verdict == "unknown"


def test_a_run_that_leaves_the_premise_only_in_its_replay_proves_nothing() -> None:
    def not_for_plain_numbers(names: Mapping[str, Any]) -> Any:
        if not names:
            raise Outside
        return SimpleNamespace(granted=0)

    made = subject(lambda names, inputs: not_for_plain_numbers(names), claim(always), FREE, EXAMPLES, {"max": max})
    lied = report(made, Limits(samples=9))
    assert lied.problem == "a sample of a path is outside of the premise on plain numbers"
    assert outcome_of(lied, ("all",)).verdict == "unknown"


# --- vacuous claims ---------------------------------------------------------------------------------


def nowhere(inputs: Any) -> Any:
    return inputs.x < inputs.y and inputs.y < inputs.x


def outside(_: Any) -> Any:
    raise Outside


VACUOUS: dict[str, Subject] = {
    "the claim's premise holds nowhere": subject(itself, claim(always, premise=nowhere), FREE),
    "the subject's premise holds nowhere": subject(outside, claim(always), FREE),
    "the claim's event happens nowhere": subject(itself, claim(always, event=nowhere), FREE),
    "the domain has no inputs": subject(itself, claim(always), {"x": (5, 4), "y": (0, None)}),
    "a false claim's premise holds nowhere": subject(itself, claim(unequal, premise=nowhere), FREE),
}


@pytest.mark.parametrize("made", VACUOUS.values(), ids=VACUOUS.keys())
@pytest.mark.parametrize("examples", [(), EXAMPLES])
def test_a_claim_about_nothing_is_vacuous(made: Subject, examples: tuple[dict[str, int], ...]) -> None:
    assert outcome(replaced(made, examples), Limits(samples=9)).verdict == "vacuous"


def replaced(made: Subject, examples: tuple[dict[str, int], ...]) -> Subject:
    def again(_: Any, __: int) -> Iterator[dict[str, int]]:
        return iter(examples)

    return Subject(**{**vars(made), "examples": again})


def test_a_rare_event_is_found_and_shown() -> None:
    rare = claim(always, event=lambda case: 7 * case.x == 11 * case.y + 123_456)
    result = outcome(subject(itself, rare, FREE, EXAMPLES), Limits(samples=9))
    assert result.verdict == "proved"
    witness = result.witness or {}
    assert 7 * witness["x"] == 11 * witness["y"] + 123_456


# --- counterexamples --------------------------------------------------------------------------------


@pytest.mark.parametrize("examples", [(), ({"x": 900, "y": 77},)])
def test_a_false_claim_is_refuted_with_the_smallest_numbers(examples: tuple[dict[str, int], ...]) -> None:
    made = claim(lambda case: case.x < 5 or case.y % 3 != 2 or case.y < 4)
    result = outcome(subject(itself, made, FREE, examples), Limits(samples=9))
    assert (result.verdict, result.counterexample) == ("refuted", {"x": 5, "y": 5})


def test_the_smallest_is_found_over_all_paths() -> None:
    def by_paths(inputs: Any) -> Any:
        return SimpleNamespace(x=inputs.x, limit=40 if inputs.y == 0 else 30 if inputs.y == 1 else 20)

    result = outcome(subject(by_paths, claim(lambda case: case.x < case.limit), FREE))
    assert result.counterexample == {"x": 20, "y": 2}


def limited(at_zero: int, at_one: int) -> Subject:
    """Numbers below a limit that depends on the path."""

    def by_paths(inputs: Any) -> Any:
        return SimpleNamespace(x=inputs.x, limit=at_one if inputs.y == 1 else at_zero)

    return subject(by_paths, claim(lambda case: case.x < case.limit), {"x": (0, None), "y": (0, 1)})


def test_a_counterexample_is_unique_where_all_others_are_larger() -> None:
    assert outcome(limited(20, 30)).unique
    assert outcome(limited(20, 10)).unique


SEEN_LATE = "only paths after that of the counterexample are compared with it"


def test_a_counterexample_is_not_unique_where_another_path_has_one_as_small() -> None:
    assert not outcome(limited(20, 20)).unique


def test_a_counterexample_is_not_unique_where_its_own_path_has_another_as_small() -> None:
    assert not outcome(subject(itself, claim(lambda case: case.x < 5), FREE)).unique


def in_two_regimes(examples: tuple[dict[str, int], ...]) -> Report:
    """A claim that is false in one of its two regimes only."""
    made = claim(lambda case: case.x < 4 or case.y < 3)
    return report(
        subject(itself, made, SMALL, examples, regime=lambda case: ("low",) if case.y < 3 else ("high",)),
        Limits(samples=9),
    )


def test_each_regime_has_its_own_verdict() -> None:
    made = in_two_regimes(({"x": 1, "y": 1}, {"x": 1, "y": 9}))
    assert outcome_of(made, ("low",)).verdict == "proved"
    assert outcome_of(made, ("high",)).counterexample == {"x": 4, "y": 3}


@pytest.mark.xfail(raises=KeyError, reason="regimes are known from samples and counterexamples only", strict=True)
def test_a_regime_that_no_sample_shows_has_its_verdict() -> None:
    made = in_two_regimes(({"x": 1, "y": 9},))
    assert outcome_of(made, ("low",)).verdict == "proved"
