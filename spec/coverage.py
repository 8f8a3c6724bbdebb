"""Which inputs explorations have covered, and how to ask whether something is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import z3

Gap = tuple[Any, ...]
"""Conditions that together lead to where an exploration did not go."""

Check = Callable[[Sequence[Any]], str]
"""Whether formulas can hold together: "sat", "unsat" or "unknown"."""

EXCLUDED = z3.Bool("excluded")
"""Stands for a side that was not explored because Z3 had proved, on that very path, that no input takes it."""


def covered_if(excluded: bool, covered: Any) -> Any:
    """What was covered. ``excluded``: whether what Z3 had excluded counts, or is to be asked about again."""
    if covered.eq(EXCLUDED):
        return z3.BoolVal(excluded)
    if z3.is_true(covered) or z3.is_false(covered):
        return covered
    condition, holds, fails = covered.children()
    holds, fails = covered_if(excluded, holds), covered_if(excluded, fails)
    return holds if z3.is_true(holds) and z3.is_true(fails) else z3.If(condition, holds, fails)


def gaps(covered: Any, path: Gap = ()) -> Iterator[Gap]:
    """Where an exploration did not go. ``covered``: True, False, or by the sides of a fork."""
    if z3.is_false(covered):
        yield path
    elif not z3.is_true(covered):
        condition, holds, fails = covered.children()
        yield from gaps(holds, (*path, condition))
        yield from gaps(fails, (*path, z3.Not(condition)))


def left_over(check: Check, covered: Any, check_gap: Check | None = None) -> str:
    """Whether an input can be outside of what was covered: "sat", "unsat" or "unknown".

    One question about all of it is cheapest; where it is too hard, every gap is asked about by itself, by
    ``check_gap`` if there is one.
    """
    answer = "unsat" if z3.is_true(covered) else check([z3.Not(covered)])
    if answer == "unknown":
        answers = ((check_gap or check)(gap) for gap in gaps(covered))
        answer = next((answer for answer in answers if answer != "unsat"), "unsat")
    return answer
