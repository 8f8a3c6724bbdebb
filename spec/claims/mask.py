"""The claims about retention masks: R1 to R5, for one arbitrary block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from reference import boundaries, retention, rules
from reference.arithmetic import floor_to
from reference.geometry import Group
from reference.policy import Policy
from spec.claim import Claim, Control
from spec.pointwise import entry
from spec.space import Outside

PREMISES = (
    "the retention interval is a multiple of the scheduler block "
    "(_validate_prefix_cache_retention_interval in kv_cache_coordinator.py, all releases)",
    "the junction is a multiple of the unit in which hits are granted (L1, proved for the reference's lookup), and of "
    "the scheduler block where masks floor to that; before 0.29 hits inside a block can put it elsewhere, which no row "
    "covers (benchmarks/premises.py counts it on real traces)",
    "1 <= prompt, and start <= block < end: the mask holds the block in question",
)

Mask = Callable[..., Any]


@dataclass(frozen=True)
class MaskInputs:
    """The inputs of a mask, plain or symbolic. ``alignment``: the unit that boundaries are floored to, in tokens;
    ``scheduler_block``: in tokens; ``interval``: in tokens, None for dense. ``number``, ``start``, ``middle`` and
    ``end``: block numbers. ``any_boundaries``: arbitrary positions."""

    group: Group
    alignment: Any
    scheduler_block: Any
    interval: Any
    prompt: Any
    junction: Any
    number: Any
    start: Any
    middle: Any
    end: Any
    any_boundaries: tuple[Any, ...]


@dataclass(frozen=True)
class MaskCase:
    """A mask and the block in question. ``keep``: whether the mask over [start, end) keeps the block, for an interval
    and a boundary list; ``by_itself``: what the reference decides on the block, of which no mask is made. ``listed``:
    the boundary list of the request."""

    policy: Policy
    inputs: MaskInputs
    listed: tuple[Any, ...]
    keep: Callable[..., Any]
    by_itself: Callable[..., Any]


def run_mask(policy: Policy, decide: Mask | None, inputs: MaskInputs) -> MaskCase:
    """The case of one block. Raises Outside for illegal inputs."""
    unit = inputs.alignment if inputs.alignment < inputs.scheduler_block else inputs.scheduler_block
    legal = (
        inputs.prompt >= 1
        and inputs.junction % unit == 0
        and inputs.start <= inputs.number
        and inputs.number < inputs.end
    )
    if not legal:
        raise Outside
    decide = decide or retention.mask

    def keep(interval: Any, listed: Any, start: Any = inputs.start, end: Any = inputs.end) -> Any:
        mask = decide(inputs.group, start, end, inputs.alignment, interval, listed)
        return entry(mask, inputs.number - start)

    def by_itself(interval: Any, listed: Any, *_: Any) -> Any:
        return retention.keep(inputs.group, inputs.number, inputs.alignment, interval, listed)

    listed = boundaries.boundary_list(
        policy, inputs.group, inputs.prompt, inputs.junction, inputs.scheduler_block, inputs.group.drops
    )
    return MaskCase(policy, inputs, listed, keep, by_itself)


def regime_of(case: MaskCase) -> tuple[str, str]:
    """What the expected verdict depends on beside policy and features."""
    interval = case.inputs.interval
    words = "dense" if interval is None else "interval 0" if interval == 0 else "interval above 0"
    return ("EAGLE" if case.inputs.group.drops else "no EAGLE", words)


def measure_of(inputs: MaskInputs) -> tuple[Any, ...]:
    """What a small counterexample is small in, most important first."""
    group = inputs.group
    sizes = (group.block, inputs.alignment, group.window, 0 if inputs.interval is None else inputs.interval)
    places = (inputs.number, inputs.start, inputs.middle, inputs.end)
    return (*sizes, inputs.prompt, inputs.junction, *places, *inputs.any_boundaries)


def named(inputs: MaskInputs) -> dict[str, Any]:
    """The inputs by name, for people."""
    group = inputs.group
    known = {"B": group.block, "alignment": inputs.alignment, "window": group.window, "prompt": inputs.prompt}
    known |= {"junction": inputs.junction, "drop": int(group.drops), "block": inputs.number, "start": inputs.start}
    known |= {"interval": -1 if inputs.interval is None else inputs.interval}
    return known | {f"b{number}": value for number, value in enumerate(inputs.any_boundaries, 1)}


def serves(case: MaskCase, boundary: Any) -> Any:
    """Whether a hit at the boundary reads the block."""
    group = case.inputs.group
    if floor_to(boundary, case.inputs.alignment) <= 0:
        return False
    reach = 1 if group.kind == "mamba" else group.window - 1
    peeks = bool(group.kind == "swa" and group.drops)
    return rules.block_serves(group.block, case.inputs.number, boundary, case.inputs.alignment, reach, peeks)


# Predicates.


def junction_is_kept(case: MaskCase) -> Any:
    kept = case.keep(case.inputs.interval, case.listed)
    return rules.kept_if_served(kept, serves(case, case.inputs.junction))


def boundaries_are_kept(case: MaskCase) -> Any:
    kept = case.keep(case.inputs.interval, case.listed)
    return all(rules.kept_if_served(kept, serves(case, boundary)) for boundary in case.listed)


def parts_equal_whole(case: MaskCase) -> Any:
    inputs = case.inputs
    whole = case.keep(inputs.interval, inputs.any_boundaries)
    if inputs.number < inputs.middle:
        return bool(case.keep(inputs.interval, inputs.any_boundaries, inputs.start, inputs.middle)) == bool(whole)
    return bool(case.keep(inputs.interval, inputs.any_boundaries, inputs.middle, inputs.end)) == bool(whole)


def intervals_are_ordered(case: MaskCase) -> Any:
    listed = case.inputs.any_boundaries
    by_any = bool(case.keep(case.inputs.interval, listed))
    return rules.kept_implies(bool(case.keep(0, listed)), by_any) and rules.kept_implies(
        by_any, bool(case.keep(None, listed))
    )


def dense_keeps_all(case: MaskCase) -> Any:
    return case.keep(None, ())


def segments_are_kept(case: MaskCase) -> Any:
    inputs = case.inputs
    unit = inputs.alignment if inputs.interval is None else inputs.interval
    boundary = floor_to(inputs.any_boundaries[0], unit)
    return rules.kept_if_served(case.keep(inputs.interval, ()), serves(case, boundary))


def only_tails_are_kept(case: MaskCase) -> Any:
    listed = case.inputs.any_boundaries
    return rules.kept_implies(
        bool(case.keep(case.inputs.interval, listed)), any(bool(in_some_tail(case, boundary)) for boundary in listed)
    )


def in_some_tail(case: MaskCase, boundary: Any) -> Any:
    """Whether the block may be kept for the boundary: a hit there reads it, or it is the block that EAGLE peeks at."""
    group = case.inputs.group
    peeked = floor_to(boundary, case.inputs.alignment) == case.inputs.number * group.block
    return serves(case, boundary) or (group.kind == "swa" and group.drops and peeked)


def equals_reference(case: MaskCase) -> Any:
    return equal_under(case, case.inputs.interval)


def equal_under(case: MaskCase, interval: Any) -> Any:
    listed = case.inputs.any_boundaries
    return bool(case.keep(interval, listed)) == bool(case.by_itself(interval, listed))


def equals_reference_at_zero(case: MaskCase) -> Any:
    return equal_under(case, 0)


def equals_reference_when_dense(case: MaskCase) -> Any:
    return equal_under(case, None)


# Where claims are made.


def whole_blocks_at_zero(_: Policy, sizes: Any, features: Any) -> bool:
    return bool(features.interval == "interval 0" and not sizes.fine)


def dense_mamba(_: Policy, __: Any, features: Any) -> bool:
    return bool(features.interval == "dense" and features.kind == "mamba")


def has_segments(_: Policy, sizes: Any, features: Any) -> bool:
    dense_window = features.interval == "dense" and features.kind == "swa"
    return bool(not sizes.symbolic and (features.interval == "interval above 0" or dense_window))


# Premises and events.


def has_junction(case: MaskCase) -> Any:
    return case.inputs.junction >= 1


def boundaries_are_inside(case: MaskCase) -> Any:
    return all(boundary >= case.inputs.alignment for boundary in case.inputs.any_boundaries)


def middle_is_inside(case: MaskCase) -> Any:
    return case.inputs.start < case.inputs.middle < case.inputs.end


def junction_serves(case: MaskCase) -> Any:
    return case.inputs.junction >= 1 and serves(case, case.inputs.junction)


def boundary_serves(case: MaskCase) -> Any:
    return any(bool(serves(case, boundary)) for boundary in case.listed)


def is_kept(case: MaskCase) -> Any:
    return case.keep(case.inputs.interval, case.inputs.any_boundaries)


# Planted faults.


def keeps_nothing(case: MaskCase) -> MaskCase:
    return replace(case, keep=lambda *_: False)


def keeps_all_at_zero(case: MaskCase) -> MaskCase:
    return replace(case, keep=lambda interval, *_: interval == 0)


def keeps_all(case: MaskCase) -> MaskCase:
    return replace(case, keep=lambda *_: True)


def decides_otherwise(case: MaskCase) -> MaskCase:
    keep = case.keep
    return replace(case, keep=lambda *asked: not keep(*asked))


def forgets_the_start(case: MaskCase) -> MaskCase:
    keep = case.keep
    inputs = case.inputs

    def shifted(interval: Any, listed: Any, start: Any = inputs.start, end: Any = inputs.end) -> Any:
        return start == inputs.start and keep(interval, listed, start, end)

    return replace(case, keep=shifted)


NOTHING = Control("the mask keeps nothing", keeps_nothing)

CLAIMS: tuple[Claim, ...] = (
    Claim(
        "R1",
        "R1",
        junction_is_kept,
        junction_serves,
        "a hit at the junction reads the block",
        NOTHING,
        premise=has_junction,
        premise_text="there is a junction",
        note="Proved for every interval, 0 among them.",
    ),
    Claim("R2", "R2", boundaries_are_kept, boundary_serves, "a hit at a boundary reads the block", NOTHING),
    Claim(
        "R3",
        "R3",
        parts_equal_whole,
        is_kept,
        "the block is kept",
        Control("a mask that does not begin at the first block keeps nothing", forgets_the_start),
        premise=middle_is_inside,
        premise_text="the mask is computed in two parts",
        note="More parts follow by induction.",
    ),
    Claim(
        "R4",
        "R4",
        intervals_are_ordered,
        is_kept,
        "the block is kept",
        Control("only interval 0 keeps blocks", keeps_all_at_zero),
    ),
    Claim(
        "R4.inside",
        "R4",
        intervals_are_ordered,
        is_kept,
        "the block is kept",
        Control("only interval 0 keeps blocks", keeps_all_at_zero),
        premise=boundaries_are_inside,
        premise_text="no boundary floors to 0",
    ),
    Claim(
        "R5",
        "R5",
        only_tails_are_kept,
        is_kept,
        "the block is kept",
        Control("the mask keeps all", keeps_all),
        applies=whole_blocks_at_zero,
    ),
    Claim("R8.dense", "R8", dense_keeps_all, is_kept, "the block is kept", NOTHING, applies=dense_mamba),
    Claim("R8.segments", "R8", segments_are_kept, is_kept, "the block is kept", NOTHING, applies=has_segments),
)


OTHERWISE = Control("the mask decides otherwise", decides_otherwise)
EQUALITY = Claim("M3", "M3", equals_reference, is_kept, "the block is kept", OTHERWISE)
OTHER_EQUALITIES = (
    Claim("M3.zero", "M3", equals_reference_at_zero, is_kept, "the block is kept", OTHERWISE),
    Claim("M3.dense", "M3", equals_reference_when_dense, is_kept, "the block is kept", OTHERWISE),
)


def through_equality(claim: Claim, equalities: tuple[Claim, ...]) -> Claim:
    """The claim about what the reference decides on a block by itself, which ``equalities`` prove to be what an
    engine's mask says of it, wherever the mask begins and ends."""

    def of_block(case: MaskCase) -> MaskCase:
        return replace(case, keep=case.by_itself)

    def plant(case: MaskCase) -> MaskCase:
        return replace(case, by_itself=claim.control.plant(of_block(case)).keep)

    return replace(
        claim,
        id=f"{claim.id}.through_M3",
        predicate=lambda case: claim.predicate(of_block(case)),
        event=lambda case: claim.event(of_block(case)),
        control=Control(claim.control.sentence, plant),
        through=tuple(equality.id for equality in equalities),
    )


def engine_claims(kind: str, interval: str) -> tuple[Claim, ...]:
    """The claims about an engine's own mask.

    R3 is proved through M3, since parts of a mask have their block at other entries than ``spec.pointwise`` looks at;
    so is R4 of a window with segments, which would take Z3 minutes.
    """
    equalities: tuple[Claim, ...] = (EQUALITY,)
    through = {"R3": equalities}
    if (kind, interval) == ("swa", "interval above 0"):
        equalities = through["R4"] = (EQUALITY, *OTHER_EQUALITIES)
    claims = (through_equality(claim, through[claim.id]) if claim.id in through else claim for claim in CLAIMS)
    return (*claims, *equalities)
