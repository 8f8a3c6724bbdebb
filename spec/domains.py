"""The inputs over which a claim is proved: sizes, given as numbers or as unknowns, and sets of features.

Every count of tokens is entered as ``base * quotient + hash block * units + remainder``, which is the same
set of numbers and lets almost every division be exact. The same construction serves the proof, where each part
is an unknown, and a replay on plain numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from reference.policy import Policy
from reference.split import SplitSetting


class Source(Protocol):
    """Where inputs come from."""

    def integer(self, name: str, low: int | None = None, high: int | None = None) -> Any:
        """An integer input within bounds."""

    def boolean(self, name: str) -> Any:
        """A truth value."""

    def axiom(self, condition: Any) -> None:
        """A bound of the domain."""

    def size(self, value: Any) -> None:
        """A size, at least 1, that divides."""

    def remainder(self, value: Any, size: Any) -> None:
        """A value from 0 to below a size."""


class Plain:
    """Inputs from plain numbers, by name; one that is missing is 0. ``admits``: whether they are in the domain."""

    def __init__(self, values: dict[str, int]) -> None:
        self.values = values
        self.admits = True

    def integer(self, name: str, low: int | None = None, high: int | None = None) -> int:
        """The number of that name."""
        value = self.values.get(name, low or 0)
        if (low is not None and value < low) or (high is not None and value > high):
            self.admits = False
        return value

    def boolean(self, name: str) -> bool:
        """Whether the number of that name is 1."""
        return self.integer(name, 0, 1) >= 1

    def axiom(self, condition: Any) -> None:
        """Note whether a bound of the domain holds."""
        self.admits = self.admits and bool(condition)

    def size(self, value: Any) -> None:
        """Note whether a size is positive."""
        self.axiom(value >= 1)

    def remainder(self, value: Any, size: Any) -> None:
        """Note whether a value is a remainder of a size."""
        self.axiom(0 <= value < size)


@dataclass(frozen=True)
class Sizes:
    """Block sizes of a domain, in tokens. ``symbolic``: which of them are unknowns: none, "B" (all sizes are one
    unknown B) or "B, H" (hashes of H tokens in blocks of B = k * H, all H >= 1 and k >= 1)."""

    name: str
    grid: int = 0
    hash_block: int = 0
    scheduler_block: int = 0
    mamba_block: int = 0
    symbolic: str = ""

    @property
    def base(self) -> int:
        """In whose multiples counts of tokens are entered, so that most divisions are exact."""
        return self.grid if self.grid > self.hash_block else self.scheduler_block

    @property
    def fine(self) -> bool:
        """Whether hashes can be finer than the blocks."""
        return self.symbolic == "B, H" or self.hash_block != self.scheduler_block


def equal(grid: int, hash_block: int) -> Sizes:
    """Blocks that are all of one size."""
    return Sizes(f"{grid}/{hash_block}", grid, hash_block, grid, grid)


SYMBOLIC = (Sizes("B", symbolic="B"), Sizes("B, H", symbolic="B, H"))
CONCRETE = tuple(
    equal(*sizes) for sizes in ((16, 16), (16, 4), (64, 16), (528, 16), (816, 48), (1600, 64), (1648, 16), (12288, 64))
)
OTHER_GRID = (
    Sizes("grid 16, Mamba 1600", 16, 16, 1600, 1600),
    Sizes("grid 816, Mamba 1648", 816, 16, 84048, 1648),
)
"""Unequal blocks: the split's grid is the smallest block of all groups, and not the Mamba block."""

ALL_SIZES = (*SYMBOLIC, *CONCRETE, *OTHER_GRID)
QUICK_SIZES = (SYMBOLIC[0], CONCRETE[1], CONCRETE[6])


@dataclass(frozen=True)
class Features:
    """What is switched on. ``checkpoint``: internal checkpoints aligned to nothing, a token or a hash block;
    ``lookahead``: tokens that hashes look ahead, "any" for all from 0. The EAGLE drop and the room are unknowns,
    but lookahead hashes replace the drop."""

    name: str
    partial_hits: bool = False
    exact_junction: bool = False
    checkpoint: str = "none"
    lookahead: int | str = 0

    def exist_in(self, policy: Policy, sizes: Sizes) -> bool:
        """Whether a release has these features, and whether they make a difference for these sizes."""
        if self.exact_junction and policy.tail_drops is False:
            return False
        if self.checkpoint != "none" and policy.internal_checkpoint == "none":
            return False
        if self.lookahead != 0 and not policy.lookahead_hashes:
            return False
        return sizes.fine or not self.partial_hits


FEATURES = (
    Features("plain"),
    Features("partial hits", partial_hits=True),
    Features("exact junction", partial_hits=True, exact_junction=True),
    Features("checkpoints of a token", checkpoint="token"),
    Features("checkpoints of a hash block", checkpoint="hash block"),
    Features("partial hits, checkpoints of a token", partial_hits=True, checkpoint="token"),
    Features("partial hits, checkpoints of a hash block", partial_hits=True, checkpoint="hash block"),
    Features("lookahead 1", lookahead=1),
    Features("lookahead any", lookahead="any"),
    Features("partial hits, lookahead 1", partial_hits=True, lookahead=1),
    Features("partial hits, lookahead any", partial_hits=True, lookahead="any"),
    Features("partial hits, lookahead 1, checkpoints of a hash block", True, False, "hash block", 1),
)


@dataclass(frozen=True)
class Inputs:
    """The inputs of one call of the split, plain or symbolic. All in tokens."""

    setting: SplitSetting
    mamba_block: Any
    start: Any
    end: Any
    prompt: Any
    known: Any
    junction: Any

    @property
    def asked(self) -> Any:
        """The tokens asked for: up to ``end``."""
        return self.end - self.start


def split_inputs(source: Source, sizes: Sizes, features: Features) -> Inputs:
    """The inputs of the split over a domain."""
    grid, hash_block, scheduler_block, mamba_block = block_sizes(source, sizes)
    base = scheduler_block if sizes.symbolic else sizes.base
    tokens = {name: count(source, name, base, hash_block) for name in ("start", "end", "prompt", "known", "junction")}
    lookahead = source.integer("lookahead", 0) if features.lookahead == "any" else features.lookahead
    setting = SplitSetting(
        grid,
        hash_block,
        scheduler_block,
        count(source, "room", base, hash_block),
        source.boolean("drop") if features.lookahead == 0 else False,
        features.partial_hits,
        lookahead,  # type: ignore[arg-type]
        features.exact_junction,
        {"none": 0, "token": 1, "hash block": hash_block}[features.checkpoint],
    )
    return Inputs(setting, mamba_block, **tokens)


def block_sizes(source: Source, sizes: Sizes) -> tuple[Any, Any, Any, Any]:
    """Grid, hash block, scheduler block and Mamba block of a domain."""
    if sizes.symbolic == "B":
        block = source.integer("B")
        source.size(block)
        return block, block, block, block
    if sizes.symbolic == "B, H":
        hash_block, times = source.integer("H"), source.integer("k")
        source.size(hash_block)
        source.size(times)
        block = hash_block * times
        source.size(block)
        return block, hash_block, block, block
    plain = (sizes.grid, sizes.hash_block, sizes.scheduler_block, sizes.mamba_block)
    for size in sorted(set(plain), reverse=True):
        source.size(size)
    return plain


def count(source: Source, name: str, base: Any, hash_block: Any) -> Any:
    """A number of tokens, at least 0, in parts."""
    quotient = source.integer(f"{name}.blocks", 0)
    plain = isinstance(base, int)
    if plain:
        units = source.integer(f"{name}.units", 0, base // hash_block - 1)
        rest = source.integer(f"{name}.rest", 0, hash_block - 1)
        return base * quotient + hash_block * units + rest
    rest = source.integer(f"{name}.rest", 0)
    source.remainder(rest, hash_block)
    if base is hash_block:
        return base * quotient + rest
    units = source.integer(f"{name}.units", 0)
    source.axiom(hash_block * units + hash_block <= base)
    source.remainder(hash_block * units + rest, base)
    return base * quotient + hash_block * units + rest


def split_examples(sizes: Sizes, random: Random, number: int) -> Iterator[dict[str, int]]:
    """Plain inputs of the split, most of them legal: positions near block boundaries and near each other."""
    for _ in range(number):
        hash_block, times, base = sizes.hash_block, 1, sizes.base
        if sizes.symbolic:
            hash_block = random.randint(1, 5)
            times = random.randint(1, 4) if sizes.symbolic == "B, H" else 1
            base = hash_block * times
        known = _position(random, hash_block, base, 5)
        start, end = sorted(
            (_position(random, hash_block, base, 4), random.choice((known, _position(random, hash_block, base, 5))))
        )
        tokens = {
            "known": max(known, end),
            "start": start,
            "end": end,
            "prompt": random.choice(
                (known, max(known, end), max(known - 1, 1), min(_position(random, hash_block, base, 5), known))
            ),
            "junction": random.choice((0, 1))
            * min(_position(random, hash_block, base, 4), known)
            // hash_block
            * hash_block,
            "room": _position(random, hash_block, base, 2),
        }
        values = {"drop": random.randint(0, 1), "lookahead": random.choice((0, 1, 2, hash_block, base))}
        if sizes.symbolic:
            values |= {"B": base, "H": hash_block, "k": times}
        for name, value in tokens.items():
            inside = value % base
            values |= {
                f"{name}.blocks": value // base,
                f"{name}.units": inside // hash_block,
                f"{name}.rest": value % hash_block,
            }
        yield values


def _position(random: Random, hash_block: int, base: int, blocks: int) -> int:
    """A position that is often on or next to a boundary."""
    position = base * random.randint(0, blocks) + hash_block * random.choice(
        (0, 0, 1, random.randrange(base // hash_block))
    )
    return max(position + random.choice((0, 0, 1, -1, random.randrange(hash_block))), 0)
