"""``kvoracle gate``: may a change to the scheduler go in?"""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import click

from fuzz.commands.common import Duration, Problem, engine_options, folder_option, leave, prepared_engine
from fuzz.engines.open import Prepared, checked_policy
from fuzz.engines.sources import source_tree
from fuzz.findings import check_writable, engine_folder
from fuzz.gate.formats import github, html, json_, junit, markdown, sarif, text
from fuzz.gate.gate import Gate, Settings
from fuzz.gate.model import GateReport
from fuzz.gate.pair import COST
from fuzz.known import load_known

FORMATS: dict[str, Callable[[GateReport], str]] = {
    "text": text.render,
    "json": json_.render,
    "junit": junit.render,
    "sarif": sarif.render,
    "github": github.render,
    "markdown": markdown.render,
    "html": html.render,
}

Output = tuple[str, Path | None]
"""The name of a format, and the file that it goes to; None: stdout."""


class FormatOption(click.ParamType):
    """``FORMAT`` or ``FORMAT=FILE``."""

    name = "format"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Output:
        name, _, file = str(value).partition("=")
        if name not in FORMATS:
            self.fail(f"there is no format {name!r}; there is {', '.join(FORMATS)}", param, ctx)
        return name, Path(file) if file else None


@click.command()
@click.option(
    "--baseline", metavar="ENGINE", default="vllm", show_default=True, help="What the change is held against."
)
@engine_options()
@click.option("--time", "seconds", type=Duration(), default="5m", show_default=True, help="For all but setting up.")
@click.option("--scenarios", type=click.IntRange(min=1), metavar="N", help="Generate no more after N scenarios.")
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, metavar="N")
@click.option("--tolerance", type=click.FloatRange(0, 1), default=0.0, show_default=True, metavar="SHARE",
              help="A cost may be worse by this share of the baseline's.")  # fmt: skip
@click.option("--accept", multiple=True, type=click.Choice(["incomparable", "unseen"]),
              help="Let pass: better here and worse there; changed lines that never ran.")  # fmt: skip
@click.option("--require-proof", is_flag=True, help="Do not judge where a changed function is not proved equal.")
@click.option("--known", "known_file", type=click.Path(dir_okay=False), help="Findings that are expected (TOML).")
@click.option("--format", "outputs", type=FormatOption(), multiple=True, metavar="FORMAT[=FILE]",
              help=f"{', '.join(FORMATS)}; repeat for several, of which one may go to stdout.")  # fmt: skip
@folder_option
def gate(
    baseline: str,
    engine: str,
    policy: str | None,
    torch_index: str | None,
    allow_cuda: bool,
    seconds: float,
    scenarios: int | None,
    seed: int,
    tolerance: float,
    accept: tuple[str, ...],
    require_proof: bool,
    known_file: str | None,
    outputs: tuple[Output, ...],
    folder: str,
) -> None:
    """Compare a changed engine with a baseline, and say whether the change may go in.

    Both run the same scenarios; each is judged by the invariants. Identical and refines pass. With --policy the
    engine is also held to the decisions of that release.

    Exit status: 0 it may go in, 1 it regresses or cannot be compared, 2 could not judge.
    """
    outputs = _checked(outputs)
    known = load_known(Path(known_file), (COST,)) if known_file else ()
    check_writable(engine_folder(Path(folder), engine))
    declared = checked_policy(policy)
    sides = [_build(name, torch_index, allow_cuda) for name in (baseline, engine)]
    sources = tuple(source_tree(name, say=_say) for name in (baseline, engine))
    settings = Settings(
        seconds=seconds,
        scenarios=scenarios,
        seed=seed,
        tolerance=tolerance,
        accept=frozenset(accept),
        require_proof=require_proof,
        known=known,
        today=datetime.datetime.now(datetime.UTC).date(),
        folder=Path(folder),
    )
    run = Gate(sides[0], replace(sides[1], release=declared), (sources[0], sources[1]), settings, _say)
    click.echo(f"kvoracle gate: {sides[1].label} against {sides[0].label}, seed {seed}, {seconds:.0f} s", err=True)
    report = run.run()
    _write(report, outputs)
    if report.exit_status == 2:
        click.echo(f"kvoracle: could not judge: {report.reason}", err=True)
    leave(report.exit_status)


def _build(name: str, torch_index: str | None, allow_cuda: bool) -> Prepared:
    """A build of vLLM that is judged by the invariants alone. Raises Problem for what is none, EngineError."""
    prepared = prepared_engine(name, None, torch_index, allow_cuda)
    if prepared.launch is None:
        raise Problem(f"{name} is no build of vLLM; a gate compares two of these, such as vllm==0.33.0 and a checkout")
    return replace(prepared, release=None)


def _checked(outputs: tuple[Output, ...]) -> tuple[Output, ...]:
    """The outputs, or text alone. Raises Problem where several would be mixed on stdout."""
    plain = [name for name, file in outputs if file is None]
    if len(plain) > 1:
        raise Problem(f"--format {plain[1]}: stdout is taken by {plain[0]}; write --format {plain[1]}=FILE")
    for _, file in outputs:
        if file is not None and not file.parent.is_dir():
            raise Problem(f"--format {file}: there is no folder {file.parent}")
    return outputs if plain else (("text", None), *outputs)


def _write(report: GateReport, outputs: tuple[Output, ...]) -> None:
    for name, file in outputs:
        if file is None:
            click.echo(FORMATS[name](report), nl=False)
        else:
            told = text.render_plain(report) if name == "text" else FORMATS[name](report)
            file.write_text(told, encoding="utf-8")
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary and any(name == "github" for name, _ in outputs):
        with open(summary, "a", encoding="utf-8") as target:
            target.write(github.summary(report))


def _say(line: str) -> None:
    click.echo(line, err=True)
