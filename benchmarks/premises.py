"""How often that which proofs about an engine's own functions take for granted held, on generated scenarios.

python benchmarks/premises.py --engine vllm==0.33.0
"""

from __future__ import annotations

import sys

import click

from fuzz.engines.open import open_prepared, prepare_engine
from fuzz.premise_counts import Counts, premises_text
from fuzz.sources import Scenarios, scenario_source
from fuzz.supported import unsupported, withheld
from fuzz.trial import crash_kind


@click.command()
@click.option("--engine", "name", default="vllm==0.33.0", show_default=True)
@click.option("--scenarios", type=click.IntRange(min=1), default=1000, show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True)
def main(name: str, scenarios: int, seed: int) -> None:
    """Print by premise on how many decisions it held, did not hold, and said nothing.

    Exit status: 1 where a premise did not hold though nothing says why it may not, else 0.
    """
    prepared = prepare_engine(name)
    source = scenario_source(Scenarios(seed=seed, without=withheld(prepared)))
    refused = unsupported(prepared)
    counts, ran, crashed = Counts(), 0, 0
    engine = open_prepared(prepared)
    try:
        for scenario in filter(lambda drawn: not refused(drawn), map(source, range(scenarios))):
            run = engine.run(scenario)
            # Neither a refusal nor a crash before the engine stands gives a header to begin with.
            if run.lines and b"kvoracle_trace" in run.lines[0]:
                ran += 1
                crashed += bool(crash_kind(run.lines))
                counts.add(run.lines, engine.release)
    finally:
        engine.close()
    click.echo(f"{prepared.label}: {ran} of {scenarios} scenarios of seed {seed} ran, {crashed} of them into a crash")
    click.echo(premises_text(counts))
    sys.exit(bool(counts.undeclared))


if __name__ == "__main__":
    main()
