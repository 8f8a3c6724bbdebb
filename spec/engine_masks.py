"""The retention of an engine: its own masks and boundary lists, lifted, with our groups in place of its specs."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NoReturn

from reference.geometry import Group
from spec.lift import (
    Lifted,
    ShapeChanged,
    SourceTree,
    Stub,
    assignments,
    joined,
    lift,
    normal_form,
    stored_names,
    stub_class,
)

MANAGERS = "vllm.v1.core.single_type_kv_cache_manager"
COORDINATOR = "vllm.v1.core.kv_cache_coordinator"
MASK = "reachable_block_mask"

_MANAGER_NAMES = {"mamba": "MambaManager", "swa": "SlidingWindowManager"}
_SPECS: dict[str, Any] = {name: stub_class(name, {}) for name in ("MambaSpec", "SlidingWindowSpec")}

_MASK_PREMISES = (
    "No context parallelism: the mask's dcp_world_size keeps its default of 1, and a group's real block is its spec's.",
    "No segment ends early: final_segment_end_block (from 0.30) keeps its default, as SingleTypeKVCacheManager's "
    "cache_blocks leaves it; only an external store passes it.",
    "Groups of kind mamba and swa are served by MambaManager and SlidingWindowManager, not by a subclass.",
    "The alignment is given; for releases that assert that a sliding window's block divides it, only such are legal.",
)
_BOUNDARY_PREMISES = (
    "The boundaries are those that reach reachable_block_mask from HybridKVCacheCoordinator.cache_blocks through "
    "SingleTypeKVCacheManager.cache_blocks; that the managers' overrides pass them on unchanged is checked.",
    "The request has nothing cached yet, and hashes for one whole scheduler block, so that the mask is asked for.",
    "No prompt token is computed again for drafts (KVCacheCoordinator.num_reprefillable_tokens is 0), no context "
    "parallelism, and the group is one that can be cached (enable_caching, prefix_cacheable).",
    "One group stands for all: whether any group drops is given by whether this one is among the EAGLE groups.",
)


class EngineMask:
    """The mask of the engine in ``tree`` for groups of one kind, to be called on integers, plain or symbolic.

    ``lifted``: its source; ``premises``: what is held fixed. Each loop over a range was found to do no
    more than set ``mask`` at the loop's own number, so it may be run for one number alone.
    """

    def __init__(
        self, tree: SourceTree, kind: Literal["mamba", "swa"], rebind: Mapping[str, object] | None = None
    ) -> None:
        self.premises = _MASK_PREMISES
        self._kind = kind
        manager = _MANAGER_NAMES[kind]
        self._mask = lift(tree, MANAGERS, f"{manager}.{MASK}", stubs=_SPECS, rebind=rebind).require("classmethod")
        check_pointwise(next(iter(self._mask.parts.values())))
        members = {}
        if kind == "swa":
            need = "_contiguous_blocks_for_hit"
            members[need] = lift(tree, MANAGERS, f"{manager}.{need}", stubs=_SPECS, rebind=rebind)
        self._manager = stub_class(manager, {name: lifted.member for name, lifted in members.items()})
        self.lifted = joined([self._mask, *members.values()], self)

    def __call__(
        self, group: Group, start: Any, end: Any, alignment: Any, interval: Any, boundaries: Sequence[Any]
    ) -> Any:
        """The mask for blocks ``start`` to ``end``, None where all are kept; see ``reference.retention.mask``."""
        if group.kind != self._kind:
            raise ValueError(f"a mask for {self._kind} groups was asked about a {group.kind} group")
        return self._mask.call(
            self._manager,
            start_block=start,
            end_block=end,
            alignment_tokens=alignment,
            kv_cache_spec=_spec(group),
            use_eagle=group.drops,
            retention_interval=interval,
            reachable_boundaries=boundaries,
        )


def _spec(group: Group) -> Any:
    facts: dict[str, Any] = {"block_size": group.block, "prefix_cacheable": True}
    if group.kind == "mamba":
        return _SPECS["MambaSpec"]("a Mamba spec", **facts)
    return _SPECS["SlidingWindowSpec"]("a window's spec", sliding_window=group.window, **facts)


# --- the shape of a mask's loops ---------------------------------------------------------------------


def check_pointwise(source: str) -> None:
    """Every loop over a range does no more than set the mask where the loop stands.

    So what a loop does to one entry depends on no other entry. Other loops may only run over the
    boundaries. The mask may be read only as a whole: to return it, or for its length.
    """
    function = ast.parse(source).body[0]
    for node in ast.walk(function):
        if isinstance(node, ast.While | ast.comprehension):
            raise ShapeChanged(f"a mask is computed by a loop of another kind: {ast.unparse(node)}")
        if isinstance(node, ast.For):
            _check_loop(node)
    stores = {id(node.value) for node in ast.walk(function) if isinstance(node, ast.Subscript) and _is_store(node)}
    for node in ast.walk(function):
        whole = isinstance(node, ast.Return) or (isinstance(node, ast.Call) and ast.unparse(node) == "len(mask)")
        if whole:
            stores.update(id(child) for child in ast.iter_child_nodes(node))
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and node.id == "mask" and not _is_store(node) and id(node) not in stores:
            raise ShapeChanged("a mask is computed from its own entries")


def _check_loop(loop: ast.For) -> None:
    over_range = isinstance(loop.iter, ast.Call) and ast.unparse(loop.iter.func) == "range"
    if not over_range and ast.unparse(loop.iter) != "reachable_boundaries":
        raise ShapeChanged(f"a mask loops over {ast.unparse(loop.iter)}")
    if loop.orelse or not isinstance(loop.target, ast.Name):
        raise ShapeChanged("a mask has a loop of another shape")
    if over_range:
        index = loop.target.id
        targets = (f"mask[{index}] = True", f"mask[{index} - start_block] = True")
        for statement in loop.body:
            _check_statement(statement, targets)


def _check_statement(statement: ast.stmt, targets: tuple[str, ...]) -> None:
    if isinstance(statement, ast.If):
        if any(isinstance(node, ast.NamedExpr) for node in ast.walk(statement.test)):
            raise ShapeChanged(f"a mask's loop assigns in a condition: {ast.unparse(statement.test)}")
        for inner in (*statement.body, *statement.orelse):
            _check_statement(inner, targets)
    elif ast.unparse(statement) not in targets:
        raise ShapeChanged(f"a mask's loop has the statement: {ast.unparse(statement)}")


def _is_store(node: ast.Name | ast.Subscript) -> bool:
    return isinstance(node.ctx, ast.Store)


# --- the boundary list -------------------------------------------------------------------------------


class _Asked(BaseException):
    """Carries the boundaries out of the engine's code; no Exception, so that no handler of its own stops it."""

    def __init__(self, boundaries: Sequence[int]) -> None:
        super().__init__()
        self.boundaries = tuple(boundaries)


def _capture(*_: object, **named: Any) -> NoReturn:
    if "reachable_boundaries" not in named:
        raise ShapeChanged(f"{MASK} is called without reachable_boundaries")
    raise _Asked(named["reachable_boundaries"])


class EngineBoundaries:
    """The boundary list that the engine in ``tree`` gives to its masks; for plain integers.

    ``lifted``: its source; ``premises``: what is held fixed.
    """

    def __init__(self, tree: SourceTree) -> None:
        self.premises = _BOUNDARY_PREMISES
        coordinator = "HybridKVCacheCoordinator"
        self._cache = lift(tree, COORDINATOR, f"{coordinator}.cache_blocks", stubs=_SPECS)
        self._manager = lift(tree, MANAGERS, "SingleTypeKVCacheManager.cache_blocks", stubs=_SPECS)
        # What the coordinator's method reaches by self, as far as the release has it.
        self._methods: dict[str, Lifted] = {}
        for name in ("get_replay_boundaries", "get_num_cacheable_tokens", "_align_cacheable"):
            if any(f"self.{name}(" in text for text in self._sources()):
                self._methods[name] = lift(tree, COORDINATOR, f"{coordinator}.{name}", stubs=_SPECS)
        constructor = tree.find(COORDINATOR, "KVCacheCoordinator.__init__")
        own_set = bool(assignments(constructor, "self.drop_eagle_group_ids"))
        self._eagle_groups = "drop_eagle_group_ids" if own_set else "eagle_group_ids"
        overrides = [lift_override(tree, manager) for manager in _MANAGER_NAMES.values()]
        self.lifted = joined([self._cache, self._manager, *self._methods.values(), *overrides], self)

    def _sources(self) -> list[str]:
        return [text for one in (self._cache, *self._methods.values()) for text in one.parts.values()]

    def __call__(self, group: Group, prompt: int, junction: int, scheduler_block: int, drops: bool) -> tuple[int, ...]:
        """The list for one request; the arguments are those of ``reference.boundaries.boundary_list``."""
        request = Stub(
            "request",
            request_id="a request",
            num_prompt_tokens=prompt,
            shared_prefix_boundary=junction,
            block_hashes=range(scheduler_block // group.block),
        )
        coordinator = self._coordinator(self._stub_manager(group, scheduler_block), scheduler_block, drops)
        try:
            self._cache.call(coordinator, request, scheduler_block)
        except _Asked as asked:
            return asked.boundaries
        raise ShapeChanged(f"{COORDINATOR} caches a scheduler block without asking for a mask")

    def _stub_manager(self, group: Group, scheduler_block: int) -> Stub:
        manager_class = stub_class(_MANAGER_NAMES[group.kind], {"cache_blocks": self._manager.member})
        manager: Stub = manager_class(
            "a manager",
            block_size=group.block,
            use_eagle=group.drops,
            num_cached_block={},
            kv_cache_spec=_spec(group),
            enable_caching=True,
            scheduler_block_size=scheduler_block,
            cache_hit_alignment_tokens=scheduler_block,
            dcp_world_size=1,
            block_pool=Stub("a block pool", hash_block_size=group.block),
            reachable_block_mask=_capture,
        )
        return manager

    def _coordinator(self, manager: Stub, scheduler_block: int, drops: bool) -> Stub:
        methods = {name: lifted.member for name, lifted in self._methods.items()}
        coordinator: Stub = stub_class("HybridKVCacheCoordinator", methods)(
            "the coordinator",
            single_type_managers=(manager,),
            scheduler_block_size=scheduler_block,
            enable_partial_hash_hits=False,
            retention_interval=0,
            num_reprefillable_tokens=0,
            **{self._eagle_groups: {0} if drops else set()},
        )
        return coordinator


def lift_override(tree: SourceTree, manager: str) -> Lifted:
    """The source of a manager's own ``cache_blocks``, which must hand its boundaries to the base's.

    It is kept as a part of the shape and never run. A manager that inherits the method has no part.
    """
    place = tree.find(MANAGERS, f"{manager}.cache_blocks")
    if place.name.startswith("SingleTypeKVCacheManager."):
        return Lifted(_capture, {})
    source = ast.unparse(normal_form(place.node))
    calls = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "super().cache_blocks"
    ]
    handed = {ast.unparse(keyword) for call in calls for keyword in call.keywords}
    lost = "replay_boundaries" in source and "replay_boundaries=replay_boundaries" not in handed
    if len(calls) != 1 or lost or stored_names(place.node) & {"replay_boundaries", "request"}:
        raise ShapeChanged(f"{place.dotted} does not hand its boundaries to the base's method as they are")
    return Lifted(_capture, {place.dotted: source})
