"""A request: what an engine is given, and what it keeps of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from reference.holdings import Holding

UNCHANGED = 1 << 60


@dataclass(frozen=True)
class Request:
    """A request as it arrives. Sizes in tokens.

    ``prefixes``: the id of each prefix of the prompt and of all output to come, ``prefixes[n]`` for the first n tokens;
    two requests have the same id where they have the same tokens. They name hashes, and nothing is decided by what lies
    beyond the known tokens. ``max_output``: the tokens after which it ends. ``priority``: smaller is more urgent.
    ``skips_lookup``: it takes nothing from the prefix cache.
    """

    name: str
    prefixes: Sequence[int]
    prompt: int
    max_output: int
    priority: int = 0
    skips_lookup: bool = False


@dataclass(eq=False)
class Running:
    """A request inside the engine, waiting ones included. Sizes in tokens.

    ``known``: tokens so far, ``computed``: those with keys, values and state, as far as steps were scheduled and if
    all their drafts are right. ``drafts``: proposed and not scheduled yet. ``in_flight``: tokens that steps in flight
    compute. What these steps will give: ``sampling``, how many of them sample, so at least as many tokens;
    ``expected``, the tokens if all drafts are right. ``stay``: how often it was preempted. Per group: ``tables``;
    ``held``, what it holds; ``changed``, the first table entry that the listener does not know yet; ``delivered``, how
    many entries the worker has. ``saved``: the position and the column of the state that is saved inside its last
    chunk, in each Mamba group (None: none is).
    """

    request: Request
    arrival: int
    groups: int
    known: int
    computed: int = 0
    junction: int = 0
    drafts: int = 0
    in_flight: int = 0
    sampling: int = 0
    expected: int = 0
    stay: int = 0
    tables: list[list[int]] = field(default_factory=list)
    held: list[Holding] = field(default_factory=list)
    changed: list[int] = field(default_factory=list)
    delivered: list[int] = field(default_factory=list)
    saved: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        self.start_over()

    def start_over(self) -> None:
        """Hold nothing: new, preempted or ended. Nothing is expected any more of what is in flight."""
        self.computed = self.drafts = self.sampling = self.expected = 0
        self.tables = [[] for _ in range(self.groups)]
        self.held = [Holding() for _ in range(self.groups)]
        self.changed = [UNCHANGED] * self.groups
        self.delivered = [0] * self.groups
        self.saved = None

    @property
    def ends_in_flight(self) -> bool:
        """Whether the steps in flight bring its last token, whatever becomes of their drafts."""
        return self.known + self.sampling >= self.request.prompt + self.request.max_output

    @property
    def urgency(self) -> tuple[int, int]:
        """Whoever is smaller goes first under the priority policy."""
        return (self.request.priority, self.arrival)
