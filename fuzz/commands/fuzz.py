"""``kvoracle fuzz``: make scenarios, run them on an engine, judge, shrink what is found."""

from __future__ import annotations

import datetime
import os
import secrets
import time
from pathlib import Path
from typing import Any

import click

from fuzz.campaign import Campaign, Settings, State
from fuzz.commands.common import (
    Duration,
    Problem,
    engine_options,
    folder_option,
    json_option,
    leave,
    prepared_engine,
    print_json,
    rule_option,
    rules,
    split_names,
)
from fuzz.engines.open import Prepared
from fuzz.findings import check_writable, engine_folder, finding_document, kvoracle_version
from fuzz.generator import UnknownFeature, swarm_at
from fuzz.known import load_known
from fuzz.live import display
from fuzz.report import heading, summary_text
from fuzz.sources import Scenarios
from fuzz.supported import withheld

DEFAULT_SECONDS = 60.0
_WORKERS_MAX = 4
"""More are used only when asked for: each keeps an engine of some 600 MB."""


@click.command()
@engine_options()
@click.option("--time", "seconds", type=Duration(), help="Stop after this time (90s, 10m). Default 60s.")
@click.option("--scenarios", type=click.IntRange(min=1), metavar="N", help="Stop after N scenarios.")
@click.option("--seed", type=click.IntRange(min=0), metavar="N", help="Where to begin. Default: drawn, and printed.")
@click.option("--workers", type=click.IntRange(1, 256), metavar="N", help="Default: one a core, at most 4.")
@rule_option
@click.option(
    "--only",
    multiple=True,
    metavar="FEATURE",
    help="Use just these (see kvoracle features; repeat, or join by commas).",
)
@click.option("--without", multiple=True, metavar="FEATURE", help="Leave these features out.")
@click.option("--backend", type=click.Choice(["seeded", "hypothesis"]), default="seeded", show_default=True)
@click.option(
    "--against",
    type=click.Choice(["reference"]),
    help="Run every scenario on the reference engine, too, and compare what the decisions cost.",
)
@click.option("--known", "known_file", type=click.Path(dir_okay=False), help="Findings that are expected (TOML).")
@folder_option
@json_option
def fuzz(
    engine: str,
    policy: str | None,
    torch_index: str | None,
    allow_cuda: bool,
    seconds: float | None,
    scenarios: int | None,
    seed: int | None,
    workers: int | None,
    rule_names: tuple[str, ...],
    only: tuple[str, ...],
    without: tuple[str, ...],
    backend: Any,
    against: str | None,
    known_file: str | None,
    folder: str,
    as_json: bool,
) -> None:
    """Look for scenarios in which an engine breaks a rule.

    Exit status: 0 no finding, 1 findings, 2 could not judge. What --against tells does not change it.

    \b
    A file for --known holds one table per expected finding:
      [[known]]
      signature = ["S2", "split", "full+mamba"]
      scenario = "s2.json"          # a file beside this one, or the JSON itself
      reason = "fixed in 0.27"
      report = "https://github.com/vllm-project/vllm/issues/43559"
      expires = 2026-12-31
    An entry excuses its signature only if its scenario, which is run again, still shows it.
    """
    only, without = split_names(only), split_names(without)
    swarm_at(0, 0, only=only, without=without)  # raises what is wrong with them
    wanted_rules = rules(rule_names)
    known = load_known(Path(known_file)) if known_file else ()
    check_writable(engine_folder(Path(folder), engine))
    started = time.monotonic()
    prepared = prepared_engine(engine, policy, torch_index, allow_cuda)
    setup = time.monotonic() - started
    settings = Settings(
        source=Scenarios(
            seed=secrets.randbelow(1 << 31) if seed is None else seed,
            only=only,
            without=_left_out(prepared, only, without),
            backend=backend,
        ),
        workers=workers or _default_workers(scenarios),
        scenarios=scenarios,
        seconds=DEFAULT_SECONDS if seconds is None and scenarios is None else seconds,
        rules=wanted_rules,
        folder=Path(folder),
        known=known,
        today=datetime.datetime.now(datetime.UTC).date(),
        against=prepared.release if against else None,
    )
    if against and prepared.release is None:
        raise Problem("--against reference: the reference engine follows a policy, and --policy none says none")
    if backend == "hypothesis" and settings.source.seed >= 1 << 64:
        raise Problem("--seed: with --backend hypothesis a seed has at most 64 bits")
    _run(prepared, settings, setup, as_json)


def _left_out(prepared: Prepared, only: tuple[str, ...], without: tuple[str, ...]) -> tuple[str, ...]:
    """``without`` and what the build never runs. Raises Problem if ``only`` cannot do without the latter."""
    never = withheld(prepared)
    if refused := [name for name in only if name in never]:
        raise Problem(f"--only {','.join(refused)}: {prepared.label} never runs that; name another --engine or feature")
    left_out = without + tuple(name for name in never if name not in without)
    try:
        swarm_at(0, 0, only=only, without=left_out)
    except UnknownFeature as error:
        raise Problem(f"{error} ({prepared.label} never runs {', '.join(never)})") from error
    return left_out


def _run(prepared: Prepared, settings: Settings, setup: float, as_json: bool) -> None:
    with display() as watch:
        campaign = Campaign(prepared, settings, watch)
        campaign.state.clock.setup = setup
        # Before anything can go wrong: whoever sees it fail must be able to do it again.
        click.echo(heading(campaign.state) + "\n", err=as_json)
        state = campaign.run()
    if as_json:
        print_json(summary_document(state))
    elif state.found or state.tally.made:
        click.echo(summary_text(state))
    if state.traceback:
        click.echo(state.traceback, err=True)
    if not state.found and state.could_not_judge:
        click.echo(f"kvoracle: could not judge: {state.could_not_judge}", err=True)
    leave(state.exit_status)


def _default_workers(scenarios: int | None) -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, _WORKERS_MAX, scenarios or _WORKERS_MAX))


def summary_document(state: State) -> dict[str, Any]:
    """The summary as data. What differs from run to run (times) is in ``clock`` and ``cpu_seconds`` alone."""
    prepared, settings, tally = state.prepared, state.settings, state.tally
    return {
        "kvoracle": kvoracle_version(),
        "judge": state.judge,
        "engine": {
            "name": prepared.name.typed,
            "version": prepared.version,
            "runner": tally.runner,
            "policy": prepared.release,
            "notes": prepared.notes,
        },
        "settings": {
            "source": settings.source,
            "workers": settings.workers,
            "scenarios": settings.scenarios,
            "seconds": settings.seconds,
            "rules": sorted(settings.rules) if settings.rules is not None else None,
        },
        "scenarios": tally.scenarios,
        "skipped": tally.skipped,
        "could_not_run": tally.could_not_run,
        "kvoracle_failed": tally.ours,
        "kvoracle_failed_on": [str(path) for path in state.faults],
        "features": tally.features,
        "steps": tally.steps,
        "records": tally.records,
        "repeated": tally.repeated,
        "twins": tally.twins,
        "digest": f"{tally.digest:016x}",
        "judged": tally.judged,
        "unjudged": tally.unjudged,
        "allowed": tally.allowed,
        "coverage": tally.coverage,
        "against": tally.against.document() if settings.against is not None else None,
        "findings": [{"path": str(state.paths[s]), **finding_document(state.found[s])} for s in sorted(state.found)],
        "known": [
            {"signature": s, "status": status, "scenarios": tally.signatures.get(s, 0)}
            for s, status in state.known.items()
        ],
        "interrupted": state.interrupted,
        "could_not_judge": state.could_not_judge,
        "exit_status": state.exit_status,
        "clock": state.clock,
        "cpu_seconds": tally.seconds,
    }
