"""A worker: one process of ours in lock step with one engine, pinned to a core. It obeys a campaign's parent.

Generator and judge run here; a vLLM engine runs in a process of its own on the same core. Scenario i
belongs to worker i modulo the number of workers, so what is found does not depend on that number.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection

import msgspec

from fuzz.engines.conforming import open_reference
from fuzz.engines.names import EngineError
from fuzz.engines.open import Prepared, open_prepared
from fuzz.engines.protocol import Engine
from fuzz.metamorphic import RELATIONS
from fuzz.shrink import shrink
from fuzz.sources import Scenarios, features_at, scenario_source
from fuzz.story import Row, story
from fuzz.supported import unsupported
from fuzz.tally import Signature, Tally, by_signature
from fuzz.trial import Ran, Rules, Trial, judge_run, run_scenario, try_scenario
from fuzz.twins import Twins, judge_twins, run_twins
from oracle.scenario import Scenario
from oracle.verdict import Finding

REPORT_SECONDS = 0.25
BATCH_SCENARIOS = 16
"""Scenarios that a worker runs before it judges them; a few hundredths of a second's work."""


def share_core(core: int) -> None:
    """Pin this process to the core that its engine runs on, and let the engine go first.

    As a batch process it does not interrupt the engine.
    """
    if not hasattr(os, "sched_setaffinity"):
        return
    os.sched_setaffinity(0, {core})
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def cores() -> list[int | None]:
    """The CPUs that this process may use; one None where the system does not tell."""
    return [*sorted(os.sched_getaffinity(0))] if hasattr(os, "sched_getaffinity") else [None]


def settle() -> None:
    """Spare the garbage collector: what is loaded by now stays, and a judge's objects do not outlive a trace."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 10, 10)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker needs to know. ``scenarios``: number of the campaign's scenarios (None: until stopped).

    Every ``repeat_every``-th scenario is run twice, and its traces compared; beside every ``twins_every``-th one
    the two of a metamorphic rule are run, of each rule in turn. ``against``: the release whose policy the reference
    engine follows, which then runs every scenario, too, for its costs (None: it does not).
    """

    prepared: Prepared
    source: Scenarios
    number: int
    workers: int
    core: int | None
    rules: Rules
    scenarios: int | None
    repeat_every: int
    twins_every: int
    against: str | None = None


class Fuzz(msgspec.Struct, frozen=True):
    """Order: run your scenarios, from where you left off, until they are done or ``Stop`` comes."""


class Stop(msgspec.Struct, frozen=True):
    """Order: no further scenario."""


class Recheck(msgspec.Struct, frozen=True):
    """Order: does this scenario (of a known finding) still show its signature?"""

    signature: Signature
    scenario: Scenario


class Shrink(msgspec.Struct, frozen=True):
    """Order: make this scenario smaller. ``seconds``: time for it (None: as long as attempts last)."""

    signature: Signature
    scenario: Scenario
    attempts: int
    seconds: float | None


class Ready(msgspec.Struct, frozen=True):
    """The engine has loaded."""

    version: str


class Progress(msgspec.Struct, frozen=True):
    """What was counted since the last message. ``idle``: the order is carried out."""

    tally: Tally
    idle: bool


class Seen(msgspec.Struct, frozen=True):
    """A signature was seen by this worker for the first time, in scenario ``index``."""

    index: int
    finding: Finding
    scenario: Scenario
    runner: str
    rows: tuple[Row, ...]


class Rechecked(msgspec.Struct, frozen=True):
    """Answer to ``Recheck``. ``finding`` is None when it did not recur; ``could_not_run`` says why if so."""

    signature: Signature
    finding: Finding | None
    could_not_run: str
    runner: str
    rows: tuple[Row, ...]


class Smaller(msgspec.Struct, frozen=True):
    """Answer to ``Shrink``. ``finding`` is None when the scenario did not show it again."""

    signature: Signature
    scenario: Scenario
    finding: Finding | None
    attempts: int
    complete: bool
    rows: tuple[Row, ...]


class OurFault(msgspec.Struct, frozen=True):
    """The driver or the judge failed on scenario ``index`` for a ``reason`` that this worker had not met before."""

    index: int
    scenario: Scenario
    reason: str


class Failed(msgspec.Struct, frozen=True):
    """The worker cannot go on. ``traceback``: of a mistake of kvoracle, empty for what the user can mend."""

    text: str
    traceback: str = ""


def main(parent: Connection, plan: Plan) -> None:
    """Entry point of the process."""

    def serve(engine: Engine) -> None:
        parent.send(Ready(engine.version))
        _Worker(parent, plan, engine).serve()

    hold_engine(parent, plan.prepared, plan.core, serve)


def hold_engine(parent: Connection, prepared: Prepared, core: int | None, serve: Callable[[Engine], None]) -> None:
    """Open an engine on a core, ``serve`` with it, and tell the parent by ``Failed`` what ended that too early."""
    # Ctrl-C goes to the whole group; the parent decides what it means. The engine inherits this, so that
    # an interrupt never looks like a crash of the engine.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if core is not None:
        share_core(core)
    try:
        engine = open_prepared(prepared, core=core)
        try:
            settle()
            serve(engine)
        finally:
            engine.close()
    except (BrokenPipeError, ConnectionResetError, EOFError):
        pass  # the parent is gone, and with it whoever wanted to know
    except EngineError as error:
        _tell(parent, Failed(str(error)))
    except Exception as error:
        _tell(parent, Failed(f"{type(error).__name__}: {error}", traceback.format_exc()))


def _tell(parent: Connection, last: Failed) -> None:
    """Send the last message; a parent that was told the same by another worker no longer listens."""
    with contextlib.suppress(OSError):
        parent.send(last)


class _Worker:
    def __init__(self, parent: Connection, plan: Plan, engine: Engine) -> None:
        self._parent = parent
        self._plan = plan
        self._engine = engine
        self._scenarios = scenario_source(plan.source)
        self._unsupported = unsupported(plan.prepared)
        self._reference = open_reference(plan.against) if plan.against is not None else None
        self._signatures: set[Signature] = set()
        self._faults: set[str] = set()
        self._tally = Tally()
        self._next = plan.number
        self._reported = time.monotonic()

    def serve(self) -> None:
        """Carry out orders until the parent closes the line."""
        while True:
            order = self._parent.recv()
            if isinstance(order, Fuzz):
                self._fuzz()
            elif isinstance(order, Recheck):
                self._recheck(order)
            elif isinstance(order, Shrink):
                self._shrink(order)

    def _fuzz(self) -> None:
        limit = self._plan.scenarios
        while (limit is None or self._next < limit) and not self._parent.poll():
            last = self._next + BATCH_SCENARIOS * self._plan.workers
            indices = range(self._next, last if limit is None else min(last, limit), self._plan.workers)
            self._run(indices)
            self._next += len(indices) * self._plan.workers
            if time.monotonic() - self._reported >= REPORT_SECONDS:
                self._report(idle=False)
        self._report(idle=True)

    def _run(self, indices: range) -> None:
        """Run some scenarios, then judge them: a core's caches serve one of the two at a time."""
        batch: list[tuple[int, Ran, Twins | None]] = []
        try:
            for index in indices:
                started = time.process_time()
                scenario = self._scenarios(index)
                generated = time.process_time() - started
                self._tally.draw(features_at(self._plan.source, index))
                if self._unsupported(scenario):
                    self._tally.skip(generated)
                    continue
                repeat = index % self._plan.repeat_every == 0
                ran = run_scenario(self._engine, scenario, self._plan.rules, repeat=repeat)
                ran.seconds["generation"] = generated
                rule = self._twin_rule(index)
                pair = run_twins(self._engine, rule, scenario, ran.run) if rule else None
                batch.append((index, ran, pair))
        finally:
            # Also when the engine cannot be started again: what ran until then may hold a finding.
            for index, ran, pair in batch:
                self._take(index, ran)
                if pair is not None:
                    self._take_twins(index, pair)

    def _twin_rule(self, index: int) -> str:
        """The metamorphic rule whose turn it is beside scenario ``index``, empty for none."""
        every, rules = self._plan.twins_every, self._plan.rules
        wanted = [rule for rule in RELATIONS if rules is None or rule in rules]
        turn, rest = divmod(index, every)
        return wanted[turn % len(wanted)] if wanted and rest == every // 2 else ""

    def _take(self, index: int, ran: Ran) -> None:
        """Judge one scenario of a campaign, and tell the parent of each signature once."""
        trial = self._judge(ran)
        if self._reference is not None and not trial.could_not_run:
            self._compare_costs(self._reference, index, trial, ran.scenario)
        self._tally.add(index, trial)
        if trial.ours and trial.could_not_run not in self._faults:
            self._faults.add(trial.could_not_run)
            self._parent.send(OurFault(index, ran.scenario, trial.could_not_run))
        self._tell_findings(index, ran.scenario, trial)

    def _take_twins(self, index: int, pair: Twins) -> None:
        """Judge the two runs of a metamorphic rule, which were made of scenario ``index``."""
        trial = Trial(pair.run.lines, judge_twins(pair))
        self._tally.add_twins(pair.rule, trial.verdict, pair.seconds)
        self._tell_findings(index, pair.scenario, trial)

    def _tell_findings(self, index: int, scenario: Scenario, trial: Trial) -> None:
        for signature, finding in by_signature(trial.verdict.findings).items():
            if signature not in self._signatures:
                self._signatures.add(signature)
                rows = story(trial.lines, finding, trial.verdict.judged)
                self._parent.send(Seen(index, finding, scenario, trial.runner, rows))

    def _compare_costs(self, reference: Engine, index: int, trial: Trial, scenario: Scenario) -> None:
        started = time.process_time()
        self._tally.against.add(index, scenario, trial.lines, reference.run(scenario).lines)
        trial.seconds["reference engine"] = time.process_time() - started

    def _report(self, *, idle: bool) -> None:
        self._parent.send(Progress(self._tally, idle))
        self._tally = Tally()
        self._reported = time.monotonic()

    def _judge(self, ran: Ran) -> Trial:
        trial = judge_run(ran, self._engine.release, self._plan.rules)
        self._renew_if_unsteady(trial)
        return trial

    def _renew_if_unsteady(self, trial: Trial) -> None:
        if any(finding.rule == "D1" for finding in trial.verdict.findings):
            # An engine that does not repeat itself carries something over; the next trial gets a fresh one.
            self._engine.close()

    def _try_for(self, signature: Signature, scenario: Scenario) -> tuple[Trial, Finding | None]:
        trial = try_scenario(self._engine, scenario, self._plan.rules, compared={signature[0]})
        self._renew_if_unsteady(trial)
        return trial, by_signature(trial.verdict.findings).get(signature)

    def _recheck(self, order: Recheck) -> None:
        trial, finding = self._try_for(order.signature, order.scenario)
        rows = story(trial.lines, finding, trial.verdict.judged) if finding else ()
        self._parent.send(Rechecked(order.signature, finding, trial.could_not_run, trial.runner, rows))

    def _shrink(self, order: Shrink) -> None:
        rows: tuple[Row, ...] = ()

        def recurs(candidate: Scenario) -> Finding | None:
            nonlocal rows
            trial, finding = self._try_for(order.signature, candidate)
            if finding:
                rows = story(trial.lines, finding, trial.verdict.judged)
            return finding

        deadline = None if order.seconds is None else time.monotonic() + order.seconds
        small = shrink(order.scenario, recurs, attempts=order.attempts, deadline=deadline)
        self._parent.send(Smaller(order.signature, small.scenario, small.finding, small.attempts, small.complete, rows))
