"""A Hypothesis profile: with KVORACLE_HYPOTHESIS_PROFILE=crosshair, CrossHair chooses what is drawn."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "crosshair", backend="crosshair", deadline=None, max_examples=10, suppress_health_check=list(HealthCheck)
)
if "KVORACLE_HYPOTHESIS_PROFILE" in os.environ:
    settings.load_profile(os.environ["KVORACLE_HYPOTHESIS_PROFILE"])
