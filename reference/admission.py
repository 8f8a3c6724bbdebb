"""Admission: how many free blocks a chunk uses up, and whether a request gets them.

A request that waits is admitted if the pool has the blocks of its first chunk and, where full sequences are reserved,
of all its tokens, the blocks kept free on top. A request that runs only needs those of its next chunk.
Source: ``KVCacheManager.allocate_slots`` and the managers' ``get_num_blocks_to_allocate``, all releases.
"""

from __future__ import annotations

from collections.abc import Sequence

from reference.arithmetic import ceil_div
from reference.exports import saved_column
from reference.geometry import Group
from reference.policy import Policy


class Share:
    """What one group has of a request before blocks are asked for.

    ``columns``: entries of its table, those of a hit included. ``reclaimed``: blocks of the hit that are free, and no
    longer are once they are adopted. ``copies``: a block inside which the hit ends, or whose hash the next chunk would
    overwrite, needs a copy. ``started``: it has been given new blocks before. ``unwritten``: the state that the hit
    starts from is only written by this very step; ``copies_unwritten``: so is what the copy is made of. ``saves``: a
    block is reserved for a state that is saved inside the chunk.
    """

    def __init__(
        self,
        columns: int,
        reclaimed: int = 0,
        copies: bool = False,
        started: bool = False,
        unwritten: bool = False,
        copies_unwritten: bool = False,
        saves: bool = False,
    ) -> None:
        self.columns = columns
        self.reclaimed = reclaimed
        self.copies = copies
        self.started = started
        self.unwritten = unwritten
        self.copies_unwritten = copies_unwritten
        self.saves = saves

    def saving(self, saves: bool) -> Share:
        """The same share, with or without the block that is reserved."""
        return Share(
            self.columns, self.reclaimed, self.copies, self.started, self.unwritten, self.copies_unwritten, saves
        )


def tokens_most(policy: Policy, budget: int, threshold: int, requests: int) -> int:
    """The most tokens that one of so many ``requests``, waiting ones included, may take from a step.

    ``budget``: the tokens of the step; ``threshold``: those of one request (0: no such limit). Source:
    ``Scheduler.schedule``, all releases.
    """
    if threshold == 0 or (requests <= 1 and policy.lone_request_ignores_threshold):
        return budget
    return threshold


def attention_blocks(slots: int, block: int, share: Share, most: int | None = None) -> int:
    """Free blocks that an attention group uses up for ``slots`` token slots in all; ``most`` caps those it holds."""
    required = ceil_div(slots, block)
    if most is not None:
        required = min(required, most)
    return max(required - share.columns, 0) + share.copies + share.reclaimed


def state_blocks(policy: Policy, end: int, block: int, spare: int, share: Share) -> int:
    """Free blocks that a Mamba group uses up for a chunk that ends at ``end`` tokens.

    It needs one for the state in the column of ``end`` and ``spare`` more, a draft token each. It is below zero where
    the table is longer than that, since drafts were taken back. Where a state is saved inside the chunk and spare
    blocks stay behind, they are needed anew; 0.30 then counts a block for each column that is run past, too.
    """
    wanted = ceil_div(end, block) + spare - share.columns
    if share.copies:
        wanted = max(wanted, 0) + 1
    if wanted > 0:
        renewed = share.saves and share.started and policy.spares_at_saving == "stay"
        most = 1 + share.copies + share.saves + (0 if share.started and not renewed else spare)
        if not policy.rounds_up_states:
            wanted = min(wanted, most)
        elif not renewed:
            wanted = most
    return wanted + share.reclaimed


def counted_for_nothing(policy: Policy, end: int, block: int, share: Share) -> int:
    """Blocks that ``state_blocks`` counts for a state that is saved inside the chunk, and that nobody takes.

    0.29 counts one where the column is that of the hit, which is not in the table yet; 0.30 counts the columns that a
    running request runs past.
    """
    if not share.saves or not policy.rounds_up_states:
        return 0
    column = saved_column(end, block)
    if not share.started:
        return int(share.columns > column)
    return max(column - share.columns, 0) if policy.spares_at_saving == "stay" else 0


def window_blocks_most(group: Group, in_flight: int, model_length: int) -> int:
    """The most blocks that a sliding window ever holds of a request.

    ``in_flight``: the tokens that steps in flight can hold, whose blocks are not given back yet. All in tokens. One
    more, for a window need not start on a block boundary.
    """
    return ceil_div(min(group.window - 1 + in_flight, model_length), group.block) + 1


def chunk_blocks_most(group: Group, in_flight: int, model_length: int) -> int:
    """The most blocks that chunked-local attention ever holds of a request: those of an attention chunk and of the
    tokens ``in_flight``, all in tokens. An attention chunk starts on a block boundary.
    """
    return ceil_div(min(group.attention_chunk + in_flight, model_length), group.block)


def held_most(groups: Sequence[Group], budget: int, steps_unseen: int, model_length: int) -> list[int | None]:
    """By group, the most blocks that it ever holds of a request; None for full attention and Mamba: nothing caps them.

    ``budget``: the tokens that one step can hold; ``steps_unseen``: steps in flight beside the one that is planned.
    """
    in_flight = (steps_unseen + 1) * budget
    most = {"swa": window_blocks_most, "chunked": chunk_blocks_most}
    return [most[one.kind](one, in_flight, model_length) if one.kind in most else None for one in groups]


def used_up(
    policy: Policy,
    groups: Sequence[Group],
    shares: Sequence[Share],
    end: int,
    slots: int,
    spare: int,
    most: Sequence[int | None] | None = None,
) -> int:
    """Free blocks that all groups use up for tokens up to ``end``, attention for so many ``slots``.

    ``spare``: draft tokens; ``most``: by group what caps the blocks it holds (None: nothing does).
    """
    total = 0
    for group, share, cap in zip(groups, shares, most or [None] * len(groups), strict=True):
        if group.kind == "mamba":
            total += state_blocks(policy, end, group.block, spare, share)
        else:
            total += attention_blocks(slots, group.block, share, cap)
    return total


def refusal(whole: int | None, chunk: int, usable: int, unwritten: bool) -> str:
    """Why a request gets no blocks, in words; empty if it gets them. All are counts of blocks.

    ``whole``, ``chunk``: those that its whole sequence (None: not asked for) and its chunk use up. ``usable``: the
    free ones, less those to be kept free. ``unwritten``: its hit starts from a state that this step writes.
    """
    if unwritten:
        return "its hit starts from a state that this very step writes"
    if whole is not None and whole > usable:
        return f"its whole sequence needs {whole} blocks, and {usable} may be used"
    if chunk > usable:
        return f"its chunk needs {chunk} blocks, and {usable} may be used"
    return ""
