"""Which verdict each claim should have where it is not proved, and why: data, as the ledger prints it.

``expected.json`` lists the cells (claim, requests, features, sizes, releases) whose verdict is another one; the
reasons below say why, and a cell that none of them explains is refused when the file is written.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from typing import Any

from reference.policy import POLICIES
from spec.row import Row

RELEASES = tuple(POLICIES)
FILE = "expected.json"


@dataclass(frozen=True)
class Reason:
    """Why a claim does not hold somewhere. ``claims``: ids; the rest are patterns, ``first`` and ``last`` releases."""

    claims: tuple[str, ...]
    text: str
    first: str = RELEASES[0]
    last: str = RELEASES[-1]
    sizes: str = "*"
    features: str = "*"
    regime: str = "*"

    def explains(self, claim: str, release: str, sizes: str, features: str, regime: str) -> bool:
        """Whether the reason is about this cell."""
        between = RELEASES.index(self.first) <= RELEASES.index(release) <= RELEASES.index(self.last)
        patterns = ((sizes, self.sizes), (features, self.features), (regime, self.regime))
        return claim in self.claims and between and all(fnmatchcase(value, pattern) for value, pattern in patterns)


WRONG_GRID = (
    "the split's grid is the smallest block of all groups (cache_config.block_size) and not the Mamba block; public "
    "report 54076"
)
STRICT = (
    "the junction stop asks for start < junction < end: a chunk that ends exactly on the junction does not stop at the "
    "block floor of the junction inside it"
)
FROM_INSIDE = (
    "a chunk that saves its state inside does not stop at the next boundary, and the junction stop counts whole blocks "
    "from its start: from inside a block it is no boundary"
)
UNFLOORED = "0.29 does not floor the end of a chunk that starts on a block where the backend saves states inside it"

REASONS: tuple[Reason, ...] = (
    Reason(("S2", "S3", "S6", "S8", "S9", "S12", "U1.stop", "U1.floors"), WRONG_GRID, sizes="grid *"),
    Reason(
        ("S2", "S4"),
        "before 0.27 a chunk that ends beyond the last cacheable position is not floored to the grid; public "
        "report 43559",
        last="0.26.0",
    ),
    Reason(
        ("S3", "S5", "U1.stop"),
        "before 0.27 a chunk that starts inside a block does not stop at the next boundary where that lies "
        "beyond the last "
        "cacheable position, which EAGLE lowers",
        last="0.26.0",
        regime="EAGLE drop*",
    ),
    Reason(("S2", "S4"), UNFLOORED, first="0.29.0", last="0.29.0", features="*checkpoints*", regime="no drop*"),
    Reason(("S2", "S3i"), FROM_INSIDE, first="0.29.0", features="*checkpoints*", regime="*fresh"),
    Reason(("S2",), FROM_INSIDE, first="0.29.0", features="*checkpoints*"),
    Reason(
        ("S3i",),
        "for a resumed request the saved position leaves a token of the prefill end, which is one less than what "
        "is known, "
        "so it can lie a unit below the last cacheable position; and a chunk from inside a block can pass the "
        "junction's "
        "block",
        features="*checkpoints*",
        regime="*resumed",
    ),
    Reason(
        ("S9",),
        "0.29 keeps the tail as a stop, with the last cacheable position taken as 0, where the state is saved inside",
        first="0.29.0",
        last="0.29.0",
        features="*checkpoints*",
    ),
    Reason(("S3", "S5", "S7"), STRICT),
    Reason(
        ("S10.last", "S10.tail"),
        "before 0.32 the position leaves no token to compute: an extension can resume there, a resend of a "
        "prompt that ends "
        "there cannot",
        last="0.31.0",
        regime="no drop*",
    ),
    Reason(
        ("S10.tail",),
        "before 0.30 the partial tail is not lowered under the EAGLE drop",
        last="0.29.0",
        regime="EAGLE drop*",
    ),
    Reason(
        ("S10.saved",),
        "before 0.32 the position leaves a token to compute under the EAGLE drop, too, which gives a unit back anyway: "
        "after a prompt of whole units it is a unit too low",
        last="0.31.0",
        regime="EAGLE drop*",
    ),
    Reason(
        ("S10.saved",),
        "before 0.32 the position is a hash boundary even where hits are granted in scheduler blocks: nobody resumes "
        "there",
        last="0.31.0",
        regime="no drop*",
    ),
    Reason(
        ("U1.floors", "U1.stop"),
        "the exact junction is an opt-in to stop inside a block; the mask keeps whole blocks, and the partial state is "
        "kept by the tails instead",
        features="exact junction",
    ),
    Reason(("U1.stop",), STRICT),
    Reason(
        ("U1.floors",),
        "with hits inside blocks the mask floors the junction to the hash block before the Mamba block",
        features="partial hits*",
    ),
    Reason(
        ("R4", "R4.through_M3"),
        "for a boundary that floors to 0 an EAGLE window keeps block 0, at which a hit there would peek; dense "
        "does not",
        features="window*",
        regime="EAGLE*",
    ),
    Reason(
        ("R6.resend", "R6.extension"),
        "before 0.30 the list overlooks that EAGLE resumes a block lower; public report 53504",
        last="0.29.0",
        regime="EAGLE",
    ),
    Reason(
        ("R6.resend", "R6.extension"),
        "the list lowers by a scheduler block, the lookup gives back a block of the group that drops: where that is "
        "smaller a higher position is reached than is listed. Driven: full(16) + mamba(64), EAGLE, interval 0, a "
        "prompt of "
        "81 sent twice hits 0 on 0.30.0; from 0.32 the partial tail, which is registered on boundaries too, "
        "makes up for it",
        first="0.30.0",
        regime="EAGLE",
    ),
    Reason(
        ("R6.extension",),
        "without the drop the list holds the last token only: a longer request that begins with a prompt of "
        "whole units "
        "resumes one unit lower than its length",
        regime="no EAGLE",
    ),
    Reason(
        ("L1", "U1.agreed"),
        "a group that drops can lower the length without making the others look beyond the lower length",
        sizes="*swa(4, window 5, drops) + *",
    ),
    Reason(
        ("L2", "U1.agreed", "U1.suffices"),
        "a run from block 0 that is shorter than a full window is floored to the alignment before and after the drop",
        sizes="*window 13, drops*",
    ),
    Reason(
        ("L2", "U1.agreed", "U1.suffices"),
        "a window of one token needs no block, and the lookup wants one all the same; the mask keeps none",
        sizes="*swa(4, window [01]*",
    ),
    Reason(
        ("L2.tokens",),
        "a whole block is no hit for a shorter length inside it: only entries for exactly that length are looked for",
    ),
    Reason(
        ("M2", "L1", "L1.reads", "L2", "L3", "L3.aligned", "L2.tokens", "U1.agreed", "U1.state"),
        "0.33's lookup asks for a hash that does not exist yet where hashes look two tokens or more ahead and no full "
        "attention comes first: IndexError",
        first="0.33.0",
        sizes="swa(4, window 5) + mamba(4), *lookahead 2",
    ),
)


def reason_for(claim: str, release: str, sizes: str, features: str, regime: str) -> str:
    """Why a claim does not hold there; empty where no reason is known."""
    found = (reason.text for reason in REASONS if reason.explains(claim, release, sizes, features, regime))
    return next(found, "")


def expected_verdict(
    claim: str, subject: str, release: str, sizes: str, features: str, regime: tuple[str, ...]
) -> tuple[str, str]:
    """The expected verdict of a claim in one regime over one domain, with the reason where it is not "proved"."""
    words = ", ".join(regime)
    verdict = _cells().get((claim, words, features, sizes, release))
    return (verdict, reason_for(claim, release, sizes, features, words)) if verdict else ("proved", "")


@cache
def _cells() -> dict[tuple[str, str, str, str, str], str]:
    """The verdict of every cell that is not proved."""
    lines = json.loads(resources.files("spec").joinpath(FILE).read_text(encoding="utf-8"))
    return {
        (line["claim"], line["regime"], line["features"], sizes, release): line["verdict"]
        for line in lines
        for sizes in line["sizes"]
        for release in line["releases"]
    }


def as_json(rows: Iterable[Row]) -> str:
    """The text of the file that expects just what came out. Raises ValueError for a cell that no reason explains."""
    cells: defaultdict[tuple[str, ...], dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for row in rows:
        if row.verdict.startswith("proved"):
            continue
        if not reason_for(row.claim, row.release, row.sizes, row.features, row.regime):
            raise ValueError(f"no reason is known for {row}")
        cells[row.claim, row.regime, row.features, row.verdict][row.sizes].add(row.release)
    lines: list[dict[str, Any]] = []
    for (claim, regime, features, verdict), by_sizes in sorted(cells.items()):
        joined: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
        for sizes, releases in by_sizes.items():
            joined[tuple(sorted(releases))].append(sizes)
        for releases_, sizes_ in sorted(joined.items()):
            line = {"claim": claim, "regime": regime, "features": features, "sizes": sorted(sizes_)}
            lines.append({**line, "releases": releases_, "verdict": verdict})
    return "[\n" + ",\n".join(json.dumps(line) for line in lines) + "\n]\n"
