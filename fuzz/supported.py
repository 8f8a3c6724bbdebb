"""What a build is known to refuse: features to leave out of a campaign, and single scenarios to skip."""

from __future__ import annotations

from collections.abc import Callable

from fuzz.engines.open import Prepared
from fuzz.engines.shape import refusal
from fuzz.refusals import refused_by, withheld_features
from oracle.scenario import Scenario
from reference.policy import POLICIES


def withheld(prepared: Prepared) -> tuple[str, ...]:
    """Features that the build never runs; a campaign leaves them out and says so."""
    if prepared.launch is None:
        # The reference engine saves no state inside a chunk, and has no opt-ins.
        return ("checkpoint", "exact-junction")
    return withheld_features(prepared.launch.release)


def unsupported(prepared: Prepared) -> Callable[[Scenario], str]:
    """A function that says why the build would refuse a scenario, empty when it would not.

    What a build is known to refuse is skipped and counted; any other refusal could not run.
    """
    if prepared.launch is None:
        return lambda scenario: refusal(scenario, POLICIES[prepared.version])
    release = prepared.launch.release
    return lambda scenario: refused_by(scenario, release)
