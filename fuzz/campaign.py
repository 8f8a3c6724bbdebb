"""A campaign: the parent of the workers. It keeps the time, stores findings as they come, has them shrunk."""

from __future__ import annotations

import contextlib
import datetime
import multiprocessing
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from fuzz import worker
from fuzz.compiled import compiled_first, judge_kind
from fuzz.engines.open import Prepared
from fuzz.findings import (
    BadFinding,
    EngineFacts,
    FindingFile,
    Origin,
    engine_folder,
    finding_path,
    new_finding,
    representatives,
    scenario_document,
    store,
    write_whole,
)
from fuzz.known import Known
from fuzz.shrink import ATTEMPTS
from fuzz.sources import Scenarios
from fuzz.story import Row
from fuzz.tally import Signature, Tally
from fuzz.trial import Rules
from oracle.scenario import Scenario
from oracle.verdict import Finding

REPEAT_EVERY = 25
TWINS_EVERY = 15
"""Beside a scenario in so many the two of a metamorphic rule are run: 5 to 8 % more work for the engine."""
UNRUN_SHARE_MAX = 0.01
"""Above this share of scenarios that could not run, the campaign could not judge."""
SKIPPED_SHARE_MAX = 0.5
"""Above this share of scenarios that the build is known to refuse, too little of it was looked at."""

_TICK_SECONDS = 0.25
_SHRINK_SECONDS = 6.0
"""Time set aside at first per signature and worker before a campaign's end, up to half of the campaign."""
_ROUND_SECONDS = 1.0
"""With less time left over no new scenarios are begun."""
_FIRST_SECONDS = 15.0
"""Time for the first finding of each rule and decision, which is the one that is printed in full."""
_STOP_SECONDS = 15.0


class CampaignError(Exception):
    """The campaign cannot go on; the message is one line for the user.

    ``traceback``: of a mistake of kvoracle, empty otherwise.
    """

    def __init__(self, message: str, traceback: str = "") -> None:
        super().__init__(message)
        self.traceback = traceback


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked for. ``scenarios`` and ``seconds``: whichever is reached first (None: no limit).

    ``against``: the release whose policy the reference engine follows, to compare costs with (None: it does not run).
    """

    source: Scenarios
    workers: int
    scenarios: int | None
    seconds: float | None
    rules: Rules
    folder: Path
    known: tuple[Known, ...] = ()
    today: datetime.date
    repeat_every: int = REPEAT_EVERY
    twins_every: int = TWINS_EVERY
    attempts: int = ATTEMPTS
    against: str | None = None


class Clock(msgspec.Struct):
    """Wall-clock seconds by phase. ``setup``: downloads; ``load``: of the engine, all workers together."""

    setup: float = 0.0
    load: float = 0.0
    fuzzing: float = 0.0
    shrinking: float = 0.0


class State(msgspec.Struct):
    """A campaign as it stands. ``found``: new findings; ``known``: per entry what its re-run gave.

    ``phase`` is for display. ``paths``: where findings are stored. ``error``: why the campaign ended early,
    ``traceback``: if that was a mistake of kvoracle. ``faults``: scenarios on which it failed, for replay.
    ``judge``: what workers judge with.
    """

    prepared: Prepared
    settings: Settings
    judge: str = msgspec.field(default_factory=judge_kind)
    phase: str = "loading"
    tally: Tally = msgspec.field(default_factory=Tally)
    clock: Clock = msgspec.field(default_factory=Clock)
    found: dict[Signature, FindingFile] = msgspec.field(default_factory=dict)
    paths: dict[Signature, Path] = msgspec.field(default_factory=dict)
    known: dict[Signature, str] = msgspec.field(default_factory=dict)
    faults: list[Path] = msgspec.field(default_factory=list)
    shrunk: int = 0
    error: str = ""
    traceback: str = ""
    interrupted: bool = False

    @property
    def never_judged(self) -> tuple[str, ...]:
        """Rules that were asked for by name and had nothing to judge."""
        return tuple(sorted(rule for rule in self.settings.rules or () if not self.tally.judged.get(rule)))

    @property
    def could_not_judge(self) -> str:
        """Why there is no verdict, empty when there is one."""
        tally = self.tally
        if self.error:
            return self.error
        if self.interrupted:
            return "interrupted"
        if tally.failed:
            return self._our_faults()
        if tally.skipped > SKIPPED_SHARE_MAX * tally.made:
            return f"ran {tally.ran} of {tally.made} scenarios; the rest are such as this build is known to refuse"
        if tally.unrun > UNRUN_SHARE_MAX * tally.scenarios:
            return f"{tally.unrun} of {tally.scenarios} scenarios could not run"
        if not any(tally.judged.values()):
            return "nothing was judged"
        if self.never_judged:
            return f"nothing to judge by {', '.join(self.never_judged)}"
        return ""

    def _our_faults(self) -> str:
        reason = max(self.tally.ours, key=lambda text: (self.tally.ours[text], text))
        stored = f"; please report this with {self.faults[0]}" if self.faults else ""
        return f"kvoracle itself failed on {self.tally.failed} of {self.tally.scenarios} scenarios ({reason}){stored}"

    @property
    def exit_status(self) -> int:
        """0 clean, 1 findings, 2 could not judge; 1 wins over 2."""
        if self.found:
            return 1
        return 2 if self.could_not_judge else 0


class Campaign:
    """Runs one campaign. ``watch`` is called with the state several times a second."""

    def __init__(
        self, prepared: Prepared, settings: Settings, watch: Callable[[State], None] = lambda state: None
    ) -> None:
        self.state = State(prepared, settings)
        self._settings = settings
        self._watch = watch
        self._excused: set[Signature] = set()
        self._workers: list[tuple[SpawnProcess, Connection]] = []
        self._unshrunk: set[Signature] = set()
        self._deadline: float | None = None

    def run(self) -> State:
        """Run it to its end. Ctrl-C ends it early; what was found so far is kept either way."""
        state = self.state
        try:
            self._load()
            self._recheck_known()
            self._rounds()
        except KeyboardInterrupt:
            state.interrupted = True
        except CampaignError as error:
            state.error, state.traceback = str(error), error.traceback
        except BadFinding as error:
            state.error = str(error)
        finally:
            with _uninterrupted():
                self._stop()
        with _uninterrupted():
            self._count()
        state.phase = "done"
        self._watch(state)
        return state

    # --- phases ------------------------------------------------------------------------------------------

    def _load(self) -> None:
        started = time.monotonic()
        context = multiprocessing.get_context("spawn")
        cores = worker.cores()
        for number in range(self._settings.workers):
            ours, theirs = context.Pipe()
            plan = worker.Plan(
                prepared=self.state.prepared,
                source=self._settings.source,
                number=number,
                workers=self._settings.workers,
                core=cores[number % len(cores)],
                rules=self._settings.rules,
                scenarios=self._settings.scenarios,
                repeat_every=self._settings.repeat_every,
                twins_every=self._settings.twins_every,
                against=self._settings.against,
            )
            process = context.Process(target=worker.main, args=(theirs, plan), daemon=True)
            with _uninterrupted(), compiled_first():
                process.start()
            theirs.close()
            self._workers.append((process, ours))
        waiting = set(range(len(self._workers)))
        while waiting:
            for number, message in self._messages():
                if isinstance(message, worker.Ready):
                    waiting.discard(number)
            self.state.clock.load = time.monotonic() - started

    def _recheck_known(self) -> None:
        self.state.phase = "known findings"
        rules = self._settings.rules
        wanted = [known for known in self._settings.known if rules is None or known.signature[0] in rules]
        orders = deque(worker.Recheck(known.signature, known.scenario) for known in wanted)
        by_signature = {known.signature: known for known in wanted}
        for answer in self._hand_out(orders, lambda order, left: order):
            if isinstance(answer, worker.Rechecked):
                self._take_recheck(by_signature[answer.signature], answer)

    def _take_recheck(self, known: Known, answer: worker.Rechecked) -> None:
        if answer.could_not_run:
            self.state.known[known.signature] = f"could not run: {answer.could_not_run}"
        elif answer.finding is None:
            self.state.known[known.signature] = "no longer there"
        elif not known.expired(self._settings.today):
            self._excused.add(known.signature)
            self.state.known[known.signature] = "still there"
        else:
            self.state.known[known.signature] = f"still there, expired on {known.expires}"
            origin = Origin(note=f"known finding that expired on {known.expires}: {known.reason}")
            self._found(answer.finding, known.scenario, origin, answer.runner, answer.rows)

    def _rounds(self) -> None:
        """Fuzz until there is just time to shrink what was found, shrink, and go on with the time left over."""
        seconds = self._settings.seconds
        self._deadline = None if seconds is None else time.monotonic() + seconds
        more = True
        while more:
            more = self._fuzz()
            self._shrink()
            more = more and self._seconds_left() > _ROUND_SECONDS

    def _seconds_left(self) -> float:
        return float("inf") if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def _fuzz(self) -> bool:
        """Let the workers fuzz; whether they were stopped by time, with scenarios left to try."""
        state = self.state
        state.phase = "fuzzing"
        started, before = time.monotonic(), state.clock.fuzzing
        busy = set(range(len(self._workers)))
        self._send_all(worker.Fuzz())
        stopped = False
        while busy:
            for number, message in self._messages():
                if isinstance(message, worker.Progress):
                    state.tally.merge(message.tally)
                    busy -= {number} if message.idle else set()
                elif isinstance(message, worker.Seen):
                    self._seen(message)
                elif isinstance(message, worker.OurFault):
                    self._store_fault(message)
            state.clock.fuzzing = before + time.monotonic() - started
            if not stopped and self._seconds_left() <= self._reserve():
                stopped = True
                self._send_all(worker.Stop())
        return stopped

    def _reserve(self) -> float:
        """Seconds to keep for shrinking what was found: a guess at first, then what it took so far."""
        if self._settings.seconds is None:
            return 0.0
        each = _SHRINK_SECONDS
        if self.state.shrunk:
            each = 2 * self.state.clock.shrinking * len(self._workers) / self.state.shrunk
        return min(self._settings.seconds / 2, each * len(self._unshrunk) / len(self._workers))

    def _shrink(self) -> None:
        state, settings = self.state, self._settings
        state.phase = "shrinking"
        started, before = time.monotonic(), state.clock.shrinking
        first = [signature for signature in representatives(state.found) if signature in self._unshrunk]
        jobs = deque([*first, *sorted(self._unshrunk - set(first))])

        def order(signature: Signature, left: int) -> Any:
            document = state.found[signature]
            attempts = settings.attempts - document.attempts
            if self._deadline is None:
                return worker.Shrink(signature, document.scenario, attempts, None)
            remaining = self._seconds_left()
            share = remaining * len(self._workers) / (left + 1)
            seconds = min(remaining, max(share, _FIRST_SECONDS if signature in first else share))
            return worker.Shrink(signature, document.scenario, attempts, seconds)

        for answer in self._hand_out(jobs, order):
            if isinstance(answer, worker.Smaller):
                self._smaller(answer)
                # Its time was up, its attempts were not: go on when the others have had their turn.
                if answer.signature in self._unshrunk and self._seconds_left() > 0:
                    jobs.append(answer.signature)
            state.clock.shrinking = before + time.monotonic() - started

    # --- findings ----------------------------------------------------------------------------------------

    def _seen(self, message: worker.Seen) -> None:
        signature = message.finding.signature
        if signature in self._excused:
            return
        earlier = self.state.found.get(signature)
        if earlier is not None and not 0 <= message.index < earlier.origin.index:
            return
        source = self._settings.source
        origin = Origin(source.seed, message.index, source.only, source.without, source.backend)
        self._found(message.finding, message.scenario, origin, message.runner, message.rows)

    def _found(self, finding: Finding, scenario: Scenario, origin: Origin, runner: str, rows: Iterable[Row]) -> None:
        """Store before anybody is told: what has been shown must survive a kill. It counts even if storing fails."""
        prepared = self.state.prepared
        facts = EngineFacts(prepared.name.typed, prepared.version, runner, prepared.release)
        document = new_finding(finding, scenario, facts, origin, rows)
        path = finding_path(self._settings.folder, prepared.name.typed, finding.signature)
        self.state.found[finding.signature] = document
        self.state.paths[finding.signature] = path
        self._unshrunk.add(finding.signature)
        store(path, document)

    def _store_fault(self, message: worker.OurFault) -> None:
        """Keep a scenario on which kvoracle failed, one per reason, for whoever mends it."""
        folder = engine_folder(self._settings.folder, self.state.prepared.name.typed)
        path = folder / f"kvoracle-failed-{self._settings.source.seed}-{message.index}.json"
        write_whole(path, scenario_document(replace(message.scenario, note=message.reason)))
        self.state.faults.append(path)

    def _smaller(self, answer: worker.Smaller) -> None:
        """Store a shrunk finding, and note whether there is more to be done to it."""
        document = self.state.found[answer.signature]
        attempts = document.attempts + answer.attempts
        if answer.finding is None:
            # Seen once and not again: kept as it was seen, for the reader to see that it does not repeat.
            note = "did not recur when it was run again"
            document = replace(document, origin=replace(document.origin, note=note), attempts=attempts)
        else:
            document = replace(
                document,
                finding=answer.finding,
                scenario=answer.scenario,
                engine=replace(document.engine, runner=answer.scenario.features.runner),
                shrunk=answer.complete,
                attempts=attempts,
                steps=answer.rows,
            )
        self.state.shrunk += answer.complete
        self.state.found[answer.signature] = document
        store(self.state.paths[answer.signature], document)
        if answer.finding is None or answer.complete or attempts >= self._settings.attempts:
            self._unshrunk.discard(answer.signature)

    def _count(self) -> None:
        """Write into each finding how many scenarios showed it. A file that cannot be written keeps the old number."""
        for signature, document in self.state.found.items():
            count = max(1, self.state.tally.signatures.get(signature, 0))
            if count != document.count:
                counted = replace(document, count=count)
                self.state.found[signature] = counted
                self._store_count(signature, counted)

    def _store_count(self, signature: Signature, counted: FindingFile) -> None:
        try:
            store(self.state.paths[signature], counted)
        except BadFinding as error:
            self.state.error = self.state.error or str(error)

    # --- workers -----------------------------------------------------------------------------------------

    def _messages(self) -> list[tuple[int, Any]]:
        """The next message of each worker that has one, after a short wait at most. Raises CampaignError."""
        self._watch(self.state)
        numbers = {line: number for number, (_, line) in enumerate(self._workers)}
        messages = []
        for ready in connection.wait(list(numbers), timeout=_TICK_SECONDS):
            assert isinstance(ready, Connection)
            number = numbers[ready]
            try:
                message = ready.recv()
            except (EOFError, ConnectionResetError):
                process = self._workers[number][0]
                process.join(1.0)
                raise CampaignError(
                    f"worker {number} ended (exit status {process.exitcode}); what it had found is kept"
                ) from None
            if isinstance(message, worker.Failed):
                ours = "kvoracle failed, please report this: " if message.traceback else ""
                raise CampaignError(ours + message.text, message.traceback)
            messages.append((number, message))
        return messages

    def _hand_out(self, jobs: deque[Any], order: Callable[[Any, int], Any]) -> Iterable[Any]:
        """Give each free worker the next job until all are done; ``order`` gets it and how many are left."""
        free = list(range(len(self._workers)))
        busy = 0
        while jobs or busy:
            while jobs and free:
                job = jobs.popleft()
                self._send(free.pop(0), order(job, len(jobs)))
                busy += 1
            for number, message in self._messages():
                free.append(number)
                busy -= 1
                yield message

    def _send_all(self, order: Any) -> None:
        for number in range(len(self._workers)):
            self._send(number, order)

    def _send(self, number: int, order: Any) -> None:
        # That a worker is gone is noticed where its messages are read, which tells why.
        with contextlib.suppress(OSError):
            self._workers[number][1].send(order)

    def _stop(self) -> None:
        """Close the lines, which ends the workers; kill those that do not notice, as in a hung engine."""
        for _, line in self._workers:
            line.close()
        deadline = time.monotonic() + _STOP_SECONDS
        for process, _ in self._workers:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Let Ctrl-C do nothing for a moment, here and in processes that are started meanwhile."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
