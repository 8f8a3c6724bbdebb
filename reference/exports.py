"""States that a backend saves inside a chunk: which state, and in which column of the worker's block table.

The backend works from what it is given, a chunk's two ends; it knows neither the prompt nor what the scheduler means to
keep. Source: ``compute_mamba_prefill_checkpoints`` of the releases, before 0.31 in the metadata of the KDA backend.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from reference.arithmetic import ceil_div, floor_to
from reference.geometry import Group
from reference.policy import Policy
from reference.retention import keep
from reference.split import SplitSetting, saved_position, saves_inside

Exports = Callable[[int, int], tuple[int, int] | None]
"""Asked with a chunk's start and end, in tokens: the position whose state is saved, and the column, or None."""


def exporter(policy: Policy, setting: SplitSetting, block: int, asked_unit: int) -> Exports | None:
    """What a backend with Mamba blocks of ``block`` tokens saves; None where it saves nothing.

    ``asked_unit``: the unit of hits that was asked for, in tokens, or 0. Backends of 0.30 and 0.31 go by it, and by
    their own block where there is none.
    """
    if setting.checkpoint_alignment == 0 or policy.internal_checkpoint == "none":
        return None
    if policy.internal_checkpoint == "aligned start":
        return lambda start, end: last_boundary(block, start, end)
    unit = asked_unit or block if policy.checkpoint_unit == "hash block" else setting.hash_block
    told = replace(setting, grid=block, hash_block=unit)

    def export(start: int, end: int) -> tuple[int, int] | None:
        # To the backend every chunk might be the last.
        if not saves_inside(policy, told, start, end, end):
            return None
        return saved_position(policy, told, end), saved_column(end, block)

    return export


def last_boundary(block: int, start: int, end: int) -> tuple[int, int] | None:
    """The last block boundary inside a chunk that ends beyond it, as 0.29 saves it."""
    position = floor_to(end, block)
    return (position, position // block - 1) if start < position < end else None


class Reservations:
    """For which chunks Mamba groups reserve a block for a state that is saved inside, and which state that is.

    ``block``: theirs, in tokens; ``interval``: the retention interval. Under interval 0 later releases reserve for the
    last chunk of a prefill only, and the backend, which does not know that, saves all the same.
    """

    def __init__(self, policy: Policy, setting: SplitSetting, block: int, interval: int | None) -> None:
        self._block = block
        self._aligned_start = policy.internal_checkpoint == "aligned start"
        self._last_only = policy.reserves_for_last_chunk and interval == 0
        self._export = None if self._aligned_start else exporter(policy, setting, block, setting.hash_block)

    def saved(self, start: int, end: int, prefill_end: int) -> tuple[int, int] | None:
        """The position and the column of the state that is to be saved inside a chunk, where that is known (not in
        0.29)."""
        if self._export is None or (self._last_only and end < prefill_end):
            return None
        return self._export(start, end)

    def reserve(self, start: int, end: int, prefill_end: int) -> bool:
        """Whether a block more is asked for.

        By the chunk alone; whether the column is open is asked beside it (``holdings.is_open``). 0.29 asks under EAGLE,
        too, where its split counts on nothing that is saved.
        """
        if self._aligned_start:
            return start % self._block == 0 and end % self._block != 0 and end > self._block
        return self.saved(start, end, prefill_end) is not None


def saved_column(end: int, block: int) -> int:
    """The column before the one in which a chunk ends: the state that is saved inside the chunk goes there."""
    return ceil_div(end, block) - 2


def keeps_saved(
    policy: Policy,
    setting: SplitSetting,
    group: Group,
    position: int,
    prompt: int,
    junction: int,
    tokens: int,
    alignment: int,
    interval: int | None,
) -> bool:
    """Whether a state that was saved inside a chunk enters the cache, under its own position.

    ``tokens``: how many the group may cache. ``alignment``: the unit to which masks floor, ``interval``: the retention
    interval, which before 0.32 keeps them all unless it is 0. Where a state is not kept its block leaves the cache.
    """
    if position == junction:
        return True
    if policy.saved_kept != "beyond the prompt" and position == saved_position(policy, setting, prompt):
        return True
    if policy.saved_kept != "prompt's own or retained":
        return interval != 0 or tokens >= prompt
    return position % group.block == 0 and keep(group, position // group.block - 1, alignment, interval, ())
