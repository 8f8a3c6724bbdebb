"""The decisions of the engine, one a method, each in its right form, so that any one of them can be exchanged."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from reference import admission, boundaries, exports, holdings, lookup, retention, split
from reference.admission import Share
from reference.geometry import Group
from reference.holdings import Holding
from reference.policy import Policy
from reference.shape import Shape


class Decisions:
    """What the engine asks wherever it could decide otherwise. A planted fault overrides one method."""

    # The step.

    def budget(self, budget: int) -> int:
        """The tokens that one step may hold."""
        return budget

    def chunk(self, shape: Shape, start: int, asked: int, prompt: int, known: int, junction: int) -> int:
        """How many of the tokens asked for a chunk gets, in a model with recurrent state."""
        return split.split(shape.policy, shape.setting, start, asked, prompt, known, junction)

    def admits(self, name: str, hit: int, others_run: bool) -> bool:
        """Whether a request that waits may be admitted at all."""
        return True

    def adopts(self, hit: int) -> bool:
        """Whether a request takes the hit that its lookup found."""
        return True

    def counts_lookup(self, admitted: bool) -> bool:
        """Whether a lookup enters the statistics: when it is made, or when its request is ``admitted``."""
        return admitted

    def victim(self, running: int, served: int) -> int:
        """The place of the request that is preempted, of so many ``running``, of which ``served`` have had a chunk."""
        return running - 1

    # The lookup.

    def looks_up(self, skips: bool) -> bool:
        """Whether a request may take from the prefix cache; ``skips``: it asked not to."""
        return not skips

    def hit_and_junction(
        self, shape: Shape, items: list[lookup.LookupGroup], known: int, hashed: int
    ) -> tuple[int, int]:
        """What a request of ``known`` tokens finds, ``hashed`` of them hashed."""
        if len(items) == 1:
            found = lookup.single_hit(items[0], known)
        else:
            found = lookup.hybrid_hit(shape.policy, items, known, hashed, shape.alignment, shape.setting.hash_block)
        return found.hit, found.junction

    def waits_for(self, named_this_step: bool) -> bool:
        """Whether a hit must wait for the next step: what it copies from is only written in this one."""
        return named_this_step

    def resets(self, in_use: bool) -> bool:
        """Whether the prefix cache is emptied on demand; ``in_use``: some block is."""
        return not in_use

    # The tables.

    def admits_by_blocks(self, whole: int | None, chunk: int, usable: int, unwritten: bool) -> bool:
        """Whether a request gets its blocks; see ``admission.refusal``."""
        return not admission.refusal(whole, chunk, usable, unwritten)

    def counted(self, share: Share) -> Share:
        """What a group has of a request, as it counts when the blocks are counted that are still needed."""
        return share

    def gives_back(self, policy: Policy, group: Group, held: Holding, computed: int) -> list[list[int]]:
        """The columns that a request with ``computed`` tokens gives back before its next chunk, by call."""
        return holdings.give_back_passed(policy, group, held, computed)

    def released(self, table: list[int]) -> list[int]:
        """The blocks of a table in the order in which a request that goes gives them back."""
        return table[::-1]

    def copies(self, copies: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """The copies that the worker is told to make."""
        return copies

    # What enters the cache.

    def cacheable(self, group: Group, tokens: int, scheduler_block: int, whole_units: bool) -> int:
        """How many of the first ``tokens`` tokens a group may cache."""
        return retention.cacheable_tokens(group, tokens, scheduler_block, whole_units)

    def boundaries(self, shape: Shape, group: Group, prompt: int, junction: int) -> tuple[int, ...]:
        """The boundary list of a request for one group."""
        return boundaries.boundary_list(
            shape.policy, group, prompt, junction, shape.setting.scheduler_block, shape.drops
        )

    def keeps(self, shape: Shape, group: Group, number: int, positions: tuple[int, ...], first: int) -> bool:
        """Whether a full block enters the prefix cache, wherever the blocks that are considered with it begin."""
        if retention.keeps_all(group):
            return True
        return retention.keep(group, number, shape.mask_alignment, shape.retention, positions)

    def keeps_saved(self, shape: Shape, group: Group, position: int, prompt: int, junction: int, tokens: int) -> bool:
        """Whether a state that is saved inside a chunk enters the prefix cache; see ``exports.keeps_saved``."""
        alignment, interval = shape.mask_alignment, shape.retention
        return exports.keeps_saved(
            shape.policy, shape.setting, group, position, prompt, junction, tokens, alignment, interval
        )

    # The pool.

    def references_after_free(self, references: int) -> int:
        """How many references a block has left once one was given back."""
        return references - 1

    def touched(self, blocks: Sequence[int]) -> Sequence[int]:
        """The blocks that get one more reference each when a hit adopts ``blocks``."""
        return blocks

    def forgets_on_take(self, block: int) -> bool:
        """Whether a block loses its hashes when a new owner takes it."""
        return True

    def next_free(self, free: OrderedDict[int, None]) -> int:
        """The free block that is given out next."""
        return next(iter(free))
