"""The smoke test of an engine: one small scenario whose decisions are known, the same in all releases.

Four prompts one after another share twelve of thirty tokens. Full attention has the shared prefix at once,
Mamba has no state there: the second request finds the junction, stops on it, and so the third and the
fourth can reuse it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from fuzz.engines.protocol import Engine
from fuzz.trial import try_scenario
from oracle.scenario import Features, Geometry, Group, Limits, Request, Scenario, Step
from oracle.verdict import Finding

_SIBLINGS = 4
_APART = 10
"""Steps between two arrivals, enough for the earlier request to have ended."""

SCENARIO = Scenario(
    geometry=Geometry((Group("full", 4), Group("mamba", 4)), hash_block=4, blocks=64),
    limits=Limits(budget=16, sequences=4),
    features=Features(retention=0),
    steps=tuple(Step(at=n * _APART, add=(Request(f"r{n}", ("shared:12", f"own{n}:18")),)) for n in range(_SIBLINGS)),
)

EXPECTED: dict[str, list[int]] = {"hits": [0, 0, 12, 12], "junctions": [0, 12, 0, 0]}
"""Hit and junction in tokens, request by request."""


class Smoke(msgspec.Struct):
    """``problem``: why there is no trace; then nothing else holds."""

    expected: dict[str, list[int]]
    actual: dict[str, list[int]]
    findings: list[Finding]
    problem: str = ""

    @property
    def works(self) -> bool:
        """The decisions are the known ones and break no rule."""
        return not self.problem and self.actual == self.expected and not self.findings


def smoke(engine: Engine) -> Smoke:
    """Run the smoke test."""
    trial = try_scenario(engine, SCENARIO, compared={"D1"})
    records: list[list[Any]] = [record for line in trial.lines[1:] for record in msgspec.json.decode(line)]
    lookups = {record[1]: record for record in records if record[0] == "lookup"}
    ordered = [lookups[name] for name in sorted(lookups)]
    actual = {"hits": [record[3] for record in ordered], "junctions": [record[4] for record in ordered]}
    return Smoke(EXPECTED, actual, trial.verdict.findings, trial.could_not_run)
