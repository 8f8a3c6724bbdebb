"""Swarms: which features are on for a batch of scenarios, so that rare combinations are searched deeply.

With everything on in every scenario, features hide each other (an abort ends the request whose hit would
have shown a fault). A swarm leaves about half of them out, another half each time (swarm testing, Groce et
al., ISSTA 2012).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from fuzz.draw import Draw

# Name: how often a swarm has the feature, in percent, and what it adds to the plain scenario (full
# attention, dense retention, synchronous, fcfs, requests that share nothing and arrive together).
_FEATURES: dict[str, tuple[int, str]] = {
    "mamba": (80, "a Mamba group"),
    "two-mamba": (30, "two Mamba groups"),
    "swa": (45, "a sliding-window group"),
    "sparse-alone": (15, "a sliding-window or a Mamba group with no other group"),
    "unequal": (30, "groups of unequal block sizes (several groups then never have equal ones)"),
    "wide-mamba": (65, "Mamba blocks wider than another group's"),
    "real-blocks": (12, "block sizes of real models, 16/1600, 816/1648 and 528/16 among them, or the same scaled down"),
    "partial-hits": (35, "hash blocks finer than the blocks, and hits inside a Mamba block"),
    "fine-swa": (60, "hits inside a Mamba block beside a sliding-window group"),
    "eagle": (55, "1 to 5 draft tokens, any pattern of acceptance"),
    "eagle-flag": (40, "one attention group marked as the draft model's"),
    "block-drop": (50, "the older EAGLE block drop instead of lookahead hashes"),
    "retention-zero": (45, "retention interval 0"),
    "retention-interval": (35, "a retention interval of 1 to 3 scheduler blocks"),
    "tiny-budget": (30, "token budgets and thresholds below a block, down to one token"),
    "threshold": (45, "a long-prefill threshold"),
    "priority": (40, "the priority policy"),
    "async": (45, "the asynchronous scheduler, one step in flight"),
    "async-deep": (0, "two steps unseen when the next is scheduled, as with pipeline parallelism (only when asked)"),
    "watermark": (25, "a watermark"),
    "optimistic": (55, "admission before the whole sequence fits"),
    "small-pool": (55, "pools that force preemption and eviction"),
    "shared-prefix": (80, "prompts that share prefixes"),
    "repeat": (55, "prompts sent again"),
    "extend": (50, "prompts that go on with the output of an earlier request"),
    "long-output": (15, "requests that decode for 40 to 90 steps"),
    "spread": (60, "requests that arrive in different steps"),
    "late-sibling": (50, "requests that arrive after the earlier ones ended"),
    "abort": (35, "aborts before a step"),
    "abort-in-flight": (35, "aborts between a step and its output"),
    "reset": (25, "resets of the prefix cache"),
    "checkpoint": (15, "states saved inside a prefill chunk, by the backend"),
    "together": (8, "EAGLE beside Mamba and a sliding window, retention interval 0 and a small pool, all at once"),
    "coarse-checkpoint": (60, "states saved inside a chunk only whole hash blocks after its start"),
    "skip-lookup": (25, "requests that take nothing from the prefix cache, as those with prompt log probabilities"),
    "runner-v2": (40, "a scheduler that works for model runner V2"),
    "exact-junction": (75, "the opt-in to stop at a junction inside a block"),
    "chunked-local": (12, "a group of chunked-local attention"),
}

FEATURES: tuple[str, ...] = tuple(_FEATURES)

# What a feature does nothing without: one of each row of alternatives.
_NEEDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "two-mamba": (("mamba",),),
    "sparse-alone": (("mamba", "swa"),),
    "unequal": (("mamba", "swa"),),
    "wide-mamba": (("mamba",), ("unequal",)),
    "partial-hits": (("mamba",),),
    "fine-swa": (("mamba",), ("swa",), ("partial-hits", "wide-mamba")),
    "eagle-flag": (("eagle",),),
    "block-drop": (("eagle",),),
    "exact-junction": (("eagle",), ("partial-hits", "wide-mamba")),
    "async-deep": (("async",),),
    "checkpoint": (("mamba",),),
    "coarse-checkpoint": (("checkpoint",),),
    "retention-zero": (("mamba", "swa"),),
    "retention-interval": (("mamba", "swa"),),
    "together": (("eagle",), ("mamba",), ("swa",), ("retention-zero",), ("small-pool",)),
}


class UnknownFeature(ValueError):
    """A name that is no feature, or features that contradict. The message is one line with a hint."""


@dataclass(frozen=True, slots=True)
class Swarm:
    """The features that are on; ``str()`` is one line. A feature that is on is not always used."""

    on: frozenset[str]

    def __contains__(self, feature: str) -> bool:
        return feature in self.on

    def __str__(self) -> str:
        return " ".join(feature for feature in FEATURES if feature in self.on) or "(plain)"


def describe(feature: str) -> str:
    """One phrase that says what a feature adds. Raises UnknownFeature for another name."""
    check_features((feature,), ())
    return _FEATURES[feature][1]


def check_features(only: Iterable[str], without: Iterable[str]) -> None:
    """Raise UnknownFeature for a name that is no feature, or for one that is asked for and left out."""
    only, without = tuple(only), tuple(without)
    for name in (*only, *without):
        if name not in _FEATURES:
            near = difflib.get_close_matches(name, FEATURES, n=3, cutoff=0.5)
            hint = f"did you mean {' or '.join(near)}?" if near else f"features are: {', '.join(FEATURES)}"
            raise UnknownFeature(f"no feature {name!r}; {hint}")
    if both := sorted(set(only) & set(without)):
        raise UnknownFeature(f"{', '.join(both)}: both in --only and in --without")


def draw_swarm(draw: Draw, only: Iterable[str] = (), without: Iterable[str] = ()) -> Swarm:
    """Draw which features are on. ``only``: all of these and what they need; ``without``: never these.

    Raises UnknownFeature. Leaving a feature out changes of the others only those that need it.
    """
    only, without = tuple(only), frozenset(without)
    check_features(only, without)
    if only:
        return Swarm(frozenset(_with_needs(only, without)))
    on = {feature for feature, (percent, _) in _FEATURES.items() if draw.chance(percent)}
    if "together" in on:
        # By chance all of them meet in one swarm of twenty, and there in few scenarios.
        on.update(need for row in _NEEDS["together"] for need in row)
    on -= without
    # A feature that can do nothing is not printed as on. Twice: fine-swa may need one that went just now.
    for _ in range(2):
        on = {feature for feature in on if all(on.intersection(row) for row in _NEEDS.get(feature, ()))}
    return Swarm(frozenset(on))


def _with_needs(only: tuple[str, ...], without: frozenset[str]) -> set[str]:
    """``only`` with the first allowed one of each row of needs; raises UnknownFeature when there is none."""
    on, pending = set(only), list(only)
    while pending:
        feature = pending.pop()
        for row in _NEEDS.get(feature, ()):
            if on.intersection(row):
                continue
            allowed = [need for need in row if need not in without]
            if not allowed:
                raise UnknownFeature(f"{feature} needs {' or '.join(row)}, which --without leaves out")
            on.add(allowed[0])
            pending.append(allowed[0])
    return on
