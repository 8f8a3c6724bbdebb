"""What differs between vLLM releases, as data: one ``Policy`` a release, each a small change of the last.

The differences were read from the releases' own sources (``v1/core/sched/scheduler.py``,
``v1/core/kv_cache_coordinator.py``, ``v1/core/single_type_kv_cache_manager.py``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True)
class Policy:
    """How a release decides.

    ``aligns_to_prefill_end``: every chunk short of the prefill end is floored to the split's grid (before:
    only chunks short of the last cacheable position), and a chunk that starts inside a block always stops
    at the next boundary.
    ``allows_wide_blocks``: a block wider than the step's room is advanced through in pieces.
    ``keeps_one_token``: without the EAGLE drop the last cacheable position and the partial tail leave at
    least one prompt token to compute.
    ``tail_stop``: the split stops at the partial tail wherever hashes are finer than the scheduler block, or
    only where partial hits are on.
    ``tail_drops``: the partial tail lies one hash block lower under the EAGLE drop.
    ``internal_checkpoint``: which chunks can save a state inside: none, those that start on a block, or
    the final chunk where the saved position is valid.
    ``checkpoint_unit``: the unit of the saved position: the hash block, or the hash block only with partial
    hits and the scheduler block without.
    ``reserves_for_last_chunk``: under interval 0 a block is reserved for a saved state in the last chunk of a prefill
    only.
    ``spares_at_saving``: which spare blocks move along with the state where one is saved inside the chunk: all that it
    passes, none, or all but the one in the column that is reserved.
    ``saved_kept``: which saved states enter the cache beside the junction's and those that the interval keeps: in
    chunks that end the prompt all; the prompt's own position, too; or that one and no other.
    ``replay_positions``: the boundary list starts from the prompt's last token, or from the two positions
    at which a resend and an extension resume under the EAGLE drop.
    ``junction_keeps_lower_block``: an EAGLE group also keeps the tail one block below the junction.
    ``peek_ends_at``: how far an EAGLE group may look beyond the candidate length: the hit's own limit, or
    the last hashed token.
    ``full_tail_keeps_one_token``: the partial tail of full attention leaves one prompt token, unless the
    group drops.
    ``tail_on_boundary``: a Mamba partial tail is registered also where it falls on a block boundary.
    ``mamba_tail_drop``: whose EAGLE flag lowers the Mamba partial tail that is registered: nobody's, the
    group's own, or the coordinator's.
    ``mask_alignment``: the unit that a mask floors boundaries to: the scheduler block, or the unit in which
    hits are granted (finer with partial hits).
    ``lookahead_hashes``: under EAGLE a hash can cover the token after its block, which replaces the drop.
    ``commits_at_output``: accepted tokens are cached when their output comes, not with the next chunk.
    ``rounds_up_states``: a Mamba group that needs any block asks for as many as it could ever need at once (later: no
    more than it takes).
    ``retires_across_gaps``: every state that was passed is given back, not only those up to the first column without.
    ``names_tail_once``: a tail that is in the cache already does not count as written again (before: requests that
    hit it wait for as long as its writer comes back to it).
    ``lone_request_ignores_threshold``: the long-prefill threshold does not bind a request that is alone.
    """

    release: str
    aligns_to_prefill_end: bool
    allows_wide_blocks: bool
    keeps_one_token: bool
    tail_stop: Literal["finer hashes", "partial hits"]
    tail_drops: bool
    internal_checkpoint: Literal["none", "aligned start", "final chunk"]
    checkpoint_unit: Literal["hash block", "hash block if partial"]
    reserves_for_last_chunk: bool
    spares_at_saving: Literal["move", "stay", "reserved one stays"]
    saved_kept: Literal["beyond the prompt", "prompt's own or beyond", "prompt's own or retained"]
    replay_positions: Literal["last token", "resume positions"]
    junction_keeps_lower_block: bool
    peek_ends_at: Literal["limit", "hashed tokens"]
    full_tail_keeps_one_token: bool
    tail_on_boundary: bool
    mamba_tail_drop: Literal["never", "group", "coordinator"]
    mask_alignment: Literal["scheduler block", "hit alignment"]
    lookahead_hashes: bool
    commits_at_output: bool
    rounds_up_states: bool
    retires_across_gaps: bool
    names_tail_once: bool
    lone_request_ignores_threshold: bool


V0_26 = Policy(
    release="0.26.0",
    aligns_to_prefill_end=False,
    allows_wide_blocks=False,
    keeps_one_token=False,
    tail_stop="finer hashes",
    tail_drops=False,
    internal_checkpoint="none",
    checkpoint_unit="hash block",
    reserves_for_last_chunk=False,
    spares_at_saving="move",
    saved_kept="beyond the prompt",
    replay_positions="last token",
    junction_keeps_lower_block=False,
    peek_ends_at="limit",
    full_tail_keeps_one_token=False,
    tail_on_boundary=False,
    mamba_tail_drop="never",
    mask_alignment="scheduler block",
    lookahead_hashes=False,
    commits_at_output=False,
    rounds_up_states=True,
    retires_across_gaps=False,
    names_tail_once=False,
    lone_request_ignores_threshold=False,
)
V0_27 = replace(V0_26, release="0.27.1", aligns_to_prefill_end=True, allows_wide_blocks=True)
V0_28 = replace(V0_27, release="0.28.0", tail_stop="partial hits")
V0_29 = replace(V0_28, release="0.29.0", internal_checkpoint="aligned start", mask_alignment="hit alignment")
V0_30 = replace(
    V0_29,
    release="0.30.0",
    internal_checkpoint="final chunk",
    spares_at_saving="stay",
    tail_drops=True,
    mamba_tail_drop="group",
    replay_positions="resume positions",
    retires_across_gaps=True,
)
V0_31 = replace(
    V0_30,
    release="0.31.0",
    mamba_tail_drop="coordinator",
    reserves_for_last_chunk=True,
    saved_kept="prompt's own or beyond",
    rounds_up_states=False,
    lone_request_ignores_threshold=True,
)
V0_32 = replace(
    V0_31,
    release="0.32.0",
    keeps_one_token=True,
    checkpoint_unit="hash block if partial",
    spares_at_saving="reserved one stays",
    saved_kept="prompt's own or retained",
    peek_ends_at="hashed tokens",
    full_tail_keeps_one_token=True,
    tail_on_boundary=True,
)
V0_33 = replace(
    V0_32,
    release="0.33.0",
    junction_keeps_lower_block=True,
    lookahead_hashes=True,
    commits_at_output=True,
    names_tail_once=True,
)

POLICIES: dict[str, Policy] = {
    policy.release: policy for policy in (V0_26, V0_27, V0_28, V0_29, V0_30, V0_31, V0_32, V0_33)
}
NEWEST = V0_33
