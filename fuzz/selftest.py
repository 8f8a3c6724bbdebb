"""Checks the checker: every planted fault is found by its rule, and the conforming engine gives no finding.

Both sides get the same scenarios: what is silent on the one must speak on the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import msgspec

from fuzz.compiled import compiled_first
from fuzz.engines.open import open_prepared, prepare_engine
from fuzz.engines.planted import FAULTS
from fuzz.metamorphic import RELATIONS
from fuzz.sources import Scenarios, scenario_source
from fuzz.supported import unsupported, withheld
from fuzz.trial import try_scenario, try_twins
from oracle.verdict import Finding

SEED = 2
SCENARIOS = 600
"""Scenarios that the conforming engine runs; a fault must be found within them."""
CONFORMING = "reference"

_REPEAT_EVERY = 4


class Control(msgspec.Struct, frozen=True):
    """One engine's result. ``rule``: the one that must find the fault, empty for the conforming engine.

    ``scenarios`` were run until it was found; ``also`` are other rules that spoke in that very scenario.
    """

    name: str
    rule: str
    scenarios: int
    finding: Finding | None
    also: tuple[str, ...] = ()
    could_not_run: str = ""

    @property
    def passed(self) -> bool:
        """Whether the engine was told for what it is."""
        if self.could_not_run:
            return False
        return (self.finding is None) == (self.rule == "")


def controls() -> list[str]:
    """The names of all controls, the conforming engine first because it takes longest."""
    return [CONFORMING, *sorted(FAULTS)]


def run_controls(
    names: list[str], *, seed: int = SEED, scenarios: int = SCENARIOS, workers: int = 1
) -> Iterator[Control]:
    """The results, in the order of ``names``."""
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        with compiled_first():  # processes start as jobs are handed in
            jobs = [pool.submit(run_control, name, seed, scenarios) for name in names]
        yield from (job.result() for job in jobs)


def _twin_rule(rule: str, index: int) -> str:
    """The metamorphic rule to judge a scenario by: the fault's own, on the conforming engine each in turn."""
    if rule:
        return rule if rule in RELATIONS else ""
    turn, rest = divmod(index, _REPEAT_EVERY)
    return list(RELATIONS)[turn % len(RELATIONS)] if rest == 0 else ""


def run_control(name: str, seed: int, scenarios: int) -> Control:
    """Run scenarios until the engine's fault is found; all of them when it is never found."""
    rule = "" if name == CONFORMING else FAULTS[name].rule
    prepared = prepare_engine(CONFORMING if name == CONFORMING else f"planted:{name}")
    engine = open_prepared(prepared)
    scenario_at = scenario_source(Scenarios(seed=seed, without=withheld(prepared)))
    refused_by_build = unsupported(prepared)
    could_not_run = ""
    try:
        for index in range(scenarios):
            repeat = rule == "D1" or (rule == "" and index % _REPEAT_EVERY == 0)
            scenario = scenario_at(index)
            if refused_by_build(scenario):
                continue
            trial = try_scenario(engine, scenario, compared={"D1"} if repeat else ())
            could_not_run = could_not_run or trial.could_not_run
            found = trial.verdict.findings
            if (twin_rule := _twin_rule(rule, index)) and (twins := try_twins(engine, scenario, twin_rule)):
                found = found + twins.verdict.findings
            wanted = next((finding for finding in found if not rule or finding.rule == rule), None)
            if wanted is not None:
                also = sorted({finding.rule for finding in found} - {wanted.rule})
                return Control(name, rule, index + 1, wanted, tuple(also))
    finally:
        engine.close()
    return Control(name, rule, scenarios, None, could_not_run=could_not_run)
