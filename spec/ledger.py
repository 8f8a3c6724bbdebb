"""The ledger: what was proved, refuted or left open, in as few lines as say it all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from spec.mask_domains import MASK_SIZES
from spec.plan import RELEASES, all_claims
from spec.row import ControlRow, Row
from spec.tokens import in_words

SYMBOLIC = ("B", "B, H", *(sizes.name for sizes in MASK_SIZES if sizes.symbolic), "B in B", "B in A")


@dataclass(frozen=True)
class Line:
    """Rows that differ in nothing worth a line: one claim, one outcome. The other fields are what they cover."""

    subject: str
    target: str
    claim: str
    features: str
    regime: str
    releases: str
    sizes: str
    verdict: str
    expected: bool
    reason: str
    rows: tuple[Row, ...]

    @property
    def counterexample(self) -> str:
        """The smallest one among the rows, in tokens."""
        shown = [row for row in self.rows if row.counterexample is not None]
        if not shown:
            return ""
        row = min(shown, key=_smallness)
        words = in_words(row.shown, row.free)
        return f"{words} ({row.sizes}, {row.release})" + ("" if row.unique else ", one of several as small")


def lines_of(rows: Sequence[Row]) -> list[Line]:
    """The lines of the ledger. Sizes are joined first, then releases, regimes and features with the same outcome."""
    lines: list[Line] = []
    for (subject, target, claim), group in _grouped(rows, lambda row: (row.subject, row.target, row.claim)).items():
        all_sizes = _values(group, lambda row: row.sizes)
        for cell in _joined(group):
            every = {
                "features": _values(group, lambda row: row.features),
                "regime": _values(group, lambda row: row.regime),
            }
            for (verdict, expected, reason), same in _grouped(cell, _outcome).items():
                lines.append(
                    Line(
                        subject,
                        target,
                        claim,
                        _named(_values(same, lambda row: row.features), every["features"], "all features"),
                        _named(_values(same, lambda row: row.regime), every["regime"], "all"),
                        release_range(_values(same, lambda row: row.release)),
                        _named(_values(same, lambda row: row.sizes), all_sizes, "all sizes", symbolic=True),
                        verdict,
                        expected,
                        reason,
                        tuple(same),
                    )
                )
    return lines


def _joined(rows: Sequence[Row]) -> list[list[Row]]:
    """One claim's rows in cells: within a cell every release, regime and set of features has the same outcomes."""
    cells = list(_grouped(rows, lambda row: (row.features, row.regime, row.release)).values())
    # What a cell covers beside the field that is joined must be the same, or its line would claim too much.
    for field in ("release", "regime", "features"):
        others = [name for name in ("release", "regime", "features") if name != field]
        merged: dict[object, list[Row]] = {}
        for cell in cells:
            outcomes = frozenset((row.sizes, *_outcome(row)) for row in cell)
            covers = tuple(frozenset(getattr(row, name) for row in cell) for name in others)
            merged.setdefault((outcomes, covers), []).extend(cell)
        cells = list(merged.values())
    return cells


def _outcome(row: Row) -> tuple[str, bool, str]:
    return row.verdict, row.as_expected, row.known or row.reason


def _grouped(rows: Iterable[Row], key: Callable[[Row], Any]) -> dict[Any, list[Row]]:
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def _values(rows: Iterable[Row], part: Callable[[Row], str]) -> list[str]:
    return list(dict.fromkeys(part(row) for row in rows))


def _named(values: Sequence[str], every: Sequence[str], word: str, symbolic: bool = False) -> str:
    """Names as a list, or as one word where these are all; what was proved for an unknown size is always told."""
    if len(every) > 1 and set(values) == set(every):
        unknown = [f"symbolic {name}" for name in values if symbolic and name in SYMBOLIC]
        return f"{word} ({'; '.join(unknown)} included)" if unknown else word
    return "; ".join(f"symbolic {name}" if symbolic and name in SYMBOLIC else name for name in values)


def release_range(releases: Iterable[str]) -> str:
    """Releases as ranges of neighbours: ``0.26.0 - 0.28.0, 0.33.0``."""
    present = set(releases)
    runs: list[list[str]] = []
    for at, release in enumerate(RELEASES):
        if release in present:
            if runs and at and RELEASES[at - 1] == runs[-1][-1]:
                runs[-1].append(release)
            else:
                runs.append([release])
    return ", ".join(run[0] if len(run) == 1 else f"{run[0]} - {run[-1]}" for run in runs)


def _smallness(row: Row) -> tuple[int, str, str]:
    """Few tokens first; then by name, so that the same rows give the same text."""
    return sum(row.shown.values()), row.release, row.sizes


# --- the whole text ------------------------------------------------------------------------------------


def ledger_text(
    rows: Sequence[Row],
    controls: Sequence[ControlRow],
    *,
    heading: Sequence[str],
    premises: Sequence[tuple[str, Sequence[str]]],
    left_out: Sequence[str],
) -> str:
    """The ledger as Markdown. ``heading``: what it was made with; ``premises``: by subject. The same rows in the same
    order give the same text: it holds no times."""
    parts = ["# What is proved", "", *heading, "", summary(rows, controls), ""]
    lines = lines_of(rows)
    for claim in dict.fromkeys(line.claim for line in lines):
        parts += _claim_section(claim, [line for line in lines if line.claim == claim])
    parts += ["## For every block size", "", *_bullets(for_every_size(rows)), ""]
    parts += ["## Planted faults", "", *_control_table(controls), ""]
    parts += ["## Taken for granted", ""]
    for title, sentences in premises:
        parts += [f"{title}:", "", *_bullets(sentences), ""]
    parts += ["## Left out", "", *_bullets(left_out)]
    return "\n".join(parts).rstrip() + "\n"


def summary(rows: Sequence[Row], controls: Sequence[ControlRow]) -> str:
    """One line: how many rows of each verdict, and how many are not as expected."""
    counts = [f"{len(rows)} rows"]
    words = []
    for verdict in ("proved", "proved to bound", "refuted", "unknown", "vacuous"):
        for expected in (True, False):
            number = sum(row.verdict == verdict and row.as_expected == expected for row in rows)
            judged = (
                "" if expected and verdict.startswith("proved") else " as expected" if expected else " NOT as expected"
            )
            if number:
                words.append(f"{number} {verdict}{judged}")
    counts.append(", ".join(words) or "none")
    caught = sum(control.caught for control in controls)
    return f"{': '.join(counts)}; {caught} of {len(controls)} planted faults noticed"


def for_every_size(rows: Sequence[Row]) -> list[str]:
    """Which claims are proved for an unknown block size, and how far."""
    sentences = []
    chosen = [row for row in rows if row.sizes in SYMBOLIC]
    for (target, claim, sizes), group in _grouped(chosen, lambda row: (row.target, row.claim, row.sizes)).items():
        proved = sum(row.verdict == "proved" for row in group)
        share = "everywhere" if proved == len(group) else f"in {proved} of {len(group)} rows"
        if proved:
            sentences.append(f"{claim} ({target}), symbolic {sizes}: {share}")
    return sentences


def words_of(claim: str) -> tuple[str, str]:
    """What a claim says, and its qualification; empty for a name that is no claim's, as of what could not be run."""
    found = all_claims().get(claim)
    return (found.sentence, found.qualification) if found is not None else ("", "")


def _claim_section(claim: str, lines: Sequence[Line]) -> list[str]:
    sentence, qualification = words_of(claim)
    parts = [f"## {claim}", "", sentence, ""]
    if qualification:
        parts += [qualification, ""]
    parts += ["| of | features | requests | releases | sizes | verdict | why |", "|---|---|---|---|---|---|---|"]
    for line in lines:
        verdict = line.verdict if line.expected else f"**{line.verdict}, NOT as expected**"
        example = f"`{line.counterexample}`" if line.counterexample else ""
        why = "; ".join(filter(None, (line.reason, example))).replace("|", "\\|")
        of = f"{line.subject}, {line.target}"
        parts.append(f"| {of} | {line.features} | {line.regime} | {line.releases} | {line.sizes} | {verdict} | {why} |")
    return [*parts, "", *_witness(lines)]


def _witness(lines: Sequence[Line]) -> list[str]:
    """One case in which the claim says something."""
    for line in lines:
        for row in line.rows:
            if row.witness:
                return [f"For example: `{in_words(row.witnessed)}` ({row.sizes}, {row.release}).", ""]
    return []


def _control_table(controls: Sequence[ControlRow]) -> list[str]:
    head = ["| claim | planted | over | verdict |", "|---|---|---|---|"]
    told = []
    for one in controls:
        verdict = one.verdict if one.caught else f"**MISSED** ({one.verdict})"
        told.append(f"| {one.claim} | {one.planted} | {one.release}, {one.domain} | {verdict} |")
    return head + told if told else ["None was tried."]


def _bullets(sentences: Sequence[str]) -> list[str]:
    return [f"- {sentence}" for sentence in sentences] or ["Nothing."]
