"""The one protocol that every engine speaks: a scenario in, the raw lines of a trace out."""

from __future__ import annotations

from typing import Protocol

import msgspec

from oracle.scenario import Scenario


class Run(msgspec.Struct):
    """What came of giving one scenario to an engine.

    ``lines``: the trace's JSON lines without newlines, header first; a crash or a hang ends them with a
    ``crash`` record. ``refused``: why the engine would not build for this scenario (then no lines);
    a refusal is not a crash. ``cpu``: CPU seconds by phase (``construct``, ``calls``, ``transport``).
    ``lines_hit``: the watched lines that ran, each with its file; none of a run that was cut short.
    """

    lines: list[bytes]
    refused: str = ""
    cpu: dict[str, float] = msgspec.field(default_factory=dict)
    lines_hit: frozenset[tuple[str, int]] = frozenset()

    def trace(self) -> bytes:
        """The trace as one JSON-lines document."""
        return b"".join(line + b"\n" for line in self.lines)


class Engine(Protocol):
    """An engine that can be driven.

    ``name`` is what the user typed; ``version`` the build's version; ``release`` the supported release
    whose policy it is compared with (None: invariants only).
    """

    name: str
    version: str
    release: str | None

    def run(self, scenario: Scenario, *, record: bool = True) -> Run:
        """Drive one scenario to its end. Never raises for what the engine does."""

    def close(self) -> None:
        """Stop the engine's process, if it has one."""
