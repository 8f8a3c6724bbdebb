"""Metamorphic rules: what must be alike in the runs of two scenarios, of which the one was made from the other.

No reference is asked. Each relation says on which scenarios it can be judged, how the twin is made, and what of the two
runs is compared. What an engine may choose freely (block ids, digests, the order among equals) is no difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import Any

import msgspec
from msgspec.structs import replace

from oracle import trace
from oracle.compare import difference_between
from oracle.decisions import decisions
from oracle.scenario import Request, Scenario, Step
from oracle.validate import blocks_needed, prompt_tokens
from reference.rules import reuses_at_least

FACTOR = 3
"""V3: by how much every size is multiplied. Not 2: what is rounded by halves would pass."""

FEWER_AFTER_ANOTHER_COURSE = "more blocks, fewer hit tokens after another course"

# The very object: msgspec leaves a default out of a document by identity.
_NO_DRAFTS = Request("", ()).accept


class Sides(msgspec.Struct, frozen=True):
    """A scenario and its twin, each with the records of its run."""

    scenario: Scenario
    records: list[trace.AnyRecord]
    twin: Scenario
    twin_records: list[trace.AnyRecord]


class Difference(msgspec.Struct, frozen=True):
    """What must not differ and does. ``decision``, ``step``, ``record``: where in the scenario's own trace;
    ``expected``: as in the twin."""

    decision: str
    step: int
    record: int
    expected: str
    actual: str
    why: str
    request: str = ""


class Compared(msgspec.Struct, frozen=True):
    """``number``: what was compared (0: the premise did not hold in the runs). ``allowed``: a named difference."""

    number: int
    difference: Difference | None = None
    allowed: str = ""


class Relation(msgspec.Struct, frozen=True):
    """One metamorphic rule.

    ``arrange``: from a scenario and the lines of its run, the scenario that the rule can be judged on: the same where
    it fits already, None where none can be made. ``twin``: the other scenario. ``compare``: the two runs.
    """

    rule: str
    arrange: Callable[[Scenario, Sequence[bytes]], Scenario | None]
    twin: Callable[[Scenario], Scenario]
    compare: Callable[[Sides], Compared]


def _with_requests(scenario: Scenario, change: Callable[[Request], Request]) -> Scenario:
    steps = tuple(replace(step, add=tuple(map(change, step.add))) for step in scenario.steps)
    return replace(scenario, steps=steps)


def _alike(ours: Iterator[Any], theirs: Iterator[Any], why: str) -> Compared:
    """Two streams of decisions that must be the same."""
    number, difference = difference_between(ours, theirs)
    if difference is None:
        return Compared(number)
    mine, other = difference.baseline, difference.candidate
    place = mine or difference.before[-1]
    return Compared(
        number,
        Difference(
            decision=difference.kind,
            step=place.step,
            record=place.record,
            expected=other.words if other else "nothing more",
            actual=mine.words if mine else "nothing more",
            why=why,
        ),
    )


# U2, more blocks.


def _one_at_a_time(scenario: Scenario, lines: Sequence[bytes]) -> Scenario:
    """Room for one request at a time, and just enough blocks for it, so that what earlier ones left is evicted."""
    if scenario.limits.sequences == 1:
        return scenario
    alone = replace(scenario, limits=replace(scenario.limits, sequences=1))
    return replace(alone, geometry=replace(alone.geometry, blocks=blocks_needed(alone)))


def _more_blocks(scenario: Scenario) -> Scenario:
    """By one, or by up to as many again: how many is the scenario's own to say, so that both are tried."""
    blocks = scenario.geometry.blocks
    more = 1 + sum(map(prompt_tokens, scenario.requests())) % blocks
    return replace(scenario, geometry=replace(scenario.geometry, blocks=blocks + more))


class _Event(msgspec.Struct, frozen=True):
    """What bears on later hits. ``facts`` without the ``hit`` of an admission (None: it is none)."""

    facts: tuple[Any, ...]
    hit: int | None
    step: int
    record: int


def _course(records: Sequence[trace.AnyRecord]) -> Iterator[_Event]:
    """Admissions, chunks, preemptions, ends and resets, in order."""
    asked: dict[str, int] = {}
    step = 0
    for number, record in enumerate(records):
        if isinstance(record, trace.Lookup):
            asked[record.request] = record.known
        elif isinstance(record, trace.Allocate) and record.granted and record.request in asked:
            yield _Event(("lookup", record.request, asked.pop(record.request)), record.hit, step, number)
        elif isinstance(record, trace.Step):
            for one in record.scheduled:
                chunk = (one.request, one.start, one.tokens, one.drafts, one.accepted)
                yield _Event(("chunk", *chunk), None, record.index, number)
            step = record.index + 1
        elif isinstance(record, trace.Preempt | trace.Finish | trace.Reset):
            yield _Event((type(record).__name__, *msgspec.structs.astuple(record)), None, step, number)


def _no_fewer_hits(sides: Sides) -> Compared:
    """Hits are compared for as long as the two runs take the same course."""
    compared = 0
    ours, theirs = list(_course(sides.records)), list(_course(sides.twin_records))
    for mine, other in zip_longest(ours, theirs):
        if mine is None or other is None or mine.facts != other.facts:
            break
        if mine.hit is None or other.hit is None:
            continue
        compared += 1
        if not reuses_at_least(other.hit, mine.hit):
            return Compared(compared, _fewer(sides, mine, other))
        if other.hit > mine.hit:
            break
    fewer = sum(event.hit or 0 for event in theirs) < sum(event.hit or 0 for event in ours)
    return Compared(compared, allowed=FEWER_AFTER_ANOTHER_COURSE if fewer else "")


def _fewer(sides: Sides, mine: _Event, other: _Event) -> Difference:
    _, request, known = mine.facts
    blocks, more = sides.scenario.geometry.blocks, sides.twin.geometry.blocks
    return Difference(
        decision="lookup",
        step=mine.step,
        record=mine.record,
        expected=f"no more than the {other.hit} that {more} blocks give",
        actual=f"a hit of {mine.hit}",
        why=f"of {known} tokens {request} reuses {mine.hit} where there are {blocks} blocks, and {other.hit} where "
        f"there are {more}, though every request before it was computed in the same chunks",
        request=request,
    )


# V1, other names.


def _one_abort_at_a_time(scenario: Scenario, lines: Sequence[bytes]) -> Scenario | None:
    """Requests that are aborted in one call are a set to the engine: which of them goes first is its free choice."""
    crowd = any(len(step.abort) > 1 or len(step.abort_in_flight) > 1 for step in scenario.steps)
    return None if crowd else scenario


def _names(scenario: Scenario) -> dict[str, str]:
    """A new name for every request and token stream; they sort the other way round."""
    used = {name for request in scenario.requests() for name in (request.id, request.output_stream)}
    used |= {segment.rpartition(":")[0] for request in scenario.requests() for segment in request.prompt}
    last = len(used) - 1
    return {name: f"n{last - place:05}" for place, name in enumerate(sorted(used))}


def _renamed(scenario: Scenario) -> Scenario:
    names = _names(scenario)

    def segment(text: str) -> str:
        name, _, length = text.rpartition(":")
        return f"{names[name]}:{length}"

    def request(one: Request) -> Request:
        output = names[one.output] if one.output else one.output
        return replace(one, id=names[one.id], output=output, prompt=tuple(map(segment, one.prompt)))

    renamed = _with_requests(scenario, request)
    steps = tuple(
        replace(
            step,
            abort=tuple(names[name] for name in step.abort),
            abort_in_flight=tuple(names[name] for name in step.abort_in_flight),
        )
        for step in renamed.steps
    )
    return replace(renamed, steps=steps)


def _same_under_other_names(sides: Sides) -> Compared:
    old = {new: name for name, new in _names(sides.scenario).items()}

    def back(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return list(map(back, value))
        return old.get(value, value) if isinstance(value, str) else value

    theirs = msgspec.convert(back(msgspec.to_builtins(sides.twin_records)), list[trace.AnyRecord])
    return _alike(decisions(sides.records), decisions(theirs), "nothing but the names of requests and segments differs")


# V2, no caching.


def _cached_attention(scenario: Scenario, lines: Sequence[bytes]) -> Scenario | None:
    """Mamba in its cached mode cannot do without caching."""
    attention = all(group.kind != "mamba" for group in scenario.geometry.groups)
    return scenario if attention and scenario.features.caching else None


def _without_caching(scenario: Scenario) -> Scenario:
    return replace(scenario, features=replace(scenario.features, caching=False, retention=None))


def _ends(records: Sequence[trace.AnyRecord]) -> dict[str, tuple[str, int, int, int]]:
    """Per request: how it ended, the tokens that it got, and the step and record of its end."""
    got: dict[str, int] = {}
    ends: dict[str, tuple[str, int, int, int]] = {}
    reasons: dict[str, tuple[str, int, int]] = {}
    step = 0
    for number, record in enumerate(records):
        if isinstance(record, trace.Add):
            got[record.request] = 0
        elif isinstance(record, trace.Output):
            for request, tokens in record.sampled:
                got[request] += tokens
        elif isinstance(record, trace.Finish):
            reasons[record.request] = (record.reason, step, number)
        elif isinstance(record, trace.Step):
            step = record.index
    for request, tokens in got.items():
        reason, at, number = reasons.get(request, ("unfinished", step, len(records) - 1))
        ends[request] = (reason, tokens, at, number)
    return ends


def _same_tokens(sides: Sides) -> Compared:
    """Requests that were aborted say nothing: how far they had come is a matter of time."""
    ours, theirs = _ends(sides.records), _ends(sides.twin_records)
    compared = 0
    for request, (reason, tokens, step, number) in ours.items():
        if request not in theirs:
            return Compared(0)  # the twin crashed before it came
        other, others, *_ = theirs[request]
        if "aborted" in (reason, other):
            continue
        compared += 1
        if (reason, tokens) != (other, others):
            return Compared(
                compared,
                Difference(
                    decision="finish",
                    step=step,
                    record=number,
                    expected=f"{other} after {others} output tokens",
                    actual=f"{reason} after {tokens} output tokens",
                    why=f"without prefix caching {request} ends otherwise",
                    request=request,
                ),
            )
    return Compared(compared)


# V3, larger sizes.


def _prefill_only(scenario: Scenario, lines: Sequence[bytes]) -> Scenario:
    """No drafts, one output token each: a token that is sampled is one token in whatever unit."""
    groups = tuple(replace(group, eagle=False, checkpoint=0) for group in scenario.geometry.groups)
    plain = replace(
        scenario,
        geometry=replace(scenario.geometry, groups=groups),
        features=replace(scenario.features, drafts=0, exact_junction=False),
    )
    return _with_requests(plain, lambda request: replace(request, max_output=1, accept=_NO_DRAFTS))


def _scaled(scenario: Scenario) -> Scenario:
    """A window reaches ``window - 1`` tokens back, so that is what is multiplied."""
    groups = tuple(
        replace(
            group,
            block=FACTOR * group.block,
            window=None if group.window is None else FACTOR * (group.window - 1) + 1,
            attention_chunk=None if group.attention_chunk is None else FACTOR * group.attention_chunk,
        )
        for group in scenario.geometry.groups
    )
    geometry, limits, features = scenario.geometry, scenario.limits, scenario.features

    def segment(text: str) -> str:
        name, _, length = text.rpartition(":")
        return f"{name}:{FACTOR * int(length)}"

    larger = replace(
        scenario,
        geometry=replace(geometry, groups=groups, hash_block=FACTOR * geometry.hash_block),
        limits=replace(
            limits,
            budget=FACTOR * limits.budget,
            long_prefill_threshold=FACTOR * limits.long_prefill_threshold,
        ),
        features=replace(features, retention=None if features.retention is None else FACTOR * features.retention),
    )
    return _with_requests(larger, lambda request: replace(request, prompt=tuple(map(segment, request.prompt))))


_SIZES: dict[type, tuple[str, ...]] = {
    trace.Add: ("prompt_tokens",),
    trace.Lookup: ("known", "hit", "junction"),
    trace.Split: ("start", "asked", "granted", "known", "prompt", "junction"),
    trace.Allocate: ("computed", "tokens", "hit"),
    trace.Commit: ("position",),
    trace.Scheduled: ("start", "planned", "tokens"),
}
"""The fields of records that count tokens; those of ``output`` are sampled ones, which do not scale."""


def _larger(record: Any) -> Any:
    """A record with every size multiplied."""
    if isinstance(record, trace.Step):
        return replace(record, scheduled=tuple(map(_larger, record.scheduled)))
    fields = _SIZES.get(type(record), ())
    return replace(record, **{name: FACTOR * getattr(record, name) for name in fields})


def _same_in_larger(sides: Sides) -> Compared:
    why = f"every size is {FACTOR} times as large, and so must every decision be (both are shown in the larger unit)"
    return _alike(decisions(map(_larger, sides.records)), decisions(sides.twin_records), why)


# V4, an empty machine.


def _then_one_more(scenario: Scenario, lines: Sequence[bytes]) -> Scenario | None:
    """When all requests have ended, the cache is reset and the first request comes again, under a name of its own."""
    if _is_last_after_reset(scenario):
        return scenario
    end = trace.records_decoder.decode(lines[-1])[-1]
    if not isinstance(end, trace.End) or end.unfinished:
        return None
    # By then the last output has come back, and the worker was told of everybody's end.
    at = end.steps + scenario.features.async_depth + 1
    first, *_ = scenario.requests()
    name = "again"
    while name in _names(scenario):
        name += "-again"
    return replace(
        scenario, steps=(*scenario.steps, Step(at=at, add=(replace(first, id=name, output=""),), reset=True))
    )


def _is_last_after_reset(scenario: Scenario) -> bool:
    *earlier, last = scenario.steps
    aborts = last.abort or last.abort_in_flight
    return bool(last.reset and len(last.add) == 1 and not aborts and any(step.add for step in earlier))


def _that_one_alone(scenario: Scenario) -> Scenario:
    return replace(scenario, steps=(Step(at=0, add=scenario.steps[-1].add),))


def _same_as_alone(sides: Sides) -> Compared:
    """What follows the last reset, in the scenario, is the whole of the twin."""
    records = sides.records
    reset = max(number for number, record in enumerate(records) if isinstance(record, trace.Reset))
    alive: set[str] = set()
    step = 0
    for record in records[:reset]:
        if isinstance(record, trace.Add):
            alive.add(record.request)
        elif isinstance(record, trace.Finish):
            alive.discard(record.request)
        elif isinstance(record, trace.Step):
            step = record.index + 1
    if alive:
        return Compared(0)
    why = "all other requests have ended, and the cache was reset"
    if not records[reset].done:  # type: ignore[union-attr]
        return Compared(1, Difference("reset", step, reset, "a reset that is done", "one that is refused", why))
    # Nobody is in the outputs that are still to come of steps before. They are left out after the decisions were read,
    # so that these are numbered as in the whole trace.
    late = {number for number, one in enumerate(records) if isinstance(one, trace.Output) and one.index < step}
    ours = (one for one in decisions(records) if one.record > reset and one.record not in late)
    return _alike(ours, decisions(sides.twin_records), why)


RELATIONS: dict[str, Relation] = {
    relation.rule: relation
    for relation in (
        Relation("U2", _one_at_a_time, _more_blocks, _no_fewer_hits),
        Relation("V1", _one_abort_at_a_time, _renamed, _same_under_other_names),
        Relation("V2", _cached_attention, _without_caching, _same_tokens),
        Relation("V3", _prefill_only, _scaled, _same_in_larger),
        Relation("V4", _then_one_more, _that_one_alone, _same_as_alone),
    )
}
"""By rule."""
