"""One source file of an engine: parsed, with its functions by name, and copies with pieces of the text replaced."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fuzz.engines.driver import ENGINE_PACKAGE, noting
from fuzz.engines.names import EngineError

Function = ast.FunctionDef | ast.AsyncFunctionDef


class SourceError(EngineError):
    """An engine's sources cannot be read; the message is one line for the user."""


@dataclass(frozen=True)
class Edit:
    """The bytes from ``start`` to ``end`` of a file, and what stands there instead."""

    start: int
    end: int
    new: bytes


@dataclass(frozen=True)
class SourceFile:
    """A file of an engine's package. ``file``: its path within the package, with slashes. ``text``: all of it."""

    file: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """The parsed file. Raises SourceError."""
        try:
            return ast.parse(self.text)
        except (SyntaxError, ValueError) as error:
            line = getattr(error, "lineno", None)
            where = "" if line is None else f" line {line}:"
            raise SourceError(f"{self.file} does not parse:{where} {getattr(error, 'msg', error)}") from error

    @cached_property
    def functions(self) -> dict[str, list[Function]]:
        """The functions and methods by qualified name, outermost only, in the order of the source.

        A name has more than one definition where it is overloaded, or a property that can be set.
        """
        found: dict[str, list[Function]] = {}
        for name, function in _functions(self.tree.body, ""):
            found.setdefault(name, []).append(function)
        return found

    @cached_property
    def executable(self) -> frozenset[int]:
        """The lines that belong to a statement, as the driver notes them, without comments and blank lines."""
        found: set[int] = set()

        def claim(first: int, last: int) -> None:
            found.update(range(first, last + 1))

        # A tree of its own: what notes statements may also change them.
        noting(ast.parse(self.text).body, claim)
        return frozenset(line for line in found if is_code(self.lines[line - 1]))

    @cached_property
    def lines(self) -> list[str]:
        """The lines as the parser counts them, from number 1."""
        return [line.decode() for line in self.data.splitlines()]

    @cached_property
    def data(self) -> bytes:
        """The text as the parser's columns count it."""
        return self.text.encode()

    @cached_property
    def _line_starts(self) -> list[int]:
        starts = [0]
        for line in self.data.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        return starts

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Where a piece of source stands, in bytes."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self._line_starts[node.lineno - 1] + node.col_offset
        return start, self._line_starts[node.end_lineno - 1] + node.end_col_offset

    def line_of(self, offset: int) -> int:
        """The number of the line that holds a byte."""
        return self.data.count(b"\n", 0, offset) + 1

    def instead(self, statement: ast.stmt, new: str) -> Edit:
        """``new``, which is one line, in place of a statement, with all later lines where they were."""
        start, end = self.span(statement)
        return Edit(start, end, new.encode() + b"\n" * self.data.count(b"\n", start, end))

    def edited(self, edits: Iterable[Edit]) -> str:
        """The text with edits that do not overlap."""
        return spliced(self.data, edits).decode()


def read_source(root: Path, file: str) -> SourceFile:
    """A file of the package in the folder ``root``. Raises SourceError."""
    path = root / ENGINE_PACKAGE / file
    try:
        return SourceFile(file, path.read_bytes().decode())
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def spliced(data: bytes, edits: Iterable[Edit]) -> bytes:
    """Bytes with edits that do not overlap."""
    for edit in sorted(edits, key=lambda edit: edit.start, reverse=True):
        data = data[: edit.start] + edit.new + data[edit.end :]
    return data


def first_line(function: Function) -> int:
    """The first line of a definition, decorators included."""
    return min([function.lineno, *[decorator.lineno for decorator in function.decorator_list]])


def is_code(line: str) -> bool:
    """Whether a line holds more than a comment."""
    return bool(line.strip()) and not line.lstrip().startswith("#")


def _functions(body: list[ast.stmt], owner: str) -> Iterator[tuple[str, Function]]:
    for statement in body:
        if isinstance(statement, Function):
            yield owner + statement.name, statement
        elif isinstance(statement, ast.ClassDef):
            yield from _functions(statement.body, f"{owner}{statement.name}.")
