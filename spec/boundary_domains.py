"""The inputs over which claims about boundary lists are proved."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from reference.geometry import Group
from spec.claims.boundaries import BoundaryInputs
from spec.domains import Source, count


@dataclass(frozen=True)
class BoundarySizes:
    """The block of the group that drops and the scheduler block, in tokens; both 0 where they are unknowns: a
    scheduler block of ``times`` blocks, 1 or any number of them."""

    name: str
    block: int = 0
    scheduler_block: int = 0
    several: bool = False


def _sizes(block: int, scheduler_block: int) -> BoundarySizes:
    return BoundarySizes(f"{block} in {scheduler_block}", block, scheduler_block)


BOUNDARY_SIZES = (
    BoundarySizes("B in B"),
    BoundarySizes("B in A", several=True),
    *(_sizes(*pair) for pair in ((4, 4), (4, 8), (16, 16), (16, 64), (16, 1600))),
)


def boundary_inputs(sizes: BoundarySizes, source: Source) -> BoundaryInputs:
    """A request of any length in one of two regimes: with the EAGLE drop or without."""
    block, scheduler_block = sizes.block, sizes.scheduler_block
    if not block:
        block = source.integer("H")
        times = source.integer("k") if sizes.several else 1
        source.size(block)
        source.size(times)
        scheduler_block = block * times
        if sizes.several:
            source.size(scheduler_block)
    return BoundaryInputs(
        Group("swa", block, 2, source.boolean("drop")),
        scheduler_block,
        count(source, "prompt", scheduler_block, block),
        count(source, "junction", scheduler_block, block),
    )


def boundary_examples(sizes: BoundarySizes, random: Random, number: int) -> Iterator[dict[str, int]]:
    """Plain inputs to begin with."""
    for _ in range(number):
        block = sizes.block or random.randint(1, 4)
        times = sizes.scheduler_block // sizes.block if sizes.block else random.randint(1, 4) if sizes.several else 1
        yield {
            "H": block,
            "k": times,
            "drop": random.randint(0, 1),
            "prompt.blocks": random.randint(0, 3),
            "prompt.units": random.randrange(times),
            "prompt.rest": random.choice((0, 1, block - 1)) % block,
            "junction.blocks": random.randint(0, 3),
        }
