"""The claims about the boundary list: R6, and M3 for an engine's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from reference import boundaries, rules
from reference.arithmetic import floor_to
from reference.geometry import Group
from reference.policy import Policy
from spec.claim import Claim, Control
from spec.space import Outside

PREMISES = (
    "1 <= prompt (Request, all releases)",
    "the junction is a multiple of the scheduler block (L1, proved for the reference's lookup; no partial hits)",
    "the block of the group that drops divides the scheduler block, which is their least common multiple",
)
"""What every claim about boundary lists takes for granted."""

Boundaries = Callable[[Group, Any, Any, Any, Any], tuple[Any, ...]]


@dataclass(frozen=True)
class BoundaryInputs:
    """A request and the cache it meets, in tokens. ``group``: an attention group, which gives a matched block back
    under the EAGLE drop."""

    group: Group
    scheduler_block: Any
    prompt: Any
    junction: Any


@dataclass(frozen=True)
class BoundaryCase:
    """A boundary list, and the reference's."""

    policy: Policy
    inputs: BoundaryInputs
    listed: tuple[Any, ...]
    expected: tuple[Any, ...]


def run_boundaries(policy: Policy, decide: Boundaries | None, most: int, inputs: BoundaryInputs) -> BoundaryCase:
    """The case of one request. ``decide``: an engine's own function, which takes plain numbers up to ``most``."""
    if not (inputs.prompt >= 1 and inputs.junction % inputs.scheduler_block == 0):
        raise Outside
    drops = inputs.group.drops
    expected = boundaries.boundary_list(
        policy, inputs.group, inputs.prompt, inputs.junction, inputs.scheduler_block, drops
    )
    if decide is None:
        return BoundaryCase(policy, inputs, expected, expected)
    group = replace(inputs.group, drops=bool(drops))
    prompt, junction = chosen(inputs.prompt, most), chosen(inputs.junction, most)
    return BoundaryCase(policy, inputs, decide(group, prompt, junction, inputs.scheduler_block, bool(drops)), expected)


def chosen(value: Any, most: int) -> int:
    """The plain number that a value is, up to ``most``: one path for each."""
    for number in range(most):
        if value == number:
            return number
    if value == most:
        return most
    raise Outside


def regime_of(case: BoundaryCase) -> tuple[str]:
    """What the expected verdict depends on beside policy and sizes."""
    return ("EAGLE" if case.inputs.group.drops else "no EAGLE",)


def measure_of(inputs: BoundaryInputs) -> tuple[Any, ...]:
    """What a small counterexample is small in."""
    return (inputs.scheduler_block, inputs.group.block, inputs.prompt, inputs.junction)


def named(inputs: BoundaryInputs) -> dict[str, Any]:
    """The inputs by name, for people."""
    group = inputs.group
    return {
        "B": group.block,
        "scheduler_block": inputs.scheduler_block,
        "prompt": inputs.prompt,
        "junction": inputs.junction,
        "drop": int(group.drops),
    }


def resend_position(case: BoundaryCase) -> Any:
    """Where an identical resend resumes when everything is cached.

    The hit leaves the last token to compute. Under the drop one block more must have been matched, within the
    limit of the hit or, in later releases, within the hashed tokens.
    """
    inputs = case.inputs
    limit = inputs.prompt - 1
    if not inputs.group.drops:
        return floor_to(limit, inputs.scheduler_block)
    reach = limit if case.policy.peek_ends_at == "limit" else inputs.prompt
    matched = floor_to(reach, inputs.group.block) - inputs.group.block
    return floor_to(min(max(matched, 0), limit), inputs.scheduler_block)


def extension_position(case: BoundaryCase) -> Any:
    """Where a longer request that begins with the whole prompt resumes when everything is cached."""
    inputs = case.inputs
    matched = floor_to(inputs.prompt, inputs.group.block)
    if inputs.group.drops:
        matched = max(matched - inputs.group.block, 0)
    return floor_to(matched, inputs.scheduler_block)


def resend_is_listed(case: BoundaryCase) -> Any:
    return rules.position_is_listed(resend_position(case), case.inputs.scheduler_block, case.listed)


def extension_is_listed(case: BoundaryCase) -> Any:
    return rules.position_is_listed(extension_position(case), case.inputs.scheduler_block, case.listed)


def equals_reference(case: BoundaryCase) -> Any:
    """The same positions, in any order."""
    return all(any(one == other for other in case.expected) for one in case.listed) and all(
        any(one == other for other in case.listed) for one in case.expected
    )


def junction_is_listed(case: BoundaryCase) -> Any:
    return rules.boundary_has_a_reason(case.inputs.junction, case.listed)


def listed_for_a_reason(case: BoundaryCase) -> Any:
    inputs = case.inputs
    reasons = [inputs.prompt - 1, inputs.junction, 0]
    if inputs.group.drops:
        whole, last = (
            floor_to(inputs.prompt, inputs.scheduler_block),
            floor_to(inputs.prompt - 1, inputs.scheduler_block),
        )
        reasons += [whole - inputs.scheduler_block, last - inputs.scheduler_block]
        reasons.append(inputs.junction - inputs.group.block)
    return all(rules.boundary_has_a_reason(boundary, reasons) for boundary in case.listed)


def has_junction(case: BoundaryCase) -> Any:
    return case.inputs.junction >= 1


def resend_hits(case: BoundaryCase) -> Any:
    return resend_position(case) > 0


def extension_hits(case: BoundaryCase) -> Any:
    return extension_position(case) > 0


def forgets_all(case: BoundaryCase) -> BoundaryCase:
    return replace(case, listed=(0,))


def lists_all(case: BoundaryCase) -> BoundaryCase:
    return replace(case, listed=(*case.listed, case.inputs.prompt + 1))


EVERYTHING = Control("the boundary list holds a position beyond the prompt", lists_all)
NOTHING = Control("the boundary list is empty", forgets_all)

CLAIMS: tuple[Claim, ...] = (
    Claim("R6.resend", "R6", resend_is_listed, resend_hits, "an identical resend hits", NOTHING),
    Claim("R6.extension", "R6", extension_is_listed, extension_hits, "a longer request hits", NOTHING),
    Claim(
        "R7.junction",
        "R7",
        junction_is_listed,
        has_junction,
        "there is a junction",
        NOTHING,
        premise=has_junction,
        premise_text="there is a junction",
    ),
    Claim("R7.only", "R7", listed_for_a_reason, has_junction, "there is a junction", EVERYTHING),
)

ENGINE_CLAIMS: tuple[Claim, ...] = (
    Claim("M3.boundaries", "M3", equals_reference, resend_hits, "an identical resend hits", NOTHING),
)
"""Claims about an engine's own function only."""
