"""The judge: one linear pass over a trace, from records to findings.

It follows the engine's free choices (which request first, which block) and keeps beside them a ghost of
GPU memory (``reference.worker``). Invariants are predicates that know no release; conformance (M rules)
compares with the reference under a policy. After a finding the judge adopts the engine's state and goes on.

What a clean verdict adds up to: *every judged trace of the engine is allowed by the reference* (tested,
here), and *the reference has the invariant for all inputs* (proved, in ``spec/``), hence the claim about
the engine, for the judged traces and no further.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from oracle import trace
from oracle.cache_index import Entry
from oracle.case import Case, RequestState
from oracle.check_commits import Window, check_cache_calls, close_window, mamba_tails, nothing_new, open_window
from oracle.check_lookup import check_lookup
from oracle.check_split import check_split
from oracle.ledger import Ledger
from oracle.validate import check
from oracle.verdict import Verdict
from reference.arithmetic import floor_to
from reference.rules import IDLE_STEPS_LIMIT
from reference.worker import UNWRITTEN, Chunk, Read

NEEDED_BY: dict[str, tuple[str, ...]] = {
    "lookup": ("L1", "L3", "M2", "M3", "R1", "R2"),
    "split": ("S1", "S2", "S3", "S4", "M1"),
    "allocate": ("A1", "A2", "M3", "R1", "R2"),
    "cache": ("M3", "R1", "R2"),
    "commit": ("C1", "L1", "M2", "M3", "R1", "R2", "A1", "A2"),
    "evict": ("C1", "C2", "L1", "M2", "M3", "R1", "R2", "A1", "A2"),
    "take": ("A1", "A2"),
    "touch": ("A1", "A2"),
    "free": ("A1", "A2"),
    "preempt": ("M3", "R1", "R2", "C2"),
}
"""Rules that cannot be judged without a decision point."""


class BadTrace(ValueError):
    """A trace that cannot be judged; the text is one line that says what is wrong and how to mend it."""


class Judge:
    """Judges one trace, record by record.

    ``release``: whose policy the build is compared with, None for invariants only. ``rules``: the ids to
    judge (None: all). Feed the records in order, then ``close()`` gives the verdict. A record that
    cannot follow what came before raises ``BadTrace``.
    """

    def __init__(self, header: trace.Header, release: str | None, rules: frozenset[str] | None = None) -> None:
        self.case = case = Case(header, release, rules)
        self.ledger = Ledger(case)
        self.window: Window | None = None
        self.idle_cache: trace.Cache | None = None
        self.pending: list[Entry] = []
        self.evicted: dict[tuple[int, int], Entry] = {}
        self.cache_calls: dict[str, dict[int, int]] = {}
        self.idle_steps = 0
        self.crashed = False
        self.ended = False
        self._handlers: dict[type, Callable[[Any], None]] = {
            trace.Add: self._add,
            trace.Lookup: self._lookup,
            trace.Split: self._split,
            trace.Allocate: self._allocate,
            trace.Cache: self._cache,
            trace.Commit: self._commit,
            trace.Evict: self._evict,
            trace.Take: lambda record: self.ledger.take(record.blocks),
            trace.Touch: lambda record: self.ledger.touch(record.blocks),
            trace.Free: lambda record: self.ledger.add(record.blocks, -1),
            trace.Pin: lambda record: self.ledger.add(record.blocks, record.delta),
            trace.Table: lambda record: self.ledger.table(self._request(record.request), record),
            trace.Preempt: self._preempt,
            trace.Finish: self._finish,
            trace.Reset: self._reset,
            trace.Step: self._step,
            trace.Output: self._output,
            trace.Snapshot: self._snapshot,
            trace.End: self._end,
            trace.Crash: self._crash,
        }
        self._leave_out(header)

    def _leave_out(self, header: trace.Header) -> None:
        """Rules that this build or this trace cannot be judged by, each with the reason."""
        case, reasons = self.case, self.case.verdict.unjudged
        for point in header.missing:
            for rule in NEEDED_BY.get(point, ()):
                reasons.setdefault(rule, f"this build has no decision point for {point}")
        if header.setup.checkpoint_alignment:
            for rule in ("S3", "C1", "C2", "M3", "R1", "R2"):
                reasons.setdefault(rule, "states saved inside a chunk are not modelled")
        if case.policy is None:
            for rule in ("M1", "M2", "M3", "R2", "S4"):
                reasons.setdefault(rule, "no policy: the build is judged by the invariants")
        elif not case.policy.allows_wide_blocks:
            reasons.setdefault("S4", "it holds from 0.27 on")
        case.rules -= reasons.keys()

    def feed(self, record: trace.AnyRecord) -> None:
        """Judge one record."""
        self.feed_all((record,))

    def feed_all(self, records: Iterable[trace.AnyRecord]) -> None:
        """Judge records in order."""
        case, handlers = self.case, self._handlers
        kind: type = trace.End
        try:
            for record in records:
                case.record += 1
                kind = type(record)
                if kind is not trace.Commit and kind is not trace.Evict:
                    self._close_window()
                handlers[kind](record)
        except BadTrace:
            raise
        except (IndexError, KeyError, ValueError, ZeroDivisionError) as error:
            raise BadTrace(
                f"record {case.record} ({kind.__name__.lower()}) does not fit what came before it "
                f"({type(error).__name__}: {error}); is it the trace of one engine, whole and in order?"
            ) from None

    def _close_window(self) -> None:
        """No further commit can belong to the last cache call."""
        self.idle_cache = None
        if self.window is not None:
            close_window(self.case, self.window)
            self.window = None

    def close(self) -> Verdict:
        """End of the trace."""
        self._close_window()
        verdict = self.case.verdict
        verdict.records = self.case.record + 1
        if self.ended or self.crashed:
            self.case.judged("P3")
        else:
            verdict.unjudged["end"] = "the trace breaks off before its end"
        return verdict

    def _request(self, name: str) -> RequestState:
        """The state of a request that was added before."""
        state = self.case.requests.get(name)
        if state is None:
            raise BadTrace(f"record {self.case.record} speaks of request {name!r}, which was never added")
        return state

    def _group(self, number: int) -> int:
        """A group's number, if the scenario has it."""
        if not 0 <= number < len(self.case.groups):
            raise BadTrace(
                f"record {self.case.record} speaks of group {number}; the scenario has {len(self.case.groups)} groups"
            )
        return number

    def _add(self, record: trace.Add) -> None:
        if record.request in self.case.requests:
            raise BadTrace(f"record {self.case.record} adds request {record.request!r} for a second time")
        ids = self.case.prefixes.of_prompt(record.prompt)
        if len(ids) - 1 != record.prompt_tokens:
            raise BadTrace(
                f"record {self.case.record} adds {record.request!r} with {record.prompt_tokens} prompt tokens; its "
                f"segments have {len(ids) - 1}"
            )
        state = RequestState(
            record.request, ids, record.output, record.prompt_tokens, record.prompt_tokens, len(self.case.groups)
        )
        state.mamba_tails = mamba_tails(self.case, state)
        self.case.requests[record.request] = state

    def _lookup(self, record: trace.Lookup) -> None:
        self._request(record.request).known = record.known
        check_lookup(self.case, record)

    def _split(self, record: trace.Split) -> None:
        self._request(record.request).granted = record.granted
        check_split(self.case, record)

    def _allocate(self, record: trace.Allocate) -> None:
        state = self._request(record.request)
        calls = self.cache_calls.pop(record.request, {})
        if not record.granted:
            self.case.cover("allocation refused")
        elif self.case.scenario.features.caching:
            check_cache_calls(self.case, state, record, calls)

    def _cache(self, record: trace.Cache) -> None:
        state = self._request(record.request)
        self.cache_calls.setdefault(record.request, {})[self._group(record.group)] = record.tokens
        # Most calls change nothing; a window is opened for those only if a commit comes all the same.
        if nothing_new(self.case, record, state):
            self.idle_cache = record
        else:
            self.window = open_window(self.case, record)

    def _commit(self, record: trace.Commit) -> None:
        self._group(record.group)
        entry = self._entry_of(record)
        if entry is None:
            return
        if record.request:
            self._note_commit(record)
        self.case.index.add(entry)
        self.pending.append(entry)

    def _note_commit(self, record: trace.Commit) -> None:
        """A block was hashed for a request: by the cache call that the window is of, or by none."""
        if self.window is None and self.idle_cache is not None:
            self.window = open_window(self.case, self.idle_cache)
        window = self.window
        if window is not None and (window.record.request, window.record.group) == (record.request, record.group):
            window.seen.add((record.position, record.block))
        elif self.case.judged("M3"):
            self.case.report(
                "M3",
                "commit",
                f"block {record.block} was hashed for {record.request} in {self.case.name(record.group)} outside of "
                "any call that may cache it",
                request=record.request,
                group=record.group,
                block=record.block,
            )

    def _entry_of(self, record: trace.Commit) -> Entry | None:
        """What the hash names: the tokens of the request it was made from, or what it named before it moved."""
        case = self.case
        if not record.request:
            moved = self.evicted.get((record.group, record.digest))
            if moved is None:
                case.verdict.unjudged["moved hash"] = "a hash came from nowhere that the trace shows"
                return None
            return Entry(
                record.group,
                record.block,
                moved.key,
                moved.position,
                record.digest,
                moved.content,
                moved.following,
            )
        spec = case.groups[record.group]
        state = self._request(record.request)
        reach = record.position + case.setup.lookahead_hash
        ids = case.grow_ids(state, max(reach, record.position + 1))
        named = case.index.names.setdefault(record.digest, (ids[reach], record.position))
        if named != (ids[reach], record.position) and case.judged("C1"):
            case.report(
                "C1",
                "commit",
                f"the hash given to block {record.block} in {case.name(record.group)} is called the first "
                f"{record.position} tokens of {record.request}, and was made from other tokens before",
                request=record.request,
                group=record.group,
                block=record.block,
            )
        first = floor_to(record.position - 1, spec.block)
        content = [ids[record.position]] if spec.kind == "mamba" else ids[first + 1 : record.position + 1]
        following = ids[record.position + 1] if state.known > record.position else 0
        return Entry(record.group, record.block, ids[reach], record.position, record.digest, content, following)

    def _evict(self, record: trace.Evict) -> None:
        self.case.cover("eviction")
        for entry in self.case.index.remove_block(record.block):
            self.evicted[entry.group, entry.digest] = entry

    def _preempt(self, record: trace.Preempt) -> None:
        self.case.cover("preemption")
        state = self._request(record.request)
        state.preemptions += 1
        state.cached = [0] * len(state.cached)
        state.computed = 0

    def _finish(self, record: trace.Finish) -> None:
        self.case.cover("abort" if record.reason == "aborted" else "finish")

    def _reset(self, record: trace.Reset) -> None:
        if record.done:
            self.case.cover("reset")
            self.case.index.clear()

    def _step(self, record: trace.Step) -> None:
        case = self.case
        case.step = record.index
        case.verdict.steps += 1
        self._check_limits(record)
        self._check_progress(record)
        self._run_worker(record)
        self._check_content()
        self.ledger.check("step")
        self.evicted.clear()
        for item in record.scheduled:
            state = self._request(item.request)
            self._check_chunk(item, state)
            state.computed = item.planned + item.tokens

    def _check_chunk(self, item: trace.Scheduled, state: RequestState) -> None:
        """S1, its second part: a step holds no more of a request than the split gave."""
        granted, state.granted = state.granted, None
        if granted is not None and item.tokens > granted:
            self.case.report(
                "S1",
                "step",
                f"the split gave {item.request} {granted} tokens from {item.planned}, and the step holds {item.tokens}",
                request=item.request,
                expected=f"at most {granted} tokens",
                actual=f"{item.tokens} tokens",
            )

    def _check_limits(self, record: trace.Step) -> None:
        """A3."""
        case = self.case
        limits = case.scenario.limits
        if not case.judged("A3"):
            return
        total = sum(item.tokens for item in record.scheduled)
        if total > limits.budget:
            case.report(
                "A3",
                "step",
                f"the step holds {total} tokens",
                expected=f"at most {limits.budget}",
                actual=total,
            )
        count = max(len(record.scheduled), record.running)
        if count > limits.sequences:
            case.report("A3", "step", f"{count} sequences run", expected=f"at most {limits.sequences}", actual=count)
        for item in record.scheduled:
            if item.tokens < 1 or item.start < 0 or not 0 <= item.accepted <= item.drafts < item.tokens:
                case.report(
                    "A3",
                    "step",
                    f"{item.request} is scheduled with {item.tokens} tokens from {item.start}, {item.drafts} of them "
                    f"drafts",
                    request=item.request,
                    expected="positive counts",
                    actual=f"{item.tokens} tokens, {item.drafts} drafts",
                )

    def _check_progress(self, record: trace.Step) -> None:
        """P1: some request advances in every ``IDLE_STEPS_LIMIT`` steps while one waits."""
        if record.scheduled or record.waiting + record.running == 0:
            self.idle_steps = 0
            return
        self.idle_steps += 1
        if self.case.judged("P1") and self.idle_steps == IDLE_STEPS_LIMIT:
            self.case.report(
                "P1",
                "step",
                f"{record.waiting} requests wait and {record.running} run, and none got a token in "
                f"{IDLE_STEPS_LIMIT} steps",
                expected="some request advances",
                actual="none does",
            )

    def _run_worker(self, record: trace.Step) -> None:
        """The step as the worker executes it, into the ghost; C2 for what it reads."""
        case, memory = self.case, self.case.memory
        memory.drop(record.finished)
        memory.drop(record.preempted)
        memory.zero(record.zero)
        if record.copies:
            case.cover("copy", len(record.copies))
            memory.copy(record.copies)
        chunks = []
        for item in record.scheduled:
            state = self._request(item.request)
            if item.fresh and state.preemptions:
                case.cover("resumed")
            if item.accepted:
                case.cover("draft accepted")
            if len(item.blocks) != len(case.groups):
                raise BadTrace(
                    f"record {case.record} gives {item.request!r} blocks of {len(item.blocks)} groups; the scenario "
                    f"has {len(case.groups)}"
                )
            if item.tokens < 1 or not 0 <= item.accepted <= item.drafts < item.tokens:
                continue  # A3 has reported it, and no worker could run it
            ids = case.grow_ids(state, item.start + item.tokens + 1)
            chunks.append(
                Chunk(
                    item.request,
                    item.start,
                    item.tokens,
                    item.drafts,
                    item.accepted,
                    item.fresh,
                    item.blocks,
                    ids,
                )
            )
        if chunks:
            case.judged("C2")
            memory.forward(chunks, self._report_read)

    def _report_read(self, read: Read) -> None:
        """C2: a read that did not find its content."""
        case = self.case
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

    def _check_content(self) -> None:
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
        case.memory.adopt(entry.group, entry.block, 0, entry.content)
        case.memory.written.discard(entry.block)

    def _words(self, content: list[int] | None, entry: Entry, is_state: bool) -> str:
        """What a block holds, in words."""
        if content is None or not any(content):
            return "nothing that was written"
        if is_state:
            depth, prefix = 0, content[0]
            while prefix > 1:
                prefix = self.case.prefixes.parents[prefix]
                depth += 1
            return f"the state after {depth} tokens" if content[0] > 0 else "the state after a wrong draft"
        wrong = sum(have != want for have, want in zip(content, entry.content, strict=False))
        return f"other content in {wrong} of {len(entry.content)} slots"

    def _output(self, record: trace.Output) -> None:
        for request, tokens in record.sampled:
            self._request(request).known += tokens

    def _snapshot(self, record: trace.Snapshot) -> None:
        """The folded deltas must equal the whole state; A1, as the trace's own cross-check."""
        self.case.cover("snapshot")
        difference = self.ledger.compare(record)
        if self.case.judged("A1") and difference:
            self.case.report("A1", "snapshot", f"the state is not what the deltas add up to: {difference}")

    def _end(self, record: trace.End) -> None:
        self.ended = True
        self.ledger.check("end")
        self._check_content()
        if self.case.judged("P1") and record.unfinished:
            self.case.report(
                "P1",
                "step",
                f"after {record.steps} steps {', '.join(record.unfinished)} had not ended",
                request=record.unfinished[0],
                expected="every request ends",
                actual=f"{len(record.unfinished)} never did",
            )

    def _crash(self, record: trace.Crash) -> None:
        self.crashed = True
        self.case.report(
            "P3",
            f"{record.kind} {record.where}".strip(),
            f"the engine ended with {record.kind}: {record.message}",
            expected="the scenario runs to its end",
            actual=record.kind,
        )


def judge_lines(lines: Iterable[bytes], release: str | None, rules: frozenset[str] | None = None) -> Verdict:
    """Judge a trace from its JSON lines, header first.

    Raises ``BadTrace`` with one clear line for a trace that is empty, malformed or of another version.
    """
    lines = iter(lines)
    first = next(lines, None)
    if first is None:
        raise BadTrace("the trace is empty: it needs a header line and lines of records")
    judge = Judge(read_header(first), release, rules)
    for number, line in enumerate(lines, 2):
        try:
            records = trace.records_decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadTrace(
                f"line {number} of the trace is no list of records ({error}); was the file cut off?"
            ) from None
        judge.feed_all(records)
    return judge.close()


def read_header(line: bytes) -> trace.Header:
    """The header line, or ``BadTrace``."""
    try:
        header = trace.header_decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadTrace(f"the first line is no trace header ({error}); `kvoracle schema` prints the format") from None
    if header.kvoracle_trace != trace.TRACE_FORMAT_VERSION:
        raise BadTrace(
            f"the trace has format {header.kvoracle_trace}, this kvoracle reads {trace.TRACE_FORMAT_VERSION}: "
            "record it again, or judge it with the version that wrote it"
        )
    if reasons := [*check(header.scenario), *_setup_reasons(header)]:
        raise BadTrace(f"the header describes no engine that can run: {reasons[0]}; record the trace again")
    return header


def _setup_reasons(header: trace.Header) -> list[str]:
    """What is wrong with the facts of a header beside its scenario."""
    setup, groups = header.setup, header.scenario.geometry.groups
    reasons = []
    if len(setup.drop_groups) != len(groups):
        reasons.append(f"setup.drop_groups has {len(setup.drop_groups)} entries for {len(groups)} groups")
    if any(group.block % setup.hash_block for group in groups):
        reasons.append(f"setup.hash_block is {setup.hash_block}, which does not divide every block")
    if any(setup.scheduler_block % group.block for group in groups):
        reasons.append(f"setup.scheduler_block is {setup.scheduler_block}, no multiple of every block")
    return reasons
