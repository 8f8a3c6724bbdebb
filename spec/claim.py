"""A claim: what is proved, as data. The proof, the replay on plain numbers and the tests run the same functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from reference.rules import CATALOGUE

Case = Any
"""One decision with everything that it depends on; each subject has a class of its own."""


def always(_: Case) -> bool:
    """No premise."""
    return True


def everywhere(*_: Any) -> bool:
    """The claim is made for every policy, size and set of features of its subject."""
    return True


@dataclass(frozen=True)
class Control:
    """A planted fault: ``plant`` gives the case as it would be with the fault; the claim must then be refuted."""

    sentence: str
    plant: Callable[[Case], Case]


@dataclass(frozen=True)
class Claim:
    """A claim about every case of its subject.

    ``id``: the rule's id, with a word where a rule has several claims. ``rule``: id in the catalogue.
    ``predicate``: what holds. ``premise``: for which cases; ``premise_text`` names it, with the guard in the
    engine that enforces it or as part of the claim's name. ``event``: what a witness must show;
    ``event_text`` in words. ``control``: a planted fault that must be refuted. ``applies``: for which policy,
    size and features of its subject. ``through``: ids of the claims that it rests on, without which it says nothing.
    """

    id: str
    rule: str
    predicate: Callable[[Case], Any]
    event: Callable[[Case], Any]
    event_text: str
    control: Control
    premise: Callable[[Case], Any] = always
    premise_text: str = ""
    note: str = ""
    applies: Callable[..., bool] = everywhere
    through: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """The rule's sentence, from the catalogue."""
        return CATALOGUE[self.rule].sentence

    @property
    def qualification(self) -> str:
        """What the claim takes for granted beyond its subject's premises, and what it adds up to, in sentences."""
        granted = f"Claimed where: {self.premise_text}." if self.premise_text else ""
        through = f"Through {' and '.join(self.through)}." if self.through else ""
        return " ".join(filter(None, (granted, through, self.note)))
