"""``kvoracle features``: what a campaign may draw, for ``--only`` and ``--without``."""

from __future__ import annotations

import click

from fuzz.commands.common import json_option, print_json
from fuzz.generator import FEATURES, describe


@click.command()
@json_option
def features(as_json: bool) -> None:
    """List the features that ``fuzz`` draws scenarios from, as --only and --without take them.

    Each batch of scenarios has some of them on; the summary of ``fuzz`` says which were drawn how often.
    """
    if as_json:
        print_json({name: describe(name) for name in FEATURES})
        return
    for name in FEATURES:
        click.echo(f"{name:<20} {describe(name)}")
