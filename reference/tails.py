"""Partial tails: the one hash boundary inside a block that a request's prompt puts into the cache."""

from __future__ import annotations

from reference.arithmetic import floor_to
from reference.geometry import Group
from reference.policy import Policy
from reference.split import SplitSetting, resumable_position


def full_tail(policy: Policy, group: Group, prompt: int, hash_block: int, hashed: int) -> int:
    """The position in tokens that a full-attention group registers inside a block; 0 for none.

    It is the prompt's last hash boundary; later releases leave a token to compute, unless the group drops
    (it then reads the whole prompt and gives the last unit back). ``hashed``: tokens that hashes reach.
    """
    limit = prompt
    if policy.full_tail_keeps_one_token and not group.drops:
        limit = prompt - 1
    position = floor_to(min(limit, hashed), hash_block)
    return position if position % group.block != 0 else 0


def mamba_tail(policy: Policy, group: Group, prompt: int, hash_block: int, block_drop: bool, lookahead: int) -> int:
    """The position in tokens at which a Mamba group registers the prompt's last state; 0 for none.

    It is registered only when a chunk ends exactly there. ``block_drop``: the EAGLE drop is on.
    ``lookahead``: tokens a hash covers beyond its block.
    """
    if policy.tail_on_boundary:
        return resumable_position(policy, prompt, hash_block, block_drop, lookahead)
    lowered = {"never": False, "group": group.drops, "coordinator": block_drop}[policy.mamba_tail_drop]
    position = max(floor_to(prompt, hash_block) - (hash_block if lowered else 0), 0)
    return position if position % group.block != 0 else 0


def at_exact_junction(setting: SplitSetting, tokens: int, junction: int, computed: int, prompt: int) -> bool:
    """Whether a Mamba group registers the state after ``tokens`` tokens for the junction that they end on.

    With the opt-in, and in a chunk of the prompt: ``computed`` tokens were computed before it.
    """
    ends_there = setting.exact_junction and tokens == junction and tokens % setting.hash_block == 0
    return ends_there and computed < tokens <= prompt
