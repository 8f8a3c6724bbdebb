"""The split of an engine: its scheduler's own function, lifted, with our settings in place of its configuration."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from reference.split import SplitSetting
from spec.lift import (
    Lifted,
    ShapeChanged,
    SourceTree,
    Stub,
    assignments,
    attributes_read,
    joined,
    lift,
    lift_assignment,
    stub_class,
)

SCHEDULER = "vllm.v1.core.sched.scheduler"
FUNCTION = "Scheduler._mamba_block_aligned_split"
CONSTRUCTOR = "Scheduler.__init__"

EXACT_JUNCTION = ("mamba_fine_grained_prefix_cache", "mamba_shared_prefix_checkpoint")
"""The attribute that opts in to the exact junction, as named in 0.30 and from 0.31."""

DERIVED = (
    "mamba_partial_cache_hit",
    "mamba_has_prefill_checkpoint_blocks",
    "mamba_prefill_checkpoint_alignment",
    *EXACT_JUNCTION,
)
"""What the scheduler's constructor works out from other facts; in an order in which it can be computed."""

_SPECS: dict[str, Any] = {"MambaSpec": stub_class("MambaSpec", {})}

_PREMISES = (
    "A chunk starts after all tokens computed so far, and it does not matter which of them were computed here, found "
    "in the local cache or loaded from outside: the function only adds the three up (checked in its source).",
    "The model has Mamba layers and the engine runs them in align mode (Scheduler.need_mamba_block_aligned_split), "
    "else the function is never called.",
    "All Mamba groups have the same prefill-checkpoint blocks and alignment (Scheduler.__init__ looks at the cache's "
    "groups; here there is one), and there are such blocks exactly where the alignment is not 0.",
    "Partial hits are on where HybridKVCacheCoordinator.enable_partial_hash_hits says so (setting.partial_hits).",
    "The opt-in to the exact junction is KVCacheManager's flag (setting.exact_junction), which KVCacheManager.__init__ "
    "sets only with an EAGLE group; Scheduler.__init__ heeds it only with partial hits in its own sense, so a setting "
    "that has the opt-in must have those.",
    "The EAGLE drop and the hash lookahead are independent inputs here, while Scheduler.__init__ of 0.33 turns the "
    "drop off where hashes look ahead.",
    "The room of a setting is the step's budget with no long-prefill threshold, unless both are given.",
)


class EngineSplit:
    """The split of the engine in ``tree``, to be called on integers, plain or symbolic.

    ``lifted``: its source. ``premises``: what is held fixed or taken for granted. ``supports``: which parts
    of a setting the source looks at, of "exact junction", "internal checkpoint", "lookahead" and "partial
    hits". It ignores the others; without "partial hits" it stops at the tail wherever hashes are finer.
    """

    def __init__(self, tree: SourceTree, rebind: Mapping[str, object] | None = None) -> None:
        self.premises = _PREMISES
        self._split = lift(tree, SCHEDULER, FUNCTION, stubs=_SPECS, rebind=rebind)
        source = self._split.parts[f"{SCHEDULER}.{FUNCTION}"]
        _check_start(source)
        self._reads = attributes_read(source, "self")
        # Only the drop's own flag is declared where there is one, so that the wrong flag is not taken for it.
        constructor = tree.find(SCHEDULER, CONSTRUCTOR)
        own_flag = bool(assignments(constructor, "self.use_eagle_block_drop"))
        self._drop_flag = "use_eagle_block_drop" if own_flag else "use_eagle"
        self._derived = {name: self._lift_derived(tree, name, rebind) for name in DERIVED if name in self._reads}
        self.lifted = joined([self._split, *self._derived.values()], self)
        self.supports = self._supported()

    def _lift_derived(self, tree: SourceTree, name: str, rebind: Mapping[str, object] | None) -> Lifted:
        parameters = ("self", "kv_cache_config")
        target = f"self.{name}"
        return lift_assignment(tree, SCHEDULER, CONSTRUCTOR, target, parameters=parameters, stubs=_SPECS, rebind=rebind)

    def _supported(self) -> frozenset[str]:
        partial = self._derived.get("mamba_partial_cache_hit")
        found = {
            "exact junction": any(name in self._derived for name in EXACT_JUNCTION),
            "internal checkpoint": "mamba_has_prefill_checkpoint_blocks" in self._derived,
            "lookahead": "num_hash_lookahead_tokens" in self._reads,
            "partial hits": partial is not None and any("enable_partial" in text for text in partial.parts.values()),
        }
        return frozenset(name for name, is_there in found.items() if is_there)

    def __call__(
        self,
        setting: SplitSetting,
        start: Any,
        asked: Any,
        prompt: Any,
        known: Any,
        junction: Any,
        *,
        threshold: Any = 0,
        budget: Any = None,
    ) -> Any:
        """How many of the ``asked`` tokens the engine grants; the arguments are those of ``reference.split``.

        With ``threshold`` (0: none) and ``budget`` the room is made of these two instead of ``setting.room``.
        """
        request = Stub(
            "request",
            num_computed_tokens=start,
            num_prompt_tokens=prompt,
            num_tokens=known,
            shared_prefix_boundary=junction,
        )
        scheduler = self._scheduler(setting, setting.room if budget is None else budget, threshold)
        return self._split.call(scheduler, request, asked)

    def _scheduler(self, setting: SplitSetting, budget: Any, threshold: Any) -> Stub:
        flags: dict[str, Any] = dict.fromkeys(EXACT_JUNCTION, setting.exact_junction)
        drop: dict[str, Any] = {self._drop_flag: setting.block_drop}
        coordinator = Stub("coordinator", enable_partial_hash_hits=setting.partial_hits)
        scheduler = Stub(
            "scheduler",
            settable=DERIVED,
            block_size=setting.scheduler_block,
            hash_block_size=setting.hash_block,
            cache_config=Stub("cache_config", block_size=setting.grid),
            scheduler_config=Stub("scheduler_config", long_prefill_token_threshold=threshold),
            max_num_scheduled_tokens=budget,
            num_hash_lookahead_tokens=setting.lookahead,
            has_mamba_layers=True,
            need_mamba_block_aligned_split=True,
            kv_cache_manager=Stub("kv_cache_manager", coordinator=coordinator, **flags),
            **drop,
        )
        spec = _SPECS["MambaSpec"](
            "the Mamba spec",
            num_prefill_checkpoint_blocks=setting.checkpoint_alignment,
            prefill_checkpoint_alignment=setting.checkpoint_alignment,
        )
        config = Stub("kv_cache_config", kv_cache_groups=[Stub("the Mamba group", kv_cache_spec=spec)])
        for name, derive in self._derived.items():
            setattr(scheduler, name, derive.call(scheduler, config))
        return scheduler


def _check_start(source: str) -> None:
    """The function must use the three counts of computed tokens in one sum only."""
    counts = ("num_computed_tokens", "num_new_local_computed_tokens", "num_external_computed_tokens")
    function = ast.parse(source).body[0]
    wanted = f"request.{counts[0]} + {counts[1]} + {counts[2]}"
    sums = [node for node in ast.walk(function) if isinstance(node, ast.BinOp) and ast.unparse(node) == wanted]
    uses = sum(
        isinstance(node, ast.Name | ast.Attribute)
        and (node.attr if isinstance(node, ast.Attribute) else node.id) in counts
        for node in ast.walk(function)
    )
    if len(sums) != 1 or uses != len(counts):
        raise ShapeChanged(f"{SCHEDULER}.{FUNCTION} does more with the computed tokens than to add them up")
