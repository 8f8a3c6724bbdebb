"""Releases as changes: the gate on each pair of neighbours, and a table of what it said.

    python benchmarks/pairs.py --results FOLDER [--seconds N]

One file of results a pair, as ``kvoracle gate --format json`` writes it: a run that was stopped goes on where it was.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import click

from reference.policy import POLICIES

GATE = Path(sys.executable).with_name("kvoracle")
WORDS = ("identical", "refines", "incomparable", "regresses")
HEADER = ("change", "verdict", "scenarios", *WORDS, "broken newly (classes)", "broken before only (scenarios)",
          "smallest difference", "costs")  # fmt: skip


def run(old: str, new: str, target: Path, seconds: int) -> None:
    """Let the gate judge a release as a change of the one before; which lines never ran is told and let pass."""
    part, findings = target.with_suffix(".part"), target.with_suffix("")
    builds = ["--baseline", f"vllm=={old}", "--engine", f"vllm=={new}"]
    rest = ["--time", f"{seconds}s", "--accept", "unseen", "--folder", str(findings), "--format", f"json={part}"]
    done = subprocess.run([str(GATE), "gate", *builds, *rest], check=False, stdout=subprocess.DEVNULL)
    if done.returncode not in (0, 1):
        raise click.ClickException(f"the gate could not judge {new} against {old}")
    part.replace(target)


def cells(old: str, new: str, report: dict[str, Any]) -> list[str]:
    """A row of the table."""
    words = report["words"]
    return [
        f"{old} → {new}",
        report["title"],
        f"{report['scenarios']:,}",
        *(f"{words.get(word, 0):,}" for word in WORDS),
        broken(report),
        ", ".join(f"{rule} {number:,}" for rule, number in report["mended"].items()) or "–",
        difference(report),
        costs(report),
    ]


def broken(report: dict[str, Any]) -> str:
    """Rules that some scenario breaks on the candidate alone, with the number of classes of geometries."""
    rules = Counter(found["signature"][0] for found in report["findings"])
    del rules["COST"]
    return ", ".join(f"{rule} {number}" for rule, number in rules.most_common()) or "–"


def difference(report: dict[str, Any]) -> str:
    """The decision in which the smallest scenario differs."""
    found = report["difference"] or next(iter(report["findings"]), None)
    return f"{found['signature'][1]}, {found['signature'][2]}" if found else "–"


def costs(report: dict[str, Any]) -> str:
    """Costs that changed, as shares of the baseline's."""
    before, after = report["costs"]
    shares = {name: 100 * (after[name] - was) / was for name, was in before.items() if was and after[name] != was}
    return ", ".join(f"{name.replace('_', ' ')} {share:+.1f} %" for name, share in shares.items()) or "–"


def line(texts: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(texts)} |"


@click.command()
@click.option("--results", type=click.Path(file_okay=False, path_type=Path), required=True)
@click.option("--seconds", type=click.IntRange(min=1), default=180, show_default=True, help="For each pair.")
def main(results: Path, seconds: int) -> None:
    """Run what is missing, and print the table."""
    results.mkdir(parents=True, exist_ok=True)
    rows = []
    for old, new in pairwise(POLICIES):
        target = results / f"{old}-{new}.json"
        if not target.exists():
            click.echo(f"{old} -> {new}", err=True)
            run(old, new, target, seconds)
        rows.append(cells(old, new, json.loads(target.read_text(encoding="utf-8"))))
    click.echo("\n".join([line(HEADER), line(["---"] * len(HEADER)), *map(line, rows)]))


if __name__ == "__main__":
    main()
