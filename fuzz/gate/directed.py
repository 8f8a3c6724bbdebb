"""Scenarios made from the inputs on which Z3 says that baseline and candidate differ.

For the split the scheduler is brought to that very call (``fuzz.confirm``). For masks and boundary lists the numbers
give a small family of requests that share, resend and extend prompts around the positions in question.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import islice, product
from pathlib import Path
from typing import Any

import msgspec

from fuzz.confirm import Confirmation, SplitCall
from fuzz.confirmations import call_of
from fuzz.gate.side import Reach, Side
from oracle.scenario import Features, Geometry, Group, Limits, Request, Scenario, Step
from oracle.validate import check
from reference.policy import POLICIES
from spec.claims.split import run_split
from spec.domains import Plain, split_inputs
from spec.row import Row
from spec.subjects import FEATURE_SETS, MASK_FEATURE_NAMES, MASK_SIZE_NAMES, SIZES, engine_split

CALLS_MAX = 3
"""Calls of the split that the scheduler is brought to; the smallest ones."""
MASK_SCENARIOS_MAX = 400
"""Scenarios made from inputs on which masks or boundary lists differ."""

_POOL_BLOCKS = 4096
_TOKENS_MAX = 4000


def directed(rows: Sequence[Row], source: Path, candidate: Side, call_seconds: float) -> Iterator[Scenario]:
    """Scenarios from refuted equalities of the candidate, whose package lies in ``source``.

    ``call_seconds``: how long its scheduler may be led towards one call of the split. Raises SideError.
    """
    for call in split_calls(rows, source) if rows else ():
        candidate.ask(Reach("M1", call, call_seconds))
        met = candidate.take(Confirmation)
        if met.scenario is not None:
            yield met.scenario
    yield from islice(mask_scenarios(rows), MASK_SCENARIOS_MAX)


def split_calls(rows: Sequence[Row], candidate: Path) -> list[SplitCall]:
    """The calls of the split on which the candidate differs, with the candidate's own answer; the smallest first."""
    split = engine_split(candidate, {})
    usable = [row for row in rows if row.subject == "split" and row.counterexample and not SIZES[row.sizes].symbolic]
    calls: dict[tuple[Any, ...], SplitCall] = {}
    for row in sorted(usable, key=lambda row: sum(row.shown.values())):
        inputs = split_inputs(Plain(row.counterexample or {}), SIZES[row.sizes], FEATURE_SETS[row.features])
        call = call_of(row)
        # A split that raises gives no answer to look for; the call itself is still worth a scenario.
        with suppress(Exception):
            granted = run_split(POLICIES[row.release], split, inputs).granted
            call = SplitCall(**(asdict(call) | {"granted": granted}))
        calls.setdefault(call.inputs, call)
    return list(calls.values())[:CALLS_MAX]


def mask_scenarios(rows: Sequence[Row]) -> Iterator[Scenario]:
    """Scenarios around the positions on which masks or boundary lists differ."""
    seen: set[bytes] = set()
    for row in rows:
        if row.subject not in ("mask", "boundaries") or row.counterexample is None:
            continue
        for scenario in _family(row):
            key = msgspec.json.encode(scenario)
            if key not in seen and not check(scenario):
                seen.add(key)
                yield scenario


def _family(row: Row) -> Iterator[Scenario]:
    positions = sorted({value for value in row.shown.values() if 0 < value <= _TOKENS_MAX}) or [1]
    for groups, hash_block, drafts in product(_groups(row), _hash_blocks(row), (0, 1)):
        wide = max(group.block for group in groups)
        prompts = sorted({p + extra for p in positions for extra in (0, 1, wide)})[:8]
        for interval, prompt in product((0, None, wide, 2 * wide), prompts):
            yield _siblings(Geometry(groups, hash_block, _POOL_BLOCKS), interval, drafts, prompt, wide)


def _groups(row: Row) -> list[tuple[Group, ...]]:
    if row.subject == "boundaries":
        return [(Group("full", 4), Group("mamba", 4)), (Group("full", 4), Group("swa", 4, 6))]
    sizes = MASK_SIZE_NAMES[row.sizes]
    block, unit = (16, 64) if sizes.symbolic else (sizes.block, max(sizes.block, sizes.alignment))
    if MASK_FEATURE_NAMES[row.features].kind == "mamba":
        return [(Group("full", unit), Group("mamba", block)), (Group("full", block), Group("mamba", block))]
    windows = sorted({1, block, block + 1, 2 * block + 1, row.shown.get("window", 1) or 1})
    return [(Group("full", unit), Group("swa", block, window)) for window in windows]


def _hash_blocks(row: Row) -> list[int]:
    if row.subject == "mask" and MASK_SIZE_NAMES[row.sizes].fine and not MASK_SIZE_NAMES[row.sizes].symbolic:
        return [MASK_SIZE_NAMES[row.sizes].alignment]
    return [4 if row.subject == "boundaries" else 16]


def _siblings(geometry: Geometry, interval: int | None, drafts: int, prompt: int, wide: int) -> Scenario:
    """One request, the same again, two that share most of it, and one that extends it; one after another."""
    shared = max(1, prompt - wide // 2)
    prompts = (
        (f"a:{prompt}",),
        (f"a:{prompt}",),
        (f"a:{shared}", f"b:{wide}"),
        (f"a:{shared}", f"c:{wide}"),
        (f"a:{prompt}", f"d:{wide}"),
    )
    fine = geometry.hash_block < min(group.block for group in geometry.groups)
    features = Features(drafts=drafts, retention=interval, partial_hits=fine)
    apart = prompt + 3 * wide
    steps = tuple(Step(number * apart, add=(Request(f"r{number}", one, 2),)) for number, one in enumerate(prompts))
    return Scenario(geometry, Limits(max(2 * wide, drafts + 2), 4), steps, features)
