"""What differs between two source trees of the engine: which functions, at which lines, and what they decide."""

from __future__ import annotations

import ast
import copy
import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from fuzz.engines.driver import ENGINE_PACKAGE, is_run
from fuzz.gate.source_file import Function, SourceError, SourceFile, first_line, is_code, read_source
from spec.lift import normal_form

FOLDERS = ("v1/core",)
FILES = ("v1/request.py", "v1/kv_cache_interface.py")
"""What is compared: all Python files of the folders and below, and these files."""

MODULE = "<module>"
"""Stands for the code of a file, or of its classes, that is in no function."""

Kind = Literal["changed", "added", "removed"]


class Change(msgspec.Struct, frozen=True):
    """A function that differs. ``file``: within the package, with slashes. ``qualname``: or ``<module>``.

    ``first`` and ``last``: where it stands in the candidate, 0 if it was removed. ``lines``: of the candidate,
    those that hold changed statements; where statements were only taken away, the one that now follows there.
    """

    file: str
    qualname: str
    kind: Kind
    first: int
    last: int
    lines: tuple[int, ...]


class _Code(msgspec.Struct, frozen=True):
    """A function, or what is in none. ``form``: what it does, however written; ``lines``: numbers of its lines."""

    form: str
    lines: list[int]


_Side = dict[str, tuple[SourceFile, dict[str, _Code]]]


def changed_functions(baseline: Path, candidate: Path) -> list[Change]:
    """The functions that differ between two folders that hold the package, by file and then as they stand there.

    Docstrings, comments, layout and annotations make no difference, nor does the place of a function in its file,
    or under the same name in another one. The name of a local variable does. Raises SourceError.
    """
    old, new = _in_scope(baseline), _in_scope(candidate)
    nothing = SourceFile("", ""), dict[str, _Code]()
    changes = [
        change
        for file in sorted({*old, *new})
        for change in _changes_of(file, *old.get(file, nothing), *new.get(file, nothing))
    ]
    moved = _moved(changes, old, new)
    return [change for change in changes if (change.file, change.qualname) not in moved]


def _in_scope(root: Path) -> _Side:
    package = root / ENGINE_PACKAGE
    paths = [path for folder in FOLDERS for path in (package / folder).rglob("*.py")]
    if not paths:
        raise SourceError(f"{root} has no Python files in {ENGINE_PACKAGE}/{FOLDERS[0]}")
    files = [path.relative_to(package).as_posix() for path in paths]
    files += [file for file in FILES if (package / file).is_file()]
    sources = [read_source(root, file) for file in files]
    return {source.file: (source, _codes(source)) for source in sources}


# --- the code of a file ------------------------------------------------------------------------------


def _codes(source: SourceFile) -> dict[str, _Code]:
    """All code of a file by qualified name, that of no function last."""
    codes: dict[str, _Code] = {}
    elsewhere = set(_typing_lines(source.tree))
    for name, definitions in source.functions.items():
        lines = [line for one in definitions for line in range(first_line(one), (one.end_lineno or 0) + 1)]
        codes[name] = _Code(_form(definitions), lines)
        elsewhere.update(lines)
    # Outside a class, a name that is only annotated is nothing.
    outside = [one for one in _outside_functions(source.tree.body) if getattr(one, "value", one) is not None]
    if outside:
        lines = [line for line in range(1, len(source.lines) + 1) if line not in elsewhere]
        codes[MODULE] = _Code(_form(outside), lines)
    return codes


def _form(statements: Sequence[ast.stmt]) -> str:
    """What statements do: positions, docstrings and annotations have no part in it."""
    return "\n".join(ast.dump(normal_form(statement)) for statement in statements)


def _outside_functions(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run when a module is loaded; classes come without their methods."""
    for statement in body:
        if isinstance(statement, Function) or not is_run(statement) or _is_typing(statement):
            continue
        if isinstance(statement, ast.ClassDef):
            shell = copy.copy(statement)
            shell.body = list(_outside_functions(statement.body)) or [ast.Pass()]
            yield shell
        else:
            yield statement


def _is_typing(statement: ast.stmt) -> bool:
    """Whether a statement only speaks to type checkers: ``if TYPE_CHECKING``."""
    if not isinstance(statement, ast.If) or statement.orelse:
        return False
    return ast.unparse(statement.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def _typing_lines(tree: ast.Module) -> Iterator[int]:
    for statement in tree.body:
        if _is_typing(statement):
            yield from range(statement.lineno, (statement.end_lineno or 0) + 1)


# --- differences -------------------------------------------------------------------------------------


def _changes_of(
    file: str, old: SourceFile, olds: dict[str, _Code], new: SourceFile, news: dict[str, _Code]
) -> Iterator[Change]:
    for name, code in news.items():
        before = olds.get(name)
        if before is not None and before.form == code.form:
            continue
        lines = _lines_that_differ(old, before.lines if before else [], new, code.lines)
        # Code of no function is all over the file; what changed of it is what can be pointed at.
        extent = lines if name == MODULE and lines else code.lines
        yield Change(file, name, "changed" if before else "added", min(extent), max(extent), tuple(lines))
    for name in olds:
        if name not in news:
            yield Change(file, name, "removed", 0, 0, ())


def _lines_that_differ(old: SourceFile, old_lines: list[int], new: SourceFile, new_lines: list[int]) -> list[int]:
    """Of ``new_lines`` those whose statements are not among ``old_lines`` in that order."""
    before = [line for line in old_lines if is_code(old.lines[line - 1])]
    after = [line for line in new_lines if is_code(new.lines[line - 1])]
    olds = [old.lines[line - 1].rstrip() for line in before]
    news = [new.lines[line - 1].rstrip() for line in after]
    found: set[int] = set()
    for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(None, olds, news, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        held = [line for line in after[j1:j2] if line in new.executable]
        if not held and (_matter(old, before[i1:i2]) or _matter(new, after[j1:j2])):
            following = [line for line in after[j1:] if line in new.executable]
            held = following[:1] or [line for line in after[:j1] if line in new.executable][-1:]
        found.update(held)
    return sorted(found)


def _matter(source: SourceFile, lines: Iterable[int]) -> bool:
    """Whether lines do anything: they belong to a statement, or say when others run."""
    return any(
        line in source.executable or re.match(r"\s*(else|finally)\s*:", source.lines[line - 1]) for line in lines
    )


def _moved(changes: Sequence[Change], old: _Side, new: _Side) -> set[tuple[str, str]]:
    """The functions that only went to another file, as (file, name) of both ends."""
    ends: set[tuple[str, str]] = set()
    removed = [change for change in changes if change.kind == "removed"]
    for added in changes:
        for gone in removed if added.kind == "added" else ():
            same_name = gone.qualname == added.qualname
            if same_name and old[gone.file][1][gone.qualname].form == new[added.file][1][added.qualname].form:
                ends |= {(gone.file, gone.qualname), (added.file, added.qualname)}
    return ends


# --- what the differences decide ---------------------------------------------------------------------


DecisionPoint = Literal["split", "lookup", "masks", "commit", "tails", "schedule", "allocate", "pool", "chunked-local"]

_BY_NAME: tuple[tuple[str, DecisionPoint], ...] = (
    (r"aligned_split|prefill_checkpoint|reserve_prefill_lookahead", "split"),
    (
        r"cache_hit|get_cached_block|computed_blocks|prefix_cache_hit|proof_margin|block_hash|BlockHash|cached_tokens",
        "lookup",
    ),
    (r"block_mask|boundaries|contiguous_blocks|retention|retains", "masks"),
    (r"cache_blocks|full_blocks|cacheable|insert_block_hash|hash_block|hasher|update_block_hashes", "commit"),
    (r"partial|tail|cow|copies|move_block_hashes|internal_checkpoint|truncate", "tails"),
    (r"allocat|required_blocks|skipped|remove_blocks|blocks_in_range|admission|reserved_blocks|relocate", "allocate"),
    (r"ChunkedLocal", "chunked-local"),
    (r"free_block|evict|touch|get_new_blocks|unpin|free$|for_free|BlockQueue|BlockPool\.|HashToBlock", "pool"),
    (r"Scheduler\.(schedule|update_|_preempt|add_|finish_|_free_request|_handle_)|RequestQueue|check_stop", "schedule"),
)
"""Patterns in qualified names; a function can touch several points."""

_BY_FILE: tuple[tuple[str, DecisionPoint], ...] = (
    (r"block_pool|kv_cache_utils|kv_cache_metrics", "pool"),
    (r"coordinator", "lookup"),
    (r"kv_cache", "allocate"),
    (r"", "schedule"),
)
"""For functions that no pattern names: the first that is found in the file's path."""


def decision_points(changes: Iterable[Change]) -> frozenset[DecisionPoint]:
    """The points of decision that changed functions touch, judged by their names and files."""
    found: set[DecisionPoint] = set()
    for change in changes:
        named = {point for pattern, point in _BY_NAME if re.search(pattern, change.qualname)}
        found |= named or {next(point for pattern, point in _BY_FILE if re.search(pattern, change.file))}
    return frozenset(found)
