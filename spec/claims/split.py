"""The claims about the split: S1 to S12, and the links of U1 that join it to the retention mask."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from reference import rules, split
from reference.arithmetic import floor_to
from reference.policy import Policy
from reference.split import SplitSetting
from spec.claim import Claim, Control
from spec.domains import Features, Inputs, Sizes
from spec.space import Outside

PREMISES = (
    "0 <= start, and start + asked <= known, asked >= 1: a call that asks for tokens that the request has. Nothing is "
    "said of the others: a decode that asks for drafts, too, and from 0.29 on a prefill whose last token is padded for "
    "drafts (Scheduler.schedule; benchmarks/premises.py counts them on real traces)",
    "1 <= prompt <= known (Request, all releases)",
    "junction < known: a lookup is capped at the last token (KVCacheManager.get_computed_blocks, all releases)",
    "the junction is a multiple of the unit in which hits are granted (L1, proved for the reference's lookup)",
    "the room of a step is at least 1 token (SchedulerConfig, all releases)",
)
"""What every claim about the split takes for granted, with the guard that enforces it."""

Split = Callable[[Policy, SplitSetting, Any, Any, Any, Any, Any], Any]


@dataclass(frozen=True)
class SplitCase:
    """One call of the split and its result. Numbers in tokens, plain or symbolic.

    ``grant``: what the same call gives for another number of tokens asked. ``last_of``, ``tail_of``, ``finish_of`` and
    ``saved_of``: the reference's last cacheable position, partial tail, prefill end, and the position whose state a
    backend saves.
    """

    policy: Policy
    setting: SplitSetting
    mamba_block: Any
    start: Any
    asked: Any
    prompt: Any
    known: Any
    junction: Any
    granted: Any
    grant: Callable[[Any], Any]
    last_of: Callable[..., Any]
    tail_of: Callable[..., Any]
    finish_of: Callable[..., Any]
    saved_of: Callable[..., Any]


def run_split(policy: Policy, decide: Split | None, inputs: Inputs) -> SplitCase:
    """The case of one call of ``decide``, the reference's split where it is None. Raises Outside for illegal inputs."""
    if not is_legal(inputs):
        raise Outside
    decide = decide or split.split

    def grant(asked: Any) -> Any:
        return decide(policy, inputs.setting, inputs.start, asked, inputs.prompt, inputs.known, inputs.junction)

    return SplitCase(
        policy,
        inputs.setting,
        inputs.mamba_block,
        inputs.start,
        inputs.asked,
        inputs.prompt,
        inputs.known,
        inputs.junction,
        grant(inputs.asked),
        grant,
        split.last_cacheable_position,
        split.partial_tail,
        split.prefill_end,
        split.saved_position,
    )


def is_legal(inputs: Inputs) -> bool:
    """The premises of the subject."""
    return (
        inputs.start < inputs.end
        and inputs.end <= inputs.known
        and inputs.prompt >= 1
        and inputs.prompt <= inputs.known
        and inputs.junction < inputs.known
        and inputs.setting.room >= 1
        and inputs.junction % hit_unit(inputs.setting) == 0
    )


def hit_unit(setting: SplitSetting) -> Any:
    """The unit in which hits are granted."""
    return setting.hash_block if setting.partial_hits else setting.scheduler_block


def finish_of(case: SplitCase) -> Any:
    """The prefill end."""
    return case.finish_of(case.prompt, case.known)


def prefills(case: SplitCase) -> Any:
    """Whether the request is in its prefill."""
    return case.start < finish_of(case)


def tail_stop(case: SplitCase) -> Any:
    """The partial tail where it is a stop, else 0."""
    tail = case.tail_of(case.policy, case.setting, case.prompt)
    last = case.last_of(case.policy, case.setting, case.known)
    return split.tail_stop(case.prompt, last, tail)


def junction_stop_of(case: SplitCase) -> Any:
    """The junction stop, 0 without a junction ahead."""
    if case.junction <= case.start:
        return 0
    return split.junction_stop(case.setting, case.start, case.prompt, case.junction)


def boundary_of(case: SplitCase) -> Any:
    """The next block boundary from inside a block, else 0."""
    if case.start % case.mamba_block == 0:
        return 0
    return floor_to(case.start, case.mamba_block) + case.mamba_block


def replaceable_stops(case: SplitCase) -> list[Any]:
    """The stops that a state saved inside the chunk replaces."""
    return [boundary_of(case), case.last_of(case.policy, case.setting, case.known), tail_stop(case)]


def all_stops(case: SplitCase) -> list[Any]:
    """The stops of S3."""
    return [*replaceable_stops(case), junction_stop_of(case)]


def asks_for_a_block(case: SplitCase) -> Any:
    """S5's premise on budgets: the step asks for a block or all that is left."""
    return case.asked >= case.setting.grid or case.start + case.asked == case.known


def split_junction_floor(case: SplitCase) -> Any:
    """Where the split means to stop for the junction, whatever the start."""
    return split.split_junction_floor(case.setting, case.prompt, case.junction)


def mask_junction_floor(case: SplitCase) -> Any:
    """The end of the Mamba block that the retention mask keeps for the junction."""
    alignment = case.setting.scheduler_block
    if case.policy.mask_alignment == "hit alignment" and case.setting.partial_hits:
        alignment = case.setting.hash_block
    return floor_to(floor_to(case.junction, alignment), case.mamba_block)


# Predicates, each on the catalogue's own.


def within_asked(case: SplitCase) -> Any:
    return rules.chunk_within_asked(case.asked, case.granted)


def end_is_useful(case: SplitCase) -> Any:
    stops = [case.tail_of(case.policy, case.setting, case.prompt)]
    if case.setting.exact_junction:
        stops.append(case.junction)
    return rules.chunk_end_is_useful(
        case.start, case.granted, finish_of(case), [case.mamba_block], stops, case.setting.room
    )


def crosses_no_stop(case: SplitCase) -> Any:
    return rules.chunk_crosses_no_stop(case.start, case.granted, all_stops(case))


def stands_in(case: SplitCase) -> Any:
    exported = 0
    end = case.start + case.asked
    if split.saves_inside(case.policy, case.setting, case.start, end, finish_of(case)):
        exported = saved_of(case)
    return rules.exported_state_stands_in(
        case.start, case.granted, replaceable_stops(case), exported
    ) and rules.chunk_crosses_no_stop(case.start, case.granted, [junction_stop_of(case)])


def empty_only_when_short(case: SplitCase) -> Any:
    return rules.chunk_empty_only_when_short(
        case.start, case.asked, case.granted, finish_of(case), case.setting.grid, case.setting.room
    )


def meets_split_floor(case: SplitCase) -> Any:
    return rules.junction_stop_is_met(case.start, case.granted, split_junction_floor(case))


def meets_mask_floor(case: SplitCase) -> Any:
    return rules.junction_stop_is_met(case.start, case.granted, mask_junction_floor(case))


def floors_coincide(case: SplitCase) -> Any:
    return split_junction_floor(case) == mask_junction_floor(case)


def ends_at_tail(case: SplitCase) -> Any:
    return rules.chunk_ends_at(case.start, case.granted, tail_stop(case))


def ends_no_earlier(case: SplitCase) -> Any:
    return rules.more_asked_ends_no_earlier(case.granted, case.grant(case.asked + 1))


def equals_reference(case: SplitCase) -> Any:
    return case.granted == split.split(
        case.policy, case.setting, case.start, case.asked, case.prompt, case.known, case.junction
    )


def uses_up_a_stop(case: SplitCase) -> Any:
    stops = [tail_stop(case), case.junction if case.setting.exact_junction else 0]
    return rules.chunk_uses_up_a_stop(case.start, case.granted, finish_of(case), case.setting.grid, stops)


def cut_for_a_reason(case: SplitCase) -> Any:
    grid = case.setting.grid
    stops = [*all_stops(case), floor_to(case.start, grid) + grid]
    return rules.chunk_is_cut_for_a_reason(case.start, case.asked, case.granted, grid, stops)


def left_to_compute(case: SplitCase) -> Any:
    """A resend computes one token for its logits, or all that the last hash looks ahead to."""
    return max(1, case.setting.lookahead)


def last_is_resumable(case: SplitCase) -> Any:
    last = case.last_of(case.policy, case.setting, case.known)
    return rules.is_last_resumable(last, case.known, case.setting.grid, case.setting.block_drop, left_to_compute(case))


def tail_is_resumable(case: SplitCase) -> Any:
    tail = case.tail_of(case.policy, case.setting, case.prompt)
    return rules.is_last_resumable(
        tail, case.prompt, case.setting.hash_block, case.setting.block_drop, left_to_compute(case)
    )


def saved_of(case: SplitCase) -> Any:
    """The position whose state the backend saves in the last chunk of the prefill."""
    return case.saved_of(case.policy, case.setting, finish_of(case))


def saved_is_resumable(case: SplitCase) -> Any:
    unit, drop = hit_unit(case.setting), case.setting.block_drop
    return rules.is_last_resumable(saved_of(case), finish_of(case), unit, drop, left_to_compute(case))


def can_be_saved(case: SplitCase) -> Any:
    setting = case.setting
    return rules.saved_state_can_be_saved(
        saved_of(case),
        case.start,
        case.start + case.asked,
        finish_of(case),
        setting.hash_block,
        setting.checkpoint_alignment,
        case.mamba_block,
    )


def regime_of(case: SplitCase) -> tuple[str, str]:
    """What the expected verdict depends on beside policy and features."""
    return ("EAGLE drop" if case.setting.block_drop else "no drop", "fresh" if case.prompt == case.known else "resumed")


def measure_of(inputs: Inputs) -> tuple[Any, ...]:
    """What a small counterexample is small in, most important first."""
    setting = inputs.setting
    sizes = (setting.scheduler_block, setting.hash_block)
    tokens = (inputs.known, inputs.prompt, inputs.start, inputs.end, inputs.junction)
    return (*sizes, *tokens, setting.room, setting.lookahead)


def named(inputs: Inputs) -> dict[str, Any]:
    """The inputs by name, for people."""
    setting = inputs.setting
    return {
        "B": setting.grid,
        "H": setting.hash_block,
        "known": inputs.known,
        "prompt": inputs.prompt,
        "start": inputs.start,
        "asked": inputs.asked,
        "junction": inputs.junction,
        "room": setting.room,
        "drop": int(setting.block_drop),
        "lookahead": setting.lookahead,
    }


def end_of_prefill(case: SplitCase) -> Any:
    return rules.is_prefill_end(finish_of(case), case.prompt, case.known)


def has_no_tail(case: SplitCase) -> Any:
    return case.tail_of(case.policy, case.setting, case.prompt) == 0


# Where claims are made.


def no_checkpoints(_: Policy, __: Sizes, features: Features) -> bool:
    return features.checkpoint == "none"


def checkpoints_of_a_position(policy: Policy, _: Sizes, features: Features) -> bool:
    return features.checkpoint != "none" and policy.internal_checkpoint == "final chunk"


def splits_have_tails(policy: Policy, sizes: Sizes, features: Features) -> bool:
    return sizes.fine and (policy.tail_stop == "finer hashes" or features.partial_hits)


def tails_without_checkpoints(policy: Policy, sizes: Sizes, features: Features) -> bool:
    return splits_have_tails(policy, sizes, features) and no_checkpoints(policy, sizes, features)


def tails_switched_off(policy: Policy, sizes: Sizes, features: Features) -> bool:
    return sizes.fine and policy.tail_stop == "partial hits" and not features.partial_hits


def tails_inside_the_grid(policy: Policy, sizes: Sizes, features: Features) -> bool:
    inside = sizes.symbolic == "B, H" or sizes.hash_block < sizes.grid
    return inside and tails_without_checkpoints(policy, sizes, features)


# Premises and events.


def before_split_floor(case: SplitCase) -> Any:
    return asks_for_a_block(case) and prefills(case) and case.start < split_junction_floor(case)


def before_mask_floor(case: SplitCase) -> Any:
    return asks_for_a_block(case) and prefills(case) and case.start < mask_junction_floor(case)


def prefills_by_blocks(case: SplitCase) -> Any:
    return asks_for_a_block(case) and prefills(case)


def tail_is_next(case: SplitCase) -> Any:
    """The tail is the earliest stop ahead, and the step reaches the prefill end."""
    if case.start + case.asked < finish_of(case):
        return False
    tail = tail_stop(case)
    boundary, junction = boundary_of(case), junction_stop_of(case)
    last = case.last_of(case.policy, case.setting, case.known)
    earlier = [stop for stop in (boundary, last, junction) if case.start < stop < tail]
    return case.start < tail and not earlier


def one_more_can_be_asked(case: SplitCase) -> Any:
    return case.prompt == case.known and case.start + case.asked < case.known


def has_tail(case: SplitCase) -> Any:
    return case.setting.hash_block != case.setting.scheduler_block


def has_junction(case: SplitCase) -> Any:
    return case.junction >= 1


def is_stopped(case: SplitCase) -> Any:
    return 0 < case.granted < case.asked


def is_empty(case: SplitCase) -> Any:
    return case.granted == 0


def ends_short(case: SplitCase) -> Any:
    return case.granted > 0 and case.start + case.granted < finish_of(case)


def meets_junction(case: SplitCase) -> Any:
    return case.granted > 0 and case.start + case.granted == split_junction_floor(case)


def saves_and_passes(case: SplitCase) -> Any:
    end = case.start + case.asked
    return split.saves_inside(case.policy, case.setting, case.start, end, finish_of(case))


def more_is_granted(case: SplitCase) -> Any:
    return case.grant(case.asked + 1) > case.granted


def last_is_positive(case: SplitCase) -> Any:
    return case.last_of(case.policy, case.setting, case.known) > 0


def saved_is_positive(case: SplitCase) -> Any:
    return saved_of(case) > 0


def tail_is_positive(case: SplitCase) -> Any:
    return case.tail_of(case.policy, case.setting, case.prompt) > 0


# Planted faults.


def never_stops(case: SplitCase) -> SplitCase:
    return replace(case, granted=case.asked)


def one_too_many(case: SplitCase) -> SplitCase:
    return replace(case, granted=case.granted + 1)


def one_too_few(case: SplitCase) -> SplitCase:
    return replace(case, granted=max(case.granted - 1, 0))


def always_waits(case: SplitCase) -> SplitCase:
    return replace(case, granted=0)


def token_by_token(case: SplitCase) -> SplitCase:
    return replace(case, granted=1)


def more_gives_less(case: SplitCase) -> SplitCase:
    return replace(case, grant=lambda asked: case.granted - 1)


def wider_grid(case: SplitCase) -> SplitCase:
    return replace(case, setting=replace(case.setting, grid=2 * case.setting.grid))


def ends_later(case: SplitCase) -> SplitCase:
    finish_of_case = case.finish_of
    return replace(case, finish_of=lambda prompt, known: finish_of_case(prompt, known) + 1)


def overlooks_positions(case: SplitCase) -> SplitCase:
    return replace(
        case,
        last_of=lambda policy, setting, known: floor_to(known, setting.grid) + setting.grid,
        tail_of=lambda policy, setting, prompt: prompt,
        saved_of=lambda policy, setting, finish: finish,
    )


NEVER_STOPS = Control("the split grants all that is asked", never_stops)
ONE_TOO_MANY = Control("the split grants one token more", one_too_many)
ONE_TOO_FEW = Control("the split grants one token less", one_too_few)
ALWAYS_WAITS = Control("the split makes every request wait", always_waits)
TOKEN_BY_TOKEN = Control("the split grants one token at a time", token_by_token)
MORE_GIVES_LESS = Control("one token more asked gives one less", more_gives_less)
POSITIONS_TOO_HIGH = Control("the positions are a unit too high", overlooks_positions)
LATER_END = Control("prefill ends one token later", ends_later)
WIDER_GRID = Control("the split's grid is twice as wide", wider_grid)

CLAIMS: tuple[Claim, ...] = (
    Claim("S1", "S1", within_asked, is_stopped, "a chunk is cut short", ONE_TOO_MANY),
    Claim(
        "S2",
        "S2",
        end_is_useful,
        ends_short,
        "a chunk ends short of the prefill end",
        NEVER_STOPS,
        premise=prefills,
        premise_text="during prefill",
    ),
    Claim(
        "S3",
        "S3",
        crosses_no_stop,
        is_stopped,
        "a chunk is cut short",
        NEVER_STOPS,
        premise=prefills,
        premise_text="during prefill",
        applies=no_checkpoints,
    ),
    Claim(
        "S3i",
        "S3i",
        stands_in,
        saves_and_passes,
        "a chunk saves its state inside",
        NEVER_STOPS,
        premise=prefills,
        premise_text="during prefill",
        applies=checkpoints_of_a_position,
    ),
    Claim("S4", "S4", empty_only_when_short, is_empty, "a chunk is empty", ALWAYS_WAITS),
    Claim(
        "S5",
        "S5",
        meets_split_floor,
        meets_junction,
        "a chunk ends on the junction stop",
        NEVER_STOPS,
        premise=before_split_floor,
        premise_text="from before the junction stop, asking for a block or all that is left",
        note="One chunk from before the stop advances and does not pass it. By induction the chunk ends rise strictly "
        "and stay at or before the stop, so one of them is the stop.",
        applies=no_checkpoints,
    ),
    Claim(
        "S6",
        "S6",
        ends_at_tail,
        is_stopped,
        "a chunk is cut short",
        NEVER_STOPS,
        premise=tail_is_next,
        premise_text="the tail is the earliest stop ahead and the step reaches the prefill end",
        applies=tails_inside_the_grid,
    ),
    Claim(
        "S7",
        "S7",
        ends_no_earlier,
        more_is_granted,
        "one token more asked gives more",
        MORE_GIVES_LESS,
        premise=one_more_can_be_asked,
        premise_text="a fresh request, of which one token more could be asked",
        note="Proved for one token more; larger budgets follow by induction, since the premise is an interval.",
    ),
    Claim(
        "S8",
        "S8",
        uses_up_a_stop,
        ends_short,
        "a chunk ends short of the prefill end",
        TOKEN_BY_TOKEN,
        premise=prefills_by_blocks,
        premise_text="asking for a block or all that is left, during prefill",
        note="Every chunk but the last leaves fewer chunks than before it; at first these are the grid boundaries and "
        "special stops between start and prefill end, and one.",
        applies=no_checkpoints,
    ),
    Claim(
        "S9",
        "S9",
        cut_for_a_reason,
        is_stopped,
        "a chunk is cut short",
        ONE_TOO_FEW,
        premise=prefills,
        premise_text="during prefill",
    ),
    Claim(
        "S10.last",
        "S10",
        last_is_resumable,
        last_is_positive,
        "there is a last cacheable position",
        POSITIONS_TOO_HIGH,
        applies=no_checkpoints,
    ),
    Claim(
        "S10.tail",
        "S10",
        tail_is_resumable,
        tail_is_positive,
        "there is a partial tail",
        POSITIONS_TOO_HIGH,
        premise=has_tail,
        premise_text="hashes are finer than the scheduler block",
        applies=tails_without_checkpoints,
    ),
    Claim(
        "S10.saved",
        "S10",
        saved_is_resumable,
        saved_is_positive,
        "there is a position to save",
        POSITIONS_TOO_HIGH,
        applies=checkpoints_of_a_position,
    ),
    Claim(
        "S10.off",
        "S10",
        has_no_tail,
        is_stopped,
        "a chunk is cut short",
        POSITIONS_TOO_HIGH,
        note="Without partial hits there is no partial tail.",
        applies=tails_switched_off,
    ),
    Claim("S11", "S11", end_of_prefill, is_stopped, "a chunk is cut short", LATER_END),
    Claim(
        "S12",
        "S12",
        can_be_saved,
        saves_and_passes,
        "a chunk saves its state inside",
        POSITIONS_TOO_HIGH,
        premise=saves_and_passes,
        premise_text="the split counts on a state that is saved inside the chunk",
        applies=checkpoints_of_a_position,
    ),
    Claim(
        "U1.stop",
        "U1",
        meets_mask_floor,
        meets_junction,
        "a chunk ends on the junction stop",
        NEVER_STOPS,
        premise=before_mask_floor,
        premise_text="from before the end of the block that the mask keeps for the junction, asking for a block or all "
        "that is left",
        note="First link of U1, as S5: some chunk ends exactly where the block ends that the mask keeps.",
        applies=no_checkpoints,
    ),
    Claim(
        "U1.floors",
        "U1",
        floors_coincide,
        has_junction,
        "there is a junction",
        WIDER_GRID,
        premise=has_junction,
        premise_text="there is a junction",
        note="Where this is refuted U1 has a missing link: the split stops at one position, and the block that the "
        "mask keeps ends at another.",
        applies=no_checkpoints,
    ),
)

ENGINE_CLAIMS: tuple[Claim, ...] = (
    Claim("M1", "M1", equals_reference, is_stopped, "a chunk is cut short", ONE_TOO_MANY),
)
"""Claims about an engine's own function only."""
