"""Makes whole scenarios in which this code is hard, from any source of choices and within a swarm.

Every scenario is built to be legal, never filtered: ``oracle.validate.check`` has nothing to say on it.
Nothing drawn depends on an engine, so the same seed gives the same scenario for every build.
"""

from __future__ import annotations

import functools
import math

from fuzz.chunked_local import with_chunked_local
from fuzz.draw import Draw, SeededDraw
from fuzz.geometries import draw_blocks, draw_groups, draw_hash_block, draw_kinds
from fuzz.swarm import FEATURES, Swarm, UnknownFeature, check_features, describe, draw_swarm
from fuzz.workload import Job, draw_jobs, draw_steps, sizes, span_tokens
from oracle.geometry import hits_inside_blocks
from oracle.scenario import Features, Geometry, Group, GroupKind, Limits, Scenario
from oracle.validate import blocks_for_request

__all__ = [
    "FEATURES",
    "SWARM_SCENARIOS",
    "Swarm",
    "UnknownFeature",
    "check_features",
    "describe",
    "draw_swarm",
    "generate",
    "scenario_at",
    "swarm_at",
]

# Scenarios per swarm: enough to meet a rare combination many times, few enough to try many swarms.
SWARM_SCENARIOS = 50

DRAFTS_MAX = 5

_SWARM_SALT, _SCENARIO_SALT = 0, 1

# The very object: msgspec leaves a default out of a document by identity.
_NO_WATERMARK = Features().watermark


def generate(draw: Draw, swarm: Swarm) -> Scenario:
    """One scenario that can run, within the features of the swarm."""
    kinds = draw_kinds(draw, swarm)
    blocks = draw_blocks(draw, swarm, kinds)
    hash_block, partial_hits = draw_hash_block(draw, swarm, kinds, blocks)
    drafts = _draw_drafts(draw, swarm, kinds, blocks)
    groups = draw_groups(draw, swarm, kinds, blocks, hash_block, drafts)
    block = math.lcm(*blocks)
    limits = _draw_limits(draw, swarm, blocks, drafts)
    inside = hits_inside_blocks(Geometry(groups, hash_block, 0))
    features = _draw_features(draw, swarm, kinds, block, drafts, partial_hits, inside)
    jobs = draw_jobs(draw, swarm, features, sizes(blocks, hash_block, block, limits))
    steps = draw_steps(draw, swarm, jobs)
    pool = _draw_pool(draw, swarm, groups, hash_block, features, jobs)
    scenario = Scenario(Geometry(groups, hash_block, pool), limits, steps, features)
    return with_chunked_local(draw, swarm, scenario)


def _uses(draw: Draw, swarm: Swarm, feature: str, percent: int) -> bool:
    """Whether this scenario uses a feature: never when it is off, in ``percent`` of 100 when it is on."""
    return feature in swarm and draw.chance(percent)


def _draw_drafts(draw: Draw, swarm: Swarm, kinds: tuple[GroupKind, ...], blocks: list[int]) -> int:
    """Draft tokens a step: with Mamba few enough that a verifying step passes one block boundary at most."""
    if not _uses(draw, swarm, "eagle", 85):
        return 0
    mamba = [block for kind, block in zip(kinds, blocks, strict=True) if kind == "mamba"]
    return draw.integer(1, min([DRAFTS_MAX, *(block - 1 for block in mamba)]))


def _draw_limits(draw: Draw, swarm: Swarm, blocks: list[int], drafts: int) -> Limits:
    """Budget, sequences and threshold, by the groups' blocks in tokens.

    The budget holds a token per sequence (every release) and is above the drafts (0.33). Only with
    ``tiny-budget`` is it, or the threshold, below the smallest block (which 0.26 refuses with Mamba).
    """
    smallest, largest, block = min(blocks), max(blocks), span_tokens(blocks, math.lcm(*blocks))
    tiny = _uses(draw, swarm, "tiny-budget", 70)
    sequences = draw.integer(1, 2) if tiny else draw.choice((4, 2, 3, 1, 8))
    least = max(sequences, drafts + 1)
    if tiny:
        budget = draw.integer(least, max(least, largest - 1))
    else:
        typical = (block, 2 * block, block + 1, block - 1, largest, smallest, 3 * block + 2, 64, 8 * block)
        wanted = draw.integer(1, 4 * block) if draw.chance(25) else draw.choice(typical)
        budget = max(least, smallest, wanted)
    threshold = 0
    if _uses(draw, swarm, "threshold", 75):
        near = (smallest, block, smallest + 1)
        wanted = draw.integer(1, 2 * block) if draw.chance(40) else draw.choice(near)
        threshold = wanted if tiny else max(smallest, wanted)
    return Limits(budget, sequences, threshold)


def _draw_features(
    draw: Draw, swarm: Swarm, kinds: tuple[GroupKind, ...], block: int, drafts: int, partial_hits: bool, inside: bool
) -> Features:
    """``inside``: hits can end inside a block."""
    intervals: list[int | None] = [None]
    # Without a sparse group an interval does nothing, and even 0 is refused until 0.28.
    if "mamba" in kinds or "swa" in kinds:
        if "retention-zero" in swarm:
            intervals += [0, 0]
        if "retention-interval" in swarm:
            intervals += [block * draw.integer(1, 3)] * 2
    if "together" in swarm:
        intervals = [0]
    return Features(
        drafts=drafts,
        retention=draw.choice(intervals),
        partial_hits=partial_hits,
        lookahead_hashes=not (drafts and _uses(draw, swarm, "block-drop", 60)),
        exact_junction=inside and drafts > 0 and _uses(draw, swarm, "exact-junction", 85),
        policy="priority" if _uses(draw, swarm, "priority", 80) else "fcfs",
        async_depth=_draw_depth(draw, swarm),
        watermark=draw.choice((0.1, 0.02, 0.05, 0.25)) if _uses(draw, swarm, "watermark", 70) else _NO_WATERMARK,
        reserve_full_sequence=not _uses(draw, swarm, "optimistic", 80),
        runner="v2" if _uses(draw, swarm, "runner-v2", 80) else "v1",
    )


def _draw_depth(draw: Draw, swarm: Swarm) -> int:
    """Steps in flight. Two need pipeline parallelism or a custom loop; one is what vLLM does by itself."""
    if not _uses(draw, swarm, "async", 75):
        return 0
    return 2 if _uses(draw, swarm, "async-deep", 60) else 1


def _draw_pool(
    draw: Draw, swarm: Swarm, groups: tuple[Group, ...], hash_block: int, features: Features, jobs: list[Job]
) -> int:
    """The pool's blocks: from what the longest request needs alone up to what all need, or plenty."""
    geometry = Geometry(groups, hash_block, 0)
    needs = [blocks_for_request(geometry, features, job.tokens, job.request.max_output) for job in jobs]
    least, all_at_once = max(needs) + 1, sum(needs) + 1
    if _uses(draw, swarm, "small-pool", 85):
        most = min(all_at_once - least, max(2, least // 5)) if draw.chance(75) else all_at_once - least
        return least + draw.integer(0, most)
    return all_at_once + draw.choice((8, 0, 40))


def _stream(seed: int, salt: int, index: int) -> SeededDraw:
    """A source of its own for each (seed, salt, index): what one draws never moves another."""
    if seed < 0 or index < 0:
        raise ValueError(f"seed {seed} and index {index} must not be negative")
    return SeededDraw((seed << 66) | (index << 2) | salt)


@functools.lru_cache(maxsize=64)
def _swarm(seed: int, batch: int, only: tuple[str, ...], without: tuple[str, ...]) -> Swarm:
    return draw_swarm(_stream(seed, _SWARM_SALT, batch), only, without)


def swarm_at(seed: int, index: int, *, only: tuple[str, ...] = (), without: tuple[str, ...] = ()) -> Swarm:
    """The swarm that scenario ``index`` of a campaign belongs to. Raises UnknownFeature, ValueError."""
    return _swarm(seed, index // SWARM_SCENARIOS, only, without)


def scenario_at(seed: int, index: int, *, only: tuple[str, ...] = (), without: tuple[str, ...] = ()) -> Scenario:
    """Scenario ``index`` (from 0) of the campaign with this seed, whoever asks and in whatever order.

    ``only`` and ``without`` name features as in ``draw_swarm``. Raises UnknownFeature for others, and
    ValueError for a negative seed or index.
    """
    swarm = swarm_at(seed, index, only=only, without=without)
    return generate(_stream(seed, _SCENARIO_SALT, index), swarm)
