"""Opens an engine by its name, in two halves: prepared once by the parent, opened by every worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from fuzz.engines.conforming import open_reference
from fuzz.engines.names import (
    NEWEST_RELEASE,
    SUPPORTED_RELEASES,
    EngineError,
    EngineName,
    nearest_release,
    parse_engine_name,
)
from fuzz.engines.planted import FAULTS, open_planted
from fuzz.engines.process import VllmEngine
from fuzz.engines.protocol import Engine
from fuzz.engines.provision import Launch, resolve

INVARIANTS_ONLY = "none"
"""The ``--policy`` that compares with no release: only the invariants judge."""

Say = Callable[[str], None]


class PolicyError(EngineError):
    """``--policy`` names no release that has one; the message is one line for the user."""


@dataclass(frozen=True)
class Prepared:
    """An engine that is ready to be opened, by whichever process; it can be pickled.

    ``version``: of the build. ``release``: the release whose policy it is compared with (None: invariants
    only). ``label``: for people. ``notes``: lines that the user should see.
    """

    name: EngineName
    launch: Launch | None
    version: str
    release: str | None
    label: str
    notes: tuple[str, ...] = ()

    def launched(self, **changes: Any) -> Prepared:
        """The same build of vLLM, launched with other ``patches`` or with lines to ``watch``."""
        assert self.launch is not None, f"{self.label} has no process of its own"
        return replace(self, launch=replace(self.launch, **changes))


def prepare_engine(
    typed: str,
    *,
    policy: str | None = None,
    say: Say = print,
    torch_index: str | None = None,
    allow_cuda: bool = False,
) -> Prepared:
    """Get the engine called ``typed`` ready; what a vLLM release lacks is downloaded.

    ``policy``: the release to compare it with instead of its own, or ``none``. Raises EngineError, whose
    message is one line that says what is wrong and how to mend it.
    """
    name = parse_engine_name(typed, planted=FAULTS.keys())
    chosen = checked_policy(policy)
    if name.kind in ("reference", "planted"):
        release = NEWEST_RELEASE if policy is None else chosen
        return Prepared(name, None, release or NEWEST_RELEASE, release, typed)
    if name.kind == "release":
        # ``vllm`` means another build one day; what is stored and printed names this one.
        name = replace(name, typed=f"vllm=={name.target}")
    launch = resolve(name, say=say, torch_index=torch_index, allow_cuda=allow_cuda)
    return Prepared(
        name, launch, launch.version, launch.release if policy is None else chosen, launch.label, launch.notes
    )


def open_prepared(prepared: Prepared, *, core: int | None = None) -> Engine:
    """Start a prepared engine and wait until it has loaded. Raises EngineError when it does not come up."""
    engine: Engine
    if prepared.launch is not None:
        vllm = VllmEngine(prepared.name.typed, prepared.launch, core=core)
        vllm.start()
        engine = vllm
    elif prepared.name.kind == "planted":
        engine = open_planted(prepared.name.target, prepared.version)
    else:
        engine = open_reference(prepared.version)
    engine.release = prepared.release
    return engine


def open_engine(typed: str, *, policy: str | None = None, core: int | None = None, say: Say = print) -> Engine:
    """Prepare and open in one go. Raises EngineError."""
    return open_prepared(prepare_engine(typed, policy=policy, say=say), core=core)


def is_conforming(typed: str) -> bool:
    """Whether the name is that of the reference engine or a planted fault, which are of any version asked for."""
    return typed == "reference" or typed.startswith("planted:")


def policy_to_ask_for(typed: str, version: str, release: str | None) -> str | None:
    """The ``--policy`` by which the build is compared with ``release`` again; None if it is so by itself."""
    own = NEWEST_RELEASE if is_conforming(typed) else nearest_release(version)
    return None if release == own else release or INVARIANTS_ONLY


def checked_policy(policy: str | None) -> str | None:
    """The release that ``--policy`` names; None for ``none`` and when it is not given. Raises PolicyError."""
    if policy is None or policy == INVARIANTS_ONLY:
        return None
    if policy not in SUPPORTED_RELEASES:
        raise PolicyError(
            f"--policy {policy}: no such policy; there is {', '.join(SUPPORTED_RELEASES)},"
            f" and {INVARIANTS_ONLY} for the invariants only"
        )
    return policy
