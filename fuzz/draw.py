"""Where a generator's choices come from: one small protocol, with a seeded and a Hypothesis back end."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

T = TypeVar("T")


class Draw(Protocol):
    """A source of choices. Write the simplest option first: Hypothesis shrinks towards it."""

    def integer(self, low: int, high: int) -> int:
        """A whole number from ``low`` to ``high``, both included; ``low`` must not be above ``high``."""

    def choice(self, options: Sequence[T]) -> T:
        """One of the options, of which there must be at least one."""

    def chance(self, percent: int) -> bool:
        """True in about ``percent`` of 100 cases; False is the simple answer."""


class SeededDraw:
    """Choices from a seed: the same seed gives the same choices on every machine and Python from 3.11 on.

    ``seed`` must not be negative (Python's generator takes the absolute value, so -1 would repeat 1).
    """

    def __init__(self, seed: int) -> None:
        if seed < 0:
            raise ValueError(f"seed {seed} is negative")
        # Only `random()` is used: its sequence is documented to be stable, and it is the fastest call.
        self._random = random.Random(seed).random

    def integer(self, low: int, high: int) -> int:
        return low + int(self._random() * (high - low + 1))

    def choice(self, options: Sequence[T]) -> T:
        return options[int(self._random() * len(options))]

    def chance(self, percent: int) -> bool:
        return self._random() * 100 < percent


class HypothesisDraw:
    """Choices from Hypothesis: ``draw`` is what ``@composite`` hands out, or ``data.draw``."""

    def __init__(self, draw: Callable[[SearchStrategy[int]], int]) -> None:
        # Imported here: a campaign with the seeded back end must run without Hypothesis installed.
        from hypothesis import strategies

        self._draw = draw
        self._integers = strategies.integers

    def integer(self, low: int, high: int) -> int:
        return self._draw(self._integers(low, high))

    def choice(self, options: Sequence[T]) -> T:
        return options[self.integer(0, len(options) - 1)]

    def chance(self, percent: int) -> bool:
        # The high numbers are True, so that shrinking ends at False.
        return self.integer(0, 99) >= 100 - percent
