"""The ledger says in few lines what the rows say, and no more than they say."""

from __future__ import annotations

from typing import Any

from spec.ledger import ledger_text, lines_of, release_range, summary
from spec.plan import RELEASES
from spec.row import ControlRow, Row
from spec.tokens import in_words

PARTS = {
    "start.blocks": 0,
    "end.blocks": 1,
    "end.units": 1,
    "known.blocks": 1,
    "known.units": 1,
    "known.rest": 1,
    "prompt.rest": 1,
    "junction.blocks": 1,
    "junction.units": 1,
    "drop": 1,
}


SHOWN = {"known": 21, "prompt": 1, "start": 0, "asked": 20, "junction": 20, "drop": 1}
"""The same for people."""


def row(**changes: Any) -> Row:
    fields: dict[str, Any] = {
        "claim": "S3",
        "rule": "S3",
        "subject": "split",
        "target": "reference",
        "release": "0.33.0",
        "sizes": "16/4",
        "features": "plain",
        "regime": "no drop, fresh",
        "verdict": "proved",
    }
    return Row(**{**fields, **changes})


def refuted(**changes: Any) -> Row:
    return row(
        **{
            "verdict": "refuted",
            "expected": "refuted",
            "known": "why",
            "counterexample": PARTS,
            "shown": SHOWN,
            **changes,
        }
    )


def control(verdict: str = "refuted") -> ControlRow:
    domain = "16/4, plain"
    return ControlRow(
        claim="S3", target="reference", release="0.33.0", domain=domain, planted="never stops", verdict=verdict
    )


def test_inputs_are_told_in_one_line_the_most_telling_first() -> None:
    values = {"drop": 1, "other": 3, "start": 0, "known": 21}
    assert in_words(values) == "known=21 start=0 drop=1 other=3"
    assert in_words(values, free=("drop",)) == "known=21 start=0 other=3 any drop"


def test_rows_with_the_same_outcome_are_one_line() -> None:
    rows = [
        row(release=release, sizes=sizes, regime=regime)
        for release in RELEASES
        for sizes in ("B", "16/4", "1648/16")
        for regime in ("no drop, fresh", "no drop, resumed")
    ]
    (line,) = lines_of(rows)
    assert (line.releases, line.regime, line.features) == ("0.26.0 - 0.33.0", "all", "plain")
    assert line.sizes == "all sizes (symbolic B included)"
    assert len(line.rows) == len(rows)


def test_an_exception_has_a_line_of_its_own() -> None:
    rows = [row(), row(sizes="B"), refuted(release="0.32.0"), row(release="0.32.0", sizes="B")]
    lines = {(line.releases, line.verdict): line for line in lines_of(rows)}
    assert set(lines) == {("0.33.0", "proved"), ("0.32.0", "refuted"), ("0.32.0", "proved")}
    assert lines["0.32.0", "refuted"].sizes == "16/4"
    assert lines["0.32.0", "proved"].sizes == "symbolic B"
    assert lines["0.32.0", "refuted"].counterexample.startswith("known=21 prompt=1")


def test_lines_cover_no_more_than_their_rows() -> None:
    rows = [row(features=f, regime=r, release=v) for f in "ab" for r in "xy" for v in RELEASES[:3]]
    rows = [one for one in rows if (one.features, one.regime, one.release) != ("b", "y", RELEASES[1])]
    for line in lines_of(rows):
        size = 1
        for field in ("features", "regime", "release"):
            size *= len({getattr(one, field) for one in line.rows})
        assert size == len(line.rows)


def test_ranges_of_releases() -> None:
    assert release_range(["0.33.0", "0.26.0", "0.27.1"]) == "0.26.0 - 0.27.1, 0.33.0"


def test_a_summary_counts_what_was_not_expected() -> None:
    rows = [row(), refuted(), refuted(expected="proved"), row(expected="refuted"), row(verdict="unknown")]
    assert summary(rows, [control(), control("proved")]) == (
        "5 rows: 1 proved, 1 proved NOT as expected, 1 refuted as expected, 1 refuted NOT as expected, "
        "1 unknown NOT as expected; 1 of 2 planted faults noticed"
    )


def test_the_text(snapshot: Any) -> None:
    rows = [
        row(witness=PARTS, witnessed=SHOWN),
        row(sizes="B"),
        row(sizes="B, H", release="0.32.0"),
        refuted(regime="EAGLE drop, resumed", unique=False),
        row(claim="S1", rule="S1", verdict="unknown", reason="more than 5 paths"),
        refuted(claim="S1", rule="S1", release="0.30.0", expected="proved", known=""),
    ]
    text = ledger_text(
        rows,
        [control(), control("proved")],
        heading=["with Z3"],
        premises=[("split", ["1 <= prompt"])],
        left_out=["split: much."],
    )
    assert text == snapshot
