"""Shows a campaign while it runs: a table where there is a terminal, a line now and then elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.live import Live
from rich.table import Table

from fuzz import report
from fuzz.campaign import State
from fuzz.story import count

_LINE_SECONDS = 10.0

Watch = Callable[[State], None]


@contextlib.contextmanager
def display() -> Iterator[Watch]:
    """Yields the function that a campaign calls with its state. All goes to stderr."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    with Live(console=Console(stderr=True), refresh_per_second=4, transient=True) as live:
        yield lambda state: live.update(_table(state))


class _Lines:
    def __init__(self) -> None:
        self._next = time.monotonic() + _LINE_SECONDS

    def __call__(self, state: State) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _LINE_SECONDS
        tally = state.tally
        if state.phase == "loading":
            print("loading the engine", file=sys.stderr, flush=True)
            return
        print(
            f"{state.phase}: {count(tally.scenarios, 'scenario')},"
            f" {count(tally.steps, 'step')}, {count(len(state.found), 'finding')}",
            file=sys.stderr,
            flush=True,
        )


def _table(state: State) -> Table:
    tally = state.tally
    table = Table(title=f"{state.prepared.label} · {state.phase}", show_header=False, title_justify="left")
    table.add_row("checked", f"{count(tally.scenarios, 'scenario')}, {count(tally.steps, 'step')}")
    table.add_row("time", report.time_words(state))
    table.add_row("CPU", report.cpu_words(tally.seconds))
    table.add_row("reached", report.coverage_words(state))
    table.add_row("judged", "  ".join(f"{rule} {times:,}" for rule, times in sorted(tally.judged.items())))
    if tally.unrun:
        table.add_row("could not run", f"{tally.unrun:,}")
    shrunk = f" ({state.shrunk} shrunk)" if state.shrunk else ""
    table.add_row("findings", f"{len(state.found)}{shrunk}")
    for signature in sorted(state.found):
        table.add_row("", f"{' · '.join(signature)}  {tally.signatures.get(signature, 1):,}×")
    return table
