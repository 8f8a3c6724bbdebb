"""The reference engine: a small scheduler whose every decision is the one that ``reference/`` names.

It runs in this process, takes a scenario and writes the trace that a right engine would write: for
controls, for demonstrations, and for machines without vLLM. One step serves the running requests first,
then admits waiting ones, while budget and blocks last; when blocks run out the last running request is
preempted. It is synchronous: each step's output is known before the next one is scheduled.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from fuzz.engines.names import NEWEST_RELEASE, EngineNameError
from fuzz.engines.protocol import Run
from fuzz.engines.shape import Shape, derive, refusal
from fuzz.engines.tables import Rules, Running, Tables
from oracle import trace
from oracle.prefixes import Prefixes
from oracle.scenario import Request, Scenario
from oracle.scenario import Step as Events
from reference.policy import POLICIES
from reference.rules import IDLE_STEPS_LIMIT

SNAPSHOT_STEPS = 64

Send = Callable[[list[trace.Record]], None]


class UnknownName(EngineNameError, ValueError):
    """A release or a fault that does not exist; the message is one line."""


@dataclass(frozen=True)
class Chunk:
    """What a step computes of one request; see ``trace.Scheduled``."""

    running: Running
    start: int
    tokens: int
    drafts: int
    accepted: int
    samples: bool


class Scheduler:
    """One run of one scenario. ``records`` collects the trace until ``send`` is given a step's share."""

    def __init__(self, shape: Shape, rules: Rules, *, record: bool, send: Send) -> None:
        self.shape = shape
        self.rules = rules
        self.records: list[trace.Record] = []
        self.emit: Callable[[trace.Record], None] = self.records.append if record else lambda record: None
        self.record = record
        self.send = send
        self.tables = Tables(shape, rules, self.emit)
        self.prefixes = Prefixes()
        self.by_priority = shape.scenario.features.policy == "priority"
        self.waiting: deque[Running] = deque()
        self.running: list[Running] = []
        self.arrivals = 0
        self.chunks: list[Chunk] = []
        self.preempted: list[str] = []
        self.ended: list[str] = []
        self.statistics = [0] * 6

    # The run.

    def play(self) -> None:
        """Step until every request ended, nothing moves any more, or the limit of steps is reached."""
        events = {step.at: step for step in self.shape.scenario.steps}
        last_event = max(events)
        limit = last_event + 1 + self._step_allowance()
        index = idle = 0
        while index <= last_event or self.waiting or self.running:
            self._step(index, events.get(index))
            idle = 0 if self.chunks or index <= last_event else idle + 1
            index += 1
            if idle >= IDLE_STEPS_LIMIT or index >= limit:
                break
            if index % SNAPSHOT_STEPS == 0:
                self._snapshot()
            self.flush()
        self._snapshot()
        left = sorted(running.request.id for running in (*self.waiting, *self.running))
        self.emit(trace.End(index, tuple(left)))
        self.flush()

    def flush(self) -> None:
        """Hand over what was recorded since the last time."""
        if self.records:
            self.send(self.records)
            self.records.clear()

    def _step_allowance(self) -> int:
        """Steps after the last event within which everything has ended."""
        tokens = sum(
            int(segment.rpartition(":")[2]) for request in self.shape.scenario.requests() for segment in request.prompt
        )
        outputs = sum(request.max_output for request in self.shape.scenario.requests())
        return 4 * (tokens + outputs) + 200

    def _step(self, index: int, events: Events | None) -> None:
        """The events of a step, its schedule, and its output."""
        if events is not None:
            if events.reset:
                self.emit(trace.Reset(self.tables.pool.reset()))
            self._abort(events.abort)
            for request in events.add:
                self._add(request)
        self._schedule()
        self._hand_over(index)
        if events is not None:
            self._abort(events.abort_in_flight)
        self._output(index)

    # Events.

    def _add(self, request: Request) -> None:
        """A request arrives and waits."""
        ids = self.prefixes.of_prompt(request.prompt)
        prompt = len(ids) - 1
        # Drafts and the token that a lookahead hash covers lie beyond the last output.
        self.prefixes.extend(ids, request.output_stream, 0, request.max_output + self.shape.drafts + 2)
        running = Running(request, self.arrivals, ids, prompt, prompt, len(self.shape.groups))
        self.arrivals += 1
        self.waiting.append(running)
        self.emit(trace.Add(request.id, request.prompt, request.output_stream, prompt))

    def _abort(self, names: tuple[str, ...]) -> None:
        for running in [item for item in (*self.running, *self.waiting) if item.request.id in names]:
            self._finish(running, "aborted")

    def _finish(self, running: Running, reason: str) -> None:
        """A request ends; its blocks are free at once."""
        self.emit(trace.Finish(running.request.id, reason))
        self.tables.release(running)
        (self.running if running in self.running else self.waiting).remove(running)
        self.ended.append(running.request.id)

    # Scheduling.

    def _schedule(self) -> None:
        """Choose the chunks of one step."""
        self.chunks, self.preempted = [], []
        self.tables.open_step()
        threshold = self._threshold()
        budget = self._serve_running(self.rules.budget(self.shape.scenario.limits.budget), threshold)
        if not self.preempted:
            self._admit_waiting(budget, threshold)

    def _threshold(self) -> int:
        """The most tokens one request may take from this step."""
        limits = self.shape.scenario.limits
        alone = len(self.running) + len(self.waiting) <= 1
        if limits.long_prefill_threshold == 0 or (alone and self.shape.policy.lone_request_ignores_threshold):
            return limits.budget
        return limits.long_prefill_threshold

    def _serve_running(self, budget: int, threshold: int) -> int:
        """Chunks for the running requests; gives what is left of the budget.

        Under the priority policy they are sorted by it, so whoever is preempted had no chunk yet: a block
        that a chunk of this step would have filled can never lose its writer.
        """
        index = 0
        while index < len(self.running) and budget > 0:
            running = self.running[index]
            asked = min(running.known + running.drafts - running.computed, threshold, budget)
            granted = self._split(running, running.computed, asked)
            if granted > 0:
                if not self._extend_or_preempt(running, granted, index):
                    break
                self._plan(running, granted)
                budget -= granted
            index += 1
        return budget

    def _extend_or_preempt(self, running: Running, tokens: int, served: int) -> bool:
        """Blocks for a chunk, at the cost of the last running requests; False if it was itself the last."""
        while not self.tables.extend(running, tokens):
            victim = self.running.pop(self.rules.victim(len(self.running), served))
            self.emit(trace.Preempt(victim.request.id))
            self.tables.release(victim)
            victim.preemptions += 1
            self.waiting.appendleft(victim)
            self.preempted.append(victim.request.id)
            if victim is running:
                return False
        return True

    def _admit_waiting(self, budget: int, threshold: int) -> None:
        """Admit waiting requests, the first one first: whoever does not fit holds up the others."""
        limits = self.shape.scenario.limits
        while budget > 0 and self.waiting and len(self.running) < limits.sequences:
            running = min(self.waiting, key=_urgency) if self.by_priority else self.waiting[0]
            found = self.tables.find(running)
            self._count_lookup(running, found.hit, admitted=False)
            running.junction = found.junction
            asked = min(running.known - found.hit, threshold, budget)
            granted = self._split(running, found.hit, asked)
            if granted <= 0 or not self.rules.admits(found.hit, bool(self.running)):
                break
            if not self.tables.admit(running, found, granted, bool(self.running)):
                break
            self._count_lookup(running, found.hit, admitted=True)
            self.waiting.remove(running)
            self.running.append(running)
            self._plan(running, granted)
            budget -= granted
        if self.by_priority:
            self.running.sort(key=_urgency)

    def _count_lookup(self, running: Running, hit: int, *, admitted: bool) -> None:
        """Enter a lookup into the statistics, those of requests that were preempted apart."""
        if self.shape.scenario.features.caching and self.rules.counts_lookup(admitted):
            first = 3 if running.preemptions else 0
            for place, more in enumerate((1, running.known, hit), first):
                self.statistics[place] += more

    def _split(self, running: Running, start: int, asked: int) -> int:
        """The tokens that a chunk gets of those asked for."""
        if not self.shape.setup.split:
            return asked
        prompt, known, junction = running.prompt, running.known, running.junction
        granted = self.rules.chunk(self.shape, start, asked, prompt, known, junction)
        self.emit(trace.Split(running.request.id, start, asked, granted, known, prompt, junction))
        return granted

    def _plan(self, running: Running, tokens: int) -> None:
        """Note a chunk. Whether its drafts are right is the scenario's to say."""
        start = running.computed
        drafts = max(start + tokens - running.known, 0)
        accepted = 0
        if drafts:
            pattern = running.request.accept
            accepted = min(pattern[running.verified % len(pattern)], drafts)
            running.verified += 1
        samples = start + tokens - drafts == running.known
        self.chunks.append(Chunk(running, start, tokens, drafts, accepted, samples))
        running.drafts = 0

    def _hand_over(self, index: int) -> None:
        """Tell the worker. What it was told of a table once is never told again."""
        copies = self.tables.close_step()
        if self.record:
            self.emit(
                trace.Step(
                    index,
                    tuple(self._scheduled(chunk) for chunk in self.chunks),
                    (),
                    tuple(copies),
                    tuple(sorted(self.preempted)),
                    tuple(sorted(self.ended)),
                    len(self.waiting),
                    len(self.running),
                )
            )
        for chunk in self.chunks:
            chunk.running.computed = chunk.start + chunk.tokens
            chunk.running.delivered = [len(table) for table in chunk.running.tables]
        self.ended = []

    def _scheduled(self, chunk: Chunk) -> trace.Scheduled:
        running = chunk.running
        fresh = not any(running.delivered)
        blocks = tuple(
            tuple(table[delivered:]) for table, delivered in zip(running.tables, running.delivered, strict=True)
        )
        return trace.Scheduled(
            running.request.id,
            chunk.start,
            chunk.start,
            chunk.tokens,
            chunk.drafts,
            chunk.accepted,
            chunk.samples,
            fresh,
            blocks,
        )

    # Output.

    def _output(self, index: int) -> None:
        """The output of the step comes back: wrong drafts are taken back, sampled tokens become known."""
        chunks = [chunk for chunk in self.chunks if chunk.running in self.running]
        got = {}
        for chunk in chunks:
            if chunk.samples:
                running = chunk.running
                left = running.prompt + running.request.max_output - running.known
                got[running.request.id] = min(chunk.accepted + 1, left)
        self.emit(trace.Output(index, tuple(got.items())))
        for chunk in chunks:
            if chunk.samples:
                self._sampled(chunk, got[chunk.running.request.id])
        if any(self.statistics):
            self.emit(trace.Statistics(*self.statistics))
            self.statistics = [0] * 6

    def _sampled(self, chunk: Chunk, tokens: int) -> None:
        """One request got ``tokens`` more; those that the step computed without need are taken back."""
        running = chunk.running
        running.known += tokens
        running.computed = min(running.computed, running.known - 1)
        if self.shape.drafts:
            running.drafts = self.shape.drafts
            # Since hashes look ahead, what was verified enters the cache at once, not with the next chunk.
            if self.shape.policy.commits_at_output:
                self.tables.cache(running, running.computed)
        if running.known == running.prompt + running.request.max_output:
            self._finish(running, "length")

    def _snapshot(self) -> None:
        """Note the whole state."""
        pool = self.tables.pool
        self.emit(
            trace.Snapshot(
                tuple((block, count) for block, count in enumerate(pool.references) if count),
                tuple(pool.free_list),
                tuple((group, block, digest) for (group, digest), holders in pool.holders.items() for block in holders),
                tuple(
                    (running.request.id, group, tuple(table))
                    for running in self.running
                    for group, table in enumerate(running.tables)
                    if table
                ),
            )
        )


def _urgency(running: Running) -> tuple[int, int]:
    """Whoever is smaller goes first under the priority policy."""
    return (running.request.priority, running.arrival)


class ReferenceEngine:
    """The engine of the protocol. ``make_rules`` gives the decisions of one run."""

    def __init__(self, name: str, release: str, make_rules: Callable[[], Rules] = Rules) -> None:
        if release not in POLICIES:
            raise UnknownName(f"no policy for release {release!r}; there is {', '.join(POLICIES)}")
        self.name = name
        self.version = release
        self.release: str | None = release
        self._policy = POLICIES[release]
        self._make_rules = make_rules

    def run(self, scenario: Scenario, *, record: bool = True) -> Run:
        """Run one scenario. What goes wrong inside becomes a ``crash`` record, as with a real engine."""
        started = time.thread_time()
        if reason := refusal(scenario, self._policy):
            return Run([], reason)
        shape = derive(scenario, self._policy)
        lines: list[bytes] = []
        if record:
            lines.append(trace.encoder.encode(trace.Header("reference", self.version, "v1", shape.setup, scenario)))

        def send(records: list[trace.Record]) -> None:
            lines.append(trace.encoder.encode(records))

        scheduler = Scheduler(shape, self._make_rules(), record=record, send=send)
        built = time.thread_time()
        try:
            scheduler.play()
        except Exception as error:  # an engine's failure is a result, not ours to raise
            scheduler.emit(_crash(error))
            scheduler.flush()
        return Run(lines, cpu={"construct": built - started, "calls": time.thread_time() - built})

    def close(self) -> None:
        """Nothing runs."""


def _crash(error: Exception) -> trace.Crash:
    """The record of an exception: the innermost function, and the first line of what it said."""
    frame = error.__traceback__
    where = ""
    while frame is not None:
        code = frame.tb_frame.f_code
        where = f"{frame.tb_frame.f_globals.get('__name__', '')}:{code.co_qualname}"
        frame = frame.tb_next
    said = (str(error).strip() or "no message").split("\n", 1)[0]
    return trace.Crash("exception", where, f"{type(error).__name__}: {said}")


def open_reference(release: str = NEWEST_RELEASE) -> ReferenceEngine:
    """The conforming engine, following the policy of ``release``. Raises UnknownName for another."""
    return ReferenceEngine("reference", release)
