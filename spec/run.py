"""Runs proof tasks, each in a process of its own, several at a time, and keeps what came out.

A process of its own makes a result independent of the tasks before it, and a process that the system kills for
its memory, or that is killed here because Z3 does not come back, costs one task. Tasks that differ in nothing but
the release run one after another, because a result serves every release that agrees on what was read of the policy.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, cast

import msgspec

from reference.policy import POLICIES
from spec.cache import Cache, key_of, values_read, watched
from spec.lift import ShapeChanged
from spec.smt import Export, Sampler
from spec.solver import Limits
from spec.subjects import tree_of
from spec.task import Task, TaskResult, run_task, undone, with_expectation

Answer = tuple[TaskResult, dict[str, Any]]
"""A result, and the values of the policy that were read on the way to it."""

TASK_SECONDS_MAX = 900.0
"""Wall time after which the process of a task is killed, in seconds.

This is containment and not a budget: on large block sizes Z3 can, rarely, loop inside one call and heed neither
its limit of work nor its timeout. Tasks take a minute or so at most; one that meets the limit is unknown, never proved.
"""


MEMORY_TIMES = 2
"""A task's process may have so many times the memory that Z3 is told to keep to: it has been seen not to."""


@dataclass(frozen=True)
class Options:
    """``jobs``: processes at a time; ``cache``: where results are kept, None for nowhere; ``fresh``: do not look
    there first; ``export``: write questions that are put to Z3, which needs every task to be run;
    ``task_seconds_max``: wall time after which a task is given up."""

    jobs: int
    limits: Limits = field(default_factory=Limits)
    cache: Cache | None = None
    fresh: bool = False
    export: Export | None = None
    task_seconds_max: float = TASK_SECONDS_MAX


@dataclass(frozen=True)
class Done:
    """A task with its result. ``place``: in the order in which the tasks were given; ``reused``: it was not run."""

    place: int
    task: Task
    result: TaskResult
    reused: bool = False


def run_tasks(tasks: Sequence[Task], options: Options, cost: Callable[[Task], float]) -> Iterator[Done]:
    """Run all tasks, those of the largest ``cost`` first, and yield each as it comes."""
    # A checkout may have been edited since this process looked at it last.
    tree_of.cache_clear()
    chains: dict[Task, deque[int]] = {}
    for place, task in enumerate(tasks):
        chains.setdefault(msgspec.structs.replace(task, release=""), deque()).append(place)
    ready = deque(sorted(chains.values(), key=lambda chain: (-sum(cost(tasks[place]) for place in chain), chain[0])))
    running: dict[Connection, _Run] = {}
    try:
        while ready or running:
            while ready and len(running) < options.jobs:
                chain = ready.popleft()
                place = chain.popleft()
                key, result = _known(tasks[place], options)
                if result is None:
                    run = _Run(place, tasks[place], key, chain, options)
                    running[run.pipe] = run
                    continue
                if chain:
                    ready.appendleft(chain)
                yield Done(place, tasks[place], _labelled(tasks[place], result), key is not None)
            for run in _ended(running):
                del running[run.pipe]
                yield Done(run.place, run.task, _labelled(run.task, run.end(options.cache)))
                if run.chain:
                    ready.appendleft(run.chain)
    finally:
        for run in running.values():
            run.process.terminate()


def _ended(running: Mapping[Connection, _Run]) -> list[_Run]:
    """Wait for tasks to end, and give up those whose time is over: whatever came of them is to be had now.

    A result that is there counts, however late it is looked for.
    """
    if not running:
        return []
    seconds_left = min(run.over for run in running.values()) - time.monotonic()
    if ready := wait(list(running), max(seconds_left, 0.0)):
        return [running[cast(Connection, pipe)] for pipe in ready]
    late = [run for run in running.values() if run.over <= time.monotonic()]
    for run in late:
        run.give_up()
    return late


def _known(task: Task, options: Options) -> tuple[str | None, TaskResult | None]:
    """The key of a task's result, and the result where there is no need to run the task."""
    if options.cache is None:
        return None, None
    try:
        key = key_of(task, options.limits)
    except ShapeChanged as error:
        return None, undone(task, f"shape changed: {error}")
    if key is None or options.fresh or options.export is not None:
        return key, None
    return key, options.cache.get(key, POLICIES[task.release])


def _labelled(task: Task, result: TaskResult) -> TaskResult:
    """A result under the names of this task, with the verdicts that are expected of it."""
    replace = msgspec.structs.replace
    rows = [with_expectation(replace(row, target=task.target, release=task.release)) for row in result.rows]
    controls = [replace(row, target=task.target, release=task.release) for row in result.controls]
    return replace(result, rows=tuple(rows), controls=tuple(controls))


class _Run:
    """A task that runs in a process of its own."""

    def __init__(self, place: int, task: Task, key: str | None, chain: deque[int], options: Options) -> None:
        self.place, self.task, self.key, self.chain = place, task, key, chain
        context = multiprocessing.get_context("forkserver")
        # Loaded once, in the process that all others are copies of.
        context.set_forkserver_preload(["__main__", "spec.run"])
        self.pipe, theirs = context.Pipe(duplex=False)
        self.process: BaseProcess = context.Process(
            target=_work, args=(theirs, task, options.limits, options.export, key), daemon=True
        )
        self.process.start()
        theirs.close()
        self._seconds_max = options.task_seconds_max
        self._given_up = False
        self.over = time.monotonic() + self._seconds_max

    def give_up(self) -> None:
        """Kill the process, which does not come back."""
        self._given_up = True
        self.process.kill()

    def end(self, cache: Cache | None) -> TaskResult:
        """The result, kept in the cache; if the process has died or was given up, unknown rows that say so."""
        answer = None if self._given_up else self._answer()
        self.process.join()
        self.pipe.close()
        if self._given_up:
            return undone(self.task, f"Z3 did not come back within {self._seconds_max:g} s")
        if answer is None:
            return undone(self.task, _cause_of_death(self.process.exitcode))
        (result, read), is_its_own = answer
        if is_its_own and cache is not None and self.key is not None:
            cache.put(self.key, read, result)
        return result

    def _answer(self) -> tuple[Answer, bool] | None:
        """What the process sent, and whether it belongs to the key; None if it died before it had sent all of it."""
        try:
            answer: tuple[Answer, bool] = self.pipe.recv()
        except (EOFError, OSError):
            return None
        return answer


def _cause_of_death(status: int | None) -> str:
    if status == -signal.SIGKILL:
        return "the process was killed, probably for its memory"
    return f"the process ended without a result (exit status {status})"


def _work(pipe: Connection, task: Task, limits: Limits, export: Export | None, key: str | None) -> None:
    """What the process of a task does. It leaves an interruption to the process that started it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _limit_memory(MEMORY_TIMES * limits.memory_mib)
    answer = answer_of(task, limits, export)
    # A checkout can be edited at any time: what was proved here is kept only under the name of what was read here.
    pipe.send((answer, key is not None and key == key_of(task, limits)))


def _limit_memory(mib: int) -> None:
    """Let the process have no more memory than this, where the system can see to it."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (mib << 20, mib << 20))


def answer_of(task: Task, limits: Limits, export: Export | None) -> Answer:
    """Run a task; whatever goes wrong makes its rows unknown, with the reason."""
    policy = watched(POLICIES[task.release])
    try:
        subject = task.build(policy)
        vars(policy)["read"].discard("release")  # for the subject's name
        sampler = Sampler(export.every) if export is not None else None
        result = run_task(task, limits, subject, sampler)
        if export is not None and sampler is not None:
            sampler.write(Path(export.folder), task.name)
    except ShapeChanged as error:
        return undone(task, f"shape changed: {error}"), {}
    except MemoryError:
        return undone(task, "out of memory"), {}
    except Exception as error:
        return undone(task, f"kvoracle failed on it: {error!r}"), {}
    return result, values_read(policy)
