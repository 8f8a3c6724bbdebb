"""The command line. Exit status: 0 clean, 1 findings, 2 could not judge."""

from __future__ import annotations

import click

from fuzz.commands import common
from fuzz.commands.bisect import bisect
from fuzz.commands.engines import engines
from fuzz.commands.explain import explain
from fuzz.commands.features import features
from fuzz.commands.fuzz import fuzz
from fuzz.commands.gate import gate
from fuzz.commands.judge import judge
from fuzz.commands.prove import prove
from fuzz.commands.replay import replay
from fuzz.commands.schema import schema
from fuzz.commands.selftest import selftest
from fuzz.commands.shrink import shrink
from fuzz.findings import kvoracle_version


@click.group(cls=common.Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(kvoracle_version(), prog_name="kvoracle")
def cli() -> None:
    """Check the prefix-cache side of vLLM's V1 scheduler, on real builds, without a GPU.

    Exit status: 0 clean, 1 findings, 2 could not judge (one line on stderr says why).
    """


for command in (fuzz, gate, judge, replay, bisect, shrink, prove, explain, engines, features, schema, selftest):
    cli.add_command(command)


def main() -> None:
    """Entry point of the ``kvoracle`` command."""
    cli()
