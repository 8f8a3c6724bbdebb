"""What the solver is told about products and quotients is true, and something false would be noticed."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import z3
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from reference.policy import POLICIES
from spec.claim import Claim, Control
from spec.domains import Source
from spec.lemmas import Schema, cases, gap, lemmas, sharp_gap
from spec.prove import Prover, Subject
from spec.solver import Limits
from spec.space import Space
from spec.subjects import split_subject
from spec.symbolic import SymbolicError, SymBool, SymInt
from spec.task import with_fault, worst

SCHEMAS = (gap, sharp_gap)


def false_schema(size: Any, factor: Any, product: Any) -> Any:
    """Forgets that a factor can be 1 or -1."""
    return z3.Or(
        z3.And(factor == 0, product == 0),
        z3.And(factor >= 2, product >= 2 * size, product >= factor),
        z3.And(factor <= -2, product <= -2 * size, product <= factor),
    )


def broken_at(schema: Schema) -> list[tuple[int, int]]:
    """The small sizes and factors for which a schema is false, by plain evaluation."""
    return [
        (size, factor)
        for size in range(1, 13)
        for factor in range(-13, 14)
        if not z3.is_true(z3.simplify(schema(z3.IntVal(size), z3.IntVal(factor), z3.IntVal(size * factor))))
    ]


def answer_to_negation(schema: Schema) -> str:
    """Whether Z3, by its theory of products, finds a size and a factor for which a schema is false."""
    size, factor = z3.Ints("size factor")
    solver = z3.SolverFor("QF_NIA")
    solver.add(size >= 1, z3.Not(schema(size, factor, size * factor)))
    return str(solver.check())


# --- the lemmas -------------------------------------------------------------------------------------


@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_lemma_holds_for_all_small_numbers(schema: Schema) -> None:
    assert broken_at(schema) == []


@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_lemma_is_proved_by_z3s_own_theory_of_products(schema: Schema) -> None:
    assert answer_to_negation(schema) == "unsat"


def test_a_false_lemma_is_caught_by_both() -> None:
    assert broken_at(false_schema) == [(size, factor) for size in range(1, 13) for factor in (-1, 1)]
    assert answer_to_negation(false_schema) == "sat"


@pytest.mark.parametrize("schema", SCHEMAS)
@given(coefficients=st.lists(st.integers(-3, 3), min_size=4, max_size=4), values=st.data())
def test_every_instance_for_a_polynomial_is_true(
    schema: Schema, coefficients: list[int], values: st.DataObject
) -> None:
    """Over the monomials H, H*k, H*q and H*k*q, with the sizes H, k inside it, and 2*H."""
    numbers = [values.draw(st.integers(1, 5)), values.draw(st.integers(1, 5)), values.draw(st.integers(-5, 5))]
    monomials = [(0,), (0, 1), (0, 2), (0, 1, 2)]

    def plain(linear: Any, constant: int) -> Any:
        total = constant
        for monomial, factor in linear:
            product = factor
            for number in monomial:
                product *= numbers[number]
            total += product
        return z3.IntVal(total)

    linear = tuple(item for item in zip(monomials, coefficients, strict=True) if item[1])
    made = list(lemmas(schema)(linear, 0, [((0,), 1), ((1,), 1), ((0,), 2)], plain))
    assert all(z3.is_true(z3.simplify(lemma)) for lemma in made)
    assume(any(len(monomial) > 1 for monomial, _ in linear))
    assert made


def as_z3(linear: Any, constant: int) -> Any:
    """A polynomial over x, y and z."""
    unknowns = z3.Ints("x y z")
    return z3.Sum([z3.IntVal(constant), *(factor * unknowns[monomial[0]] for monomial, factor in linear)])


@given(coefficients=st.lists(st.sampled_from([-1648, -16, -1, 1, 3, 16, 32, 816, 84048]), min_size=3, max_size=3))
def test_a_case_split_leaves_no_number_out(coefficients: list[int]) -> None:
    """Proved for all values of the unknowns, and not only for small ones."""
    linear = tuple(((number,), factor) for number, factor in enumerate(coefficients))
    for split in cases(linear, 7, [84048, 1648, 816, 16], as_z3):
        solver = z3.Solver()
        solver.add(z3.Not(split))
        assert solver.check() == z3.unsat


def test_a_comparison_is_split_by_its_whole_multiples_largest_size_first() -> None:
    linear = (((0,), 1648), ((1,), 32), ((2,), 1))
    made = [split.arg(1).arg(0) for split in cases(linear, 1650, [1648, 16], as_z3)]
    assert [str(z3.simplify(count)) for count in made] == ["1 + x", "2*y"]
    assert not list(cases((((2,), 1),), 5, [1648, 16], as_z3))


# --- a false lemma in a proof -----------------------------------------------------------------------

NO_SAMPLES = Limits(samples=0)
"""Z3 alone decides what can happen, so that nothing saves a proof from what Z3 is told."""


def verdict(schema: Schema, subject: Subject, claim: Claim) -> str:
    """What comes out for a claim when the solver is told a schema."""
    space = Space(NO_SAMPLES, lemmas(schema))
    return worst(Prover(subject, [claim], NO_SAMPLES, space).prove().results[claim.id].values())


def only_zero(size: Any, factor: Any, product: Any) -> Any:
    """Wrong for all factors but 0."""
    return z3.And(factor == 0, product == 0)


@pytest.mark.parametrize("claim_id", ["S2", "S3", "S5", "S8"])
def test_a_grossly_false_lemma_makes_the_splits_controls_fail(claim_id: str) -> None:
    subject = split_subject(POLICIES["0.26.0"], "B", "plain", None)
    fault = with_fault(next(claim for claim in subject.claims if claim.id == claim_id))
    assert verdict(gap, subject, fault) == "refuted"
    assert verdict(only_zero, subject, fault) != "refuted"


def sized(source: Source) -> SimpleNamespace:
    """A number of tokens in whole blocks, and the block."""
    block = source.integer("B")
    source.size(block)
    return SimpleNamespace(block=block, tokens=block * source.integer("blocks", 0))


def test_a_control_at_one_block_notices_a_lemma_that_is_false_there() -> None:
    one_block = Claim(
        "tokens fill no block, or more than one",
        "S1",
        lambda case: not 1 <= case.tokens <= case.block,
        lambda case: case.tokens > case.block,
        "more than one block is full",
        Control("", lambda case: case),
    )
    subject = Subject(
        "whole blocks",
        (one_block,),
        sized,
        lambda inputs: inputs,
        lambda names: (),
        lambda case: ("all",),
        lambda inputs: (inputs.block, inputs.tokens),
        lambda random, number: iter(()),
    )
    assert verdict(gap, subject, one_block) == "refuted"
    assert verdict(sharp_gap, subject, one_block) == "refuted"
    assert verdict(false_schema, subject, one_block) != "refuted"


# --- arithmetic on symbolic integers ----------------------------------------------------------------

NUMBERS = st.integers(-60, 60)
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul,
}  # fmt: skip
DIVIDING: dict[str, Callable[[Any, Any], Any]] = {
    "//": operator.floordiv,
    "%": operator.mod,
    "rounded up": lambda left, right: -(left // -right),
    "rounded up, negated": lambda left, right: -(-left // right),
    "rest of a negative divisor": lambda left, right: left % -right,
    "floored": lambda left, right: left // right * right,
}
COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip


@dataclass(frozen=True)
class Expression:
    """An expression that can be evaluated on plain and on symbolic numbers."""

    text: str
    of: Callable[[dict[str, Any]], Any]


def leaves() -> st.SearchStrategy[Expression]:
    """Two inputs of any sign, two positive sizes, and constants."""
    inputs = st.sampled_from(["x", "y", "B", "k"]).map(lambda name: Expression(name, lambda inputs: inputs[name]))
    return inputs | NUMBERS.map(lambda number: Expression(str(number), lambda _: number))


def applied(name: str, function: Callable[[Any, Any], Any], left: Expression, right: Expression) -> Expression:
    return Expression(f"({left.text} {name} {right.text})", lambda inputs: function(left.of(inputs), right.of(inputs)))


def larger(inner: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    """Sums, differences and products of expressions, and divisions by sizes and numbers."""
    divisors = st.sampled_from(["B", "k", "B*k", "3", "16"]).map(
        lambda text: Expression(text, lambda inputs: eval(text, {}, inputs))
    )
    polynomial = st.builds(applied_of(BINARY), st.sampled_from(sorted(BINARY)), inner, inner)
    return polynomial | st.builds(applied_of(DIVIDING), st.sampled_from(sorted(DIVIDING)), inner, divisors)


def applied_of(table: dict[str, Callable[[Any, Any], Any]]) -> Callable[[str, Expression, Expression], Expression]:
    return lambda name, left, right: applied(name, table[name], left, right)


EXPRESSIONS = st.recursive(leaves(), larger, max_leaves=6)
ENVIRONMENTS = st.fixed_dictionaries({"x": NUMBERS, "y": NUMBERS, "B": st.integers(1, 20), "k": st.integers(1, 6)})


MANY = st.lists(ENVIRONMENTS, min_size=5, max_size=15)
"""An expression is made once, and evaluated on many numbers."""


def symbolic() -> tuple[Space, dict[str, Any]]:
    """A space with two inputs of any sign and two sizes, one of them nested."""
    space = Space()
    sizes = {name: space.integer(name) for name in ("B", "k")}
    for size in (*sizes.values(), sizes["B"] * sizes["k"]):
        space.size(size)
    return space, {**sizes, "x": space.integer("x"), "y": space.integer("y", -60, 60)}


def sample_of(space: Space, plain: dict[str, int]) -> dict[int, int]:
    return {space.unknowns.inputs[name]: value for name, value in plain.items()}


@settings(max_examples=500)
@given(expression=EXPRESSIONS, environments=MANY)
def test_symbolic_arithmetic_agrees_with_pythons(expression: Expression, environments: list[dict[str, int]]) -> None:
    space, unknowns = symbolic()
    value = expression.of(unknowns)
    for plain in environments:
        assert space.value(value, sample_of(space, plain)) == expression.of(plain)


@settings(max_examples=300)
@given(left=EXPRESSIONS, right=EXPRESSIONS, name=st.sampled_from(sorted(COMPARISONS)), environments=MANY)
def test_symbolic_comparisons_agree_with_pythons(
    left: Expression, right: Expression, name: str, environments: list[dict[str, int]]
) -> None:
    space, unknowns = symbolic()
    comparison = applied(name, COMPARISONS[name], left, right)
    condition = comparison.of(unknowns)
    assert isinstance(condition, SymBool | bool)
    for plain in environments:
        sample = sample_of(space, plain)
        assert space.value(condition, sample) == comparison.of(plain)
        assert space.value(condition == False, sample) != comparison.of(plain)  # noqa: E712


@settings(max_examples=200)
@given(expression=EXPRESSIONS, plain=ENVIRONMENTS)
def test_what_the_solver_is_told_of_an_expression_allows_its_value(
    expression: Expression, plain: dict[str, int]
) -> None:
    """The facts about quotients and products are true: on given inputs Z3 must find the value that Python finds."""
    space, unknowns = symbolic()
    value = expression.of(unknowns)
    assume(isinstance(value, SymInt))
    wanted = value == expression.of(plain)
    assume(isinstance(wanted, SymBool))
    space.solver.tell(wanted.linear, wanted.constant)
    given_inputs = [unknown == plain[name] for name, unknown in unknowns.items()]
    products = [
        space.solver.monomial(monomial) == z3.Product([space.solver.monomial((number,)) for number in monomial])
        for monomial in list(space.solver._monomials)
        if len(monomial) > 1
    ]
    conditions = [space.solver.of(condition) for condition in (*given_inputs, wanted)]
    assert space.solver.check([*conditions, *products])[0] == "sat"


@given(expression=EXPRESSIONS, plain=ENVIRONMENTS)
def test_divmod_gives_quotient_and_rest(expression: Expression, plain: dict[str, int]) -> None:
    space, unknowns = symbolic()
    value = expression.of(unknowns)
    assume(isinstance(value, SymInt))
    both = divmod(value, unknowns["B"])
    assert tuple(space.value(part, sample_of(space, plain)) for part in both) == divmod(
        expression.of(plain), plain["B"]
    )


@settings(max_examples=30)
@given(left=EXPRESSIONS)
def test_a_division_by_what_is_not_proved_positive_is_refused(left: Expression) -> None:
    _, unknowns = symbolic()
    with pytest.raises(SymbolicError, match="not proved to be positive"):
        left.of(unknowns) + unknowns["x"] // unknowns["y"]


def beyond(space: Space) -> bool:
    """Whether ``a`` blocks end before ``b`` blocks and ``more`` tokens do, and yet ``a`` is more than their blocks."""
    block, a, b, more = (space.integer(name) for name in ("B", "a", "b", "more"))
    return bool(block * a < block * b + more) and bool(a > b + more // block)


def test_a_comparison_of_counts_is_one_of_their_multiples(monkeypatch: pytest.MonkeyPatch) -> None:
    def found() -> set[bool]:
        space, results = Space(NO_SAMPLES), set[bool]()
        space.size(space.integer("B"))
        space.explore(lambda: beyond(space), results.add)
        return results

    assert found() == {False}
    monkeypatch.setattr("spec.solver.multiple", lambda linear, constant, size: (((99,), 1),))
    assert found() == {False, True}
