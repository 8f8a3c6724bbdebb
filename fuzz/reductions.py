"""The ways in which a scenario can be made smaller; each gives candidates, none knows an engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from oracle.geometry import default_hash_block, scheduler_block
from oracle.scenario import Features, Group, Request, Scenario, Step

_DEFAULTS = Features()


@dataclass(frozen=True)
class Knob:
    """A number of a scenario. ``read`` gives None when the scenario has it no longer."""

    least: int
    read: Callable[[Scenario], int | None]
    write: Callable[[Scenario, int], Scenario]


# --- requests and events -----------------------------------------------------------------------------


def without_requests(scenario: Scenario, ids: set[str]) -> Scenario:
    """The scenario without these requests and their aborts."""
    steps = tuple(
        replace(
            step,
            add=tuple(request for request in step.add if request.id not in ids),
            abort=tuple(name for name in step.abort if name not in ids),
            abort_in_flight=tuple(name for name in step.abort_in_flight if name not in ids),
        )
        for step in scenario.steps
    )
    return replace(scenario, steps=_eventful(steps))


def fewer_requests(scenario: Scenario) -> Iterator[Scenario]:
    """One request less, and a budget without what it used to take from a step.

    A fault that needs what is left of a step's budget would else keep every request that takes a share.
    """
    for request in scenario.requests():
        fewer = without_requests(scenario, {request.id})
        for share in range(1, 2 + scenario.features.drafts):
            if scenario.limits.budget > share:
                limits = replace(scenario.limits, budget=scenario.limits.budget - share)
                limits = replace(limits, sequences=min(limits.sequences, limits.budget))
                yield replace(fewer, limits=limits)


def events(scenario: Scenario) -> Iterator[Scenario]:
    """Fewer events, and the same ones earlier or in one step."""
    steps = scenario.steps
    yield replace(scenario, steps=tuple(replace(step, at=at) for at, step in enumerate(steps)), note="")
    for number, step in enumerate(steps):
        for smaller in _fewer_events(step):
            yield _with_step(scenario, number, smaller)
    for number in range(1, len(steps)):
        merged = _merged(steps[number - 1], steps[number])
        yield replace(scenario, steps=(*steps[: number - 1], merged, *steps[number + 1 :]))
    for number, step in enumerate(steps):
        earliest = steps[number - 1].at + 1 if number else 0
        # Halving the gap, so that a late event arrives where it must be in few attempts.
        for at in sorted({earliest, (earliest + step.at) // 2, step.at - 1}):
            if earliest <= at < step.at:
                shift = step.at - at
                later = tuple(replace(other, at=other.at - shift) for other in steps[number:])
                yield replace(scenario, steps=steps[:number] + later)
                yield _with_step(scenario, number, replace(step, at=at))


def _fewer_events(step: Step) -> Iterator[Step]:
    if step.reset:
        yield replace(step, reset=False)
    for name in step.abort:
        yield replace(step, abort=tuple(other for other in step.abort if other != name))
    for name in step.abort_in_flight:
        kept = tuple(other for other in step.abort_in_flight if other != name)
        yield replace(step, abort_in_flight=kept)


def _merged(first: Step, second: Step) -> Step:
    return Step(
        at=first.at,
        add=first.add + second.add,
        abort=first.abort + second.abort,
        abort_in_flight=first.abort_in_flight + second.abort_in_flight,
        reset=first.reset or second.reset,
    )


def _eventful(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    return tuple(step for step in steps if step.add or step.abort or step.abort_in_flight or step.reset)


def _with_step(scenario: Scenario, number: int, step: Step) -> Scenario:
    steps = (*scenario.steps[:number], step, *scenario.steps[number + 1 :])
    return replace(scenario, steps=_eventful(steps))


# --- features ----------------------------------------------------------------------------------------


def features(scenario: Scenario) -> Iterator[Scenario]:
    """One feature, limit or habit of a request less."""
    on = scenario.features
    for field in Features.__struct_fields__:
        default = getattr(_DEFAULTS, field)
        if getattr(on, field) != default:
            yield _with_features(scenario, replace(on, **{field: default}))
    if on.retention:
        yield _with_features(scenario, replace(on, retention=0))
    for drafts in range(1, on.drafts):
        yield _with_features(scenario, replace(on, drafts=drafts))
    if on.async_depth > 1:
        yield _with_features(scenario, replace(on, async_depth=1))
    if scenario.limits.long_prefill_threshold:
        yield replace(scenario, limits=replace(scenario.limits, long_prefill_threshold=0))
    yield from _plainer_groups(scenario)
    yield from _plainer_requests(scenario)


def _plainer_groups(scenario: Scenario) -> Iterator[Scenario]:
    """No mark of the draft model, no states saved inside a chunk, or saved anywhere."""
    groups = scenario.geometry.groups
    if any(group.eagle for group in groups):
        yield _with_groups(scenario, tuple(replace(group, eagle=False) for group in groups))
    for saves in (0, 1):
        if any(group.checkpoint > saves for group in groups):
            less = (replace(group, checkpoint=min(group.checkpoint, saves)) for group in groups)
            yield _with_groups(scenario, tuple(less))


def _plainer_requests(scenario: Scenario) -> Iterator[Scenario]:
    """A request without priority, that is looked up, or with fewer accepted drafts."""
    for request in scenario.requests():
        if request.skips_lookup:
            yield _with_request(scenario, replace(request, skips_lookup=False))
        if request.priority:
            yield _with_request(scenario, replace(request, priority=0))
        if request.accept != (0,):
            yield _with_request(scenario, replace(request, accept=(0,)))
        if len(request.accept) > 1:
            yield _with_request(scenario, replace(request, accept=request.accept[: len(request.accept) // 2]))
            yield _with_request(scenario, replace(request, accept=request.accept[:-1]))


def _with_features(scenario: Scenario, changed: Features) -> Scenario:
    """The scenario with other features, and what hangs on them: draft groups and the hash block."""
    groups = scenario.geometry.groups
    if not changed.drafts:
        groups = tuple(replace(group, eagle=False) for group in groups)
        changed = replace(changed, exact_junction=False)
    return _with_groups(replace(scenario, features=changed), groups)


def _with_groups(scenario: Scenario, groups: tuple[Group, ...]) -> Scenario:
    """The scenario with other groups; the hash block follows unless a finer one is asked for."""
    geometry = replace(scenario.geometry, groups=groups)
    if not scenario.features.partial_hits:
        geometry = replace(geometry, hash_block=default_hash_block(geometry))
    return replace(scenario, geometry=geometry)


# --- block sizes -------------------------------------------------------------------------------------


def block_sizes(scenario: Scenario) -> Iterator[Scenario]:
    """Smaller blocks: the whole geometry in proportion; then all groups of one size; then single groups.

    Everything else that is counted in tokens follows, so that what happens on a boundary still does.
    """
    geometry = scenario.geometry
    unit = math.gcd(geometry.hash_block, *(group.block for group in geometry.groups))
    for smaller in _smaller_units(unit):
        blocks = [group.block // unit * smaller for group in geometry.groups]
        for rest in _RESTS:
            resized = _resized(scenario, blocks, geometry.hash_block // unit * smaller)
            yield _scaled(resized, unit, smaller, rest)
    for size in sorted({group.block for group in geometry.groups}, reverse=True):
        alike = [number for number, group in enumerate(geometry.groups) if group.block == size]
        for numbers in [alike, *([number] for number in alike if len(alike) > 1)]:
            for smaller in _smaller_units(size):
                blocks = [group.block for group in geometry.groups]
                for number in numbers:
                    blocks[number] = smaller
                resized = _resized(scenario, blocks, math.gcd(geometry.hash_block, *blocks))
                yield from (_scaled(resized, size, smaller, rest) for rest in _RESTS)
                yield resized


def _smaller_units(unit: int) -> list[int]:
    """Sizes below ``unit`` worth trying: the small ones, then its divisors and halves."""
    wanted = {1, 2, 3, 4, 6, 8} | {unit // divisor for divisor in range(2, 9) if unit % divisor == 0}
    return sorted(size for size in wanted if 1 <= size < unit)


_RESTS: tuple[Callable[[int, int], int], ...] = (
    lambda rest, smaller: min(rest, smaller - 1),
    lambda rest, smaller: min(rest, 1, smaller - 1),
    lambda rest, smaller: 0,
)
"""What becomes of the tokens beyond whole units in smaller units: as many as fit, one, or none."""


def _scaled(scenario: Scenario, unit: int, smaller: int, rest: Callable[[int, int], int]) -> Scenario:
    """Prompts, limits and windows in units of ``smaller`` tokens instead of ``unit``; blocks stay."""

    def to(tokens: int) -> int:
        whole, beyond = divmod(tokens, unit)
        return max(1, whole * smaller + rest(beyond, smaller))

    def request(old: Request) -> Request:
        prompt = tuple(f"{name}:{to(tokens)}" for name, tokens in map(_split, old.prompt))
        return replace(old, prompt=prompt)

    limits, groups = scenario.limits, scenario.geometry.groups
    return replace(
        scenario,
        geometry=replace(
            scenario.geometry,
            groups=tuple(replace(g, window=g.window if g.window is None else to(g.window)) for g in groups),
        ),
        limits=replace(
            limits,
            budget=max(to(limits.budget), limits.sequences),
            long_prefill_threshold=to(limits.long_prefill_threshold) if limits.long_prefill_threshold else 0,
        ),
        steps=tuple(replace(step, add=tuple(map(request, step.add))) for step in scenario.steps),
    )


def _resized(scenario: Scenario, blocks: list[int], hash_block: int) -> Scenario:
    """The scenario with other block sizes, group by group; retention and attention chunks keep theirs in blocks."""
    groups = tuple(
        replace(
            g,
            block=block,
            checkpoint=hash_block if g.checkpoint > 1 else g.checkpoint,
            attention_chunk=None if g.attention_chunk is None else g.attention_chunk // g.block * block,
        )
        for g, block in zip(scenario.geometry.groups, blocks, strict=True)
    )
    geometry = replace(scenario.geometry, hash_block=hash_block)
    return _with_retention(scenario, _with_groups(replace(scenario, geometry=geometry), groups))


def _with_retention(before: Scenario, after: Scenario) -> Scenario:
    """Keep the retention interval's number of scheduler blocks when their size has changed."""
    interval = before.features.retention
    if not interval:
        return after
    segments = max(1, interval // scheduler_block(before.geometry))
    retention = segments * scheduler_block(after.geometry)
    return replace(after, features=replace(after.features, retention=retention))


# --- prompts and numbers -----------------------------------------------------------------------------


def prompts(scenario: Scenario) -> Iterator[Scenario]:
    """Prompts of fewer segments."""
    for request in scenario.requests():
        if len(request.prompt) > 1:
            for number in range(len(request.prompt)):
                kept = request.prompt[:number] + request.prompt[number + 1 :]
                yield _with_request(scenario, replace(request, prompt=kept))
            total = sum(tokens for _, tokens in map(_split, request.prompt))
            for name in dict.fromkeys(name for name, _ in map(_split, request.prompt)):
                yield _with_request(scenario, replace(request, prompt=(f"{name}:{total}",)))
        if request.output:
            yield _with_request(scenario, replace(request, output=""))


def knobs(scenario: Scenario) -> Iterator[Knob]:
    """Every number that may be lower: segments, shared ones as one, outputs, limits, pool, windows, chunks."""
    alike: dict[str, list[tuple[str, int]]] = {}
    for request in scenario.requests():
        for place, segment in enumerate(request.prompt):
            alike.setdefault(segment, []).append((request.id, place))
    for places in alike.values():
        if len(places) > 1:
            yield _segments_knob(tuple(places))
    for request in scenario.requests():
        for place in range(len(request.prompt)):
            yield _segments_knob(((request.id, place),))
        yield _request_knob(request.id, "max_output")
    yield _limit_knob("budget", 1)
    yield _limit_knob("long_prefill_threshold", 0)
    yield _limit_knob("sequences", 1)
    yield Knob(
        2,
        lambda now: now.geometry.blocks,
        lambda now, value: replace(now, geometry=replace(now.geometry, blocks=value)),
    )
    for number, group in enumerate(scenario.geometry.groups):
        if group.window is not None:
            yield _window_knob(number)
        if group.attention_chunk is not None:
            yield _attention_chunk_knob(number)


def _segments_knob(places: tuple[tuple[str, int], ...]) -> Knob:
    """The lengths of segments as one number; a place is a request's id and an index into its prompt."""

    def read(now: Scenario) -> int | None:
        lengths = []
        for request_id, place in places:
            request = _request(now, request_id)
            if request is None or place >= len(request.prompt):
                return None
            lengths.append(_split(request.prompt[place])[1])
        return max(lengths)

    def write(now: Scenario, value: int) -> Scenario:
        for request_id, place in places:
            request = _request(now, request_id)
            assert request is not None
            prompt = list(request.prompt)
            prompt[place] = f"{_split(prompt[place])[0]}:{value}"
            now = _with_request(now, replace(request, prompt=tuple(prompt)))
        return now

    return Knob(1, read, write)


def _request_knob(request_id: str, field: str) -> Knob:
    def read(now: Scenario) -> int | None:
        request = _request(now, request_id)
        return None if request is None else int(getattr(request, field))

    def write(now: Scenario, value: int) -> Scenario:
        request = _request(now, request_id)
        assert request is not None
        return _with_request(now, replace(request, **{field: value}))

    return Knob(1, read, write)


def _limit_knob(field: str, least: int) -> Knob:
    return Knob(
        least,
        lambda now: int(getattr(now.limits, field)),
        lambda now, value: replace(now, limits=replace(now.limits, **{field: value})),
    )


def _window_knob(number: int) -> Knob:
    def write(now: Scenario, value: int) -> Scenario:
        groups = list(now.geometry.groups)
        groups[number] = replace(groups[number], window=value)
        return _with_groups(now, tuple(groups))

    return Knob(1, lambda now: now.geometry.groups[number].window, write)


def _attention_chunk_knob(number: int) -> Knob:
    """The blocks of an attention chunk."""

    def read(now: Scenario) -> int | None:
        group = now.geometry.groups[number]
        return None if group.attention_chunk is None else group.attention_chunk // group.block

    def write(now: Scenario, value: int) -> Scenario:
        groups = list(now.geometry.groups)
        groups[number] = replace(groups[number], attention_chunk=value * groups[number].block)
        return _with_groups(now, tuple(groups))

    return Knob(1, read, write)


# --- names -------------------------------------------------------------------------------------------


def renamed(scenario: Scenario) -> Scenario:
    """Requests called r0, r1, … and streams a, b, …, in the order in which they appear."""
    requests = scenario.requests()
    names = {request.id: f"r{number}" for number, request in enumerate(requests)}
    streams: dict[str, str] = {}

    def stream(name: str) -> str:
        if name in names:
            return names[name]
        return streams.setdefault(name, _letters(len(streams)))

    def request(old: Request) -> Request:
        prompt = tuple(f"{stream(name)}:{tokens}" for name, tokens in map(_split, old.prompt))
        return replace(old, id=names[old.id], prompt=prompt, output=stream(old.output) if old.output else "")

    steps = tuple(
        replace(
            step,
            add=tuple(map(request, step.add)),
            abort=tuple(names[name] for name in step.abort),
            abort_in_flight=tuple(names[name] for name in step.abort_in_flight),
        )
        for step in scenario.steps
    )
    return replace(scenario, steps=steps, note="")


def _letters(number: int) -> str:
    return chr(ord("a") + number % 26) + (str(number // 26) if number >= 26 else "")


# --- small helpers -----------------------------------------------------------------------------------


def _split(segment: str) -> tuple[str, int]:
    name, _, tokens = segment.rpartition(":")
    return name, int(tokens)


def _request(scenario: Scenario, request_id: str) -> Request | None:
    return next((request for request in scenario.requests() if request.id == request_id), None)


def _with_request(scenario: Scenario, changed: Request) -> Scenario:
    steps = tuple(
        replace(step, add=tuple(changed if old.id == changed.id else old for old in step.add))
        for step in scenario.steps
    )
    return replace(scenario, steps=steps)
