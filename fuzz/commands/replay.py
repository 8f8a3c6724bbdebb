"""``kvoracle replay``: is a finding still there, on this or another build?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from msgspec.structs import replace

from fuzz.commands.common import (
    CLEAN,
    COULD_NOT_JUDGE,
    FINDINGS,
    Problem,
    engine_options,
    json_option,
    leave,
    prepared_engine,
    print_json,
)
from fuzz.engines.open import Prepared, is_conforming, open_prepared, policy_to_ask_for
from fuzz.engines.protocol import Engine
from fuzz.export.issue import issue_body
from fuzz.export.upstream import NoExport, upstream_test
from fuzz.findings import EngineFacts, FindingFile, Origin, check_writable, kvoracle_version, new_finding
from fuzz.replay import CONFORMS, FIXED, STILL_THERE, VIOLATES, Item, Replayed, items
from fuzz.replay import replay as replay_item
from fuzz.report import engine_words, finding_text, replay_advice
from fuzz.story import story
from fuzz.traces import write_trace

_EXPORTS: dict[str, Callable[[FindingFile], str]] = {"upstream": upstream_test, "issue": issue_body}
_STATUS = {STILL_THERE: FINDINGS, VIOLATES: FINDINGS, FIXED: CLEAN, CONFORMS: CLEAN}


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True))
@engine_options()
@click.option("--quiet", is_flag=True, help="One line an item, without the findings themselves.")
@click.option(
    "--trace",
    "trace_folder",
    type=click.Path(file_okay=False),
    metavar="FOLDER",
    help="Write the trace of each item to FOLDER/NAME.jsonl.zst, for kvoracle judge.",
)
@click.option(
    "--export",
    "export_as",
    type=click.Choice(list(_EXPORTS)),
    help="Run nothing; write a finding for vLLM's maintainers: a stand-alone pytest file, or a report's body.",
)
@click.option("--output", type=click.Path(dir_okay=False), metavar="FILE", help="Where to export to, not to stdout.")
@json_option
@click.pass_context
def replay(
    context: click.Context,
    paths: tuple[str, ...],
    engine: str,
    policy: str | None,
    torch_index: str | None,
    allow_cuda: bool,
    quiet: bool,
    trace_folder: str | None,
    export_as: str | None,
    output: str | None,
    as_json: bool,
) -> None:
    """Run findings or scenarios (files, or folders of them) on an engine and say what became of each.

    \b
    STILL THERE    the finding was seen again
    FIXED          the scenario ran to its end, the rule judged the request or block concerned, no finding
    NOT REACHED    no finding, but what it was about did not come up
    COULD NOT RUN  the scenario or the engine was refused
    A scenario without a finding VIOLATES or CONFORMS.

    A finding is compared with the policy that it was found by when it is replayed on the same build and
    --policy is not given; else with that of the build, or with --policy.

    \b
    --export upstream   one pytest file that needs vLLM and nothing of kvoracle: it fails
                        on the build that has the fault, and passes on one that has not
    --export issue      the body of a bug report in Markdown, with that file in it

    Exit status: 0 all are fixed or conform, 1 a finding, 2 could not judge; 1 wins over 2.
    """
    if export_as is not None or output is not None:
        _export(context, paths, export_as, output)
        return
    traces = _Traces(Path(trace_folder)) if trace_folder else None
    engines = _Engines(engine, policy, torch_index, allow_cuda)
    results: list[Replayed] = []
    try:
        for item in (item for name in paths for item in items(Path(name))):
            outcome = replay_item(engines.for_item(item), item) if isinstance(item, Item) else item
            document = _document(engines.prepared, item, outcome) if isinstance(item, Item) else None
            results.append(outcome)
            if traces is not None:
                traces.write(outcome)
            if not as_json:
                _show(engines.prepared, outcome, document, first=len(results) == 1, quiet=quiet)
    finally:
        engines.close()
    if as_json:
        runner = next((outcome.runner for outcome in results if outcome.runner), "")
        facts = _facts(engines.default, runner)
        print_json({"engine": facts, "items": [_as_json(outcome) for outcome in results]})
    statuses = {_status(outcome) for outcome in results}
    leave(FINDINGS if FINDINGS in statuses else max(statuses))


def _export(context: click.Context, paths: tuple[str, ...], export_as: str | None, output: str | None) -> None:
    """Write the export of the one finding that was named; everything in it comes from the finding's file."""
    if export_as is None:
        raise Problem("--output says where to export to; say what to export by --export upstream or --export issue")
    for parameter in context.command.params:
        given = context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
        if given and parameter.name not in ("paths", "export_as", "output"):
            raise Problem(f"--export runs nothing, it writes what the finding says; leave out {parameter.opts[0]}")
    if len(paths) > 1:
        raise Problem("--export takes one finding at a time")
    document = finding_at(Path(paths[0]))
    try:
        text = _EXPORTS[export_as](document)
    except NoExport as error:
        raise Problem(f"{paths[0]}: no export: {error}") from None
    if output is None:
        click.echo(text, nl=False)
        return
    try:
        Path(output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise Problem(f"cannot write {output}: {error.strerror or error}; name another --output") from None
    click.echo(f"wrote {output}, from a finding on {document.engine.name} (version {document.engine.version})")


def finding_at(path: Path) -> FindingFile:
    """The finding that a file holds. Raises Problem for anything else."""
    if path.is_dir():
        raise Problem(f"{path} is a folder; name the file of one finding")
    item = next(items(path))
    if isinstance(item, Replayed):
        raise Problem(f"{item.path}: {item.why}")
    if item.document is None:
        raise Problem(
            f"{path}: a scenario, which does not say what rule it breaks; kvoracle shrink stores its findings"
        )
    return item.document


class _Engines:
    """The engine, once for each policy that a finding asks for. ``prepared``: the one that ran last."""

    def __init__(self, engine: str, policy: str | None, torch_index: str | None, allow_cuda: bool) -> None:
        self._options = engine, torch_index, allow_cuda
        self._policy = policy
        self._opened: dict[str | None, tuple[Prepared, Engine]] = {}
        self.default = self.prepared = self._prepare(policy)

    def for_item(self, item: Item) -> Engine:
        """The engine to replay an item on, open."""
        policy = self._policy
        if policy is None and item.document is not None and self._is_same_build(item.document.engine):
            found = item.document.engine
            policy = policy_to_ask_for(found.name, found.version, found.release)
        if policy not in self._opened:
            prepared = self.default if policy == self._policy else self._prepare(policy)
            self._opened[policy] = prepared, open_prepared(prepared)
        self.prepared, engine = self._opened[policy]
        return engine

    def close(self) -> None:
        """Stop them all."""
        for _, engine in self._opened.values():
            engine.close()

    def _prepare(self, policy: str | None) -> Prepared:
        engine, torch_index, allow_cuda = self._options
        return prepared_engine(engine, policy, torch_index, allow_cuda)

    def _is_same_build(self, found: EngineFacts) -> bool:
        typed = self.default.name.typed
        if is_conforming(found.name) or is_conforming(typed):
            return found.name == typed
        return found.version == self.default.version


class _Traces:
    """Writes the traces of a replay, each under the name of its item, numbered if two have the same."""

    def __init__(self, folder: Path) -> None:
        check_writable(folder, "--trace")
        self._folder = folder
        self._taken: set[str] = set()

    def write(self, outcome: Replayed) -> None:
        """Write an item's trace, if it has one."""
        if not outcome.lines:
            return
        name, number = outcome.path.stem, 1
        while name in self._taken:
            number += 1
            name = f"{outcome.path.stem}-{number}"
        self._taken.add(name)
        path = self._folder / f"{name}.jsonl.zst"
        try:
            write_trace(path, outcome.lines)
        except OSError as error:
            raise Problem(f"cannot write {path}: {error.strerror or error}; name another --trace folder") from None


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
    return new_finding(outcome.finding, item.scenario, facts, Origin(note=f"as in {item.path}"), steps)


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
