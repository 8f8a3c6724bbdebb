"""What a gate run says: one document, from which every report is made."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from fuzz.tally import Signature
from oracle.compare import Comparison, Word
from oracle.costs import Costs
from oracle.scenario import Scenario
from oracle.verdict import Finding

GATE_FORMAT_VERSION = 1

GateWord = Word | Literal["could not judge"]

Layer = Literal["vector", "directed", "fuzz"]
"""Where a scenario came from: a stored one, one made from the solver's inputs, a generated one."""

GroundStatus = Literal["proved equal", "executed", "never executed", "removed"]


class Side(msgspec.Struct, frozen=True):
    """One of the two builds. ``policy``: the release that it is declared to follow, None: judged by invariants only.
    ``source``: the folder that holds its package ``vllm``."""

    name: str
    version: str
    policy: str | None
    source: str


class Place(msgspec.Struct, frozen=True):
    """A place in the candidate's source: the file within the package ``vllm``, the function, and a line of it."""

    file: str
    function: str
    line: int


class Ground(msgspec.Struct, frozen=True):
    """What the verdict rests on for one changed function.

    ``scenarios``: how many ran changed lines of it; ``lines``: its changed lines; ``lines_hit``: those that ran.
    ``lines_proved``: those that are proved to make no difference. ``why``: in words, where there is more to say.
    """

    place: Place
    status: GroundStatus
    lines: tuple[int, ...] = ()
    lines_hit: tuple[int, ...] = ()
    scenarios: int = 0
    why: str = ""
    lines_proved: tuple[int, ...] = ()

    @property
    def lines_unseen(self) -> tuple[int, ...]:
        """Changed lines that were neither run nor proved; of a function that is proved equal none count."""
        seen = {*self.lines_hit, *self.lines_proved}
        return () if self.status in ("proved equal", "removed") else tuple(sorted({*self.lines} - seen))


class GateFinding(msgspec.Struct, frozen=True, kw_only=True):
    """Something in which the candidate is worse, with the smallest scenario that shows it.

    ``signature``: of the broken rule, or of the first differing decision (rule ``COST`` or ``DIFF``). ``sentence``:
    the rule, or what is worse. ``finding``: the judge's words where a rule is broken. ``place``: the function of the
    engine that takes the decision. ``layer``: what found it first, after ``seconds`` of the run. ``on_baseline``: the
    baseline shows the same signature in other scenarios. ``known``: the reason in the known findings, if it is there.
    ``lines``: the traces of the scenario on both sides. ``path``: where it is stored.
    """

    signature: Signature
    sentence: str
    comparison: Comparison
    scenario: Scenario
    costs: tuple[Costs, Costs]
    lines: tuple[tuple[bytes, ...], tuple[bytes, ...]]
    layer: Layer
    seconds: float
    place: Place | None = None
    finding: Finding | None = None
    on_baseline: bool = False
    known: str = ""
    count: int = 1
    path: str = ""


class Control(msgspec.Struct, frozen=True):
    """A fault that was planted in the candidate's own source, in this run. ``caught``: in ``scenarios`` scenarios;
    ``word``: the verdict that it got. ``why``: why it could not be tried."""

    name: str
    sentence: str
    place: Place
    caught: bool
    scenarios: int
    word: str = ""
    why: str = ""


class KnownEntry(msgspec.Struct, frozen=True):
    """What became of an entry of the known findings: ``still there``, ``no longer there``, expired, …."""

    signature: Signature
    status: str
    reason: str
    report: str


class Proof(msgspec.Struct, frozen=True):
    """What the proof layer said: ``rows`` proved of all; ``refuted``: the claims with their inputs; ``off``: why it
    was not on (a changed shape), empty if it was."""

    rows: int = 0
    proved: int = 0
    refuted: tuple[str, ...] = ()
    off: str = ""


class GateReport(msgspec.Struct, kw_only=True):
    """All of a run. ``words``: scenarios by verdict. ``mended``: by rule, scenarios in which only the baseline breaks
    it. ``costs``: of baseline and candidate, over all scenarios. ``difference``: the smallest scenario in which they
    differ, also where that is for the better. ``seconds``: wall time by phase. ``reason``: why it could not judge,
    ``tested``: then what the scenarios alone say, empty otherwise. ``settings``: seed, time and the like, for doing it
    again. ``accepted``: the user lets this verdict through."""

    kvoracle: str
    baseline: Side
    candidate: Side
    word: GateWord
    reason: str = ""
    tested: str = ""
    settings: dict[str, Any] = msgspec.field(default_factory=dict)
    scenarios: int = 0
    words: dict[str, int] = msgspec.field(default_factory=dict)
    mended: dict[str, int] = msgspec.field(default_factory=dict)
    costs: tuple[Costs, Costs] = (Costs(), Costs())
    grounds: tuple[Ground, ...] = ()
    proof: Proof = Proof()
    findings: tuple[GateFinding, ...] = ()
    difference: GateFinding | None = None
    known: tuple[KnownEntry, ...] = ()
    controls: tuple[Control, ...] = ()
    seconds: dict[str, float] = msgspec.field(default_factory=dict)
    accepted: bool = False
    exit_status: int = 2

    @property
    def title(self) -> str:
        """The verdict in a few words."""
        if self.word == "could not judge" or not self.grounds or not self.proof.off:
            return self.word
        return f"{self.word} (tested, not proved)"

    @property
    def new_findings(self) -> tuple[GateFinding, ...]:
        """Those that are not excused by the known findings."""
        return tuple(one for one in self.findings if not one.known)
