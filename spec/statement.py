"""Two texts of one function: which of the statements in which they differ are proved to do the same.

Each pair of statements is looked at by itself, in one of two ways. Statements that only compute with names are run on
unknown integers, before and after, and every name must come out the same. Where only the test of an ``if`` differs,
its body may also read attributes and items, and loop over a range: it must do nothing on the integers for which the
two tests differ. Taken for granted, and part of the words that come with a proof: the names that are computed with are
bound to integers; what is read is there (a ``defaultdict`` makes no entry), and reading changes nothing. ``range`` is
the builtin. Anything else is no proof.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import z3

from spec.lift import normal_form, stored_names
from spec.solver import Limits
from spec.space import ExplorationError, Outside, Space
from spec.symbolic import SymbolicError

_BLOCKS = ("body", "orelse", "finalbody")
_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult)
_ORDER = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)
_SEE_NAMES = frozenset({"dir", "eval", "exec", "locals", "vars"})
"""Builtins through which a function reads names that it does not spell out."""
_PATHS_MAX = 500


@dataclass(frozen=True)
class Alike:
    """What was proved of a function. ``lines``: of its second text, those of the statements that do the same as the
    first's. ``whole``: nothing else differs. ``words``: for which values, and what was taken for granted."""

    lines: frozenset[int] = frozenset()
    whole: bool = False
    words: str = ""


def alike(old: ast.FunctionDef, new: ast.FunctionDef) -> Alike:
    """Prove what can be proved of the statements in which two texts of a function differ."""
    before, after = normal_form(old), normal_form(new)
    if any(_is_out_of_reach(node) for text in (before, after) for node in ast.walk(text)):
        return Alike()
    pairs = list(_differing(before, after))
    words = [_proof(one, other, before, after) for one, other in pairs]
    proved = [other for (_, other), said in zip(pairs, words, strict=True) if said]
    lines = frozenset(line for statement in proved for line in _lines(statement))
    return Alike(lines, len(proved) == len(pairs), "; ".join(dict.fromkeys(said for said in words if said)))


def _is_out_of_reach(node: ast.AST) -> bool:
    """Whether a function with such a node may read or bind its names in ways that are not followed here."""
    if isinstance(node, ast.Name):
        return node.id in _SEE_NAMES or (node.id == "range" and not isinstance(node.ctx, ast.Load))
    return isinstance(node, ast.Global | ast.Nonlocal | ast.ClassDef) or getattr(node, "arg", "") == "range"


def _differing(old: ast.stmt, new: ast.stmt) -> Iterator[tuple[ast.stmt, ast.stmt]]:
    """The innermost statements that differ, as long as those around them hold as many in the same places."""
    if ast.dump(old) == ast.dump(new):
        return
    blocks = [(getattr(old, name, []), getattr(new, name, [])) for name in _BLOCKS]
    if _shell(old) != _shell(new) or any(len(one) != len(other) for one, other in blocks):
        yield old, new
        return
    for one, other in blocks:
        for pair in zip(one, other, strict=True):
            yield from _differing(*pair)


def _shell(statement: ast.stmt) -> str:
    """A statement without those that it holds."""
    shell = copy.copy(statement)
    for name in _BLOCKS:
        if hasattr(shell, name):
            setattr(shell, name, [])
    return ast.dump(shell)


def _lines(statement: ast.stmt) -> range:
    """The lines of a statement; of an ``if`` those of its test."""
    end = statement.test.end_lineno if isinstance(statement, ast.If) else statement.end_lineno
    return range(statement.lineno, (end or statement.lineno) + 1)


def _proof(old: ast.stmt, new: ast.stmt, before: ast.stmt, after: ast.stmt) -> str:
    """For what values a statement of the function ``after`` is proved to do what ``old`` does; empty if it is not."""
    names = ", ".join(sorted({*_names(old), *_names(new)}))
    if _is_plain(old) and _is_plain(new):
        # A name that only one of them binds might be a local name in one function only.
        same = stored_names(old) == stored_names(new) and _gives_the_same(old, new)
        return f"for all integers {names}" if same else ""
    if not isinstance(old, ast.If) or not isinstance(new, ast.If) or not _is_idle(old, new, before, after):
        return ""
    names = ", ".join(sorted({*_names(old.test), *_names(new.test)}))
    return (
        f"for all integers {names}: where the conditions differ, attributes and items are read and nothing else is"
        " done; taken for granted: they are there, and reading changes nothing"
    )


# --- statements that compute --------------------------------------------------------------------------


def _is_plain(statement: ast.stmt) -> bool:
    """Whether a statement does nothing but bind names to numbers, and asks about numbers when it does."""
    match statement:
        case ast.Assign(targets=[ast.Name()], value=value):
            return _is_number(value)
        case ast.AugAssign(target=ast.Name(), op=operator, value=value):
            return isinstance(operator, _ARITHMETIC) and _is_number(value)
        case ast.If(test=test, body=body, orelse=orelse):
            return _is_truth(test) and all(_is_plain(inner) for inner in (*body, *orelse))
    return isinstance(statement, ast.Pass)


def _is_number(node: ast.expr) -> bool:
    """Whether an expression gives a whole number if all names are whole numbers; a truth is none, as it would be
    compared with numbers otherwise than Python does."""
    match node:
        case ast.Name():
            return True
        case ast.Constant(value=value):
            return type(value) is int
        case ast.BinOp(left=left, op=operator, right=right):
            return isinstance(operator, _ARITHMETIC) and _is_number(left) and _is_number(right)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _is_number(operand)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return _is_truth(test) and _is_number(body) and _is_number(orelse)
    return False


def _is_truth(node: ast.expr) -> bool:
    """Whether an expression that is only asked for its truth compares and joins numbers."""
    match node:
        case ast.Compare(left=left, ops=operators, comparators=others):
            return all(isinstance(one, _ORDER) for one in operators) and all(map(_is_number, (left, *others)))
        case ast.BoolOp(values=values):
            return all(map(_is_truth, values))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _is_truth(operand)
    return _is_number(node)


def _gives_the_same(old: ast.stmt, new: ast.stmt) -> bool:
    space = Space(Limits(paths=_PATHS_MAX))
    inputs = {name: space.integer(name) for name in sorted({*_names(old), *_names(new)})}

    def run() -> bool:
        first, second = _run(old, inputs), _run(new, inputs)
        return all(bool(first[name] == second[name]) for name in inputs)

    return _always(space, run)


def _run(statement: ast.stmt, inputs: dict[str, Any]) -> dict[str, Any]:
    """The names after a statement."""
    values = dict(inputs)
    code = compile(ast.Module([statement], []), "statement", "exec")
    exec(code, {"__builtins__": {}}, values)
    return values


def _value(expression: ast.expr, inputs: dict[str, Any]) -> Any:
    code = compile(ast.Expression(expression), "expression", "eval")
    return eval(code, {"__builtins__": {}}, dict(inputs))


def _always(space: Space, run: Callable[[], bool]) -> bool:
    """Whether ``run`` gives True for all inputs of the space; False also where that cannot be told."""
    results: list[Any] = []
    try:
        covered = space.explore(run, results.append)
        answer = space.solver.left_over(covered)
    except (ExplorationError, SymbolicError, z3.Z3Exception, MemoryError):
        return False
    return answer == "unsat" and all(result is True for result in results)


# --- tests with the same body -------------------------------------------------------------------------


def _is_idle(old: ast.If, new: ast.If, before: ast.stmt, after: ast.stmt) -> bool:
    """Whether the body, the same in both, does nothing wherever the two tests differ."""
    one_body = [ast.dump(statement) for statement in old.body] == [ast.dump(statement) for statement in new.body]
    ranges = _ranges(new.body)
    if not one_body or old.orelse or new.orelse or ranges is None:
        return False
    bounds = [bound for pair in ranges for bound in pair]
    bound_here = _bound(new.body)
    if not _is_truth(old.test) or not _is_truth(new.test) or not all(map(_is_number, bounds)):
        return False
    if any(bound_here & set(_names(bound)) for bound in bounds) or _reads_before_binding(new.body):
        return False
    if _reads(before, bound_here, old.body) or _reads(after, bound_here, new.body):
        return False
    return _is_empty(ranges, old.test, new.test)


def _ranges(body: Sequence[ast.stmt]) -> list[tuple[ast.expr, ast.expr]] | None:
    """The bounds of the ranges that a body loops over, where it does nothing beside but bind names to what it reads;
    None where it does."""
    found: list[tuple[ast.expr, ast.expr]] = []
    for statement in body:
        if isinstance(statement, ast.For) and not statement.orelse and (bounds := _bounds(statement.iter)):
            found.append(bounds)
        elif not isinstance(statement, ast.Pass) and not _binds_a_read(statement):
            return None
    return found


def _bounds(iterated: ast.expr) -> tuple[ast.expr, ast.expr] | None:
    """Start and stop of a range with steps of one."""
    if not isinstance(iterated, ast.Call) or iterated.keywords or len(iterated.args) not in (1, 2):
        return None
    if not isinstance(iterated.func, ast.Name) or iterated.func.id != "range":
        return None
    zero = ast.copy_location(ast.Constant(0), iterated)
    return (zero, iterated.args[0]) if len(iterated.args) == 1 else (iterated.args[0], iterated.args[1])


def _binds_a_read(statement: ast.stmt) -> bool:
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return False
    reads = (ast.Name, ast.Attribute, ast.Subscript, ast.Constant, ast.expr_context)
    return isinstance(statement.targets[0], ast.Name) and all(
        isinstance(node, reads) for node in ast.walk(statement.value)
    )


def _is_empty(ranges: Sequence[tuple[ast.expr, ast.expr]], old: ast.expr, new: ast.expr) -> bool:
    """Whether all ranges are empty for the integers for which two tests differ."""
    space = Space(Limits(paths=_PATHS_MAX))
    parts = [old, new, *(bound for pair in ranges for bound in pair)]
    inputs = {name: space.integer(name) for name in sorted({name for part in parts for name in _names(part)})}

    def run() -> bool:
        if bool(_value(old, inputs)) == bool(_value(new, inputs)):
            raise Outside
        return all(bool(_value(start, inputs) >= _value(stop, inputs)) for start, stop in ranges)

    return _always(space, run)


# --- names --------------------------------------------------------------------------------------------


def _names(node: ast.AST) -> Iterator[str]:
    return (part.id for part in ast.walk(node) if isinstance(part, ast.Name))


def _bound(body: Sequence[ast.stmt]) -> frozenset[str]:
    """The names that statements bind, but for those that only a loop binds, which does not run."""
    targets = [target for statement in body if isinstance(statement, ast.Assign) for target in statement.targets]
    return frozenset(name for target in targets for name in _names(target))


def _reads_before_binding(body: Sequence[ast.stmt]) -> bool:
    """Whether a body that is run again would read a name as it was bound the time before."""
    left = set(_bound(body))
    for statement in body:
        if any(_is_read(node, left) for node in ast.walk(statement)):
            return True
        left -= _bound([statement])
    return False


def _reads(function: ast.stmt, names: Collection[str], but_in: Sequence[ast.stmt]) -> bool:
    """Whether a function reads or deletes one of ``names`` anywhere but in some of its statements."""
    left: list[ast.AST] = [function]
    while left:
        node = left.pop()
        if _is_read(node, names):
            return True
        left += [child for child in ast.iter_child_nodes(node) if not any(child is skipped for skipped in but_in)]
    return False


def _is_read(node: ast.AST, names: Collection[str]) -> bool:
    return isinstance(node, ast.Name) and node.id in names and not isinstance(node.ctx, ast.Store)
