"""Draws a scenario's cache: which groups, of which block sizes, hashed in which unit."""

from __future__ import annotations

import math

from fuzz.draw import Draw
from fuzz.swarm import Swarm
from oracle.scenario import Group, GroupKind

# Small first: a fault in small blocks is a fault that a person can follow.
_EQUAL = (4, 2, 3, 4, 8, 2, 6, 4, 5, 8, 12, 16)
_EQUAL_REAL = (16, 64, 32, 16, 528)
# (smaller, wider). Multiples as 16/1600 is one, and pairs that do not divide as 816/1648 is; the least
# common multiple is at most 36 tokens, so that a short prompt still holds a few scheduler blocks.
_UNEQUAL: tuple[tuple[int, int], ...] = (
    (2, 4), (2, 6), (4, 12), (3, 9), (4, 8), (2, 16), (3, 6), (4, 16), (2, 3), (4, 6), (6, 9), (6, 8),
    (3, 4), (8, 12), (6, 10), (2, 5), (3, 5), (4, 9), (5, 7), (10, 15),
)  # fmt: skip
# Of three real pairs a twin follows, scaled down by 8, 8 and 16.
_UNEQUAL_REAL: tuple[tuple[int, int], ...] = (
    (16, 64), (16, 32), (32, 48), (16, 1600), (2, 200), (16, 528), (2, 66), (816, 1648), (51, 103),
)  # fmt: skip
_REAL_HASH_BLOCK = 16


def draw_kinds(draw: Draw, swarm: Swarm) -> tuple[GroupKind, ...]:
    """The kinds of the groups. A swarm with unequal blocks has only shapes of several groups."""
    shapes: list[tuple[GroupKind, ...]] = []
    alone: tuple[GroupKind, ...] = ("swa", "mamba")
    if "unequal" not in swarm:
        shapes.append(("full",))
        if "sparse-alone" in swarm:
            shapes += [(kind,) for kind in alone if kind in swarm]
    if "mamba" in swarm:
        shapes += [("full", "mamba")] * 3
    if "two-mamba" in swarm:
        shapes += [("full", "mamba", "mamba")] * 2
    if "swa" in swarm:
        shapes += [("full", "swa")] * 2
    if "swa" in swarm and "mamba" in swarm:
        shapes += [("full", "mamba", "swa")] * 2
    if "swa" in swarm and "two-mamba" in swarm:
        shapes.append(("full", "mamba", "mamba", "swa"))
    if "together" in swarm:
        shapes = [shape for shape in shapes if "mamba" in shape and "swa" in shape]
    return draw.choice(shapes)


def draw_blocks(draw: Draw, swarm: Swarm, kinds: tuple[GroupKind, ...]) -> list[int]:
    """One block size per group, in tokens: all alike, or never all alike with the feature ``unequal``."""
    real = "real-blocks" in swarm and draw.chance(60)
    if "unequal" not in swarm:
        return [draw.choice(_EQUAL_REAL if real else _EQUAL)] * len(kinds)
    pairs = _UNEQUAL_REAL if real else _UNEQUAL
    if "mamba" not in kinds:
        return _mix(draw, draw.choice(pairs), len(kinds))
    if "swa" in kinds and "fine-swa" not in swarm:
        # A Mamba block wider than the hash block gives hits inside it, which a sliding window would have
        # to serve: so Mamba takes the hash block itself.
        pairs = tuple(pair for pair in pairs if pair[1] % pair[0] == 0)
        return _mamba_smallest(draw, draw.choice(pairs), kinds)
    pair = draw.choice(pairs)
    if "wide-mamba" not in swarm or draw.chance(25):
        return _mamba_smallest(draw, pair, kinds)
    return _mamba_wide(draw, pair, kinds)


def _mix(draw: Draw, pair: tuple[int, int], count: int) -> list[int]:
    """``count`` sizes of the pair, at least one of each."""
    blocks = [pair[0], pair[1], *(draw.choice(pair) for _ in range(count - 2))]
    if draw.chance(40):
        blocks.reverse()
    return blocks


def _mamba_smallest(draw: Draw, pair: tuple[int, int], kinds: tuple[GroupKind, ...]) -> list[int]:
    """Every Mamba group has the smaller block, and full attention the wider one."""
    small, wide = pair
    by_kind = {"mamba": small, "full": wide, "swa": draw.choice(pair)}
    return [by_kind[kind] for kind in kinds]


def _mamba_wide(draw: Draw, pair: tuple[int, int], kinds: tuple[GroupKind, ...]) -> list[int]:
    """Full attention has the smaller block and a Mamba group the wider one, as in most hybrid models."""
    small, wide = pair
    return [small if kind == "full" else wide if kind == "mamba" else draw.choice(pair) for kind in kinds]


def draw_hash_block(draw: Draw, swarm: Swarm, kinds: tuple[GroupKind, ...], blocks: list[int]) -> tuple[int, bool]:
    """The hash block in tokens, and whether hits at its granularity are asked for.

    Asked for only where it is legal: a Mamba group beside another group, and wider than the hash block.
    """
    default = math.gcd(*blocks)
    if "partial-hits" not in swarm or len(kinds) == 1 or "mamba" not in kinds or draw.chance(25):
        return default, False
    if "swa" in kinds and "fine-swa" not in swarm:
        return default, False
    widest_mamba = max(block for kind, block in zip(kinds, blocks, strict=True) if kind == "mamba")
    units = [unit for unit in range(1, default + 1) if default % unit == 0 and unit < widest_mamba]
    if not units:
        return default, False
    if "real-blocks" in swarm and _REAL_HASH_BLOCK in units and draw.chance(60):
        return _REAL_HASH_BLOCK, True
    # Hash blocks of one token are legal but unlike any model: only when nothing else divides, or rarely.
    if len(units) > 1 and draw.chance(90):
        units.remove(1)
    return draw.choice(units), True


def draw_groups(
    draw: Draw, swarm: Swarm, kinds: tuple[GroupKind, ...], blocks: list[int], hash_block: int, drafts: int
) -> tuple[Group, ...]:
    """The groups themselves: windows, the mark of the draft model's group (never a Mamba group), saved states."""
    attention = [number for number, kind in enumerate(kinds) if kind != "mamba"]
    marked = -1
    if drafts and attention and "eagle-flag" in swarm and draw.chance(75):
        marked = draw.choice(attention)
    units = (1, hash_block) if "coarse-checkpoint" in swarm else (1,)
    saves = draw.choice(units) if "checkpoint" in swarm and draw.chance(85) else 0
    return tuple(
        Group(
            kind,
            block,
            _window(draw, block) if kind == "swa" else None,
            number == marked,
            saves if kind == "mamba" else 0,
        )
        for number, (kind, block) in enumerate(zip(kinds, blocks, strict=True))
    )


def _window(draw: Draw, block: int) -> int:
    """A window in tokens: whole blocks and one more or less, where the blocks that a hit needs change."""
    return max(2, block * draw.integer(1, 3) + draw.choice((0, 1, 2, -1)))
