"""The claims about the lookup: L1 to L3, the links of U1 that pass through it, and M2 for an engine's own.

What a group can serve is said here from what a hit reads, and not from how a lookup searches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from reference import rules
from reference.arithmetic import floor_to
from reference.geometry import Group
from reference.lookup import Hit, Present
from reference.policy import Policy
from reference.serving import given_back, served
from spec.claim import Claim, Control

PREMISES = (
    "1 <= known: a request has a token (Request, all releases)",
    "a lookup is capped at known - 1 (KVCacheManager.get_computed_blocks, all releases)",
    "what has no hash yet is not cached: hashes exist for the first hashed tokens only "
    "(kv_cache_utils.get_request_block_hasher, all releases)",
    "the hash block divides every group's block (HybridKVCacheCoordinator.__init__, all releases)",
)
"""What every claim about the lookup takes for granted, with the guard that enforces it."""


@dataclass(frozen=True)
class Layout:
    """The groups of a lookup and its units, in tokens: one group, whose own lookup is meant, or several.

    ``alignment``: of hits. ``most``: the longest request. ``lookahead``: tokens that a hash covers beyond its block.
    """

    groups: tuple[Group, ...]
    hash_block: int
    alignment: int
    most: int
    lookahead: int = 0

    @property
    def alone(self) -> bool:
        """Whether it is the lookup of one group and not what several agree on."""
        return len(self.groups) == 1

    @property
    def peeks(self) -> bool:
        """Whether some group looks a unit beyond its hit."""
        return any(given_back(group, self.alignment) for group in self.groups)

    @property
    def name(self) -> str:
        """All that tells it from another, in words."""
        groups = " + ".join(
            f"{group.kind}({group.block}{f', window {group.window}' * (group.kind == 'swa')}{', drops' * group.drops})"
            for group in self.groups
        )
        units = f"hits to {self.alignment}, hashes of {self.hash_block}"
        return f"{groups}, {units}{f', lookahead {self.lookahead}' * (self.lookahead > 0)}"


@dataclass(frozen=True)
class LookupCase:
    """One lookup and its result, in tokens.

    ``hashed``: the tokens that have hashes; ``present``: what each group holds; ``expected``: the reference's result.
    """

    policy: Policy
    layout: Layout
    known: int
    hashed: int
    present: tuple[Present, ...]
    found: Hit
    expected: Hit


@dataclass(frozen=True)
class KeptCase:
    """A lookup where nothing is cached but what the retention mask keeps for one boundary, in tokens.

    ``groups``: those of the layout, whose windows may be unknowns.
    """

    policy: Policy
    layout: Layout
    groups: tuple[Group, ...]
    known: int
    hashed: int
    boundary: int
    hit: int


# What a hit reads.


def ends_where_cached(group: Group, present: Present, alignment: int, position: int) -> bool:
    """Whether full attention has an entry for exactly the matched length, where that lies inside a block."""
    end = position + given_back(group, alignment)
    return group.kind != "full" or end % group.block == 0 or present(end)


def all_serve(case: LookupCase, position: int) -> bool:
    """Whether every group can serve a hit at ``position``, with the unit that EAGLE gives back."""
    return all(
        served(group, present, position, given_back(group, case.layout.alignment), case.layout.hash_block)
        for group, present in zip(case.layout.groups, case.present, strict=True)
    )


def within_reach(case: LookupCase | KeptCase, position: int) -> bool:
    """Whether each group may look as far as a hit at ``position`` needs, by the limits of the release."""
    limit = case.known - 1
    end = case.hashed if case.policy.peek_ends_at == "hashed tokens" and not case.layout.alone else limit
    peeks = [given_back(group, case.layout.alignment) for group in case.layout.groups]
    return position <= limit and all(position + peek <= end for peek in peeks if peek)


def longer_lengths(case: LookupCase) -> list[int]:
    """The aligned lengths beyond the hit that are within reach."""
    unit = case.layout.alignment
    return [p for p in range(case.found.hit + unit, case.known, unit) if within_reach(case, p)]


# Predicates.


def is_served(case: LookupCase) -> bool:
    aligned = rules.hit_is_aligned(case.found.hit, case.known, case.layout.alignment)
    return aligned and all_serve(case, case.found.hit)


def is_read(case: LookupCase) -> bool:
    """L1 without what EAGLE matches beyond the hit and computes again."""
    layout, hit = case.layout, case.found.hit
    return all(
        served(group, present, hit, 0, layout.hash_block)
        for group, present in zip(layout.groups, case.present, strict=True)
    )


def none_longer(case: LookupCase) -> bool:
    """L2, where a part of a block counts as cached at the lengths that have an entry of their own."""
    groups = list(zip(case.layout.groups, case.present, strict=True))
    return not any(
        all(ends_where_cached(group, present, case.layout.alignment, position) for group, present in groups)
        and all_serve(case, position)
        for position in longer_lengths(case)
    )


def none_longer_in_tokens(case: LookupCase) -> bool:
    """L2 in tokens: an entry also serves every shorter length inside its block."""
    return not any(all_serve(case, position) for position in longer_lengths(case))


def junction_is_beyond(case: LookupCase) -> bool:
    return rules.junction_beyond_hit(case.found.hit, case.found.junction, case.known)


def junction_is_aligned(case: LookupCase) -> bool:
    return case.found.junction % case.layout.alignment == 0


def is_highest_state(case: LookupCase) -> bool:
    """The hit of a Mamba group alone is the highest aligned position in the request that has a state, else 0."""
    unit = case.layout.alignment
    states = [p for p in range(unit, case.known, unit) if p % unit_of(case.layout, 0) == 0 and case.present[0](p)]
    return case.found.hit == max(states, default=0)


def agrees_on_the_longest(case: LookupCase) -> bool:
    """Every group has the hit, and no longer length within reach is had by all."""
    return is_served(case) and none_longer(case)


def resumes_at_boundary(case: KeptCase) -> bool:
    return case.hit >= resume_position(case)


def equals_reference(case: LookupCase) -> bool:
    return case.found == case.expected


def unit_of(layout: Layout, index: int) -> int:
    """The tokens between two positions at which a group may have an entry."""
    group = layout.groups[index]
    fine = group.kind != "swa" and layout.alignment < group.block
    return layout.alignment if fine else group.block


def resume_position(case: KeptCase) -> int:
    """Where a request resumes for the boundary."""
    return floor_to(case.boundary, case.layout.alignment)


def measure_of(inputs: Any) -> tuple[Any, ...]:
    """What a small counterexample is small in: the request, then how much is cached."""
    return (inputs.known, sum(inputs.held.values()))


def measure_of_kept(inputs: Any) -> tuple[Any, ...]:
    """The same for what a mask keeps."""
    return (inputs.boundary, inputs.known, *(group.window for group in inputs.groups))


def only_regime(_: LookupCase) -> tuple[str]:
    """Verdicts depend on the layout and the policy only."""
    return ("all",)


def regime_of_kept(case: KeptCase) -> tuple[str]:
    """A window of one token reads nothing that is cached, unless it peeks."""
    one = any(group.kind == "swa" and group.window == 1 and not group.drops for group in case.groups)
    return ("window of one token",) if one else ("all",)


# Where claims are made, premises and events.


def several_groups(_: Policy, layout: Layout) -> bool:
    return not layout.alone


def some_group_peeks(_: Policy, layout: Layout) -> bool:
    return layout.peeks


def mamba_alone(_: Policy, layout: Layout) -> bool:
    return layout.alone and layout.groups[0].kind == "mamba"


def hits_inside_blocks(_: Policy, layout: Layout) -> bool:
    return any(group.kind == "full" and layout.alignment < group.block for group in layout.groups)


def boundary_is_within_reach(case: KeptCase) -> bool:
    return within_reach(case, resume_position(case))


def hits(case: Any) -> bool:
    return case.found.hit > 0


def falls_short(case: LookupCase) -> bool:
    return 0 < case.found.hit < case.known - case.layout.alignment


def has_junction(case: LookupCase) -> bool:
    return case.found.junction > 0


def resumes(case: KeptCase) -> bool:
    return case.hit > 0


# Planted faults.


def with_hit(change: Callable[[LookupCase], int]) -> Callable[[LookupCase], LookupCase]:
    def plant(case: LookupCase) -> LookupCase:
        return replace(case, found=replace(case.found, hit=change(case)))

    return plant


UNIT_TOO_LONG = Control("the lookup grants a unit more", with_hit(lambda case: case.found.hit + case.layout.alignment))
UNIT_TOO_SHORT = Control(
    "the lookup grants a unit less", with_hit(lambda case: max(case.found.hit - case.layout.alignment, 0))
)
NO_HIT = Control("the lookup never hits", with_hit(lambda case: 0))
JUNCTION_ANYWHERE = Control(
    "the junction is the request's end", lambda case: replace(case, found=replace(case.found, longest=case.known))
)
JUNCTION_OFF_GRID = Control(
    "the junction is a token beyond the longest hit",
    lambda case: replace(case, found=replace(case.found, longest=case.found.longest + 1)),
)
NEVER_RESUMES = Control("what the mask keeps is gone", lambda case: replace(case, hit=0))

CLAIMS: tuple[Claim, ...] = (
    Claim("L1", "L1", is_served, hits, "there is a hit", UNIT_TOO_LONG),
    Claim(
        "L1.reads",
        "L1",
        is_read,
        hits,
        "there is a hit",
        UNIT_TOO_LONG,
        note="What the model reads at the hit is cached. Where only L1 is refuted, drafts alone can be worse for it.",
        applies=some_group_peeks,
    ),
    Claim("L2", "L2", none_longer, falls_short, "a hit falls short of the request", UNIT_TOO_SHORT),
    Claim(
        "L2.tokens",
        "L2",
        none_longer_in_tokens,
        falls_short,
        "a hit falls short of the request",
        UNIT_TOO_SHORT,
        note="Stronger than L2: an entry for more of a block holds the tokens of every shorter length inside it.",
        applies=hits_inside_blocks,
    ),
    Claim(
        "L3",
        "L3",
        junction_is_beyond,
        has_junction,
        "there is a junction",
        JUNCTION_ANYWHERE,
        applies=several_groups,
    ),
    Claim(
        "L3.aligned",
        "L3",
        junction_is_aligned,
        has_junction,
        "there is a junction",
        JUNCTION_OFF_GRID,
        note="The claims about the split take for granted that the junction is a multiple of the unit of hits.",
        applies=several_groups,
    ),
    Claim(
        "U1.state",
        "U1",
        is_highest_state,
        hits,
        "there is a hit",
        NO_HIT,
        note="Third link of U1: Mamba's lookup returns the highest state within the request.",
        applies=mamba_alone,
    ),
    Claim(
        "U1.agreed",
        "U1",
        agrees_on_the_longest,
        hits,
        "there is a hit",
        UNIT_TOO_SHORT,
        note="Fourth link of U1: the groups agree on a length that each has, and so on the junction where all have it.",
        applies=several_groups,
    ),
)

KEPT_CLAIMS: tuple[Claim, ...] = (
    Claim(
        "U1.suffices",
        "U1",
        resumes_at_boundary,
        resumes,
        "there is a hit",
        NEVER_RESUMES,
        premise=boundary_is_within_reach,
        premise_text="the lookup may look as far as the boundary, floored, and the unit that is given back",
        note="What the mask keeps for a boundary under interval 0 is enough to hit there when nothing else is cached.",
    ),
)

ENGINE_CLAIMS: tuple[Claim, ...] = (
    Claim("M2", "M2", equals_reference, hits, "there is a hit", UNIT_TOO_LONG),
    *CLAIMS,
)
