"""Checks of content: the worker's memory as a ghost beside the trace, C1 for hashes and C2 for reads.

The ghost needs no trust in the engine's bookkeeping: it follows what the worker was told to do, and knows of
each block what is really in it.
"""

from __future__ import annotations

from oracle import trace
from oracle.cache_index import Entry
from oracle.case import BadTrace, Case
from reference.arithmetic import floor_to
from reference.worker import DRAFT, MIXED, UNWRITTEN, Chunk, Read


class Content:
    """What blocks hold and what their hashes name.

    ``pending``: hashes that are new since the last step; what they name is looked for after the next one, since
    a hash is given when a step is planned. ``evicted``: hashes that blocks lost since the last step, by group and
    digest; one that comes back on another block has moved. ``misnamed``: by group, what a wrong hash named and its
    block does not hold, once that was reported.
    """

    def __init__(self, case: Case) -> None:
        self.case = case
        self.pending: list[Entry] = []
        self.evicted: dict[tuple[int, int], Entry] = {}
        self.misnamed: dict[int, set[int]] = {}

    def entry_of(self, record: trace.Commit) -> Entry | None:
        """What the hash names: the tokens of the request it was made from, or what it named before it moved."""
        case, request, group, block, digest = self.case, record.request, record.group, record.block, record.digest
        if not request:
            moved = self.evicted.get((group, digest))
            if moved is None:
                case.verdict.unjudged["moved hash"] = "a hash came from nowhere that the trace shows"
                return None
            return Entry(group, block, moved.key, moved.position, digest, moved.content, moved.following)
        spec, position = case.groups[group], record.position
        state = case.request(request)
        reach = position + case.setup.lookahead_hash
        ids = case.grow_ids(state, max(reach, position + 1))
        name = (ids[reach], position)
        if case.index.names.setdefault(digest, name) != name and case.judged("C1"):
            case.report(
                "C1",
                "commit",
                f"the hash given to block {block} in {case.name(group)} is called the first {position} tokens of "
                f"{request}, and was made from other tokens before",
                request=request,
                group=group,
                block=block,
            )
        first = floor_to(position - 1, spec.block)
        content = [ids[position]] if spec.kind == "mamba" else ids[first + 1 : position + 1]
        following = ids[position + 1] if state.known > position else 0
        return Entry(group, block, ids[reach], position, digest, content, following)

    def run_worker(self, record: trace.Step) -> None:
        """The step as the worker executes it, into the ghost; C2 for what it reads."""
        case, memory = self.case, self.case.memory
        if record.finished or record.preempted:
            memory.drop((*record.finished, *record.preempted))
        if record.zero:
            memory.zero(record.zero)
        if record.copies:
            case.cover("copy", len(record.copies))
            memory.copy(record.copies)
        chunks = []
        for item in record.scheduled:
            state, fresh, blocks = case.request(item.request), item.fresh, item.blocks
            start, tokens, drafts, accepted = item.start, item.tokens, item.drafts, item.accepted
            if fresh and state.preemptions:
                case.cover("resumed")
            if accepted:
                case.cover("draft accepted")
            if len(blocks) != len(case.groups):
                raise BadTrace(
                    f"record {case.record} gives {state.name!r} blocks of {len(blocks)} groups; the scenario "
                    f"has {len(case.groups)}"
                )
            if tokens < 1 or not 0 <= accepted <= drafts < tokens:
                continue  # A3 has reported it, and no worker could run it
            ids = case.grow_ids(state, start + tokens + 1)
            chunks.append(Chunk(state.name, start, tokens, drafts, accepted, fresh, blocks, ids))
        if chunks:
            case.judged("C2")
            memory.forward(chunks, self._report_read)

    def _report_read(self, read: Read) -> None:
        """C2: a read that did not find its content, unless the wrong hash that misled it was reported."""
        case = self.case
        if read.needed in self.misnamed.get(read.group, ()):
            return
        spec = case.groups[read.group]
        what = f"the state after {read.position} tokens" if spec.kind == "mamba" else f"position {read.position}"
        found = "nothing that was written" if read.found == UNWRITTEN else "other tokens"
        case.report(
            "C2",
            "step",
            f"{read.request} reads {what} from block {read.block} in {case.name(read.group)}, which holds {found} "
            "there",
            request=read.request,
            group=read.group,
            block=read.block,
            expected=what + f" of {read.request}",
            actual=found,
        )

    def check(self) -> None:
        """C1 for hashes that are new, and for hashed blocks that were written."""
        case, index, memory = self.case, self.case.index, self.case.memory
        entries = [entry for entry in self.pending if not entry.gone]
        for block in memory.written:
            if block in index.by_block:
                entries.extend(index.by_block[block])
        memory.written.clear()
        self.pending.clear()
        if not case.judged("C1", len(entries)):
            return
        for entry in entries:
            content = memory.content(entry.group, entry.block)
            if content is None or content[: len(entry.content)] != entry.content:
                self._report_content(entry, content)

    def _report_content(self, entry: Entry, content: list[int] | None) -> None:
        """C1: a hash names what the block does not hold."""
        case = self.case
        if entry.reported:
            return
        entry.reported = True
        spec = case.groups[entry.group]
        held = self._words(content, entry, spec.kind == "mamba")
        what = f"the state after {entry.position} tokens" if spec.kind == "mamba" else f"tokens up to {entry.position}"
        case.report(
            "C1",
            "commit",
            f"block {entry.block} in {case.name(entry.group)} is hashed as {what}, and holds {held}: who hits it "
            "computes on from there",
            group=entry.group,
            block=entry.block,
            expected=what,
            actual=held,
        )
        # The block keeps what it holds: that may well be what its owner computes on from.
        holds = content or []
        wrong = {want for place, want in enumerate(entry.content) if holds[place : place + 1] != [want]}
        self.misnamed.setdefault(entry.group, set()).update(wrong)

    def _words(self, content: list[int] | None, entry: Entry, is_state: bool) -> str:
        """What a block holds, in words."""
        if content is None or not any(content):
            return "nothing that was written"
        if is_state:
            depth, prefix = 0, content[0]
            while prefix > 1:
                prefix = self.case.prefixes.parents[prefix]
                depth += 1
            others = {DRAFT: "the state after a wrong draft", MIXED: "parts of two states"}
            return others.get(content[0], f"the state after {depth} tokens")
        wrong = sum(have != want for have, want in zip(content, entry.content, strict=False))
        return f"other content in {wrong} of {len(entry.content)} slots"
