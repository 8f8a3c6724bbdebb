"""Runs proof tasks, each in a process of its own, several at a time, and keeps what came out.

A process of its own makes a result independent of the tasks before it, and a process that the system kills for
its memory costs one task. Tasks that differ in nothing but the release run one after another, because a result
serves every release that agrees on what was read of the policy.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
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
from spec.task import Task, TaskResult, run_task, undone, with_expectation

Answer = tuple[TaskResult, dict[str, Any]]
"""A result, and the values of the policy that were read on the way to it."""


@dataclass(frozen=True)
class Options:
    """``jobs``: processes at a time; ``cache``: where results are kept, None for nowhere; ``fresh``: do not look
    there first; ``export``: write questions that are put to Z3, which needs every task to be run."""

    jobs: int
    limits: Limits = field(default_factory=Limits)
    cache: Cache | None = None
    fresh: bool = False
    export: Export | None = None


@dataclass(frozen=True)
class Done:
    """A task with its result. ``place``: in the order in which the tasks were given; ``reused``: it was not run."""

    place: int
    task: Task
    result: TaskResult
    reused: bool = False


def run_tasks(tasks: Sequence[Task], options: Options, cost: Callable[[Task], float]) -> Iterator[Done]:
    """Run all tasks, those of the largest ``cost`` first, and yield each as it comes."""
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
            for pipe in wait(list(running)) if running else ():
                run = running.pop(cast(Connection, pipe))
                yield Done(run.place, run.task, _labelled(run.task, run.end(options.cache)))
                if run.chain:
                    ready.appendleft(run.chain)
    finally:
        for run in running.values():
            run.process.terminate()


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
            target=_work, args=(theirs, task, options.limits, options.export), daemon=True
        )
        self.process.start()
        theirs.close()

    def end(self, cache: Cache | None) -> TaskResult:
        """The result, kept in the cache; if the process has died, unknown rows that say so."""
        try:
            answer: Answer | None = self.pipe.recv()
        except EOFError:
            answer = None
        self.process.join()
        self.pipe.close()
        if answer is None:
            return undone(self.task, _cause_of_death(self.process.exitcode))
        result, read = answer
        if cache is not None and self.key is not None:
            cache.put(self.key, read, result)
        return result


def _cause_of_death(status: int | None) -> str:
    if status == -signal.SIGKILL:
        return "the process was killed, probably for its memory"
    return f"the process ended without a result (exit status {status})"


def _work(pipe: Connection, task: Task, limits: Limits, export: Export | None) -> None:
    """What the process of a task does. It leaves an interruption to the process that started it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pipe.send(answer_of(task, limits, export))


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
