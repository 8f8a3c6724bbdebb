"""Public reports of vLLM that a rule would have caught: by rule, the threads and what went wrong."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Report:
    """``threads``: numbers of vLLM's issues and pull requests; ``rules``: those that it breaks."""

    rules: tuple[str, ...]
    threads: tuple[int, ...]
    sentence: str


REPORTS: tuple[Report, ...] = (
    Report(("C1", "S2"), (43559, 51113), "A state from inside a block was hashed as the state of the block's end."),
    Report(("C1", "S2"), (54076,), "The split's grid is the smallest block of all groups, not the Mamba group's."),
    Report(("C1",), (49377, 49449), "A block completed by a token that was dropped later kept its hash."),
    Report(("C1",), (57580, 43569), "Hashes stay behind when a request is preempted in the step that made them."),
    Report(("U1", "R2"), (53504,), "Under EAGLE a resend resumes one block below the boundary that was kept."),
    Report(("U1", "R1"), (57610,), "A request that diverges inside the last unit finds one window block too few."),
    Report(("P1",), (45414, 40757), "A budget below a block makes every chunk empty, for ever."),
    Report(("P1",), (40707, 51603), "A chunk cut before an image is floored to nothing."),
    Report(("P1",), (46315,), "With drafts a chunk stops one token before an image that cannot be encoded."),
    Report(("P1",), (57104,), "Loads reserve the prompt only, and then wait for each other's draft slots."),
    Report(("A1",), (46283,), "Blocks of a remote load that was aborted are not given back."),
    Report(("L1", "C2"), (46453,), "With a connector the local hit was the longest group hit, not the agreed one."),
    Report(("T1",), (43736,), "A lookup is counted again each time that its request could not be admitted."),
    Report(("P3",), (46892,), "A hit from outside takes one Mamba block more than was counted."),
    Report(("P3",), (50687,), "Recovery from a failed load assumed one group."),
)


def reports_on(rule: str) -> list[Report]:
    """The reports of one rule."""
    return [report for report in REPORTS if rule in report.rules]
