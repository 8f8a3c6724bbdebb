"""What the decisions of a trace cost: fewer is better in all but the hit tokens."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from oracle import trace
from oracle.scenario import Scenario

_SPARSE = ("mamba", "swa", "chunked")


class Costs(msgspec.Struct, frozen=True):
    """Counts over one trace, or added up over several.

    ``chunks``: pieces of prefill that were run. ``steps``: until every request had ended. ``hit_tokens``: taken from
    the cache at admissions. ``recomputed_tokens``: positions that a request ran again after it had run them, because
    it was preempted. ``evictions``: blocks that lost their hash. ``preemptions``; ``copies``: of blocks.
    ``pinned_blocks``: blocks of groups other than full attention that were kept for reuse. ``unfinished``: requests
    that never ended.
    """

    chunks: int = 0
    steps: int = 0
    hit_tokens: int = 0
    recomputed_tokens: int = 0
    evictions: int = 0
    preemptions: int = 0
    copies: int = 0
    pinned_blocks: int = 0
    unfinished: int = 0

    def __add__(self, other: Costs) -> Costs:
        return Costs(*(getattr(self, name) + getattr(other, name) for name in COSTS))


COSTS = Costs.__struct_fields__
MORE_IS_BETTER = frozenset({"hit_tokens"})


def costs_of(scenario: Scenario, records: Iterable[trace.AnyRecord]) -> Costs:
    """The costs of one trace, header left out."""
    counts = dict.fromkeys(COSTS, 0)
    sparse = {number for number, group in enumerate(scenario.geometry.groups) if group.kind in _SPARSE}
    prompts: dict[str, int] = {}
    reached: dict[str, int] = {}
    for record in records:
        if isinstance(record, trace.Add):
            prompts[record.request] = record.prompt_tokens
        elif isinstance(record, trace.Allocate):
            counts["hit_tokens"] += record.hit if record.granted else 0
        elif isinstance(record, trace.Commit):
            counts["pinned_blocks"] += record.group in sparse
        elif isinstance(record, trace.Evict):
            counts["evictions"] += 1
        elif isinstance(record, trace.Preempt):
            counts["preemptions"] += 1
        elif isinstance(record, trace.Step):
            counts["steps"] += 1
            counts["copies"] += len(record.copies)
            _add_chunks(record, counts, prompts, reached)
        elif isinstance(record, trace.End):
            counts["unfinished"] = len(record.unfinished)
    return Costs(**counts)


def _add_chunks(step: trace.Step, counts: dict[str, int], prompts: dict[str, int], reached: dict[str, int]) -> None:
    for one in step.scheduled:
        end = one.start + one.tokens
        counts["chunks"] += one.start < prompts.get(one.request, 0)
        # Tokens of drafts that were wrong are run again as a matter of course; only known ones count.
        counts["recomputed_tokens"] += max(0, min(end, reached.get(one.request, 0)) - one.start)
        reached[one.request] = max(reached.get(one.request, 0), end - one.drafts + one.accepted)


def better_in(baseline: Costs, candidate: Costs) -> tuple[str, ...]:
    """The costs in which the candidate is better."""
    return tuple(name for name in COSTS if _gain(name, baseline, candidate) > 0)


def worse_in(baseline: Costs, candidate: Costs, tolerance: float = 0.0) -> tuple[str, ...]:
    """The costs in which the candidate is worse by more than this share of the baseline's."""
    return tuple(name for name in COSTS if -_gain(name, baseline, candidate) > tolerance * getattr(baseline, name))


def _gain(name: str, baseline: Costs, candidate: Costs) -> int:
    saved = int(getattr(baseline, name)) - int(getattr(candidate, name))
    return -saved if name in MORE_IS_BETTER else saved
