"""What the reference engine makes of a scenario: groups, units and settings, or why it refuses to run it."""

from __future__ import annotations

from dataclasses import dataclass

from oracle.geometry import hits_inside_blocks
from oracle.scenario import Geometry, Scenario
from oracle.trace import Setup
from oracle.validate import check
from reference.geometry import Group, scheduler_block
from reference.policy import Policy
from reference.split import SplitSetting


@dataclass(frozen=True)
class Shape:
    """The facts that stand for a whole run. ``drafts``: draft tokens per step, hence spare Mamba blocks."""

    scenario: Scenario
    policy: Policy
    groups: tuple[Group, ...]
    setup: Setup
    setting: SplitSetting
    drafts: int

    @property
    def mask_alignment(self) -> int:
        """The unit that masks floor boundaries to, in tokens."""
        if self.policy.mask_alignment == "scheduler block":
            return self.setup.scheduler_block
        return self.setup.alignment


def refusal(scenario: Scenario, policy: Policy) -> str:
    """Why this engine does not run a scenario; empty when it does."""
    reasons = check(scenario)
    if reasons:
        return reasons[0]
    if scenario.features.async_depth > 0:
        return "the reference engine is synchronous"
    if any(group.checkpoint for group in scenario.geometry.groups):
        return "the reference engine saves no state inside a chunk"
    room = scenario.limits.room
    if room < _mamba_block(scenario.geometry) and not policy.allows_wide_blocks:
        return f"{policy.release} never advances inside a Mamba block, and a step has room for {room} tokens"
    return ""


def derive(scenario: Scenario, policy: Policy) -> Shape:
    """The shape of a scenario that is not refused."""
    geometry, features = scenario.geometry, scenario.features
    lookahead = 1 if features.caching and features.drafts and features.lookahead_hashes else 0
    # Hashes that look ahead (0.33) take the place of the EAGLE drop.
    lookahead = lookahead if policy.lookahead_hashes else 0
    groups = _groups(geometry, features.drafts > 0 and lookahead == 0)
    block = scheduler_block(group.block for group in groups)
    partial = features.caching and _finds_inside_blocks(geometry)
    mamba = _mamba_block(geometry)
    setup = Setup(
        scheduler_block=block,
        hash_block=geometry.hash_block,
        split_grid=mamba or block,
        alignment=geometry.hash_block if partial else block,
        partial_hits=partial,
        split=mamba > 0,
        block_drop=features.drafts > 0 and lookahead == 0,
        lookahead_hash=lookahead,
        drop_groups=tuple(group.drops for group in groups),
        exact_junction=False,
        lookahead=features.drafts,
        retention=features.retention,
        watermark_blocks=int(features.watermark * geometry.blocks),
        zeroing=False,
        checkpoint_alignment=0,
    )
    setting = SplitSetting(
        grid=setup.split_grid,
        hash_block=setup.hash_block,
        scheduler_block=block,
        room=scenario.limits.room,
        block_drop=setup.block_drop,
        partial_hits=partial,
        lookahead=lookahead,
    )
    return Shape(scenario, policy, groups, setup, setting, features.drafts)


def _groups(geometry: Geometry, drop: bool) -> tuple[Group, ...]:
    """The groups with their drop: those marked, with all that look alike; all of them if none is marked."""
    specs = [(group.kind, group.block, group.window) for group in geometry.groups]
    marked = {spec for spec, group in zip(specs, geometry.groups, strict=True) if group.eagle}
    return tuple(
        Group(kind, block, window or 0, drop and (not marked or (kind, block, window) in marked))
        for kind, block, window in specs
    )


def _finds_inside_blocks(geometry: Geometry) -> bool:
    """Whether hits may end inside a block; a sliding window beside it finds whole blocks only."""
    windows_fit = all(group.kind != "swa" or group.block == geometry.hash_block for group in geometry.groups)
    return hits_inside_blocks(geometry) and windows_fit


def _mamba_block(geometry: Geometry) -> int:
    """The block size of the Mamba groups in tokens, one for all of them; 0 without any."""
    return next((group.block for group in geometry.groups if group.kind == "mamba"), 0)
