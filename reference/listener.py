"""Who listens to an engine: one call for each decision, made when its effects are in place, in the engine's order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

Columns = Sequence[Sequence[int]]
"""Block ids by group and table column; 0 is the null block."""


class Listener(Protocol):
    """What an engine tells. Requests by name, groups by number, blocks by id, positions and counts in tokens."""

    def looked_up(self, request: str, known: int, hit: int, junction: int, blocks: Columns) -> None:
        """A request of ``known`` tokens found ``hit`` of them cached, in ``blocks``, and a junction (0: none)."""

    def split(self, request: str, start: int, asked: int, granted: int, known: int, prompt: int, junction: int) -> None:
        """A chunk from ``start`` got ``granted`` of the tokens that it asked for."""

    def allocated(self, request: str, computed: int, tokens: int, hit: int, granted: bool, promised: int) -> None:
        """Blocks for ``tokens`` tokens after ``computed`` (of which ``hit`` come from the cache just now).

        ``promised``: the free blocks that were counted for it.
        """

    def offered(self, request: str, group: int, tokens: int) -> None:
        """A request's first ``tokens`` tokens may enter the cache; those that do are named next."""

    def named(self, request: str, group: int, block: int, position: int, digest: int) -> None:
        """A block got a hash that stands for ``position`` tokens; ``request`` is empty for a hash that moved."""

    def evicted(self, block: int) -> None:
        """A block lost all its hashes."""

    def took(self, blocks: Sequence[int]) -> None:
        """Free blocks got an owner."""

    def touched(self, blocks: Sequence[int]) -> None:
        """Cached blocks got one more reference each."""

    def freed(self, blocks: Sequence[int]) -> None:
        """Blocks lost one reference each."""

    def pinned(self, blocks: Sequence[int], delta: int) -> None:
        """Blocks got (+1) or lost (-1) a reference that no table holds."""

    def table_changed(self, request: str, group: int, start: int, blocks: Sequence[int]) -> None:
        """From column ``start`` on a request's table is now ``blocks``."""

    def preempted(self, request: str) -> None:
        """A running request must wait again; its blocks are given back next."""

    def finished(self, request: str, reason: str) -> None:
        """A request ends, ``length`` or ``aborted``; its blocks are given back next."""

    def output(self, step: int, tokens: Mapping[str, int]) -> None:
        """The output of a step arrived: by request, the tokens that it got. What follows from it comes next."""

    def reported(self, counts: Sequence[int]) -> None:
        """The statistics since the last report: lookups, tokens looked up and tokens hit, first of requests that were
        never preempted, then of the others."""
