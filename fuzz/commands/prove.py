"""``kvoracle prove``: do the claims hold, for all inputs?"""

from __future__ import annotations

import difflib
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import z3

from fuzz.commands.common import COULD_NOT_JUDGE, Problem, json_option, leave, print_json, split_names
from fuzz.confirmations import Taken, take_to_engine
from fuzz.engines.cache import cache_folder
from fuzz.engines.names import NEWEST_RELEASE, nearest_release, parse_engine_name
from fuzz.engines.provision import checkout_version
from fuzz.engines.sources import source_tree
from fuzz.findings import kvoracle_version
from fuzz.proofs import UNDECIDED, exit_status, proofs_document, proofs_text
from spec.cache import Cache
from spec.engine_lookup import EngineLookup
from spec.engine_masks import EngineBoundaries, EngineMask
from spec.engine_split import EngineSplit
from spec.ledger import ledger_text
from spec.lift import ShapeChanged, SourceTree
from spec.plan import PLANS, RELEASES, TIERS, Tier, all_claims, cost, left_out, size_names, tasks
from spec.row import ControlRow, Row
from spec.run import Done, Options, run_tasks
from spec.second import NoSecondSolver, Opinion, second_opinion, second_solver
from spec.smt import Export
from spec.solver import Limits
from spec.task import Task

LEDGER = Path("spec") / "LEDGER.md"


@dataclass(frozen=True)
class Target:
    """What is proved about. ``source``: the folder of an engine's ``vllm``, empty for the reference."""

    name: str
    source: str
    releases: tuple[str, ...]
    premises: tuple[tuple[str, tuple[str, ...]], ...]


@click.command()
@click.argument("claims", nargs=-1, metavar="[CLAIM]...")
@click.option("--engine", default="reference", show_default=True, help="Prove about this build's own functions.")
@click.option("--release", "releases", multiple=True, metavar="RELEASE", help="Under this release's policy (repeat).")
@click.option("--tier", type=click.Choice(TIERS), default="quick", show_default=True)
@click.option("--domain", "sizes", multiple=True, metavar="SIZES", help="Over these block sizes, like 16/4 (repeat).")
@click.option("--fresh", is_flag=True, help="Prove again what was proved before.")
@click.option("--jobs", type=click.IntRange(1, 256), metavar="N", help="Processes at a time. Default: one a core.")
@click.option("--smt", type=click.Path(file_okay=False), metavar="FOLDER", help="Write what Z3 is asked as SMT-LIB.")
@click.option("--cvc5", "second", type=click.IntRange(min=1), metavar="N", help="Ask cvc5 N of the questions again.")
@click.option("--write-ledger", is_flag=True, help=f"Write {LEDGER}, in a clone.")
@json_option
def prove(
    claims: tuple[str, ...],
    engine: str,
    releases: tuple[str, ...],
    tier: Tier,
    sizes: tuple[str, ...],
    fresh: bool,
    jobs: int | None,
    smt: str | None,
    second: int | None,
    write_ledger: bool,
    as_json: bool,
) -> None:
    """Prove claims about the reference, or about a build's own functions, for all inputs.

    CLAIM is a claim's id, such as S3 or S10.tail; all where none is named.

    Exit status: 0 every verdict is the expected one and every planted fault was noticed; 1 a verdict is not
    the expected one; 2 something is undecided, a planted fault was missed, or nothing was proved.
    """
    wanted = _checked("claim", claims, all_claims(), str.casefold)
    domains = _checked("domain", sizes, size_names())
    chosen = _checked("release", split_names(releases), RELEASES)
    if write_ledger and not LEDGER.parent.is_dir():
        raise Problem(f"--write-ledger: there is no folder {LEDGER.parent} here; run it in a clone of kvoracle")
    if second is not None:
        _have_second_solver()
    target = _target(engine, chosen)
    todo = tasks(tier, target.releases, target=target.name, source=target.source, claims=wanted, sizes=domains)
    if not todo:
        raise Problem("nothing to prove: no such claim is made there")
    limits, jobs = Limits(), jobs or os.cpu_count() or 1
    settings = _settings(target, tier, wanted, domains, limits)
    click.echo("\n".join([*_heading(settings), ""]), err=as_json)
    with ExitStack() as stack:
        folder = smt or (stack.enter_context(tempfile.TemporaryDirectory()) if second else None)
        export = Export(folder) if folder else None
        began = time.monotonic()
        cache = Cache(cache_folder() / "proofs")
        done = _run(todo, Options(jobs, limits, cache, fresh, export))
        stats = _stats(done, time.monotonic() - began)
        opinion = second_opinion(Path(folder), second) if folder and second else None
    rows = [row for one in done for row in one.result.rows]
    controls = [control for one in done for control in one.result.controls]
    taken = list(take_to_engine(target.name, rows, lambda line: click.echo(line, err=True))) if target.source else []
    omitted = left_out(tier)
    if write_ledger:
        text = ledger_text(rows, controls, heading=_heading(settings), premises=target.premises, left_out=omitted)
        LEDGER.write_text(text, encoding="utf-8")
    if as_json:
        told = {"agree": opinion.agree, "disagree": opinion.disagree, "unknown": opinion.unknown} if opinion else None
        print_json(
            {
                **proofs_document(rows, controls, settings, stats),
                "cvc5": told,
                "left_out": omitted,
                "engine": _told(taken),
            }
        )
    else:
        click.echo(_text(target, rows, controls, omitted, opinion))
        for one in taken:
            click.echo("\n".join(filter(None, (f"on the engine: {one.words}", one.scenario))))
    click.echo(f"{stats['reused']} of {len(done)} tasks were proved before; {stats['seconds']:.1f} s", err=True)
    status = COULD_NOT_JUDGE if opinion and opinion.disagree else exit_status(rows, controls)
    if status == COULD_NOT_JUDGE:
        click.echo(f"kvoracle: could not judge: {_doubt(rows, controls, opinion)}", err=True)
    leave(status)


def _told(taken: Sequence[Taken]) -> list[dict[str, Any]]:
    """What became of counterexamples on the engine, as data."""
    return [
        {
            "claim": one.row.claim,
            "counterexample": one.row.shown,
            "status": one.confirmation.status,
            "exact": one.confirmation.exact,
            "reason": one.confirmation.reason,
            "scenario": one.confirmation.scenario,
        }
        for one in taken
    ]


def _doubt(rows: Sequence[Row], controls: Sequence[ControlRow], opinion: Opinion | None) -> str:
    """What keeps a run from being a proof, the gravest first."""
    if opinion is not None and opinion.disagree:
        return f"cvc5 says the opposite of Z3 on {len(opinion.disagree)} of {opinion.asked} questions"
    undecided = [row for row in rows if row.verdict in UNDECIDED]
    if undecided:
        return f"{len(undecided)} of {len(rows)} rows are undecided; the first: {undecided[0].reason}"
    missed = [control.claim for control in controls if not control.caught]
    return f"the planted faults of {', '.join(missed)} were missed" if missed else "nothing was proved"


def _checked(
    kind: str, names: Sequence[str], known: Collection[str], fold: Callable[[str], str] = str
) -> tuple[str, ...]:
    """The names as they are spelt where they are known. Raises Problem for one that is not."""
    spelt = {fold(name): name for name in known}
    for name in names:
        if fold(name) not in spelt:
            near = difflib.get_close_matches(fold(name), spelt, n=3, cutoff=0.4)
            hint = (
                f"did you mean {' or '.join(spelt[one] for one in near)}?" if near else f"there is {', '.join(known)}"
            )
            raise Problem(f"no such {kind}: {name}; {hint}")
    return tuple(spelt[fold(name)] for name in names)


def _have_second_solver() -> None:
    try:
        second_solver()
    except NoSecondSolver as error:
        raise Problem(str(error)) from None


def _target(engine: str, releases: tuple[str, ...]) -> Target:
    """What ``--engine`` means, and under which policies it is proved about. Raises EngineError."""
    premises = tuple((subject, plan.premises) for subject, plan in PLANS.items())
    if parse_engine_name(engine).kind == "reference":
        return Target("reference", "", releases or RELEASES, premises)
    source = source_tree(engine, say=lambda line: click.echo(line, err=True))
    name = parse_engine_name(engine)
    version = name.target if name.kind == "release" else checkout_version(source) or NEWEST_RELEASE
    if name.kind == "release":
        engine = f"vllm=={name.target}"  # ``vllm`` means another build one day
    return Target(
        engine, str(source), releases or (nearest_release(version),), (*premises, *_engine_premises(engine, source))
    )


def _engine_premises(engine: str, source: Path) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """What is taken for granted where the engine's functions stand alone; rows tell it if one cannot be lifted."""
    tree = SourceTree(source)
    lifted: dict[str, Callable[[], tuple[str, ...]]] = {
        "split": lambda: EngineSplit(tree).premises,
        "Mamba mask": lambda: EngineMask(tree, "mamba").premises,
        "window's mask": lambda: EngineMask(tree, "swa").premises,
        "boundary list": lambda: EngineBoundaries(tree).premises,
        "lookups": lambda: EngineLookup(tree).premises,
    }
    told = []
    for what, premises in lifted.items():
        with suppress(ShapeChanged):
            told.append((f"{what} of {engine}, lifted from its source", premises()))
    return tuple(told)


def _settings(
    target: Target, tier: Tier, claims: Sequence[str], sizes: Sequence[str], limits: Limits
) -> dict[str, Any]:
    return {
        "kvoracle": kvoracle_version(),
        "z3": z3.get_version_string(),
        "python": platform.python_version(),
        "target": target.name,
        "releases": target.releases,
        "tier": tier,
        "claims": claims,
        "sizes": sizes,
        "limits": {name: getattr(limits, name) for name in ("paths", "resource", "memory_mib", "samples")},
    }


def _heading(settings: dict[str, Any]) -> list[str]:
    """What a run was made with, before anything can go wrong."""
    limits = settings["limits"]
    what = f"claims {', '.join(settings['claims']) or 'all'}; sizes {'; '.join(settings['sizes']) or settings['tier']}"
    return [
        f"kvoracle {settings['kvoracle']}, Z3 {settings['z3']}, Python {settings['python']}",
        f"about {settings['target']} under the policy of {', '.join(settings['releases'])}; {what}",
        f"limits: {limits['paths']:,} paths a task, {limits['resource']:,} units of Z3's work a question, "
        f"{limits['memory_mib']:,} MiB a process",
    ]


def _run(todo: Sequence[Task], options: Options) -> list[Done]:
    """All results in the order of their tasks; progress goes to a terminal's stderr only."""
    done: list[Done] = []
    watched = sys.stderr.isatty()
    for one in run_tasks(todo, options, cost):
        done.append(one)
        if watched:
            click.echo(f"\r{len(done)} of {len(todo)} tasks", nl=len(done) == len(todo), err=True)
    return sorted(done, key=lambda one: one.place)


def _stats(done: Sequence[Done], seconds: float) -> dict[str, Any]:
    ran = [one.result for one in done if not one.reused]
    counts = {name: sum(getattr(result, name) for result in ran) for name in ("paths", "queries", "undecided")}
    return {"tasks": len(done), "reused": len(done) - len(ran), "seconds": seconds, **counts}


def _text(
    target: Target,
    rows: Sequence[Row],
    controls: Sequence[ControlRow],
    omitted: Sequence[str],
    opinion: Opinion | None,
) -> str:
    parts = []
    if target.source:
        for title, sentences in target.premises[len(PLANS) :]:
            parts += [f"Taken for granted: {title}", *(f"  {sentence}" for sentence in sentences), ""]
    parts.append(proofs_text(rows, controls, omitted))
    if opinion is not None:
        verdict = f"{opinion.agree} of {opinion.asked} agree, {opinion.unknown} undecided"
        parts += [f"cvc5: {verdict}", *(f"  DISAGREES: {path}" for path in opinion.disagree)]
    return "\n".join(parts)
