"""A scenario that cannot run is refused with its reason; a document that is no scenario, with one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from oracle.scenario import Scenario
from oracle.validate import MAX_REQUESTS, BadScenario, blocks_needed, check, decode_scenario

FULL = {"kind": "full", "block": 4}
MAMBA = {"kind": "mamba", "block": 4}
SWA = {"kind": "swa", "block": 4, "window": 8}
CHUNKED = {"kind": "chunked", "block": 4, "attention_chunk": 8}


def request(**changes: Any) -> dict[str, Any]:
    return {"id": "r0", "prompt": ["sys:8"], **changes}


def document(**changes: Any) -> dict[str, Any]:
    """The smallest scenario, with changes: top-level fields replace, ``geometry.x`` style ones go inside."""
    base: dict[str, Any] = {
        "geometry": {"groups": [FULL], "hash_block": 4, "blocks": 32},
        "limits": {"budget": 8, "sequences": 2},
        "features": {},
        "steps": [{"at": 0, "add": [request()]}],
    }
    for name, value in changes.items():
        section, _, field = name.partition("_in_")
        if field:
            base[field][section] = value
        else:
            base[name] = value
    return base


def scenario(**changes: Any) -> Scenario:
    return msgspec.convert(document(**changes), Scenario)


def one(**changes: Any) -> list[dict[str, Any]]:
    """Steps with a single request that differs from the smallest one."""
    return [{"at": 0, "add": [request(**changes)]}]


# What is changed, and a part of the reason that must be the only one given.
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no groups": ({"groups_in_geometry": []}, "has 0 groups"),
    "block 0": ({"groups_in_geometry": [{"kind": "full", "block": 0}]}, "block is 0"),
    "block absurd": ({"groups_in_geometry": [{"kind": "full", "block": 10**9}]}, "block is 1000000000"),
    "blocks of an absurd common multiple": (
        {"groups_in_geometry": [{**FULL, "block": 4_001}, {**SWA, "block": 4_003}], "hash_block_in_geometry": 1},
        "least common multiple of the blocks is 16016003",
    ),
    "window missing": ({"groups_in_geometry": [{"kind": "swa", "block": 4}]}, "window is missing"),
    "window 0": ({"groups_in_geometry": [{**SWA, "window": 0}]}, "window is 0"),
    "window absurd": ({"groups_in_geometry": [{**SWA, "window": 10**9}]}, "window is 1000000000"),
    "window on full": ({"groups_in_geometry": [{**FULL, "window": 8}]}, "window is set"),
    "window on mamba": ({"groups_in_geometry": [{**MAMBA, "window": 8}]}, "window is set"),
    "attention chunk missing": ({"groups_in_geometry": [FULL, {"kind": "chunked", "block": 4}]}, "chunk is None"),
    "attention chunk 0": ({"groups_in_geometry": [FULL, {**CHUNKED, "attention_chunk": 0}]}, "attention_chunk is 0"),
    "attention chunk absurd": (
        {"groups_in_geometry": [FULL, {**CHUNKED, "attention_chunk": 10**9}]},
        "attention_chunk is 1000000000",
    ),
    "attention chunk off the block": (
        {"groups_in_geometry": [FULL, {**CHUNKED, "attention_chunk": 6}]},
        "a multiple of its block",
    ),
    "attention chunk on a window": (
        {"groups_in_geometry": [FULL, {**SWA, "attention_chunk": 8}]},
        "attention_chunk is set",
    ),
    "window on chunked": ({"groups_in_geometry": [FULL, {**CHUNKED, "window": 8}]}, "window is set"),
    "chunked off the unit of hits": (
        {"groups_in_geometry": [{**FULL, "block": 8}, CHUNKED]},
        "in units of 8 tokens",
    ),
    "chunked off the unit of fine hits": (
        {
            "groups_in_geometry": [FULL, MAMBA, {**CHUNKED, "block": 2}, SWA],
            "hash_block_in_geometry": 2,
            "partial_hits_in_features": True,
        },
        "in units of 4 tokens",
    ),
    "states saved by full": ({"groups_in_geometry": [{**FULL, "checkpoint": 1}]}, "checkpoint is set"),
    "states saved in no unit": ({"groups_in_geometry": [FULL, {**MAMBA, "checkpoint": 3}]}, "checkpoint is 3"),
    "eagle without drafts": ({"groups_in_geometry": [{**FULL, "eagle": True}]}, "eagle is set"),
    "hash block 0": ({"hash_block_in_geometry": 0}, "hash_block is 0"),
    "hash block divides nothing": ({"hash_block_in_geometry": 3}, "does not divide"),
    "hash block above the block": ({"hash_block_in_geometry": 8}, "does not divide"),
    "hash block divides one group": (
        {
            "groups_in_geometry": [FULL, {**MAMBA, "block": 6}],
            "hash_block_in_geometry": 4,
            "partial_hits_in_features": True,
        },
        "does not divide",
    ),
    "finer without partial hits, one group": ({"hash_block_in_geometry": 2}, "its block"),
    "finer without partial hits": (
        {"groups_in_geometry": [FULL, MAMBA], "hash_block_in_geometry": 2},
        "greatest common divisor",
    ),
    "partial hits, no mamba": (
        {"groups_in_geometry": [FULL, SWA], "hash_block_in_geometry": 2, "partial_hits_in_features": True},
        "without a Mamba group",
    ),
    "partial hits, mamba alone": (
        {"groups_in_geometry": [MAMBA], "hash_block_in_geometry": 2, "partial_hits_in_features": True},
        "with one group",
    ),
    "partial hits, mamba not wider": (
        {"groups_in_geometry": [FULL, MAMBA], "partial_hits_in_features": True},
        "no Mamba block is wider",
    ),
    "blocks 1": ({"blocks_in_geometry": 1}, "geometry.blocks is 1"),
    "blocks absurd": ({"blocks_in_geometry": 10**9}, "geometry.blocks is 1000000000"),
    "too few blocks": ({"blocks_in_geometry": 2}, "the longest request alone can need 3"),
    "budget 0": ({"budget_in_limits": 0}, "budget is 0"),
    "budget absurd": ({"budget_in_limits": 10**20}, "budget is 100000000000000000000"),
    "retention absurd": (
        {"groups_in_geometry": [FULL, SWA], "retention_in_features": 4 * 10**8},
        "retention is 400000000",
    ),
    "sequences 0": ({"sequences_in_limits": 0}, "sequences is 0"),
    "budget below sequences": ({"sequences_in_limits": 9}, "below limits.sequences"),
    "threshold negative": ({"long_prefill_threshold_in_limits": -1}, "threshold is -1"),
    "drafts negative": ({"drafts_in_features": -1}, "drafts is -1"),
    "async depth 3": ({"async_depth_in_features": 3}, "async_depth is 3"),
    "async depth negative": ({"async_depth_in_features": -1}, "async_depth is -1"),
    "watermark 1": ({"watermark_in_features": 1.0}, "watermark is 1.0"),
    "watermark negative": ({"watermark_in_features": -0.1}, "watermark is -0.1"),
    "exact junction, no drafts": ({"exact_junction_in_features": True}, "exact_junction is set without drafts"),
    "exact junction, whole blocks": (
        {"groups_in_geometry": [FULL, MAMBA], "drafts_in_features": 1, "exact_junction_in_features": True},
        "or without hits inside a block",
    ),
    "retention negative": ({"retention_in_features": -4}, "retention is -4"),
    "retention off the block": (
        {"groups_in_geometry": [FULL, MAMBA], "retention_in_features": 6},
        "not a multiple of the scheduler block, 4",
    ),
    "retention off the common block": (
        {
            "groups_in_geometry": [FULL, {**MAMBA, "block": 6}],
            "hash_block_in_geometry": 2,
            "retention_in_features": 6,
        },
        "not a multiple of the scheduler block, 12",
    ),
    "retention, full and chunked": (
        {"groups_in_geometry": [FULL, CHUNKED], "retention_in_features": 4},
        "without a sliding-window or Mamba group",
    ),
    "retention, full only": ({"retention_in_features": 4}, "without a sliding-window or Mamba group"),
    "mamba without caching": (
        {"groups_in_geometry": [FULL, MAMBA], "caching_in_features": False},
        "caching is off with a Mamba group",
    ),
    "no steps": ({"steps": []}, "steps is empty"),
    "no requests": ({"steps": [{"at": 0}]}, "no step adds a request"),
    "too many requests": (
        {"steps": [{"at": 0, "add": [request(id=f"r{n}") for n in range(MAX_REQUESTS + 1)]}]},
        "at most 4096",
    ),
    "step twice": ({"steps": [*one(), {"at": 0}]}, "two steps have at=0"),
    "steps unordered": (
        {"steps": [{"at": 3, "add": [request()]}, {"at": 1}]},
        "at=1 comes after at=3",
    ),
    "step negative": ({"steps": [{"at": -1, "add": [request()]}]}, "at=-1"),
    "request twice": ({"steps": [*one(), {"at": 1, "add": [request()]}]}, "added twice"),
    "id empty": ({"steps": one(id="")}, "its id is no name"),
    "id with a colon": ({"steps": one(id="a:b")}, "its id is no name"),
    "output stream": ({"steps": one(output="a b")}, "no stream name"),
    "prompt empty": ({"steps": one(prompt=[])}, "the prompt is empty"),
    "segment without length": ({"steps": one(prompt=["sys"])}, "segment 'sys'"),
    "segment of 0": ({"steps": one(prompt=["sys:0"])}, "segment 'sys:0'"),
    "segment negative": ({"steps": one(prompt=["sys:-1"])}, "segment 'sys:-1'"),
    "segment without name": ({"steps": one(prompt=[":4"])}, "segment ':4'"),
    "segment with a space": ({"steps": one(prompt=["sys: 4"])}, "segment 'sys: 4'"),
    "segment with a newline": ({"steps": one(prompt=["sys:4\n"])}, "segment 'sys:4\\n'"),
    "segment with other digits": ({"steps": one(prompt=["sys:٤"])}, "segment 'sys:٤'"),
    "segment absurd": ({"steps": one(prompt=["sys:" + "9" * 5000])}, "segment 'sys:999"),
    "prompt too long": ({"steps": one(prompt=["sys:1000000"])}, "longer than 1000000"),
    "max_output 0": ({"steps": one(max_output=0)}, "max_output is 0"),
    "accept empty": ({"steps": one(accept=[])}, "accept is []"),
    "accept negative": ({"steps": one(accept=[1, -1])}, "accept is [1, -1]"),
    "abort unknown": ({"steps": [*one(), {"at": 1, "abort": ["x"]}]}, "abort of 'x', which no step adds"),
    "abort too early": (
        {"steps": [{"at": 0, "abort": ["r0"]}, {"at": 1, "add": [request()]}]},
        "abort of 'r0' before it is added",
    ),
    "abort in its own step": (
        {"steps": [{"at": 0, "abort": ["r0"], "add": [request()]}]},
        "abort of 'r0' before it is added",
    ),
    "abort in flight too early": (
        {"steps": [{"at": 0, "abort_in_flight": ["r0"]}, {"at": 1, "add": [request()]}]},
        "abort_in_flight of 'r0' before it is added",
    ),
    "version": ({"kvoracle_scenario": 2}, "kvoracle_scenario is 2"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_run_is_refused_with_exactly_its_reason(name: str) -> None:
    changes, reason = REFUSED[name]
    reasons = check(scenario(**changes))
    assert len(reasons) == 1, reasons
    assert reason in reasons[0]
    assert "\n" not in reasons[0]


ALLOWED: dict[str, dict[str, Any]] = {
    "smallest": {},
    "drafts and a flag": {"groups_in_geometry": [{**FULL, "eagle": True}], "drafts_in_features": 3},
    "window alone": {"groups_in_geometry": [SWA]},
    "chunked alone": {"groups_in_geometry": [CHUNKED]},
    "chunked as wide as the unit of hits": {
        "groups_in_geometry": [FULL, {**CHUNKED, "block": 8}],
    },
    "chunked beside fine hits": {
        "groups_in_geometry": [FULL, MAMBA, {**CHUNKED, "block": 2}],
        "hash_block_in_geometry": 2,
        "partial_hits_in_features": True,
    },
    "chunked that turns fine hits off": {
        "groups_in_geometry": [FULL, MAMBA, CHUNKED],
        "hash_block_in_geometry": 2,
        "partial_hits_in_features": True,
    },
    "states saved anywhere": {"groups_in_geometry": [FULL, {**MAMBA, "checkpoint": 1}]},
    "states saved on hash blocks": {"groups_in_geometry": [FULL, {**MAMBA, "checkpoint": 4}]},
    "mamba alone": {"groups_in_geometry": [MAMBA]},
    "partial hits": {
        "groups_in_geometry": [FULL, MAMBA],
        "hash_block_in_geometry": 2,
        "partial_hits_in_features": True,
    },
    "blocks that share a divisor finer than both": {
        "groups_in_geometry": [FULL, {**MAMBA, "block": 6}],
        "hash_block_in_geometry": 2,
        "retention_in_features": 12,
    },
    "interval 0, full only": {"retention_in_features": 0},
    "no caching": {"caching_in_features": False},
    "budget equals sequences": {"limits": {"budget": 1, "sequences": 1}},
    "abort in flight in its own step": {
        "steps": [{"at": 0, "add": [request()], "abort_in_flight": ["r0"]}],
    },
    "the most requests": {"steps": [{"at": 0, "add": [request(id=f"r{n}") for n in range(MAX_REQUESTS)]}]},
}


@pytest.mark.parametrize("name", ALLOWED)
def test_what_can_run_is_not_refused(name: str) -> None:
    assert check(scenario(**ALLOWED[name])) == []


def test_blocks_needed_is_the_border_of_what_is_refused() -> None:
    needed = blocks_needed(scenario())
    assert check(scenario(blocks_in_geometry=needed)) == []
    assert check(scenario(blocks_in_geometry=needed - 1)) != []


@pytest.mark.parametrize(
    "changes",
    [
        {"steps": one(max_output=9)},
        {"steps": one(prompt=["sys:8", "a:5"])},
        {"drafts_in_features": 2},
        {"groups_in_geometry": [FULL, FULL]},
    ],
)
def test_blocks_needed_grows_with_what_a_request_holds(changes: dict[str, Any]) -> None:
    assert blocks_needed(scenario(**changes)) > blocks_needed(scenario())


def test_a_state_saved_inside_a_chunk_takes_a_block() -> None:
    plain, saving = ({**MAMBA, "checkpoint": unit} for unit in (0, 1))
    needed = [blocks_needed(scenario(groups_in_geometry=[FULL, group])) for group in (plain, saving)]
    assert needed[1] == needed[0] + 1


def test_public_reports_of_tiny_pools_are_not_refused() -> None:
    """Ten blocks of 16 with a prompt of 128 (the priority fault that is open in 0.33)."""
    tight = scenario(
        geometry={"groups": [{"kind": "full", "block": 16}], "hash_block": 16, "blocks": 10},
        limits={"budget": 64, "sequences": 2, "long_prefill_threshold": 32},
        steps=one(prompt=["a:128"]),
    )
    assert check(tight) == []


def encoded(**changes: Any) -> bytes:
    return msgspec.json.encode(document(**changes))


BAD_DOCUMENTS: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"", "empty"),
    "blank": (lambda: b" \n", "empty"),
    "not UTF-8": (lambda: b"\x1f\x8b\x08\x00", "not UTF-8 text (byte 1)"),
    "byte order mark": (lambda: b"\xef\xbb\xbf" + encoded(), "byte order mark"),
    "truncated": (lambda: encoded()[:-3], "ends too early"),
    "not JSON": (lambda: b"kind: full", "not JSON"),
    "a list": (lambda: b"[]", "not a JSON object"),
    "nested": (lambda: b"[" * 100_000, "nested too deeply"),
    "two documents": (lambda: encoded() + b"\n" + encoded(), "not JSON"),
    "a trace": (lambda: b'{"engine":"vllm","kvoracle_trace":1}\n[]\n', "kvoracle judge"),
    "a trace header": (lambda: b'{"engine":"vllm","kvoracle_trace":1}', "trace header"),
    "a newer version": (lambda: encoded(kvoracle_scenario=2), "format version 2"),
    "a version that is none": (lambda: encoded(kvoracle_scenario=True), "format version True"),
    "unknown field": (lambda: encoded(budget=4), "unknown field 'budget'"),
    "misspelt field": (lambda: encoded(hash_blok_in_geometry=4), "did you mean `hash_block`?"),
    "missing field": (lambda: b'{"limits":{"budget":1,"sequences":1},"steps":[]}', "geometry"),
    "wrong type": (lambda: encoded(hash_block_in_geometry="4"), "$.geometry.hash_block"),
    "unknown kind": (lambda: encoded(groups_in_geometry=[{"kind": "mla", "block": 4}]), "mla"),
}


@pytest.mark.parametrize("name", BAD_DOCUMENTS)
def test_a_bad_document_gives_one_line_that_names_place_and_fault(name: str) -> None:
    make, reason = BAD_DOCUMENTS[name]
    with pytest.raises(BadScenario) as caught:
        decode_scenario(make(), "case.json")
    message = str(caught.value)
    assert message.startswith("case.json: ")
    assert reason in message
    assert "\n" not in message
    assert len(message) < 400


def test_a_good_document_is_read_back() -> None:
    assert decode_scenario(encoded(), "case.json") == scenario()
