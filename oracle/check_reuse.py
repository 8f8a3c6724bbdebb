"""Checks of reuse across requests: U1 for siblings and U3 for resends, as promises that later lookups must find kept.

A prefill that ends promises what a later request with the same tokens gets. A promise is void as soon as a block that
it needs loses its hash; what was never hashed keeps it alive, for that is the fault.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from oracle.cache_index import Entry
from oracle.case import Case, RequestState
from oracle.check_retention import resume_limit
from oracle.trace import Lookup, Split, Step
from reference import rules
from reference.arithmetic import ceil_div, floor_to
from reference.geometry import Group, blocks_needed_for_hit, chunk_start, first_read
from reference.serving import given_back

PROMISES_MAX = 256
"""So many promises are watched at once; beyond that the oldest is given up. Where what a hit needs stays cached, one of
each prompt is alive, however many come."""


class Promise:
    """``position``: a request that shares its first ``shared`` tokens with ``maker`` gets at least so many.

    ``prefix``: the id of those shared tokens. ``whole``: they are all that it has, else it has more. ``needed``: by
    group, the ids of the prefixes whose entries the hit reads.
    """

    def __init__(
        self,
        rule: str,
        decision: str,
        maker: str,
        position: int,
        shared: int,
        prefix: int,
        whole: bool,
        needed: frozenset[tuple[int, int]],
    ) -> None:
        self.rule = rule
        self.decision = decision
        self.maker = maker
        self.position = position
        self.shared = shared
        self.prefix = prefix
        self.whole = whole
        self.needed = needed


class Reuse:
    """Promises, from the lookup of the request that makes them to the eviction that ends them.

    ``made``: by request, what its prefill will have promised when it is over; only then does it hold for others.
    ``lost``: prefixes that a block has lost the hash of just now, by group; it may be on its way to another block.
    """

    def __init__(self, case: Case) -> None:
        self.case = case
        self.made: dict[str, list[Promise]] = {}
        self.promises: dict[Promise, None] = {}
        self.by_shared: dict[int, dict[int, list[Promise]]] = {}
        self.by_key: dict[tuple[int, int], list[Promise]] = {}
        self.lost: set[tuple[int, int]] = set()
        # A block that is matched only to be given back must be whole: parts are found at their own lengths only.
        self.peek = max((group.block for group in case.groups if group.drops and group.kind != "mamba"), default=0)
        kinds = {group.kind for group in case.groups}
        self.local_alone = bool(kinds & {"swa", "chunked"}) and "mamba" not in kinds
        self.watches = case.scenario.features.caching and bool(case.rules & {"U1", "U3"})

    def look_up(self, record: Lookup, state: RequestState, junction: int) -> None:
        """Judge what a request gets by the promises that are for it, and note what its prefill will promise.

        ``junction``: the one that is due.
        """
        if not self.watches:
            return
        self._void_lost()
        if record.request not in self.case.skips_lookup:
            self._judge_all(record, state)
        self.leave(state.name)
        for promise in self._promises(record, state, junction):
            self.made.setdefault(state.name, []).append(promise)
            for key in promise.needed:
                self.by_key.setdefault(key, []).append(promise)

    def _judge_all(self, record: Lookup, state: RequestState) -> None:
        """Judge a lookup by all promises that are for it."""
        for shared, by_prefix in self.by_shared.items():
            if shared <= record.known:
                for promise in by_prefix.get(state.ids[shared], ()):
                    if promise.whole == (shared == record.known):
                        self._judge(promise, record)

    def split(self, record: Split) -> None:
        """A chunk that neither asks for a block nor for all that is left may miss the junction: no promise."""
        if record.asked < self.case.setup.split_grid and record.start + record.asked < record.known:
            for promise in [one for one in self.made.get(record.request, ()) if one.rule == "U1"]:
                self._drop(promise)

    def step(self, record: Step) -> None:
        """What prefills that this step ends have promised holds from here on."""
        self._void_lost()
        if not self.made:
            return
        for item in record.scheduled:
            if item.request in self.made and item.planned + item.tokens >= self.case.request(item.request).prompt:
                for promise in self.made.pop(item.request):
                    self.promises[promise] = None
                    self.by_shared.setdefault(promise.shared, {}).setdefault(promise.prefix, []).append(promise)
        while len(self.promises) > PROMISES_MAX:
            self._drop(next(iter(self.promises)))
            self.case.cover("promise given up")

    def leave(self, request: str) -> None:
        """A prefill that is broken off, by a preemption or an abort, or begins anew, promises nothing."""
        for promise in list(self.made.get(request, ())):
            self._drop(promise)

    def evict(self, entries: list[Entry]) -> None:
        """Entries are gone, some of them on their way to a copy."""
        self.lost.update((entry.group, entry.key) for entry in entries if (entry.group, entry.key) in self.by_key)

    def _void_lost(self) -> None:
        """What needs entries that no block holds is promised no more."""
        for key in self.lost:
            if key not in self.case.index.by_key:
                for promise in list(self.by_key.get(key, ())):
                    self._drop(promise)
        self.lost.clear()

    def held(self) -> Iterator[int]:
        """The prefixes that promises speak of."""
        for _, prefix in self.by_key:
            yield prefix
        for promises in (*self.made.values(), self.promises):
            for promise in promises:
                yield promise.prefix

    def reset(self) -> None:
        """The cache is empty."""
        for table in (self.made, self.promises, self.by_shared, self.by_key, self.lost):
            table.clear()

    def _promises(self, record: Lookup, state: RequestState, junction: int) -> Iterator[Promise]:
        """What the prefill that begins with a lookup will have promised when it is over."""
        # A hit names the tokens that its groups match beyond it, and those that the last hash covers.
        beyond = self.peek + self.case.setup.lookahead_hash
        position = self._hit_position(junction)
        if self.case.setup.exact_junction and position != junction:
            position = 0  # then it is the state at the junction itself that is kept, inside a block
        if record.hit < position and position + beyond < state.prompt:
            yield self._promise("U1", "lookup", state, position, position + beyond)
        if state.known != state.prompt:
            return  # it was preempted: what it computes again ends where its output does
        limit = state.prompt - max(1, self.case.setup.lookahead_hash)
        position = self._hit_position(resume_limit(self.case, limit, state.prompt))
        if record.hit <= position > 0:
            yield self._promise("U3", "lookup", state, position, state.prompt, whole=True)
        inside = self._inside(limit, state.prompt)
        if inside > position and record.hit <= inside:
            yield self._promise("U3", "tail", state, inside, state.prompt, whole=True)
        lower = position - self.case.setup.scheduler_block
        if lower > 0 and self.local_alone and not self._skips(record.hit, lower):
            yield self._promise("U3", "divergence", state, lower, lower + beyond)

    def _skips(self, hit: int, position: int) -> bool:
        """Whether a ``hit`` lies in a later attention chunk than ``position``: what is read there may be long gone."""
        return any(
            group.kind == "chunked" and chunk_start(group, hit) > chunk_start(group, position)
            for group in self.case.groups
        )

    def _promise(
        self, rule: str, decision: str, state: RequestState, position: int, shared: int, *, whole: bool = False
    ) -> Promise:
        needed = self._needed(state, position, in_parts=decision == "tail")
        return Promise(rule, decision, state.name, position, shared, state.ids[shared], whole, needed)

    def _hit_position(self, limit: int) -> int:
        """The last position up to ``limit`` at which all groups have whole blocks, in tokens.

        Where hits end inside blocks only if it is also the last one with a state, and the one that windows are kept
        for: else a longer hit takes its place.
        """
        setup = self.case.setup
        position = floor_to(limit, setup.scheduler_block)
        if setup.alignment == setup.scheduler_block:
            return position
        units = [*self.case.mamba_blocks, *(setup.alignment for group in self.case.groups if group.kind == "swa")]
        return position if all(floor_to(limit, unit) == position for unit in units) else 0

    def _inside(self, limit: int, prompt: int) -> int:
        """The last position up to ``limit`` at which an identical resend can resume, blocks or not, in tokens.

        Full attention has the prompt's last hash boundary inside a block, and gives a unit of it back under the drop; a
        prefill of Mamba stops there. Windows are kept for whole units only. How far a group looks is the policy's.
        """
        setup, groups = self.case.setup, self.case.groups
        local = any(group.kind in ("swa", "chunked") for group in groups)
        if not setup.partial_hits or local or self.case.policy is None:
            return 0
        end = floor_to(self.case.peek_end(limit, prompt), setup.alignment)
        backs = [given_back(group, setup.alignment) for group in groups]
        return floor_to(max(min(limit, end - max(backs)), 0), setup.alignment)

    def _needed(self, state: RequestState, position: int, *, in_parts: bool) -> frozenset[tuple[int, int]]:
        """The entries that a hit at ``position`` reads, those that are matched beyond it included.

        ``in_parts``: of the last block only a part, which has a hash of its own; else that block must be whole.
        """
        lookahead = self.case.setup.lookahead_hash
        needed: set[tuple[int, int]] = set()
        for number, group in enumerate(self.case.groups):
            reach = position + given_back(group, self.case.setup.alignment)
            end = ceil_div(reach, group.block)
            ends = [(block + 1) * group.block for block in range(_first_needed(group, position, end), end)]
            if in_parts and reach % group.block:
                ends[-1] = reach
            needed.update((number, state.ids[at + lookahead]) for at in ends if at + lookahead <= state.known + 1)
        return frozenset(needed)

    def _drop(self, promise: Promise) -> None:
        """A promise is void."""
        _remove(self.made, promise.maker, promise)
        if promise in self.promises:
            del self.promises[promise]
            _remove(self.by_shared[promise.shared], promise.prefix, promise)
            if not self.by_shared[promise.shared]:
                del self.by_shared[promise.shared]
        for key in promise.needed:
            _remove(self.by_key, key, promise)

    def _judge(self, promise: Promise, record: Lookup) -> None:
        """Whether a lookup finds what was promised."""
        case = self.case
        if not case.judged(promise.rule) or rules.reuses_at_least(record.hit, promise.position):
            return
        what = "sends again what was sent by" if promise.whole else f"shares {promise.shared} tokens with"
        case.report(
            promise.rule,
            promise.decision,
            f"{record.request} {what} {promise.maker}, whose prefill is over, and gets a hit of {record.hit}; no block "
            f"that a hit of {promise.position} needs has lost a hash since",
            request=record.request,
            expected=f"a hit of at least {promise.position}",
            actual=f"a hit of {record.hit}",
        )


def _first_needed(group: Group, position: int, end: int) -> int:
    """The number of the first block that a hit at ``position`` reads, which matches blocks up to number ``end``."""
    if group.kind in ("full", "chunked"):
        return first_read(group, position) // group.block
    return max(end - blocks_needed_for_hit(group), 0)


def _remove(table: dict[Any, list[Promise]], key: object, promise: Promise) -> None:
    """Take a promise from a list in a table, and an empty list from the table."""
    found = table.get(key, [])
    if promise in found:
        found.remove(promise)
        if not found:
            del table[key]
