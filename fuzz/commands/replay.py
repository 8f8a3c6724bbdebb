"""``kvoracle replay``: is a finding still there, on this or another build?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from msgspec.structs import replace

from fuzz.commands.common import (
    CLEAN,
    COULD_NOT_JUDGE,
    FINDINGS,
    engine_options,
    json_option,
    leave,
    prepared_engine,
    print_json,
)
from fuzz.engines.open import Prepared, open_prepared
from fuzz.findings import EngineFacts, FindingFile, Origin, kvoracle_version, sentence
from fuzz.replay import CONFORMS, FIXED, STILL_THERE, VIOLATES, Item, Replayed, items
from fuzz.replay import replay as replay_item
from fuzz.report import engine_words, finding_text, replay_advice
from fuzz.story import story

_STATUS = {STILL_THERE: FINDINGS, VIOLATES: FINDINGS, FIXED: CLEAN, CONFORMS: CLEAN}


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True))
@engine_options()
@click.option("--quiet", is_flag=True, help="One line an item, without the findings themselves.")
@json_option
def replay(
    paths: tuple[str, ...],
    engine: str,
    policy: str | None,
    torch_index: str | None,
    allow_cuda: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Run findings or scenarios (files, or folders of them) on an engine and say what became of each.

    \b
    STILL THERE    the finding was seen again
    FIXED          the scenario ran to its end, the rule judged the request or block concerned, no finding
    NOT REACHED    no finding, but what it was about did not come up
    COULD NOT RUN  the scenario or the engine was refused
    A scenario without a finding VIOLATES or CONFORMS.

    Exit status: 0 all are fixed or conform, 1 a finding, 2 could not judge; 1 wins over 2.
    """
    prepared = prepared_engine(engine, policy, torch_index, allow_cuda)
    opened = open_prepared(prepared)
    results: list[tuple[Replayed, FindingFile | None]] = []
    try:
        for name in paths:
            for item in items(Path(name)):
                outcome = replay_item(opened, item) if isinstance(item, Item) else item
                document = _document(prepared, item, outcome) if isinstance(item, Item) else None
                results.append((outcome, document))
                if not as_json:
                    _show(prepared, outcome, document, first=len(results) == 1, quiet=quiet)
    finally:
        opened.close()
    if as_json:
        print_json({"engine": _facts(prepared, ""), "items": [_as_json(outcome) for outcome, _ in results]})
    statuses = {_status(outcome) for outcome, _ in results}
    leave(FINDINGS if FINDINGS in statuses else max(statuses))


def _status(outcome: Replayed) -> int:
    """A finding that is gone while another one came is not clean."""
    return FINDINGS if outcome.others else _STATUS.get(outcome.word, COULD_NOT_JUDGE)


def _facts(prepared: Prepared, runner: str) -> EngineFacts:
    return EngineFacts(prepared.name.typed, prepared.version, runner, prepared.release)


def _document(prepared: Prepared, item: Item, outcome: Replayed) -> FindingFile | None:
    """The finding that is there, for printing; the scenario's history comes from the file if it has one."""
    if outcome.finding is None:
        return None
    facts, steps = _facts(prepared, outcome.runner), story(outcome.lines, outcome.finding, outcome.judged)
    if item.document is not None:
        return replace(
            item.document,
            finding=outcome.finding,
            signature=outcome.finding.signature,
            engine=facts,
            steps=steps,
        )
    return FindingFile(
        kvoracle=kvoracle_version(),
        signature=outcome.finding.signature,
        sentence=sentence(outcome.finding.rule),
        finding=outcome.finding,
        scenario=item.scenario,
        original=item.scenario,
        engine=facts,
        origin=Origin(note=f"as in {item.path}"),
        steps=steps,
    )


def _show(prepared: Prepared, outcome: Replayed, document: FindingFile | None, *, first: bool, quiet: bool) -> None:
    if first:
        click.echo(f"kvoracle {kvoracle_version()}, {engine_words(_facts(prepared, outcome.runner))}")
        for note in prepared.notes:
            click.echo(f"note: {note}")
    why = f": {outcome.why}" if outcome.why else ""
    click.echo(f"{outcome.word:<13}  {outcome.path}{why}")
    for other in outcome.others:
        click.echo(f"{'':<15}also {' · '.join(other.signature)}: {other.reason}")
    if document is not None and not quiet:
        click.echo("\n" + finding_text(document, replay_advice(document, outcome.path)) + "\n")


def _as_json(outcome: Replayed) -> dict[str, Any]:
    return {
        "path": str(outcome.path),
        "word": outcome.word,
        "why": outcome.why,
        "finding": outcome.finding,
        "others": outcome.others,
    }
