"""A scenario: one self-contained document that says what an engine is to be given, step by step.

Sizes are in tokens unless a name says otherwise. The same scenario on the same build gives the same
decisions, always: token values, sampled tokens and accepted drafts are all named here, none is drawn
while an engine runs.

Prompts are lists of *segments*. ``"sys:48"`` is the first 48 tokens of the token stream called ``sys``;
two prompts share exactly the leading segments that they spell alike. A request's own output is a
stream too (``Request.output``, by default the request's id), so ``["sys:48", "r0:5"]`` extends the
prompt ``["sys:48"]`` of request ``r0`` by the first five tokens that ``r0`` generates.
"""

from __future__ import annotations

from typing import Literal

import msgspec

SCENARIO_FORMAT_VERSION = 1

GroupKind = Literal["full", "swa", "mamba", "chunked"]


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One KV-cache group: layers that share a block table.

    ``block`` is the group's block size in tokens. ``window`` is the attention window in tokens
    (``swa`` only). ``eagle`` marks the group that holds the draft model's layers; when drafts are on
    and no group is marked, the engine treats every group as marked. ``checkpoint`` (``mamba`` only): the backend saves
    a state inside a prefill chunk, at a position that lies a multiple of so many tokens after its start (0: it saves
    none). Which position that is, is the release's; the scheduler reserves a block for it (``reference.exports``).
    ``attention_chunk`` (``chunked`` only): the size in tokens of the chunks that chunked-local attention is local to,
    which follow one another from the first token on. A token attends to those before it in its own one.
    """

    kind: GroupKind
    block: int
    window: int | None = None
    eagle: bool = False
    checkpoint: int = 0
    attention_chunk: int | None = None


class Geometry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The cache: its groups, the unit in which prompts are hashed, the blocks of the one shared pool.

    ``blocks`` counts the pool's blocks as the engine does: block 0, the null block, is one of them.
    """

    groups: tuple[Group, ...]
    hash_block: int
    blocks: int


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What one step may hold.

    ``budget`` is the token budget of a step, ``sequences`` the number of requests that may run at
    once, ``long_prefill_threshold`` the most tokens one prefill may take from a step (0: no limit).
    """

    budget: int
    sequences: int
    long_prefill_threshold: int = 0

    @property
    def room(self) -> int:
        """The most tokens one chunk can get: the budget, or a smaller long-prefill threshold."""
        return min(self.budget, self.long_prefill_threshold or self.budget)


class Features(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Which features of the engine are on.

    ``drafts`` is the number of draft tokens a step proposes per request (0: no EAGLE).
    ``retention`` is the retention interval: None dense, 0 boundaries only, n > 0 one tail per n tokens.
    ``partial_hits`` asks for hits at hash-block granularity (``Geometry.hash_block`` is the unit).
    ``lookahead_hashes`` False asks a build that has lookahead hashes (0.33) for the older EAGLE block
    drop; True is that build's default. It says nothing to earlier builds.
    ``async_depth`` is the number of steps in flight: 0 for the synchronous scheduler, 1 or 2 for the
    asynchronous one (the number of steps scheduled whose output the scheduler has not yet seen).
    ``exact_junction`` asks for the opt-in of later releases to stop at, and keep the state of, a junction inside a
    block; they grant it with hits inside blocks and under the EAGLE drop only, so not with hashes that look ahead
    (``Setup.exact_junction`` says whether it is on).
    ``watermark`` is the share of the pool kept free at admission. ``reserve_full_sequence`` admits a
    request only if its whole sequence fits.
    ``runner`` is the flavour of the model runner that the scheduler works for. ``v2`` hears of a resumed request as
    of a new one, and keeps its drafts to itself: the scheduler only sees how many there are.
    """

    caching: bool = True
    drafts: int = 0
    retention: int | None = None
    partial_hits: bool = False
    lookahead_hashes: bool = True
    exact_junction: bool = False
    policy: Literal["fcfs", "priority"] = "fcfs"
    async_depth: int = 0
    watermark: float = 0.0
    reserve_full_sequence: bool = True
    runner: Literal["v1", "v2"] = "v1"


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One request.

    ``prompt`` is a list of segments (module docstring). ``max_output`` is the number of tokens that
    end it. ``accept`` says how many drafts are right at each of its verifying steps, in turn, cycled;
    a number above what was proposed means all of them. ``priority``: smaller runs first. ``skips_lookup``: the
    engine takes nothing from its prefix cache for it, as where every prompt token's output is asked for (prompt
    log probabilities, pooling over all tokens); what it computes is cached all the same.
    """

    id: str
    prompt: tuple[str, ...]
    max_output: int = 1
    output: str = ""
    accept: tuple[int, ...] = (0,)
    priority: int = 0
    skips_lookup: bool = False

    @property
    def output_stream(self) -> str:
        """The name of the stream that the request's sampled tokens are taken from."""
        return self.output or self.id


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Events of one step; ``at`` counts calls of the engine's ``schedule()``, from 0.

    Order within a step: ``reset`` (the prefix cache is reset), ``abort``, ``add``, then
    ``schedule()``, then ``abort_in_flight`` (between schedule and the output that it causes).
    """

    at: int
    add: tuple[Request, ...] = ()
    abort: tuple[str, ...] = ()
    abort_in_flight: tuple[str, ...] = ()
    reset: bool = False


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The whole document. After the last listed step the engine runs on until every request ended."""

    geometry: Geometry
    limits: Limits
    steps: tuple[Step, ...]
    features: Features = Features()
    kvoracle_scenario: int = SCENARIO_FORMAT_VERSION
    note: str = ""

    def requests(self) -> list[Request]:
        """All requests, in the order in which they are added."""
        return [request for step in self.steps for request in step.add]
