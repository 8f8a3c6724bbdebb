"""The inputs over which claims about retention masks are proved."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from reference.geometry import Group
from reference.policy import Policy
from spec.claims.mask import MaskInputs
from spec.domains import Source


@dataclass(frozen=True)
class MaskSizes:
    """Sizes in tokens. ``symbolic``: "B, A" (blocks of B in an alignment of A = a * B, which is the scheduler block) or
    "H, B" (an alignment of H inside blocks of B = k * H)."""

    name: str
    block: int = 0
    alignment: int = 0
    scheduler_block: int = 0
    symbolic: str = ""

    @property
    def fine(self) -> bool:
        """Whether the alignment is finer than the block, which only partial hits allow."""
        return self.symbolic == "H, B" or self.alignment < self.block


def whole(block: int, alignment: int) -> MaskSizes:
    """An alignment of whole blocks."""
    return MaskSizes(f"{block} in {alignment}", block, alignment, alignment)


def fine(block: int, alignment: int) -> MaskSizes:
    """An alignment inside the block."""
    return MaskSizes(f"{block} by {alignment}", block, alignment, block)


MASK_SIZES = (
    MaskSizes("B in A, one boundary", symbolic="B, A"),
    MaskSizes("B by H, one boundary", symbolic="H, B"),
    *(whole(*sizes) for sizes in ((16, 16), (16, 64), (16, 1600), (528, 528), (816, 84048), (1648, 84048))),
    *(fine(*sizes) for sizes in ((16, 4), (64, 16), (528, 16), (816, 48), (1600, 64), (1648, 16), (12288, 64))),
)
QUICK_MASK_SIZES = (MASK_SIZES[0], MASK_SIZES[1], MASK_SIZES[3], MASK_SIZES[8])


@dataclass(frozen=True)
class MaskFeatures:
    """``kind`` of the group; ``interval``: dense, 0 or above 0. Whether the group drops under EAGLE is an unknown."""

    name: str
    kind: Literal["mamba", "swa"]
    interval: str

    def exist_in(self, policy: Policy, sizes: MaskSizes) -> bool:
        """Whether a release has such a mask: a fine alignment needs partial hits, which windows do not have."""
        return not sizes.fine or (policy.mask_alignment == "hit alignment" and self.kind == "mamba")


INTERVALS = ("dense", "interval 0", "interval above 0")
MASK_FEATURES = (
    *(MaskFeatures(f"Mamba, {interval}", "mamba", interval) for interval in INTERVALS),
    *(MaskFeatures(f"window, {interval}", "swa", interval) for interval in INTERVALS),
)


def mask_inputs(source: Source, sizes: MaskSizes, features: MaskFeatures) -> MaskInputs:
    """The inputs of a mask over a domain."""
    block, alignment, scheduler_block, units = _sizes(source, sizes)
    several = features.interval == "interval above 0"
    segments = source.integer("interval.units", 1) if several else 1
    source.size(segments)
    interval = {"dense": None, "interval 0": 0, "interval above 0": scheduler_block * segments}[features.interval]
    period = units * segments
    source.size(period)
    window = 1 + _count(source, "window", block) if features.kind == "swa" else 0
    # Each boundary adds to what is kept by itself, so one shows for symbolic sizes what three show for numbers.
    listed = ("b1",) if sizes.symbolic else ("b1", "b2", "b3")
    position = _fine_count if sizes.fine else _whole_count
    places = {name: position(source, name, alignment, scheduler_block) for name in ("prompt", "junction", *listed)}
    numbers = {
        name: _block_number(source, name, units, segments) if several else _count(source, name, units)
        for name in ("number", "start", "middle", "end")
    }
    return MaskInputs(
        Group(features.kind, block, window, source.boolean("drop")),
        alignment,
        scheduler_block,
        interval,
        places["prompt"],
        places["junction"],
        numbers["number"],
        numbers["start"],
        numbers["middle"],
        numbers["end"],
        tuple(places[name] for name in listed),
    )


def _sizes(source: Source, sizes: MaskSizes) -> tuple[Any, Any, Any, Any]:
    """Block, alignment, scheduler block, and how many blocks the scheduler block has."""
    if not sizes.symbolic:
        return sizes.block, sizes.alignment, sizes.scheduler_block, sizes.scheduler_block // sizes.block
    unit, times = source.integer(sizes.symbolic[0]), source.integer("times")
    source.size(unit)
    source.size(times)
    source.size(unit * times)
    if sizes.symbolic == "B, A":
        return unit, unit * times, unit * times, times
    return unit * times, unit, unit * times, 1


def _count(source: Source, name: str, unit: Any) -> Any:
    """A number, at least 0, as a multiple of ``unit`` and a rest."""
    quotient = source.integer(f"{name}.whole", 0)
    if isinstance(unit, int):
        return unit * quotient + source.integer(f"{name}.rest", 0, unit - 1)
    rest = source.integer(f"{name}.rest", 0)
    source.remainder(rest, unit)
    return unit * quotient + rest


def _block_number(source: Source, name: str, units: Any, segments: Any) -> Any:
    """A block number: whole segments, whole units of ``units`` blocks in the last, and a rest."""
    period = units * segments
    part, rest = source.integer(f"{name}.part", 0), source.integer(f"{name}.rest", 0)
    source.remainder(rest, units)
    source.axiom(part < segments)
    source.remainder(units * part + rest, period)
    return period * source.integer(f"{name}.whole", 0) + units * part + rest


def _whole_count(source: Source, name: str, alignment: Any, _: Any) -> Any:
    return _count(source, name, alignment)


def _fine_count(source: Source, name: str, alignment: Any, scheduler_block: Any) -> Any:
    quotient = source.integer(f"{name}.whole", 0)
    if isinstance(alignment, int):
        units = source.integer(f"{name}.units", 0, scheduler_block // alignment - 1)
        return scheduler_block * quotient + alignment * units + source.integer(f"{name}.rest", 0, alignment - 1)
    units, rest = source.integer(f"{name}.units", 0), source.integer(f"{name}.rest", 0)
    source.remainder(rest, alignment)
    source.axiom(alignment * units + alignment <= scheduler_block)
    source.remainder(alignment * units + rest, scheduler_block)
    return scheduler_block * quotient + alignment * units + rest


def mask_examples(sizes: MaskSizes, features: MaskFeatures, random: Random, number: int) -> Iterator[dict[str, int]]:
    """Plain inputs of a mask, most of them legal."""
    for _ in range(number):
        unit = random.randint(1, 4) if sizes.symbolic else sizes.alignment
        times = random.randint(1, 4)
        segments = random.randint(1, 3) if features.interval == "interval above 0" else 1
        values = {"B": unit, "H": unit, "times": times, "interval.units": segments, "drop": random.randint(0, 1)}
        blocks = times if sizes.symbolic == "B, A" else max(sizes.scheduler_block // max(sizes.block, 1), 1)
        period = blocks * segments
        width = unit * (times if sizes.symbolic == "B, A" else 1)
        for name in ("prompt", "junction", "b1", "b2", "b3"):
            units = times if sizes.symbolic else max(sizes.scheduler_block // sizes.alignment, 1)
            values |= {
                f"{name}.whole": random.randint(0, 4),
                f"{name}.units": random.choice((0, random.randrange(units))),
                f"{name}.rest": 0 if name == "junction" else random.choice((0, 0, width - 1, random.randrange(width))),
            }
        block = unit * times if sizes.symbolic == "H, B" else unit if sizes.symbolic else sizes.block
        values |= {"window.whole": random.randint(0, 3), "window.rest": random.choice((0, 1, random.randrange(block)))}
        place = random.randint(0, 4) * period + random.randrange(period)
        start = max(place - random.choice((0, 0, 1, 3)), 0)
        end = place + random.choice((1, 1, 2, 4))
        for name, at in (("number", place), ("start", start), ("middle", random.randint(start, end)), ("end", end)):
            inside = at % period
            parts = (inside // blocks, inside % blocks) if features.interval == "interval above 0" else (0, inside)
            values |= {f"{name}.whole": at // period, f"{name}.part": parts[0], f"{name}.rest": parts[1]}
        yield values
