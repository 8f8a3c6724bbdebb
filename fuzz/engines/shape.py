"""What the reference engine makes of a scenario: its shape, or why it refuses to run it."""

from __future__ import annotations

from dataclasses import replace

from oracle.geometry import hit_alignment, hits_inside_blocks, reference_group
from oracle.scenario import Geometry, Scenario
from oracle.trace import Setup
from oracle.validate import check
from reference.geometry import Group, scheduler_block
from reference.policy import Policy
from reference.shape import Shape
from reference.split import SplitSetting


def refusal(scenario: Scenario, policy: Policy) -> str:
    """Why this engine does not run a scenario; empty when it does."""
    reasons = check(scenario)
    if reasons:
        return reasons[0]
    if reason := _unsaved(scenario.geometry, policy):
        return reason
    if scenario.features.exact_junction and policy.internal_checkpoint != "final chunk":
        return f"{policy.release} has no opt-in for exact junctions"
    room = scenario.limits.room
    if room < _mamba_block(scenario.geometry) and not policy.allows_wide_blocks:
        return f"{policy.release} never advances inside a Mamba block, and a step has room for {room} tokens"
    return ""


def _unsaved(geometry: Geometry, policy: Policy) -> str:
    """Why states that are to be saved inside a chunk would not be; empty when they are."""
    units = {group.checkpoint for group in geometry.groups if group.kind == "mamba"}
    if not any(units):
        return ""
    if len(units) > 1:
        return "geometry.groups: Mamba groups save states in different units; give all of them the same checkpoint"
    if policy.internal_checkpoint == "none":
        return f"{policy.release} saves no state inside a chunk"
    if policy.internal_checkpoint == "aligned start" and units != {1}:
        return f"{policy.release} knows no unit for states that are saved inside a chunk; set checkpoint to 1"
    return ""


def derive(scenario: Scenario, policy: Policy) -> Shape:
    """The shape of a scenario that is not refused."""
    geometry, limits, features = scenario.geometry, scenario.limits, scenario.features
    looks_ahead = features.caching and features.drafts > 0 and features.lookahead_hashes and policy.lookahead_hashes
    # Hashes that look ahead (0.33) take the place of the EAGLE drop.
    drop = features.drafts > 0 and not looks_ahead
    groups = _groups(geometry, drop)
    block = scheduler_block(group.block for group in groups)
    alignment = hit_alignment(geometry)
    partial = features.caching and hits_inside_blocks(geometry) and alignment == geometry.hash_block
    unit = max(group.checkpoint for group in geometry.groups)
    # Under EAGLE 0.29 reserves the blocks, and its split counts on nothing that is saved.
    counts = not (drop and policy.internal_checkpoint == "aligned start")
    setting = SplitSetting(
        grid=_mamba_block(geometry) or block,
        hash_block=geometry.hash_block,
        scheduler_block=block,
        room=limits.room,
        block_drop=drop,
        partial_hits=partial,
        lookahead=int(looks_ahead),
        exact_junction=features.exact_junction and partial and drop,
        checkpoint_alignment=unit if counts else 0,
    )
    return Shape(
        policy,
        groups,
        setting,
        alignment=alignment if partial else block,
        blocks=geometry.blocks,
        budget=limits.budget,
        sequences=limits.sequences,
        long_prefill_threshold=limits.long_prefill_threshold,
        drafts=features.drafts,
        caching=features.caching,
        saves=unit > 0,
        retention=features.retention,
        by_priority=features.policy == "priority",
        watermark_blocks=int(features.watermark * geometry.blocks),
        reserves_full_sequence=features.reserve_full_sequence,
        steps_unseen=features.async_depth,
    )


def setup_of(shape: Shape) -> Setup:
    """The facts about the engine that a trace begins with."""
    setting = shape.setting
    return Setup(
        scheduler_block=setting.scheduler_block,
        hash_block=setting.hash_block,
        split_grid=setting.grid,
        alignment=shape.alignment,
        partial_hits=setting.partial_hits,
        split=shape.splits,
        block_drop=setting.block_drop,
        lookahead_hash=setting.lookahead,
        drop_groups=tuple(group.drops for group in shape.groups),
        exact_junction=setting.exact_junction,
        lookahead=shape.drafts,
        retention=shape.retention,
        watermark_blocks=shape.watermark_blocks,
        zeroing=False,
        checkpoint_alignment=setting.checkpoint_alignment,
        model_length=shape.model_length,
    )


def _groups(geometry: Geometry, drop: bool) -> tuple[Group, ...]:
    """The groups with their drop: those marked, with all that look alike; all of them if none is marked."""
    marked = {reference_group(group).spec for group in geometry.groups if group.eagle}
    plain = [reference_group(group) for group in geometry.groups]
    return tuple(replace(group, drops=drop and (not marked or group.spec in marked)) for group in plain)


def _mamba_block(geometry: Geometry) -> int:
    """The block size of the Mamba groups in tokens, one for all of them; 0 without any."""
    return next((group.block for group in geometry.groups if group.kind == "mamba"), 0)
