"""Mutants of an engine: its own source with one place changed, to see whether the gate notices.

Only functions that take the decisions which the gate judges are changed, and in them only what decides: no
assertion, message, annotation or log line. Names and places are those of vLLM 0.33.0.
"""

from __future__ import annotations

import ast
import random
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import CodeType
from typing import Any

from fuzz.gate.source_file import Edit, Function, SourceError, SourceFile, read_source, spliced
from spec.mutants import NAME_SWAPS, SWAPS

SCHEDULER = "v1/core/sched/scheduler.py"
INTERFACE = "v1/kv_cache_interface.py"
COORDINATOR = "v1/core/kv_cache_coordinator.py"
MANAGERS = "v1/core/single_type_kv_cache_manager.py"
MANAGER = "v1/core/kv_cache_manager.py"
UTILS = "v1/core/kv_cache_utils.py"

Part = Callable[[Function], list[ast.stmt]]


def whole_body(function: Function) -> list[ast.stmt]:
    """All statements of a function."""
    return function.body


def around_the_split(function: Function) -> list[ast.stmt]:
    """Where ``schedule()`` works out how much to ask the split for, asks it, and acts on the answer."""
    found: list[ast.stmt] = []
    for block in _blocks(function):
        asking = [place for place, statement in enumerate(block) if _asks_the_split(statement)]
        first = [place for place, statement in enumerate(block) if "num_new_tokens" in _assigned(statement)]
        if asking and first:
            found += block[first[0] : asking[-1] + 1]
    return found


FUNCTIONS: tuple[tuple[str, str, str, Part], ...] = (
    ("split", SCHEDULER, "Scheduler._mamba_block_aligned_split", whole_body),
    ("split", INTERFACE, "get_mamba_prefill_checkpoint_position", whole_body),
    ("masks", COORDINATOR, "replay_boundaries", whole_body),
    ("masks", MANAGERS, "SlidingWindowManager._contiguous_blocks_for_hit", whole_body),
    ("masks", MANAGERS, "SlidingWindowManager.reachable_block_mask", whole_body),
    ("masks", MANAGERS, "MambaManager.reachable_block_mask", whole_body),
    ("lookup", MANAGER, "KVCacheManager.get_computed_blocks", whole_body),
    ("lookup", COORDINATOR, "UnitaryKVCacheCoordinator.find_longest_cache_hit", whole_body),
    ("lookup", COORDINATOR, "HybridKVCacheCoordinator.find_longest_cache_hit", whole_body),
    ("lookup", UTILS, "eagle_proof_margin", whole_body),
    ("lookup", MANAGERS, "FullAttentionManager.find_longest_cache_hit", whole_body),
    ("lookup", MANAGERS, "SlidingWindowManager.find_longest_cache_hit", whole_body),
    ("lookup", MANAGERS, "MambaManager.find_longest_cache_hit", whole_body),
    ("commit", COORDINATOR, "KVCacheCoordinator.cache_blocks", whole_body),
    ("commit", COORDINATOR, "HybridKVCacheCoordinator._align_cacheable", whole_body),
    ("commit", COORDINATOR, "HybridKVCacheCoordinator.get_num_cacheable_tokens", whole_body),
    ("commit", MANAGERS, "SingleTypeKVCacheManager.cache_blocks", whole_body),
    ("commit", MANAGERS, "FullAttentionManager.cache_blocks", whole_body),
    ("commit", MANAGERS, "FullAttentionManager._cache_partial_tail_block", whole_body),
    ("commit", MANAGERS, "MambaManager.cache_blocks", whole_body),
    ("commit", MANAGERS, "MambaManager._cache_partial_tail_block", whole_body),
    ("schedule", SCHEDULER, "Scheduler.schedule", around_the_split),
)
"""What is changed: group, file, function, and which of its statements."""


@dataclass(frozen=True)
class Mutant:
    """A file of the engine with one place changed; all other lines keep their numbers.

    ``file``: within the package. ``line`` and ``column``: of the change, from 1. ``what``: the change in words.
    """

    group: str
    file: str
    qualname: str
    line: int
    column: int
    what: str
    source: SourceFile = field(repr=False, compare=False)
    edit: Edit = field(repr=False)

    @property
    def name(self) -> str:
        """Unique among the mutants of a tree."""
        return f"{self.file}:{self.line}:{self.column} {self.qualname}: {self.what}"

    @property
    def text(self) -> str:
        """The whole changed file."""
        return self.source.edited([self.edit])


def mutants(root: Path) -> list[Mutant]:
    """All mutants of the engine in the folder ``root``, by function and then by place. Raises SourceError."""
    sources = {file: read_source(root, file) for file in dict.fromkeys(file for _, file, _, _ in FUNCTIONS)}
    return [mutant for row in FUNCTIONS for mutant in mutants_of(sources[row[1]], *row)]


def draw(all_mutants: Sequence[Mutant], per_group: Mapping[str, int], seed: int) -> tuple[list[Mutant], int]:
    """So many mutants of each group, drawn by a seed, and how many had to be drawn again.

    Drawn again are only those that do not compile, or compile to the same code as the original. Raises
    ValueError when a group has too few.
    """
    chosen: list[Mutant] = []
    redrawn = 0
    for group, number in per_group.items():
        rest = [mutant for mutant in all_mutants if mutant.group == group]
        random.Random(f"{seed} {group}").shuffle(rest)
        wanted = len(chosen) + number
        while len(chosen) < wanted:
            if not rest:
                raise ValueError(f"there are not {number} different mutants in the group {group!r}")
            mutant = rest.pop()
            if is_different(mutant):
                chosen.append(mutant)
            else:
                redrawn += 1
    return chosen, redrawn


def is_different(mutant: Mutant) -> bool:
    """Whether the changed file compiles, and to other code than the original."""
    try:
        return bool(_compiled(mutant.text) != _original(mutant.source.text))
    except (SyntaxError, ValueError):
        return False


def _compiled(text: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as about a constant condition
        return _instructions(compile(text, "", "exec", dont_inherit=True))


_original = lru_cache(maxsize=8)(_compiled)


def _instructions(code: CodeType) -> tuple[Any, ...]:
    """All of a code object but where it stood in the source."""
    constants = tuple(
        _instructions(one) if isinstance(one, CodeType) else (type(one).__name__, repr(one)) for one in code.co_consts
    )
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_name
    return code.co_code, code.co_flags, getattr(code, "co_exceptiontable", b""), constants, names


# --- the places that are changed ---------------------------------------------------------------------


def mutants_of(source: SourceFile, group: str, file: str, qualname: str, part: Part) -> Iterator[Mutant]:
    """The mutants of one function, in the order of the places. Raises SourceError if it is not there."""
    functions = source.functions.get(qualname, [])[-1:]
    statements = [statement for function in functions for statement in part(function)]
    if not statements:
        raise SourceError(f"{file} has no {qualname} that could be changed")
    changes = [change for node in _deciding(statements) for change in _changes_of(source, node)]
    if _gives_an_int(functions[0]):
        changes += [change for node in _deciding(statements) for change in _other_results(source, node)]
    seen: set[Edit] = set()
    for edit, what in sorted(changes, key=lambda change: (change[0].start, change[0].end)):
        if edit not in seen:
            seen.add(edit)
            line = source.line_of(edit.start)
            column = edit.start - source.data.rfind(b"\n", 0, edit.start)
            yield Mutant(group, file, qualname, line, column, what, source, edit)


def _deciding(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """The nodes that may be changed, outermost first."""
    for node in nodes:
        is_log = isinstance(node, ast.Expr) and ast.unparse(node).startswith("logger.")
        if isinstance(node, ast.Assert | ast.Raise | ast.JoinedStr) or is_log:
            continue
        yield node
        inner = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.AnnAssign):
            inner.remove(node.annotation)
        yield from _deciding(inner)


_Changed = tuple[Edit, str]
"""A change, and what it is in words."""


def _changes_of(source: SourceFile, node: ast.AST) -> Iterator[_Changed]:
    """The changes at one node."""
    match node:
        case ast.Compare():
            operands = [node.left, *node.comparators]
            for place, operator in enumerate(node.ops):
                yield from _swapped(source, operands[place], operator, operands[place + 1])
        case ast.BinOp():
            yield from _swapped(source, node.left, node.op, node.right)
        case ast.AugAssign():
            yield from _swapped(source, node.target, node.op, node.value)
            yield _deleted(source, node)
        case ast.BoolOp():
            yield _joined_otherwise(source, node)
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            for other in (1,) if value == 0 else (value - 1, value + 1):
                yield _changed(source, node, str(other))
        case ast.Call(func=ast.Name(id=name)) if name in NAME_SWAPS:
            yield _changed(source, node.func, NAME_SWAPS[name])
        case ast.If() | ast.While() | ast.IfExp():
            yield from _negated(source, node.test)
        case ast.Assign() | ast.AnnAssign(value=ast.expr()) | ast.Continue() | ast.Expr(value=ast.Call()):
            assert isinstance(node, ast.stmt)
            yield _deleted(source, node)


_SIGNS: dict[type, str] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.FloorDiv: "//",
    ast.And: "and",
    ast.Or: "or",
}
_ALL_SWAPS = SWAPS | {ast.FloorDiv: ast.Mult}
"""The reference's mutants know no other division; in an engine it is nearly always a flooring."""


def _swapped(source: SourceFile, left: ast.expr, operator: ast.AST, right: ast.expr) -> Iterator[_Changed]:
    """Another operator between two operands."""
    if type(operator) in _ALL_SWAPS:
        new = _SIGNS[_ALL_SWAPS[type(operator)]]
        edit = _sign_between(source, left, _SIGNS[type(operator)], right, new)
        yield edit, _told(source, edit)


def _sign_between(source: SourceFile, left: ast.expr, old: str, right: ast.expr, new: str) -> Edit:
    """``new`` for the sign between two operands; beside it there can be brackets and comments."""
    start, end = source.span(left)[1], source.span(right)[0]
    pattern = rb"#[^\n]*|(" + re.escape(old.encode()) + rb")"
    (found,) = (match for match in re.finditer(pattern, source.data[start:end]) if match[1])
    return Edit(start + found.start(), start + found.end(), new.encode())


def _joined_otherwise(source: SourceFile, node: ast.BoolOp) -> _Changed:
    """``and`` for every ``or`` of a chain, or the reverse."""
    old, new = _SIGNS[type(node.op)], _SIGNS[SWAPS[type(node.op)]]
    pairs = zip(node.values, node.values[1:], strict=False)
    edits = [_sign_between(source, left, old, right, new) for left, right in pairs]
    start, end = edits[0].start, edits[-1].end
    inner = [Edit(edit.start - start, edit.end - start, edit.new) for edit in edits]
    return Edit(start, end, spliced(source.data[start:end], inner)), _told(source, edits[0])


def _changed(source: SourceFile, node: ast.expr, new: str) -> _Changed:
    edit = Edit(*source.span(node), new.encode())
    return edit, _told(source, edit)


def _negated(source: SourceFile, test: ast.expr) -> Iterator[_Changed]:
    """The opposite of a condition, unless that is what another operator in it gives."""
    if not (isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq | ast.NotEq)):
        start, end = source.span(test)
        yield Edit(start, end, b"not (" + source.data[start:end] + b")"), f"not ({_short(test)})"


def _deleted(source: SourceFile, statement: ast.stmt) -> _Changed:
    return source.instead(statement, "pass"), f"deleted: {_short(statement)}"


def _gives_an_int(function: Function) -> bool:
    return isinstance(function.returns, ast.Name) and function.returns.id == "int"


def _other_results(source: SourceFile, node: ast.AST) -> Iterator[_Changed]:
    """What is returned, and one more or less."""
    if isinstance(node, ast.Return) and node.value is not None:
        start, end = source.span(node.value)
        for sign in "+-":
            edit = Edit(start, end, b"(" + source.data[start:end] + b") " + sign.encode() + b" 1")
            yield edit, f"returned {sign} 1: {_short(node.value)}"


def _told(source: SourceFile, edit: Edit) -> str:
    """A small change in words, with the line that it is in."""
    line = source.lines[source.line_of(edit.start) - 1].strip()
    return f"{source.data[edit.start : edit.end].decode()} -> {edit.new.decode()} in: {line}"


def _short(node: ast.AST) -> str:
    words = ast.unparse(node)
    return words if len(words) <= 100 else f"{words[:97]}..."


# --- parts of schedule() -----------------------------------------------------------------------------


def _blocks(function: Function) -> Iterator[list[ast.stmt]]:
    """The blocks of statements within a function, the outermost first."""
    for node in ast.walk(function):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                yield block


def _asks_the_split(statement: ast.stmt) -> bool:
    test = statement.test if isinstance(statement, ast.If) else None
    return test is not None and "need_mamba_block_aligned_split" in ast.unparse(test)


def _assigned(statement: ast.stmt) -> set[str]:
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}
