"""The shape of a scenario's cache: its derived block sizes, and the class that findings are grouped by."""

from __future__ import annotations

import math
from collections import Counter

import reference.geometry
from oracle.scenario import Geometry, Group, GroupKind, Scenario
from reference import retention

# The order in which kinds are named: dense first, then ever sparser.
_KIND_ORDER: tuple[GroupKind, ...] = ("full", "chunked", "swa", "mamba")


def reference_group(group: Group, drops: bool = False) -> reference.geometry.Group:
    """A group as the reference knows it; ``drops``: it gives up a block under the EAGLE drop."""
    return reference.geometry.Group(group.kind, group.block, group.window or 0, drops, group.attention_chunk or 0)


def keeps_all(geometry: Geometry) -> bool:
    """Whether no group can be thinned out, so that a retention interval would mean nothing."""
    return all(retention.keeps_all(reference_group(group)) for group in geometry.groups)


def saves_states(geometry: Geometry) -> bool:
    """Whether the backend is to save states inside chunks."""
    return any(group.checkpoint for group in geometry.groups)


def scheduler_block(geometry: Geometry) -> int:
    """The scheduler block in tokens: the least common multiple of the groups' block sizes.

    Source: ``resolve_kv_cache_block_sizes`` of vLLM's ``kv_cache_utils``, the same in all releases.
    """
    return reference.geometry.scheduler_block(group.block for group in geometry.groups)


def default_hash_block(geometry: Geometry) -> int:
    """The hash block in tokens that the engine takes when no finer unit is asked for.

    One group: its block. Several: the greatest common divisor of the groups' blocks, which may be finer
    than every block (blocks 4 and 6 are hashed in units of 2). Source: ``resolve_kv_cache_block_sizes``.
    """
    return math.gcd(*(group.block for group in geometry.groups))


def hits_inside_blocks(geometry: Geometry) -> bool:
    """Whether the cache's shape lets a hit end inside a Mamba block, asked for or not.

    True with several groups and a Mamba block wider than the hash block: an engine then grants hits by
    the hash block (a group that cannot look up so finely turns it off from 0.28 on). With unequal blocks
    this needs no ``partial_hits``. Source: ``partial_hash_hits_enabled`` (0.33), before 0.32 inlined in
    ``HybridKVCacheCoordinator``.
    """
    return len(geometry.groups) > 1 and any(
        group.kind == "mamba" and group.block > geometry.hash_block for group in geometry.groups
    )


def hit_alignment(geometry: Geometry) -> int:
    """The unit in which several groups grant hits, in tokens, caching on; of one group it is the block.

    The hash block, where hits end inside a Mamba block and no group beside it finds whole blocks of its own only.
    Source: ``_cache_hit_alignment_tokens`` of the hybrid coordinator from 0.28 on; before, such a group asserts.
    """
    coarse = any(g.kind in ("swa", "chunked") and g.block != geometry.hash_block for g in geometry.groups)
    return geometry.hash_block if hits_inside_blocks(geometry) and not coarse else scheduler_block(geometry)


def geometry_class(scenario: Scenario) -> str:
    """A short stable name for the shape, such as ``full+2mamba/unequal/eagle/fine``.

    Group kinds with their numbers, then ``/unequal`` when block sizes differ, ``/eagle`` when there are
    draft tokens, ``/fine`` when hits can end inside a block. Sizes are left out on purpose: a fault shrunk
    to other sizes keeps its class.
    """
    geometry = scenario.geometry
    counts = Counter(group.kind for group in geometry.groups)
    name = "+".join(kind if counts[kind] == 1 else f"{counts[kind]}{kind}" for kind in _KIND_ORDER if counts[kind])
    if len({group.block for group in geometry.groups}) > 1:
        name += "/unequal"
    if scenario.features.drafts > 0:
        name += "/eagle"
    if hits_inside_blocks(geometry):
        name += "/fine"
    return name
