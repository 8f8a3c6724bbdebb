"""Whether the judge is linear, how fast it is, and whether its memory follows what is alive: on traces of a long run.

    python benchmarks/judge.py --engine vllm==0.33.0

A *record*, here, is one lookup, split, allocation, commit, copy, eviction, preemption or free: a decision. The other
entries of a trace (arrivals, steps, outputs, tables, …) are judged in the same time and are not counted.

Each trace is one run of one engine. Its geometry, limits and features are those of a scenario of a default campaign,
and it is sent the requests of many such scenarios, drawn for that geometry, one lot after the other: so cache, free
list and promises are alive all the time, and requests are as many as the engine can serve. All rules are on. A trace is
judged up to so many records, as it is read from a file, each length in a process of its own: by the compiled judge,
where there is one (``kvoracle compile``).

The header names the first lot of requests only: whoever records a live engine does not know what will come. That
leaves out the priority policy, whose priorities stand in the scenario.
"""

from __future__ import annotations

import itertools
import math
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import click
import msgspec

from fuzz.compiled import compiled_first, judge_kind
from fuzz.draw import SeededDraw
from fuzz.engines.open import Prepared, prepare_engine
from fuzz.engines.process import VllmEngine
from fuzz.engines.protocol import Engine
from fuzz.generator import SWARM_SCENARIOS, Swarm, scenario_at, swarm_at
from fuzz.supported import unsupported, withheld
from fuzz.traces import TraceFile
from fuzz.worker import settle
from fuzz.workload import draw_jobs, draw_steps, sizes
from oracle import trace
from oracle.geometry import geometry_class, scheduler_block
from oracle.judge import Judge, read_header
from oracle.scenario import Request, Scenario, Step
from oracle.validate import blocks_for_request

SEED = 2026
REPEATS = (9, 3, 1)
"""How often each length is judged, the shortest first; the median counts. A short one is soon disturbed."""
RUN_SECONDS = 7200.0
LOTS_TRIED = 100
"""So many lots of requests tell how many records a lot gives."""

COST_RATIO_MAX = 1.2
RECORDS_A_SECOND_MIN = 30_000
MEMORY_RATIO_MAX = 1.5

_KINDS = frozenset({"lookup", "split", "allocate", "commit", "evict", "preempt", "free"})
_SHARED_STREAMS = frozenset({"sys", "doc"})


class Measured(msgspec.Struct):
    """One judgement. ``entries``: all that the trace holds; ``memory``: growth of the process in MB, at its highest.

    ``unfinished``: the most requests that the engine had at once, by its own count.
    """

    seconds: float
    records: int
    entries: int
    memory: float
    unfinished: int
    alive: dict[str, int]
    findings: int


# --- long traces --------------------------------------------------------------------------------------


def templates(prepared: Prepared, number: int) -> Iterator[tuple[int, Scenario, Swarm]]:
    """The first scenarios of a default campaign's swarms that run under fcfs, each of a geometry class of its own."""
    without, refused = withheld(prepared), unsupported(prepared)
    seen: set[str] = set()
    for index in itertools.count(0, SWARM_SCENARIOS):
        scenario = scenario_at(SEED, index, without=without)
        shape = geometry_class(scenario)
        if scenario.features.policy == "fcfs" and shape not in seen and not refused(scenario):
            seen.add(shape)
            yield index, scenario, swarm_at(SEED, index, without=without)
        if len(seen) == number:
            return


def long_scenario(template: Scenario, swarm: Swarm, lots: int) -> Scenario:
    """The template with the requests of so many scenarios, each lot arriving when the one before should be over."""
    geometry, limits, features = template.geometry, template.limits, template.features
    blocks = [group.block for group in geometry.groups]
    lengths = sizes(blocks, geometry.hash_block, scheduler_block(geometry), limits)
    steps: dict[int, Step] = {}
    offset = 0
    for lot in range(lots):
        draw = SeededDraw((SEED << 32) | lot)
        drawn = draw_jobs(draw, swarm, features, lengths)
        jobs = [
            job
            for job in drawn
            if blocks_for_request(geometry, features, job.tokens, job.request.max_output) < geometry.blocks
        ]
        for step in draw_steps(draw, swarm, jobs) if jobs else ():
            _join(steps, _renamed(step, lot, offset + step.at))
        offset += max([1, *(job.at + job.steps for job in jobs)])
    return msgspec.structs.replace(template, steps=tuple(steps[at] for at in sorted(steps)))


def _renamed(step: Step, lot: int, at: int) -> Step:
    """The events of a step at another time, with names of their own but for what all prompts share."""

    def name(old: str) -> str:
        return old if old in _SHARED_STREAMS else f"{old}.{lot}"

    def request(old: Request) -> Request:
        pairs = (segment.rsplit(":", 1) for segment in old.prompt)
        prompt = tuple(f"{name(stream)}:{tokens}" for stream, tokens in pairs)
        return msgspec.structs.replace(
            old, id=name(old.id), prompt=prompt, output=name(old.output) if old.output else ""
        )

    return Step(
        at,
        tuple(map(request, step.add)),
        tuple(map(name, step.abort)),
        tuple(map(name, step.abort_in_flight)),
        step.reset,
    )


def _join(steps: dict[int, Step], step: Step) -> None:
    """Put events among those of the same step."""
    there = steps.get(step.at, Step(step.at))
    steps[step.at] = Step(
        step.at,
        there.add + step.add,
        there.abort + step.abort,
        there.abort_in_flight + step.abort_in_flight,
        there.reset or step.reset,
    )


def records_in(line: bytes) -> Counter[str]:
    """The records of a line by kind."""
    counts: Counter[str] = Counter()
    for entry in msgspec.json.decode(line):
        if entry[0] in _KINDS:
            counts[entry[0]] += 1
        elif entry[0] == "step":
            counts["copy"] += len(entry[4])
    return counts


def write_long_trace(engine: Engine, template: Scenario, swarm: Swarm, records: int, path: Path) -> Counter[str]:
    """Run until a trace has so many records at least; gives how many of each kind."""
    lots = LOTS_TRIED
    while True:
        lines = engine.run(long_scenario(template, swarm, lots)).lines
        counts: Counter[str] = Counter()
        for line in lines[1:]:
            counts += records_in(line)
        if counts.total() >= records:
            break
        lots = math.ceil(1.05 * lots * records / counts.total()) + 1
    header = trace.header_decoder.decode(lines[0])
    first = msgspec.structs.replace(header, scenario=long_scenario(template, swarm, 1))
    path.write_bytes(b"\n".join([trace.encoder.encode(first), *lines[1:]]))
    return counts


# --- measuring ----------------------------------------------------------------------------------------


def judge_up_to(path: Path, release: str | None, records: int) -> Measured:
    """Judge a trace until it had so many records."""
    settle()
    lines = iter(TraceFile(path))
    before = _memory_mb()
    seconds, seen, entries, unfinished = 0.0, 0, 0, 0
    judge = Judge(read_header(next(lines)), release)
    for line in lines:
        started = time.process_time()
        batch = trace.records_decoder.decode(line)
        judge.feed_all(batch)
        seconds += time.process_time() - started
        seen += records_in(line).total()
        entries += len(batch)
        unfinished = max([unfinished, *(one.waiting + one.running for one in batch if isinstance(one, trace.Step))])
        if seen >= records:
            break
    case = judge.case
    alive = {
        "requests": len(case.requests),
        "prefixes": len(case.prefixes.parents),
        "hashes": sum(map(len, case.index.by_block.values())),
        "hash names": len(case.index.names),
        "promises": len(judge.reuse.promises),
    }
    memory = _highest_memory_mb() - before
    return Measured(seconds, seen, entries, memory, unfinished, alive, len(case.verdict.findings))


def _highest_memory_mb() -> float:
    """The most memory that was resident in this process.

    The system's own count of it per process (``ru_maxrss``) begins with what the parent had when it forked.
    """
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) / 1024


def _memory_mb() -> float:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


class Figures(msgspec.Struct):
    """What was measured at one length, over all traces so far. ``memory`` and ``unfinished``: the most of any."""

    seconds: float = 0.0
    records: int = 0
    memory: float = 0.0
    unfinished: int = 0

    @property
    def microseconds(self) -> float:
        """A record."""
        return 1e6 * self.seconds / self.records


def measure(path: Path, release: str | None, lengths: list[int]) -> list[Measured]:
    """Judge a trace to each length, several times and in turns; of each the run with the median time."""
    runs: list[list[Measured]] = [[] for _ in lengths]
    spawn = multiprocessing.get_context("spawn")
    with compiled_first(), ProcessPoolExecutor(1, mp_context=spawn, max_tasks_per_child=1) as pool:
        for turn in range(max(REPEATS)):
            for length, repeats, results in zip(lengths, REPEATS, runs, strict=True):
                if turn < repeats:
                    results.append(pool.submit(judge_up_to, path, release, length).result())
    return [sorted(results, key=lambda one: one.seconds)[len(results) // 2] for results in runs]


def report(figures: list[Figures], lengths: list[int]) -> bool:
    """Print what holds of the whole; whether all of it does."""
    click.echo("all traces")
    for length, one in zip(lengths, figures, strict=True):
        click.echo(
            f"  {length:>9,} records: {one.microseconds:6.2f} us a record, {1e6 / one.microseconds:8,.0f} a second"
        )
    ratio = figures[-1].microseconds / figures[0].microseconds
    slowest = min(1e6 / one.microseconds for one in figures)
    growth = figures[-1].memory / max(figures[-2].memory, 1.0)
    alive = figures[-1].unfinished / max(figures[-2].unfinished, 1)
    facts = (
        (
            f"a record of the longest costs {ratio:.2f} times one of the shortest",
            f"at most {COST_RATIO_MAX}, at least {1 / COST_RATIO_MAX:.2f}",
            1 / COST_RATIO_MAX <= ratio <= COST_RATIO_MAX,
        ),
        (f"{slowest:,.0f} records a second", f"at least {RECORDS_A_SECOND_MIN:,}", slowest >= RECORDS_A_SECOND_MIN),
        (
            f"the longest takes {growth:.2f} times the memory of one a tenth as long, with {alive:.2f} times the "
            "requests at once",
            f"at most {MEMORY_RATIO_MAX} times as much for each",
            growth <= MEMORY_RATIO_MAX * max(alive, 1.0),
        ),
    )
    for what, bound, holds in facts:
        click.echo(f"  {what} ({bound}): {'holds' if holds else 'DOES NOT HOLD'}")
    return all(holds for _, _, holds in facts)


@click.command()
@click.option("--engine", "name", default="vllm==0.33.0", show_default=True, help="A build of vLLM.")
@click.option("--traces", type=click.IntRange(min=1), default=4, show_default=True)
@click.option("--records", type=click.IntRange(min=1000), default=1_000_000, show_default=True, help="The longest.")
def main(name: str, traces: int, records: int) -> None:
    """Print the cost of a record, memory and what is alive by the length of the trace, and whether the limits hold."""
    lengths = [records // 100, records // 10, records]
    prepared = prepare_engine(name)
    if prepared.launch is None:
        raise click.UsageError(f"{name} is no build of vLLM")
    click.echo(f"{prepared.label}, {traces} traces by scenarios of seed {SEED}, {judge_kind()} judge, one core")
    figures = [Figures() for _ in lengths]
    engine = VllmEngine(name, prepared.launch, run_seconds=RUN_SECONDS)
    with engine, tempfile.TemporaryDirectory() as folder:
        for index, template, swarm in templates(prepared, traces):
            path = Path(folder, f"{index}.jsonl")
            counts = write_long_trace(engine, template, swarm, records, path)
            shares = ", ".join(f"{kind} {100 * n / counts.total():.0f}%" for kind, n in counts.most_common())
            click.echo(f"scenario {index}, {geometry_class(template)}: {shares}")
            for length, one, total in zip(lengths, measure(path, engine.release, lengths), figures, strict=True):
                total.seconds += one.seconds
                total.records += one.records
                total.memory = max(total.memory, one.memory)
                total.unfinished = max(total.unfinished, one.unfinished)
                alive = ", ".join(f"{n:,} {what}" for what, n in one.alive.items())
                click.echo(
                    f"  {length:>9,} records: {1e6 * one.seconds / one.records:6.2f} us a record ({one.entries:,} "
                    f"entries), {one.memory:5.1f} MB, {one.unfinished} requests at most; alive at the end: {alive}; "
                    f"{one.findings} findings"
                )
            path.unlink()
    sys.exit(0 if report(figures, lengths) else 1)


if __name__ == "__main__":
    main()
