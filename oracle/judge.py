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
from oracle.case import BadTrace, Case, RequestState
from oracle.cells import cells
from oracle.check_admission import Admission
from oracle.check_asked import Asked
from oracle.check_commits import Window, check_cache_calls, close_window, mamba_tails, nothing_new, open_window
from oracle.check_content import Content
from oracle.check_holdings import Holdings
from oracle.check_lookup import check_lookup
from oracle.check_retention import check_prefill
from oracle.check_reuse import Reuse
from oracle.check_split import check_split
from oracle.check_statistics import StatisticsCheck
from oracle.check_step import Progress, check_chunk, check_limits
from oracle.forgetting import Forgetting
from oracle.ledger import Ledger
from oracle.validate import check, segment_tokens
from oracle.verdict import Verdict

__all__ = ["NEEDED_BY", "BadTrace", "Judge", "judge_lines", "read_header"]

COURSE = ("S2", "S3", "S4", "S5", "S6", "S8")
"""Rules about where a prefill's chunks end."""
RETENTION = ("R1", "R2", "R3", "R4", "R5", "R6")

NEEDED_BY: dict[str, tuple[str, ...]] = {
    "lookup": ("L1", "L2", "L3", "U1", "U3", "M2", "M3", "M4", "M5", "T1", *RETENTION),
    "split": ("S1", *COURSE, "U1", "M1"),
    "allocate": ("A1", "A2", "P2", "X2", "M1", "M3", "M4", "M5", "T1", *RETENTION),
    "cache": ("M3", "M4", "M5", *RETENTION),
    "commit": ("C1", "L1", "L2", "U1", "U3", "M2", "M3", "M4", "M5", *RETENTION, "A1", "A2"),
    "evict": ("C1", "C2", "L1", "L2", "U1", "U3", "M2", "M3", "M4", "M5", *RETENTION, "A1", "A2"),
    "take": ("A1", "A2", "X2", "M4", "M5"),
    "touch": ("A1", "A2", "X2", "M4", "M5"),
    "free": ("A1", "A2", "X2", "M4", "M5"),
    "preempt": ("M1", "M3", *RETENTION, "U1", "U3", "C2", "P2", "M4", "M5", "T1"),
    "statistics": ("T1",),
}
"""Rules that cannot be judged without a decision point."""


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
        self.content = Content(case)
        self.progress = Progress(case)
        self.reuse = Reuse(case)
        self.statistics = StatisticsCheck(case)
        self.forgetting = Forgetting(case, self.content, self.progress, self.reuse)
        self.holdings = None if case.policy is None else Holdings(case, case.policy)
        self.admission = Admission(case, self.ledger, self.holdings)
        self.asked = Asked(case, self.progress)
        self.crashed = False
        self.ended = False
        self._leave_out(header)

    def _leave_out(self, header: trace.Header) -> None:
        """Rules that this build or this trace cannot be judged by, each with the reason."""
        case, reasons = self.case, self.case.verdict.unjudged
        for point in header.missing:
            for rule in NEEDED_BY.get(point, ()):
                reasons.setdefault(rule, f"this build has no decision point for {point}")
        if header.setup.checkpoint_alignment:
            for rule in (*COURSE, "C1", "C2", "R1", "U1", "U3", "X2") if case.policy is None else ():
                reasons.setdefault(rule, "no policy: which states are saved inside a chunk is the release's")
        if case.reservations is not None and header.setup.block_drop and not header.setup.checkpoint_alignment:
            # 0.29 under EAGLE: its split counts on no saved state, and its cache reserves blocks for them all the same.
            for rule in ("C1", "C2"):
                reasons.setdefault(
                    rule, "what a backend saves inside a chunk that the split did not count on is not known"
                )
        if any(group.kind == "swa" and group.window == 1 for group in case.groups):
            for rule in ("L2", "U1", "U3"):
                reasons.setdefault(rule, "a window of one token reads no block, and every release looks for one")
        if case.policy is None:
            for rule in ("M1", "M2", "M3", "M4", "M5", "S4", "S6", "S8", *RETENTION[1:]):
                reasons.setdefault(rule, "no policy: the build is judged by the invariants")
        elif not case.policy.allows_wide_blocks:
            reasons.setdefault("S4", "it holds from 0.27 on")
        case.rules = case.rules.difference(reasons)

    def feed_all(self, records: Iterable[trace.AnyRecord]) -> None:
        """Judge records in order."""
        case, handlers = self.case, _HANDLERS
        # A call that the engine did not come back from may not have hashed all that it would have.
        commit, evict, crash = trace.Commit, trace.Evict, trace.Crash
        kind: type = trace.End
        try:
            for record in records:
                case.record += 1
                kind = type(record)
                if kind is not commit and kind is not evict:
                    self.idle_cache = None
                    if self.window is not None and kind is not crash:
                        close_window(case, self.window)
                    self.window = None
                handlers[kind](self, record)
        except BadTrace:
            raise
        except (IndexError, KeyError, ValueError, ZeroDivisionError) as error:
            raise BadTrace(
                f"record {case.record} ({kind.__name__.lower()}) does not fit what came before it "
                f"({type(error).__name__}: {error}); is it the trace of one engine, whole and in order?"
            ) from None

    def close(self) -> Verdict:
        """End of the trace. Where it breaks off, nobody knows whether the last cache call was over."""
        verdict = self.case.verdict
        verdict.records = self.case.record + 1
        for cell in cells(self.case.header, verdict.coverage):
            self.case.cover(cell)
        if self.ended or self.crashed:
            self.case.judged("P3")
        else:
            verdict.unjudged["end"] = "the trace breaks off before its end"
        verdict.judged = {rule: tally.times for rule, tally in self.case.tallies.items()}
        return verdict

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
        lengths = [segment_tokens(segment) for segment in record.prompt]
        if 0 in lengths or sum(lengths) != record.prompt_tokens:
            raise BadTrace(
                f"record {self.case.record} adds {record.request!r} with {record.prompt_tokens} prompt tokens; its "
                f"segments, each 'name:n', have {lengths}"
            )
        ids = self.case.prefixes.of_prompt(record.prompt)
        state = RequestState(
            record.request, ids, record.output, record.prompt_tokens, record.prompt_tokens, len(self.case.groups)
        )
        state.mamba_tails = mamba_tails(self.case, state)
        self.case.requests[record.request] = state
        self.progress.add(record.request)

    def _lookup(self, record: trace.Lookup) -> None:
        state = self.case.request(record.request)
        state.known = record.known
        junction = check_lookup(self.case, record)
        self.admission.look_up(record)
        self.reuse.look_up(record, state, junction)
        self.statistics.look_up(record)

    def _split(self, record: trace.Split) -> None:
        state = self.case.request(record.request)
        state.granted, state.chunk = record.granted, (record.start, record.start + record.granted)
        check_split(self.case, record)
        self.asked.split(record)
        self.reuse.split(record)

    def _allocate(self, record: trace.Allocate) -> None:
        state = self.case.request(record.request)
        told, state.told = state.told, {}
        if not record.granted:
            self.case.cover("allocation refused")
            self.progress.refuse(record.request)
        else:
            self.statistics.admit(record, state)
            if self.case.scenario.features.caching:
                check_cache_calls(self.case, state, record, told)
        self.admission.allocate(record, state)
        self.asked.allocate(record, state)

    def _cache(self, record: trace.Cache) -> None:
        state, group = self.case.request(record.request), self._group(record.group)
        state.told[group] = tokens = record.tokens
        if self.holdings is not None and self.case.groups[group].kind == "mamba":
            self.holdings.cache(state, group, tokens)
        # Most calls change nothing; a window is opened for those only if a commit comes all the same.
        if nothing_new(self.case, record, state):
            self.idle_cache = record
        else:
            self.window = open_window(self.case, record)

    def _commit(self, record: trace.Commit) -> None:
        self._group(record.group)
        self.admission.commit(record)
        entry = self.content.entry_of(record)
        if entry is None:
            return
        if record.request:
            self._note_commit(record)
        self.case.index.add(entry)
        self.content.pending.append(entry)

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

    def _evict(self, record: trace.Evict) -> None:
        self.case.cover("eviction")
        entries = self.case.index.remove_block(record.block)
        for entry in entries:
            self.content.evicted[entry.group, entry.digest] = entry
        self.reuse.evict(entries)

    def _take(self, record: trace.Take) -> None:
        self.ledger.take(record.blocks)
        self.admission.take(record.blocks)
        if self.holdings is not None:
            self.holdings.taken.extend(record.blocks)

    def _touch(self, record: trace.Touch) -> None:
        self.admission.touch(record.blocks)
        self.ledger.touch(record.blocks)

    def _free(self, record: trace.Free) -> None:
        self.ledger.add(record.blocks, -1)
        if self.holdings is not None:
            self.holdings.free(record.blocks)

    def _pin(self, record: trace.Pin) -> None:
        self.ledger.add(record.blocks, record.delta)

    def _table(self, record: trace.Table) -> None:
        self.ledger.table(self.case.request(record.request), record)
        if self.holdings is not None:
            self.holdings.table(record)

    def _preempt(self, record: trace.Preempt) -> None:
        self.case.cover("preemption")
        state = self.case.request(record.request)
        if self.holdings is not None:
            self.holdings.release(state)
        state.preemptions += 1
        state.start_over()
        self.reuse.leave(record.request)
        self.progress.preempt(record.request)
        self.asked.preempt(record.request)

    def _finish(self, record: trace.Finish) -> None:
        self.case.cover("abort" if record.reason == "aborted" else "finish")
        if self.holdings is not None:
            self.holdings.release(self.case.request(record.request))
        self.progress.finish(record.request)
        self.asked.finish(record.request)
        self.reuse.leave(record.request)
        self.statistics.leave(record.request)
        self.forgetting.finish(record.request)

    def _reset(self, record: trace.Reset) -> None:
        self.ledger.free_list.reset(done=record.done)
        if record.done:
            self.case.cover("reset")
            self.case.index.clear()
            self.reuse.reset()

    def _step(self, record: trace.Step) -> None:
        case = self.case
        case.step = record.index
        case.verdict.steps += 1
        total = sum([item.tokens for item in record.scheduled])
        check_limits(case, record, total)
        self.progress.check(record, total)
        self.admission.step(record)
        self.asked.step(record)
        if self.holdings is not None:
            self.holdings.step(record)
        self.content.run_worker(record)
        self.content.check()
        self.ledger.check("step")
        self.content.evicted.clear()
        for item in record.scheduled:
            state = self.case.request(item.request)
            check_chunk(case, item, state)
            before, state.computed = state.computed, item.planned + item.tokens
            if before < state.prompt <= state.computed:
                check_prefill(case, state)
        self.reuse.step(record)
        self.forgetting.step()

    def _output(self, record: trace.Output) -> None:
        self.admission.output(record)
        self.asked.output(record)
        if self.holdings is not None:
            self.holdings.flush()
        for request, tokens in record.sampled:
            self.case.request(request).known += tokens

    def _statistics(self, record: trace.Statistics) -> None:
        self.statistics.report(record)

    def _snapshot(self, record: trace.Snapshot) -> None:
        """The folded deltas must equal the whole state; A1, as the trace's own cross-check."""
        self.case.cover("snapshot")
        difference = self.ledger.compare(record)
        if self.case.judged("A1") and difference:
            self.case.report("A1", "snapshot", f"the state is not what the deltas add up to: {difference}")

    def _end(self, record: trace.End) -> None:
        self.ended = True
        if self.holdings is not None:
            self.holdings.check_due()
        self.ledger.check("end")
        self.content.check()
        self.progress.end(record)
        self.statistics.end()

    def _crash(self, record: trace.Crash) -> None:
        self.crashed = True
        self.case.report(
            "P3",
            f"{record.kind} {record.where}".strip(),
            f"the engine ended with {record.kind}: {record.message}",
            expected="the scenario runs to its end",
            actual=record.kind,
        )


# Not bound to a judge: it would then be part of a cycle, and its memory wait for the garbage collector.
_HANDLERS: dict[type, Callable[[Judge, Any], None]] = {
    trace.Add: Judge._add,
    trace.Lookup: Judge._lookup,
    trace.Split: Judge._split,
    trace.Allocate: Judge._allocate,
    trace.Cache: Judge._cache,
    trace.Commit: Judge._commit,
    trace.Evict: Judge._evict,
    trace.Take: Judge._take,
    trace.Touch: Judge._touch,
    trace.Free: Judge._free,
    trace.Pin: Judge._pin,
    trace.Table: Judge._table,
    trace.Preempt: Judge._preempt,
    trace.Finish: Judge._finish,
    trace.Reset: Judge._reset,
    trace.Step: Judge._step,
    trace.Output: Judge._output,
    trace.Statistics: Judge._statistics,
    trace.Snapshot: Judge._snapshot,
    trace.End: Judge._end,
    trace.Crash: Judge._crash,
}


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
    if reasons := check(header.scenario) or _setup_reasons(header):
        raise BadTrace(f"the header describes no engine that can run: {reasons[0]}; record the trace again")
    return header


def _setup_reasons(header: trace.Header) -> list[str]:
    """What is wrong with the facts of a header beside its scenario, which is one that can run."""
    setup, groups = header.setup, header.scenario.geometry.groups
    reasons = []
    if len(setup.drop_groups) != len(groups):
        reasons.append(f"setup.drop_groups has {len(setup.drop_groups)} entries for {len(groups)} groups")
    if any(group.block % setup.hash_block for group in groups):
        reasons.append(f"setup.hash_block is {setup.hash_block}, which does not divide every block")
    if any(setup.scheduler_block % group.block for group in groups):
        reasons.append(f"setup.scheduler_block is {setup.scheduler_block}, no multiple of every block")
    return reasons
