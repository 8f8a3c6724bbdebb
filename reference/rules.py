"""The rules: one object each, with an id, one sentence and, where it is a formula, its predicate.

The judge, the proofs, the tests and the documentation all take a rule from here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from reference.arithmetic import ceil_div, floor_to

IDLE_STEPS_LIMIT = 40
"""P1: after so many steps in a row without any token, while a request waits or runs, the engine is stuck."""

STARVED_STEPS_LIMIT = 40
"""P2: so many steps in a row may pass over the request that is next, while there is room for it."""


@dataclass(frozen=True)
class Rule:
    """A rule. ``predicate`` takes plain integers (see each function) and is None where the rule is about
    the whole state of an engine. ``conformance``: it compares with the reference under a policy."""

    id: str
    sentence: str
    predicate: Callable[..., bool] | None = None
    conformance: bool = False


def chunk_within_asked(asked: int, granted: int) -> bool:
    """S1. Sizes in tokens."""
    return granted >= 0 and granted <= asked


def chunk_end_is_useful(
    start: int, granted: int, prefill_end: int, blocks: Sequence[int], stops: Sequence[int], room: int
) -> bool:
    """S2. ``blocks``: the block sizes of all Mamba groups; ``stops``: the partial tail and, with the opt-in,
    the exact junction (0: none); ``room``: the most tokens one chunk can get. All in tokens."""
    end = start + granted
    if start >= prefill_end or end >= prefill_end or granted == 0:
        return True
    for stop in stops:
        if stop == end:
            return True
    for block in blocks:
        inside = block > room and end < floor_to(start, block) + block
        if end % block != 0 and not inside:
            return False
    return True


def chunk_crosses_no_stop(start: int, granted: int, stops: Sequence[int]) -> bool:
    """S3. ``stops``: the next boundary (from inside a block), the last cacheable position, the partial tail
    and the junction stop; 0 stands for none. All in tokens."""
    return all(not (start < stop < start + granted) for stop in stops)


def chunk_empty_only_when_short(start: int, asked: int, granted: int, prefill_end: int, grid: int, room: int) -> bool:
    """S4, for a chunk of a request that prefills. All in tokens."""
    if start >= prefill_end:
        return True
    short = start + asked < floor_to(start, grid) + grid and start + asked < prefill_end and grid <= room
    return (granted == 0) == short


def junction_stop_is_met(start: int, granted: int, stop: int) -> bool:
    """S5, one chunk from before the junction ``stop``: it advances, and not beyond the stop. All in tokens.

    Repeated, some chunk ends exactly on the stop: the ends rise strictly and never pass it.
    """
    return start < start + granted <= stop


def chunk_ends_at(start: int, granted: int, stop: int) -> bool:
    """S6, for a chunk whose earliest stop ahead is the partial tail ``stop``. All in tokens."""
    return start + granted == stop


def more_asked_ends_no_earlier(granted: int, granted_for_more: int) -> bool:
    """S7, from one start and in one setting. All in tokens."""
    return granted <= granted_for_more


def chunks_left(start: int, prefill_end: int, grid: int, stops: Sequence[int]) -> int:
    """S8: at most how many chunks a prefill takes from ``start``: one for each grid boundary and each of the
    ``stops`` that lie strictly between it and the prefill end, and the last. All in tokens."""
    boundaries = (prefill_end - 1) // grid - start // grid
    inside = 0
    for stop in stops:
        if start < stop < prefill_end:
            inside = inside + 1
    return boundaries + inside + 1


def chunk_uses_up_a_stop(start: int, granted: int, prefill_end: int, grid: int, stops: Sequence[int]) -> bool:
    """S8, one chunk: it reaches the prefill end, or fewer chunks are left than before. All in tokens."""
    end = start + granted
    if end >= prefill_end:
        return True
    return granted > 0 and chunks_left(end, prefill_end, grid, stops) < chunks_left(start, prefill_end, grid, stops)


def chunk_is_cut_for_a_reason(start: int, asked: int, granted: int, grid: int, stops: Sequence[int]) -> bool:
    """S9. ``stops``: those of S3; 0 stands for none. All in tokens."""
    end = start + granted
    if granted == asked or end == start or end == floor_to(start + asked, grid):
        return True
    return any(stop == end for stop in stops)


def is_last_resumable(position: int, tokens: int, unit: int, drop: bool, left: int) -> bool:
    """S10: ``position`` is the last multiple of ``unit`` at which a request over the same ``tokens`` can resume.

    ``drop``: a resuming request gives its last matched unit back; ``left``: else so many tokens are left to
    compute at least. All in tokens.
    """
    reach = position + unit if drop else position + left
    beyond = reach + unit
    if position == 0:
        return tokens < beyond
    return position > 0 and position % unit == 0 and reach <= tokens < beyond


def is_prefill_end(end: int, prompt: int, known: int) -> bool:
    """S11. ``end``: where the prefill of a request with ``known`` tokens, ``prompt`` of them its prompt, ends."""
    return end >= prompt and end >= known - 1 and (end == prompt or end == known - 1)


def saved_state_can_be_saved(
    position: int, start: int, end: int, prefill_end: int, hash_block: int, unit: int, block: int
) -> bool:
    """S12. ``position``: whose state is to be saved in the chunk from ``start`` to ``end``, in the column before its
    last; ``unit``: the backend's; ``block``: the Mamba block. All in tokens.
    """
    column = ceil_div(end, block) - 2
    return (
        end >= prefill_end
        and start % hash_block == 0
        and start + hash_block <= position < end
        and (position - start) % unit == 0
        and column * block >= start
    )


def exported_state_stands_in(start: int, granted: int, stops: Sequence[int], exported: int) -> bool:
    """S3i. ``stops``: those of S3 that a saved state may replace; ``exported``: the position whose state is
    saved inside the chunk, 0 for none. All in tokens."""
    end = start + granted
    return all(stop <= exported < end for stop in stops if start < stop < end)


def block_serves(block: int, number: int, boundary: int, alignment: int, reach: int, peeks: bool) -> bool:
    """Whether a hit at ``boundary``, floored to ``alignment``, reads block ``number``, from what a hit reads:

    the block that holds one of the ``reach`` tokens before the hit (before the end of the unit that is given
    back, where EAGLE ``peeks`` a block ahead). A state (Mamba) is the block that ends on the hit. In tokens.
    """
    resume = floor_to(boundary, alignment)
    end = resume + block if peeks else resume
    first = resume - reach
    return number * block + block > first and number * block + block <= end


def kept_if_served(kept: bool, serves: bool) -> bool:
    """R1 and R2, for one block: what a hit at a boundary reads is kept."""
    return kept or not serves


def kept_alike(kept_by_chunks: bool, kept_at_once: bool) -> bool:
    """R3, for one block."""
    return kept_by_chunks == kept_at_once


def kept_implies(kept_by_less: bool, kept_by_more: bool) -> bool:
    """R4 and R5, for one block: what one way of keeping keeps, the other keeps too."""
    return kept_by_more or not kept_by_less


def position_is_listed(position: int, alignment: int, boundaries: Sequence[int]) -> bool:
    """R6. ``position``: where a request resumes; ``boundaries``: the boundary list. All in tokens."""
    if position == 0:
        return True
    return any(floor_to(boundary, alignment) == position for boundary in boundaries)


def boundary_has_a_reason(boundary: int, reasons: Sequence[int]) -> bool:
    """R7: a listed position is one of ``reasons``: where a resend or an extension resumes, the junction, and for a
    group that drops the position one block below it. All in tokens."""
    return any(boundary == reason for reason in reasons)


def hit_is_aligned(hit: int, known: int, alignment: int) -> bool:
    """L1, its part about numbers. ``known``: the request's tokens; ``alignment``: the unit of hits."""
    return hit >= 0 and hit < known and hit % alignment == 0


def junction_beyond_hit(hit: int, junction: int, known: int) -> bool:
    """L3, at a lookup. ``known``: the request's tokens. All in tokens."""
    return junction == 0 or hit < junction < known


def reuses_at_least(hit: int, position: int) -> bool:
    """U1 and U3, at a lookup: what was promised at ``position`` is reused. U2: what fewer blocks gave. In tokens."""
    return hit >= position


def counts_what_happened(counted: Sequence[int], happened: Sequence[int]) -> bool:
    """T1. Both: admissions, the tokens asked for in them, the tokens reused."""
    return list(counted) == list(happened)


def nothing_longer_is_served(hit: int, longest: int) -> bool:
    """L2. ``longest``: the longest aligned length that all groups can serve. In tokens."""
    return hit >= longest


RULES: dict[str, Rule] = {
    rule.id: rule
    for rule in (
        Rule(
            "S1",
            "A chunk ends at or after its start and never beyond what was asked, and no step holds more of it than "
            "the split gave.",
            chunk_within_asked,
        ),
        Rule(
            "S2",
            "A chunk that does not reach the prefill end ends on a Mamba block boundary, at the partial tail, "
            "at the exact junction (opt-in), or, when a block is wider than a step's room, inside the block "
            "that it started in.",
            chunk_end_is_useful,
        ),
        Rule(
            "S3",
            "Without internal checkpoints, no prefill chunk runs across the next boundary (from inside a "
            "block), the last cacheable position, the partial tail (when it lies between the last cacheable "
            "position and the prompt's end) or the junction stop.",
            chunk_crosses_no_stop,
        ),
        Rule(
            "S4",
            "From 0.27: a chunk is empty if and only if start + asked is short of the next block boundary and "
            "of the prefill end, and a block fits the step's room.",
            chunk_empty_only_when_short,
        ),
        Rule(
            "S5",
            "From any start before the junction stop, if every step asks for a block or all that is left, some "
            "chunk ends exactly on it.",
            junction_stop_is_met,
        ),
        Rule(
            "S6",
            "A partial tail that is the earliest stop ahead ends every chunk that was asked to reach the prefill end.",
            chunk_ends_at,
        ),
        Rule(
            "S8",
            "If every step asks for a block or all that is left, prefill takes at most one chunk for each grid "
            "boundary, the partial tail and the exact junction before its end, and the last.",
            chunk_uses_up_a_stop,
        ),
        Rule("R1", "With retention interval 0, every block of the tail of the junction is kept.", kept_if_served),
        Rule(
            "R2",
            "The tails of the whole boundary list are kept under every interval (a boundary that floors to 0 has "
            "none).",
            kept_if_served,
        ),
        Rule("R3", "Masks computed chunk by chunk equal the mask computed at once.", kept_alike),
        Rule(
            "R4",
            "For one boundary list: what interval 0 keeps, every interval keeps; what any interval keeps, dense keeps.",
            kept_implies,
        ),
        Rule(
            "R5",
            "With interval 0, and an alignment that is a multiple of the block, nothing but the tails of the boundary "
            "list is kept.",
            kept_implies,
        ),
        Rule(
            "R6",
            "The boundary list holds every position at which an identical resend, or an extension, of the prompt can "
            "resume.",
            position_is_listed,
        ),
        Rule(
            "L1",
            "A hit is aligned, at most tokens - 1, and every group can serve it from blocks that are present.",
            hit_is_aligned,
        ),
        Rule(
            "L2",
            "No longer aligned length would satisfy all groups (an EAGLE attention group needs its peeked unit too; "
            "Mamba does not peek), for one fixed cache content.",
            nothing_longer_is_served,
        ),
        Rule(
            "L3",
            "The junction is 0 or lies beyond the hit, within the request, and the split sees the junction of the "
            "request's last lookup.",
            junction_beyond_hit,
        ),
        Rule(
            "U1",
            "Siblings one after another, sharing at least a scheduler block, interval 0: the second finds the "
            "junction, the third reuses it once the second's prefill is done, while it is still present.",
            reuses_at_least,
        ),
        Rule(
            "U2",
            "For requests run strictly one after another with the same chunk ends, more blocks never give fewer hit "
            "tokens.",
            reuses_at_least,
        ),
        Rule(
            "U3",
            "A resend of a prompt gets at least the largest position that the drop rule allows, "
            "while it is present; and one shared token less never makes the hit of local attention collapse.",
            reuses_at_least,
        ),
        Rule("C1", "A hashed block holds exactly the content that its hash names."),
        Rule(
            "C2",
            "Every position or state that a step reads was written, by the same tokens, before it is read.",
        ),
        Rule("A1", "Reference counts equal the tables that hold the block, and the pins that are documented."),
        Rule(
            "A2",
            "No block is free and held, or held by two requests unless both share it through the cache.",
        ),
        Rule(
            "A3",
            "Tokens scheduled in a step stay within the budget, sequences within their limit, every count is positive.",
        ),
        Rule("X2", "As many blocks leave the free list for a request as were counted when it was granted them."),
        Rule("P1", f"While a request waits or runs, some request advances in every {IDLE_STEPS_LIMIT} steps."),
        Rule(
            "P2",
            "The waiting request that is next gets tokens within "
            f"{STARVED_STEPS_LIMIT} steps in which a sequence, blocks and budget are left for it.",
        ),
        Rule("P3", "A legal scenario never makes the engine raise or hang."),
        Rule("T1", "Statistics count each admission once, and hits as what was really reused.", counts_what_happened),
        Rule("D1", "The same inputs give the same decision."),
        Rule(
            "V1",
            "Other names of requests and prompt segments change no decision (where each abort is of one request).",
        ),
        Rule(
            "V2",
            "Without prefix caching each request that is not aborted ends alike, with as many output tokens.",
        ),
        Rule(
            "V3",
            "If every size is multiplied (blocks, the reach of windows, limits, the retention interval, prompts), "
            "every decision is, for requests without drafts that end with their first output token.",
        ),
        Rule(
            "V4",
            "A request that comes when all others have ended, and the cache was reset, is served as by a new engine.",
        ),
        Rule(
            "M1",
            "The chunk is the one that the reference's split gives; without drafts it asks for all that is missing, up "
            "to the threshold and to what is left of the step's budget.",
            conformance=True,
        ),
        Rule("M2", "The hit and the junction are the ones that the reference's lookup gives.", conformance=True),
        Rule(
            "M3",
            "The blocks that enter the cache are the ones that the reference's mask and tails give.",
            conformance=True,
        ),
        Rule(
            "M4",
            "A request takes, copies and gives back the blocks that the reference names, then and in that order; free "
            "blocks are handed out in the order in which they were given back, those without a hash first; the cache "
            "is reset if and only if no block is in use.",
            conformance=True,
        ),
        Rule(
            "M5",
            "A request takes the hit that its lookup found, and gets blocks if and only if the free ones suffice, by "
            "the reference's count; who is preempted is the running request that was admitted last, or under "
            "priorities the least urgent one.",
            conformance=True,
        ),
    )
}


CLAIMED_ONLY: dict[str, Rule] = {
    rule.id: rule
    for rule in (
        Rule(
            "S3i",
            "With internal checkpoints a chunk runs across a stop only where the state at or beyond it is saved "
            "inside the chunk; the junction stop is never run across.",
            exported_state_stands_in,
        ),
        Rule(
            "S7",
            "For fresh requests, room held fixed: a larger budget never ends a chunk earlier.",
            more_asked_ends_no_earlier,
        ),
        Rule(
            "S9",
            "A chunk is cut short only at the grid below what was asked, or at a stop.",
            chunk_is_cut_for_a_reason,
        ),
        Rule(
            "S10",
            "The last cacheable position, the partial tail and the position whose state is saved inside a chunk are "
            "the last positions of their unit at which a request over the same tokens can resume.",
            is_last_resumable,
        ),
        Rule(
            "S11",
            "Prefill ends with the prompt, or one token before the newest, whichever is later.",
            is_prefill_end,
        ),
        Rule(
            "S12",
            "Where the split counts on a state that is saved inside a chunk, the backend can save it: the chunk ends "
            "the prefill and starts on a hash boundary, the position lies at least a hash block and whole units of "
            "the backend after the start and before the end, and the column for it has nothing from before the chunk.",
            saved_state_can_be_saved,
        ),
        Rule(
            "R7",
            "The boundary list holds the junction, and nothing but positions at which a resend or an extension "
            "resumes, the junction, and for a group that drops the position one block below it.",
            boundary_has_a_reason,
        ),
        Rule(
            "R8",
            "Dense Mamba keeps every block; with an interval above 0, or dense, a window keeps every block that a "
            "hit at a multiple of the interval (dense: of the alignment) reads.",
            kept_if_served,
        ),
    )
}
"""Rules that are proved and not judged on traces."""

CATALOGUE: dict[str, Rule] = RULES | CLAIMED_ONLY
"""Every rule that kvoracle knows."""
