"""Inputs as a person reads them: named numbers in one line, the most telling first."""

from __future__ import annotations

from collections.abc import Mapping

ORDER = ("B", "H", "known", "prompt", "start", "asked", "junction", "room", "drop", "lookahead")
"""The order of what is known by name; anything else follows in its own."""


def in_words(values: Mapping[str, int], free: tuple[str, ...] = ()) -> str:
    """Named inputs as one line; ``free`` names those that do not matter."""
    names = [*(name for name in ORDER if name in values), *(name for name in values if name not in ORDER)]
    return " ".join(
        [*(f"{name}={values[name]}" for name in names if name not in free), *(f"any {name}" for name in free)]
    )
