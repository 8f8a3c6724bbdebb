"""``kvoracle compile``: the judge as machine code, for campaigns that run long."""

from __future__ import annotations

import click

from fuzz.commands.common import json_option, print_json
from fuzz.compiled import compile_judge


@click.command()
@json_option
def compile(as_json: bool) -> None:
    """Compile the judge, which halves the time that judging takes.

    Needs mypyc (pip install 'kvoracle[compiled]'), a C compiler and about a minute. Campaigns, gates and the controls
    of selftest use it until kvoracle's sources change; what is found is the same.
    """
    facts = compile_judge(lambda text: click.echo(text, err=True))
    if as_json:
        print_json(facts)
    else:
        click.echo(f"the judge is compiled: {facts['modules']} modules, for Python {facts['python']}")
