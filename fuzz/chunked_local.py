"""Gives a scenario that is drawn already a group of chunked-local attention, and leaves the rest of it as it was."""

from __future__ import annotations

from msgspec.structs import replace

from fuzz.draw import Draw
from fuzz.swarm import Swarm
from oracle.geometry import hit_alignment, hits_inside_blocks, keeps_all
from oracle.scenario import Group, Scenario
from oracle.validate import MAX_GROUPS, blocks_needed

_CHUNK_BLOCKS = (2, 3, 1, 4, 6)


def with_chunked_local(draw: Draw, swarm: Swarm, scenario: Scenario) -> Scenario:
    """The scenario with a chunked-local group more, or in place of its sliding window, seldom with two of two sizes.

    Drawn after all the rest: a scenario that does not get one is what it would be without the feature. The pool grows
    by what the longest request may hold more.
    """
    if "chunked-local" not in swarm or not _can_have_one(swarm, scenario) or not draw.chance(75):
        return scenario
    old = scenario.geometry.groups
    block = hit_alignment(scenario.geometry)
    new = Group("chunked", block, attention_chunk=block * draw.choice(_CHUNK_BLOCKS))
    other = Group("chunked", block, attention_chunk=block * draw.choice(_CHUNK_BLOCKS))
    replaces = "together" not in swarm and {group.block for group in old} == {block} and draw.chance(50)
    window = next((group for group in old if group.kind == "swa" and not group.eagle), None) if replaces else None
    left = [group for group in old if group is not window]
    two = len(left) + 2 <= MAX_GROUPS and other.attention_chunk != new.attention_chunk and draw.chance(20)
    return _refitted(scenario, (*left, new, other) if two else (*left, new))


def _can_have_one(swarm: Swarm, scenario: Scenario) -> bool:
    """With drafts another group must hold the draft model's layers, else a chunked-local group is taken to, which
    asserts. Where hits end inside blocks a group of another unit turns that off, which only ``fine-swa`` asks for.
    """
    geometry = scenario.geometry
    marked = scenario.features.drafts == 0 or any(group.eagle for group in geometry.groups)
    fine = hits_inside_blocks(geometry)
    smallest = min(group.block for group in geometry.groups)
    return marked and (not fine or (hit_alignment(geometry) >= smallest and "fine-swa" in swarm))


def _refitted(scenario: Scenario, groups: tuple[Group, ...]) -> Scenario:
    """The scenario with other groups: no retention if nothing can be thinned out, and the pool as tight as before."""
    changed = replace(scenario, geometry=replace(scenario.geometry, groups=groups))
    if keeps_all(changed.geometry):
        changed = replace(changed, features=replace(scenario.features, retention=None))
    blocks = scenario.geometry.blocks + blocks_needed(changed) - blocks_needed(scenario)
    return replace(changed, geometry=replace(changed.geometry, blocks=blocks))
