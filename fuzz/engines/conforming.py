"""The reference engine as an engine to be driven: a scenario in, the trace of ``reference.scheduler`` out.

It runs in this process, follows a release's policy and writes the trace that a right engine would write: for
controls, for demonstrations, for costs to compare with, and for machines without vLLM. It is driven as the real
engines are, in the worker's place: with so many steps in flight as the scenario says.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from fuzz.engines.names import NEWEST_RELEASE, EngineNameError
from fuzz.engines.protocol import Run
from fuzz.engines.shape import derive, refusal, setup_of
from oracle import scenario, trace
from oracle.prefixes import Prefixes
from oracle.scenario import Scenario
from oracle.validate import prompt_tokens
from reference.decisions import Decisions
from reference.listener import Columns
from reference.policy import POLICIES
from reference.request import Request
from reference.rules import IDLE_STEPS_LIMIT
from reference.scheduler import Chunk, Plan, Scheduler
from reference.shape import Shape

REFERENCE = "reference"
"""The name that the reference engine gives itself in its traces."""

SNAPSHOT_STEPS = 64

Emit = Callable[[trace.Record], None]


class UnknownName(EngineNameError, ValueError):
    """A release or a fault that does not exist; the message is one line."""


class Recorder:
    """The listener of an engine that turns what it hears into records."""

    def __init__(self, emit: Emit) -> None:
        self.emit = emit

    def looked_up(self, request: str, known: int, hit: int, junction: int, blocks: Columns) -> None:
        self.emit(trace.Lookup(request, known, hit, junction, tuple(tuple(column) for column in blocks)))

    def split(self, request: str, start: int, asked: int, granted: int, known: int, prompt: int, junction: int) -> None:
        self.emit(trace.Split(request, start, asked, granted, known, prompt, junction))

    def allocated(self, request: str, computed: int, tokens: int, hit: int, granted: bool, promised: int) -> None:
        self.emit(trace.Allocate(request, computed, tokens, hit, granted, promised))

    def offered(self, request: str, group: int, tokens: int) -> None:
        self.emit(trace.Cache(request, group, tokens))

    def named(self, request: str, group: int, block: int, position: int, digest: int) -> None:
        self.emit(trace.Commit(request, group, block, position, digest))

    def evicted(self, block: int) -> None:
        self.emit(trace.Evict(block))

    def took(self, blocks: Sequence[int]) -> None:
        self.emit(trace.Take(tuple(blocks)))

    def touched(self, blocks: Sequence[int]) -> None:
        self.emit(trace.Touch(tuple(blocks)))

    def freed(self, blocks: Sequence[int]) -> None:
        self.emit(trace.Free(tuple(blocks)))

    def pinned(self, blocks: Sequence[int], delta: int) -> None:
        self.emit(trace.Pin(tuple(blocks), delta))

    def table_changed(self, request: str, group: int, start: int, blocks: Sequence[int]) -> None:
        self.emit(trace.Table(request, group, start, tuple(blocks)))

    def preempted(self, request: str) -> None:
        self.emit(trace.Preempt(request))

    def finished(self, request: str, reason: str) -> None:
        self.emit(trace.Finish(request, reason))

    def output(self, step: int, tokens: Mapping[str, int]) -> None:
        self.emit(trace.Output(step, tuple(tokens.items())))

    def reported(self, counts: Sequence[int]) -> None:
        self.emit(trace.Statistics(*counts))


@dataclass
class Truth:
    """What the worker knows of one request and the scheduler does not yet.

    ``accept``: how many drafts are right, by verifying step, cycled; ``verified``: such steps so far. ``ahead``: wrong
    drafts in steps in flight, by which the scheduler's count of computed tokens is ahead of the truth, all in the
    request's ``stay``.
    """

    accept: tuple[int, ...]
    verified: int = 0
    ahead: int = 0
    stay: int = 0


@dataclass
class Worker:
    """Stands in for the model: knows which drafts are right. ``previous``: the requests of the last step that ran."""

    is_async: bool
    truths: dict[str, Truth] = field(default_factory=dict)
    previous: frozenset[str] = frozenset()

    def execute(self, plan: Plan) -> dict[str, int]:
        """Run a step; of each request how many of its drafts are right."""
        accepted = {chunk.request.name: self._verify(chunk) for chunk in plan.chunks}
        if plan.chunks:
            self.previous = frozenset(accepted)
        return accepted

    def _verify(self, chunk: Chunk) -> int:
        truth = self.truths[chunk.request.name]
        if chunk.fresh:
            truth.ahead, truth.stay = 0, chunk.stay
        # With steps in flight the worker has drafts only for the requests of the step before.
        if not chunk.drafts or (self.is_async and chunk.request.name not in self.previous):
            return 0
        right = min(truth.accept[truth.verified % len(truth.accept)], chunk.drafts)
        truth.verified += 1
        return right

    def scheduled(self, chunk: Chunk, accepted: int) -> trace.Scheduled:
        """A chunk as the worker computes it, which begins where the tokens that are right end."""
        truth = self.truths[chunk.request.name]
        start = chunk.start - truth.ahead
        blocks = tuple(tuple(column) for column in chunk.blocks)
        name, tokens, drafts = chunk.request.name, chunk.tokens, chunk.drafts
        truth.ahead += drafts - accepted
        return trace.Scheduled(name, start, chunk.start, tokens, drafts, accepted, chunk.samples, chunk.fresh, blocks)

    def processed(self, plan: Plan, accepted: Mapping[str, int]) -> None:
        """The scheduler has seen the output of a step, so it took back the wrong drafts itself."""
        for chunk in plan.chunks:
            truth = self.truths[chunk.request.name]
            if chunk.stay == truth.stay:
                truth.ahead -= chunk.drafts - accepted[chunk.request.name]


class Play:
    """One run of one scenario. ``records`` collects the trace until ``send`` is given a step's share."""

    def __init__(
        self,
        document: Scenario,
        shape: Shape,
        decisions: Decisions,
        *,
        record: bool,
        send: Callable[[list[trace.Record]], None],
    ) -> None:
        self.document = document
        self.drafts = shape.drafts
        self.depth = shape.steps_unseen
        self.records: list[trace.Record] = []
        self.emit: Emit = self.records.append if record else lambda record: None
        self.send = send
        self.scheduler = Scheduler(shape, Recorder(self.emit), decisions)
        self.worker = Worker(shape.steps_unseen > 0)
        self.prefixes = Prefixes()
        self.flights: deque[tuple[Plan, dict[str, int]]] = deque()

    def run(self) -> None:
        """Step until every request ended, nothing moves any more, or the limit of steps is reached."""
        events = {step.at: step for step in self.document.steps}
        last_event = max(events)
        limit = last_event + 1 + self._step_allowance()
        index = idle = 0
        while index <= last_event or self._live():
            executed = self._step(events.get(index))
            idle = 0 if executed or index <= last_event else idle + 1
            index += 1
            if idle >= IDLE_STEPS_LIMIT or index >= limit:
                break
            if index % SNAPSHOT_STEPS == 0:
                self._snapshot()
            self.flush()
        while self.flights:
            self._update()
        self._snapshot()
        self.emit(trace.End(index, tuple(sorted(self._live()))))
        self.flush()

    def flush(self) -> None:
        """Hand over what was recorded since the last time."""
        if self.records:
            self.send(self.records)
            self.records.clear()

    def _live(self) -> list[str]:
        """The requests that have not ended."""
        return [running.request.name for running in (*self.scheduler.waiting, *self.scheduler.running)]

    def _step_allowance(self) -> int:
        """Steps after the last event within which everything has ended."""
        requests = self.document.requests()
        return 4 * sum(prompt_tokens(request) + request.max_output for request in requests) + 200

    def _step(self, events: scenario.Step | None) -> bool:
        """One step with its events, and the update that is due; whether anything ran.

        A step's output is seen once as many others are in flight as may be, or when there is nothing more to schedule.
        """
        if events is not None:
            if events.reset:
                self.emit(trace.Reset(self.scheduler.reset()))
            self.scheduler.abort(events.abort)
            for request in events.add:
                self._add(request)
        plan = self.scheduler.schedule()
        self._execute(plan)
        if events is not None:
            self.scheduler.abort(events.abort_in_flight)
        executed = bool(plan.chunks)
        if len(self.flights) > self.depth or not (executed or self._live()):
            self._update()
        return executed

    def _add(self, request: scenario.Request) -> None:
        """A request arrives."""
        ids = self.prefixes.of_prompt(request.prompt)
        prompt = len(ids) - 1
        # Drafts and the token that a lookahead hash covers lie beyond the last output.
        self.prefixes.extend(ids, request.output_stream, 0, request.max_output + self.drafts + 2)
        self.worker.truths[request.id] = Truth(request.accept)
        self.scheduler.add(Request(request.id, ids, prompt, request.max_output, request.priority, request.skips_lookup))
        self.emit(trace.Add(request.id, request.prompt, request.output_stream, prompt))

    def _execute(self, plan: Plan) -> None:
        """Hand a step to the worker."""
        accepted = self.worker.execute(plan)
        scheduled = tuple(self.worker.scheduled(chunk, accepted[chunk.request.name]) for chunk in plan.chunks)
        waiting, running = len(self.scheduler.waiting), len(self.scheduler.running)
        dropped = tuple(sorted(plan.preempted)), tuple(sorted(plan.finished))
        self.emit(trace.Step(plan.step, scheduled, (), plan.copies, *dropped, waiting, running))
        self.flights.append((plan, accepted))

    def _update(self) -> None:
        """The output of the oldest step in flight comes back."""
        plan, accepted = self.flights.popleft()
        self.scheduler.update(plan, accepted)
        self.worker.processed(plan, accepted)

    def _snapshot(self) -> None:
        """Note the whole state."""
        pool = self.scheduler.tables.pool
        self.emit(
            trace.Snapshot(
                tuple((block, count) for block, count in enumerate(pool.references) if count),
                tuple(pool.free_list),
                tuple((group, block, digest) for (group, digest), holders in pool.holders.items() for block in holders),
                tuple(
                    (running.request.name, group, tuple(table))
                    for running in self.scheduler.running
                    for group, table in enumerate(running.tables)
                    if table
                ),
            )
        )


class ReferenceEngine:
    """The engine of the protocol. ``decide`` gives the decisions of one run."""

    def __init__(self, name: str, release: str, decide: Callable[[], Decisions] = Decisions) -> None:
        if release not in POLICIES:
            raise UnknownName(f"no policy for release {release!r}; there is {', '.join(POLICIES)}")
        self.name = name
        self.version = release
        self.release: str | None = release
        self._policy = POLICIES[release]
        self._decide = decide

    def run(self, scenario: Scenario, *, record: bool = True) -> Run:
        """Run one scenario. What goes wrong inside becomes a ``crash`` record, as with a real engine."""
        started = time.thread_time()
        if reason := refusal(scenario, self._policy):
            return Run([], reason)
        shape = derive(scenario, self._policy)
        lines: list[bytes] = []
        if record:
            runner = scenario.features.runner
            lines.append(trace.encoder.encode(trace.Header(REFERENCE, self.version, runner, setup_of(shape), scenario)))

        def send(records: list[trace.Record]) -> None:
            lines.append(trace.encoder.encode(records))

        play = Play(scenario, shape, self._decide(), record=record, send=send)
        built = time.thread_time()
        try:
            play.run()
        except Exception as error:  # an engine's failure is a result, not ours to raise
            play.emit(_crash(error))
            play.flush()
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
