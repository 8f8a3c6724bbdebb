"""Which scenarios a gate run tries: stored ones, and generated ones, half of which bear on the changed functions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import count

from fuzz.engines.open import Prepared
from fuzz.generator import scenario_at, swarm_at
from fuzz.supported import unsupported, withheld
from fuzz.vectors import vectors
from oracle.scenario import Scenario

NEEDED: dict[str, tuple[tuple[str, ...], ...]] = {
    "split": (("mamba",),),
    "masks": (("mamba", "swa"), ("retention-zero", "retention-interval")),
    "lookup": (("shared-prefix", "repeat", "extend"),),
    "commit": (("shared-prefix", "repeat"), ("mamba", "swa")),
    "tails": (("mamba",), ("partial-hits", "wide-mamba")),
    "schedule": (("mamba",), ("tiny-budget", "threshold")),
    "allocate": (("small-pool", "watermark"),),
    "pool": (("small-pool",),),
    "chunked-local": (("chunked-local",), ("shared-prefix", "repeat")),
}
"""By decision point: of each row one feature at least, so that a scenario can bear on it."""

LIVENESS = ("small-pool", "optimistic", "spread", "late-sibling", "shared-prefix", "abort")
"""Features under which requests get into each other's way, so that one may never end."""

SAVED_STATES = frozenset({"split", "masks", "commit", "tails", "allocate"})
"""Decision points that also have a case for backends that save a state inside a chunk."""


class Supply:
    """The scenarios for some builds: none that one of them is known to refuse. ``points``: what was changed."""

    def __init__(self, builds: Sequence[Prepared], seed: int, points: Collection[str]) -> None:
        self._seed, self._points = seed, points
        self._without = tuple(dict.fromkeys(name for one in builds for name in withheld(one)))
        self._reasons = [unsupported(one) for one in builds]

    def _is_refused(self, scenario: Scenario) -> bool:
        return any(reason(scenario) for reason in self._reasons)

    def stored(self) -> Iterator[Scenario]:
        """The documented ones."""
        return (one.scenario for one in vectors() if not self._is_refused(one.scenario))

    def generated(self) -> Iterator[Scenario]:
        """Without end; the same each time."""
        return generated(self._seed, self._without, self._points, self._is_refused)

    def contending(self, number: int) -> list[Scenario]:
        """So many at most, in which requests contend for blocks."""
        return liveness(self._seed, number, self._without, self._is_refused)


def generated(
    seed: int, without: tuple[str, ...], points: Collection[str], refused: Callable[[Scenario], bool]
) -> Iterator[Scenario]:
    """Scenarios without end: in turn any that can run, and one that bears on a changed decision ``point``.

    ``refused``: whether a build is known not to start with a scenario.
    """
    steered = _steered(seed, without, points) if NEEDED.keys() & points else count(1, 2)
    saves = "checkpoint" not in without and bool(SAVED_STATES & {*points})
    for even, odd in zip(count(0, 2), steered, strict=False):
        yield from _unless(refused, scenario_at(seed, even, without=without))
        only = _with_saved_states(seed, odd, without) if saves and odd % 4 == 3 else ()
        yield from _unless(refused, scenario_at(seed, odd, only=only, without=without))


def _unless(refused: Callable[[Scenario], bool], scenario: Scenario) -> Iterator[Scenario]:
    if not refused(scenario):
        yield scenario


def _with_saved_states(seed: int, index: int, without: tuple[str, ...]) -> tuple[str, ...]:
    """The features that scenario ``index`` has anyhow, and states that are saved inside a chunk."""
    saved = [feature for feature in ("mamba", "checkpoint", "coarse-checkpoint") if feature not in without]
    return (*sorted(swarm_at(seed, index, without=without).on), *saved)


def _steered(seed: int, without: tuple[str, ...], points: Collection[str]) -> Iterator[int]:
    """Odd numbers, of swarms that have what some changed decision point needs."""
    wanted = [NEEDED[point] for point in sorted(points) if point in NEEDED]
    for index in count(1, 2):
        on = swarm_at(seed, index, without=without).on
        if any(all(on.intersection(row) for row in rows) for rows in wanted):
            yield index


def liveness(seed: int, number: int, without: tuple[str, ...], refused: Callable[[Scenario], bool]) -> list[Scenario]:
    """So many scenarios, at most, in which requests contend for blocks."""
    only = tuple(name for name in LIVENESS if name not in without)
    made = (scenario_at(seed, index, only=only, without=without) for index in range(number))
    return [scenario for scenario in made if not refused(scenario)]
