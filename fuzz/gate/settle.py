"""From what was seen to what is told: the findings of a gate run, each with the smallest scenario that shows it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from fuzz.engines.open import Prepared
from fuzz.findings import (
    EngineFacts,
    Origin,
    finding_document,
    finding_path,
    new_finding,
    scenario_document,
    sentence,
    write_whole,
)
from fuzz.gate.account import Account, First
from fuzz.gate.model import GateFinding, Place
from fuzz.gate.pair import COST, DIFFERENCE, Compared, Pair
from fuzz.gate.source_file import SourceError, read_source
from fuzz.report import DECIDED_BY
from fuzz.shrink import shrink, size
from fuzz.story import story
from fuzz.tally import Signature
from oracle.scenario import Scenario
from oracle.verdict import Finding

SHRUNK_MAX = 6
"""Signatures that are made small; of further ones the smallest scenario that was met is shown."""

_ATTEMPTS = 400
_FILES = ("v1/core/sched/scheduler.py", "v1/core/kv_cache_manager.py", "v1/core/single_type_kv_cache_manager.py",
          "v1/core/block_pool.py", "v1/core/kv_cache_coordinator.py", "v1/core/sched/async_scheduler.py")  # fmt: skip


def by_weight(account: Account, excused: Mapping[Signature, str]) -> list[Signature]:
    """The signatures in which the candidate is worse: new broken rules first, then costs, then what is known."""

    def weight(signature: Signature) -> tuple[bool, bool, bool, tuple[int, ...], Signature]:
        old = signature in account.on_baseline
        return (
            signature in excused,
            old,
            signature[0] == COST,
            size(account.seen[signature].smallest.scenario),
            signature,
        )

    return sorted(account.worse(), key=weight)


def make_small(pair: Pair, account: Account, signatures: Sequence[Signature], deadline: float) -> None:
    """Shrink the scenarios of some signatures, in turn, until the deadline."""
    for place, signature in enumerate(signatures):
        left = deadline - time.monotonic()
        if left <= 0:
            return
        share = time.monotonic() + left / (len(signatures) - place)
        first = account.seen[signature]
        first.smallest = _shrunk(pair, signature, first.smallest, share)


def _shrunk(pair: Pair, signature: Signature, start: Compared, deadline: float) -> Compared:
    smallest = start

    def recurs(scenario: Scenario) -> Finding | None:
        nonlocal smallest
        one = pair.one(scenario, start.layer)
        if signature not in one.signatures:
            return None
        smallest = one
        return _finding_of(signature, one)

    shrink(start.scenario, recurs, attempts=_ATTEMPTS, deadline=deadline)
    return smallest


def _finding_of(signature: Signature, one: Compared) -> Finding:
    """The judge's finding; of what breaks no rule one that says in what it is worse."""
    rule, decision, geometry = signature
    return _broken(signature, one) or Finding(
        rule=rule, decision=decision, geometry=geometry, step=0, record=0, reason=cost_words(one)
    )


def _broken(signature: Signature, one: Compared) -> Finding | None:
    """The judge's finding of this signature, if it is a rule's."""
    assert one.comparison is not None
    return next((finding for finding in one.comparison.broken if finding.signature == signature), None)


def cost_words(one: Compared) -> str:
    """In what the candidate is worse and better, in words."""
    assert one.comparison is not None
    baseline, candidate = (side.costs for side in one.sides)
    told = [
        f"{word} in {name.replace('_', ' ')} ({getattr(baseline, name)} -> {getattr(candidate, name)})"
        for word, names in (("worse", one.comparison.worse), ("better", one.comparison.better))
        for name in names
    ]
    mended = sorted({finding.rule for finding in one.comparison.mended})
    told += [f"{', '.join(mended)} broken on the baseline only"] if mended else []
    return "; ".join(told) or "decides otherwise at the same cost"


def gate_finding(signature: Signature, account: Account, source: Path, known: str, path: str) -> GateFinding:
    """What a report tells of a signature. ``known``: why it is excused; ``path``: where it is stored."""
    first: First = account.seen[signature]
    one = first.smallest
    assert one.comparison is not None
    broken = _broken(signature, one)
    difference = one.comparison.difference
    kind = broken.decision if broken is not None else difference.kind if difference is not None else signature[1]
    return GateFinding(
        signature=signature,
        sentence=sentence(signature[0]) if broken is not None else f"The candidate is {cost_words(one)}.",
        comparison=one.comparison,
        scenario=one.scenario,
        costs=(one.sides[0].costs, one.sides[1].costs),
        lines=one.lines,
        layer=first.first.layer,
        seconds=round(first.seconds, 1),
        place=place_of(kind, source),
        finding=broken,
        on_baseline=signature in account.on_baseline,
        known=known,
        count=first.count,
        path=path,
    )


def place_of(kind: str, source: Path) -> Place | None:
    """Where the engine's source takes this kind of decision; None if it is not where it was in any release."""
    qualname = DECIDED_BY.get(kind, "Scheduler.schedule")
    for file in _FILES:
        try:
            functions = read_source(source, file).functions
        except SourceError:
            continue
        if qualname in functions:
            return Place(file, qualname, functions[qualname][-1].lineno)
    return None


def store(one: Compared, signature: Signature, folder: Path, candidate: Prepared) -> Path:
    """Write what was just seen, so that it survives a kill: a finding that can be replayed, or the scenario."""
    assert one.comparison is not None
    path = finding_path(folder, candidate.name.typed, signature)
    finding = _finding_of(signature, one)
    if signature[0] in (COST, DIFFERENCE):
        write_whole(path, scenario_document(one.scenario) | {"note": finding.reason})
        return path
    facts = EngineFacts(candidate.name.typed, candidate.version, "", candidate.release)
    rows = story(one.lines[1], finding, {})
    write_whole(path, finding_document(new_finding(finding, one.scenario, facts, Origin(note="kvoracle gate"), rows)))
    return path
