"""Which invariants notice a changed place in the reference, and which changes only the engine itself contradicts.

python benchmarks/mutants.py --source FOLDER-WITH-vllm [--json FILE]
"""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path

import click

from spec.mutants import DOMAINS, Finding, Ground, judge, mutants

WIDTH = 100


def row(finding: Finding) -> dict[str, object]:
    """A line of the table, as data."""
    mutant = finding.mutant
    return {
        "place": mutant.place,
        "function": mutant.function,
        "mutation": mutant.change,
        "invariant": finding.invariant or None,
        "equality": finding.equality,
        "equivalent": finding.verdict == "equivalent",
        "verdict": finding.verdict,
        "where": finding.where,
        "problem": finding.problem,
    }


def line(finding: Finding) -> str:
    """A line of the table, for people."""
    mutant = finding.mutant
    columns = (finding.invariant or "-", "yes" if finding.equality else "no", finding.verdict)
    change = mutant.change if len(mutant.change) <= WIDTH else mutant.change[: WIDTH - 3] + "..."
    return f"{mutant.place:<30} {mutant.function:<24} {columns[0]:<12} {columns[1]:<4} {columns[2]:<14} {change}"


def summary(findings: list[Finding]) -> dict[str, int]:
    """How many mutants came to what."""
    counts = Counter(finding.verdict for finding in findings)
    return {"mutants": len(findings), **dict(counts.most_common())}


@click.command()
@click.option("--source", type=click.Path(exists=True, path_type=Path), required=True, help="Holds vllm 0.33.0.")
@click.option("--samples", default=3000, show_default=True, help="Plain inputs of each domain.")
@click.option("--function", "functions", multiple=True, help="Only mutants of this function (may be repeated).")
@click.option("--json", "target", type=click.Path(path_type=Path), help="Where to write the table as JSON.")
def main(source: Path, samples: int, functions: tuple[str, ...], target: Path | None) -> None:
    """Print a line for each mutant: the claim that refutes it, whether the engine contradicts it, what it comes to."""
    began = time.perf_counter()

    def say(text: str) -> None:
        click.echo(f"{time.perf_counter() - began:6.0f} s  {text}", err=True)

    chosen = [mutant for mutant in mutants() if not functions or mutant.function in functions]
    kinds = {kind for mutant in chosen for kind in mutant.subjects}
    grounds = [Ground(*domain, source, samples) for domain in DOMAINS if domain[0] in kinds]
    say(f"{len(chosen)} mutants, {len(grounds)} domains")
    findings = judge(chosen, grounds, say)
    for finding in findings:
        click.echo(line(finding))
    counts = summary(findings)
    click.echo(", ".join(f"{word}: {number}" for word, number in counts.items()))
    click.echo(f"{time.perf_counter() - began:.0f} s", err=True)
    if target is not None:
        target.write_text(json.dumps({"summary": counts, "mutants": [row(one) for one in findings]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
