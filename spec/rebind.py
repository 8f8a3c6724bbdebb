"""Copies of functions that see other builtins: the same code objects, with ``min``, ``max`` or ``range`` replaced.

The original functions stay as they are. A copy covers all functions of ours that are reached from it.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any

ROOMS = ("reference.", "spec.")


def is_ours(module: str) -> bool:
    """Whether a module belongs to the rooms whose functions are copied."""
    return (module + ".").startswith(ROOMS)


class Copier:
    """Makes copies that share their helpers."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        self._names = names
        self._copies: dict[types.FunctionType, types.FunctionType] = {}

    def copy(self, function: Any) -> Any:
        """The copy of a function of ours, or of a module of ours whose functions are copied when asked for."""
        if isinstance(function, types.ModuleType) and is_ours(function.__name__):
            return _Module(self, function)
        if not isinstance(function, types.FunctionType) or not is_ours(function.__module__):
            return function
        if function not in self._copies:
            spaces: dict[str, Any] = {**self._names}
            copied = types.FunctionType(
                function.__code__, spaces, function.__name__, function.__defaults__, function.__closure__
            )
            copied.__kwdefaults__ = function.__kwdefaults__
            self._copies[function] = copied
            spaces.update({name: self.copy(value) for name, value in function.__globals__.items()})
        return self._copies[function]


class _Module:
    """A module whose functions are copies."""

    def __init__(self, copier: Copier, module: types.ModuleType) -> None:
        self._copier = copier
        self._module = module

    def __getattr__(self, name: str) -> Any:
        value = self._copier.copy(getattr(self._module, name))
        setattr(self, name, value)
        return value
