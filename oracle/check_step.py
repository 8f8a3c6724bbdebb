"""Checks of whole steps: A3 for limits, S1 against the split, P1 for progress."""

from __future__ import annotations

from oracle import trace
from oracle.case import Case, RequestState
from reference.rules import IDLE_STEPS_LIMIT


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


def check_limits(case: Case, record: trace.Step) -> None:
    """A3: budget, sequences and positive counts."""
    limits = case.scenario.limits
    if not case.judged("A3"):
        return
    total = sum(item.tokens for item in record.scheduled)
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
        if item.tokens < 1 or item.start < 0 or not 0 <= item.accepted <= item.drafts < item.tokens:
            case.report(
                "A3",
                "step",
                f"{item.request} is scheduled with {item.tokens} tokens from {item.start}, {item.drafts} of them "
                f"drafts",
                request=item.request,
                expected="positive counts",
                actual=f"{item.tokens} tokens, {item.drafts} drafts",
            )


class Progress:
    """Counts the steps in a row in which nothing moved."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.idle_steps = 0

    def check(self, record: trace.Step) -> None:
        """P1: some request advances in every ``IDLE_STEPS_LIMIT`` steps while one waits."""
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
