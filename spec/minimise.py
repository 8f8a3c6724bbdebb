"""Small counterexamples: the least values, the most important first, that still take the path at hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import z3

from spec.space import Space
from spec.symbolic import SymBool
from spec.unknowns import Sample


def smaller(space: Space, measures: Sequence[Any], best: Sequence[int]) -> bool:
    """Whether some input on the path at hand is smaller than ``best``, compared number by number."""
    equal: list[Any] = []
    orders = []
    for measure, bound in zip(measures, best, strict=True):
        orders.append(z3.And(*equal, _formula(space, measure < bound)))
        equal.append(_formula(space, measure == bound))
    return space.solver.check([z3.Or(orders)])[0] == "sat"


def as_small(space: Space, measures: Sequence[Any], best: Sequence[int]) -> bool:
    """Whether an input on the path at hand is as small as ``best`` in the most important number."""
    return space.solver.check([_formula(space, measures[0] <= best[0])])[0] == "sat"


def others_as_small(space: Space, measures: Sequence[Any], best: Sequence[int]) -> bool:
    """Whether another input on the path at hand is as small as ``best`` in the most important number."""
    differs = [z3.Not(_formula(space, measure == bound)) for measure, bound in zip(measures, best, strict=True)]
    return space.solver.check([_formula(space, measures[0] <= best[0]), z3.Or(differs)])[0] == "sat"


def smallest(space: Space, measures: Sequence[Any]) -> Sample | None:
    """The smallest input on the path at hand; None where no plain numbers were found that take it."""
    samples = space.current_samples()
    sample = samples[0] if samples else _sample(space, [])
    if sample is None:
        return None
    fixed: list[Any] = []
    for measure in measures:
        low, high = 0, space.value(measure, sample)
        while low < high:
            middle = (low + high) // 2
            found = _sample(space, [*fixed, _formula(space, measure <= middle)])
            # Of a product the solver can be wrong: then nothing smaller is known.
            if found is None or space.value(measure, found) > middle:
                low = middle + 1
            else:
                sample, high = found, space.value(measure, found)
        fixed.append(_formula(space, measure <= high))
    return sample


def _sample(space: Space, formulas: Sequence[Any]) -> Sample | None:
    answer, model = space.solver.check(formulas)
    if answer != "sat":
        return None
    sample = space.sample_of(model)
    return sample if space.follows(sample) else None


def _formula(space: Space, condition: Any) -> Any:
    if not isinstance(condition, SymBool):
        return z3.BoolVal(bool(condition))
    space.solver.tell(condition.linear, condition.constant)
    return space.solver.of(condition)
