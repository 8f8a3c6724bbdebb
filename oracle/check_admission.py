"""M5 at allocations: who fits gets its blocks, and who does not is refused; X2: it takes what was promised."""

from __future__ import annotations

from oracle import trace
from oracle.case import Case, RequestState
from oracle.check_holdings import Hash, Holdings, Offer
from oracle.check_retention import reserves_for_state
from oracle.ledger import Ledger
from reference.admission import Share, counted_for_nothing, held_most, refusal, used_up
from reference.holdings import Change, passed_columns
from reference.worker import NULL_BLOCK


class Admission:
    """Follows what a lookup offers, what the pool has, and what each request then gets.

    ``offers``: by request that waits. ``in_flight``: tokens in steps whose output is not known yet, by request, and
    ``steps``: by step. ``taken``, ``reclaimed``: free blocks that were handed out, and adopted, since the last
    allocation. ``committed``: hashes that are new since the last step.
    """

    def __init__(self, case: Case, ledger: Ledger, holdings: Holdings | None) -> None:
        self.case = case
        self.ledger = ledger
        self.holdings = holdings
        self.offers: dict[str, Offer] = {}
        self.in_flight: dict[str, int] = {}
        self.steps: dict[int, tuple[trace.Scheduled, ...]] = {}
        self.taken = 0
        self.reclaimed = 0
        self.committed: set[Hash] = set()
        scenario = case.scenario
        self.held_most = held_most(
            case.groups, scenario.limits.budget, scenario.features.async_depth, case.setup.model_length
        )

    # What the trace shows on the way.

    def take(self, blocks: tuple[int, ...]) -> None:
        """Blocks left the free list for a new owner."""
        self.taken += len(blocks)

    def touch(self, blocks: tuple[int, ...]) -> None:
        """Cached blocks are adopted; those that were free are no longer. Asked before the ledger counts them."""
        references = self.ledger.references
        self.reclaimed += len({block for block in blocks if not references.get(block)})

    def commit(self, record: trace.Commit) -> None:
        """A block got a hash."""
        self.committed.add((record.group, record.digest))
        if self.holdings is not None:
            self.holdings.commit(record)

    def look_up(self, record: trace.Lookup) -> None:
        """A request that waits is offered a hit; nothing else happens before it asks for blocks."""
        if self.holdings is None:
            return
        shares = [self._offered(number, record, blocks) for number, blocks in enumerate(record.blocks)]
        self.offers[record.request] = Offer(record.hit, record.blocks, shares, len(self.ledger.free_list.free))

    def _offered(self, number: int, record: trace.Lookup, blocks: tuple[int, ...]) -> Share:
        """What a hit gives one group. The blocks that it skips at once are not adopted."""
        if not blocks:
            return Share(0)
        assert self.holdings is not None
        group, references = self.case.groups[number], self.ledger.references
        adopted = blocks[passed_columns(group, record.hit) :]
        copies = record.hit % group.block != 0
        hashes = self.case.index.by_block.get(blocks[-1], ())
        first = (hashes[0].group, hashes[0].digest) if hashes else (number, 0)
        return Share(
            columns=len(blocks),
            reclaimed=sum(block != NULL_BLOCK and not references.get(block) for block in adopted),
            copies=copies,
            unwritten=group.kind == "mamba" and first in self.holdings.written,
            copies_unwritten=copies and first in self.committed,
        )

    def step(self, record: trace.Step) -> None:
        """A step is in flight from now on; nobody has been looked up for the next one."""
        for item in record.scheduled:
            self.in_flight[item.request] = self.in_flight.get(item.request, 0) + item.tokens
        self.steps[record.index] = record.scheduled
        self.offers.clear()
        self.committed.clear()
        self.taken = self.reclaimed = 0

    def output(self, record: trace.Output) -> None:
        """The output of a step is known."""
        for item in self.steps.pop(record.index, ()):
            left = self.in_flight.get(item.request, 0) - item.tokens
            if left > 0:
                self.in_flight[item.request] = left
            else:
                self.in_flight.pop(item.request, None)

    # The decision.

    def allocate(self, record: trace.Allocate, state: RequestState) -> None:
        """Judge one request for blocks, and follow what it led to."""
        holdings, offer = self.holdings, self.offers.pop(record.request, None)
        shares = [] if offer is None else offer.shares
        taken, left = self.taken, self.taken + self.reclaimed
        self.taken = self.reclaimed = 0
        if holdings is not None:
            holdings.check_due()
            if record.request in holdings.by_request:
                free = len(self.ledger.free_list.free) + taken
                shares = self._extend(holdings, record, state, free)
            elif offer is not None and self._takes(record, offer):
                shares = self._admit(holdings, record, state, offer)
            elif record.granted:
                holdings.follow(state)
        if record.granted and record.promised is not None:
            self._judge_promise(record, left, shares)

    def _takes(self, record: trace.Allocate, offer: Offer) -> bool:
        """M5: whether a request asks for blocks on top of the very hit that its lookup found."""
        if record.computed == offer.hit == record.hit:
            return True
        self.case.report(
            "M5",
            "allocate",
            f"{record.request} was offered a hit of {offer.hit} tokens by its lookup, and asks for blocks after "
            f"{record.computed} tokens, {record.hit} of them from the cache",
            request=record.request,
            expected=f"a hit of {offer.hit}",
            actual=f"a hit of {record.hit}",
        )
        return False

    def _extend(self, holdings: Holdings, record: trace.Allocate, state: RequestState, free: int) -> list[Share]:
        """A running request asks for its next chunk, with so many blocks ``free``. Gives what its groups had."""
        changes, shares = holdings.give_back(state, record, self.in_flight.get(record.request, 0))
        slots = self._slots(record)
        self._judge(record, state, shares, slots, free, fresh=False)
        if record.granted:
            holdings.take(state, record, None, shares, changes, slots)
        else:
            holdings.settle(state, changes)
        return shares

    def _admit(self, holdings: Holdings, record: trace.Allocate, state: RequestState, offer: Offer) -> list[Share]:
        """A waiting request asks for its hit and its first chunk. Gives what its groups had."""
        kept_free = self.case.setup.watermark_blocks if holdings.by_request else 0
        shares = self._saving(state, offer.shares, record.computed, record.computed + record.tokens)
        slots = self._slots(record)
        self._judge(record, state, shares, slots, offer.free - kept_free, fresh=True)
        changes: list[Change] = [{} for _ in self.case.groups]
        if record.granted:
            holdings.take(state, record, offer, shares, changes, slots)
        else:
            holdings.settle(state, changes)
        return shares

    def _saving(self, state: RequestState, shares: list[Share], start: int, end: int) -> list[Share]:
        """The shares of a waiting request, if a state is saved inside its tokens from ``start`` to ``end``."""
        if not reserves_for_state(self.case, state, start, end):
            return shares
        pairs = zip(self.case.groups, shares, strict=True)
        return [share.saving(group.kind == "mamba") for group, share in pairs]

    def _slots(self, record: trace.Allocate) -> int:
        """Token slots that attention needs, those for drafts to come included."""
        setup = self.case.setup
        return min(record.computed + record.tokens + setup.lookahead, setup.model_length)

    def _needed(self, shares: list[Share], end: int, slots: int, most: list[int | None] | None = None) -> int:
        """Free blocks that all groups use up for tokens up to ``end``; see ``used_up``."""
        assert self.case.policy is not None
        spare = self.case.scenario.features.drafts
        return used_up(self.case.policy, self.case.groups, shares, end, slots, spare, most)

    def _judge(
        self, record: trace.Allocate, state: RequestState, shares: list[Share], slots: int, usable: int, *, fresh: bool
    ) -> None:
        """M5: granted if and only if the blocks are there, by the count that the engine made.

        ``slots``: those that attention needs. ``fresh``: the request waits, so all its tokens may have to fit.
        """
        if not self.case.judged("M5"):
            return
        for_chunk = self._needed(shares, record.computed + record.tokens, slots)
        whole = fresh and self.case.scenario.features.reserve_full_sequence
        for_all = None
        if whole:
            shares_of_all = self._saving(state, shares, record.computed, state.known)
            for_all = self._needed(shares_of_all, state.known, state.known, self.held_most)
        unwritten = fresh and any(share.unwritten for share in shares)
        reason = refusal(for_all, for_chunk, usable, unwritten)
        careful = self.case.header.engine == "reference" and any(share.copies_unwritten for share in shares)
        if careful and not record.granted and not reason:
            self.case.allow("a hit waits for the block that it copies from, which this step writes")
            return
        if record.granted != (not reason):
            self._report(record, reason, usable, for_chunk)
            return
        counted = for_all if reason and for_all is not None and for_all > usable else for_chunk
        if record.promised is not None and not unwritten and record.promised != counted:
            self.case.report(
                "M5",
                "allocate",
                f"{record.request} asks for {record.tokens} tokens after {record.computed}, and {counted} free blocks "
                f"are used up; the engine counts {record.promised}",
                request=record.request,
                expected=f"{counted} blocks",
                actual=f"{record.promised} blocks",
            )

    def _report(self, record: trace.Allocate, reason: str, usable: int, needed: int) -> None:
        """M5: the wrong decision."""
        why = reason or f"its chunk needs {needed} blocks, and {usable} may be used"
        self.case.report(
            "M5",
            "allocate",
            f"{record.request} asks for blocks for {record.tokens} tokens after {record.computed}: {why}",
            request=record.request,
            expected="refused" if reason else "granted",
            actual="granted" if record.granted else "refused",
        )

    def _judge_promise(self, record: trace.Allocate, left: int, shares: list[Share]) -> None:
        """X2: as many blocks left the free list as the engine had counted."""
        assert record.promised is not None
        if not self.case.judged("X2") or max(record.promised, 0) == left:
            return
        if 0 < record.promised - left <= self._counted_twice(shares):
            self.case.allow("a copy of a state is counted twice where the chunk ends in the same block")
            return
        if 0 < record.promised - left <= self._counted_twice(shares) + self._counted_for_nothing(record, shares):
            self.case.allow("more blocks are counted than taken where a state is saved inside the chunk")
            return
        self.case.report(
            "X2",
            "allocate",
            f"{record.request} was granted {record.tokens} tokens after {record.computed} on the count of "
            f"{record.promised} blocks, and {left} left the free list",
            request=record.request,
            expected=f"{record.promised} blocks",
            actual=f"{left} blocks",
        )

    def _counted_twice(self, shares: list[Share]) -> int:
        """Blocks that a release that rounds up counts for the states that must be copied, and does not take."""
        policy = self.case.policy
        if policy is None:
            return sum(group.kind == "mamba" for group in self.case.groups)
        pairs = zip(self.case.groups, shares, strict=False)
        return policy.rounds_up_states * sum(group.kind == "mamba" and share.copies for group, share in pairs)

    def _counted_for_nothing(self, record: trace.Allocate, shares: list[Share]) -> int:
        """Blocks that are counted for a state that is saved inside the chunk, and are not taken."""
        policy, end = self.case.policy, record.computed + record.tokens
        if policy is None:
            return 0
        pairs = zip(self.case.groups, shares, strict=False)
        return sum(counted_for_nothing(policy, end, group.block, share) for group, share in pairs)
