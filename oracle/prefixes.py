"""Prefix ids: one integer for each distinct token prefix that a trace mentions.

Two requests have the same id at n tokens if and only if their first n tokens are the same. Id 1 is the
empty prefix; 0 and negative numbers are free for contents that are no prefix (``reference.worker``).
A prefix that nothing holds any more is forgotten; whoever comes with its tokens later gets a new id.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Set

EMPTY_PREFIX = 1
NEW_PREFIXES_MIN = 1 << 14
"""At least so many prefixes are made before it is asked which of them are held."""


def parse_segment(segment: str) -> tuple[str, int]:
    """``"sys:48"`` as stream name and number of tokens. The validator guarantees the form."""
    name, _, count = segment.rpartition(":")
    return name, int(count)


class Prefixes:
    """Interns prefixes. A token is its stream's name and its index there. ``parents``: each without its last token."""

    def __init__(self) -> None:
        self._next: dict[tuple[int, str, int], int] = {}
        self._newest = EMPTY_PREFIX
        self._due = NEW_PREFIXES_MIN
        self.parents: dict[int, int] = {}

    def extend(self, ids: list[int], stream: str, first: int, count: int) -> None:
        """Append to ``ids`` (which ends with the id of what came before) the ids of ``count`` more tokens.

        They are the tokens ``first`` … of ``stream``.
        """
        stream = sys.intern(stream)
        last = ids[-1]
        following, parents = self._next, self.parents
        for index in range(first, first + count):
            key = (last, stream, index)
            known = following.get(key)
            if known is None:
                self._newest = known = following[key] = self._newest + 1
                parents[known] = last
            last = known
            ids.append(last)

    def of_prompt(self, segments: Iterable[str]) -> list[int]:
        """The ids of all prefixes of a prompt, the empty one first."""
        ids = [EMPTY_PREFIX]
        for segment in segments:
            stream, count = parse_segment(segment)
            self.extend(ids, stream, 0, count)
        return ids

    def ancestor(self, prefix: int, tokens_back: int) -> int:
        """The prefix that is ``tokens_back`` tokens shorter."""
        for _ in range(tokens_back):
            prefix = self.parents[prefix]
        return prefix

    @property
    def is_full(self) -> bool:
        """Whether it is time to forget some: there are as many new ones as were looked at the last time."""
        return len(self.parents) > self._due

    def keep(self, held: Iterable[int]) -> Set[int]:
        """Forget all but the ``held`` prefixes (other contents among them do no harm) and what those begin with.

        Gives the ids that are left.
        """
        parents = self.parents
        kept: dict[int, int] = {}
        looked_at = 0
        for one in held:
            looked_at += 1
            prefix = one
            while prefix in parents and prefix not in kept:
                kept[prefix] = parents[prefix]
                prefix = parents[prefix]
        self.parents = kept
        self._next = {key: prefix for key, prefix in self._next.items() if prefix in kept}
        self._due = len(kept) + max(len(kept), looked_at, NEW_PREFIXES_MIN)
        return kept.keys()
