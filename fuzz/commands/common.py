"""What the commands share: options, how errors are told, how JSON is printed."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from typing import Any, TypeVar

import click
import msgspec

from fuzz.campaign import CampaignError
from fuzz.engines.names import EngineError
from fuzz.engines.open import Prepared, prepare_engine
from fuzz.findings import BadFinding
from fuzz.generator import UnknownFeature
from fuzz.known import BadKnown
from fuzz.trial import Rules
from oracle.judge import BadTrace
from oracle.validate import BadScenario
from reference.rules import RULES

CLEAN, FINDINGS, COULD_NOT_JUDGE = 0, 1, 2

USER_ERRORS = (BadFinding, BadKnown, BadScenario, BadTrace, CampaignError, EngineError, UnknownFeature)
"""Errors whose message is one line for the user."""

F = TypeVar("F", bound=Callable[..., Any])


class Problem(click.ClickException):
    """Something kept kvoracle from judging; one line on stderr that says what and how to mend it."""

    exit_code = COULD_NOT_JUDGE

    def show(self, file: Any = None) -> None:
        click.echo(f"kvoracle: {self.message}", err=True)


class Group(click.Group):
    """A group of commands that tells the user's errors in one line."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except USER_ERRORS as error:
            raise Problem(str(error)) from error


class Duration(click.ParamType):
    """A time such as ``90``, ``90s``, ``10m`` or ``1.5h``, in seconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", str(value))
        seconds = float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]] if match else 0.0
        if seconds <= 0:
            self.fail(f"{value!r} is no time; write it like 90s, 10m or 1h", param, ctx)
        return seconds


def engine_options(default: str | None = "vllm") -> Callable[[F], F]:
    """``--engine`` and what belongs to it."""

    def add(function: F) -> F:
        for option in (
            click.option("--allow-cuda", is_flag=True, help="Accept a GPU build of torch if there is no other."),
            click.option("--torch-index", metavar="URL", help="The package index that has CPU builds of torch."),
            click.option("--policy", metavar="RELEASE", help="Compare with this release's policy, or with none."),
            click.option(
                "--engine",
                metavar="ENGINE",
                default=default,
                required=default is None,
                show_default=default is not None,
                help="vllm (the newest), vllm==X, a checkout's path, python:PATH, reference, planted:NAME.",
            ),
        ):
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
    wanted = frozenset(split_names(names))
    for name in sorted(wanted - RULES.keys()):
        near = difflib.get_close_matches(name.upper(), RULES, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(near)}?" if near else f"rules are: {', '.join(RULES)}"
        raise Problem(f"--rule {name}: no such rule; {hint}")
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
