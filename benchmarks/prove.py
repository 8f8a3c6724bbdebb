"""How fast the prover is, on a few tasks, and what it gains by more processes and by what it kept.

python benchmarks/prove.py
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import click

from reference.policy import POLICIES
from spec.cache import Cache
from spec.plan import cost
from spec.run import Done, Options, run_tasks
from spec.subjects import FEATURE_SETS, SIZES
from spec.task import Task

FEATURES = ("plain", "lookahead 1", "lookahead any", "checkpoints of a token", "partial hits, lookahead 1")


def timed(tasks: list[Task], options: Options) -> tuple[list[Done], float]:
    """All results, and the time that they took."""
    began = time.perf_counter()
    done = sorted(run_tasks(tasks, options, cost), key=lambda one: one.place)
    return done, time.perf_counter() - began


@click.command()
@click.option("--release", default="0.33.0", show_default=True)
@click.option("--sizes", default="16/4", show_default=True)
@click.option("--jobs", type=click.IntRange(min=1), default=os.cpu_count() or 1, show_default=True)
def main(release: str, sizes: str, jobs: int) -> None:
    """Print paths and questions a second by task, and the gain of several processes and of kept results."""
    tasks = [
        Task(subject="split", release=release, sizes=sizes, features=features)
        for features in FEATURES
        if FEATURE_SETS[features].exist_in(POLICIES[release], SIZES[sizes])
    ]
    with tempfile.TemporaryDirectory() as folder:
        alone, single = timed(tasks, Options(1, cache=Cache(Path(folder))))
        _, several = timed(tasks, Options(jobs))
        kept, warm = timed(tasks, Options(jobs, cache=Cache(Path(folder))))
    for one in alone:
        result = one.result
        paths, questions = result.paths / result.seconds, result.queries / result.seconds
        click.echo(
            f"{one.task.name:<48} {result.seconds:6.1f} s  {paths:7,.0f} paths/s  {questions:7,.0f} questions/s"
            f"  {questions / paths:4.1f} questions a path"
        )
    inside = sum(one.result.seconds for one in alone)
    click.echo(f"around the proofs (processes, keys, keeping): {100 * (single - inside) / single:.1f}% of the time")
    click.echo(f"{jobs} processes: {single / several:.2f} times as fast as one")
    reused = sum(one.reused for one in kept)
    click.echo(f"kept results ({reused} of {len(kept)} tasks): {several / warm:.0f} times as fast")


if __name__ == "__main__":
    main()
