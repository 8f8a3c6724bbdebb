"""Mutants of a release's own sources as candidates of the gate: how many does it catch, by which layer, how fast?

python benchmarks/ladder.py [--results FILE] [--seconds N] [--seed N]
python benchmarks/ladder.py --report

Every mutant is a row of the results, stored when it is done, so a run that was stopped goes on where it was. Caught
is one that regresses or is incomparable in a scenario that shows it again when it is run once more on the mutant.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import msgspec

from fuzz import worker
from fuzz.engines.open import Prepared, prepare_engine
from fuzz.engines.sources import source_tree
from fuzz.gate.changes import Change, changed_functions, decision_points
from fuzz.gate.directed import directed
from fuzz.gate.equality import Equality, prove_equality
from fuzz.gate.model import Layer
from fuzz.gate.mutants import Mutant, draw, mutants
from fuzz.gate.pair import Compared, Pair
from fuzz.gate.side import Side, SideError
from fuzz.gate.steer import Supply
from oracle.scenario import Scenario

PER_GROUP = {"split": 25, "masks": 10, "lookup": 10, "commit": 10, "schedule": 5}
CAUGHT = ("regresses", "incomparable")
PROOF_SECONDS = 15.0
"""For inputs on which a mutant differs; enough for the quick domains, where most differ."""
EQUALITY_SECONDS = 240.0
"""For the proof that a mutant that nothing has caught is equal."""
SURVIVORS = Path(__file__).with_name("ladder_survivors.json")
REACH_SECONDS = 6.0


class Rung(msgspec.Struct, frozen=True, kw_only=True):
    """A mutant and what came of it. ``verdict``: the gate's; or ``proved equal``, ``does not import``. ``layer``: what
    caught it, with ``signature`` and ``scenario``, after ``seconds`` (of the whole mutant where it survived).
    ``reason``: why it was not caught; of one that is proved equal what was proved, with bound and premise."""

    name: str
    group: str
    file: str
    function: str
    line: int
    what: str
    verdict: str
    layer: str = ""
    signature: tuple[str, ...] = ()
    scenario: Scenario | None = None
    scenarios: int = 0
    seconds: float = 0.0
    reason: str = ""

    @property
    def is_caught(self) -> bool:
        return self.verdict in CAUGHT


class Ladder:
    """The release under mutation, with one process of it that serves as baseline for all mutants."""

    def __init__(self, engine: str, seconds: float, seed: int) -> None:
        say = lambda line: click.echo(line, err=True)  # noqa: E731
        self.prepared: Prepared = replace(prepare_engine(engine, say=say), release=None)
        self.source = source_tree(engine, say=say)
        self.seconds, self.seed = seconds, seed
        self.cores = worker.cores()
        self.baseline = Side(self.prepared, self.cores[0])

    def climb(self, mutant: Mutant, name: str) -> Rung:
        """Let the gate's layers look at one mutant for the time given."""
        began = time.monotonic()
        told = {"name": name, "group": mutant.group, "file": mutant.file, "function": mutant.qualname,
                "line": mutant.line, "what": mutant.what}  # fmt: skip
        with tempfile.TemporaryDirectory(prefix="kvoracle-mutant-") as folder:
            tree = mutated_tree(self.source, Path(folder), mutant)
            changes = changed_functions(self.source, tree)
            equality = self._prove(tree, changes, PROOF_SECONDS)
            candidate = Side(self.prepared.launched(patches=((mutant.file, mutant.text),)), self.cores[-1])
            try:
                pair = Pair(self.baseline, candidate, 0.0)
                pair.wait()
                found = self._search(pair, self._layers(candidate, tree, changes, equality), began)
            except SideError as error:
                found = {"verdict": "does not import", "reason": str(error)}
            finally:
                candidate.close()
            if found["verdict"] == "identical":
                equality = self._prove(tree, changes, EQUALITY_SECONDS)
                found |= proved_equal(changes, equality)
        return Rung(**told, **found, seconds=round(time.monotonic() - began, 1))

    def _prove(self, tree: Path, changes: list[Change], seconds: float) -> Equality:
        assert self.prepared.launch is not None
        release = self.prepared.launch.release
        return prove_equality(self.source, tree, release, changes, seconds, len(self.cores))

    def _layers(
        self, candidate: Side, tree: Path, changes: list[Change], equality: Equality
    ) -> Iterator[tuple[Layer, Scenario]]:
        supply = Supply([self.prepared], self.seed, decision_points(changes))
        yield from (("vector", scenario) for scenario in supply.stored())
        made = directed(equality.refuted, tree, candidate, REACH_SECONDS)
        yield from (("directed", scenario) for scenario in made)
        yield from (("fuzz", scenario) for scenario in supply.generated())

    def _search(self, pair: Pair, layers: Iterator[tuple[Layer, Scenario]], began: float) -> dict[str, Any]:
        scenarios = 0
        for one in pair.run(layers, lambda: time.monotonic() - began > self.seconds):
            scenarios += 1
            if one.comparison is None or one.comparison.word not in CAUGHT:
                continue
            again = pair.one(one.scenario)
            if again.comparison is not None and again.comparison.word in CAUGHT:
                return caught(again, one.layer, scenarios)
        return {"verdict": "identical", "scenarios": scenarios, "reason": "no scenario showed a regression"}


def caught(one: Compared, layer: Layer, scenarios: int) -> dict[str, Any]:
    """What a row tells of the scenario that caught a mutant."""
    assert one.comparison is not None
    return {"verdict": one.comparison.word, "layer": layer, "signature": one.signatures[0],
            "scenario": one.scenario, "scenarios": scenarios}  # fmt: skip


def proved_equal(changes: Sequence[Change], equality: Equality) -> dict[str, Any]:
    """What a row tells of a mutant of which every changed function is proved equal; nothing of another."""
    words = [equality.equal.get((change.file, change.qualname), "") for change in changes]
    return {"verdict": "proved equal", "reason": "; ".join(words)} if words and all(words) else {}


def mutated_tree(source: Path, folder: Path, mutant: Mutant) -> Path:
    """The sources that are looked at, with the mutant in its place."""
    for part in ("v1", "utils", "config"):
        shutil.copytree(source / "vllm" / part, folder / "vllm" / part, ignore=shutil.ignore_patterns("__pycache__"))
    for file in (source / "vllm").glob("*.py"):
        shutil.copy(file, folder / "vllm" / file.name)
    (folder / "vllm" / mutant.file).write_text(mutant.text, encoding="utf-8")
    return folder


def table(rungs: list[Rung]) -> str:
    """The ladder as Markdown."""
    real = [rung for rung in rungs if rung.verdict not in ("proved equal", "does not import")]
    hits = [rung for rung in real if rung.is_caught]
    layers = Counter(rung.layer for rung in hits)
    lines = [
        f"{len(rungs)} mutants; {len(hits)} caught of {len(real)} that are not proved equal"
        f" ({100 * len(hits) / max(1, len(real)):.0f} %); by layer: "
        + ", ".join(f"{layer} {number}" for layer, number in layers.most_common()),
        "",
        "| mutant | place | change | verdict | layer | signature | scenarios | s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for rung in rungs:
        what = rung.what.replace("|", "\\|")
        place = f"{rung.function.rpartition('.')[2]}:{rung.line}"
        cells = (rung.name, place, f"`{what}`", rung.verdict, rung.layer, " ".join(rung.signature))
        lines.append(f"| {' | '.join(cells)} | {rung.scenarios} | {rung.seconds:.0f} |")
    return "\n".join(lines) + "\n"


def proofs(rungs: list[Rung]) -> str:
    """What was proved of the mutants that count as equal."""
    lines = [f"- {rung.name}: {rung.reason}" for rung in rungs if rung.verdict == "proved equal"]
    note = "A proof that holds to a bound, or takes something for granted, says so."
    return f"\n## Proved equal\n\n{note}\n\n" + "\n".join(lines) + "\n"


def survivors(rungs: list[Rung]) -> str:
    """Why the gate did not catch what it did not, as somebody found who read the source; data, no proof."""
    reasons: dict[str, str] = msgspec.json.decode(SURVIVORS.read_bytes()) if SURVIVORS.exists() else {}
    left = [rung for rung in rungs if rung.verdict == "identical"]
    lines = [f"- {rung.name}: {reasons.get(rung.name, 'not looked into')}" for rung in left]
    return "\n## Survivors\n\n" + "\n".join(lines) + "\n"


def read(results: Path) -> list[Rung]:
    """The rows that are stored; a last line that was cut off is none."""
    lines = results.read_bytes().splitlines() if results.exists() else []
    rungs = []
    for line in lines:
        try:
            rungs.append(msgspec.json.decode(line, type=Rung))
        except msgspec.DecodeError:
            continue
    return rungs


@click.command()
@click.option("--engine", default="vllm==0.33.0", show_default=True)
@click.option("--results", type=click.Path(path_type=Path), default=Path("benchmarks/ladder.jsonl"), show_default=True)
@click.option("--seconds", default=180.0, show_default=True, help="For each mutant.")
@click.option("--seed", default=1, show_default=True, help="Draws the mutants and the scenarios.")
@click.option("--report", is_flag=True, help="Only print the table of what is stored.")
def main(engine: str, results: Path, seconds: float, seed: int, report: bool) -> None:
    """Climb the ladder, or print what is stored."""
    if not report:
        ladder = Ladder(engine, seconds, seed)
        chosen, redrawn = draw(mutants(ladder.source), PER_GROUP, seed)
        click.echo(f"{len(chosen)} mutants drawn by seed {seed}; {redrawn} redrawn", err=True)
        done = {rung.name for rung in read(results)}
        for number, mutant in enumerate(chosen):
            name = f"{mutant.group} {number}"
            if name in done:
                continue
            rung = ladder.climb(mutant, name)
            with open(results, "ab") as file:
                file.write(msgspec.json.encode(rung) + b"\n")
            click.echo(f"{name}: {rung.verdict} {rung.layer} {rung.seconds:.0f} s: {rung.what}", err=True)
        ladder.baseline.close()
    rungs = read(results)
    click.echo(table(rungs) + proofs(rungs) + survivors(rungs), nl=False)


if __name__ == "__main__":
    main()
