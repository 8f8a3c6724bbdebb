"""What a build is known to refuse: features to leave out of a campaign, and single scenarios to skip."""

from __future__ import annotations

from collections.abc import Callable

from fuzz.engines.open import Prepared
from fuzz.engines.shape import refusal
from fuzz.refusals import refused_by, withheld_features
from oracle.scenario import Scenario
from reference.policy import POLICIES

_BY_POLICY = ("checkpoint", "coarse-checkpoint", "exact-junction")
"""Features that the reference engine has where its release has them; it runs the others under every policy."""


def withheld(prepared: Prepared) -> tuple[str, ...]:
    """Features that the build never runs; a campaign leaves them out and says so."""
    if prepared.launch is None:
        return tuple(feature for feature in withheld_features(prepared.version) if feature in _BY_POLICY)
    return withheld_features(prepared.launch.release)


def unsupported(prepared: Prepared) -> Callable[[Scenario], str]:
    """A function that says why the build would refuse a scenario, empty when it would not.

    What a build is known to refuse is skipped and counted; any other refusal could not run.
    """
    if prepared.launch is None:
        return lambda scenario: refusal(scenario, POLICIES[prepared.version])
    release = prepared.launch.release
    return lambda scenario: refused_by(scenario, release)
