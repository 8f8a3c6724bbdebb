"""Runs the two scenarios of a metamorphic rule on one engine, and judges what they have to have in common."""

from __future__ import annotations

import msgspec

from fuzz.engines.protocol import Engine, Run
from fuzz.metamorphic import RELATIONS, Compared, Sides
from oracle.compare import records_of
from oracle.geometry import geometry_class
from oracle.scenario import Scenario
from oracle.validate import check
from oracle.verdict import Finding, Verdict

TWIN_RULES = frozenset(RELATIONS)

_decoder = msgspec.json.Decoder()


class Twins(msgspec.Struct):
    """A scenario and its twin, both run. ``seconds``: CPU seconds of the runs that were made for the rule alone."""

    rule: str
    scenario: Scenario
    run: Run
    twin: Scenario
    twin_run: Run
    seconds: float


def run_twins(engine: Engine, rule: str, scenario: Scenario, run: Run) -> Twins | None:
    """Arrange a scenario, which gave ``run``, for a rule, and run it and its twin. None where that cannot be."""
    arranged = _arranged(rule, scenario, run)
    if arranged is None:
        return None
    seconds = 0.0
    if arranged != scenario:
        run = engine.run(arranged)
        seconds += sum(run.cpu.values())
    twin = RELATIONS[rule].twin(arranged)
    if not _ran_through(run) or check(twin):
        return None
    twin_run = engine.run(twin)
    if twin_run.refused or not twin_run.lines:
        return None
    return Twins(rule, arranged, run, twin, twin_run, seconds + sum(twin_run.cpu.values()))


def fits(rule: str, scenario: Scenario, run: Run) -> bool:
    """Whether a scenario, which gave ``run``, can be judged by the rule as it is."""
    return _arranged(rule, scenario, run) == scenario


def judge_twins(twins: Twins) -> Verdict:
    """Compare the two runs."""
    sides = Sides(twins.scenario, records_of(twins.run.lines), twins.twin, records_of(twins.twin_run.lines))
    compared = RELATIONS[twins.rule].compare(sides)
    verdict = Verdict()
    if compared.number:
        verdict.judged[twins.rule] = compared.number
    if compared.allowed:
        verdict.allowed[compared.allowed] = 1
    if compared.difference is not None:
        verdict.findings.append(_finding(twins, compared))
    return verdict


def _arranged(rule: str, scenario: Scenario, run: Run) -> Scenario | None:
    if not _ran_through(run):
        return None
    arranged = RELATIONS[rule].arrange(scenario, run.lines)
    return None if arranged is None or check(arranged) else arranged


def _ran_through(run: Run) -> bool:
    """Whether a run came to its end; a crash is a finding of its own."""
    last = _decoder.decode(run.lines[-1]) if run.lines else []
    return isinstance(last, list) and bool(last) and last[-1][0] == "end"


def _finding(twins: Twins, compared: Compared) -> Finding:
    found = compared.difference
    assert found is not None
    return Finding(
        rule=twins.rule,
        decision=found.decision,
        geometry=geometry_class(twins.scenario),
        step=found.step,
        record=found.record,
        expected=found.expected[:400],
        actual=found.actual[:400],
        reason=(
            f"Let the scenario run, and beside it its twin; {found.why}. Then the scenario has {found.actual[:400]}. "
            f"However, its twin has {found.expected[:400]}."
        ),
        request=found.request,
    )
