"""Masks of symbolic length, seen at one block: enough to prove what a mask says of an arbitrary block.

A loop over a symbolic range runs only for the member that concerns the block in question. That is exact for
loops whose bodies only set ``mask[i]`` or ``mask[i - start]``, which ``spec.engine_masks`` checks in the source:
any other member touches another block.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from spec.space import Space
from spec.symbolic import SymbolicError


class PointMask:
    """A list of symbolic length of which only the entry of the block in question is known."""

    def __init__(self, value: Any, length: Any, point: Point) -> None:
        self.value = value
        self.length = length
        self._point = point

    def __setitem__(self, index: Any, value: Any) -> None:
        away = index - self._point.index
        if self._point.in_loop and not isinstance(away, int):
            raise SymbolicError("a loop sets another entry than its member stands for")
        if away == 0:
            self.value = value


class Point:
    """The block in question: its ``number`` in the request, and its ``index`` in masks that begin at ``start``."""

    def __init__(self, number: Any, start: Any) -> None:
        self.number = number
        self.index = number - start
        self.in_loop = False

    def builtins(self, space: Space) -> Mapping[str, Any]:
        """``range`` and ``len`` that see lists at this block, and lists repeated a symbolic number of times."""
        space.repeat = lambda items, count: PointMask(items[0], count, self)
        return {"range": self._range, "len": _length}

    def _range(self, *ends: Any) -> Iterator[Any]:
        if all(isinstance(end, int) for end in ends):
            yield from range(*ends)
            return
        first, last, step = (*ends, 1) if len(ends) == 2 else ends
        # A loop up to the length of a mask runs over its entries, any other over block numbers; should that be
        # wrong, the loop's body sets another entry, which is refused.
        member = self.index if isinstance(last, Length) else self.number
        last = last.value if isinstance(last, Length) else last
        if first <= member < last and (member - first) % step == 0:
            self.in_loop = True
            yield member
            self.in_loop = False


class Length:
    """The length of a mask, known as such."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _length(items: Any) -> Any:
    return Length(items.length) if isinstance(items, PointMask) else len(items)


def entry(mask: Any, index: Any) -> Any:
    """What a mask says of the entry at ``index``; None stands for a mask that keeps everything."""
    if mask is None:
        return True
    if isinstance(mask, PointMask):
        return mask.value
    if isinstance(index, int):
        return mask[index]
    # A comprehension over a symbolic range holds the entry in question alone.
    (value,) = mask
    return value
