"""The lookup of an engine: its own hit functions, lifted, over a cache that answers from ``present``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from reference.geometry import Group
from reference.lookup import Hit, LookupGroup, Present
from spec.lift import (
    Lifted,
    SourceTree,
    Stub,
    assignments,
    attributes_read,
    joined,
    lift,
    stub_class,
)

MANAGERS = "vllm.v1.core.single_type_kv_cache_manager"
COORDINATOR = "vllm.v1.core.kv_cache_coordinator"
HYBRID = "HybridKVCacheCoordinator"
FIND = "find_longest_cache_hit"

_PREMISES = (
    "Groups of kind full, swa and mamba are served by FullAttentionManager, SlidingWindowManager and MambaManager, "
    "not by a subclass, and their specs are FullAttentionSpec, SlidingWindowSpec and MambaSpec themselves.",
    "Two specs are equal exactly where kind, block and window are (reference.geometry.Group.spec).",
    "A block's hash stands for its number of tokens, and BlockPool.get_cached_block finds a block exactly where every "
    "group that it is asked for holds one.",
    "No context parallelism (dcp_world_size and pcp_world_size are 1), one pool for all groups, every group is "
    "prefix_cacheable.",
    "HybridKVCacheCoordinator.attention_groups is made by its own verify_and_split_kv_cache_groups from groups in the "
    "given order; the EAGLE groups are those that drop.",
    "With partial hits the alignment is the hash block, without them the scheduler block "
    "(HybridKVCacheCoordinator._cache_hit_alignment_tokens), so an alignment is given that agrees.",
    "A lookup of one group alone sees hashes of its alignment where that is finer than its block, else of its block, "
    "for all tokens within the limit.",
)


class _Spec(Stub):
    """A stand-in for a group's spec; equal where everything declared is."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]


class _FullAttentionSpec(_Spec):
    pass


class _SlidingWindowSpec(_Spec):
    pass


class _MambaSpec(_Spec):
    pass


class _OtherSpec(_Spec):
    """A kind of spec that no group of ours has."""


_SPEC_CLASSES: dict[str, type[_Spec]] = {"full": _FullAttentionSpec, "swa": _SlidingWindowSpec, "mamba": _MambaSpec}
_MANAGER_NAMES = {"full": "FullAttentionManager", "swa": "SlidingWindowManager", "mamba": "MambaManager"}
_STUBS: dict[str, object] = {
    "FullAttentionSpec": _FullAttentionSpec,
    "SlidingWindowSpec": _SlidingWindowSpec,
    "MambaSpec": _MambaSpec,
    "ChunkedLocalAttentionSpec": _OtherSpec,
}


@dataclass(frozen=True)
class Found:
    """All that a lookup gives. ``hit`` and ``longest`` (the longest hit of a group): in tokens. ``blocks``: by group;
    a name says for which group and tokens a block is cached, or that it is the null block."""

    hit: int
    longest: int
    blocks: tuple[tuple[str, ...], ...]


class EngineLookup:
    """The lookups of the engine in ``tree``, on plain integers; ``present`` may answer with a symbolic truth.

    ``lifted``: their source; ``premises``: what is held fixed.
    """

    def __init__(self, tree: SourceTree) -> None:
        self.premises = _PREMISES
        self._tree = tree
        self._lifted: list[Lifted] = []
        self._finds: dict[str, Lifted] = {}
        self._managers = {kind: self._manager_class(kind) for kind in _MANAGER_NAMES}
        self._hybrid = self._lift(COORDINATOR, f"{HYBRID}.{FIND}")
        self._group_up = self._lift(COORDINATOR, f"{HYBRID}.verify_and_split_kv_cache_groups")
        self._alignment = self._lift(COORDINATOR, f"{HYBRID}._cache_hit_alignment_tokens").require("property")
        constructor = tree.find(COORDINATOR, "KVCacheCoordinator.__init__")
        own_set = bool(assignments(constructor, "self.drop_eagle_group_ids"))
        self._eagle_groups = "drop_eagle_group_ids" if own_set else "eagle_group_ids"
        self.lifted = joined(self._lifted, self.hybrid_hit)

    def _lift(self, module: str, qualname: str) -> Lifted:
        lifted = lift(self._tree, module, qualname, stubs=_STUBS)
        self._lifted.append(lifted)
        return lifted

    def _manager_class(self, kind: str) -> Any:
        """A stub of a manager's class that has the engine's own lookup and what that reaches by ``cls``."""
        name = _MANAGER_NAMES[kind]
        self._finds[kind] = find = self._lift(MANAGERS, f"{name}.{FIND}").require("classmethod")
        members: dict[str, object] = {FIND: find.member}
        for read in sorted(attributes_read(next(iter(find.parts.values())), "cls")):
            member = self._lift(MANAGERS, f"{name}.{read}")
            members[read] = member.function() if member.binding == "value" else member.member
        for constant in ("supports_fine_grained_hash_lookup", "retains_longer_hit"):
            if constant not in members and self._has(f"{name}.{constant}"):
                members[constant] = self._lift(MANAGERS, f"{name}.{constant}").require("value").function()
        return stub_class(name, members)

    @property
    def retains_longer_hit(self) -> bool:
        """Whether a manager of these kinds keeps what it found beyond the hit that all groups agree on."""
        return any(vars(manager).get("retains_longer_hit", False) for manager in self._managers.values())

    def _has(self, qualname: str) -> bool:
        return self._tree.has(MANAGERS, qualname)

    # One group.

    def full_hit(self, present: Present, limit: int, block: int, alignment: int, drop: bool) -> int:
        """See ``reference.lookup.full_hit``."""
        return self._single(Group("full", block), present, limit, alignment, drop)

    def window_hit(self, present: Present, limit: int, group: Group, alignment: int, drop: bool) -> int:
        """See ``reference.lookup.window_hit``."""
        return self._single(group, present, limit, alignment, drop)

    def mamba_hit(self, present: Present, limit: int, block: int, alignment: int) -> int:
        """See ``reference.lookup.mamba_hit``."""
        return self._single(Group("mamba", block), present, limit, alignment, False)

    def _single(self, group: Group, present: Present, limit: int, alignment: int, drop: bool) -> int:
        return self.found_alone(group, present, limit, alignment, drop).hit

    def found_alone(self, group: Group, present: Present, limit: int, alignment: int, drop: bool) -> Found:
        """What the lookup of one group gives for the first ``limit`` tokens."""
        fine = alignment < group.block and group.block % alignment == 0 and group.kind != "swa"
        unit = alignment if fine else group.block
        blocks, hit = self._finds[group.kind].call(
            self._managers[group.kind],
            block_hashes=_hashes(limit, unit),
            max_length=limit,
            kv_cache_group_ids=[0],
            block_pool=_pool([present], unit),
            kv_cache_spec=_spec(group),
            drop_eagle_block=drop,
            alignment_tokens=alignment,
        )
        return Found(int(hit), int(hit), _named(blocks))

    # All groups.

    def hybrid_hit(
        self,
        groups: Sequence[LookupGroup],
        known: int,
        hashed: int,
        alignment: int,
        hash_block: int,
        partial_hits: bool,
    ) -> Hit:
        """See ``reference.lookup.hybrid_hit``; with ``partial_hits`` the alignment must be the hash block."""
        found = self.found_by_all(groups, known, hashed, alignment, hash_block, partial_hits)
        return Hit(found.hit, found.longest)

    def found_by_all(
        self,
        groups: Sequence[LookupGroup],
        known: int,
        hashed: int,
        alignment: int,
        hash_block: int,
        partial_hits: bool,
    ) -> Found:
        """What the lookup of several groups gives; the arguments are those of ``hybrid_hit``."""
        coordinator = self._coordinator(groups, alignment, hash_block, partial_hits)
        self._group_up.call(coordinator)
        blocks, hit, beyond = self._hybrid.call(coordinator, _hashes(hashed, hash_block), known - 1)
        return Found(hit, hit + beyond, _named(blocks))

    def _coordinator(self, groups: Sequence[LookupGroup], alignment: int, hash_block: int, partial_hits: bool) -> Stub:
        if partial_hits and alignment != hash_block:
            raise ValueError("with partial hits an engine aligns hits to its hash block")
        pool = _pool([item.present for item in groups], hash_block)
        specs = [_spec(item.group) for item in groups]
        members = {"_cache_hit_alignment_tokens": self._alignment.member}
        coordinator: Stub = stub_class(HYBRID, members)(
            "the coordinator",
            settable=("attention_groups", "full_attention_group_id"),
            kv_cache_config=Stub(
                "kv_cache_config", kv_cache_groups=[Stub("a group", kv_cache_spec=spec) for spec in specs]
            ),
            single_type_managers=tuple(self._manager(item.group, pool) for item in groups),
            block_pool=pool,
            hash_block_size=hash_block,
            scheduler_block_size=alignment,
            enable_partial_hash_hits=partial_hits,
            dcp_world_size=1,
            pcp_world_size=1,
            **{self._eagle_groups: {number for number, item in enumerate(groups) if item.group.drops}},
        )
        return coordinator

    def _manager(self, group: Group, pool: Stub) -> Stub:
        manager: Stub = self._managers[group.kind](
            "a manager",
            settable=("use_eagle",),
            block_size=group.block,
            block_pool=pool,
            dcp_world_size=1,
            pcp_world_size=1,
        )
        return manager


def _hashes(tokens: int, unit: int) -> list[int]:
    """The hashes of the first ``tokens`` tokens; each is the number of tokens that it stands for."""
    return list(range(unit, tokens + 1, unit))


def _pool(presents: Sequence[Present], hash_block: int) -> Stub:
    return Stub(
        "the block pool",
        hash_block_size=hash_block,
        null_block=Stub("the null block"),
        get_cached_block=_cached_block(presents),
    )


def _cached_block(presents: Sequence[Present]) -> Callable[[int, list[int]], list[Stub] | None]:
    def get(tokens: int, groups: list[int]) -> list[Stub] | None:
        for group in groups:
            if not presents[group](tokens):
                return None
        return [Stub(f"the block of group {group} at {tokens}") for group in groups]

    return get


def _named(blocks: Iterable[Iterable[object]]) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(repr(block) for block in of_group) for of_group in blocks)


def _spec(group: Group) -> _Spec:
    spec_class = _SPEC_CLASSES[group.kind]
    if group.kind == "swa":
        return spec_class("a spec", block_size=group.block, prefix_cacheable=True, sliding_window=group.window)
    return spec_class("a spec", block_size=group.block, prefix_cacheable=True)
