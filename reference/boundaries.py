"""The boundary list: the positions of a request at which a later one can resume."""

from __future__ import annotations

from reference.arithmetic import floor_to
from reference.geometry import Group
from reference.policy import Policy


def replay_boundaries(policy: Policy, prompt: int, scheduler_block: int, drops: bool) -> tuple[int, ...]:
    """Where a request that sends the same ``prompt`` tokens again, or extends them, can resume.

    A resend computes at least its last token. Under the EAGLE drop (``drops``) both resume one scheduler
    block lower than what is matched; releases before 0.30 overlook that.
    """
    if policy.replay_positions == "last token" or not drops:
        return (prompt - 1,)
    resend = max(floor_to(prompt - 1, scheduler_block) - scheduler_block, 0)
    extension = max(floor_to(prompt, scheduler_block) - scheduler_block, 0)
    return (resend, extension) if resend != extension else (resend,)


def boundary_list(
    policy: Policy, group: Group, prompt: int, junction: int, scheduler_block: int, drops: bool
) -> tuple[int, ...]:
    """All positions whose tails a group must keep for this request: replay boundaries and the junction.

    ``drops``: any group of the cache drops under EAGLE. From 0.33 a group that drops itself also keeps
    the tail one block below the junction, for a sibling that leaves the prefix right after it.
    """
    boundaries = replay_boundaries(policy, prompt, scheduler_block, drops)
    if junction == 0:
        return boundaries
    if policy.junction_keeps_lower_block and group.drops:
        return (*boundaries, junction, junction - group.block)
    return (*boundaries, junction)
