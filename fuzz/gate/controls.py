"""The gate's controls: gross faults in the candidate's own source, which the run that judges it must notice."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fuzz.gate.source_file import Function, SourceError, SourceFile, read_source


@dataclass(frozen=True)
class Control:
    """A planted fault. ``sentence``: what it does. ``file``, ``qualname`` and ``line``: where it was planted.

    ``text``: the whole file with the fault in it. ``missing``: the candidate has no such function, so there is
    neither a line nor a text.
    """

    name: str
    sentence: str
    file: str
    qualname: str
    line: int = 0
    text: str = ""
    missing: bool = False

    @property
    def patch(self) -> tuple[str, str]:
        """What ``Launch.patches`` takes."""
        return self.file, self.text


@dataclass(frozen=True)
class _Fault:
    """A fault to plant: functions of a file that give ``result`` at once, said of their first ``reads`` parameters."""

    name: str
    sentence: str
    file: str
    qualnames: tuple[str, ...]
    reads: int
    result: Callable[[list[str]], str]


_FAULTS = (
    _Fault(
        "split grants all",
        "The split grants every chunk as long as it was asked for.",
        "v1/core/sched/scheduler.py",
        ("Scheduler._mamba_block_aligned_split",),
        3,
        lambda parameters: parameters[2],
    ),
    _Fault(
        "masks keep nothing",
        "Retention keeps no block of a sliding window, and no Mamba state.",
        "v1/core/single_type_kv_cache_manager.py",
        ("SlidingWindowManager.reachable_block_mask", "MambaManager.reachable_block_mask"),
        3,
        lambda parameters: f"[False] * ({parameters[2]} - {parameters[1]})",
    ),
    _Fault(
        "lookup finds nothing",
        "The lookup finds no block in the cache.",
        "v1/core/block_pool.py",
        ("BlockPool.get_cached_block",),
        0,
        lambda _: "None",
    ),
)


def controls(root: Path) -> list[Control]:
    """The controls for the engine in the folder ``root``. Raises SourceError for a file that is no Python."""
    return [_planted(root, fault) for fault in _FAULTS]


def _planted(root: Path, fault: _Fault) -> Control:
    try:
        source = read_source(root, fault.file)
    except SourceError:
        source = SourceFile(fault.file, "")
    edits = {
        name: source.instead(_first_run(function), f"return {fault.result(_parameters(function))}")
        for name in fault.qualnames
        for function in source.functions.get(name, [])[-1:]
        if len(_parameters(function)) >= fault.reads
    }
    if not edits:
        return Control(fault.name, fault.sentence, fault.file, fault.qualnames[0], missing=True)
    qualname, edit = next(iter(edits.items()))
    line = source.line_of(edit.start)
    return Control(fault.name, fault.sentence, fault.file, qualname, line, source.edited(edits.values()))


def _first_run(function: Function) -> ast.stmt:
    """The first statement that is no docstring; with a ``return`` in its place no other is reached."""
    return function.body[1 if ast.get_docstring(function) is not None and len(function.body) > 1 else 0]


def _parameters(function: Function) -> list[str]:
    return [one.arg for one in function.args.posonlyargs + function.args.args]
