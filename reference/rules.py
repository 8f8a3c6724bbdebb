"""The rules: one object each, with an id, one sentence and, where it is a formula, its predicate.

The judge, the proofs, the tests and the documentation all take a rule from here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from reference.arithmetic import floor_to

IDLE_STEPS_LIMIT = 40
"""P1: after so many steps in a row without any token, while a request waits or runs, the engine is stuck."""


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


def hit_is_aligned(hit: int, known: int, alignment: int) -> bool:
    """L1, its part about numbers. ``known``: the request's tokens; ``alignment``: the unit of hits."""
    return hit >= 0 and hit < known and hit % alignment == 0


def junction_beyond_hit(hit: int, junction: int, known: int) -> bool:
    """L3, at a lookup. ``known``: the request's tokens. All in tokens."""
    return junction == 0 or hit < junction < known


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
        Rule("R1", "With retention interval 0, every block of the tail of the junction is kept."),
        Rule(
            "R2",
            "The tails of the whole boundary list are kept under every interval (a boundary that floors to 0 has "
            "none).",
        ),
        Rule(
            "L1",
            "A hit is aligned, at most tokens - 1, and every group can serve it from blocks that are present.",
            hit_is_aligned,
        ),
        Rule(
            "L3",
            "The junction is 0 or lies beyond the hit, within the request, and the split sees the junction of the "
            "request's last lookup.",
            junction_beyond_hit,
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
        Rule("P1", f"While a request waits or runs, some request advances in every {IDLE_STEPS_LIMIT} steps."),
        Rule("P3", "A legal scenario never makes the engine raise or hang."),
        Rule("D1", "The same inputs give the same decision."),
        Rule("M1", "The chunk is the one that the reference's split gives.", conformance=True),
        Rule("M2", "The hit and the junction are the ones that the reference's lookup gives.", conformance=True),
        Rule(
            "M3",
            "The blocks that enter the cache are the ones that the reference's mask and tails give.",
            conformance=True,
        ),
    )
}
