"""One number for what a function does: its code, and everything of ours that the code can reach.

Comments, docstrings of modules and line numbers do not count. What a release's policy says does not count
either: a cached result is kept with the policy's values that were read (see ``spec.cache``).
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import types
from collections.abc import Mapping
from typing import Any

from reference.policy import Policy
from spec.lift import Lifted
from spec.rebind import is_ours

PLAIN = (bool, bytes, complex, float, int, str, types.EllipsisType, types.NoneType)


class Digest:
    """Collects a description of values, each object once. ``lifted``: whether a function of an engine was met."""

    def __init__(self) -> None:
        self.lifted = False
        self._hash = hashlib.sha256()
        self._seen: dict[int, tuple[int, Any]] = {}

    @property
    def hex(self) -> str:
        """The number so far."""
        return self._hash.hexdigest()

    def add(self, value: Any) -> None:
        """Take a value into account."""
        if isinstance(value, PLAIN):
            self._word(type(value).__name__, repr(value))
        elif isinstance(value, Policy):
            self._word("a policy")
        elif isinstance(value, types.CodeType):
            self._code(value)
        elif isinstance(value, tuple):
            # Not told by its identity: whether equal constants are one object depends on where code was loaded from.
            self._all("tuple", *value)
        elif isinstance(value, frozenset):
            self._all("set", *sorted(value, key=repr))
        elif id(value) in self._seen:
            self._word("seen", self._seen[id(value)][0])
        else:
            # The object is kept, so that no later one can have its id.
            self._seen[id(value)] = (len(self._seen), value)
            self._compound(value)

    def _word(self, *words: Any) -> None:
        self._hash.update(("\0".join(map(str, words)) + "\1").encode())

    def _compound(self, value: Any) -> None:
        if isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, types.MethodType):
            self._all("method", value.__func__, value.__self__)
        elif isinstance(value, functools.partial):
            self._all("partial", value.func, value.args, value.keywords)
        elif isinstance(value, list):
            self._all("list", *value)
        elif isinstance(value, set):
            self._all("set", *sorted(value, key=repr))
        elif isinstance(value, Mapping):
            self._all("mapping", *(part for item in value.items() for part in item))
        elif isinstance(value, Lifted):
            self.lifted = True
            self._all("lifted", value.parts, value.binding)
        elif isinstance(value, type):
            self._class(value)
        else:
            self._object(value)

    def _all(self, word: str, *values: Any) -> None:
        self._word(word, len(values))
        for value in values:
            self.add(value)

    def _code(self, code: types.CodeType) -> None:
        self._word(
            "code",
            code.co_code.hex(),
            code.co_exceptiontable.hex(),
            code.co_argcount,
            code.co_kwonlyargcount,
            code.co_flags,
        )
        self._all("names", code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_consts)

    def _function(self, function: types.FunctionType) -> None:
        """What is not ours, such as a function that was lifted, is its own code alone."""
        self._word("function", function.__module__, function.__qualname__)
        self._all("parts", function.__code__, function.__defaults__, function.__kwdefaults__)
        self._all("closure", *(_content(cell) for cell in function.__closure__ or ()))
        if is_ours(function.__module__ or ""):
            names = sorted(_names_in(function.__code__))
            for name in names:
                if name in function.__globals__:
                    self._word("global", name)
                    self._global(function.__globals__[name], names)

    def _global(self, value: Any, names: list[str]) -> None:
        """A module of ours counts with those of its members whose names are used."""
        if not isinstance(value, types.ModuleType):
            self.add(value)
            return
        self._word("module", value.__name__)
        if is_ours(value.__name__):
            self._all("members", *(vars(value)[name] for name in names if name in vars(value)))

    def _class(self, kind: type) -> None:
        self._word("class", kind.__module__, kind.__qualname__)
        if is_ours(kind.__module__):
            members = {
                name: value
                for name, value in vars(kind).items()
                if isinstance(value, types.FunctionType) or not name.startswith("__")
            }
            self._all("members", *kind.__bases__, *(part for item in sorted(members.items()) for part in item))

    def _object(self, value: Any) -> None:
        kind = type(value)
        if isinstance(value, property):
            self._all("property", value.fget)
        elif isinstance(value, classmethod | staticmethod):
            self._all(kind.__name__, value.__func__)
        elif isinstance(value, types.ModuleType | types.BuiltinFunctionType):
            self._word("named", value.__name__)
        elif dataclasses.is_dataclass(value):
            self._all("dataclass", kind, *(getattr(value, field.name) for field in dataclasses.fields(value)))
        elif is_ours(kind.__module__):
            self._all("object", kind, vars(value) if hasattr(value, "__dict__") else None)
        else:
            self._word("other", kind.__module__, kind.__qualname__)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _names_in(code: types.CodeType) -> set[str]:
    """Names used in a code object and in the functions written inside it."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names_in(constant)
    return names
