"""The unknowns of an exploration: inputs, and values that are computed from them (quotients, maxima)."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from spec.symbolic import Linear

Sample = dict[int, int]
"""Plain values of the unknowns, by number. Computed ones are filled in when first asked for."""


@dataclass(frozen=True)
class Unknown:
    """``low`` and ``high``: bounds, None for none. ``compute``: its value from others; None for an input."""

    name: str
    low: int | None
    high: int | None
    compute: Callable[[Sample], int] | None = None


class Unknowns:
    """All unknowns, by number, and their values on plain samples."""

    def __init__(self) -> None:
        self.all: list[Unknown] = []
        self.inputs: dict[str, int] = {}

    def add(self, unknown: Unknown) -> int:
        """The number of a new unknown."""
        self.all.append(unknown)
        if unknown.compute is None:
            self.inputs[unknown.name] = len(self.all) - 1
        return len(self.all) - 1

    def name(self, number: int) -> str:
        """The name of an unknown."""
        return self.all[number].name

    def range_of(self, value: Any) -> tuple[int | None, int | None]:
        """Bounds on a value that follow from those of its unknowns; None where there are none."""
        if isinstance(value, int):
            return value, value
        low: int | None = value.constant
        high: int | None = value.constant
        for monomial, factor in value.terms.items():
            if len(monomial) != 1:
                return None, None
            unknown = self.all[monomial[0]]
            least, most = (unknown.low, unknown.high) if factor > 0 else (unknown.high, unknown.low)
            low = None if low is None or least is None else low + factor * least
            high = None if high is None or most is None else high + factor * most
        return low, high

    def value(self, value: Any, sample: Sample) -> int:
        """A value on plain numbers."""
        return value if isinstance(value, int) else value.constant + self.total(value.terms.items(), sample)

    def total(self, terms: Any, sample: Sample) -> int:
        """The sum of monomials on plain numbers."""
        total = 0
        for monomial, factor in terms:
            product = factor
            for number in monomial:
                product *= sample[number] if number in sample else self._compute(number, sample)
            total += product
        return total

    def holds(self, kind: str, linear: Linear, constant: int, sample: Sample) -> bool:
        """Whether a condition, without its negation, holds on plain numbers."""
        total = self.total(linear, sample) + constant
        return total <= 0 if kind == "le" else total == 0

    def _compute(self, number: int, sample: Sample) -> int:
        unknown = self.all[number]
        if unknown.compute is not None:
            result = unknown.compute(sample)
        else:
            # An input that appeared after the sample was made: any fixed value within its bounds serves.
            low = unknown.low or 0
            width = 8 if unknown.high is None else unknown.high - low + 1
            result = low + zlib.crc32(f"{unknown.name}/{sample.get(0, 0)}/{sample.get(1, 0)}".encode()) % width
        sample[number] = result
        return result

    def plain(self, sample: Sample) -> dict[str, int]:
        """The inputs of a sample, by name."""
        return {
            name: sample[number] if number in sample else self._compute(number, sample)
            for name, number in self.inputs.items()
        }

    def text(self, linear: Linear, constant: int) -> str:
        """A polynomial as text."""
        parts = [
            f"{factor}*" * (factor != 1) + "*".join(self.name(number) for number in mono) for mono, factor in linear
        ]
        return " + ".join([*parts, *([str(constant)] if constant or not parts else [])])
