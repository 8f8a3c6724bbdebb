"""What proofs about an engine's own functions hold fixed or take for granted, as predicates of a trace's decisions.

An engine's split, masks, boundary lists and lookups are proved about with stand-ins for what surrounds them, and
under premises that the ledger states. Each of these that a trace shows is a ``Premise`` here, and so is what a
row fixes by its name; for the others ``UNSEEN`` says why no trace shows them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, Literal, TypeVar

from oracle.case import Case
from oracle.check_retention import mask_alignment
from oracle.trace import Cache, Commit, Lookup, Record, Split
from reference.split import prefill_end
from spec.boundary_domains import BOUNDARY_SIZES
from spec.claims.split import hit_unit
from spec.plan import PLANS
from spec.subjects import LAYOUTS

About = Literal["split", "mask", "boundaries", "lookup"]
R = TypeVar("R", bound=Record)


@dataclass(frozen=True)
class Premise(Generic[R]):
    """What is held fixed or taken for granted, as a predicate of a decision.

    ``about``: the ledger's subject. ``name``: in words, no other of the subject has it. ``holds``: None where it
    says nothing of the decision. ``stated``: how the ledger's sentence begins; empty where the name of a row says
    it. ``outside``: why an engine may decide outside of it, and what is known then; empty where it always holds.
    """

    about: About
    name: str
    holds: Callable[[Case, R], bool | None]
    stated: str = ""
    outside: str = ""

    @property
    def key(self) -> str:
        """Subject and name."""
        return f"{self.about}: {self.name}"


@dataclass(frozen=True)
class Unseen:
    """What no trace shows, and why. ``stated``: how the ledger's sentence begins."""

    about: About
    stated: str
    reason: str


def all_hold(premises: Sequence[Premise[R]], case: Case, record: R) -> bool:
    """Whether none of them fails."""
    return all(premise.holds(case, record) is not False for premise in premises)


# --- the split ---------------------------------------------------------------------------------------


def asks_for_known_tokens(_: Case, record: Split) -> bool:
    return record.asked >= 1 and record.start + record.asked <= record.known


def prefills(record: Split) -> bool:
    return record.start < prefill_end(record.prompt, record.known)


def prefill_asks_for_known_tokens(case: Case, record: Split) -> bool | None:
    return asks_for_known_tokens(case, record) if prefills(record) else None


def prefill_asks_for_known_tokens_or_pads(case: Case, record: Split) -> bool | None:
    """A last token that is padded with drafts asks for no more than these."""
    if not prefills(record):
        return None
    pads = record.known - record.start == 1 and record.asked <= 1 + case.scenario.features.drafts
    return pads or asks_for_known_tokens(case, record)


def junction_on_unit_of_hits(case: Case, record: Split) -> bool:
    return bool(record.junction % hit_unit(case.split_setting) == 0)


def exact_junction_has_partial_hits(case: Case, _: Split) -> bool | None:
    return case.setup.partial_hits if case.setup.exact_junction else None


def lookahead_replaces_the_drop(case: Case, _: Split) -> bool | None:
    return not case.setup.block_drop if case.setup.lookahead_hash else None


def blocks_are_one_size(case: Case, _: Split) -> bool:
    return {case.setup.split_grid} == {case.setup.scheduler_block, *case.mamba_blocks}


def every_premise_in_prefill(case: Case, record: Split) -> bool | None:
    return all_hold(_SPLIT_STATED, case, record) if prefills(record) else None


def every_premise_with_one_size(case: Case, record: Split) -> bool | None:
    return every_premise_in_prefill(case, record) and blocks_are_one_size(case, record)


_SPLIT_STATED: tuple[Premise[Split], ...] = (
    Premise(
        "split",
        "a step asks for tokens that the request has",
        asks_for_known_tokens,
        "0 <= start, and start + asked <= known",
        "a decoding request is also asked for drafts and for tokens in flight; from the prefill end on the split "
        "looks at nothing and grants what is asked",
    ),
    Premise(
        "split",
        "in prefill, a step asks for tokens that the request has",
        prefill_asks_for_known_tokens,
        "0 <= start, and start + asked <= known",
        "from 0.29 Scheduler.schedule pads a waiting request of which one token is left with its drafts, and then "
        "asks the split; no proof speaks of that",
    ),
    Premise(
        "split",
        "in prefill, a step asks for tokens that the request has, or pads its last with drafts",
        prefill_asks_for_known_tokens_or_pads,
        "0 <= start, and start + asked <= known",
    ),
    Premise(
        "split",
        "the prompt has a token and is known",
        lambda _, record: 1 <= record.prompt <= record.known,
        "1 <= prompt <= known",
    ),
    Premise(
        "split",
        "the junction lies inside the request",
        lambda _, record: record.junction < record.known,
        "junction < known",
    ),
    Premise(
        "split",
        "the junction is a multiple of the unit of hits",
        junction_on_unit_of_hits,
        "the junction is a multiple of the unit",
    ),
    Premise("split", "a step has room", lambda case, _: case.split_setting.room >= 1, "the room of a step is"),
    Premise(
        "split",
        "there is a Mamba group, in align mode",
        lambda case, _: case.setup.split and bool(case.mamba_blocks),
        "The model has Mamba layers",
    ),
    Premise(
        "split",
        "the opt-in to the exact junction has partial hits",
        exact_junction_has_partial_hits,
        "The opt-in to the exact junction",
    ),
    Premise(
        "split",
        "hashes that look ahead replace the EAGLE drop",
        lookahead_replaces_the_drop,
        "The EAGLE drop and the hash lookahead",
    ),
    Premise(
        "split",
        "there is no long-prefill threshold",
        lambda case, _: case.scenario.limits.long_prefill_threshold == 0,
        "The room of a setting is",
        "a release that looks at the room takes the smaller of budget and threshold, which is what proofs call the "
        "room",
    ),
)

SPLITS: tuple[Premise[Split], ...] = (
    *_SPLIT_STATED,
    Premise(
        "split",
        "split grid, Mamba block and scheduler block are one size",
        blocks_are_one_size,
        outside="of unequal blocks only a few sizes have rows",
    ),
    Premise("split", "in prefill, every premise at once", every_premise_in_prefill, outside="as above"),
    Premise(
        "split",
        "in prefill, every premise at once, and one size",
        every_premise_with_one_size,
        outside="what is left are the decisions that rows over 'B, H' speak of",
    ),
    Premise(
        "split",
        "the hash block divides the grid",
        lambda case, _: case.setup.split_grid % case.setup.hash_block == 0,
    ),
    Premise(
        "split",
        "with partial hits, hashes are finer than the scheduler block",
        lambda case, _: case.setup.hash_block < case.setup.scheduler_block if case.setup.partial_hits else None,
    ),
    Premise(
        "split",
        "hashes do not look ahead",
        lambda case, _: case.setup.lookahead_hash == 0,
        outside="from 0.33 they do under EAGLE; rows with 'lookahead' in their name speak of that",
    ),
    Premise(
        "split",
        "the backend saves no state inside a chunk",
        lambda case, _: case.setup.checkpoint_alignment == 0,
        outside="rows with 'checkpoints' in their name speak of that; engines that are driven here have none",
    ),
)

# --- masks and boundary lists ------------------------------------------------------------------------


def junction_of(case: Case, record: Cache) -> int:
    """The junction that the request carries, in tokens."""
    return case.request(record.request).looked_up or 0


def alignment_of_masks(case: Case) -> int:
    """The unit that masks floor boundaries to, in tokens."""
    assert case.policy is not None
    return mask_alignment(case, case.policy)


def interval_is_whole(case: Case, _: Cache) -> bool | None:
    retention = case.setup.retention
    return None if retention is None else retention % case.setup.scheduler_block == 0


def junction_on_unit_of_masks(case: Case, record: Cache) -> bool:
    return junction_of(case, record) % min(alignment_of_masks(case), case.setup.scheduler_block) == 0


def window_block_divides_alignment(case: Case, record: Cache) -> bool | None:
    group = case.groups[record.group]
    return alignment_of_masks(case) % group.block == 0 if group.kind == "swa" else None


def mask_sizes_have_rows(case: Case, record: Cache) -> bool:
    """Whole blocks in the scheduler block, or a unit inside a block that is the scheduler block."""
    block, alignment, whole = case.groups[record.group].block, alignment_of_masks(case), case.setup.scheduler_block
    return (alignment == whole and alignment % block == 0) or (block == whole and block % alignment == 0)


def nothing_is_cached_yet(case: Case, record: Cache) -> bool:
    return case.request(record.request).cached[record.group] == 0


def a_scheduler_block_is_hashed(case: Case, record: Cache) -> bool:
    return case.hashed(case.request(record.request).known) >= case.setup.scheduler_block


def block_that_drops_divides(case: Case, record: Cache) -> bool | None:
    group = case.groups[record.group]
    return case.setup.scheduler_block % group.block == 0 if group.drops else None


def group_stands_for_all(case: Case, record: Cache) -> bool:
    return case.groups[record.group].drops == any(case.setup.drop_groups)


_BOUNDARY_BOUNDS = {
    (sizes.block, sizes.scheduler_block) for sizes in BOUNDARY_SIZES if sizes.name in PLANS["boundaries"].engine_sizes
}


def boundary_list_is_within_bounds(case: Case, record: Cache) -> bool:
    whole = case.setup.scheduler_block
    fits = case.request(record.request).prompt <= 4 * whole
    return fits and (case.groups[record.group].block, whole) in _BOUNDARY_BOUNDS


_MASK_STATED: tuple[Premise[Cache], ...] = (
    Premise(
        "mask", "the interval is whole scheduler blocks", interval_is_whole, "the retention interval is a multiple"
    ),
    Premise(
        "mask",
        "the junction is a multiple of the mask's unit",
        junction_on_unit_of_masks,
        "the junction is a multiple of the unit",
        "where masks floor to the scheduler block (before 0.29) and hits are granted inside it, junctions lie inside, "
        "too; M3 is proved for any boundaries, R1 and R2 leave such junctions out",
    ),
    Premise(
        "mask",
        "the prompt has a token",
        lambda case, record: case.request(record.request).prompt >= 1,
        "1 <= prompt, and start <= block < end",
    ),
    Premise(
        "mask",
        "a window's block divides the alignment",
        window_block_divides_alignment,
        "The alignment is given",
    ),
)

MASKS: tuple[Premise[Cache], ...] = (
    *_MASK_STATED,
    Premise("mask", "every premise at once", partial(all_hold, _MASK_STATED), outside="as above"),
    Premise(
        "mask",
        "blocks, alignment and scheduler block are of a shape that has rows",
        mask_sizes_have_rows,
        outside="with hits inside blocks and unequal blocks the alignment is neither whole blocks nor inside the one "
        "scheduler block; no row speaks of that",
    ),
)

_BOUNDARY_STATED: tuple[Premise[Cache], ...] = (
    Premise(
        "boundaries",
        "the prompt has a token",
        lambda case, record: case.request(record.request).prompt >= 1,
        "1 <= prompt (Request",
    ),
    Premise(
        "boundaries",
        "the junction is a multiple of the scheduler block",
        lambda case, record: junction_of(case, record) % case.setup.scheduler_block == 0,
        "the junction is a multiple of the scheduler block",
        "with hits inside blocks junctions lie inside, too; the list hands a junction on as it is",
    ),
    Premise(
        "boundaries",
        "the block of a group that drops divides the scheduler block",
        block_that_drops_divides,
        "the block of the group that drops divides",
    ),
    Premise(
        "boundaries",
        "there are several groups",
        lambda case, _: len(case.groups) > 1,
        "The boundaries are those that reach reachable_block_mask",
        "a single group has a coordinator of its own, which asks for its masks by the same method of the manager",
    ),
    Premise(
        "boundaries",
        "nothing is cached yet",
        nothing_is_cached_yet,
        "The request has nothing cached yet",
        "later chunks and hits; the list does not depend on what is cached",
    ),
    Premise(
        "boundaries",
        "a scheduler block is hashed",
        a_scheduler_block_is_hashed,
        "The request has nothing cached yet",
        "a single block of unequal ones, or one that EAGLE peeks at; the list does not depend on what is hashed",
    ),
    Premise(
        "boundaries",
        "caching is on",
        lambda case, _: case.scenario.features.caching,
        "No prompt token is computed again for drafts",
    ),
    Premise(
        "boundaries",
        "a group drops where any does",
        group_stands_for_all,
        "One group stands for all",
        "one group marked as the draft model's drops, the others do not",
    ),
)

BOUNDARIES: tuple[Premise[Cache], ...] = (
    *_BOUNDARY_STATED,
    Premise("boundaries", "every premise at once", partial(all_hold, _BOUNDARY_STATED), outside="as above"),
    Premise(
        "boundaries",
        "the sizes and the prompt are within the bound",
        boundary_list_is_within_bounds,
        outside="proved to a bound, for small sizes",
    ),
)

# --- the lookup --------------------------------------------------------------------------------------


def alignment_is_that_of_hits(case: Case, _: Lookup) -> bool | None:
    setup = case.setup
    if len(case.groups) == 1:
        return None
    return setup.alignment == (setup.hash_block if setup.partial_hits else setup.scheduler_block)


def windows_are_hash_blocks(case: Case, _: Lookup) -> bool | None:
    windows = [group.block for group in case.groups if group.kind == "swa"]
    return {*windows} == {case.setup.hash_block} if windows and case.setup.partial_hits else None


def layout_is_within_bounds(case: Case, record: Lookup) -> bool:
    units = (case.setup.hash_block, case.setup.alignment, case.setup.lookahead_hash)
    return any(
        layout.groups == case.groups
        and (layout.hash_block, layout.alignment, layout.lookahead) == units
        and record.known <= layout.most
        for layout in LAYOUTS.values()
    )


def commit_has_a_hash(case: Case, record: Commit) -> bool | None:
    """None for a hash that moves between blocks, which tells no request."""
    if not record.request:
        return None
    reach = record.position + case.setup.lookahead_hash
    return record.position % case.setup.hash_block == 0 and reach <= case.request(record.request).known


_LOOKUP_STATED: tuple[Premise[Lookup], ...] = (
    Premise("lookup", "the request has a token", lambda _, record: record.known >= 1, "1 <= known"),
    Premise(
        "lookup",
        "hit and junction leave a token",
        lambda _, record: max(record.hit, record.junction) <= record.known - 1,
        "a lookup is capped at known - 1",
    ),
    Premise(
        "lookup",
        "the hash block divides every block",
        lambda case, _: all(group.block % case.setup.hash_block == 0 for group in case.groups),
        "the hash block divides every group's block",
    ),
    Premise(
        "lookup",
        "the alignment is the hash block with partial hits, else the scheduler block",
        alignment_is_that_of_hits,
        "With partial hits the alignment is the hash block",
    ),
)

LOOKUPS: tuple[Premise[Lookup], ...] = (
    *_LOOKUP_STATED,
    Premise("lookup", "every premise at once", partial(all_hold, _LOOKUP_STATED)),
    Premise("lookup", "with partial hits, a window's block is the hash block", windows_are_hash_blocks),
    Premise(
        "lookup",
        "the layout has a row, and the request is within its bound",
        layout_is_within_bounds,
        outside="proved to a bound, for small sizes",
    ),
)

COMMITS: tuple[Premise[Commit], ...] = (
    Premise("lookup", "what enters the cache has a hash", commit_has_a_hash, "what has no hash yet is not cached"),
)

# --- what no trace shows -----------------------------------------------------------------------------

_NO_PARALLELISM = "a trace has no field for it; scenarios cannot ask for it, and the driver builds an engine without"
_NO_CLASSES = "a trace names the kind of a group and not the class that serves it"

UNSEEN = (
    Unseen("split", "A chunk starts after all tokens", "a record has the sum of the three counts and not its parts"),
    Unseen("split", "All Mamba groups have the same", "a header has one alignment for all groups"),
    Unseen("split", "Partial hits are on where", "the header's flag is read from that very attribute"),
    Unseen("mask", "No context parallelism", _NO_PARALLELISM),
    Unseen("mask", "No segment ends early", "a mask's arguments are not recorded; no scenario has an external store"),
    Unseen("mask", "Groups of kind mamba and swa", _NO_CLASSES),
    Unseen("boundaries", "No prompt token is computed again for drafts", _NO_PARALLELISM),
    Unseen("lookup", "Groups of kind full, swa and mamba", _NO_CLASSES),
    Unseen("lookup", "Two specs are equal exactly where", "a trace has no more of a spec than these three"),
    Unseen("lookup", "A block's hash stands for its number", "single questions to the block pool are not recorded"),
    Unseen("lookup", "No context parallelism", _NO_PARALLELISM),
    Unseen("lookup", "HybridKVCacheCoordinator.attention_groups", "the header's drop_groups are read from them"),
    Unseen("lookup", "A lookup of one group alone", "lookups of single groups inside a lookup are not recorded"),
)

AnyPremise = Premise[Split] | Premise[Cache] | Premise[Lookup] | Premise[Commit]
PREMISES: tuple[AnyPremise, ...] = (*SPLITS, *MASKS, *BOUNDARIES, *LOOKUPS, *COMMITS)
"""All of them."""
