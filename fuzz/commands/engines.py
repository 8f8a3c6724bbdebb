"""``kvoracle engines``: the vLLM builds in the cache, and whether an engine works."""

from __future__ import annotations

from typing import Any

import click

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
from fuzz.engines.cache import cache_folder
from fuzz.engines.names import SUPPORTED_RELEASES
from fuzz.engines.open import open_prepared
from fuzz.engines.planted import FAULTS
from fuzz.engines.provision import list_engines, remove_engine
from fuzz.smoke import smoke


@click.group()
def engines() -> None:
    """List, add, check and remove engines."""


@engines.command("list")
@json_option
def list_command(as_json: bool) -> None:
    """List what is in the cache, and what else can be named."""
    installed = list_engines()
    if as_json:
        print_json(
            {
                "cache": str(cache_folder()),
                "installed": [
                    {"name": e.name, "folder": str(e.folder), "facts": e.facts, "bytes": e.size} for e in installed
                ],
                "releases": SUPPORTED_RELEASES,
                "planted": sorted(FAULTS),
            }
        )
        return
    click.echo(f"in {cache_folder()}:")
    for entry in installed:
        facts = ", ".join(f"{name} {value}" for name, value in entry.facts.items())
        click.echo(f"  {entry.name:<18} {entry.size / 1e6:>8,.0f} MB  {facts}")
    if not installed:
        click.echo("  (nothing yet)")
    click.echo(f"releases: {', '.join(f'vllm=={release}' for release in SUPPORTED_RELEASES)}")
    click.echo("others: the folder of a vLLM checkout, python:PATH, reference, planted:FAULT")
    click.echo("faults:")
    for name in sorted(FAULTS):
        click.echo(f"  {name:<32} {FAULTS[name].rule}")


@engines.command()
@click.argument("engine")
@click.option("--allow-cuda", is_flag=True, help="Accept a GPU build of torch if there is no other.")
@click.option("--torch-index", metavar="URL", help="The package index that has CPU builds of torch.")
@json_option
def add(engine: str, allow_cuda: bool, torch_index: str | None, as_json: bool) -> None:
    """Get ENGINE ready, so that later runs need no network."""
    prepared = prepared_engine(engine, None, torch_index, allow_cuda)
    if as_json:
        print_json({"name": engine, "version": prepared.version, "policy": prepared.release})
    else:
        click.echo(f"{prepared.label} is ready")


@engines.command()
@click.argument("engine")
@engine_options(named=False)
@json_option
def check(engine: str, policy: str | None, torch_index: str | None, allow_cuda: bool, as_json: bool) -> None:
    """Run a small scenario whose decisions are known on ENGINE.

    Exit status: 0 as known, 1 otherwise, 2 the engine does not run.
    """
    prepared = prepared_engine(engine, policy, torch_index, allow_cuda)
    opened = open_prepared(prepared)
    try:
        result = smoke(opened)
    finally:
        opened.close()
    document: dict[str, Any] = {
        "engine": engine,
        "version": prepared.version,
        "policy": prepared.release,
        "expected": result.expected,
        "actual": result.actual,
        "findings": result.findings,
        "problem": result.problem,
    }
    if as_json:
        print_json(document)
    elif result.problem:
        click.echo(f"kvoracle: {prepared.label}: {result.problem}", err=True)
    else:
        click.echo(f"{prepared.label}: {'as known' if result.works else 'NOT as known'}")
        for name, actual in result.actual.items():
            wanted = result.expected[name]
            click.echo(f"  {name}: {actual}" + ("" if actual == wanted else f" (known: {wanted})"))
        for finding in result.findings:
            click.echo(f"  {' · '.join(finding.signature)}: {finding.reason}")
    leave(COULD_NOT_JUDGE if result.problem else CLEAN if result.works else FINDINGS)


@engines.command()
@click.argument("name")
@json_option
def remove(name: str, as_json: bool) -> None:
    """Remove NAME (as ``list`` prints it) from the cache."""
    freed = remove_engine(name, say=lambda line: click.echo(line, err=True))
    if as_json:
        print_json({"name": name, "bytes": freed})
    else:
        click.echo(f"removed {name}, {freed / 1e6:,.0f} MB")
