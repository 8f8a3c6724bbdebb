"""Prefix ids: one integer for each distinct token prefix that a trace mentions.

Two requests have the same id at n tokens if and only if their first n tokens are the same. Id 1 is the
empty prefix; 0 and negative numbers are free for contents that are no prefix (``reference.worker``).
"""

from __future__ import annotations

from collections.abc import Iterable

EMPTY_PREFIX = 1


def parse_segment(segment: str) -> tuple[str, int]:
    """``"sys:48"`` as stream name and number of tokens. The validator guarantees the form."""
    name, _, count = segment.rpartition(":")
    return name, int(count)


class Prefixes:
    """Interns prefixes. A token is its stream's number and its index there."""

    def __init__(self) -> None:
        self._streams: dict[str, int] = {}
        self._next: dict[tuple[int, int, int], int] = {}
        self.parents: list[int] = [0, 0]

    def extend(self, ids: list[int], stream: str, first: int, count: int) -> None:
        """Append to ``ids`` (which ends with the id of what came before) the ids of ``count`` more tokens.

        They are the tokens ``first`` … of ``stream``.
        """
        number = self._streams.setdefault(stream, len(self._streams))
        last = ids[-1]
        following, parents = self._next, self.parents
        for index in range(first, first + count):
            key = (last, number, index)
            known = following.get(key)
            if known is None:
                known = following[key] = len(parents)
                parents.append(last)
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
