"""Planted faults: the reference engine with one decision changed, a control for the rule that must see it.

A check that is never seen to fail proves nothing. Each fault here is one overridden method of ``Decisions``,
named for what it does and filed under the rule that it breaks first; where it can, it breaks no other.
"""

from __future__ import annotations

import difflib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from fuzz.engines.conforming import ReferenceEngine, UnknownName
from fuzz.engines.names import NEWEST_RELEASE
from reference.admission import Share
from reference.arithmetic import floor_to
from reference.decisions import Decisions
from reference.geometry import Group
from reference.holdings import Holding
from reference.lookup import LookupGroup
from reference.policy import Policy
from reference.shape import Shape
from reference.split import last_cacheable_position, partial_tail, prefill_end


@dataclass(frozen=True)
class Fault:
    """A planted fault. ``rule``: the id that must fire. ``sentence``: what the engine does wrong.

    ``hook``: the decisions of one run, the faulty one among them.
    """

    name: str
    rule: str
    sentence: str
    hook: type[Decisions]


FAULTS: dict[str, Fault] = {}


def _plant(name: str, rule: str, sentence: str) -> Callable[[type[Decisions]], type[Decisions]]:
    """Files the decorated decisions under a name."""

    def file(hook: type[Decisions]) -> type[Decisions]:
        FAULTS[name] = Fault(name, rule, sentence, hook)
        return hook

    return file


# Content.


@_plant("stale-hash", "C1", "a block keeps its old hashes when it is given to a new owner")
class _StaleHash(Decisions):
    def forgets_on_take(self, block: int) -> bool:
        return False


@_plant("state-hit-too-early", "C2", "a hit takes a state, or copies a block, that the same step only writes")
class _StateHitTooEarly(Decisions):
    def waits_for(self, named_this_step: bool) -> bool:
        return False


@_plant("window-freed-early", "C2", "a sliding window gives its blocks back one block too early")
class _WindowFreedEarly(Decisions):
    def gives_back(self, policy: Policy, group: Group, held: Holding, computed: int) -> list[list[int]]:
        early = computed + min(group.block, group.window - 1) if group.kind == "swa" else computed
        return super().gives_back(policy, group, held, early)


@_plant("attention-chunk-freed-early", "C2", "chunked-local attention gives back what it has of the chunk it is in")
class _AttentionChunkFreedEarly(Decisions):
    def gives_back(self, policy: Policy, group: Group, held: Holding, computed: int) -> list[list[int]]:
        early = computed + group.attention_chunk - 1 if group.kind == "chunked" else computed
        return super().gives_back(policy, group, held, early)


@_plant("copy-forgotten", "C2", "a hit inside a block gets a private block, and nobody copies into it")
class _CopyForgotten(Decisions):
    def copies(self, copies: list[tuple[int, int]]) -> list[tuple[int, int]]:
        return []


# Accounting.


@_plant("touched-twice", "A1", "the blocks of a hit get two references, and one is given back")
class _TouchedTwice(Decisions):
    def touched(self, blocks: Sequence[int]) -> Sequence[int]:
        return [*blocks, *blocks]


@_plant("freed-for-all", "A2", "the first of several owners that gives a block back frees it for all")
class _FreedForAll(Decisions):
    def references_after_free(self, references: int) -> int:
        return 0


@_plant("budget-plus-one", "A3", "a step may hold one token more than its budget")
class _BudgetPlusOne(Decisions):
    def budget(self, budget: int) -> int:
        return budget + 1


# The split.


class _Cut(Decisions):
    """For faults that move the end of a prefill chunk; decoding stays as it is."""

    def chunk(self, shape: Shape, start: int, asked: int, prompt: int, known: int, junction: int) -> int:
        granted = super().chunk(shape, start, asked, prompt, known, junction)
        finish = prefill_end(prompt, known)
        return self.cut(shape, start, asked, granted, prompt, finish) if start < finish else granted

    def cut(self, shape: Shape, start: int, asked: int, granted: int, prompt: int, finish: int) -> int:
        """The chunk in place of the right one, ``granted``."""
        raise NotImplementedError


@_plant("more-than-asked", "S1", "a chunk short of the prefill end gets a token more than was asked for")
class _MoreThanAsked(_Cut):
    def cut(self, shape: Shape, start: int, asked: int, granted: int, prompt: int, finish: int) -> int:
        return asked + 1 if granted == asked and start + asked < finish else granted


@_plant("ends-inside-a-block", "S2", "a chunk that was cut back to a block boundary takes one token more")
class _EndsInsideABlock(_Cut):
    def cut(self, shape: Shape, start: int, asked: int, granted: int, prompt: int, finish: int) -> int:
        end = start + granted
        return granted + 1 if granted and end % shape.setting.grid == 0 and granted < asked else granted


@_plant("runs-across-stops", "S3", "a prefill chunk takes all that was asked for, whatever lies inside it")
class _RunsAcrossStops(_Cut):
    def cut(self, shape: Shape, start: int, asked: int, granted: int, prompt: int, finish: int) -> int:
        return asked if start + asked >= finish else granted


@_plant("junction-ignored", "S3", "the split knows no junction")
class _JunctionIgnored(Decisions):
    def chunk(self, shape: Shape, start: int, asked: int, prompt: int, known: int, junction: int) -> int:
        return super().chunk(shape, start, asked, prompt, known, 0)


@_plant("idle-below-two-blocks", "S4", "a chunk that could fill one block waits until it can fill two")
class _IdleBelowTwoBlocks(_Cut):
    def cut(self, shape: Shape, start: int, asked: int, granted: int, prompt: int, finish: int) -> int:
        grid = shape.setting.grid
        waits = grid <= asked < 2 * grid and asked < shape.setting.room and start + asked < finish
        return 0 if waits else granted


@_plant("stops-a-block-early", "M1", "a chunk of several blocks ends one block before it has to")
class _StopsABlockEarly(_Cut):
    def cut(self, shape: Shape, start: int, asked: int, granted: int, prompt: int, finish: int) -> int:
        grid = shape.setting.grid
        end = floor_to(start + granted - 1, grid)
        at_stop = start + granted == partial_tail(shape.policy, shape.setting, prompt)
        return end - start if end > start and start + granted < finish and not at_stop else granted


@_plant("junction-not-floored", "S5", "a chunk with the junction inside ends on it, and not on the boundary before it")
class _JunctionNotFloored(Decisions):
    def chunk(self, shape: Shape, start: int, asked: int, prompt: int, known: int, junction: int) -> int:
        granted = super().chunk(shape, start, asked, prompt, known, junction)
        return junction - start if start < junction < start + asked else granted


@_plant("tail-ignored", "S6", "the split knows no partial tail")
class _TailIgnored(_Cut):
    def cut(self, shape: Shape, start: int, asked: int, granted: int, prompt: int, finish: int) -> int:
        at_tail = start + granted == partial_tail(shape.policy, shape.setting, prompt)
        return asked if at_tail and start + asked >= finish else granted


@_plant(
    "ends-in-halves", "S8", "a chunk that would end prefill is cut in half for as long as there is more than a token"
)
class _EndsInHalves(_Cut):
    def cut(self, shape: Shape, start: int, asked: int, granted: int, prompt: int, finish: int) -> int:
        return max(granted // 2, 1) if start + granted >= finish else granted


@_plant("last-stop-ignored", "U3", "a chunk that can end prefill runs across the last cacheable position")
class _LastStopIgnored(_Cut):
    def cut(self, shape: Shape, start: int, asked: int, granted: int, prompt: int, finish: int) -> int:
        at_last = start + granted == last_cacheable_position(shape.policy, shape.setting, prompt)
        return asked if at_last and start + asked >= finish else granted


# Retention.


@_plant("junction-dropped", "R1", "the boundary list leaves the junction out")
class _JunctionDropped(Decisions):
    def boundaries(self, shape: Shape, group: Group, prompt: int, junction: int) -> tuple[int, ...]:
        return super().boundaries(shape, group, prompt, 0)


@_plant("replay-dropped", "R2", "the boundary list leaves the replay boundaries out")
class _ReplayDropped(Decisions):
    def boundaries(self, shape: Shape, group: Group, prompt: int, junction: int) -> tuple[int, ...]:
        return (junction,) if junction else ()


@_plant("keeps-the-first-block", "M3", "retention keeps a request's first block, whatever the interval")
class _KeepsTheFirstBlock(Decisions):
    def keeps(self, shape: Shape, group: Group, number: int, positions: tuple[int, ...], first: int) -> bool:
        return number == 0 or super().keeps(shape, group, number, positions, first)


@_plant(
    "chunk-forgets-its-first", "R3", "the first block of every chunk but the request's first stays out of the cache"
)
class _ChunkForgetsItsFirst(Decisions):
    def keeps(self, shape: Shape, group: Group, number: int, positions: tuple[int, ...], first: int) -> bool:
        return super().keeps(shape, group, number, positions, first) and (number != first or number == 0)


@_plant("window-never-thinned", "R4", "a sliding window with a retention interval keeps every block")
class _WindowNeverThinned(Decisions):
    def keeps(self, shape: Shape, group: Group, number: int, positions: tuple[int, ...], first: int) -> bool:
        thins = group.kind == "swa" and shape.retention is not None
        return thins or super().keeps(shape, group, number, positions, first)


@_plant("states-never-thinned", "R5", "Mamba keeps every state, whatever the interval")
class _StatesNeverThinned(Decisions):
    def keeps(self, shape: Shape, group: Group, number: int, positions: tuple[int, ...], first: int) -> bool:
        return group.kind == "mamba" or super().keeps(shape, group, number, positions, first)


@_plant("resend-forgotten", "R6", "the boundary list leaves out where a resend resumes, and keeps the extension's")
class _ResendForgotten(Decisions):
    def boundaries(self, shape: Shape, group: Group, prompt: int, junction: int) -> tuple[int, ...]:
        unit = shape.setting.scheduler_block
        listed = super().boundaries(shape, group, prompt, junction)
        resend = floor_to(prompt - 1, unit) - (unit if shape.drops else 0)
        return tuple(boundary for boundary in listed if floor_to(boundary, unit) != resend)


@_plant("attention-chunk-thinned", "U3", "chunked-local attention keeps the last block of each attention chunk alone")
class _AttentionChunkThinned(Decisions):
    def keeps(self, shape: Shape, group: Group, number: int, positions: tuple[int, ...], first: int) -> bool:
        ends_chunk = group.kind != "chunked" or (number + 1) * group.block % group.attention_chunk == 0
        return ends_chunk and super().keeps(shape, group, number, positions, first)


# The lookup.


@_plant(
    "attention-chunk-granted-unseen", "L1", "the lookup takes it that chunked-local attention has every block cached"
)
class _AttentionChunkTakenForGranted(Decisions):
    def hit_and_junction(self, shape: Shape, items: list[LookupGroup], known: int, hashed: int) -> tuple[int, int]:
        trusting = [replace(item, present=_all_cached) if item.group.kind == "chunked" else item for item in items]
        return super().hit_and_junction(shape, trusting, known, hashed)


def _all_cached(tokens: int) -> bool:
    return True


@_plant("attention-chunk-never-hit", "L2", "the lookup finds nothing inside an attention chunk")
class _AttentionChunkNeverHit(Decisions):
    def hit_and_junction(self, shape: Shape, items: list[LookupGroup], known: int, hashed: int) -> tuple[int, int]:
        blind = [replace(item, present=_none_cached) if item.group.kind == "chunked" else item for item in items]
        return super().hit_and_junction(shape, blind, known, hashed)


def _none_cached(tokens: int) -> bool:
    return False


@_plant("longest-hit-wins", "L1", "the hit is the longest that any group has, not the one that all can serve")
class _LongestHitWins(Decisions):
    def hit_and_junction(self, shape: Shape, items: list[LookupGroup], known: int, hashed: int) -> tuple[int, int]:
        hit, junction = super().hit_and_junction(shape, items, known, hashed)
        return (junction, 0) if 0 < junction < known else (hit, junction)


@_plant("never-hits", "L2", "no lookup ever finds anything")
class _NeverHits(Decisions):
    def hit_and_junction(self, shape: Shape, items: list[LookupGroup], known: int, hashed: int) -> tuple[int, int]:
        return 0, 0


@_plant("skip-forgotten", "M2", "a request that is to take nothing from the cache is looked up all the same")
class _SkipForgotten(Decisions):
    def looks_up(self, skips: bool) -> bool:
        return True


@_plant("junction-never-found", "U1", "the lookup reports no junction")
class _JunctionNeverFound(Decisions):
    def hit_and_junction(self, shape: Shape, items: list[LookupGroup], known: int, hashed: int) -> tuple[int, int]:
        return super().hit_and_junction(shape, items, known, hashed)[0], 0


@_plant("junction-at-the-hit", "L3", "every hit leaves a junction where it ends")
class _JunctionAtTheHit(Decisions):
    def hit_and_junction(self, shape: Shape, items: list[LookupGroup], known: int, hashed: int) -> tuple[int, int]:
        hit, junction = super().hit_and_junction(shape, items, known, hashed)
        return hit, junction or hit


@_plant("second-best-hit", "M2", "the lookup takes the second longest hit that all groups can serve")
class _SecondBestHit(Decisions):
    def hit_and_junction(self, shape: Shape, items: list[LookupGroup], known: int, hashed: int) -> tuple[int, int]:
        hit, junction = super().hit_and_junction(shape, items, known, hashed)
        if hit == 0:
            return hit, junction
        shorter, _ = super().hit_and_junction(shape, items, hit, min(hashed, hit))
        return shorter, junction


# Blocks that are free, and requests that must go.


@_plant("second-free-first", "M4", "the second free block is handed out before the first")
class _SecondFreeFirst(Decisions):
    def next_free(self, free: OrderedDict[int, None]) -> int:
        return next(islice(free, len(free) > 1, None))


@_plant("first-blocks-freed-first", "M4", "a request that goes gives the first blocks of its tables back first")
class _FirstBlocksFreedFirst(Decisions):
    def released(self, table: list[int]) -> list[int]:
        return table


@_plant("states-kept-to-the-end", "M4", "states that a request has passed are given back only when it goes")
class _StatesKeptToTheEnd(Decisions):
    def gives_back(self, policy: Policy, group: Group, held: Holding, computed: int) -> list[list[int]]:
        return [] if group.kind == "mamba" else super().gives_back(policy, group, held, computed)


@_plant("reset-refused", "M4", "the prefix cache is never reset")
class _ResetRefused(Decisions):
    def resets(self, in_use: bool) -> bool:
        return False


@_plant("reservation-overlooked", "M5", "a request is admitted by the blocks of its first chunk alone")
class _ReservationOverlooked(Decisions):
    def admits_by_blocks(self, whole: int | None, chunk: int, usable: int, unwritten: bool) -> bool:
        return super().admits_by_blocks(None, chunk, usable, unwritten)


@_plant("last-block-unused", "M5", "a request that would take the last free block is not admitted")
class _LastBlockUnused(Decisions):
    def admits_by_blocks(self, whole: int | None, chunk: int, usable: int, unwritten: bool) -> bool:
        return super().admits_by_blocks(whole, chunk, usable - (whole is not None), unwritten)


@_plant("hit-thrown-away", "M5", "a request is admitted without the hit that its lookup found")
class _HitThrownAway(Decisions):
    def adopts(self, hit: int) -> bool:
        return False


@_plant("half-the-budget", "M1", "a step holds half of its budget")
class _HalfTheBudget(Decisions):
    def budget(self, budget: int) -> int:
        return (budget + 1) // 2


@_plant("copy-not-counted", "X2", "the block into which a hit or a state inside a block is copied is not counted")
class _CopyNotCounted(Decisions):
    def counted(self, share: Share) -> Share:
        return Share(share.columns, share.reclaimed, started=share.started, saves=share.saves)


@_plant("last-but-one-goes", "M5", "the request that was admitted last but one is preempted")
class _LastButOneGoes(Decisions):
    def victim(self, running: int, served: int) -> int:
        return max(running - 2, served)


# Statistics.


@_plant("counted-per-retry", "T1", "a lookup is counted when it is made, and again when its request tries again")
class _CountedPerRetry(Decisions):
    def counts_lookup(self, admitted: bool) -> bool:
        return not admitted


# Two runs side by side.


@_plant("newest-goes-first-among-many", "U2", "of more than a dozen free blocks the one freed last is handed out")
class _NewestGoesFirstAmongMany(Decisions):
    def next_free(self, free: OrderedDict[int, None]) -> int:
        return next(reversed(free)) if len(free) > 12 else super().next_free(free)


@_plant("waits-by-name", "V1", "a request whose name is late in the alphabet is admitted only while no other runs")
class _WaitsByName(Decisions):
    def admits(self, name: str, hit: int, others_run: bool) -> bool:
        return name < "o" or not others_run


@_plant("hit-waits-for-company", "V2", "a request that hits the cache is admitted only while another runs")
class _HitWaitsForCompany(Decisions):
    def admits(self, name: str, hit: int, others_run: bool) -> bool:
        return hit == 0 or others_run


@_plant("budget-of-its-own", "V3", "no step holds more than 20 tokens, whatever its budget")
class _BudgetOfItsOwn(Decisions):
    def budget(self, budget: int) -> int:
        return min(budget, 20)


@_plant("tires", "V4", "from the twentieth step on a step holds a token less")
class _Tires(Decisions):
    def __init__(self) -> None:
        self.steps = 0

    def budget(self, budget: int) -> int:
        self.steps += 1
        return budget - (self.steps >= 20 and budget > 1)


# Progress and determinism.


@_plant("waits-for-silence", "P2", "a request is admitted only when no other runs")
class _WaitsForSilence(Decisions):
    def admits(self, name: str, hit: int, others_run: bool) -> bool:
        return not others_run


@_plant("hit-never-admitted", "P1", "a request that hits the cache waits for ever")
class _HitNeverAdmitted(Decisions):
    def admits(self, name: str, hit: int, others_run: bool) -> bool:
        return hit == 0


@_plant("raises-on-a-hit", "P3", "the engine raises when a request hits the cache")
class _RaisesOnAHit(Decisions):
    def admits(self, name: str, hit: int, others_run: bool) -> bool:
        if hit:
            raise AssertionError(f"a hit of {hit} tokens")
        return True


@_plant("every-other-run", "D1", "every other run of a process takes its blocks in another order")
class _EveryOtherRun(Decisions):
    runs = 0

    def __init__(self) -> None:
        _EveryOtherRun.runs += 1
        self.second = _EveryOtherRun.runs % 2 == 0

    def next_free(self, free: OrderedDict[int, None]) -> int:
        return next(islice(free, self.second and len(free) > 1, None))


@_plant("sparse-group-never-cached", "M3", "a sliding-window or Mamba group is never told that it may cache anything")
class _SparseGroupNeverCached(Decisions):
    def cacheable(self, group: Group, tokens: int, scheduler_block: int, whole_units: bool) -> int:
        return super().cacheable(group, tokens, scheduler_block, whole_units) if group.kind == "full" else 0


# States that are saved inside a chunk.


@_plant("saved-state-always-kept", "M3", "a state that is saved inside a chunk enters the cache whatever the retention")
class _SavedStateAlwaysKept(Decisions):
    def keeps_saved(self, shape: Shape, group: Group, position: int, prompt: int, junction: int, tokens: int) -> bool:
        return True


@_plant("saved-state-not-counted", "X2", "the block that is reserved for a state saved inside a chunk is not counted")
class _SavedStateNotCounted(Decisions):
    def counted(self, share: Share) -> Share:
        return share.saving(False)


def open_planted(name: str, release: str = NEWEST_RELEASE) -> ReferenceEngine:
    """The reference engine with the fault called ``name``. Raises UnknownName, a ValueError, for another."""
    fault = FAULTS.get(name)
    if fault is None:
        near = difflib.get_close_matches(name, FAULTS, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"there is {', '.join(FAULTS)}"
        raise UnknownName(f"no planted fault {name!r}; {hint}")
    return ReferenceEngine(f"planted:{name}", release, fault.hook)
