"""The recall over public bugs, as ``selftest --bugs`` prints it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import click

from fuzz.bugs import BUGS, Bug, Recall, fuzz_alone, recall
from fuzz.commands.common import print_json
from fuzz.engines.names import SUPPORTED_RELEASES
from fuzz.engines.open import Prepared, prepare_engine
from fuzz.findings import kvoracle_version

ENGINES_AT_ONCE = 2
"""Each takes a core and about 600 MB."""


def run_bugs(seed: int, fuzz_seconds: float | None, as_json: bool) -> int:
    """Print the table; gives how many bugs were missed or alarmed of where they are not."""
    click.echo(f"kvoracle {kvoracle_version()}, seed {seed}, releases {', '.join(SUPPORTED_RELEASES)}\n", err=as_json)
    engines = {
        release: prepare_engine(f"vllm=={release}", say=lambda text: click.echo(text, err=True))
        for release in SUPPORTED_RELEASES
    }
    with ThreadPoolExecutor(ENGINES_AT_ONCE) as pool:
        results = [result for found in pool.map(lambda one: list(recall(one)), engines.values()) for result in found]
        rows = [_row(bug, [result for result in results if result.bug == bug.name]) for bug in BUGS]
        if fuzz_seconds is not None:
            jobs = {
                bug.name: pool.submit(_alone, bug, rows[n], engines, fuzz_seconds, seed) for n, bug in enumerate(BUGS)
            }
            for row in rows:
                row["alone"] = jobs[row["bug"]].result()
    if as_json:
        print_json({"seed": seed, "bugs": rows})
    else:
        for row in rows:
            click.echo("\n".join(_lines(row)))
    return sum(bool(row["wrong"]) for row in rows)


def _row(bug: Bug, results: list[Recall]) -> dict[str, Any]:
    """One bug over all releases."""
    return {
        "bug": bug.name,
        "threads": list(bug.threads),
        "rules": sorted(bug.rules),
        "found": [r.release for r in results if r.present and r.found],
        "missed": [r.release for r in results if r.present and not r.found],
        "silent": [r.release for r in results if r.present is False and r.judged and not r.found],
        "not judged": [r.release for r in results if r.present is False and not r.judged],
        "refused": [r.release for r in results if r.present is None],
        "wrong": [r.release for r in results if not r.passed],
        "could_not_run": {r.release: r.could_not_run for r in results if r.could_not_run},
        "alone": None,
    }


def _alone(
    bug: Bug, row: dict[str, Any], engines: dict[str, Prepared], seconds: float, seed: int
) -> dict[str, Any] | None:
    """How long fuzzing takes to find a bug without its vector, on the newest release that has it; None for none."""
    present = [*row["found"], *row["missed"]]
    if bug.silent or not present:
        return None
    release = max(present, key=SUPPORTED_RELEASES.index)
    took, scenarios = fuzz_alone(engines[release], bug, seconds, seed)
    return {"release": release, "seconds": took, "scenarios": scenarios}


def _lines(row: dict[str, Any]) -> list[str]:
    """A row as text."""
    word = "WRONG" if row["wrong"] else "ok"
    threads = f" ({', '.join(map(str, row['threads']))})" if row["threads"] else ""
    lines = [f"{word:<7}{row['bug']}{threads}, by {' '.join(row['rules'])}"]
    for head in ("found", "missed", "silent", "not judged", "refused"):
        if row[head]:
            lines.append(f"       {head:<10} {' '.join(row[head])}")
    lines += [f"       could not run on {release}: {why}" for release, why in row["could_not_run"].items()]
    if alone := row["alone"]:
        took = "not found" if alone["seconds"] is None else f"found in {alone['seconds']:.0f} s"
        lines.append(f"       alone      {took} by fuzzing {alone['release']}, {alone['scenarios']:,} scenarios")
    return lines
