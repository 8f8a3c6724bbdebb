"""Where the time of a campaign goes, on a fixed set of scenarios, and what a second worker brings.

    python benchmarks/cost.py --engine vllm==0.33.0

Every scenario is run with recording on and off, one right after the other and in turns first, so that what
observation costs is the difference on the same work and is not booked as the engine's. CPU time of the
engine's process is the system's own count; the driver's clocks split it further. All of it is done once with the
judge interpreted and, where it was compiled (``kvoracle compile``), once with that.
"""

from __future__ import annotations

import datetime
import os
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from multiprocessing import get_context
from pathlib import Path

import click
import msgspec

from fuzz.campaign import Campaign, Settings
from fuzz.compiled import compiled_first, compiled_judge
from fuzz.engines.open import Prepared, open_prepared, prepare_engine
from fuzz.engines.protocol import Engine
from fuzz.sources import Scenarios, scenario_source
from fuzz.supported import unsupported, withheld
from fuzz.worker import BATCH_SCENARIOS, settle, share_core
from oracle.judge import judge_lines
from oracle.scenario import Scenario

SEED = 2026
WARM_UP = 25


class Cost(msgspec.Struct):
    """CPU seconds by phase. ``driver``: the loop around the engine and its fake worker."""

    steps: int = 0
    construction: float = 0.0
    calls: float = 0.0
    driver: float = 0.0
    observation: float = 0.0
    transport: float = 0.0
    judge: float = 0.0
    generation: float = 0.0

    @property
    def whole(self) -> float:
        """All of it."""
        return sum(getattr(self, phase) for phase in PHASES)


PHASES = ("construction", "calls", "driver", "observation", "transport", "judge", "generation")


class Process:
    """CPU seconds of the engine's process so far (0 for an engine in this process)."""

    def __init__(self) -> None:
        children = Path("/proc/self/task").glob("*/children")
        pids = [pid for file in children for pid in file.read_text().split()]
        self._stat = Path(f"/proc/{pids[0]}/stat") if pids else None

    def seconds(self) -> float:
        if self._stat is None:
            return 0.0
        fields = self._stat.read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def generate(prepared: Prepared, number: int) -> tuple[list[Scenario], float]:
    """The fixed set, and the CPU seconds that it took to make it."""
    source = scenario_source(Scenarios(seed=SEED, without=withheld(prepared)))
    refused = unsupported(prepared)
    scenarios: list[Scenario] = []
    spent, index = 0.0, 0
    while len(scenarios) < number:
        started = time.process_time()
        scenario = source(index)
        spent += time.process_time() - started
        index += 1
        if not refused(scenario):
            scenarios.append(scenario)
    return scenarios, spent


def measure(engine: Engine, scenarios: list[Scenario]) -> Cost:
    """Run the set in both ways, batch by batch as a worker does, and split the time."""
    process, cost = Process(), Cost()
    silent_total = recorded_total = recorded_transport = 0.0
    batches = [scenarios[at : at + BATCH_SCENARIOS] for at in range(0, len(scenarios), BATCH_SCENARIOS)]
    for number, batch in enumerate(batches):
        for record in (True, False) if number % 2 else (False, True):
            theirs, ours = process.seconds(), time.process_time()
            runs = [engine.run(scenario, record=record) for scenario in batch]
            ours, theirs = time.process_time() - ours, process.seconds() - theirs
            transport = sum(run.cpu.get("transport", 0.0) for run in runs)
            if record:
                recorded_total += theirs
                recorded_transport += transport
                cost.transport += transport + ours
                started = time.process_time()
                cost.steps += sum(judge_lines(run.lines, engine.release).steps for run in runs)
                cost.judge += time.process_time() - started
            else:
                silent_total += theirs - transport
                cost.construction += sum(run.cpu["construct"] for run in runs)
                cost.calls += sum(run.cpu["calls"] for run in runs)
    cost.observation = max(0.0, recorded_total - recorded_transport - silent_total)
    cost.driver = max(0.0, silent_total - cost.construction - cost.calls)
    return cost


def cost_of(name: str, number: int) -> Cost:
    """What a worker does on its core, with whichever judge this process has."""
    prepared = prepare_engine(name)
    drawn, generation = generate(prepared, number)
    core = min(os.sched_getaffinity(0))
    share_core(core)
    engine = open_prepared(prepared, core=core)
    settle()
    try:
        for scenario in drawn[:WARM_UP]:
            engine.run(scenario)
        cost = measure(engine, drawn)
    finally:
        engine.close()
    cost.generation = generation
    return cost


def in_a_worker(name: str, number: int, judge: AbstractContextManager[None]) -> Cost:
    """``cost_of`` in a process that starts as a worker does."""
    with judge, ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(cost_of, name, number).result()


def wall_seconds(prepared: Prepared, number: int, workers: int) -> float:
    """The time that a campaign of ``number`` scenarios takes, engine load left out."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(
            source=Scenarios(seed=SEED, without=withheld(prepared)),
            workers=workers,
            scenarios=number,
            seconds=None,
            rules=None,
            folder=Path(folder),
            today=datetime.datetime.now(datetime.UTC).date(),
            attempts=1,
        )
        return Campaign(prepared, settings).run().clock.fuzzing


def print_cost(judge: str, cost: Cost) -> None:
    """CPU time by phase, and the shares that have limits."""
    click.echo(f"judge {judge}, {cost.steps:,} steps")
    for phase in PHASES:
        seconds = getattr(cost, phase)
        share = 100 * seconds / cost.whole
        click.echo(f"  {phase:<14} {1e6 * seconds / cost.steps:8.1f} us a step  {share:5.1f}%")
    engine_share = (cost.calls + cost.construction) / (cost.whole - cost.generation)
    click.echo(f"  engine calls and construction, without generation: {100 * engine_share:.1f}% (at least 50%)")
    click.echo(f"  generation, of the whole: {100 * cost.generation / cost.whole:.1f}% (at most 15%)")


@click.command()
@click.option("--engine", "name", default="vllm==0.33.0", show_default=True)
@click.option("--scenarios", type=click.IntRange(min=1), default=500, show_default=True)
@click.option("--no-workers", is_flag=True, help="Leave out the comparison of one worker with two.")
def main(name: str, scenarios: int, no_workers: bool) -> None:
    """Print CPU time a step by phase, the shares that have limits, and the gain of two workers."""
    prepared = prepare_engine(name)
    costs = {"interpreted": in_a_worker(name, scenarios, nullcontext())}
    if compiled_judge() is None:
        click.echo("the judge is not compiled (kvoracle compile); the limits are those of a compiled one")
    else:
        costs["compiled"] = in_a_worker(name, scenarios, compiled_first())
    click.echo(f"{prepared.label}, {scenarios} scenarios of seed {SEED}, one core")
    for judge, cost in costs.items():
        print_cost(judge, cost)
    if not no_workers:
        one, two = (wall_seconds(prepared, scenarios, workers) for workers in (1, 2))
        click.echo(f"one worker {one:.1f} s, two workers {two:.1f} s: {one / two:.2f} times (at least 1.7)")


if __name__ == "__main__":
    main()
