"""Checks of whole steps: A3 for limits, S1 against the split, P1 and P2 for progress, M5 for victims."""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice

from oracle import trace
from oracle.case import Case, RequestState
from reference.rules import IDLE_STEPS_LIMIT, STARVED_STEPS_LIMIT


def check_chunk(case: Case, item: trace.Scheduled, state: RequestState) -> None:
    """S1, its second part: a step holds no more of a request than the split gave."""
    granted, state.granted = state.granted, None
    if granted is not None and item.tokens > granted:
        case.report(
            "S1",
            "step",
            f"the split gave {item.request} {granted} tokens from {item.planned}, and the step holds {item.tokens}",
            request=item.request,
            expected=f"at most {granted} tokens",
            actual=f"{item.tokens} tokens",
        )


def check_limits(case: Case, record: trace.Step, total: int) -> None:
    """A3: budget, sequences and positive counts. ``total``: the tokens that the step holds."""
    limits = case.scenario.limits
    if not case.judged("A3"):
        return
    if total > limits.budget:
        case.report(
            "A3",
            "step",
            f"the step holds {total} tokens",
            expected=f"at most {limits.budget}",
            actual=total,
        )
    count = max(len(record.scheduled), record.running)
    if count > limits.sequences:
        case.report("A3", "step", f"{count} sequences run", expected=f"at most {limits.sequences}", actual=count)
    for item in record.scheduled:
        tokens, drafts = item.tokens, item.drafts
        if tokens < 1 or item.start < 0 or not 0 <= item.accepted <= drafts < tokens:
            case.report(
                "A3",
                "step",
                f"{item.request} is scheduled with {tokens} tokens from {item.start}, {drafts} of them drafts",
                request=item.request,
                expected="positive counts",
                actual=f"{tokens} tokens, {drafts} drafts",
            )


class Progress:
    """Counts the steps in a row in which nothing moved, and those in which a request was passed over.

    ``waiting``: requests that wait, in the order in which they came; ``running``: the others that have not ended.
    ``urgency``: of each request under the priority policy, the least urgent has the most: priority, then arrival.
    ``passed_over``: steps in a row without a token for a request that had room. ``refused``: requests that did not
    get the blocks that they asked for in this step.
    """

    def __init__(self, case: Case) -> None:
        self.case = case
        self.idle_steps = 0
        self.waiting: OrderedDict[str, None] = OrderedDict()
        self.running: dict[str, None] = {}
        self.passed_over: dict[str, int] = {}
        self.refused: set[str] = set()
        self.judges_order = case.scenario.features.policy == "fcfs"
        self.priorities = {request.id: request.priority for request in case.scenario.requests()}
        self.urgency: dict[str, tuple[int, int]] = {}
        self.arrivals = 0

    def add(self, request: str) -> None:
        """A request arrives, and waits."""
        self.waiting[request] = None
        self.urgency[request] = (self.priorities.get(request, 0), self.arrivals)
        self.arrivals += 1

    def refuse(self, request: str) -> None:
        """There were no blocks for it."""
        self.refused.add(request)

    def preempt(self, request: str) -> None:
        """It waits again, before all others; M5: it was its turn to go."""
        if self.running and self.case.policy is not None and self.case.judged("M5"):
            victim = next(reversed(self.running))
            if not self.judges_order:
                victim = max(self.running, key=lambda name: self.urgency[name])
            if victim != request:
                self.case.report(
                    "M5",
                    "preempt",
                    f"{request} was preempted while {victim} ran, who is to go before it",
                    request=request,
                    expected=victim,
                    actual=request,
                )
        self.running.pop(request, None)
        self.waiting[request] = None
        self.waiting.move_to_end(request, last=False)
        self.refused.add(request)

    def finish(self, request: str) -> None:
        """It ended."""
        self.waiting.pop(request, None)
        self.running.pop(request, None)
        self.passed_over.pop(request, None)

    def forget(self, request: str) -> None:
        """It ended long ago."""
        self.finish(request)
        self.urgency.pop(request, None)

    def check(self, record: trace.Step, total: int) -> None:
        """P1: some request advances in every ``IDLE_STEPS_LIMIT`` steps while one waits; then P2.

        ``total``: the tokens that the step holds.
        """
        self._check_next(record, total)
        if record.scheduled or record.waiting + record.running == 0:
            self.idle_steps = 0
            return
        self.idle_steps += 1
        if self.case.judged("P1") and self.idle_steps == IDLE_STEPS_LIMIT:
            self.case.report(
                "P1",
                "step",
                f"{record.waiting} requests wait and {record.running} run, and none got a token in "
                f"{IDLE_STEPS_LIMIT} steps",
                expected="some request advances",
                actual="none does",
            )

    def _check_next(self, record: trace.Step, total: int) -> None:
        """P2: whoever is next, and every request that runs, gets tokens while others do and there is room."""
        served = {item.request: None for item in record.scheduled}
        for request in served:
            self.waiting.pop(request, None)
            self.running[request] = None
        refused, self.refused = self.refused, set()
        if not self.judges_order:
            return
        limits = self.case.scenario.limits
        left = limits.budget - total
        candidates: list[str] = []
        if left > 0 and served and not refused:
            candidates = [request for request in self.running if request not in served]
            if record.running < limits.sequences:
                candidates.extend(islice(self.waiting, 1))
        counts = {request: self.passed_over.get(request, 0) + 1 for request in candidates}
        self.passed_over = counts
        if not counts or not self.case.judged("P2", len(counts)):
            return
        for request, steps in counts.items():
            if steps == STARVED_STEPS_LIMIT:
                self.case.report(
                    "P2",
                    "step",
                    f"{request} got no token in {steps} steps in a row, though in each a sequence was free for it, "
                    f"no blocks were refused and budget was left ({left} tokens in the last), while others advanced",
                    request=request,
                    expected=f"a token within {STARVED_STEPS_LIMIT} steps",
                    actual="none",
                )

    def end(self, record: trace.End) -> None:
        """P1 at the end: nobody may be left."""
        if self.case.judged("P1") and record.unfinished:
            self.case.report(
                "P1",
                "step",
                f"after {record.steps} steps {', '.join(record.unfinished)} had not ended",
                request=record.unfinished[0],
                expected="every request ends",
                actual=f"{len(record.unfinished)} never did",
            )
