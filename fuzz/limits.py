"""What the releases' own policies do not keep, so that the engine that follows them does not either.

The reference engine takes a policy's decisions. Where a release is known to break an invariant by such a decision the
finding is right, and no false alarm: here it is a named allowed difference. On a real build it stays a finding.
"""

from __future__ import annotations

from dataclasses import dataclass

from oracle.geometry import saves_states
from oracle.scenario import Scenario
from oracle.verdict import Finding, Verdict
from reference.policy import POLICIES

_RELEASES = tuple(POLICIES)


@dataclass(frozen=True)
class Limit:
    """A rule that a policy does not keep: at which decisions, in which classes of geometries, up to which release.

    ``part``: what the name of the class of geometries contains. ``last``: None for a limit that the newest has, too.
    ``saving``: it is about states that are saved inside a chunk, and holds where there are any.
    """

    rules: tuple[str, ...]
    decision: str
    part: str
    last: str | None
    reason: str
    saving: bool = False

    def explains(self, finding: Finding, release: str, saves: bool) -> bool:
        """Whether a finding under the policy of ``release`` is due to it. ``saves``: the scenario saves such states."""
        then = self.last is None or _RELEASES.index(release) <= _RELEASES.index(self.last)
        named = finding.rule in self.rules and finding.decision == self.decision
        return then and named and self.part in finding.geometry and (saves or not self.saving)


_LOWERED = "the list lowers by a scheduler block, the lookup by one group's"
_NOT_SAVED_THERE = "a backend saves no state where a hash says so, or saves one over another that is still needed"

LIMITS: tuple[Limit, ...] = (
    Limit(("U3",), "divergence", "swa", None, "a window keeps what one boundary needs, and no more (report 57610)"),
    Limit(("U3",), "lookup", "/unequal", None, "chunks stop at Mamba blocks, hits are granted in scheduler blocks"),
    Limit(("R6",), "resend", "/unequal/eagle", None, _LOWERED),
    # Later a resend resumes as high as an extension does, and is told of first.
    Limit(("R6",), "extension", "/unequal/eagle", "0.31.0", _LOWERED),
    Limit(("L2", "U1"), "lookup", "/unequal/eagle", None, "a short run from block 0 is floored twice"),
    Limit(("P2",), "step", "mamba", None, "a chunk that falls short of a block stops the scan of those that wait"),
    Limit(("R6",), "resend", "/eagle", "0.29.0", "the list overlooks that EAGLE resumes a block lower (report 53504)"),
    Limit(("U3",), "lookup", "/eagle", "0.29.0", "the list overlooks that EAGLE resumes a block lower (report 53504)"),
    Limit(
        ("U3",), "tail", "mamba", "0.31.0", "the tail leaves a resend no token to compute, or EAGLE none to resume at"
    ),
    Limit(("U3",), "lookup", "mamba", "0.31.0", "the last cacheable position leaves a resend no token to compute"),
    Limit(
        ("P1",), "step", "mamba", "0.30.0", "columns that a chunk runs past count as blocks that it needs", saving=True
    ),
    Limit(("C1",), "commit", "mamba", None, _NOT_SAVED_THERE, saving=True),
    Limit(("C2",), "step", "mamba", None, _NOT_SAVED_THERE, saving=True),
)


def allow_limits(verdict: Verdict, scenario: Scenario, release: str) -> None:
    """Turn the findings that the policy of ``release`` is known for into allowed differences."""
    saves = saves_states(scenario.geometry)
    findings, verdict.findings = verdict.findings, []
    for finding in findings:
        limit = next((limit for limit in LIMITS if limit.explains(finding, release, saves)), None)
        if limit is None:
            verdict.findings.append(finding)
        else:
            verdict.allowed[limit.reason] = verdict.allowed.get(limit.reason, 0) + 1
