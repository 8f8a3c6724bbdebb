"""M1, its second part: how many tokens a chunk asks for, of those that are left and of the step's budget."""

from __future__ import annotations

from oracle import trace
from oracle.case import Case, RequestState
from oracle.check_step import Progress
from reference.admission import tokens_most


class Asked:
    """Follows the budget of the step that is planned, and what requests wait for from steps in flight.

    ``left``: tokens of the step that nobody has; ``given``: those that each request has; ``refused``: those that one
    asked for and did not get, and asks for again once another was preempted, whatever that gave back. ``pending``: by
    request, how many steps in flight will bring it a token; ``steps``: by step, who samples in it, and at which stay.

    With drafts only a prefill is judged, and of a request that never was preempted: how many drafts it has to verify
    later is the draft model's, and releases pad a first chunk of one token, and that of a request that comes back.
    """

    def __init__(self, case: Case, progress: Progress) -> None:
        self.case = case
        self.progress = progress
        self.judges = case.policy is not None
        self.drafts = case.scenario.features.drafts > 0
        self.budget = case.scenario.limits.budget
        self.threshold = case.scenario.limits.long_prefill_threshold
        self.left = self.budget
        self.given: dict[str, int] = {}
        self.refused: dict[str, int] = {}
        self.pending: dict[str, int] = {}
        self.steps: dict[int, list[tuple[str, int]]] = {}

    def split(self, record: trace.Split) -> None:
        """A chunk goes to the split, which may give less."""
        if self.judges:
            self._judge(self.case.request(record.request), "split", record.start, record.asked, record.known)

    def allocate(self, record: trace.Allocate, state: RequestState) -> None:
        """A chunk asks for blocks; without a split these are the tokens that it asks for."""
        if not self.judges:
            return
        if not self.case.setup.split:
            self._judge(state, "allocate", record.computed, record.tokens, state.known)
        if not record.granted:
            self.refused[record.request] = record.tokens
        else:
            self.left -= record.tokens
            self.given[record.request] = record.tokens

    def preempt(self, request: str) -> None:
        """What it has of this step goes to others; what is in flight of it is nobody's."""
        self.left += self.given.pop(request, 0)
        self.pending.pop(request, None)

    def finish(self, request: str) -> None:
        """It ended."""
        self.pending.pop(request, None)

    def step(self, record: trace.Step) -> None:
        """The step is planned; the next one has its whole budget."""
        self.left = self.budget
        self.given.clear()
        self.refused.clear()
        if not self.judges:
            return
        sampling = [item.request for item in record.scheduled if item.samples]
        for request in sampling:
            self.pending[request] = self.pending.get(request, 0) + 1
        self.steps[record.index] = [(request, self.case.request(request).preemptions) for request in sampling]

    def output(self, record: trace.Output) -> None:
        """The tokens of a step are known; those of a request that was preempted since were given up."""
        for request, stay in self.steps.pop(record.index, ()):
            state = self.case.requests.get(request)
            if state is not None and state.preemptions == stay and self.pending.get(request):
                self.pending[request] -= 1

    def _judge(self, state: RequestState, decision: str, start: int, asked: int, known: int) -> None:
        request = state.name
        missing = known + self.pending.get(request, 0) - start
        if self.drafts and (known > state.prompt or missing <= 1 or state.preemptions):
            return
        if not self.case.judged("M1"):
            return
        expected = self.refused.get(request, min(missing, self._most(), self.left))
        if asked != expected:
            self.case.report(
                "M1",
                decision,
                f"{request} has {start} tokens computed and {missing} to compute, of this step's {self.budget} tokens "
                f"{self.left} are left, and one request gets {self._most()} at most",
                request=request,
                expected=f"{expected} tokens",
                actual=f"{asked} tokens",
            )

    def _most(self) -> int:
        """The most tokens of a step that one request gets."""
        assert self.case.policy is not None
        requests = len(self.progress.waiting) + len(self.progress.running)
        return tokens_most(self.case.policy, self.budget, self.threshold, requests)
