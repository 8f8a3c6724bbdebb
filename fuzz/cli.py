"""The command line. Exit status: 0 clean, 1 findings, 2 could not judge."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module

import click

from fuzz.commands import common
from fuzz.findings import kvoracle_version

COMMANDS = (
    "bisect",
    "compile",
    "engines",
    "explain",
    "features",
    "fuzz",
    "gate",
    "judge",
    "prove",
    "replay",
    "schema",
    "selftest",
    "shrink",
)


class Commands(common.Group):
    """Loads a command when it is called: a campaign's workers, too, begin here, and have no use for Z3."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"fuzz.commands.{cmd_name}"), cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        # Click's own suggestion looks among the commands that are loaded, and differs from version to version.
        if args and args[0] not in COMMANDS:
            near = get_close_matches(args[0], COMMANDS, n=1)
            ctx.fail(f"No such command {args[0]!r}." + "".join(f" Did you mean {name!r}?" for name in near))
        return super().resolve_command(ctx, args)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(kvoracle_version(), prog_name="kvoracle")
def cli() -> None:
    """Check the prefix-cache side of vLLM's V1 scheduler, on real builds, without a GPU.

    Exit status: 0 clean, 1 findings, 2 could not judge (one line on stderr says why).
    """


def main() -> None:
    """Entry point of the ``kvoracle`` command."""
    cli()
