"""Check of the lookup's completeness: L2, no longer length could have been granted."""

from __future__ import annotations

from oracle.case import Case
from oracle.trace import Lookup
from reference import rules
from reference.arithmetic import floor_to
from reference.geometry import Group
from reference.lookup import LookupGroup, Present
from reference.serving import given_back, served


def check_longest(case: Case, record: Lookup, items: list[LookupGroup]) -> int:
    """Judge whether all groups could have served more than was granted. ``items``: what each holds at that time.

    Gives the length that full attention alone could serve, 0 without such a group.
    """
    unit, hash_block = case.setup.alignment, case.setup.hash_block
    top, has_full = _reach(case, record.known), False
    for item in items:
        if item.group.kind == "full":
            # No hit goes beyond what full attention holds without a gap: most lookups end here.
            top = min(top, _held(item.present, item.group, hash_block, top) - given_back(item.group, unit))
            has_full = True
    top = floor_to(max(top, 0), unit)
    if case.judged("L2"):
        served_alike = (p for p in range(top, record.hit, -unit) if all(_serves(i, p, unit, hash_block) for i in items))
        _judge(case, record, next(served_alike, record.hit))
    return top if has_full else 0


def _judge(case: Case, record: Lookup, longest: int) -> None:
    if not rules.nothing_longer_is_served(record.hit, longest):
        case.report(
            "L2",
            "lookup",
            f"{record.request} has {record.known} tokens and was granted a hit of {record.hit}; every group holds what "
            f"a hit of {longest} reads",
            request=record.request,
            expected=f"a hit of {longest}",
            actual=f"a hit of {record.hit}",
        )


def _reach(case: Case, known: int) -> int:
    """The longest hit that the limits of the release let each group look at, in tokens."""
    limit = known - 1
    end = case.peek_end(limit, case.hashed(known))
    peeks = [given_back(group, case.setup.alignment) for group in case.groups]
    return min([limit, *(end - peek for peek in peeks if peek)])


def _held(present: Present, group: Group, hash_block: int, top: int) -> int:
    """How many leading tokens a full-attention group holds, looked for no farther than needed for ``top``."""
    held = 0
    while held <= top and present(held + group.block):
        held += group.block
    inside = held + group.block - hash_block
    while inside > held and not present(inside):
        inside -= hash_block
    return max(held, inside)


def _serves(item: LookupGroup, position: int, unit: int, hash_block: int) -> bool:
    """Whether a group serves a hit. A part of a block counts at the lengths that have an entry of their own."""
    group, beyond = item.group, given_back(item.group, unit)
    end = position + beyond
    if group.kind == "full" and end % group.block != 0 and not item.present(end):
        return False
    return served(group, item.present, position, beyond, hash_block)
