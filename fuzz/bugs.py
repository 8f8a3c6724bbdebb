"""Public bugs of vLLM as a measure of recall: is each found on the releases that have it, and on no other?"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from fuzz.engines.open import Prepared, open_prepared
from fuzz.engines.protocol import Engine
from fuzz.gate.steer import Supply
from fuzz.trial import try_scenario
from fuzz.vectors import Vector, vectors
from oracle.verdict import Finding


@dataclass(frozen=True)
class Bug:
    """One public bug. ``threads``: vLLM's issues and pull requests; ``rules``: those that it breaks.

    ``vectors``: scenarios that show it, or, with ``silent``, that were taken for it and are right on every release.
    ``decision``, ``part``: of findings that fuzzing alone takes for it, the decision ("": any) and what the class of
    geometries contains ("!x": does not contain x).
    """

    name: str
    threads: tuple[int, ...]
    rules: frozenset[str]
    vectors: tuple[str, ...]
    decision: str = ""
    part: str = ""
    silent: bool = False

    def is_it(self, finding: Finding) -> bool:
        """Whether a finding of a random scenario is taken for this bug."""
        inside = self.part.removeprefix("!") in finding.geometry
        fits = inside != self.part.startswith("!")
        return finding.rule in self.rules and self.decision in ("", finding.decision) and fits


_CONTENT = frozenset({"C1", "S2"})

BUGS: tuple[Bug, ...] = (
    Bug(
        "state-poisoned-by-fragment",
        (43559, 51113),
        _CONTENT,
        (
            "state-poisoned-by-fragment",
            "state-poisoned-by-fragment-three-at-once",
            "state-poisoned-by-fragment-read",
        ),
        part="!unequal",
    ),
    Bug("wrong-grid", (54076,), _CONTENT, ("wrong-grid", "wrong-grid-at-interval-0"), part="/unequal"),
    Bug(
        "eagle-resend-misses",
        (53504,),
        frozenset({"U3", "R6"}),
        ("eagle-resend-misses", "eagle-resend-misses-block-drop"),
        part="/eagle",
    ),
    Bug(
        "eagle-resend-misses, inside a block",
        (53504, 57444),
        frozenset({"U3", "R6"}),
        ("eagle-resend-misses-inside-a-block",),
        decision="tail",
        part="/eagle",
    ),
    Bug(
        "window-diverges-in-last-unit",
        (57610,),
        frozenset({"U3"}),
        ("window-diverges-in-last-unit", "window-diverges-in-last-unit-unequal"),
        decision="divergence",
    ),
    Bug("budget-below-block", (45414, 40757), frozenset({"P2"}), ("budget-below-block-left-over",)),
    Bug("decodes-starve-prefill", (45414,), frozenset({"P2"}), ("decodes-starve-prefill",)),
    Bug(
        "preempted-in-the-same-step",
        (57580, 43569),
        frozenset({"C1"}),
        ("preempted-in-the-same-step",),
        part="!mamba",
    ),
    Bug("lookups-counted-per-retry", (43736,), frozenset({"T1"}), ("lookups-counted-per-retry",)),
    Bug(
        "window-diverges-at-the-unit (twin)",
        (),
        frozenset({"U3", "U1", "R1", "R2"}),
        ("window-diverges-at-the-unit", "window-diverges-at-the-unit-unequal"),
        silent=True,
    ),
    Bug("decodes-leave-a-block (twin)", (), frozenset({"P1", "P2"}), ("decodes-leave-a-block",), silent=True),
    Bug("budget-below-block, from 0.27", (45414,), frozenset({"P1", "P2"}), ("budget-below-block",), silent=True),
    Bug(
        "third-sibling-hits", (45238, 37898), frozenset({"U1", "R1", "L1", "L2"}), ("third-sibling-hits",), silent=True
    ),
    Bug(
        "claimed corruption with MTP",
        (53912, 57128, 43650, 48375),
        frozenset({"C1", "C2", "S2", "S3", "L1", "L3", "A1", "A2"}),
        tuple(f"must-stay-silent-{number}" for number in range(1, 10)),
        silent=True,
    ),
)


class Recall(msgspec.Struct, frozen=True):
    """What became of one bug on one release.

    ``present``: by the vectors' documented verdicts (None: the release refuses all of them); ``found``: by a rule of
    the bug in some vector, now. ``judged``: the bug's rules had something to judge in each vector that was run.
    ``could_not_run``: why a vector was not run, or was though it is said to be refused; empty otherwise.
    """

    bug: str
    release: str
    present: bool | None
    found: bool
    judged: bool
    could_not_run: str = ""

    @property
    def passed(self) -> bool:
        """Found where it is, judged and silent where it is not."""
        if self.could_not_run:
            return False
        return self.present is None or (self.judged and self.found == self.present)


def recall(prepared: Prepared) -> Iterator[Recall]:
    """Run the vectors of every bug on one release."""
    documents = {vector.name: vector for vector in vectors()}
    engine = open_prepared(prepared)
    try:
        for bug in BUGS:
            yield _recall(engine, prepared.release or "", bug, [documents[name] for name in bug.vectors])
    finally:
        engine.close()


def _recall(engine: Engine, release: str, bug: Bug, documents: list[Vector]) -> Recall:
    """Run the vectors of one bug."""
    present, found, judged, reasons = False, False, True, []
    documented = [one.expected.get(release) for one in documents]
    for one, rules in zip(documents, documented, strict=True):
        trial = try_scenario(engine, one.scenario, bug.rules)
        refused = trial.could_not_run.startswith("refused: ")
        if rules is None:
            if not refused:
                reasons.append(f"{one.name}: the release is said to refuse it, and does not")
        elif trial.could_not_run:
            reasons.append(f"{one.name}: {trial.could_not_run}")
        else:
            present = present or bool(bug.rules & set(rules))
            found = found or bool(trial.verdict.findings)
            judged = judged and any(trial.verdict.judged.values())
    ran = any(rules is not None for rules in documented)
    return Recall(bug.name, release, present if ran else None, found, judged, "; ".join(reasons))


def fuzz_alone(prepared: Prepared, bug: Bug, seconds: float, seed: int) -> tuple[float | None, int]:
    """Seconds until a random scenario shows a bug, None where none did in time; and how many scenarios were run."""
    engine = open_prepared(prepared)
    started, ran = time.monotonic(), 0
    try:
        for scenario in Supply([prepared], seed, ()).generated():
            if time.monotonic() - started > seconds:
                break
            ran += 1
            if any(bug.is_it(finding) for finding in try_scenario(engine, scenario, bug.rules).verdict.findings):
                return time.monotonic() - started, ran
    finally:
        engine.close()
    return None, ran
