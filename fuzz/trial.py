"""One trial: a scenario given to an engine, and the judge's verdict on what the engine did."""

from __future__ import annotations

import time
from collections.abc import Collection
from itertools import zip_longest
from typing import Any

import msgspec

from fuzz.engines.conforming import REFERENCE
from fuzz.engines.protocol import Engine, Run
from fuzz.limits import allow_limits
from fuzz.twins import TWIN_RULES, fits, judge_twins, run_twins
from oracle.geometry import geometry_class
from oracle.judge import judge_lines
from oracle.scenario import Scenario
from oracle.verdict import Finding, Verdict

Rules = frozenset[str] | None
"""The rules to judge by; None means all of them."""

DRIVER_FAULT = "driver:"
"""How ``where`` of a crash record begins when the driver failed: our fault, hence no finding."""

_UNREPEATABLE = ("hang", "died", "memory")
"""Kinds of crash that are not run again to compare traces: they take long, or depend on the machine."""

_decoder = msgspec.json.Decoder()


class Trial(msgspec.Struct):
    """What came of one trial.

    ``could_not_run``: why there is nothing to judge, empty when there is; ``ours``: because the driver or the
    judge failed. ``seconds``: CPU seconds by phase; those of the engine's process are the engine's own
    figures. ``repeated``: it was run twice.
    """

    lines: list[bytes]
    verdict: Verdict
    could_not_run: str = ""
    seconds: dict[str, float] = msgspec.field(default_factory=dict)
    repeated: bool = False
    ours: bool = False

    @property
    def runner(self) -> str:
        """The model-runner flavour that the trace's header names; empty without a trace."""
        return str(_decoder.decode(self.lines[0]).get("runner", "")) if self.lines else ""


class Ran(msgspec.Struct):
    """A scenario that an engine ran, not judged yet. ``again``: the second trace, where it was run twice."""

    scenario: Scenario
    run: Run
    seconds: dict[str, float]
    again: list[bytes] | None = None


def run_scenario(engine: Engine, scenario: Scenario, rules: Rules = None, *, repeat: bool = False) -> Ran:
    """Run the scenario; ``repeat`` runs it a second time on the same engine, for D1 to compare."""
    started = time.process_time()
    run = engine.run(scenario)
    ran = Ran(scenario, run, _engine_seconds(run, time.process_time() - started))
    wanted = repeat and (rules is None or "D1" in rules) and not _could_not_run(run)
    if wanted and crash_kind(run.lines) not in _UNREPEATABLE:
        ran.again = engine.run(scenario).lines
    return ran


def judge_run(ran: Ran, release: str | None, rules: Rules = None) -> Trial:
    """Judge what an engine did by ``rules``, and compare the two traces of a scenario that was run twice.

    A difference is a D1 finding. Whatever the engine did is in the result.
    """
    lines, seconds = ran.run.lines, ran.seconds
    if reason := _could_not_run(ran.run):
        return Trial(lines, Verdict(), reason, seconds, ours=_is_driver_fault(_crash(lines)))
    started = time.process_time()
    try:
        verdict = judge_lines(lines, release, rules)
        if release is not None and is_reference(lines):
            allow_limits(verdict, ran.scenario, release)
    except Exception as error:  # one trace that the judge cannot digest must not end a campaign
        return Trial(lines, Verdict(), f"the judge failed: {type(error).__name__}: {error}", seconds, ours=True)
    seconds["judge"] = time.process_time() - started
    if ran.again is not None:
        verdict.judged["D1"] = verdict.judged.get("D1", 0) + 1
        if found := first_difference(lines, ran.again, geometry_class(ran.scenario)):
            verdict.findings.append(found)
    return Trial(lines, verdict, "", seconds, ran.again is not None)


def try_scenario(
    engine: Engine,
    scenario: Scenario,
    rules: Rules = None,
    *,
    compared: Collection[str] = (),
) -> Trial:
    """Run the scenario and judge its trace by ``rules``.

    ``compared``: those of ``rules`` to judge it by that compare two runs (others are ignored): D1, and metamorphic
    rules where they apply to the scenario as it is.
    """
    ran = run_scenario(engine, scenario, rules, repeat="D1" in compared)
    trial = judge_run(ran, engine.release, rules)
    for rule in sorted(TWIN_RULES.intersection(compared)):
        if not trial.could_not_run and fits(rule, scenario, ran.run):
            pair = run_twins(engine, rule, scenario, ran.run)
            if pair is not None:
                trial.verdict.add(judge_twins(pair))
    return trial


def try_twins(engine: Engine, scenario: Scenario, rule: str) -> Trial | None:
    """Run a scenario, arranged for a metamorphic rule, and judge it by this rule alone; None where that cannot be."""
    pair = run_twins(engine, rule, scenario, engine.run(scenario))
    return None if pair is None else Trial(pair.run.lines, judge_twins(pair))


def is_reference(lines: list[bytes]) -> bool:
    """Whether a trace is the reference engine's, which does what the release's policy says."""
    return bool(_decoder.decode(lines[0]).get("engine") == REFERENCE)


def crash_kind(lines: list[bytes]) -> str:
    """The kind of the crash that ends a trace, empty when none does."""
    crash = _crash(lines)
    return crash[1] if crash else ""


def first_difference(first: list[bytes], second: list[bytes], geometry: str) -> Finding | None:
    """The D1 finding that two traces of one scenario give: the first record in which they differ."""
    step = record = 0
    for number, (one, other) in enumerate(zip_longest(first, second, fillvalue=b"[]")):
        if number == 0:
            if one != other:
                return _not_the_same("header", geometry, 0, 0, one.decode(), other.decode())
            continue
        ours, theirs = _decoder.decode(one), _decoder.decode(other)
        for mine, yours in zip_longest(ours, theirs):
            if mine != yours:
                decision = str((mine or yours)[0])
                return _not_the_same(decision, geometry, step, record, _text(mine), _text(yours))
            record += 1
            step = mine[1] if mine[0] == "step" else step
    return None


def _not_the_same(decision: str, geometry: str, step: int, record: int, first: str, second: str) -> Finding:
    return Finding(
        rule="D1",
        decision=decision,
        geometry=geometry,
        step=step,
        record=record,
        expected=first[:400],
        actual=second[:400],
        reason=(
            f"Let the same scenario run twice on one engine. Then both give the same {decision} records,"
            f" because nothing in it is drawn while it runs. However, record {record} is another one."
        ),
    )


def _text(record: Any) -> str:
    return "nothing" if record is None else msgspec.json.encode(record).decode()


def _engine_seconds(run: Run, ours: float) -> dict[str, float]:
    """CPU seconds of a run by phase. An engine in another process has transport, of which a part is ours."""
    seconds = dict(run.cpu)
    if "transport" in seconds:
        seconds["transport"] += ours
    return seconds


def _could_not_run(run: Run) -> str:
    if run.refused:
        return f"refused: {run.refused}"
    if not run.lines:
        return "the engine gave no trace"
    crash = _crash(run.lines)
    if crash and _is_driver_fault(crash):
        return f"the driver failed in {crash[2].removeprefix(DRIVER_FAULT).strip()}: {crash[3]}"
    if crash and len(run.lines) == 1:
        # Without a header there is no telling what was built, so no rule can be applied.
        return f"{crash[1]} before the trace began: {crash[3]}"
    return ""


def _is_driver_fault(crash: list[str] | None) -> bool:
    return crash is not None and crash[2].startswith(DRIVER_FAULT)


def _crash(lines: list[bytes]) -> list[str] | None:
    """The crash record that ends a trace. Only the last line is decoded: traces are long, crashes rare."""
    if not lines or b'"crash"' not in lines[-1]:
        return None
    last = _decoder.decode(lines[-1])
    records = last if isinstance(last, list) else []
    return records[-1] if records and records[-1][0] == "crash" else None
