"""A trace: the ordered log of decisions that an engine took, and what the worker was told to do.

A trace is JSON lines: one ``Header``, then one JSON array per message, each an ordered list of
records. Records are arrays whose first element is the kind, so a line reads
``[["lookup","r1",…],["split","r1",…],…]``. They are deltas observed at the engine's own calls, in the
order in which the engine made them. All sizes are in tokens; block ids are the engine's, 0 is the
null block. Group numbers count ``Geometry.groups`` from 0.

The order within one step is: what happened before ``schedule()`` (``add``, ``abort``, ``reset``), the
decisions inside it (``lookup``, ``split``, ``allocate``, ``cache``, ``commit``, ``evict``, ``take``,
``touch``, ``free``, ``table``, ``preempt``), the ``step`` handed to the worker, and later, when its
output comes back, ``output`` followed by what that output caused.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from oracle.scenario import Scenario

TRACE_FORMAT_VERSION = 1
MODEL_LENGTH_MAX = 1 << 22
"""In tokens; stands for a context length that no request comes near."""

Tokens = Annotated[int, msgspec.Meta(ge=0, le=1 << 22)]
"""A number of tokens or a position."""
Unit = Annotated[int, msgspec.Meta(ge=1, le=1 << 22)]
"""A size in tokens that something is counted in."""
Block = Annotated[int, msgspec.Meta(ge=0, le=1 << 31)]
"""A block id."""
Number = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
"""A group's number, or a count."""


class Setup(msgspec.Struct, frozen=True, omit_defaults=False):
    """Facts about the built engine, read from its own objects once it stands.

    They are what the engine uses, not what was asked for: a build may turn a feature off.

    ``scheduler_block``: the least common multiple of the groups' block sizes. ``split_grid``: the
    grid of the Mamba split (the engine's ``cache_config.block_size``). ``alignment``: the unit in
    which the lookup grants hits. ``partial_hits``: hits inside a block are on. ``split``: the Mamba
    split is active. ``block_drop``: the EAGLE drop is on. ``lookahead_hash``: tokens a hash covers
    beyond its block. ``drop_groups``: per group, whether its own lookup drops (or peeks) a block.
    ``exact_junction``: the opt-in to stop at the exact junction. ``lookahead``: extra token slots
    each allocation adds for drafts. ``watermark_blocks``: blocks kept free at admission. ``zeroing``: the
    worker zeroes new blocks. ``checkpoint_alignment``: unit of the position at which the backend saves a
    state inside a chunk (0: it does not). ``model_length``: the context length, which no allocation goes beyond.
    """

    scheduler_block: Unit
    hash_block: Unit
    split_grid: Unit
    alignment: Unit
    partial_hits: bool
    split: bool
    block_drop: bool
    lookahead_hash: Tokens
    drop_groups: tuple[bool, ...]
    exact_junction: bool
    lookahead: Tokens
    retention: Tokens | None
    watermark_blocks: Number
    zeroing: bool
    checkpoint_alignment: Tokens
    model_length: Unit = MODEL_LENGTH_MAX


class Header(msgspec.Struct, frozen=True):
    """The first line of a trace.

    ``engine``: ``vllm`` or ``reference``. ``version``: of the build. ``runner``: the model-runner
    flavour, ``v1`` or ``v2``. ``missing``: decision points that this build does not have (they give no
    records, and rules that need them are not judged).
    """

    engine: str
    version: str
    runner: str
    setup: Setup
    scenario: Scenario
    missing: tuple[str, ...] = ()
    kvoracle_trace: int = TRACE_FORMAT_VERSION


class Record(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of all records; the tag is the first element of the array."""


class Add(Record, tag="add", frozen=True, array_like=True):
    """A request arrives. ``prompt`` are segments, ``output`` its stream, ``prompt_tokens`` the length."""

    request: str
    prompt: tuple[str, ...]
    output: str
    prompt_tokens: Tokens


class Lookup(Record, tag="lookup", frozen=True, array_like=True):
    """The engine looked a request up in its prefix cache.

    ``known``: tokens of the request at that time. ``hit``: the agreed hit. ``junction``: as returned (0:
    none). ``blocks``: per group the block ids that serve the hit, 0 where none is needed.
    """

    request: str
    known: Tokens
    hit: Tokens
    junction: Tokens
    blocks: tuple[tuple[Block, ...], ...]


class Split(Record, tag="split", frozen=True, array_like=True):
    """The Mamba split of one chunk: it starts at ``start``, ``asked`` tokens were wanted, ``granted`` given.

    ``junction`` is what the request carries at that time.
    """

    request: str
    start: Tokens
    asked: Tokens
    granted: Tokens
    known: Tokens
    prompt: Tokens
    junction: Tokens


class Allocate(Record, tag="allocate", frozen=True, array_like=True):
    """Blocks were asked for ``tokens`` new tokens after ``computed`` (hit included); granted or refused.

    ``hit`` is the part of ``computed`` that comes from the cache in this very call. ``promised``: free blocks that
    the engine counted for it when it decided (below zero where it has more than it needs); None if it does not tell.
    """

    request: str
    computed: Tokens
    tokens: Tokens
    hit: Tokens
    granted: bool
    promised: int | None = None


class Cache(Record, tag="cache", frozen=True, array_like=True):
    """A group was told that a request's first ``tokens`` tokens may enter the cache; its commits follow."""

    request: str
    group: Number
    tokens: Tokens


class Commit(Record, tag="commit", frozen=True, array_like=True):
    """A block got a hash. ``position``: tokens the hash stands for. ``digest``: first 6 bytes, an integer.

    ``request`` is the one whose tokens the hash was made from, empty when a hash moved between blocks.
    """

    request: str
    group: Number
    block: Block
    position: Tokens
    digest: int


class Evict(Record, tag="evict", frozen=True, array_like=True):
    """A block lost every hash that it had."""

    block: Block


class Take(Record, tag="take", frozen=True, array_like=True):
    """Blocks left the free list for a new owner; each now has one reference."""

    blocks: tuple[Block, ...]


class Touch(Record, tag="touch", frozen=True, array_like=True):
    """Cached blocks got one more reference each."""

    blocks: tuple[Block, ...]


class Free(Record, tag="free", frozen=True, array_like=True):
    """Blocks lost one reference each (null blocks are left out)."""

    blocks: tuple[Block, ...]


class Pin(Record, tag="pin", frozen=True, array_like=True):
    """Blocks got (+1) or lost (-1) a reference that no table holds, for a copy; a documented pin."""

    blocks: tuple[Block, ...]
    delta: int


class Table(Record, tag="table", frozen=True, array_like=True):
    """A request's block table in one group changed: from entry ``start`` on it is now ``blocks``.

    An empty table (``start`` 0, no blocks) means that the request holds nothing.
    """

    request: str
    group: Number
    start: Tokens
    blocks: tuple[Block, ...]


class Preempt(Record, tag="preempt", frozen=True, array_like=True):
    """A running request was preempted."""

    request: str


class Finish(Record, tag="finish", frozen=True, array_like=True):
    """A request ended: ``stopped``, ``length`` or ``aborted``."""

    request: str
    reason: str


class Reset(Record, tag="reset", frozen=True, array_like=True):
    """The prefix cache was asked to reset; ``done`` is the engine's answer. All hashes are gone if so."""

    done: bool


class Scheduled(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One request in a step, as the worker sees it.

    The worker computes ``tokens`` tokens at positions ``start`` …; the last ``drafts`` of them are draft
    tokens, ``accepted`` of which are right. ``samples``: the step ends with a sampled token.
    ``planned`` is the scheduler's own idea of ``start`` (it is ahead while drafts are in flight).
    ``blocks``: per group the block ids appended to the worker's table, or the whole table when
    ``fresh`` (a new or a resumed request).
    """

    request: str
    start: Tokens
    planned: Tokens
    tokens: Tokens
    drafts: Tokens
    accepted: Tokens
    samples: bool
    fresh: bool
    blocks: tuple[tuple[Block, ...], ...]


class Step(Record, tag="step", frozen=True, array_like=True):
    """``schedule()`` returned: what the worker executes, in the worker's order.

    ``finished`` and ``preempted`` requests are dropped first, then ``zero`` blocks are zeroed, then
    ``copies`` (source, destination) run as one gather and scatter, then the forward pass.
    """

    index: Number
    scheduled: tuple[Scheduled, ...]
    zero: tuple[Block, ...]
    copies: tuple[tuple[Block, Block], ...]
    preempted: tuple[str, ...]
    finished: tuple[str, ...]
    waiting: Number
    running: Number


class Output(Record, tag="output", frozen=True, array_like=True):
    """The output of step ``index`` reached the scheduler: per request the number of tokens it got."""

    index: Number
    sampled: tuple[tuple[str, Tokens], ...]


class Statistics(Record, tag="statistics", frozen=True, array_like=True):
    """The engine's own statistics of its prefix cache, as it reports them with a step's output and starts anew.

    What was counted since the last report; there is none where nothing was. ``requests``: lookups counted;
    ``queries``: tokens asked for in them; ``hits``: those found. ``preempted_…``: the same of requests that had been
    preempted before, which are not among the others. A trace without such records says nothing of statistics.
    """

    requests: Number
    queries: Tokens
    hits: Tokens
    preempted_requests: Number
    preempted_queries: Tokens
    preempted_hits: Tokens


class Snapshot(Record, tag="snapshot", frozen=True, array_like=True):
    """The whole state, now and then; the folded deltas must equal it.

    ``references``: (block, count) where not 0. ``free``: the free list, next to be taken first.
    ``cached``: (group, block, digest). ``tables``: (request, group, blocks).
    """

    references: tuple[tuple[int, int], ...]
    free: tuple[int, ...]
    cached: tuple[tuple[int, int, int], ...]
    tables: tuple[tuple[str, int, tuple[int, ...]], ...]


class End(Record, tag="end", frozen=True, array_like=True):
    """The scenario ran to its end. ``unfinished``: requests that never ended (the step limit was reached)."""

    steps: Number
    unfinished: tuple[str, ...]


class Crash(Record, tag="crash", frozen=True, array_like=True):
    """The engine did not get to the end. ``kind``: exception, hang, died or memory.

    ``where`` is the innermost engine function on the stack, ``message`` the first line of what it said.
    """

    kind: str
    where: str
    message: str


AnyRecord = (
    Add
    | Lookup
    | Split
    | Allocate
    | Cache
    | Commit
    | Evict
    | Take
    | Touch
    | Free
    | Pin
    | Table
    | Preempt
    | Finish
    | Reset
    | Step
    | Output
    | Statistics
    | Snapshot
    | End
    | Crash
)

records_decoder: msgspec.json.Decoder[list[AnyRecord]] = msgspec.json.Decoder(list[AnyRecord])
header_decoder = msgspec.json.Decoder(Header)
encoder = msgspec.json.Encoder()


def schemas() -> dict[str, Any]:
    """The JSON Schemas of the scenario document, the header line and a line of records."""
    return {
        "scenario": msgspec.json.schema(Scenario),
        "header": msgspec.json.schema(Header),
        "records": msgspec.json.schema(list[AnyRecord]),
    }
