"""What the judge forgets, so that its memory follows what is alive and not how long a trace is.

A request is forgotten some steps after its end, a prefix once no request, no hash, no block's content and no
promise has it or goes on from it. Both are looked for now and then, at a cost that what was new since pays for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator

from oracle.case import Case, RequestState
from oracle.check_content import Content
from oracle.check_reuse import Reuse
from oracle.check_step import Progress

KEPT_STEPS = 64
"""A request is known for so many steps after its end. Outputs that were in flight may still name it; and an engine
that goes on with it has a fault, which is to be judged and not to be taken for a broken trace."""


class Forgetting:
    """``ended``: requests that ended, each with its last step. ``held_elsewhere``: prefixes that others keep."""

    def __init__(self, case: Case, content: Content, progress: Progress, reuse: Reuse) -> None:
        self.case = case
        self.content = content
        self.progress = progress
        self.reuse = reuse
        self.ended: deque[tuple[int, RequestState]] = deque()
        self.held_elsewhere: Collection[int] = ()

    def finish(self, request: str) -> None:
        """A request ended."""
        state = self.case.requests.get(request)
        if state is not None:
            self.ended.append((self.case.verdict.steps, state))

    def step(self) -> None:
        """A step was judged: forget what ended long ago, and prefixes when there are many new ones."""
        requests, ended = self.case.requests, self.ended
        over = self.case.verdict.steps - KEPT_STEPS
        while ended and ended[0][0] <= over:
            state = ended.popleft()[1]
            # It may have ended twice, and a new request may have its name by now.
            if requests.get(state.name) is state:
                del requests[state.name]
                self.progress.forget(state.name)
        if self.case.prefixes.is_full:
            self.forget_prefixes()

    def forget_prefixes(self) -> None:
        """Forget the prefixes that nothing holds, and what is known of nothing else."""
        kept = self.case.prefixes.keep(self._held())
        index = self.case.index
        index.names = {digest: named for digest, named in index.names.items() if named[0] in kept}
        for misnamed in self.content.misnamed.values():
            misnamed.intersection_update(kept)

    def _held(self) -> Iterator[int]:
        """Every prefix that something has, but for those that one of these begins with."""
        case = self.case
        for state in case.requests.values():
            yield state.ids[-1]
        for entries in case.index.by_block.values():
            for entry in entries:
                yield entry.key
                yield entry.following
        for block in case.memory.owner:
            yield from case.memory.slots[block]
        yield from self.reuse.held()
        yield from self.held_elsewhere
