"""A small scheduler whose every decision is the one that the rest of the reference names.

One step serves the running requests first, then admits waiting ones, while budget and blocks last; when blocks run
out the last running request is preempted. Whoever drives it calls ``schedule``, has the plan computed, and tells by
``update`` how many drafts were right. Up to ``Shape.steps_unseen`` further steps may be scheduled before that: the
scheduler then counts on tokens that it has not seen, a token and all drafts for each step in flight that samples, and
takes back the drafts that were wrong once it sees them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from reference.admission import tokens_most
from reference.decisions import Decisions
from reference.listener import Columns, Listener
from reference.pool import Pool
from reference.prefix_cache import PrefixCache
from reference.request import Request, Running
from reference.shape import Shape
from reference.tables import Tables


@dataclass(frozen=True)
class Chunk:
    """What a step computes of one request: ``tokens`` tokens from ``start`` on, the last ``drafts`` of them drafts.

    ``start`` counts on every draft in flight. ``samples``: the last of the other tokens is the request's newest, so the
    step yields a token. ``fresh``: new or resumed; then ``blocks`` is its whole table per group, else what was
    appended. ``stay``: how often the request had been preempted.
    """

    request: Request
    stay: int
    start: int
    tokens: int
    drafts: int
    samples: bool
    fresh: bool
    blocks: Columns


@dataclass(frozen=True)
class Plan:
    """One step. The worker drops ``finished`` and ``preempted`` requests, makes ``copies``, computes ``chunks``."""

    step: int
    chunks: tuple[Chunk, ...]
    copies: tuple[tuple[int, int], ...]
    preempted: tuple[str, ...]
    finished: tuple[str, ...]


class Scheduler:
    """The engine: requests in, plans out. ``running``: in the order of admission, or under priorities of urgency."""

    def __init__(self, shape: Shape, listener: Listener, decisions: Decisions) -> None:
        self.shape = shape
        self.listener = listener
        self.decisions = decisions
        pool = Pool(shape.blocks, decisions, listener)
        self.cache = PrefixCache(shape, decisions, listener, pool)
        self.tables = Tables(shape, decisions, listener, pool, self.cache)
        self.waiting: deque[Running] = deque()
        self.running: list[Running] = []
        self.arrivals = 0
        self.steps = 0
        self.chunks: list[Chunk] = []
        self.preempted: list[str] = []
        self.finished: list[str] = []
        self.statistics = [0] * 6

    # Events.

    def add(self, request: Request) -> None:
        """A request arrives and waits."""
        self.waiting.append(Running(request, self.arrivals, len(self.shape.groups), request.prompt))
        self.arrivals += 1

    def abort(self, names: Collection[str]) -> None:
        """Requests are given up; names of others are ignored. What is in flight of them is nobody's."""
        for running in [item for item in (*self.running, *self.waiting) if item.request.name in names]:
            self._finish(running, "aborted")

    def reset(self) -> bool:
        """Empty the prefix cache, if no block is in use; whether it was done."""
        return self.tables.pool.reset()

    def _finish(self, running: Running, reason: str) -> None:
        """A request ends; its blocks are free at once."""
        self.listener.finished(running.request.name, reason)
        self.tables.release(running)
        (self.running if running in self.running else self.waiting).remove(running)
        self.finished.append(running.request.name)

    # Scheduling.

    def schedule(self) -> Plan:
        """Choose the chunks of one step."""
        self.chunks, self.preempted = [], []
        self.tables.open_step()
        threshold = self._threshold()
        budget = self._serve_running(self.decisions.budget(self.shape.budget), threshold)
        if not self.preempted:
            self._admit_waiting(budget, threshold)
        copies = tuple(self.tables.close_step())
        plan = Plan(self.steps, tuple(self.chunks), copies, tuple(self.preempted), tuple(self.finished))
        self.finished = []
        self.steps += 1
        return plan

    def _threshold(self) -> int:
        """The most tokens one request may take from this step."""
        shape, requests = self.shape, len(self.running) + len(self.waiting)
        return tokens_most(shape.policy, shape.budget, shape.long_prefill_threshold, requests)

    def _serve_running(self, budget: int, threshold: int) -> int:
        """Chunks for the running requests; gives what is left of the budget.

        Under the priority policy they are sorted by it, so whoever is preempted had no chunk yet: a block
        that a chunk of this step would have filled can never lose its writer.
        """
        index = 0
        while index < len(self.running) and budget > 0:
            running = self.running[index]
            granted = 0
            if not running.ends_in_flight:
                wanted = running.known + running.expected + running.drafts - running.computed
                granted = self._split(running, running.computed, min(wanted, threshold, budget))
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
            victim = self.running.pop(self.decisions.victim(len(self.running), served))
            self.listener.preempted(victim.request.name)
            self.tables.release(victim)
            victim.stay += 1
            self.waiting.appendleft(victim)
            self.preempted.append(victim.request.name)
            if victim is running:
                return False
        return True

    def _admit_waiting(self, budget: int, threshold: int) -> None:
        """Admit waiting requests, the first one first: whoever does not fit holds up the others."""
        while budget > 0 and self.waiting and len(self.running) < self.shape.sequences:
            running = self.waiting[0]
            if self.shape.by_priority:
                running = min(self.waiting, key=lambda item: item.urgency)
            found = self.cache.find(running)
            self._count(running, found.hit, admitted=False)
            running.junction = found.junction
            asked = min(running.known - found.hit, threshold, budget)
            granted = self._split(running, found.hit, asked)
            if granted <= 0 or not self.decisions.admits(running.request.name, found.hit, bool(self.running)):
                break
            if not self.tables.admit(running, found, granted, bool(self.running)):
                break
            self._count(running, found.hit, admitted=True)
            self.waiting.remove(running)
            self.running.append(running)
            self._plan(running, granted)
            budget -= granted
        if self.shape.by_priority:
            self.running.sort(key=lambda item: item.urgency)

    def _count(self, running: Running, hit: int, *, admitted: bool) -> None:
        """Enter a lookup into the statistics, those of requests that were preempted apart."""
        if self.shape.caching and not running.request.skips_lookup and self.decisions.counts_lookup(admitted):
            first = 3 if running.stay else 0
            for place, more in enumerate((1, running.known, hit), first):
                self.statistics[place] += more

    def _split(self, running: Running, start: int, asked: int) -> int:
        """The tokens that a chunk gets of those asked for."""
        if not self.shape.splits:
            return asked
        prompt, known, junction = running.request.prompt, running.known, running.junction
        granted = self.decisions.chunk(self.shape, start, asked, prompt, known, junction)
        self.listener.split(running.request.name, start, asked, granted, known, prompt, junction)
        return granted

    def _plan(self, running: Running, tokens: int) -> None:
        """Note a chunk that has its blocks. What the worker was told of a table once is never told again."""
        start, newest = running.computed, running.known + running.expected
        drafts = max(start + tokens - newest, 0)
        samples = start + tokens - drafts == newest
        fresh = not any(running.delivered)
        blocks = [table[told:] for table, told in zip(running.tables, running.delivered, strict=True)]
        self.chunks.append(Chunk(running.request, running.stay, start, tokens, drafts, samples, fresh, blocks))
        running.delivered = [len(table) for table in running.tables]
        running.computed += tokens
        running.in_flight += tokens
        running.drafts = 0
        if samples:
            running.sampling += 1
            running.expected += 1 + drafts
            # The worker will have drafts of its own by the next step, whichever they are.
            running.drafts = self.shape.drafts if self.shape.steps_unseen else 0

    # Output.

    def update(self, plan: Plan, accepted: Mapping[str, int]) -> None:
        """The output of a step comes back. ``accepted``: of each of its requests, how many drafts were right."""
        present = {item.request.name: item for item in (*self.running, *self.waiting)}
        sampled = []
        for chunk in plan.chunks:
            running = present.get(chunk.request.name)
            if running is None:
                continue
            running.in_flight -= chunk.tokens
            if chunk.samples and self._is_wanted(running, chunk):
                left = running.request.prompt + running.request.max_output - running.known
                sampled.append((running, chunk, min(accepted[chunk.request.name] + 1, left)))
        self.listener.output(plan.step, {running.request.name: tokens for running, _, tokens in sampled})
        for running, chunk, tokens in sampled:
            running.known += tokens
            if chunk.stay == running.stay:
                self._confirm(running, chunk, accepted[chunk.request.name])
            if running.known == running.request.prompt + running.request.max_output:
                self._finish(running, "length")
        if any(self.statistics):
            self.listener.reported(self.statistics)
            self.statistics = [0] * 6

    def _is_wanted(self, running: Running, chunk: Chunk) -> bool:
        """Whether the tokens are not those that a request computes anew, since it was preempted and runs again."""
        return chunk.stay == running.stay or running not in self.running

    def _confirm(self, running: Running, chunk: Chunk, accepted: int) -> None:
        """What was expected of a chunk has come; drafts that were wrong are taken back."""
        running.sampling -= 1
        running.expected -= 1 + chunk.drafts
        running.computed -= chunk.drafts - accepted
        if self.shape.drafts and not self.shape.steps_unseen:
            running.drafts = self.shape.drafts
        # Since hashes look ahead, what was verified enters the cache at once, not with the next chunk; with steps in
        # flight that one was planned before the tokens were known.
        at_once = self.shape.policy.commits_at_output and self.shape.drafts > 0
        if at_once or self.shape.steps_unseen:
            self.cache.offer(running, running.known - 1)
