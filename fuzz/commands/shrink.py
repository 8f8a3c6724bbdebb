"""``kvoracle shrink``: the smallest scenario that still shows a finding."""

from __future__ import annotations

import time
from pathlib import Path

import click
from msgspec.structs import replace

from fuzz.commands.common import (
    COULD_NOT_JUDGE,
    FINDINGS,
    Duration,
    Problem,
    engine_options,
    folder_option,
    json_option,
    leave,
    prepared_engine,
    print_json,
    rule_option,
    rules,
)
from fuzz.engines.open import Prepared, open_prepared
from fuzz.engines.protocol import Engine
from fuzz.findings import (
    BadFinding,
    EngineFacts,
    FindingFile,
    Origin,
    check_writable,
    engine_folder,
    finding_document,
    finding_path,
    new_finding,
    store,
)
from fuzz.replay import Item, items
from fuzz.report import finding_text, replay_advice
from fuzz.shrink import ATTEMPTS
from fuzz.shrink import shrink as shrink_scenario
from fuzz.story import story
from fuzz.tally import Signature, by_signature
from fuzz.trial import Rules, Trial, try_scenario
from oracle.scenario import Scenario
from oracle.validate import check
from oracle.verdict import Finding
from reference.rules import RULES


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@engine_options()
@rule_option
@click.option("--time", "seconds", type=Duration(), help="Stop after this time (90s, 10m).")
@click.option("--attempts", type=click.IntRange(min=1), default=ATTEMPTS, show_default=True)
@folder_option
@json_option
def shrink(
    file: str,
    engine: str,
    policy: str | None,
    torch_index: str | None,
    allow_cuda: bool,
    rule_names: tuple[str, ...],
    seconds: float | None,
    attempts: int,
    folder: str,
    as_json: bool,
) -> None:
    """Make the scenario of FILE (a finding or a scenario) smaller, once for each finding that it shows.

    Exit status: 1 a finding was shrunk, 2 the scenario shows none or could not run.
    """
    item = next(items(Path(file)))
    if not isinstance(item, Item):
        raise Problem(f"{item.path}: {item.why}")
    if reasons := check(item.scenario):
        raise Problem(f"{file}: {'; '.join(reasons)}")
    wanted = rules(rule_names)
    check_writable(engine_folder(Path(folder), engine))
    prepared = prepared_engine(engine, policy, torch_index, allow_cuda)
    deadline = None if seconds is None else time.monotonic() + seconds
    opened = open_prepared(prepared)
    documents = []
    try:
        for signature in _signatures(opened, item, wanted):
            document = _shrink(opened, prepared, item, signature, attempts, deadline)
            path = finding_path(Path(folder), prepared.name.typed, signature)
            _store(path, document)
            documents.append({"path": str(path), **finding_document(document)})
            if not as_json:
                click.echo(finding_text(document, replay_advice(document, path)) + "\n")
    finally:
        opened.close()
    if as_json:
        print_json(documents)
    leave(FINDINGS if documents else COULD_NOT_JUDGE)


def _store(path: Path, document: FindingFile) -> None:
    """A finding that cannot be stored is still one, and is printed."""
    try:
        store(path, document)
    except BadFinding as error:
        click.echo(f"kvoracle: {error}", err=True)


def _signatures(engine: Engine, item: Item, wanted: Rules) -> list[Signature]:
    """What to shrink: the finding of the file, or all that its scenario shows. Raises Problem for none."""
    if item.document is not None and (wanted is None or item.document.signature[0] in wanted):
        return [item.document.signature]
    judged = frozenset(RULES) if wanted is None else wanted
    trial = try_scenario(engine, item.scenario, compared=judged)
    if trial.could_not_run:
        raise Problem(f"{item.path}: {trial.could_not_run}")
    found = list(by_signature(trial.verdict.findings))
    chosen = [signature for signature in found if wanted is None or signature[0] in wanted]
    if not chosen:
        by = f" by {', '.join(sorted(wanted))}" if wanted else ""
        others = sorted({rule for rule, _, _ in found})
        also = f" (there is one by {', '.join(others)})" if others else ""
        raise Problem(f"{item.path}: {engine.name} gives no finding{by} on it{also}; there is nothing to shrink")
    return chosen


def _shrink(
    engine: Engine,
    prepared: Prepared,
    item: Item,
    signature: Signature,
    attempts: int,
    deadline: float | None,
) -> FindingFile:
    last: list[Trial] = []

    def recurs(candidate: Scenario) -> Finding | None:
        trial = try_scenario(engine, candidate, compared={signature[0]})
        finding = by_signature(trial.verdict.findings).get(signature)
        if finding is not None:
            last[:] = [trial]
        return finding

    small = shrink_scenario(item.scenario, recurs, attempts=attempts, deadline=deadline)
    if small.finding is None:
        raise Problem(f"{item.path}: {engine.name} does not show {' · '.join(signature)} on it")
    trial = last[0]
    facts = EngineFacts(prepared.name.typed, prepared.version, trial.runner, prepared.release)
    rows = story(trial.lines, small.finding, trial.verdict.judged)
    fresh = new_finding(small.finding, small.scenario, facts, Origin(note=f"from {item.path}"), rows)
    document = replace(fresh, original=item.scenario, shrunk=small.complete, attempts=small.attempts)
    return document if item.document is None else _continued(document, item.document)


def _continued(document: FindingFile, earlier: FindingFile) -> FindingFile:
    """What was known of the finding before: where it comes from, and on the same build what was tried."""
    document = replace(document, original=earlier.original, origin=earlier.origin, count=earlier.count)
    if (document.engine, document.signature) != (earlier.engine, earlier.signature):
        return document
    was_smallest = earlier.shrunk and document.scenario == earlier.scenario
    return replace(document, shrunk=document.shrunk or was_smallest, attempts=document.attempts + earlier.attempts)
