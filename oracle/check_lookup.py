"""Checks of the lookup: L1 to L3 on what the engine granted, M2 against the reference."""

from __future__ import annotations

from collections.abc import Callable

from oracle.case import Case, RequestState
from oracle.check_longest import check_longest
from oracle.trace import Lookup
from reference import lookup, rules
from reference.arithmetic import ceil_div
from reference.geometry import blocks_needed_for_hit, first_read


def check_lookup(case: Case, record: Lookup) -> int:
    """Judge one lookup, then note what the request now carries.

    Gives the junction that is due, by what full attention holds, or the one that was found if that is longer.
    """
    state = case.requests[record.request]
    case.grow_ids(state, max(record.known, record.hit) + 1)
    case.cover("lookup")
    if record.hit > 0:
        case.cover("hit")
        if record.hit % case.setup.scheduler_block != 0:
            case.cover("partial hit")
    if record.junction > 0:
        case.cover("junction")
    _check_numbers(case, record)
    if 0 < record.hit < record.known:
        for group in range(len(case.groups)):
            _check_served(case, record, state, group)
    offered = 0
    if record.request in case.skips_lookup:
        _check_skipped(case, record)
    elif case.scenario.features.caching:
        items = [
            lookup.LookupGroup(spec, present_in(case, state, number, record.known))
            for number, spec in enumerate(case.groups)
        ]
        offered = check_longest(case, record, items)
        if case.policy is not None and case.judged("M2"):
            _check_prediction(case, record, items)
    state.looked_up = record.junction
    return max(record.junction, offered if offered > record.hit else 0)


def _check_numbers(case: Case, record: Lookup) -> None:
    """L1 and L3 as far as they are about numbers."""
    if case.judged("L1") and not rules.hit_is_aligned(record.hit, record.known, case.setup.alignment):
        case.report(
            "L1",
            "lookup",
            f"{record.request} has {record.known} tokens and was granted a hit of {record.hit}, in units of "
            f"{case.setup.alignment}",
            request=record.request,
            expected=f"a multiple of {case.setup.alignment} up to {record.known - 1}",
            actual=record.hit,
        )
    if case.judged("L3") and not rules.junction_beyond_hit(record.hit, record.junction, record.known):
        case.report(
            "L3",
            "lookup",
            f"{record.request} was granted a hit of {record.hit} and a junction of {record.junction}",
            request=record.request,
            expected=f"0, or beyond {record.hit} and below {record.known}",
            actual=record.junction,
        )


def needed_columns(case: Case, group: int, hit: int) -> range:
    """The table columns that a hit of ``hit`` tokens needs in a group."""
    spec = case.groups[group]
    end = ceil_div(hit, spec.block)
    if spec.kind in ("full", "chunked"):
        return range(first_read(spec, hit) // spec.block, end)
    if spec.kind == "mamba":
        return range(end - 1, end)
    need = ceil_div(spec.window - 1, spec.block) if spec.drops else blocks_needed_for_hit(spec)
    return range(max(end - need, 0), end)


def _check_served(case: Case, record: Lookup, state: RequestState, group: int) -> None:
    """L1: each block that serves the hit is present under a hash of the request's own tokens."""
    blocks = record.blocks[group]
    spec = case.groups[group]
    for column in needed_columns(case, group, record.hit):
        block = blocks[column] if column < len(blocks) else 0
        position = min((column + 1) * spec.block, record.hit)
        following = _serving_entry(case, state, group, block, position, record.known)
        if following is None:
            case.report(
                "L1",
                "lookup",
                f"{record.request} was granted {record.hit} tokens, so {case.name(group)} must hold its first "
                f"{position} tokens in column {column}; block {block} has no hash that names them",
                request=record.request,
                group=group,
                block=block,
                expected=f"a block with the first {position} tokens",
                actual=f"block {block}",
            )
            return
        if spec.drops and position == record.hit and following not in (0, state.ids[record.hit + 1]):
            # Draft-layer keys and values at the last position depend on the token after it. Another
            # request wrote them for another continuation: only the acceptance of drafts can suffer.
            case.allow("draft layer of another continuation")


def _serving_entry(case: Case, state: RequestState, group: int, block: int, position: int, known: int) -> int | None:
    """``following`` of an entry of the block that covers the request's first ``position`` tokens, or None.

    An entry for a longer prefix that ends in the same column serves a shorter one, where its first tokens are
    the request's; not so for Mamba, whose state is of one position.
    """
    spec, ids = case.groups[group], state.ids
    last = position if spec.kind == "mamba" else ceil_div(position, spec.block) * spec.block
    for entry in case.index.by_block.get(block, ()):
        if entry.group != group or not position <= entry.position <= last:
            continue
        reach = entry.position + case.setup.lookahead_hash
        if reach <= known and entry.key == ids[reach]:
            return entry.following if entry.position == position else 0
        if entry.position > position and case.prefixes.ancestor(entry.key, reach - position) == ids[position]:
            return 0
    return None


def present_in(case: Case, state: RequestState, group: int, known: int) -> Callable[[int], bool]:
    """``present(tokens)`` for the reference's lookup: is there a block for the request's first tokens."""
    by_key, ids = case.index.by_key, state.ids
    lookahead = case.setup.lookahead_hash

    def present(tokens: int) -> bool:
        return tokens + lookahead <= known and (group, ids[tokens + lookahead]) in by_key

    return present


def _check_skipped(case: Case, record: Lookup) -> None:
    """M2, for a request that takes nothing from the cache, whatever is in it."""
    case.cover("lookup skipped")
    if case.policy is not None and case.judged("M2") and (record.hit, record.junction) != (0, 0):
        case.report(
            "M2",
            "lookup",
            f"{record.request} skips the lookup, and was granted a hit of {record.hit} and a junction of "
            f"{record.junction}",
            request=record.request,
            expected="hit 0, junction 0",
            actual=f"hit {record.hit}, junction {record.junction}",
        )


def _check_prediction(case: Case, record: Lookup, items: list[lookup.LookupGroup]) -> None:
    """M2: the reference's hit and junction for the cache as it is now."""
    assert case.policy is not None
    if len(items) == 1:
        predicted = lookup.single_hit(items[0], record.known)
    else:
        predicted = lookup.hybrid_hit(
            case.policy,
            items,
            record.known,
            case.hashed(record.known),
            case.setup.alignment,
            case.setup.hash_block,
        )
    if (predicted.hit, predicted.junction) != (record.hit, record.junction):
        case.report(
            "M2",
            "lookup",
            f"for {record.request} ({record.known} tokens) and the blocks present at that time the reference "
            f"finds a hit of {predicted.hit} and a junction of {predicted.junction}",
            request=record.request,
            expected=f"hit {predicted.hit}, junction {predicted.junction}",
            actual=f"hit {record.hit}, junction {record.junction}",
        )
