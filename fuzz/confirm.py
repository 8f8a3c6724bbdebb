"""Confirms a counterexample about the split on a real engine: brings its scheduler to take that very decision.

A proof about a release's own split speaks of numbers; whether the scheduler ever calls the split with them
is another matter. Scenarios are built towards the call, in this order: the cache whose setting is the
call's; earlier requests that leave behind what gives the call's hit and junction; earlier chunks that lead
from that hit to its start; other requests that eat the budget down to what it asks for. After them come
scenarios with preemption, where tokens are known beyond the prompt, and then drawn ones, until time is up.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from fuzz.draw import Draw, SeededDraw
from fuzz.engines.names import EngineError, nearest_release
from fuzz.engines.protocol import Engine
from fuzz.reductions import knobs
from fuzz.refusals import refused_by
from fuzz.shrink import shrink
from fuzz.swarm import draw_swarm
from fuzz.trial import DRIVER_FAULT
from fuzz.workload import draw_jobs, draw_steps, sizes
from oracle.case import Case
from oracle.check_split import check_split
from oracle.scenario import Features, Geometry, Group, Limits, Request, Scenario, Step
from oracle.trace import Crash, Header, Lookup, Split, header_decoder, records_decoder
from oracle.validate import blocks_for_request, check, prompt_tokens
from oracle.verdict import Finding
from reference.policy import POLICIES, Policy
from reference.split import SplitSetting, prefill_end, split

Status = Literal["confirmed on engine", "not reachable there", "model only"]

JUDGED_RULES = ("S1", "S2", "S3", "S4")
"""Rules that are judged at a single split. For any other rule only the very decision confirms."""

SHAPES_MAX = 3
CRASHES_MAX = 3
NEAR_MAX = 12
"""Calls nearest to the one looked for, whose scenarios are changed to come nearer still."""
SHRINK_ATTEMPTS = 200
SHRINK_SECONDS_MAX = 4.0
EATERS_MAX = 256
"""Requests that may stand before the target in a step."""
FILL_TRIES_MAX = 4000
ALL_SIZES_MAX = 64
"""Up to so many tokens every size is tried, beyond only some."""

_TARGET = "target"


@dataclass(frozen=True)
class SplitCall:
    """A call of the split and its answer. Sizes in tokens, named as in ``reference.split``."""

    grid: int
    hash_block: int
    scheduler_block: int
    room: int
    block_drop: bool
    partial_hits: bool
    exact_junction: bool
    lookahead: int
    checkpoint_alignment: int
    start: int
    asked: int
    prompt: int
    known: int
    junction: int
    granted: int

    @property
    def setting(self) -> SplitSetting:
        """What is fixed for the engine."""
        return SplitSetting(**{name: getattr(self, name) for name in SplitSetting.__dataclass_fields__})

    @property
    def inputs(self) -> tuple[int, ...]:
        """What the scheduler passes at this call, in the order of ``_INPUTS``."""
        return (self.start, self.asked, self.prompt, self.known, self.junction)


_INPUTS = ("start", "asked", "prompt", "known", "junction")


@dataclass(frozen=True)
class Confirmation:
    """What became of a counterexample on an engine.

    ``reason``: one sentence. ``scenario``: the smallest one found (None: none). ``exact``: with the very
    numbers of the call; else the same rule was broken with other numbers in a setting of the same kind
    (``_is_alike``).
    """

    status: Status
    reason: str
    scenario: Scenario | None = None
    exact: bool = False


class _Seen(msgspec.Struct, frozen=True):
    """A scenario with the split that was met in it, and the finding that the judge has on it, if any."""

    scenario: Scenario
    record: Split
    finding: Finding | None


class _Shape(msgspec.Struct, frozen=True):
    """A cache and features that give an engine the setting of a call."""

    geometry: Geometry
    features: Features


def confirm(engine: Engine, rule: str, call: SplitCall, seconds: float) -> Confirmation:
    """Look for the decision ``call``, which breaks ``rule``, on an engine, for about ``seconds``.

    Never raises for what the engine does. A hang can take ``hang_seconds`` of the engine longer.
    """
    if reason := _impossible(call):
        return Confirmation("not reachable there", reason)
    search = _Search(engine, rule, call, seconds)
    try:
        search.run()
        return search.confirmation()
    except EngineError as error:
        return Confirmation("not reachable there", f"the engine could not be started again: {error}")


def _impossible(call: SplitCall) -> str:
    """Why no scheduler of any release makes this call; empty if one may."""
    if call.start < 0 or call.prompt < 1 or call.asked < 1:
        return "the scheduler asks for at least one token, of a prompt of at least one, and never before its start"
    if call.known < call.prompt:
        return f"a request knows at least its prompt, so never {call.known} tokens with a prompt of {call.prompt}"
    if call.junction >= call.known:
        return (
            f"a junction lies inside the request (the lookup looks at known - 1 tokens at most), and "
            f"{call.junction} does not lie within {call.known} tokens"
        )
    return ""


_STAGES = (
    "since no earlier requests were found that leave behind its hit and junction",
    "since no chunks that the reference's split allows lead from a hit to its start",
    "though chunks that the reference's split allows lead to its start",
)
"""How far towards the call the scenarios built on purpose have come."""


class _Over(Exception):
    """Time is up, or the engine crashed too often."""


class _Met(Exception):
    """The engine was brought to make the very call."""


class _Search:
    """What has been tried on the engine and seen in its traces so far."""

    def __init__(self, engine: Engine, rule: str, call: SplitCall, seconds: float) -> None:
        self.engine = engine
        self.rule = rule
        self.call = call
        self.deadline = time.monotonic() + seconds
        # Time for the very numbers, when the rule was seen to be broken with others.
        self.alike_deadline = self.deadline - seconds / 2
        # A build without a policy is judged by its nearest: where a stop lies depends on the release.
        self.release = engine.release or nearest_release(engine.version)
        self.policy = POLICIES[self.release]
        self.shapes: list[_Shape] = []
        self.tried = 0
        self.met: _Seen | None = None
        self.alike: _Seen | None = None
        self.near: dict[tuple[int, ...], _Seen] = {}
        self.stage = 0
        self.refusals: list[str] = []
        self.differences: list[list[str]] = []
        self.crashes: list[str] = []

    # Finding the setting.

    def find_shapes(self) -> None:
        """Up to three caches whose setting, as the engine itself says, is that of the call."""
        for groups in _groups(self.call):
            if self.over() or len(self.shapes) == SHAPES_MAX:
                return
            fitting = (shape for shape in _shapes(groups, self.call) if self.fits(shape))
            self.shapes.extend(itertools.islice(fitting, 1))

    def fits(self, shape: _Shape) -> bool:
        """Whether the engine runs with this cache and has the call's setting then; notes why not."""
        step = Step(0, (Request("probe", ("probe:1",)),))
        probe = _scenario(shape, Limits(self.call.room, 1), (step,))
        header = None if self._refused(probe) else self._header(probe)
        if header is None:
            return False
        different = _differences(header, self.call)
        if different:
            self.differences.append(different)
        return not different

    def _refused(self, scenario: Scenario) -> bool:
        """Whether the scenario cannot run on this engine; notes what the release itself says."""
        if check(scenario):
            return True
        if reason := refused_by(scenario, self.release):
            self.refusals.append(reason)
            return True
        return False

    def _header(self, probe: Scenario) -> Header | None:
        run = self.engine.run(probe)
        if run.refused:
            self.refusals.append(run.refused)
        elif not run.lines or b"kvoracle_trace" not in run.lines[0]:
            self.crashes.append("the engine crashed while it was built")
        else:
            return header_decoder.decode(run.lines[0])
        return None

    # Running scenarios.

    def run(self) -> None:
        """Run the families in turn, until the call is met or time is up."""
        self.find_shapes()
        try:
            for shape in self.shapes:
                try:
                    self.directed(shape)
                except _Met:
                    # The split knows no groups, but whether its answer breaks a rule may depend on them.
                    if self.settled():
                        return
            if self.met is None and self.shapes:
                self.search()
        except (_Over, _Met):
            return

    def settled(self) -> bool:
        """Whether what was met decides: another answer, or the call's own where that breaks the rule."""
        if self.met is None:
            return False
        other = self.met.record.granted != self.call.granted
        return other or self.rule not in JUDGED_RULES or self.met.finding is not None

    def over(self) -> bool:
        """Whether to stop."""
        deadline = self.deadline if self.alike is None else self.alike_deadline
        return time.monotonic() >= deadline or len(self.crashes) >= CRASHES_MAX

    def search(self) -> None:
        """Scenarios by chance, for as long as there is time."""
        for number in itertools.count():
            draw = SeededDraw(number)
            self.attempt(self.drawn(draw, self.shapes[number % len(self.shapes)]))

    def directed(self, shape: _Shape) -> None:
        """Every way to the call that is built on purpose, for one shape."""
        if self.call.known > self.call.prompt:
            return
        for retention in (None, 0) if self.call.start or self.call.junction else (None,):
            kept = msgspec.structs.replace(shape, features=msgspec.structs.replace(shape.features, retention=retention))
            for prelude in _preludes(self.call):
                alone = _staged(kept, Limits(self.call.room, 1), self.call, prelude, [])
                found = self.target_lookup(alone)
                if found is None or found.junction != self.call.junction or found.hit > self.call.start:
                    continue
                self.approach(kept, prelude, found.hit)

    def drawn(self, draw: Draw, shape: _Shape) -> Scenario:
        """A scenario by chance: a new one, or one that came near, changed."""
        if self.near and draw.chance(60):
            return _changed(draw, draw.choice(list(self.near.values())).scenario, self.call)
        resumes = self.call.known > self.call.prompt and draw.chance(50)
        return _resumed(draw, shape, self.call) if resumes else _drawn(draw, shape, self.call)

    def approach(self, shape: _Shape, prelude: _Prelude, hit: int) -> None:
        """Chunks that lead from the hit to the call's start, while other requests eat the budget."""
        plans = _chunk_plans(self.policy, self.call, hit)
        self.stage = max(self.stage, 2 if plans else 1)
        for plan, limits in itertools.product(plans, _limits(self.call)):
            scenario = _approach(self.policy, shape, limits, self.call, prelude, hit, plan)
            if scenario is not None:
                self.attempt(scenario)

    def target_lookup(self, scenario: Scenario) -> Lookup | None:
        """What the engine's first lookup of the target gave."""
        for record in self.attempt(scenario):
            if isinstance(record, Lookup) and record.request == _TARGET:
                return record
        return None

    def attempt(self, scenario: Scenario) -> list[object]:
        """Run a scenario, note what matters of its splits, and give its records. Raises _Over and _Met."""
        if self.over():
            raise _Over
        if check(scenario) or refused_by(scenario, self.release):
            return []
        header, records = self.records(scenario)
        if header is None:
            return []
        met = [seen for seen in self.splits(scenario, header, records) if self.note(header, seen)]
        if met:
            raise _Met
        return records

    def records(self, scenario: Scenario) -> tuple[Header | None, list[object]]:
        """Run a scenario; no header when it was refused. A crash is noted, and what came before it stands."""
        run = self.engine.run(scenario)
        self.tried += 1
        if run.refused or not run.lines or b"kvoracle_trace" not in run.lines[0]:
            if not run.refused:
                self.crashes.append("the engine crashed before its trace began")
            return None, []
        records: list[object] = [record for line in run.lines[1:] for record in records_decoder.decode(line)]
        last = records[-1] if records else None
        if isinstance(last, Crash):
            whose = "the driver" if last.where.startswith(DRIVER_FAULT) else "the engine"
            self.crashes.append(f"{whose} ended with {last.kind} in {last.where}: {last.message}")
        return header_decoder.decode(run.lines[0]), records

    def splits(self, scenario: Scenario, header: Header, records: list[object]) -> Iterator[_Seen]:
        """The splits of a trace, each judged alone, so that an earlier finding on its request hides nothing."""
        case = Case(header, self.release, frozenset({self.rule}))
        for record in records:
            if isinstance(record, Split):
                before = len(case.verdict.findings)
                check_split(case, record)
                findings = case.verdict.findings[before:]
                yield _Seen(scenario, record, findings[0] if findings else None)

    def note(self, header: Header, seen: _Seen) -> bool:
        """Keep the split if it is near the call or the first to break the rule likewise; whether it is the call."""
        if self.alike is None and self.rule in JUDGED_RULES and self.is_alike(header, seen):
            self.alike = seen
        if _differences(header, self.call):
            return False
        inputs = _inputs(seen.record)
        self.near.setdefault(inputs, seen)
        if len(self.near) > NEAR_MAX:
            del self.near[max(self.near, key=self.distance)]
        if inputs != self.call.inputs:
            return False
        if not self.settled():
            self.met = seen
        return True

    # Telling what came of it.

    def confirmation(self) -> Confirmation:
        """The strongest that what was seen allows."""
        if self.met is not None:
            return self._of_met(self.met)
        if self.alike is not None:
            why_not = self._why_not_reached()
            smallest = self.smaller(self.alike, self.is_alike)
            reason = f"{why_not}; but {self.rule} is broken in a setting of the same kind: {_words(smallest.record)}"
            return Confirmation("confirmed on engine", reason, smallest.scenario)
        return Confirmation("not reachable there", self._why_not_reached())

    def _of_met(self, met: _Seen) -> Confirmation:
        smallest = self.smaller(met, self.is_met)
        granted = met.record.granted
        if granted != self.call.granted:
            reason = f"given these very inputs the engine grants {granted} tokens, not {self.call.granted}"
            return Confirmation("model only", reason, smallest.scenario)
        if self.rule in JUDGED_RULES and met.finding is None:
            reason = f"the engine takes this very decision, but the judge sees no breach of {self.rule} in it"
            return Confirmation("model only", reason, smallest.scenario)
        reason = f"the scheduler takes this very decision: {_words(smallest.record)}"
        return Confirmation("confirmed on engine", reason, smallest.scenario, exact=True)

    def _why_not_reached(self) -> str:
        if not self.shapes:
            return self._why_no_setting()
        how_far = _STAGES[self.stage] if self.call.known == self.call.prompt else "however a request was preempted"
        reason = f"{self.tried} scenarios led to no such call, {how_far}; {self.nearest()}"
        if self.crashes:
            reason += f"; in {len(self.crashes)} of them {self.crashes[0]}"
        return reason

    def _why_no_setting(self) -> str:
        if self.crashes:
            return self.crashes[0]
        reasons = []
        if self.differences:
            least = min(self.differences, key=len)
            reasons.append(f"no cache that can be driven has this setting: {' and '.join(least)}")
        if self.refusals:
            reasons.append(f"the release refuses the setting: {self.refusals[0]}")
        return "; ".join(reasons) or "no cache that can be driven has these block sizes"

    def distance(self, inputs: tuple[int, ...]) -> float:
        """How far a call is from the one looked for; being off by one counts, by many not much more.

        A call of another kind, without tokens beyond the prompt or a junction, is farther than numbers say.
        """
        far = sum(math.log2(1 + abs(a - b)) for a, b in zip(inputs, self.call.inputs, strict=True))
        (_, _, prompt, known, junction), call = inputs, self.call
        return far + 4 * ((known > prompt) != (call.known > call.prompt)) + 2 * ((junction > 0) != (call.junction > 0))

    def nearest(self) -> str:
        """How the nearest call that was seen differs from the one looked for, in words."""
        if not self.near:
            return "the engine made no call of its split in this setting"
        nearest = min(self.near, key=self.distance)
        different = [
            f"{name} is {got}, not {wanted}"
            for name, got, wanted in zip(_INPUTS, nearest, self.call.inputs, strict=True)
            if got != wanted
        ]
        return f"in the nearest one {' and '.join(different)}"

    def smaller(self, seen: _Seen, recurs: Callable[[Header, _Seen], bool]) -> _Seen:
        """The scenario shrunk while it shows the same, within a few seconds, and what it shows then."""
        accepted = {seen.scenario: seen}

        def tries(candidate: Scenario) -> Finding | None:
            if refused_by(candidate, self.release):
                return None
            header, records = self.records(candidate)
            if header is None:
                return None
            for again in self.splits(candidate, header, records):
                if recurs(header, again):
                    accepted[candidate] = again
                    return again.finding or _placeholder(self.rule)
            return None

        until = time.monotonic() + SHRINK_SECONDS_MAX
        try:
            return accepted[shrink(seen.scenario, tries, attempts=SHRINK_ATTEMPTS, deadline=until).scenario]
        except EngineError:  # what was seen stands, smaller or not
            return seen

    def is_met(self, header: Header, seen: _Seen) -> bool:
        """Whether the engine takes the decision that it took when the call was met."""
        assert self.met is not None
        same_inputs = _inputs(seen.record) == self.call.inputs
        return same_inputs and seen.record.granted == self.met.record.granted and not _differences(header, self.call)

    def is_alike(self, header: Header, seen: _Seen) -> bool:
        """Whether the rule is broken in a setting of the call's kind."""
        return seen.finding is not None and _is_alike(header, self.call)


# --- comparing ---------------------------------------------------------------------------------------


def _inputs(record: Split) -> tuple[int, ...]:
    return (record.start, record.asked, record.prompt, record.known, record.junction)


def _setting(header: Header) -> dict[str, int]:
    """The engine's setting, by the names of ``SplitSetting``."""
    setup = header.setup
    return {
        "grid": setup.split_grid,
        "hash_block": setup.hash_block,
        "scheduler_block": setup.scheduler_block,
        "room": header.scenario.limits.room,
        "block_drop": setup.block_drop,
        "partial_hits": setup.partial_hits,
        "lookahead": setup.lookahead_hash,
        "exact_junction": setup.exact_junction,
        "checkpoint_alignment": setup.checkpoint_alignment,
    }


def _differences(header: Header, call: SplitCall) -> list[str]:
    """How the engine's setting differs from the call's, in words."""
    if not header.setup.split:
        return ["the split is off"]
    return [
        f"{name} is {got}, not {getattr(call, name)}"
        for name, got in _setting(header).items()
        if got != getattr(call, name)
    ]


def _is_alike(header: Header, call: SplitCall) -> bool:
    """Whether the setting is of the call's kind: the same features, and sizes that compare alike."""
    return _kind(**_setting(header)) == _kind(**vars(call.setting))


def _kind(
    grid: int,
    hash_block: int,
    scheduler_block: int,
    room: int,
    block_drop: int,
    partial_hits: int,
    lookahead: int,
    exact_junction: int,
    checkpoint_alignment: int,
) -> tuple[bool, ...]:
    features = (block_drop, partial_hits, lookahead, exact_junction, checkpoint_alignment)
    return (hash_block < grid, grid < scheduler_block, grid > room, *map(bool, features))


def _words(record: Split) -> str:
    return (
        f"{record.request} (prompt {record.prompt}, known {record.known}, junction {record.junction}) asks for "
        f"{record.asked} tokens from {record.start} and gets {record.granted}"
    )


def _placeholder(rule: str) -> Finding:
    """What stands for a decision that the judge has no finding on, for the shrinker."""
    return Finding(rule, "split", "", 0, 0, "the decision was met")


# --- the setting -------------------------------------------------------------------------------------


def _shapes(groups: tuple[Group, ...], call: SplitCall) -> Iterator[_Shape]:
    """Features that may give the call's setting with these groups; the engine's own facts decide afterwards."""
    options: list[tuple[int, bool]] = [(0, True)]
    if call.block_drop or call.lookahead:
        options = [(drafts, not call.block_drop) for drafts in (1, 2, 3)]
    for partial_hits, (drafts, lookahead) in itertools.product((False, True), options):
        features = Features(
            drafts=drafts, partial_hits=partial_hits, lookahead_hashes=lookahead, reserve_full_sequence=False
        )
        yield _Shape(Geometry(groups, call.hash_block, 0), features)


def _groups(call: SplitCall) -> Iterator[tuple[Group, ...]]:
    """Full attention and Mamba; beside a sliding window too, which turns hits inside a block off; Mamba alone.

    The split's grid is the smallest block of all groups, the scheduler block their least common multiple.
    """
    grid, wide = call.grid, call.scheduler_block

    def states(block: int) -> Group:
        return Group("mamba", block, checkpoint=call.checkpoint_alignment)

    for mamba, full in dict.fromkeys(((grid, grid), (grid, wide), (wide, grid))):
        yield (Group("full", full), states(mamba))
    others = [block for block in range(grid + 1, wide) if math.lcm(grid, block) == wide]
    for mamba, full in [pair for block in others for pair in ((grid, block), (block, grid))]:
        yield (Group("full", full), states(mamba))
    for mamba, full in dict.fromkeys(((grid, wide), (grid, grid), (wide, grid))):
        yield (Group("full", full), states(mamba), Group("swa", grid, 2 * grid))
    if grid == wide:
        yield (states(grid),)


def _scenario(shape: _Shape, limits: Limits, steps: tuple[Step, ...], spare: int | None = None) -> Scenario:
    """A scenario with a pool that holds all requests at once, or ``spare`` blocks more than one needs."""
    requests = [request for step in steps for request in step.add]
    needs = [
        blocks_for_request(shape.geometry, shape.features, prompt_tokens(request), request.max_output)
        for request in requests
    ]
    pool = sum(needs) + 9 if spare is None else max(needs) + 1 + spare
    geometry = Geometry(shape.geometry.groups, shape.geometry.hash_block, pool)
    return Scenario(geometry, limits, steps, shape.features)


# --- what came before: the hit and the junction ------------------------------------------------------


class _Prelude(msgspec.Struct, frozen=True):
    """Prompts of requests that end before the target comes, and how much of them the target shares."""

    donors: tuple[tuple[str, ...], ...]
    shared: int


_NOTHING = _Prelude((), 0)


def _preludes(call: SplitCall) -> Iterator[_Prelude]:
    """What may give the target the call's hit and junction: nothing; one earlier request; a short and a long one."""
    if not call.junction:
        yield _NOTHING
    if not call.start and not call.junction:
        return
    units = sorted({call.hash_block, call.grid, call.scheduler_block})
    steps = sorted({0, 1, *units, *(unit + 1 for unit in units)})
    positions = dict.fromkeys(position for position in (call.junction, call.start) if position)
    shares = dict.fromkeys(
        position + more for position in positions for more in steps if position + more <= call.prompt
    )
    for shared, own in itertools.product(shares, dict.fromkeys((0, 1, call.grid, call.grid + 1))):
        long = _prompt(shared, "donor", own)
        yield _Prelude((long,), shared)
        if call.start:
            for first in (call.start, call.start + call.grid, call.start + 1):
                if first < shared:
                    yield _Prelude((_prompt(first, "first", 1), long), shared)
                    yield _Prelude((_prompt(first, "first", 0), long), shared)


def _prompt(shared: int, name: str, own: int) -> tuple[str, ...]:
    return (*([f"shared:{shared}"] if shared else []), *([f"{name}:{own}"] if own else []))


# --- the way from the hit to the start ---------------------------------------------------------------


def _limits(call: SplitCall) -> tuple[Limits, ...]:
    """The room of a step as its budget, and as a threshold below a larger budget."""
    return (Limits(call.room, 1), Limits(2 * call.room, 1, call.room))


def _approach(
    policy: Policy, shape: _Shape, limits: Limits, call: SplitCall, prelude: _Prelude, hit: int, asks: tuple[int, ...]
) -> Scenario | None:
    """The scenario in which the target asks for what is planned; None if nobody eats the rest of the budget."""
    needs = _needs(policy, call, limits.budget, hit, asks)
    eaters = _eaters(policy, call, shape.features.drafts, needs)
    if eaters is None or len(eaters) >= limits.budget:
        return None
    crowded = msgspec.structs.replace(limits, sequences=len(eaters) + 1)
    return _staged(shape, crowded, call, prelude, eaters)


def _chunk_plans(policy: Policy, call: SplitCall, hit: int) -> list[tuple[int, ...]]:
    """What to ask for, step by step, so that chunks lead from the hit to the call's start; the call's own last.

    By the reference's split. All that there is room for comes first, because nobody need eat then.
    """
    ways: dict[int, list[tuple[int, ...]]] = {hit: [()]}
    for position in range(hit, call.start):
        if position not in ways:
            continue
        most = min(call.room, call.known - position)
        by_end: dict[int, list[int]] = {}
        for asked in _some(most, call, call.start - position):
            granted = split(policy, call.setting, position, asked, call.prompt, call.known, call.junction)
            by_end.setdefault(position + granted, []).append(asked)
        for way in ways[position]:
            for end, asks in by_end.items():
                if position < end <= call.start:
                    ways.setdefault(end, []).extend((*way, asked) for asked in dict.fromkeys((asks[0], asks[-1])))
        for end in ways.keys() & by_end.keys():
            # Few and short ways: a position is reached in very many.
            ways[end] = sorted(ways[end], key=len)[:6]
    return [(*way, call.asked) for way in ways.get(call.start, ())]


def _some(most: int, call: SplitCall, *more: int) -> list[int]:
    """Sizes from ``most`` tokens down to 1: all of them, or where they are many, those around boundaries."""
    if most <= ALL_SIZES_MAX:
        return list(range(most, 0, -1))
    units = (call.hash_block, call.grid, call.scheduler_block)
    near = {times * unit + beside for unit in units for times in range(1, 9) for beside in (-1, 0, 1)}
    return sorted({size for size in near | {1, most, most - 1, *more} if 1 <= size <= most}, reverse=True)


def _needs(policy: Policy, call: SplitCall, budget: int, hit: int, asks: Sequence[int]) -> list[tuple[int, int]]:
    """Per step, the least and the most that others must eat so that the target asks for what is planned."""
    needs, position = [], hit
    for asked in asks:
        free = asked == min(call.room, call.known - position)
        needs.append((0 if free else budget - asked, budget - asked))
        position += split(policy, call.setting, position, asked, call.prompt, call.known, call.junction)
    return needs


def _eaters(
    policy: Policy, call: SplitCall, drafts: int, needs: Sequence[tuple[int, int]]
) -> list[tuple[int, int]] | None:
    """Requests (prompt, output) that eat together what is needed in each step; None if none are found."""
    steps = len(needs)
    profiles: dict[tuple[int, ...], tuple[int, int]] = {}
    prompts = _some(2 * call.grid + call.hash_block, call, *range(1, ALL_SIZES_MAX))
    for prompt, output in itertools.product(reversed(prompts), range(1, steps + 1)):
        profiles.setdefault(_appetite(policy, call, drafts, prompt, output, steps), (prompt, output))
    ordered = sorted(profiles, key=lambda profile: (sum(profile), profile), reverse=True)
    chosen = _fill(ordered, [low for low, _ in needs], [high for _, high in needs], EATERS_MAX, [FILL_TRIES_MAX])
    return None if chosen is None else [profiles[profile] for profile in chosen]


def _appetite(policy: Policy, call: SplitCall, drafts: int, prompt: int, output: int, steps: int) -> tuple[int, ...]:
    """How many tokens a request that shares nothing takes in each step after its arrival, if there is room."""
    taken: list[int] = []
    position = 0
    while len(taken) < steps and position < prompt:
        asked = min(prompt - position, call.room)
        granted = split(policy, call.setting, position, asked, prompt, prompt, 0)
        taken.append(granted)
        position += granted
        if not granted:
            break
    taken += [1 + drafts] * (output - 1)
    return tuple([*taken, *[0] * steps][:steps])


def _fill(
    profiles: Sequence[tuple[int, ...]], low: list[int], high: list[int], seats: int, tries: list[int]
) -> list[tuple[int, ...]] | None:
    """Profiles, each as often as needed, whose sum lies between ``low`` and ``high`` in every step.

    At most ``seats`` of them; None where they do not suffice, or none were found in ``tries[0]`` tries.
    """
    if max(low) <= 0:
        return []
    if seats == 0:
        return None
    for number, profile in enumerate(profiles):
        if any(part > most for part, most in zip(profile, high, strict=True)) or not any(profile):
            continue
        tries[0] -= 1
        if tries[0] < 0:
            return None
        less = [[bound - part for bound, part in zip(bounds, profile, strict=True)] for bounds in (low, high)]
        rest = _fill(profiles[number:], less[0], less[1], seats - 1, tries)
        if rest is not None:
            return [profile, *rest]
    return None


def _staged(
    shape: _Shape, limits: Limits, call: SplitCall, prelude: _Prelude, eaters: Sequence[tuple[int, int]]
) -> Scenario:
    """The earlier requests one after another; then, in one step, those that eat the budget and the target."""
    earlier, at = _donors(prelude, min(limits.room, call.grid))
    target = Request(_TARGET, _prompt(prelude.shared, "own", call.prompt - prelude.shared))
    others = [Request(f"eater{n}", (f"eater{n}:{prompt}",), output) for n, (prompt, output) in enumerate(eaters)]
    return _scenario(shape, limits, (*earlier, Step(at, (*others, target))))


def _donors(prelude: _Prelude, chunk: int) -> tuple[list[Step], int]:
    """The earlier requests, each added when the one before has ended, and the step at which the last has."""
    steps, at = [], 0
    for number, donor in enumerate(prelude.donors):
        request = Request(f"donor{number}", donor)
        steps.append(Step(at, (request,)))
        # Far more steps than it needs; a step without work costs next to nothing.
        at += 4 + 3 * math.ceil(prompt_tokens(request) / chunk)
    return steps, at


# --- resumed and drawn -------------------------------------------------------------------------------


def _resumed(draw: Draw, shape: _Shape, call: SplitCall) -> Scenario:
    """Older requests whose growth pushes the target out when it has made some tokens, in a scarce pool."""
    made = call.known - call.prompt
    # Most junctions of resumed requests are their own: their attention blocks outlived their states.
    prelude = _NOTHING if draw.chance(60) else draw.choice([_NOTHING, *_preludes(call)])
    earlier, at = _donors(prelude, min(call.room, call.grid))
    older = tuple(_older(draw, number, call) for number in range(draw.choice((1, 1, 2, 3))))
    accept = tuple(draw.integer(0, shape.features.drafts) for _ in range(draw.integer(1, 3)))
    prompt = _prompt(prelude.shared, "own", call.prompt - prelude.shared)
    target = Request(_TARGET, prompt, made + draw.integer(1, 4), accept=accept)
    later = draw.integer(0, 3)
    added = (Step(at, (*older, target)),) if later == 0 else (Step(at, older), Step(at + later, (target,)))
    budget = call.room + draw.choice((0, 1, 1 + shape.features.drafts, prefill_end(call.prompt, call.known)))
    threshold = 0 if budget == call.room else call.room
    features = msgspec.structs.replace(
        shape.features, retention=draw.choice((None, 0)), async_depth=draw.choice((0, 0, 1))
    )
    limits = Limits(budget, min(len(older) + 1, budget), threshold)
    return _scenario(_Shape(shape.geometry, features), limits, (*earlier, *added), spare=draw.integer(0, 12))


def _older(draw: Draw, number: int, call: SplitCall) -> Request:
    """A request that is not pushed out by younger ones, and still grows when the target has made its tokens."""
    output = draw.integer(2, call.known - call.prompt + 3 * call.grid)
    return Request(f"older{number}", (f"older{number}:{draw.integer(1, 3 * call.grid)}",), output)


def _drawn(draw: Draw, shape: _Shape, call: SplitCall) -> Scenario:
    """A scenario as the generator draws them, in the call's setting and with its prompt length among others."""
    swarm = draw_swarm(draw)
    features = msgspec.structs.replace(shape.features, retention=draw.choice((None, 0)))
    blocks = [group.block for group in shape.geometry.groups]
    extra = draw.choice((0, 0, 1, call.grid, call.room))
    budget = call.room + extra
    limits = Limits(budget, draw.integer(1, min(4, budget)), call.room if extra else 0)
    lengths = sizes(blocks, call.hash_block, call.scheduler_block, limits)
    jobs = draw_jobs(draw, swarm, features, lengths)
    for job in jobs:
        if draw.chance(50):
            prompt = _cut(job.request.prompt, call.prompt)
            job.request = msgspec.structs.replace(job.request, prompt=prompt)
    spare = draw.integer(0, 12) if "small-pool" in swarm else None
    return _scenario(_Shape(shape.geometry, features), limits, draw_steps(draw, swarm, jobs), spare)


def _changed(draw: Draw, scenario: Scenario, call: SplitCall) -> Scenario:
    """The scenario with one to three of its numbers changed: lengths, outputs, the pool, the step of an arrival."""
    for _ in range(draw.integer(1, 3)):
        by = draw.choice((1, -1, 2, -2, call.hash_block, -call.hash_block, call.grid, -call.grid))
        if draw.chance(20):
            scenario = _moved(scenario, draw.integer(0, len(scenario.steps) - 1), by)
            continue
        knob = draw.choice(list(knobs(scenario)))
        value = knob.read(scenario)
        changed = scenario if value is None else knob.write(scenario, max(knob.least, value + by))
        if changed.limits.room == call.room:
            scenario = changed
    return scenario


def _moved(scenario: Scenario, number: int, by: int) -> Scenario:
    """A step and all after it come later, or earlier as far as they can."""
    first = scenario.steps[number - 1].at + 1 if number else 0
    by = max(by, first - scenario.steps[number].at)
    later = (msgspec.structs.replace(step, at=step.at + by) for step in scenario.steps[number:])
    return msgspec.structs.replace(scenario, steps=(*scenario.steps[:number], *later))


def _cut(prompt: tuple[str, ...], tokens: int) -> tuple[str, ...]:
    """The prompt's first ``tokens`` tokens, followed by others where it is shorter."""
    kept: list[str] = []
    for name, length in ((name, int(length)) for name, _, length in (part.rpartition(":") for part in prompt)):
        if tokens > 0:
            kept.append(f"{name}:{min(length, tokens)}")
            tokens -= length
    return (*kept, f"filler:{tokens}") if tokens > 0 else tuple(kept)
