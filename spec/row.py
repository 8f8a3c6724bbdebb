"""One line of the ledger: a claim over one domain in one regime, and what came out."""

from __future__ import annotations

import msgspec


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``subject``: what it is about (split, mask, boundaries, lookup, kept); ``target``: "reference" or the engine's
    name; ``release``: whose policy; ``sizes`` and ``features``: the domain; ``regime``: of the requests.

    ``verdict``: proved, proved to bound, refuted, unknown, vacuous; ``expected``: what it should be; ``reason``: why it
    is not proved; ``known``: why that was expected; ``bound``: how far a proof to a bound goes. ``witness`` and
    ``counterexample``: plain inputs in the parts of the proof, ``witnessed`` and ``shown``: the same for people.
    ``unique``: no other counterexample is as small; ``free``: inputs that do not matter in it.
    """

    claim: str
    rule: str
    subject: str
    target: str
    release: str
    sizes: str
    features: str
    regime: str
    verdict: str
    expected: str = "proved"
    reason: str = ""
    known: str = ""
    bound: str = ""
    paths: int = 0
    queries: int = 0
    witness: dict[str, int] = {}
    counterexample: dict[str, int] | None = None
    shown: dict[str, int] = {}
    witnessed: dict[str, int] = {}
    unique: bool = True
    free: tuple[str, ...] = ()

    @property
    def as_expected(self) -> bool:
        """Whether the verdict is the expected one."""
        return self.verdict == self.expected


class ControlRow(msgspec.Struct, frozen=True, kw_only=True):
    """A planted fault in the same run: the claim, what was planted, and the verdict (must be refuted)."""

    claim: str
    target: str
    release: str
    domain: str
    planted: str
    verdict: str

    @property
    def caught(self) -> bool:
        """Whether the claim noticed."""
        return self.verdict == "refuted"
