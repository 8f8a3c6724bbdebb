"""One side of a comparison: a process of ours with one engine, which runs batches of scenarios and judges them.

What goes back is small: a digest of the trace, its costs, what was found. A trace itself is asked for where the
digests of two sides differ. Generator and verdicts are the parent's.
"""

from __future__ import annotations

import hashlib
import multiprocessing
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any, TypeVar

import msgspec

from fuzz.compiled import compiled_first
from fuzz.confirm import SplitCall, confirm
from fuzz.engines.open import Prepared
from fuzz.engines.process import VllmEngine
from fuzz.engines.protocol import Engine
from fuzz.trial import Trial, judge_run, run_scenario
from fuzz.worker import Failed, hold_engine
from oracle.compare import outcome_of
from oracle.costs import Costs
from oracle.scenario import Scenario
from oracle.verdict import Finding

Lines = frozenset[tuple[str, int]]
"""Watched lines that ran: file and line."""

T = TypeVar("T")


class SideError(Exception):
    """A side cannot go on; the message is one line for the user. ``traceback``: of a mistake of kvoracle's own."""

    def __init__(self, message: str, traceback: str = "") -> None:
        super().__init__(message)
        self.traceback = traceback


class Batch(msgspec.Struct, frozen=True):
    """Order: run these scenarios."""

    scenarios: tuple[Scenario, ...]


class Show(msgspec.Struct, frozen=True):
    """Order: the traces of some scenarios, by their places, of the batch that was run last."""

    places: tuple[int, ...]


class Reach(msgspec.Struct, frozen=True):
    """Order: look for a scenario in which the engine's split is called like this."""

    rule: str
    call: SplitCall
    seconds: float


class Ready(msgspec.Struct, frozen=True):
    """The engine has loaded. ``lines``: watched lines that ran meanwhile."""

    lines: Lines


class Ran(msgspec.Struct, frozen=True):
    """One scenario of a batch. ``could_not_run``: why there is nothing to compare; ``ours``: a mistake of kvoracle."""

    digest: bytes
    costs: Costs
    findings: tuple[Finding, ...]
    lines: Lines
    could_not_run: str = ""
    ours: bool = False


class Answer(msgspec.Struct, frozen=True):
    """All of a batch, in order. ``judged``: how often each rule had something to judge."""

    ran: tuple[Ran, ...]
    judged: dict[str, int]


class Side:
    """The parent's end. ``core``: the CPU that the side's two processes share, None for any."""

    def __init__(self, prepared: Prepared, core: int | None) -> None:
        self.prepared = prepared
        self.lines_at_import: Lines = frozenset()
        self._is_ready = False
        context = multiprocessing.get_context("spawn")
        self.line, theirs = context.Pipe()
        self._process: SpawnProcess = context.Process(target=main, args=(theirs, prepared, core), daemon=True)
        with compiled_first():
            self._process.start()
        theirs.close()

    def wait(self) -> None:
        """Wait until the engine has loaded, if it has not. Raises SideError."""
        if not self._is_ready:
            self.lines_at_import = self.take(Ready).lines
            self._is_ready = True

    def ask(self, order: Any) -> None:
        """Send an order; its answer is to be taken with ``take``. Raises SideError."""
        try:
            self.line.send(order)
        except OSError:
            raise SideError(f"the process of {self.prepared.label} has ended") from None

    def take(self, kind: type[T]) -> T:
        """The answer to an order. Raises SideError."""
        try:
            answer = self.line.recv()
        except (EOFError, ConnectionResetError):
            raise SideError(f"the process of {self.prepared.label} has ended") from None
        if isinstance(answer, Failed):
            ours = "kvoracle failed: " if answer.traceback else ""
            raise SideError(f"{self.prepared.label}: {ours}{answer.text}", answer.traceback)
        assert isinstance(answer, kind), answer
        return answer

    def close(self) -> None:
        """End the side's processes, also when it is busy."""
        self.line.close()
        self._process.join(5.0)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def main(parent: Connection, prepared: Prepared, core: int | None) -> None:
    """Entry point of the process."""
    hold_engine(parent, prepared, core, lambda engine: _serve(parent, engine))


def _serve(parent: Connection, engine: Engine) -> None:
    parent.send(Ready(engine.lines_at_import if isinstance(engine, VllmEngine) else frozenset()))
    kept: list[list[bytes]] = []
    handlers: dict[type, Callable[[Any], Any]] = {
        Batch: lambda order: _run(engine, order, kept),
        Show: lambda order: tuple(tuple(kept[place]) for place in order.places),
        Reach: lambda order: confirm(engine, order.rule, order.call, order.seconds),
    }
    while True:
        order = parent.recv()
        parent.send(handlers[type(order)](order))


def _run(engine: Engine, order: Batch, kept: list[list[bytes]]) -> Answer:
    # Run first, then judge: a core's caches serve one of the two at a time.
    runs = [run_scenario(engine, scenario) for scenario in order.scenarios]
    trials = [judge_run(ran, engine.release) for ran in runs]
    kept[:] = [trial.lines for trial in trials]
    judged: dict[str, int] = {}
    for trial in trials:
        for rule, times in trial.verdict.judged.items():
            judged[rule] = judged.get(rule, 0) + times
    told = zip(order.scenarios, runs, trials, strict=True)
    return Answer(tuple(_told(scenario, trial, ran.run.lines_hit) for scenario, ran, trial in told), judged)


def _told(scenario: Scenario, trial: Trial, lines: Lines) -> Ran:
    if trial.could_not_run:
        return Ran(b"", Costs(), (), lines, trial.could_not_run, trial.ours)
    outcome = outcome_of(scenario, trial.lines, trial.verdict.findings)
    return Ran(digest_of(trial.lines), outcome.costs, outcome.findings, lines)


def digest_of(lines: Sequence[bytes]) -> bytes:
    """A short stand-in for a trace, its header left out: that names the build."""
    digest = hashlib.blake2b(digest_size=16)
    for line in lines[1:]:
        digest.update(line)
        digest.update(b"\n")
    return digest.digest()
