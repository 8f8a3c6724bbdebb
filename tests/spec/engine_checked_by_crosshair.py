"""Functions that CrossHair checks: the split of the engine whose sources are in ENGINE_SOURCE is the reference's.

The domain is that of ``checked_by_crosshair``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

from reference import split
from reference.policy import NEWEST, POLICIES, Policy
from reference.split import SplitSetting
from spec.engine_split import EngineSplit
from spec.lift import ShapeChanged, SourceTree, StubType


def answer_crosshair(cls: type, name: str) -> NoReturn:
    """CrossHair asks every type for special attributes; a stub must answer that it has none instead of refusing."""
    if name.startswith("__"):
        raise AttributeError(name)
    raise ShapeChanged(f"the engine reads {cls.__name__}.{name}, which nothing was declared for")


StubType.__getattr__ = answer_crosshair  # type: ignore[method-assign]
ENGINE = EngineSplit(SourceTree(Path(os.environ["ENGINE_SOURCE"])))


def agrees(policy: Policy, start: int, end: int, prompt: int, junction: int, room: int, drop: bool) -> bool:
    """Whether the engine grants what the reference grants under a release's policy."""
    setting = SplitSetting(16, 4, 16, room, drop)
    numbers = (setting, start, end - start, prompt, prompt, junction)
    return bool(ENGINE(*numbers) == split.split(policy, *numbers))


def engine_agrees(start: int, end: int, prompt: int, junction: int, room: int, drop: bool) -> bool:
    """
    pre: 0 <= start < end <= prompt and room >= 1
    pre: 0 <= junction < prompt and junction % 16 == 0
    post: __return__
    """
    return agrees(NEWEST, start, end, prompt, junction, room, drop)


def engine_agrees_with_another_release(start: int, end: int, prompt: int, junction: int, room: int, drop: bool) -> bool:
    """
    pre: 0 <= start < end <= prompt and room >= 1
    pre: 0 <= junction < prompt and junction % 16 == 0
    post: __return__
    """
    return agrees(POLICIES["0.27.1"], start, end, prompt, junction, room, drop)
