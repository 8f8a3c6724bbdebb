"""Coverage cells: combinations that are rare and must not go unseen, each counted in the traces that hold it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from oracle.trace import Header

TOGETHER = "EAGLE + Mamba + SWA, interval 0, tight memory"

CELLS = (TOGETHER,)
"""All cells, by the names under which a verdict's coverage counts them."""

_TIGHT = ("allocation refused", "preemption", "eviction")


def cells(header: Header, coverage: Mapping[str, int]) -> Iterator[str]:
    """The cells that a trace is in. Memory was tight if blocks were refused, taken from a request, or lost a hash."""
    scenario = header.scenario
    kinds = {group.kind for group in scenario.geometry.groups}
    combined = scenario.features.drafts > 0 and {"mamba", "swa"} <= kinds and header.setup.retention == 0
    if combined and any(coverage.get(event) for event in _TIGHT):
        yield TOGETHER
