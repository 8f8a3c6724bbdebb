"""What the judge says of a trace: findings, allowed differences, and how much there was to judge."""

from __future__ import annotations

import msgspec


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """One rule, broken once.

    ``rule``: its id. ``decision``: the kind of record at which it was seen (``split``, ``lookup``,
    ``commit``, ``step``, …). ``step``: the engine step, ``record``: the index of the record in the trace.
    ``expected`` and ``actual`` are short texts; ``reason`` says in words how the one follows and the other
    does not. ``geometry``: the geometry class (``full+mamba``, ``full+swa/unequal``, …).
    """

    rule: str
    decision: str
    geometry: str
    step: int
    record: int
    reason: str
    request: str = ""
    group: int = -1
    block: int = -1
    expected: str = ""
    actual: str = ""

    @property
    def signature(self) -> tuple[str, str, str]:
        """What makes two findings the same fault: rule, first differing decision, geometry class."""
        return (self.rule, self.decision, self.geometry)


class Verdict(msgspec.Struct):
    """The judgement of one trace.

    ``judged``: per rule, how often it had something to judge (a rule that is missing or 0 was *not
    judged*). ``allowed``: per named allowed difference, how often it was seen. ``coverage``: how often
    the trace held a hit, a junction, a preemption, an eviction, a copy, …. ``unjudged``: rules that this
    build or trace cannot be judged by, with the reason. ``records`` and ``steps`` count what was read.
    """

    findings: list[Finding] = msgspec.field(default_factory=list)
    judged: dict[str, int] = msgspec.field(default_factory=dict)
    allowed: dict[str, int] = msgspec.field(default_factory=dict)
    coverage: dict[str, int] = msgspec.field(default_factory=dict)
    unjudged: dict[str, str] = msgspec.field(default_factory=dict)
    records: int = 0
    steps: int = 0

    def add(self, other: Verdict) -> None:
        """Take in what a comparison with another trace gave beside the judgement of this one."""
        self.findings += other.findings
        for mine, theirs in ((self.judged, other.judged), (self.allowed, other.allowed)):
            for name, times in theirs.items():
                mine[name] = mine.get(name, 0) + times

    @property
    def word(self) -> str:
        """``violates``, ``not judged``, ``allowed difference`` or ``conforms``, the strongest that holds."""
        if self.findings:
            return "violates"
        if not any(self.judged.values()) or "end" in self.unjudged:
            return "not judged"
        return "allowed difference" if self.allowed else "conforms"
