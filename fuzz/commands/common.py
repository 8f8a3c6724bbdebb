"""What the commands share: options, how errors are told, how JSON is printed."""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click
import msgspec

from fuzz.campaign import CampaignError
from fuzz.engines.names import EngineError
from fuzz.engines.open import Prepared, prepare_engine
from fuzz.findings import BadFinding, no_such_rule
from fuzz.generator import UnknownFeature
from fuzz.known import BadKnown
from fuzz.trial import Rules
from oracle.judge import BadTrace
from oracle.validate import BadScenario
from reference.rules import RULES

CLEAN, FINDINGS, COULD_NOT_JUDGE = 0, 1, 2
FAILED = "kvoracle failed, please report this"

USER_ERRORS = (BadFinding, BadKnown, BadScenario, BadTrace, CampaignError, EngineError, UnknownFeature)
"""Errors whose message is one line for the user."""

F = TypeVar("F", bound=Callable[..., Any])


class Problem(click.ClickException):
    """Something kept kvoracle from judging; one line on stderr that says what and how to mend it."""

    exit_code = COULD_NOT_JUDGE

    def show(self, file: Any = None) -> None:
        click.echo(f"kvoracle: {self.message}", err=True)


class Failed(Problem):
    """A mistake of kvoracle's own; its traceback has been printed."""

    def show(self, file: Any = None) -> None:
        click.echo(self.message, err=True)


class Group(click.Group):
    """A group of commands that tells every error in one line, and never by the exit status of a finding."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command line. Click's own way of ending would print several lines, and give 1 for Ctrl-C."""
        try:
            status = super().main(args, prog_name, complete_var, standalone_mode=False, **extra) or CLEAN
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            status = error.exit_code
        except click.ClickException as error:
            problem = error if isinstance(error, Problem) else Problem(_usage(error))
            problem.show()
            status = COULD_NOT_JUDGE
        if standalone_mode:
            sys.exit(status)
        return status

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit):
            raise
        except (KeyboardInterrupt, click.Abort):
            raise Problem("interrupted") from None
        except USER_ERRORS as error:
            raise Problem(str(error)) from error
        except BrokenPipeError:
            # Whoever read our output has gone, as ``head`` does; Python must not complain about it at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            raise Problem("the output was cut off by its reader") from None
        except Exception as error:
            traceback.print_exc()
            raise Failed(FAILED) from error


def _usage(error: click.ClickException) -> str:
    """A mistake in how a command was called, on one line, with where to read how it is done."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    hint = f" (see {context.command_path} --help)" if context is not None else ""
    return " ".join(error.format_message().split()).rstrip(".") + hint


class Duration(click.ParamType):
    """A time such as ``90``, ``90s``, ``10m`` or ``1.5h``, in seconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", str(value))
        seconds = float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]] if match else 0.0
        if seconds <= 0:
            self.fail(f"{value!r} is no time; write it like 90s, 10m or 1h", param, ctx)
        return seconds


def engine_options(*, named: bool = True) -> Callable[[F], F]:
    """What says how an engine is got ready; if ``named``, ``--engine`` too, else the command has it as an argument."""
    options = [
        click.option("--allow-cuda", is_flag=True, help="Accept a GPU build of torch if there is no other."),
        click.option("--torch-index", metavar="URL", help="The package index that has CPU builds of torch."),
        click.option("--policy", metavar="RELEASE", help="Compare with this release's policy, or with none."),
    ]
    if named:
        forms = "vllm (the newest), vllm==X, a checkout's path, python:PATH, reference, planted:NAME."
        options.append(click.option("--engine", metavar="ENGINE", default="vllm", show_default=True, help=forms))

    def add(function: F) -> F:
        for option in options:
            function = option(function)
        return function

    return add


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
rule_option = click.option(
    "--rule",
    "rule_names",
    multiple=True,
    metavar="RULE",
    help="Judge by this rule only (repeat, or join by commas).",
)
folder_option = click.option(
    "--folder",
    type=click.Path(file_okay=False),
    default="kvoracle-findings",
    show_default=True,
    help="Where findings are stored.",
)


def prepared_engine(engine: str, policy: str | None, torch_index: str | None, allow_cuda: bool) -> Prepared:
    """The engine that the options name, with what it lacks downloaded. Progress goes to stderr."""
    return prepare_engine(
        engine,
        policy=policy,
        say=lambda line: click.echo(line, err=True),
        torch_index=torch_index,
        allow_cuda=allow_cuda,
    )


def rules(names: tuple[str, ...]) -> Rules:
    """The rules that ``--rule`` names, None for all. Raises Problem for one that does not exist."""
    wanted = frozenset(name.upper() for name in split_names(names))
    for name in sorted(wanted - RULES.keys()):
        raise Problem(f"--rule {name}: {no_such_rule(name)}")
    return wanted or None


def split_names(values: tuple[str, ...]) -> tuple[str, ...]:
    """Names given by several options, or in one and joined by commas."""
    return tuple(name.strip() for value in values for name in value.split(",") if name.strip())


def print_json(document: Any) -> None:
    """One JSON document on stdout."""
    encoded = msgspec.json.encode(document, order="deterministic")
    click.echo(msgspec.json.format(encoded, indent=1).decode())


def leave(status: int) -> None:
    """End the command with this exit status."""
    click.get_current_context().exit(status)
