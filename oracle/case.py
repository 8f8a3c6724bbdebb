"""The case before the judge: the facts of one trace, the requests seen so far, and where findings go."""

from __future__ import annotations

from dataclasses import dataclass, field

from oracle.cache_index import CacheIndex
from oracle.geometry import geometry_class, reference_group, saves_states
from oracle.prefixes import Prefixes
from oracle.trace import Header
from oracle.verdict import Finding, Verdict
from reference import geometry, split
from reference.exports import Exports, Reservations, exporter
from reference.policy import POLICIES, Policy
from reference.rules import RULES
from reference.worker import Memory

IDS_AHEAD = 16
"""So many more prefix ids are made at once, when a request needs one: it will soon ask for the next."""


class BadTrace(ValueError):
    """A trace that cannot be judged; the text is one line that says what is wrong and how to mend it."""


@dataclass(slots=True, eq=False)
class RequestState:
    """What is known of one request.

    ``ids``: prefix ids of its tokens, outputs that are not sampled yet included. ``known``: tokens that the
    scheduler knows. ``looked_up``: junction of its last lookup (None before the first). ``computed``: tokens
    that the scheduler counts as computed. ``granted``: what the split gave since the last step (None: it was
    not asked). ``mamba_tails``: per group the position of its partial tail (0: none), where it is Mamba.
    ``tables``: the scheduler's block table per group. ``cached``: per group how many leading blocks have been
    considered for the cache. ``chunk``: start and end of what the split last gave. ``kept``: per group, for its
    sparse blocks by number, whether they were kept when they were considered. ``told``: per group how many tokens it
    was told that it may cache, since the last allocation. ``tainted``: rules that this request has broken already.
    """

    name: str
    ids: list[int]
    output: str
    prompt: int
    known: int
    groups: int
    looked_up: int | None = None
    computed: int = 0
    chunk: tuple[int, int] = (0, 0)
    granted: int | None = None
    preemptions: int = 0
    mamba_tails: list[int] = field(default_factory=list)
    tables: list[list[int]] = field(default_factory=list)
    cached: list[int] = field(default_factory=list)
    kept: list[dict[int, bool]] = field(default_factory=list)
    told: dict[int, int] = field(default_factory=dict)
    tainted: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.tables = [[] for _ in range(self.groups)]
        self.start_over()

    def start_over(self) -> None:
        """Nothing is computed: the request is new, or was preempted."""
        self.computed = 0
        self.cached = [0] * self.groups
        self.kept = [{} for _ in range(self.groups)]


class Tally:
    """How often a rule had something to judge."""

    def __init__(self) -> None:
        self.times = 0


class Case:
    """Everything that the checks share. ``release`` None means: no policy, invariants only."""

    def __init__(self, header: Header, release: str | None, rules: frozenset[str] | None) -> None:
        self.header = header
        self.setup = setup = header.setup
        self.scenario = scenario = header.scenario
        self.policy: Policy | None = POLICIES[release] if release is not None else None
        self.rules = frozenset(RULES) if rules is None else rules
        self.groups = tuple(
            reference_group(group, drops)
            for group, drops in zip(scenario.geometry.groups, setup.drop_groups, strict=True)
        )
        self.split_setting = split.SplitSetting(
            grid=setup.split_grid,
            hash_block=setup.hash_block,
            scheduler_block=setup.scheduler_block,
            room=scenario.limits.room,
            block_drop=setup.block_drop,
            partial_hits=setup.partial_hits,
            lookahead=setup.lookahead_hash,
            exact_junction=setup.exact_junction,
            checkpoint_alignment=setup.checkpoint_alignment,
        )
        self.prefixes = Prefixes()
        self.index = CacheIndex()
        self.memory = Memory(self.groups, self._exports())
        self.requests: dict[str, RequestState] = {}
        self.tail_units: dict[int, set[int]] = {}
        self.verdict = verdict = Verdict()
        self.tallies: dict[str, Tally] = {}
        self._covered = verdict.coverage
        self.geometry = geometry_class(scenario)
        self.record = -1
        self.step = 0
        self.skips_lookup = frozenset(request.id for request in scenario.requests() if request.skips_lookup)
        self.mamba_blocks = tuple({group.block: None for group in self.groups if group.kind == "mamba"})
        self.reservations = self._reservations()

    def _reservations(self) -> Reservations | None:
        """Blocks that are reserved for states inside chunks: by 0.29 also under EAGLE, where its split uses none."""
        saved = self.setup.checkpoint_alignment > 0 or saves_states(self.scenario.geometry)
        if not saved or not self.mamba_blocks or self.policy is None or self.policy.internal_checkpoint == "none":
            return None
        # All Mamba groups have one block size.
        return Reservations(self.policy, self.split_setting, self.mamba_blocks[0], self.setup.retention)

    def _exports(self) -> Exports | None:
        """What the worker saves inside a chunk, by the policy. All Mamba groups have one block size."""
        block = next((group.block for group in self.groups if group.kind == "mamba"), 0)
        if self.policy is None or block == 0:
            return None
        asked_unit = self.scenario.geometry.hash_block if self.scenario.features.partial_hits else 0
        return exporter(self.policy, self.split_setting, block, asked_unit)

    def request(self, name: str) -> RequestState:
        """The state of a request that was added before, and did not end long ago; BadTrace for any other name."""
        state = self.requests.get(name)
        if state is None:
            raise BadTrace(f"record {self.record} speaks of request {name!r}, which was never added or ended long ago")
        return state

    def judged(self, rule: str, times: int = 1) -> bool:
        """Note that ``rule`` has something to judge here, so many times; False if it is not asked for."""
        tally = self.tallies.get(rule)
        if tally is None:
            if rule not in self.rules:
                return False
            tally = self.tallies[rule] = Tally()
        tally.times += times
        return True

    def cover(self, event: str, times: int = 1) -> None:
        """Count an event for the coverage table."""
        counts = self._covered
        counts[event] = counts.get(event, 0) + times

    def allow(self, difference: str) -> None:
        """Count a named allowed difference."""
        counts = self.verdict.allowed
        counts[difference] = counts.get(difference, 0) + 1

    def report(
        self,
        rule: str,
        decision: str,
        reason: str,
        *,
        request: str = "",
        group: int = -1,
        block: int = -1,
        expected: object = "",
        actual: object = "",
    ) -> None:
        """Record a finding, unless this request has broken the same rule before."""
        if rule not in self.rules:
            return
        state = self.requests.get(request)
        if state is not None:
            if rule in state.tainted:
                return
            state.tainted.add(rule)
        self.verdict.findings.append(
            Finding(
                rule=rule,
                decision=decision,
                geometry=self.geometry,
                step=self.step,
                record=self.record,
                reason=reason,
                request=request,
                group=group,
                block=block,
                expected=str(expected),
                actual=str(actual),
            )
        )

    def grow_ids(self, state: RequestState, tokens: int) -> list[int]:
        """The request's prefix ids, reaching at least ``tokens`` tokens into its future output."""
        missing = tokens + 1 - len(state.ids)
        if missing > 0:
            self.prefixes.extend(state.ids, state.output, len(state.ids) - 1 - state.prompt, missing + IDS_AHEAD)
        return state.ids

    def peek_end(self, limit: int, hashed: int) -> int:
        """How far a group that drops may look, in tokens: to the hit's ``limit`` or, by some policies, to all that is
        ``hashed``."""
        further = len(self.groups) > 1 and self.policy is not None and self.policy.peek_ends_at == "hashed tokens"
        return hashed if further else limit

    def hashed(self, known: int) -> int:
        """How many of ``known`` tokens have hashes."""
        return geometry.hashed_tokens(known, self.setup.hash_block, self.setup.lookahead_hash)

    def name(self, group: int) -> str:
        """A group in words, for texts."""
        spec = self.groups[group]
        return f"group {group} ({spec.kind}, block {spec.block})"
