"""Takes the counterexamples of a proof run to the real engine: one for each refuted claim about the split."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace

import msgspec

from fuzz.confirm import Confirmation, SplitCall, confirm
from fuzz.engines.names import EngineError
from fuzz.engines.open import open_prepared, prepare_engine
from reference.policy import POLICIES
from spec.claims.split import run_split
from spec.domains import Plain, split_inputs
from spec.row import Row
from spec.subjects import FEATURE_SETS, SIZES

SECONDS = 6.0
"""How long one counterexample is looked for on the engine."""


@dataclass(frozen=True)
class Taken:
    """A row and what became of its counterexample on the engine."""

    row: Row
    confirmation: Confirmation

    @property
    def words(self) -> str:
        """One line."""
        exact = " with the same numbers" if self.confirmation.exact else ""
        return f"{self.row.claim}: {self.confirmation.status}{exact}: {self.confirmation.reason}"

    @property
    def scenario(self) -> str:
        """The scenario as JSON, empty where there is none."""
        found = self.confirmation.scenario
        return msgspec.json.encode(found).decode() if found is not None else ""


def take_to_engine(name: str, rows: Sequence[Row], say: Callable[[str], None]) -> Iterator[Taken]:
    """The smallest counterexample of each refuted claim about the split, on the engine ``name``.

    An engine that cannot be started (sources without its dependencies, say) is told once, and nothing is confirmed.
    """
    chosen = smallest_by_claim(rows)
    if not chosen:
        return
    try:
        engine = open_prepared(prepare_engine(name, say=say))
    except EngineError as error:
        say(f"counterexamples are not taken to the engine: {error}")
        return
    try:
        for row in chosen:
            yield Taken(row, confirm(engine, row.rule, call_of(row), SECONDS))
    finally:
        engine.close()


def smallest_by_claim(rows: Sequence[Row]) -> list[Row]:
    """For each refuted claim about the split the row with the smallest numbers, of sizes that an engine can have.

    A fresh request comes before any that is resumed, since nobody need be preempted to bring it about.
    """
    best: dict[str, Row] = {}
    for row in rows:
        usable = row.subject == "split" and row.counterexample is not None and not SIZES[row.sizes].symbolic
        if usable and (row.claim not in best or _effort(row) < _effort(best[row.claim])):
            best[row.claim] = row
    return list(best.values())


def _effort(row: Row) -> tuple[bool, int]:
    return row.shown["prompt"] != row.shown["known"], sum(row.shown.values())


def call_of(row: Row) -> SplitCall:
    """The call of the split that a counterexample speaks of, with the answer that the release's policy gives."""
    assert row.counterexample is not None
    inputs = split_inputs(Plain(row.counterexample), SIZES[row.sizes], FEATURE_SETS[row.features])
    if "room" in row.free:
        # The smallest room is no configuration; any will do, so take one that a step can ask within.
        room = max(inputs.setting.grid, inputs.asked)
        inputs = replace(inputs, setting=replace(inputs.setting, room=room))
    policy = POLICIES[row.release]
    case = run_split(policy, None, inputs)
    setting = case.setting
    # Releases that hash finer than the scheduler block have hits inside blocks switched on by that alone.
    always_partial = policy.tail_stop == "finer hashes" and setting.hash_block != setting.scheduler_block
    fixed = asdict(setting) | {"partial_hits": setting.partial_hits or always_partial}
    return SplitCall(
        **fixed,
        start=case.start,
        asked=case.asked,
        prompt=case.prompt,
        known=case.known,
        junction=case.junction,
        granted=case.granted,
    )
