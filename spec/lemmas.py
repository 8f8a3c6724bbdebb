"""True facts about products, given to a solver that takes every product for an unknown of its own.

Gap lemma. For a size D >= 1 and an integer U: U = 0 and D*U = 0, or U >= 1 and D*U >= D and D*U >= U, or
U <= -1 and D*U <= -D and D*U <= U. One instance per comparison is enough where counts of tokens are entered
as quotients and remainders. The sharp gap lemma also says what D*U is for U = 1 and U = -1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import z3

from spec.symbolic import Linear, Monomial

Term = Callable[[Linear, int], Any]
"""Makes the Z3 term of a polynomial from its monomials and constant."""

Schema = Callable[[Any, Any, Any], Any]
"""A fact about a size, a factor and their product."""

Size = tuple[Monomial, int]
"""A product of unknowns and a number, together at least 1."""

LemmaMaker = Callable[[Linear, int, Sequence[Size], Term], Iterator[Any]]


def gap(size: Any, factor: Any, product: Any) -> Any:
    """The gap lemma about ``product`` = ``size * factor``."""
    return z3.Or(
        z3.And(factor == 0, product == 0),
        z3.And(factor >= 1, product >= size, product >= factor),
        z3.And(factor <= -1, product <= -size, product <= factor),
    )


def sharp_gap(size: Any, factor: Any, product: Any) -> Any:
    """The sharp gap lemma: more cases for the solver, needed where a size is itself a product."""
    return z3.Or(
        z3.And(factor == 0, product == 0),
        z3.And(factor == 1, product == size),
        z3.And(factor == -1, product == -size),
        z3.And(factor >= 2, product >= 2 * size, product >= factor),
        z3.And(factor <= -2, product <= -2 * size, product <= factor),
    )


def lemmas(schema: Schema) -> LemmaMaker:
    """Makes a schema's instances for a polynomial: on the multiples of each size in it, and inside their factor."""

    def about(linear: Linear, constant: int, sizes: Sequence[Size], term: Term) -> Iterator[Any]:
        for number, (size, scale) in enumerate(sizes):
            inner: dict[Monomial, int] = {}
            for monomial, coefficient in linear:
                quotient = without(monomial, size)
                if quotient is not None and coefficient % scale == 0:
                    inner[quotient] = coefficient // scale
            whole = inner.pop((), 0)
            if inner:
                factor = tuple(sorted(inner.items()))
                product = {tuple(sorted(monomial + size)): coefficient * scale for monomial, coefficient in factor}
                product |= {size: whole * scale} if whole else {}
                yield schema(term(((size, scale),), 0), term(factor, whole), term(tuple(sorted(product.items())), 0))
                yield from about(factor, whole, sizes[number + 1 :], term)

    return about


def cases(linear: Linear, constant: int, numbers: Sequence[int], term: Term) -> Iterator[Any]:
    """Case splits, true of all integers, on how many whole ``numbers`` (sizes, largest first) a polynomial holds.

    A comparison of ``n * many + few`` is decided by ``many`` but where that is close to 0. Z3, which does not see it,
    cuts for minutes where n is large.
    """
    left = dict(linear)
    for number in numbers:
        many = tuple((monomial, factor // number) for monomial, factor in sorted(left.items()) if factor % number == 0)
        if not many or many == linear:
            continue
        whole = (constant + number // 2) // number
        count = term(many, whole)
        yield z3.Or(count <= -2, count == -1, count == 0, count == 1, count >= 2)
        left = {monomial: factor for monomial, factor in left.items() if factor % number}
        constant -= whole * number


def multiple(linear: Linear, constant: int, size: Size) -> Linear:
    """A polynomial times a size."""
    monomial, scale = size
    terms = {tuple(sorted(one + monomial)): factor * scale for one, factor in linear}
    if constant:
        terms[monomial] = constant * scale
    return tuple(sorted(terms.items()))


def without(monomial: Monomial, size: Monomial) -> Monomial | None:
    """``monomial`` divided by ``size``, None where it is no multiple."""
    left = list(monomial)
    for number in size:
        if number not in left:
            return None
        left.remove(number)
    return tuple(left)
