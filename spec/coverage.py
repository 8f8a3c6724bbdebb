"""Which inputs explorations have covered, and how to ask whether something is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import z3

Gap = tuple[Any, ...]
"""Conditions that together lead to where an exploration did not go."""

Check = Callable[[Sequence[Any]], str]
"""Whether formulas can hold together: "sat", "unsat" or "unknown"."""


def gaps(covered: Any, path: Gap = ()) -> Iterator[Gap]:
    """The sides of forks that an exploration left out, for no input takes them.

    ``covered``: True, False, or "if the condition then the one side's, else the other's", as explorations return it.
    """
    if z3.is_false(covered):
        yield path
    elif not z3.is_true(covered):
        condition, holds, fails = covered.children()
        yield from gaps(holds, (*path, condition))
        yield from gaps(fails, (*path, z3.Not(condition)))


def left_over(check: Check, covered: Sequence[Any]) -> str:
    """Whether an input can be outside of what one of some explorations has covered: "sat", "unsat" or "unknown".

    One question about all of it is cheapest; where it is too hard, every gap is asked about by itself.
    """
    partly = [formula for formula in covered if not z3.is_true(formula)]
    answer = check([z3.Not(z3.And(partly))]) if partly else "unsat"
    if answer == "unknown":
        answers = (check(gap) for formula in partly for gap in gaps(formula))
        answer = next((answer for answer in answers if answer != "unsat"), "unsat")
    return answer
