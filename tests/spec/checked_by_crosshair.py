"""Functions that CrossHair checks: what the reference's split promises. Their preconditions are in their docstrings.

All of 0.33.0 at grid 16 and hashes of 4, for fresh requests with plain features: every start, number of tokens
asked, prompt, junction on a block boundary and room, with and without the EAGLE drop.
"""

from __future__ import annotations

from reference.policy import NEWEST
from reference.split import SplitSetting
from spec.claims.split import CLAIMS, SplitCase, one_too_many, run_split
from spec.domains import Inputs

PROMISED = [claim for claim in CLAIMS if claim.id in ("S1", "S2", "S3", "S4")]


def case_of(start: int, end: int, prompt: int, junction: int, room: int, drop: bool) -> SplitCase:
    """The case of a fresh request."""
    inputs = Inputs(SplitSetting(16, 4, 16, room, drop), 16, start, end, prompt, prompt, junction)
    return run_split(NEWEST, None, inputs)


def keeps_its_rules(case: SplitCase) -> bool:
    """Whether S1 to S4 hold."""
    return all(claim.predicate(case) for claim in PROMISED if claim.premise(case))


def split_keeps_its_rules(start: int, end: int, prompt: int, junction: int, room: int, drop: bool) -> bool:
    """
    pre: 0 <= start < end <= prompt and room >= 1
    pre: 0 <= junction < prompt and junction % 16 == 0
    post: __return__
    """
    return keeps_its_rules(case_of(start, end, prompt, junction, room, drop))


def split_with_a_fault_keeps_its_rules(start: int, end: int, prompt: int, junction: int, room: int, drop: bool) -> bool:
    """
    pre: 0 <= start < end <= prompt and room >= 1
    pre: 0 <= junction < prompt and junction % 16 == 0
    post: __return__
    """
    case = case_of(start, end, prompt, junction, room, drop)
    return keeps_its_rules(one_too_many(case) if start == 48 and room == 77 else case)


def premise_is_empty(start: int, end: int) -> bool:
    """
    pre: start < end < start
    post: __return__
    """
    return start == end
