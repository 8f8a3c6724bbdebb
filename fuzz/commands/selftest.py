"""``kvoracle selftest``: does every rule find what was planted for it, and nothing else?"""

from __future__ import annotations

import os
import time

import click
from click.core import ParameterSource

from fuzz.commands.bug_table import run_bugs
from fuzz.commands.common import CLEAN, FINDINGS, Duration, Problem, json_option, leave, print_json
from fuzz.compiled import judge_kind
from fuzz.findings import kvoracle_version
from fuzz.selftest import SCENARIOS, SEED, Control, controls, run_controls
from reference.rules import RULES

COMMAND_LINE = ParameterSource.COMMANDLINE


@click.command()
@click.option("--seed", type=click.IntRange(min=0), default=SEED, show_default=True)
@click.option("--scenarios", type=click.IntRange(min=1), default=SCENARIOS, show_default=True)
@click.option("--workers", type=click.IntRange(min=1), help="Default: one a core.")
@click.option("--matrix", is_flag=True, help="Print which rules speak about which planted fault.")
@click.option("--bugs", is_flag=True, help="Instead: are public bugs found on the releases that have them?")
@click.option(
    "--time", "fuzz_seconds", type=Duration(), help="With --bugs: also fuzz for each bug alone, at most so long."
)
@json_option
def selftest(
    seed: int,
    scenarios: int,
    workers: int | None,
    matrix: bool,
    bugs: bool,
    fuzz_seconds: float | None,
    as_json: bool,
) -> None:
    """Run every planted fault and the conforming engine on the same scenarios.

    Exit status: 0 every fault was found by its rule and the conforming engine gave no finding; 1 otherwise. With
    --bugs: 0 every public bug was found on the releases that have it, and on no other.
    """
    if bugs:
        _refuse_with_bugs()
        leave(FINDINGS if run_bugs(seed, fuzz_seconds, as_json) else CLEAN)
    if fuzz_seconds is not None:
        raise Problem("--time says how long to fuzz for each public bug: add --bugs")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    click.echo(
        f"kvoracle {kvoracle_version()}, seed {seed}, at most {scenarios} scenarios each, {judge_kind()} judge\n",
        err=as_json,
    )
    started = time.monotonic()
    results = []
    for control in run_controls(controls(), seed=seed, scenarios=scenarios, workers=workers or cores):
        results.append(control)
        if not as_json and not matrix:
            click.echo(_line(control))
    if matrix and not as_json:
        click.echo("\n".join(_matrix(results)))
    missed = [control for control in results if not control.passed]
    seconds = time.monotonic() - started
    if as_json:
        print_json({"seed": seed, "controls": results, "missed": [c.name for c in missed], "seconds": seconds})
    elif missed:
        click.echo(f"\n{len(missed)} of {len(results)} controls failed: {', '.join(c.name for c in missed)}")
    else:
        click.echo(f"\nall {len(results)} controls hold")
    click.echo(f"{seconds:.1f} s", err=True)
    leave(FINDINGS if missed else CLEAN)


def _refuse_with_bugs() -> None:
    """Say so where an option was given that says nothing to --bugs."""
    context = click.get_current_context()
    given = [name for name in ("scenarios", "workers", "matrix") if context.get_parameter_source(name) is COMMAND_LINE]
    if given:
        raise Problem(f"--bugs runs scenarios of its own, in one process: leave out --{given[0]}")


def _line(control: Control) -> str:
    word = "ok" if control.passed else "MISSED" if control.rule else "FALSE ALARM"
    if control.could_not_run:
        return f"{word:<11}  {control.name:<32}  could not run {control.could_not_run}"
    if not control.rule:
        found = f"{control.finding.rule}: {control.finding.reason}" if control.finding else "no finding"
        return f"{word:<11}  {control.name:<32}  {found} in {control.scenarios} scenarios"
    if control.finding is None:
        return f"{word:<11}  {control.name:<32}  {control.rule} said nothing in {control.scenarios} scenarios"
    also = f", with {' '.join(control.also)}" if control.also else ""
    return f"{word:<11}  {control.name:<32}  {control.rule} in scenario {control.scenarios - 1}{also}"


def _matrix(results: list[Control]) -> list[str]:
    """Rows are faults, columns rules: ``X`` the rule that must find the fault, ``+`` others that speak beside it."""
    rules = [rule for rule in RULES if any(rule in (control.rule, *control.also) for control in results)]
    width = max(len(control.name) for control in results)
    lines = [" " * width + "  " + " ".join(f"{rule:<2}" for rule in rules)]
    for control in results:
        spoke = control.finding is not None
        marks = ["X" if rule == control.rule and spoke else "+" if rule in control.also else "." for rule in rules]
        lines.append(f"{control.name:<{width}}  " + " ".join(f"{mark:<2}" for mark in marks).rstrip())
    return lines
