"""What a campaign counts; tallies of several workers add up to the same total in whatever order."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec

from fuzz.against import Against
from fuzz.trial import Trial
from oracle.verdict import Finding, Verdict

Signature = tuple[str, str, str]
"""Rule, first differing decision, geometry class."""

COVERED = ("hit", "junction", "preemption", "eviction", "copy")
"""What a summary always shows the share of, in this order."""

_DIGEST_BITS = 64

K = TypeVar("K")
N = TypeVar("N", int, float)


class Tally(msgspec.Struct):
    """Counts over scenarios.

    ``skipped`` are scenarios that the build is known to refuse; they were not given to it. ``scenarios`` were given
    to the engine, ``could_not_run`` (by reason) are those among them that gave nothing to judge, ``ours`` those in
    which the driver or the judge failed. ``features``: scenarios, given or skipped, whose swarm had each feature.
    ``steps`` and ``records`` were judged; ``repeated`` scenarios were run twice; ``twins``: pairs of scenarios that
    were compared, by metamorphic rule. ``judged`` and ``allowed`` are as in a verdict, ``coverage`` counts
    scenarios. ``seconds``: CPU by phase. ``signatures``: scenarios that showed each finding. ``digest`` stands for
    all traces, in any order. ``runners``: scenarios by the model-runner flavour that their traces name. ``against``:
    costs beside the reference engine's, where they were asked for.
    """

    scenarios: int = 0
    skipped: int = 0
    could_not_run: dict[str, int] = msgspec.field(default_factory=dict)
    ours: dict[str, int] = msgspec.field(default_factory=dict)
    features: dict[str, int] = msgspec.field(default_factory=dict)
    steps: int = 0
    records: int = 0
    repeated: int = 0
    twins: dict[str, int] = msgspec.field(default_factory=dict)
    judged: dict[str, int] = msgspec.field(default_factory=dict)
    unjudged: dict[str, str] = msgspec.field(default_factory=dict)
    allowed: dict[str, int] = msgspec.field(default_factory=dict)
    coverage: dict[str, int] = msgspec.field(default_factory=dict)
    seconds: dict[str, float] = msgspec.field(default_factory=dict)
    signatures: dict[Signature, int] = msgspec.field(default_factory=dict)
    digest: int = 0
    against: Against = msgspec.field(default_factory=Against)
    runners: dict[str, int] = msgspec.field(default_factory=dict)

    @property
    def runner(self) -> str:
        """The model-runner flavours that the traces name, in words."""
        return " and ".join(sorted(self.runners))

    @property
    def unrun(self) -> int:
        """Scenarios that could not run."""
        return sum(self.could_not_run.values())

    @property
    def failed(self) -> int:
        """Scenarios on which kvoracle itself failed."""
        return sum(self.ours.values())

    @property
    def ran(self) -> int:
        """Scenarios that gave something to judge."""
        return self.scenarios - self.unrun - self.failed

    @property
    def made(self) -> int:
        """Scenarios that were made, skipped ones included."""
        return self.scenarios + self.skipped

    def add(self, index: int, trial: Trial) -> None:
        """Count the trial of scenario ``index``."""
        self.scenarios += 1
        _add(self.seconds, trial.seconds)
        if trial.could_not_run:
            _add(self.ours if trial.ours else self.could_not_run, {trial.could_not_run: 1})
            return
        if trial.runner:
            _add(self.runners, {trial.runner: 1})
        verdict = trial.verdict
        self.steps += verdict.steps
        self.records += verdict.records
        self.repeated += trial.repeated
        self.unjudged |= verdict.unjudged
        _add(self.judged, verdict.judged)
        _add(self.allowed, verdict.allowed)
        _add(self.coverage, {name: 1 for name, times in verdict.coverage.items() if times})
        _add(self.signatures, dict.fromkeys(by_signature(verdict.findings), 1))
        self.digest = (self.digest + _digest(index, trial.lines)) % (1 << _DIGEST_BITS)

    def add_twins(self, rule: str, verdict: Verdict, seconds: float) -> None:
        """Count a pair of a metamorphic rule, if there was anything to compare, and what its runs took."""
        if verdict.judged:
            _add(self.twins, {rule: 1})
        _add(self.seconds, {"twins": seconds})
        _add(self.judged, verdict.judged)
        _add(self.allowed, verdict.allowed)
        _add(self.signatures, dict.fromkeys(by_signature(verdict.findings), 1))

    def draw(self, features: Iterable[str]) -> None:
        """Count the features that the swarm of a scenario has."""
        _add(self.features, dict.fromkeys(features, 1))

    def skip(self, generation_seconds: float) -> None:
        """Count a scenario that was made in vain."""
        self.skipped += 1
        _add(self.seconds, {"generation": generation_seconds})

    def merge(self, other: Tally) -> None:
        """Add what another tally counted."""
        self.scenarios += other.scenarios
        self.skipped += other.skipped
        self.steps += other.steps
        self.records += other.records
        self.repeated += other.repeated
        self.unjudged |= other.unjudged
        _add(self.could_not_run, other.could_not_run)
        _add(self.ours, other.ours)
        _add(self.features, other.features)
        _add(self.twins, other.twins)
        _add(self.runners, other.runners)
        _add(self.judged, other.judged)
        _add(self.allowed, other.allowed)
        _add(self.coverage, other.coverage)
        _add(self.seconds, other.seconds)
        _add(self.signatures, other.signatures)
        self.against.merge(other.against)
        self.digest = (self.digest + other.digest) % (1 << _DIGEST_BITS)


def by_signature(findings: list[Finding]) -> dict[Signature, Finding]:
    """The first finding of each signature, in order."""
    first: dict[Signature, Finding] = {}
    for finding in findings:
        first.setdefault(finding.signature, finding)
    return first


def _add(total: dict[K, N], more: Mapping[K, N]) -> None:
    for key, number in more.items():
        total[key] = total[key] + number if key in total else number


def _digest(index: int, lines: list[bytes]) -> int:
    digest = hashlib.blake2b(index.to_bytes(8, "little"), digest_size=_DIGEST_BITS // 8)
    for line in lines:
        digest.update(line)
        digest.update(b"\n")
    return int.from_bytes(digest.digest(), "little")
