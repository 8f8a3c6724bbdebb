"""What a gate run counts while scenarios are compared, and the verdict that follows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from fuzz.gate.changes import Change
from fuzz.gate.equality import Key
from fuzz.gate.model import Ground, Place
from fuzz.gate.pair import DIFFERENCE, Compared
from fuzz.gate.side import Lines
from fuzz.shrink import size
from fuzz.tally import Signature
from oracle.compare import Word, overall
from oracle.costs import Costs
from spec.statement import Alike

Shape = tuple[Word, frozenset[Signature], Signature | None]
"""Of a scenario: the verdict by cost alone, the broken rules, and the signature of a cost that is worse."""


class First(msgspec.Struct):
    """A signature as it was first seen, after ``seconds``; ``smallest`` scenario so far; in ``count`` scenarios."""

    first: Compared
    smallest: Compared
    seconds: float
    count: int = 1


class Account:
    """Counts over compared scenarios. ``changes``: whose lines are watched in the candidate."""

    def __init__(self, changes: Sequence[Change]) -> None:
        self.scenarios = 0
        self.words: Counter[str] = Counter()
        self.mended: Counter[str] = Counter()
        self.unrun: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
        self.ours: Counter[str] = Counter()
        self.costs: tuple[Costs, Costs] = (Costs(), Costs())
        self.seen: dict[Signature, First] = {}
        self.on_baseline: set[Signature] = set()
        self._shapes: Counter[Shape] = Counter()
        self._changes = changes
        self._line_of = {(one.file, line): one for one in changes for line in one.lines}
        self._lines: set[tuple[str, int]] = set()
        self._functions: Counter[Key] = Counter()

    def add(self, one: Compared, seconds: float) -> tuple[Signature, ...]:
        """Count a scenario; the signatures that were not seen before."""
        self._lines |= one.sides[1].lines
        self._functions.update(self._functions_of(one.sides[1].lines))
        if one.comparison is None:
            return self._add_unrun(one)
        self.scenarios += 1
        self.words[one.comparison.word] += 1
        self.mended.update({finding.rule for finding in one.comparison.mended})
        baseline, candidate = one.sides
        self.costs = (self.costs[0] + baseline.costs, self.costs[1] + candidate.costs)
        self.on_baseline |= {finding.signature for finding in baseline.findings}
        signatures = one.signatures
        broken = frozenset(finding.signature for finding in one.comparison.broken)
        self._shapes[one.comparison.word_by_cost, broken, None if broken else next(iter(signatures), None)] += 1
        return tuple(signature for signature in signatures if self._note(signature, one, seconds))

    def _add_unrun(self, one: Compared) -> tuple[Signature, ...]:
        for counter, side in zip(self.unrun, one.sides, strict=True):
            if side.could_not_run:
                (self.ours if side.ours else counter)[side.could_not_run] += 1
        return ()

    def _note(self, signature: Signature, one: Compared, seconds: float) -> bool:
        known = self.seen.get(signature)
        if known is None:
            self.seen[signature] = First(one, one, seconds)
            return True
        known.count += 1
        if size(one.scenario) < size(known.smallest.scenario):
            known.smallest = one
        return False

    def ran_at_import(self, lines: Lines) -> None:
        """Watched lines ran while the candidate was loaded, in no scenario."""
        self._lines |= lines

    def _functions_of(self, lines: Lines) -> set[Key]:
        return {(change.file, change.qualname) for line in lines if (change := self._line_of.get(line))}

    @property
    def one_sided(self) -> int:
        """Scenarios that one build could not run."""
        return sum(self.unrun[0].values()) + sum(self.unrun[1].values())

    def word(self, excused: Collection[Signature]) -> Word:
        """The verdict of all scenarios. ``excused``: signatures that are known; what the baseline shows, too, is an
        old fault that was reached by another way."""
        words: set[Word] = set()
        is_broken = False
        for word, broken, cost in self._shapes:
            is_broken = is_broken or bool(broken - self.on_baseline - {*excused})
            words.add("refines" if cost in excused else word)
        return overall(words, is_broken)

    def worse(self) -> Iterable[Signature]:
        """The signatures in which the candidate is worse."""
        return (signature for signature in self.seen if signature[0] != DIFFERENCE)

    def grounds(self, equal: Mapping[Key, str], alike: Mapping[Key, Alike]) -> tuple[Ground, ...]:
        """What the verdict rests on, function by function. ``equal``: those that are proved equal, with what was
        proved; ``alike``: what is proved of single statements of others."""
        keys = [(change.file, change.qualname) for change in self._changes]
        told = [(equal.get(key, ""), alike.get(key, Alike())) for key in keys]
        return tuple(self._ground(change, *words) for change, words in zip(self._changes, told, strict=True))

    def _ground(self, change: Change, equal: str, alike: Alike) -> Ground:
        place = Place(change.file, change.qualname, change.first)
        if change.kind == "removed":
            return Ground(place, "removed")
        hit = tuple(line for line in change.lines if (change.file, line) in self._lines)
        count = self._functions[change.file, change.qualname]
        if equal:
            return Ground(place, "proved equal", change.lines, hit, count, equal)
        proved = tuple(line for line in change.lines if line in alike.lines)
        return Ground(
            place,
            "executed" if hit else "never executed",
            change.lines,
            hit,
            count,
            alike.words if proved else "",
            proved,
        )
