"""What single releases refuse on top of ``oracle.validate.check``, and how a campaign keeps clear of it.

Each rule was read in the sources of the releases. A campaign passes ``withheld_features`` of its build to
the generator as ``without``, says so in its summary, and then ``refused_by`` is empty for all it makes.
"""

from __future__ import annotations

from collections.abc import Callable

from oracle.geometry import hits_inside_blocks, keeps_all, reference_group, saves_states
from oracle.scenario import Scenario

Release = tuple[int, int]


def _has_mamba(scenario: Scenario) -> bool:
    return any(group.kind == "mamba" for group in scenario.geometry.groups)


def _step_below_block(scenario: Scenario) -> str:
    """``VllmConfig.validate_block_size``: the block is the smallest of all groups, as the engine sets it."""
    block = min(group.block for group in scenario.geometry.groups)
    threshold = scenario.limits.long_prefill_threshold
    if not _has_mamba(scenario):
        return ""
    if scenario.limits.budget < block:
        return f"budget {scenario.limits.budget} is below the smallest block, {block}, with a Mamba group"
    if 0 < threshold < block:
        return f"long_prefill_threshold {threshold} is below the smallest block, {block}, with a Mamba group"
    return ""


def _mamba_wider_than_smallest(scenario: Scenario) -> str:
    """``resolve_kv_cache_block_sizes`` falls back to the scheduler block, which then divides no block."""
    groups = scenario.geometry.groups
    smallest = min(group.block for group in groups)
    if len(groups) > 1 and any(group.kind == "mamba" and group.block != smallest for group in groups):
        return "a Mamba block differs from the smallest block; the coordinator asserts that blocks divide"
    return ""


def _fine_hits_beside_window(scenario: Scenario) -> str:
    """``find_longest_cache_hit`` of the local attentions' managers asserts at the first lookup; 0.28 turns it off."""
    geometry = scenario.geometry
    if hits_inside_blocks(geometry) and any(
        group.kind in ("swa", "chunked") and geometry.hash_block % group.block for group in geometry.groups
    ):
        return "hits inside a block beside a sliding-window or chunked-local group; its lookup asserts"
    return ""


def _one_spec_only(scenario: Scenario) -> str:
    """``HybridKVCacheCoordinator.verify_and_split_kv_cache_groups``: two different specs, or one group."""
    specs = {reference_group(group).spec for group in scenario.geometry.groups}
    if len(scenario.geometry.groups) > 1 and len(specs) == 1:
        return "all groups are alike; the hybrid coordinator asserts two different kinds"
    return ""


def _retention_without_sparse(scenario: Scenario) -> str:
    """``_validate_prefix_cache_retention_interval``: until 0.28 even 0 counts as set."""
    if scenario.features.retention is not None and keeps_all(scenario.geometry):
        return "retention is set without a sliding-window or Mamba group"
    return ""


def _no_checkpoints(scenario: Scenario) -> str:
    """``MambaSpec`` has no blocks for states that are saved inside a chunk before 0.29."""
    if saves_states(scenario.geometry):
        return "states are saved inside a chunk; this release has no blocks for them"
    return ""


def _no_exact_junction(scenario: Scenario) -> str:
    """``CacheConfig`` has no such option before 0.30."""
    return "the opt-in for exact junctions is set; this release has none" if scenario.features.exact_junction else ""


def _coarse_checkpoints(scenario: Scenario) -> str:
    """``MambaSpec`` of 0.29 has no unit for the positions: any will do."""
    if any(group.checkpoint > 1 for group in scenario.geometry.groups):
        return "states are saved inside a chunk in units of several tokens; this release knows no unit"
    return ""


def _budget_within_drafts(scenario: Scenario) -> str:
    """``VllmConfig._set_max_num_scheduled_tokens``: the budget must exceed the lookahead tokens."""
    if scenario.features.drafts > 0 and scenario.limits.budget <= scenario.features.drafts:
        return f"budget {scenario.limits.budget} is not above the {scenario.features.drafts} draft tokens"
    return ""


def _chunked_drops(scenario: Scenario) -> str:
    """``ChunkedLocalAttentionManager.find_longest_cache_hit`` asserts that it gives no block up under EAGLE."""
    groups, features = scenario.geometry.groups, scenario.features
    marked = [group for group in groups if group.eagle] or groups
    if features.caching and features.drafts > 0 and any(group.kind == "chunked" for group in marked):
        return "a chunked-local group holds layers of the draft model; its lookup asserts that it drops no block"
    return ""


def _chunked_drops_if_asked(scenario: Scenario) -> str:
    """Lookahead hashes take the place of the drop."""
    return "" if scenario.features.lookahead_hashes else _chunked_drops(scenario)


# (first release, last release, rule); the ends are included, and the last of them is open.
_RULES: tuple[tuple[Release, Release, Callable[[Scenario], str]], ...] = (
    ((0, 26), (0, 26), _step_below_block),
    ((0, 26), (0, 27), _mamba_wider_than_smallest),
    ((0, 26), (0, 27), _fine_hits_beside_window),
    ((0, 26), (0, 28), _one_spec_only),
    ((0, 26), (0, 28), _retention_without_sparse),
    ((0, 26), (0, 28), _no_checkpoints),
    ((0, 29), (0, 29), _coarse_checkpoints),
    ((0, 26), (0, 29), _no_exact_junction),
    ((0, 26), (0, 32), _chunked_drops),
    ((0, 33), (9, 99), _chunked_drops_if_asked),
    ((0, 33), (9, 99), _budget_within_drafts),
)

# The generator never makes what the other rules refuse, whatever is on.
_WITHHELD: tuple[tuple[Release, Release, str], ...] = (
    ((0, 26), (0, 26), "tiny-budget"),
    ((0, 26), (0, 27), "wide-mamba"),
    ((0, 26), (0, 27), "fine-swa"),
    ((0, 26), (0, 28), "checkpoint"),
    ((0, 29), (0, 29), "coarse-checkpoint"),
    ((0, 26), (0, 29), "exact-junction"),
)


def _release(version: str) -> Release:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def refused_by(scenario: Scenario, release: str) -> str:
    """Why the release (``0.26.0``) would refuse a scenario that ``check`` allows; empty when it would not.

    Raises ValueError for a release that does not start with two numbers.
    """
    at = _release(release)
    for first, last, rule in _RULES:
        if first <= at <= last and (reason := rule(scenario)):
            return reason
    return ""


def withheld_features(release: str) -> tuple[str, ...]:
    """The features to leave out (``without``) so that the release refuses nothing that is generated."""
    at = _release(release)
    return tuple(feature for first, last, feature in _WITHHELD if first <= at <= last)
