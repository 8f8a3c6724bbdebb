"""M4: which blocks a request takes and gives back, when and in which order, and which are copied.

The calls of the pool stand before the record of the decision that caused them, so they are gathered until it comes:
an allocation, a preemption, an end, or the step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from oracle import trace
from oracle.case import Case, RequestState
from oracle.check_retention import reserves_for_state, saved_in
from reference import exports
from reference.admission import Share
from reference.arithmetic import ceil_div
from reference.holdings import Change, Holding, Take, adopt, give_back_passed, grow, is_open
from reference.policy import Policy
from reference.worker import NULL_BLOCK

Hash = tuple[int, int]
"""A group and a digest."""


class Offer:
    """What a lookup offers a request that waits: its hit, its blocks per group, and each group's share.

    ``free``: blocks that are free at that time.
    """

    def __init__(self, hit: int, blocks: tuple[tuple[int, ...], ...], shares: list[Share], free: int) -> None:
        self.hit = hit
        self.blocks = blocks
        self.shares = shares
        self.free = free


class Call:
    """A group may cache a request's first ``tokens`` tokens. ``named``: its last block counts as hashed so.

    ``saved``: the position and the column of the state that is saved inside the chunk; then it is that one instead.
    """

    def __init__(self, tokens: int, named: bool, saved: tuple[int, int] | None) -> None:
        self.tokens = tokens
        self.named = named
        self.saved = saved


class Holdings:
    """What all running requests hold, as the reference has it.

    ``written``: hashes of states that the step being planned writes. ``due``: blocks that must be given back next, by
    call. ``freed``, ``taken``: what the pool did since the last decision. ``calls``: what a Mamba group may cache of a
    request, until that was noted. ``changed``: the first entry of each table that changed since the last decision.
    ``copies``: per group, (source, destination) of this step; ``followed``: some of them are not known.
    """

    def __init__(self, case: Case, policy: Policy) -> None:
        self.case = case
        self.policy = policy
        self.by_request: dict[str, list[Holding]] = {}
        self.written: set[Hash] = set()
        self.due: deque[tuple[str, tuple[int, ...]]] = deque()
        self.freed: list[tuple[int, ...]] = []
        self.taken: list[int] = []
        self.calls: dict[tuple[str, int], Call] = {}
        self.changed: dict[tuple[str, int], int] = {}
        self.copies: list[list[tuple[int, int]]] = [[] for _ in case.groups]
        self.followed = False
        self.reported = False

    # What the pool does, and what is cached.

    def table(self, record: trace.Table) -> None:
        """A table changed."""
        key = (record.request, record.group)
        self.changed[key] = min(record.start, self.changed.get(key, record.start))

    def free(self, blocks: tuple[int, ...]) -> None:
        """A call that gives blocks back: the one that is due, or one whose cause is still to come."""
        if self.due:
            request, expected = self.due.popleft()
            self._compare_freed(request, [expected], [blocks], f"{request} went, with all that it held")
        else:
            self.freed.append(blocks)

    def cache(self, state: RequestState, number: int, tokens: int) -> None:
        """A Mamba group may cache so many ``tokens``: in an allocation, whose record comes next, or with an output."""
        key = (state.name, number)
        if key in self.calls:
            self._register(state, number)
        named, saved = False, saved_in(self.case, state, number)
        if saved is None and tokens == state.mamba_tails[number] and not self.policy.names_tail_once:
            column, table = ceil_div(tokens, self.case.groups[number].block) - 1, state.tables[number]
            named = 0 <= column < len(table) and self.case.index.has(number, table[column], tokens)
        self.calls[key] = Call(tokens, named, saved)

    def commit(self, record: trace.Commit) -> None:
        """A block got a hash; that of all that its group may cache may be a tail, or a state inside the chunk."""
        call = self.calls.get((record.request, record.group))
        if call is not None and record.position == (call.saved[0] if call.saved else call.tokens):
            call.named = True

    # Decisions.

    def release(self, state: RequestState) -> None:
        """A request ended or was preempted: group by group its table goes back, the last block first."""
        self.check_due()
        self.by_request.pop(state.name, None)
        for group, table in enumerate(state.tables):
            self.calls.pop((state.name, group), None)
            blocks = tuple(block for block in reversed(table) if block != NULL_BLOCK)
            if blocks:
                self.due.append((state.name, blocks))

    def check_due(self) -> None:
        """Another decision was taken: what was due is overdue."""
        while self.due:
            request, expected = self.due.popleft()
            self._compare_freed(request, [expected], [], f"{request} went, with all that it held")

    def give_back(
        self, state: RequestState, record: trace.Allocate, in_flight: int
    ) -> tuple[list[Change], list[Share]]:
        """What each group of a running request gives back before its chunk, and has then."""
        if not record.granted:
            for number in range(len(self.case.groups)):
                self._register(state, number)
        calls = []
        changes: list[Change] = []
        shares = []
        end, spare = record.computed + record.tokens, self.case.scenario.features.drafts
        reserves = reserves_for_state(self.case, state, record.computed, end)
        for group, holding in zip(self.case.groups, self.by_request[state.name], strict=True):
            change: Change = {}
            for columns in give_back_passed(self.policy, group, holding, max(record.computed - in_flight, 0)):
                calls.append(tuple(holding.blocks.pop(column) for column in columns))
                change.update(dict.fromkeys(columns, NULL_BLOCK))
            changes.append(change)
            saves = reserves and group.kind == "mamba"
            if saves:
                saves = is_open(self.policy, holding, exports.saved_column(end, group.block), spare)
            shares.append(Share(holding.columns, copies=holding.tail >= 0, started=holding.started, saves=saves))
        freed, self.freed = self.freed, []
        if calls or freed:
            why = f"{state.name} has {record.computed} tokens computed, {in_flight} of them in flight"
            self._compare_freed(state.name, calls, freed, why)
        return changes, shares

    def take(
        self,
        state: RequestState,
        record: trace.Allocate,
        offer: Offer | None,
        shares: list[Share],
        changes: list[Change],
        slots: int,
    ) -> None:
        """The chunk was granted: the hit is adopted, new blocks are taken; then what was written is noted.

        ``shares``: what each group had before.
        """
        take = _handed_out(self.taken)
        held = self.by_request.get(state.name)
        if held is None:
            held = self.by_request[state.name] = [Holding() for _ in self.case.groups]
        end, spare = record.computed + record.tokens, self.case.scenario.features.drafts
        for number, group in enumerate(self.case.groups):
            holding, inside, source = held[number], -1, NULL_BLOCK
            if offer is not None and offer.blocks[number]:
                changes[number] = adopt(group, holding, offer.hit, offer.blocks[number])
                if shares[number].copies:
                    inside, source = offer.hit // group.block, offer.blocks[number][-1]
            elif holding.tail >= 0:
                source = holding.blocks.get(holding.tail, NULL_BLOCK)
            saves = shares[number].saves
            change, copy = grow(self.policy, group, holding, end, slots, spare, inside, take, saves)
            if change:
                changes[number].update(change)
            if copy != NULL_BLOCK:
                self.copies[number].append((source, copy))
        self.settle(state, changes)
        if self.calls:
            for number in range(len(self.case.groups)):
                self.written.update(self._register(state, number))
        if any(self.copies):
            self.written.update(self._moved())

    def settle(self, state: RequestState, changes: list[Change]) -> None:
        """The tables must have changed so, and not otherwise; what they are then is adopted."""
        self.taken.clear()
        changed, self.changed = self.changed, {}
        if state.name not in self.by_request:
            return
        self.case.judged("M4")
        for number, holding in enumerate(self.by_request[state.name]):
            change, first = changes[number], changed.get((state.name, number))
            same_length = len(state.tables[number]) == holding.columns
            if same_length and not change and first is None:
                continue
            if not same_length or not self._changed_so(state, number, change, first):
                self._report_table(state, number, holding, change)
                self._adopt_table(state, number)

    def _changed_so(self, state: RequestState, number: int, change: Change, first: int | None) -> bool:
        """Whether a table changed by ``change``, and nowhere else from its ``first`` changed entry on."""
        table = state.tables[number]
        for column, block in change.items():
            if column >= len(table) or table[column] != block:
                return False
        if first is None:
            return True
        if self.case.groups[number].kind == "full":
            return first >= min(change, default=len(table))
        blocks = self.by_request[state.name][number].blocks
        return table[first:] == [blocks.get(column, NULL_BLOCK) for column in range(first, len(table))]

    def follow(self, state: RequestState) -> None:
        """A request got blocks in a way that is not modelled: go on from its tables."""
        self.by_request[state.name] = [Holding(started=True) for _ in self.case.groups]
        for number in range(len(self.case.groups)):
            self._adopt_table(state, number)
        self.followed = True
        self.taken.clear()
        self.changed.clear()

    def _adopt_table(self, state: RequestState, number: int) -> None:
        """Go on from the engine's table."""
        holding, table = self.by_request[state.name][number], state.tables[number]
        holding.columns = len(table)
        if self.case.groups[number].kind != "full":
            holding.blocks = {column: block for column, block in enumerate(table) if block != NULL_BLOCK}

    def step(self, record: trace.Step) -> None:
        """The step is planned: its copies, whose ends are given back, a call for all."""
        self.check_due()
        if not self.followed:
            self._check_copies(record)
        for copies in self.copies:
            copies.clear()
        self.followed = False
        self.freed.clear()
        self.flush()
        self.written.clear()
        self.changed.clear()

    def _check_copies(self, record: trace.Step) -> None:
        """The step's copies are those that its allocations need, and both ends of each were held until now."""
        if not (record.copies or self.freed or any(self.copies)):
            return
        expected = tuple(copy for copies in self.copies for copy in copies)
        if self.case.judged("M4", len(expected)) and expected != record.copies:
            self._report(
                "copy",
                f"hits inside blocks, and tails that this step overwrites, need the copies {expected}; the step has "
                f"{record.copies}",
                expected=expected,
                actual=record.copies,
            )
        ends = tuple(block for copy in expected for block in copy)
        self._compare_freed("", [ends] if ends else [], self.freed, "the ends of the step's copies are held no longer")

    def flush(self) -> None:
        """What came with the last output is no part of an allocation."""
        for name, number in list(self.calls):
            self._register(self.case.requests[name], number)

    # What enters the cache.

    def _register(self, state: RequestState, number: int) -> list[Hash]:
        """A Mamba group was told what it may cache: a tail inside a block is noted. Gives the hashes concerned."""
        call = self.calls.pop((state.name, number), None)
        held = self.by_request.get(state.name)
        if call is None or held is None:
            return []
        tokens, holding = call.tokens, held[number]
        group, table = self.case.groups[number], state.tables[number]
        if not call.named and tokens // group.block <= holding.cached:
            return []
        end = min(tokens, self.case.hashed(state.known)) // group.block
        hashes = [found for block in table[holding.cached : end] for found in self._hashes(block)[:1]]
        holding.cached = max(holding.cached, end)
        position, column = call.saved or (tokens, ceil_div(tokens, group.block) - 1)
        if not call.named or column >= len(table):
            return hashes
        if not call.saved and tokens % group.block != 0:
            holding.tail = column
        entries = self.case.index.by_block.get(table[column], ())
        return hashes + [(entry.group, entry.digest) for entry in entries if entry.position == position]

    def _hashes(self, block: int) -> list[Hash]:
        return [(entry.group, entry.digest) for entry in self.case.index.by_block.get(block, ())]

    def _moved(self) -> list[Hash]:
        """Hashes that this step's copies carry: the copy of a tail has them when it is written."""
        return [found for copies in self.copies for _, copy in copies for found in self._hashes(copy)[:1]]

    # Findings.

    def _compare_freed(
        self, request: str, expected: Sequence[tuple[int, ...]], actual: Sequence[tuple[int, ...]], why: str
    ) -> None:
        """M4: blocks that are given back, call by call."""
        if not expected and not actual:
            return
        if self.case.judged("M4", max(len(expected), 1)) and list(expected) != list(actual):
            what = f"{why}, so the pool gets {_calls(expected)}; it got {_calls(actual)}"
            self._report("free", what, request=request, expected=_calls(expected), actual=_calls(actual))

    def _report_table(self, state: RequestState, number: int, holding: Holding, change: Change) -> None:
        table, columns = state.tables[number], sorted(change)
        due = {column: change[column] for column in columns}
        found = {column: table[column] for column in columns if column < len(table)}
        self._report(
            "table",
            f"the table of {state.name} in {self.case.name(number)} is to have {holding.columns} entries, of which "
            f"these change: {due}; it has {len(table)}, of those {found}",
            request=state.name,
            group=number,
            expected=f"{holding.columns} entries, {due}",
            actual=f"{len(table)} entries, {found}",
        )

    def _report(self, decision: str, reason: str, **facts: Any) -> None:
        """M4; what is no single request's is reported once a trace."""
        if not facts.get("request"):
            if self.reported:
                return
            self.reported = True
        self.case.report("M4", decision, reason, **facts)


def _handed_out(blocks: Sequence[int]) -> Take:
    """The blocks that the pool gave, in order, and the null block where it gave too few."""
    left = iter(blocks)
    return lambda count: [next(left, NULL_BLOCK) for _ in range(count)]


def _calls(calls: Sequence[tuple[int, ...]]) -> str:
    """Calls of the pool in words."""
    return ", then ".join(f"blocks {', '.join(map(str, blocks))}" for blocks in calls) or "nothing"
