"""Which invariants notice a changed place in the reference, and which changes only the engine itself contradicts.

    python benchmarks/mutants.py --source FOLDER-WITH-vllm [--write]

``--write`` puts the table into MUTANTS.md. What only the engine contradicts must then have its behaviour named in
mutants_unpinned.json: by function and a part of the change, the first entry that fits.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path

import click

from spec.mutants import DOMAINS, Finding, Ground, judge, mutants

WIDTH = 100
HERE = Path(__file__).parent
UNPINNED = HERE / "mutants_unpinned.json"
TABLE = HERE / "MUTANTS.md"


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


def behaviour(finding: Finding, known: list[tuple[str, str, str]]) -> str:
    """What no rule pins down of a mutant that only the engine contradicts. Raises ClickException if it is not named."""
    mutant = finding.mutant
    for function, part, text in known:
        if function == mutant.function and part in mutant.change:
            return text
    raise click.ClickException(f"{UNPINNED.name} does not say what no rule pins down in {mutant.name}")


def markdown(findings: list[Finding]) -> str:
    """MUTANTS.md: how many of each function come to what, what no rule pins down, and every mutant."""
    columns = ("invariant", "equality only", "equivalent", "undecided", "survived")
    counts: dict[str, Counter[str]] = {}
    unpinned: dict[str, list[str]] = {}
    known = json.loads(UNPINNED.read_text())
    for one in findings:
        counts.setdefault(one.mutant.function, Counter())[one.verdict] += 1
        if one.verdict == "equality only":
            unpinned.setdefault(behaviour(one, known), []).append(f"`{one.mutant.function}`: `{one.mutant.change}`")
    counts["all"] = sum(counts.values(), Counter())
    head = [f"| function | mutants | {' | '.join(columns)} |", "|---" * (len(columns) + 2) + "|"]
    body = [
        f"| {name} | {count.total()} | {' | '.join(str(count[word]) for word in columns)} |"
        for name, count in counts.items()
    ]
    rows = [
        f"| {one.mutant.place} | {one.mutant.function} | `{one.mutant.change}` | {one.invariant or '–'} | "
        f"{'yes' if one.equality else 'no'} | {one.verdict} |"
        for one in findings
    ]
    return "\n".join(
        [
            "# Mutants of the reference",
            "",
            "Made by `python benchmarks/mutants.py --source FOLDER --write`, under the newest policy, against 0.33.0's",
            "own source. *invariant*: a claim that is proved for the original is refuted for the mutant.",
            "*equality only*: no claim is, but the mutant decides otherwise than the engine. *equivalent*: for no",
            "input of any domain does it decide otherwise than the original.",
            "",
            *head,
            *body,
            "",
            "## What no rule pins down",
            "",
            *(line for text, changes in unpinned.items() for line in (f"- {text}", *(f"  - {one}" for one in changes))),
            "",
            "## Every mutant",
            "",
            "| place | function | change | refuted by | by equality | comes to |",
            "|---|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


@click.command()
@click.option("--source", type=click.Path(exists=True, path_type=Path), required=True, help="Holds vllm 0.33.0.")
@click.option("--samples", default=3000, show_default=True, help="Plain inputs of each domain.")
@click.option("--function", "functions", multiple=True, help="Only mutants of this function (may be repeated).")
@click.option("--json", "target", type=click.Path(path_type=Path), help="Where to write the table as JSON.")
@click.option("--write", is_flag=True, help="Write MUTANTS.md.")
def main(source: Path, samples: int, functions: tuple[str, ...], target: Path | None, write: bool) -> None:
    """Print a line for each mutant: the claim that refutes it, whether the engine contradicts it, what it comes to."""
    began = time.perf_counter()

    def say(text: str) -> None:
        click.echo(f"{time.perf_counter() - began:6.0f} s  {text}", err=True)

    if write and functions:
        raise click.UsageError("--write makes the table of all functions; leave out --function")
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
    if write:
        TABLE.write_text(markdown(findings))


if __name__ == "__main__":
    main()
