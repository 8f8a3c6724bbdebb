"""Writes a finding as one pytest file for plain vLLM: its scenario on a real scheduler, its rule as assertions.

The file needs vLLM, torch and pytest, and nothing of kvoracle. It is a small copy of the driver, cut down to
what the one scenario needs, and it observes only what a scheduler gives to its worker and what its caches say.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from fuzz.engines.names import nearest_release
from fuzz.engines.open import is_conforming
from fuzz.engines.shape import derive
from fuzz.export import code
from fuzz.export.render import render
from fuzz.findings import FindingFile
from oracle.geometry import hits_inside_blocks, saves_states
from oracle.scenario import Scenario
from oracle.validate import check, prompt_tokens
from reference.arithmetic import ceil_div
from reference.policy import POLICIES, Policy
from reference.rules import IDLE_STEPS_LIMIT, RULES, STARVED_STEPS_LIMIT

LINE_WIDTH = 88
"""vLLM's own."""

_TOKENS_MAX = 4096
"""A test of content keeps for each token all tokens before it; beyond this it would take minutes and GBs."""

_TITLES = {
    "S1": "A chunk holds no more tokens than its split granted.",
    "S2": "A prefill chunk ends where the state of a Mamba layer is of use.",
    "S3": "A prefill chunk does not run across a position whose state is of use.",
    "S4": "A chunk is empty only where it would fall short of a block.",
    "S6": "A prefill chunk ends on the partial tail where that is the earliest stop ahead.",
    "R1": "A block that the next request over a shared prefix needs is kept.",
    "R2": "A block that a later request over the same prompt needs is kept.",
    "R6": "A block that a resend of the same prompt needs is kept.",
    "L1": "Every group can serve the hit that a request is granted.",
    "L2": "A request is granted the longest hit that every group can serve.",
    "L3": "The boundary of a shared prefix lies beyond the hit.",
    "U1": "A sibling reuses the shared prefix that was cached for it.",
    "U3": "What is sent again, or up to its last block, is reused.",
    "C1": "A block in the prefix cache holds what its hash names.",
    "C2": "A step reads nothing that was not written before.",
    "A1": "The reference count of a block is the number of table entries that hold it.",
    "A2": "No free block is held by a request.",
    "A3": "A step keeps to its limits.",
    "P1": "Some request advances while one waits or runs.",
    "P2": "The request that is next advances while there is room for it.",
    "P3": "A legal workload does not make the scheduler raise.",
    "D1": "The same inputs give the same decisions.",
}
"""The rules that can be exported, with the first line of the test file."""

_VISIBLE = frozenset(("step", "split", "allocate", "take", "table", "preempt", "output", "end"))
"""Decisions in which two runs cannot differ without a scheduler telling its worker something else."""

_STOP = re.compile(r"runs across the (boundary of a block|junction|last cacheable position|partial tail)\D.*?(\d+)$")
_EXACT_JUNCTION = {"0.30.0": "enable_mamba_fine_grained_prefix_cache"}
"""The option of the cache config that makes chunks stop at exact junctions, where it is not named as it is now."""

_TAIL = re.compile(r"tokens from (\d+) and got")
_DUE = re.compile(r"a stop at (\d+)")
_KEPT = re.compile(r"block up to (\d+) kept")
_HIT = re.compile(r"a hit of (?:at least )?(\d+)")


class NoExport(ValueError):
    """This finding cannot be told by a test of plain vLLM; the message is one line that says why."""


def upstream_test(document: FindingFile) -> str:
    """The text of the test file. Raises NoExport."""
    _check_exportable(document)
    facts = _scenario_facts(document.scenario) | _rule_facts(document)
    facts |= {
        "title": _TITLES[document.signature[0]],
        "sentence": code.prose(document.sentence, LINE_WIDTH),
        "seen": code.prose(f"Seen on vLLM {document.engine.version}: {document.finding.reason}.", LINE_WIDTH),
    }
    facts["runner"] = "worker" if facts["needs_worker"] else "requests"
    body = render("test.py.j2", facts)
    text = render("head.py.j2", facts | {"imports": code.imports(body, LINE_WIDTH)}) + body
    # Templates need not care for the blank lines between functions.
    return re.sub(r"\n+(?=(?:def|class) )", "\n\n\n", text)


_SPEC_CLASSES = {"full": "FullAttentionSpec", "swa": "SlidingWindowSpec", "chunked": "ChunkedLocalAttentionSpec"}


# --- what the templates are told -----------------------------------------------------------------------


def _scenario_facts(scenario: Scenario) -> dict[str, Any]:
    geometry, features = scenario.geometry, scenario.features
    requests = scenario.requests()
    is_async = features.async_depth > 0
    accepts = features.drafts > 0 and any(max(request.accept) > 0 for request in requests)
    renamed = any(request.output for request in requests)
    return {
        "geometry": geometry,
        "limits": scenario.limits,
        "features": features,
        "drafts": features.drafts,
        "is_async": is_async,
        "accepts": accepts,
        "needs_worker": is_async or accepts,
        "copies": hits_inside_blocks(geometry),
        "is_fine": any(group.block != geometry.hash_block for group in geometry.groups),
        "mamba_block": next((group.block for group in geometry.groups if group.kind == "mamba"), 0),
        "smallest_block": min(group.block for group in geometry.groups),
        "eagle_groups": tuple(number for number, group in enumerate(geometry.groups) if group.eagle),
        "spec_classes": _SPEC_CLASSES,
        "scheduler_class": "AsyncScheduler" if is_async else "Scheduler",
        "model_length": _model_length(scenario),
        "steps_max": _steps_max(scenario),
        "last_event": scenario.steps[-1].at,
        "constants": _constants(scenario, accepts),
        "output_text": "OUTPUTS.get(request_id, request_id)" if renamed else "request_id",
        "requests": code.arrivals(scenario, LINE_WIDTH),
        "skips": any(request.skips_lookup for request in requests),
        "resets": tuple(step.at for step in scenario.steps if step.reset),
        "aborts": any(step.abort for step in scenario.steps),
        "aborts_in_flight": any(step.abort_in_flight for step in scenario.steps),
        "more_constants": "",
        "memory": "",
    }


def _constants(scenario: Scenario, accepts: bool) -> str:
    """The constants that every template may name."""
    steps, requests = scenario.steps, scenario.requests()
    rows: list[tuple[str, object, str]] = [
        ("DRAFT", 7 if scenario.features.drafts else None, "Stands for any draft token that the model rejects."),
        (
            "ACCEPTED",
            {request.id: list(request.accept) for request in requests} if accepts else None,
            "How many drafts are right, step by step, over and over.",
        ),
        ("TEXTS", _texts(scenario), "Where the token ids of each text begin; requests share what they name alike."),
        (
            "OUTPUTS",
            {request.id: request.output for request in requests if request.output},
            "The text that a request generates, where that is not called like the request.",
        ),
        ("ABORTS", {step.at: list(step.abort) for step in steps if step.abort}, "Requests aborted before a step."),
        (
            "ABORTS_IN_FLIGHT",
            {step.at: list(step.abort_in_flight) for step in steps if step.abort_in_flight},
            "Requests aborted between a step and its output.",
        ),
    ]
    return "".join(code.constant(name, value, why, LINE_WIDTH) for name, value, why in rows if value)


def _model_length(scenario: Scenario) -> int:
    """A context length that no request reaches, and that is not below the long-prefill threshold."""
    longest = max(prompt_tokens(request) + request.max_output for request in scenario.requests())
    longest = max(longest + scenario.features.drafts + 2, scenario.limits.long_prefill_threshold)
    return max(256, 1 << (longest - 1).bit_length())


def _steps_max(scenario: Scenario) -> int:
    """Steps within which a live engine has ended everything."""
    tokens = sum(prompt_tokens(request) + request.max_output for request in scenario.requests())
    return scenario.steps[-1].at + 1 + 4 * tokens + 200


def _texts(scenario: Scenario) -> dict[str, int]:
    """Where the tokens of each stream begin, far enough apart that none reaches another."""
    lengths: dict[str, int] = {}
    for request in scenario.requests():
        for segment in request.prompt:
            name, _, length = segment.rpartition(":")
            lengths[name] = max(lengths.get(name, 0), int(length))
        beyond = request.max_output + scenario.features.drafts + 2
        lengths[request.output_stream] = max(lengths.get(request.output_stream, 0), beyond)
    apart = 10 ** max(3, len(str(max(lengths.values()))))
    return {name: apart * number for number, name in enumerate(lengths, 1)}


# --- what can be exported ------------------------------------------------------------------------------


def check_is_vllm(document: FindingFile) -> None:
    """Raise NoExport for a finding on an engine that is not vLLM."""
    if is_conforming(document.engine.name):
        raise NoExport(f"it was found on {document.engine.name}, which is no vLLM build")


def _check_exportable(document: FindingFile) -> None:
    """Raise NoExport for what no test of plain vLLM can show."""
    rule, scenario = document.signature[0], document.scenario
    check_is_vllm(document)
    if rule in RULES and RULES[rule].conformance:
        raise NoExport(f"{rule} compares the engine with kvoracle's reference, which plain vLLM does not have")
    if rule not in _TITLES:
        raise NoExport(f"there is no export for rule {rule}; there is one for {', '.join(_TITLES)}")
    if reasons := check(scenario):
        raise NoExport(f"its scenario cannot run: {reasons[0]}")
    if scenario.features.async_depth > 1:
        raise NoExport("it needs more than one step in flight, which vLLM has with pipeline parallelism only")
    if rule in ("C1", "C2") and saves_states(scenario.geometry):
        raise NoExport("a state is saved inside a chunk, which the exported worker does not do")
    if scenario.features.runner == "v2":
        raise NoExport("it needs model runner V2, which the exported worker does not stand in for")


def _rule_facts(document: FindingFile) -> dict[str, Any]:
    """What the template of the rule is told beside the scenario. Raises NoExport."""
    rule, decision, _ = document.signature
    facts = {
        "rule": f"rule_{rule.lower()}.py.j2",
        "request": document.finding.request,
        "exact_junction_option": _EXACT_JUNCTION.get(document.engine.version, "enable_mamba_shared_prefix_checkpoint"),
        "idle_steps": IDLE_STEPS_LIMIT,
        "starved_steps": STARVED_STEPS_LIMIT,
    }
    if rule in _SPECIAL:
        facts |= _SPECIAL[rule](document)
    if rule == "P3" and not decision.startswith("exception "):
        raise NoExport("the engine's process hung or died, and a test that shows it would never end")
    if rule == "D1" and decision not in _VISIBLE:
        raise NoExport(f"the runs differ in a {decision}, of which a scheduler tells its worker nothing")
    if rule in ("A1", "A2") and decision not in ("step", "end"):
        raise NoExport(f"it was seen in a call of the block pool ({decision}), not in the state after a step")
    return facts


def _policy(document: FindingFile) -> Policy:
    """The policy that the build was compared with, or that of the nearest release."""
    return POLICIES[document.engine.release or nearest_release(document.engine.version)]


def _end_facts(document: FindingFile) -> dict[str, Any]:
    """S2: where the partial tail lies, as Python; whether a block is wider than a step."""
    scenario = document.scenario
    room = scenario.limits.room
    return {
        "tail": _tail_expression(document),
        "is_wide": any(group.kind == "mamba" and group.block > room for group in scenario.geometry.groups),
    }


def _tail_expression(document: FindingFile) -> str:
    """The partial tail of ``request`` as the build places it, which differs between releases; empty if it has none."""
    policy = _policy(document)
    setting = derive(document.scenario, policy).setting
    if setting.hash_block == setting.scheduler_block or (
        policy.tail_stop == "partial hits" and not setting.partial_hits
    ):
        return ""
    unit, left = setting.hash_block, 0
    if policy.keeps_one_token and not setting.block_drop:
        left = max(1, setting.lookahead)
    tokens = f"(request.num_prompt_tokens - {left})" if left else "request.num_prompt_tokens"
    lower = f" - {unit}" if setting.block_drop and policy.tail_drops else ""
    return f"{tokens} // {unit} * {unit}{lower}"


def _stop_facts(document: FindingFile) -> dict[str, Any]:
    """S3: which kind of stop was run across, and where it lies."""
    match = _STOP.search(document.finding.reason)
    if match is None:
        raise NoExport("the finding does not say which stop was run across; make it anew with kvoracle shrink")
    kind = {"boundary of a block": "boundary"}.get(match[1], match[1])
    return {
        "stop": kind,
        "position": int(match[2]),
        "request": document.finding.request,
        "version": document.engine.version,
    }


def _due_facts(document: FindingFile) -> dict[str, Any]:
    """S6: the chunk that had to end on the partial tail, and where that lies."""
    start, due = _TAIL.search(document.finding.reason), _DUE.fullmatch(document.finding.expected)
    if start is None or due is None:
        raise NoExport("the finding does not say which stop was due; make it anew with kvoracle shrink")
    return {
        "start": int(start[1]),
        "position": int(due[1]),
        "request": document.finding.request,
        "version": document.engine.version,
    }


def _content_facts(document: FindingFile) -> dict[str, Any]:
    """C1 and C2: the group whose blocks are followed."""
    scenario, number = document.scenario, document.finding.group
    if not 0 <= number < len(scenario.geometry.groups):
        raise NoExport("the finding does not name the group of its block; make it anew with kvoracle shrink")
    if (longest := max(prompt_tokens(request) for request in scenario.requests())) > _TOKENS_MAX:
        raise NoExport(f"a prompt of {longest} tokens is too long to follow each of them; kvoracle shrink first")
    group = scenario.geometry.groups[number]
    return {
        "needs_worker": True,
        "memory": "mamba.py.j2" if group.kind == "mamba" else "attention.py.j2",
        "group": number,
        "groups": len(scenario.geometry.groups),
        "block": group.block,
        "window": group.window or 0,
        "attention_chunk": group.attention_chunk or 0,
        "reads": document.signature[0] == "C2",
    }


def _served_facts(document: FindingFile) -> dict[str, Any]:
    """L1: the unit of hits, and per group its kind, its block and how many blocks before a hit it needs.

    Chunked-local attention needs those of its attention chunk, whose size in tokens stands there instead.
    """
    shape = derive(document.scenario, _policy(document))
    rows = []
    for group in shape.groups:
        needed = {"full": shape.blocks, "mamba": 1, "chunked": group.attention_chunk}.get(group.kind)
        rows.append((group.kind, group.block, needed or ceil_div(group.window - 1, group.block)))
    has_chunked = any(group.kind == "chunked" for group in shape.groups)
    third = " (of attention chunks the tokens)" if has_chunked else ""
    groups = code.constant("GROUPS", rows, f"Kind, block size, and how many blocks a hit needs{third}.", LINE_WIDTH)
    return {"alignment": shape.alignment, "more_constants": groups, "has_chunked": has_chunked}


def _kept_facts(document: FindingFile) -> dict[str, Any]:
    """R1, R2 and R6: the group and the end of the block that had to be kept."""
    match = _KEPT.fullmatch(document.finding.expected)
    if match is None:
        raise NoExport("the finding does not say which block had to be kept; make it anew with kvoracle shrink")
    finding = document.finding
    return {"rule": "rule_kept.py.j2", "position": int(match[1]), "group": finding.group}


def _reused_facts(document: FindingFile) -> dict[str, Any]:
    """L2, U1 and U3: the hit that the request should have had when it was admitted."""
    match = _HIT.fullmatch(document.finding.expected)
    if match is None:
        raise NoExport("the finding does not say which hit was due; make it anew with kvoracle shrink")
    return {"rule": "rule_reused.py.j2", "position": int(match[1])}


_SPECIAL: dict[str, Callable[[FindingFile], dict[str, Any]]] = {
    "S2": _end_facts,
    "S3": _stop_facts,
    "S6": _due_facts,
    "C1": _content_facts,
    "C2": _content_facts,
    "L1": _served_facts,
    "R1": _kept_facts,
    "R2": _kept_facts,
    "R6": _kept_facts,
    "L2": _reused_facts,
    "U1": _reused_facts,
    "U3": _reused_facts,
}
"""Where a template needs more than the scenario."""
