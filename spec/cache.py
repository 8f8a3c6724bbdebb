"""Results of proof tasks that were run before, found again by a key over everything that they depend on.

A task explores under one release's policy. Its result is kept with the values of those fields of the policy
that were read, and serves every release that agrees on them.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import hashlib
import os
import platform
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import z3

from reference.policy import Policy
from spec.digest import Digest
from spec.prove import Subject
from spec.solver import Limits
from spec.task import Task, TaskResult

DECIDED = frozenset(("proved", "proved to bound", "refuted"))
"""The verdicts that are kept: another run, with more time, may decide what is not among them."""

PRESENTATION = frozenset(
    ("cache", "expected", "ledger", "lookup_pair", "plan", "run", "second", "smt", "statement", "tokens")
)
"""The modules of this package that do not bear on the verdict of a task."""

FIELDS = frozenset(field.name for field in dataclasses.fields(Policy))


class Watched(Policy):
    """A policy that notes which of its fields are read, by whomever and in whatever way."""

    def __getattribute__(self, name: str) -> Any:
        if name in FIELDS:
            object.__getattribute__(self, "__dict__").setdefault("read", set()).add(name)
        return object.__getattribute__(self, name)


def watched(policy: Policy) -> Watched:
    """The policy, with nothing read yet."""
    copy = Watched(**dataclasses.asdict(policy))
    vars(copy)["read"] = set()
    return copy


def values_read(policy: Watched) -> dict[str, Any]:
    """The values that were read, by field."""
    return {name: vars(policy)[name] for name in sorted(vars(policy)["read"])}


class Entry(msgspec.Struct, frozen=True):
    """A file of the cache. ``policy``: the values that were read on the way to the result."""

    policy: dict[str, Any]
    result: TaskResult


class Cache:
    """The results in a folder, which may not exist yet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, key: str, policy: Policy) -> TaskResult | None:
        """The result of a task under a policy that agrees on all that was read; a file that is broken is none."""
        for path in sorted((self.folder / key).glob("*.json")):
            try:
                entry = msgspec.json.decode(path.read_bytes(), type=Entry)
            except (OSError, msgspec.DecodeError):
                continue
            if all(getattr(policy, name, None) == value for name, value in entry.policy.items()):
                return entry.result
        return None

    def put(self, key: str, policy: dict[str, Any], result: TaskResult) -> None:
        """Keep a result, unless something in it is undecided. A folder that cannot be written keeps nothing."""
        if not is_decided(result):
            return
        name = hashlib.sha256(msgspec.json.encode(policy, order="deterministic")).hexdigest()[:16]
        folder = self.folder / key
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=folder, prefix=f".{name}.", delete=False) as file:
                file.write(msgspec.json.encode(Entry(policy, result)))
            os.replace(file.name, folder / f"{name}.json")
        except OSError:
            return


def is_decided(result: TaskResult) -> bool:
    """Whether all verdicts are such that another run would say the same."""
    return (
        bool(result.rows) and {row.verdict for row in result.rows} | {row.verdict for row in result.controls} <= DECIDED
    )


def key_of(task: Task, limits: Limits, subject: Subject | None = None) -> str | None:
    """The key of a task's result; None where the sources that it depends on cannot be told.

    ``subject``: the task's own, where it has been built already. Raises what building it raises.
    """
    subject = subject or task.build()
    digest = Digest()
    digest.add([subject.build, subject.run, subject.regime, subject.measure, subject.examples, subject.builtins])
    digest.add([subject.arguments, subject.arguments({}), subject.bound])
    # By its fields: the class would bring the sentences of all rules with it.
    digest.add([[getattr(claim, field.name) for field in dataclasses.fields(claim)] for claim in task.chosen(subject)])
    if task.source and not digest.lifted:
        return None
    environment = (platform.python_version(), z3.get_version_string(), explorer_text(Path(__file__).parent))
    settings = (task.subject, task.sizes, task.features, bool(task.source), task.controls)
    limits_set = dataclasses.astuple(limits)
    return hashlib.sha256(repr((digest.hex, environment, settings, limits_set)).encode()).hexdigest()


@functools.cache
def explorer_text(folder: Path) -> str:
    """The number of the source of every module here that a proof goes through; layout and comments do not count."""
    texts = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        if path.stem not in PRESENTATION:
            texts.update(f"{path.name}\0{ast.dump(ast.parse(path.read_bytes()))}".encode())
    return texts.hexdigest()
