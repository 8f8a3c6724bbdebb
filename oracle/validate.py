"""Says why a scenario cannot run, before anything is run; and reads scenario documents with one clear error.

Refused here is what no supported release can run, or what is a mistake in the document. What single
releases refuse on top is ``fuzz.refusals``: a scenario may be legal on one build and not on another.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator

import msgspec

from oracle.geometry import default_hash_block, hit_alignment, hits_inside_blocks, keeps_all, scheduler_block
from oracle.scenario import (
    SCENARIO_FORMAT_VERSION,
    Features,
    Geometry,
    Group,
    Limits,
    Request,
    Scenario,
    Step,
)

# Bounds of this tool, not of an engine: beyond them a document is a mistake or an attack on memory.
MAX_REQUESTS = 4096
MAX_REQUEST_TOKENS = 1_000_000
MAX_TOKENS = 4_000_000
MAX_BLOCKS = 1_000_000
MAX_STEP = 1_000_000
MAX_GROUPS = 16
MAX_DRAFTS = 64
MAX_ASYNC_DEPTH = 2

_NAME = re.compile(r"[A-Za-z0-9_.-]+\Z")
# At most seven digits: far above MAX_REQUEST_TOKENS, and no number of a million digits is ever parsed.
_SEGMENT = re.compile(r"([A-Za-z0-9_.-]+):([1-9][0-9]{0,6})\Z")
_NAME_RULE = "letters, digits, '_', '.' and '-'"


class BadScenario(ValueError):
    """A document is not a scenario. The message is one line: where, what is wrong, how to mend it."""


def decode_scenario(data: bytes, where: str) -> Scenario:
    """Read one scenario document (UTF-8 JSON); ``where`` names it in errors (a path, ``stdin``, …).

    Raises BadScenario with one line when it is no scenario of this format version. A scenario that is well
    formed but cannot run is not an error here: see ``check``.
    """
    try:
        _check_text(data, where)
        document = msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise BadScenario(f"{where}: {_json_reason(data, str(error))}") from None
    except RecursionError:
        raise BadScenario(f"{where}: the JSON is nested too deeply; a scenario needs 6 levels") from None
    if not isinstance(document, dict):
        raise BadScenario(f"{where}: the document is not a JSON object; a scenario is one {{...}} object")
    _check_version(document, where)
    try:
        return msgspec.convert(document, Scenario)
    except msgspec.ValidationError as error:
        raise BadScenario(f"{where}: {_field_reason(str(error))}") from None


def _check_text(data: bytes, where: str) -> None:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadScenario(
            f"{where}: not UTF-8 text (byte {error.start}); save it as UTF-8, decompress .gz or .zst first"
        ) from None
    if text.startswith("\ufeff"):
        raise BadScenario(f"{where}: starts with a byte order mark; save it as UTF-8 without one")
    if not text.strip():
        raise BadScenario(f"{where}: the document is empty; a scenario is one JSON object")


def _json_reason(data: bytes, error: str) -> str:
    lines = data.strip().splitlines()
    if len(lines) > 1 and b'"kvoracle_trace"' in lines[0]:
        return "this is a trace, not a scenario; use `kvoracle judge`, or take the header's `scenario` field"
    if "truncated" in error:
        return "the JSON ends too early (a truncated file?); fetch or write the document again"
    return f"not JSON: {error}; a scenario is one JSON object"


def _check_version(document: dict[str, object], where: str) -> None:
    if "kvoracle_trace" in document:
        raise BadScenario(f"{where}: this is a trace header, not a scenario; take its `scenario` field")
    version = document.get("kvoracle_scenario", SCENARIO_FORMAT_VERSION)
    if type(version) is not int or version != SCENARIO_FORMAT_VERSION:
        found = repr(version)[:40]
        raise BadScenario(
            f"{where}: scenario format version {found}, this kvoracle reads {SCENARIO_FORMAT_VERSION};"
            " use the kvoracle that wrote it, or set `kvoracle_scenario` after checking `kvoracle schema`"
        )


def _field_reason(error: str) -> str:
    unknown = re.match(r"Object contains unknown field `(.*?)`", error, re.DOTALL)
    if not unknown:
        return f"{' '.join(error.split())[:300]}; `kvoracle schema` prints the format"
    types = (Scenario, Geometry, Group, Limits, Features, Step, Request)
    known = sorted({field for each in types for field in each.__struct_fields__})
    near = difflib.get_close_matches(unknown[1], known, n=1)
    place = error.rpartition(" - at ")[2] if " - at " in error else "`$`"
    hint = f"did you mean `{near[0]}`?" if near else "remove it;"
    return f"unknown field {unknown[1][:60]!r} at {place}; {hint} `kvoracle schema` prints the format"


def check(scenario: Scenario) -> list[str]:
    """Why the scenario cannot run; an empty list means that it can.

    Each reason is one sentence that names the field. Later groups of checks are left out when an earlier
    one failed, because they would compute with nonsense.
    """
    for checks in _CHECKS:
        reasons = [reason for one in checks for reason in one(scenario)]
        if reasons:
            return reasons
    return []


def segment_tokens(segment: str) -> int:
    """The length of a segment ``name:n`` in tokens; 0 when it is not well formed."""
    match = _SEGMENT.match(segment)
    return int(match[2]) if match else 0


def prompt_tokens(request: Request) -> int:
    """The length of a request's prompt in tokens."""
    return sum(segment_tokens(segment) for segment in request.prompt)


def blocks_for_request(geometry: Geometry, features: Features, prompt: int, max_output: int) -> int:
    """The most blocks that one request alone may hold at once (the null block not counted).

    ``prompt`` and ``max_output`` are in tokens. Attention groups: one block per started block of the slots
    of the last step, which are the known tokens, the drafts to verify, the lookahead slots of the next
    drafts, and what is in flight. One more when hits end inside a block: the hit block and its private
    copy are held together. (A window or an attention chunk frees what it has passed, so it needs no more than this.)
    Mamba: the running state, the previous one, one per draft, one for a copy, one spare, one where states are saved
    inside a chunk, and one per step in flight, in which nothing may be freed yet. Source: ``allocate_slots`` and
    ``MambaManager`` of the releases, and the pool sizes of a driver that ran on all of them without a request being
    stuck.
    """
    drafts, depth = features.drafts, features.async_depth
    slots = prompt + max_output - 1 + 2 * drafts + depth * (1 + drafts)
    copies = 1 if hits_inside_blocks(geometry) else 0
    blocks = 0
    for group in geometry.groups:
        states = 4 + drafts + depth + (group.checkpoint > 0)
        blocks += states if group.kind == "mamba" else -(-slots // group.block) + copies
    return blocks


def blocks_needed(scenario: Scenario) -> int:
    """The smallest pool, in blocks with the null block, in which each request can run alone.

    Needs group sizes of at least 1; raises ValueError if there is no request.
    """
    return 1 + max(
        blocks_for_request(scenario.geometry, scenario.features, prompt_tokens(request), request.max_output)
        for request in scenario.requests()
    )


def _check_groups(scenario: Scenario) -> Iterator[str]:
    groups = scenario.geometry.groups
    if not 1 <= len(groups) <= MAX_GROUPS:
        yield f"geometry.groups has {len(groups)} groups; it needs 1 to {MAX_GROUPS}"
    for number, group in enumerate(groups):
        name = f"geometry.groups[{number}] ({group.kind})"
        if not 1 <= group.block <= MAX_TOKENS:
            yield f"{name}: block is {group.block}; it must be 1 to {MAX_TOKENS} tokens"
        yield from _check_local(group, name)
        if group.kind != "mamba" and group.checkpoint:
            yield f"{name}: checkpoint is set; only a Mamba group has one"
        if group.kind == "mamba" and group.checkpoint not in (0, 1, scenario.geometry.hash_block):
            yield f"{name}: checkpoint is {group.checkpoint}; it must be 0, 1 or hash_block, in tokens"
        if group.eagle and scenario.features.drafts == 0:
            yield f"{name}: eagle is set but features.drafts is 0; a draft group needs draft tokens"
        # The worker moves one boundary state a step, so a verifying step may pass one boundary at most.
        if group.kind == "mamba" and group.block <= scenario.features.drafts:
            yield (
                f"{name}: {scenario.features.drafts} drafts and the sampled token do not fit a Mamba block of "
                f"{group.block}; use a block of at least {scenario.features.drafts + 1}"
            )
    # The worker takes the state columns of every Mamba group from one block size.
    if len({group.block for group in scenario.geometry.groups if group.kind == "mamba"}) > 1:
        yield "geometry.groups: Mamba groups of different block sizes; give all of them the same block"


def _check_local(group: Group, name: str) -> Iterator[str]:
    """How far back a group attends."""
    if group.kind == "swa" and group.window is None:
        yield f"{name}: window is missing; a sliding-window group needs one, in tokens"
    if group.kind == "swa" and group.window is not None and not 1 <= group.window <= MAX_TOKENS:
        yield f"{name}: window is {group.window}; it must be 1 to {MAX_TOKENS} tokens"
    if group.kind != "swa" and group.window is not None:
        yield f"{name}: window is set; only a sliding-window group has one"
    chunk = group.attention_chunk
    if group.kind != "chunked" and chunk is not None:
        yield f"{name}: attention_chunk is set; only a chunked-local group has one"
    # The worker's attention metadata asserts that the one divides the other.
    if group.kind == "chunked" and (chunk is None or not 1 <= chunk <= MAX_TOKENS or chunk % max(group.block, 1)):
        yield f"{name}: attention_chunk is {chunk}; it must be a multiple of its block, up to {MAX_TOKENS} tokens"


def _check_numbers(scenario: Scenario) -> Iterator[str]:
    geometry, limits, features = scenario.geometry, scenario.limits, scenario.features
    for name, value, low, high in (
        ("geometry.hash_block", geometry.hash_block, 1, MAX_TOKENS),
        ("geometry.blocks", geometry.blocks, 2, MAX_BLOCKS),
        ("limits.budget", limits.budget, 1, MAX_TOKENS),
        ("limits.sequences", limits.sequences, 1, MAX_TOKENS),
        ("limits.long_prefill_threshold", limits.long_prefill_threshold, 0, MAX_TOKENS),
        ("features.drafts", features.drafts, 0, MAX_DRAFTS),
        ("features.async_depth", features.async_depth, 0, MAX_ASYNC_DEPTH),
        ("features.retention", features.retention or 0, 0, MAX_TOKENS),
    ):
        if not low <= value <= high:
            yield f"{name} is {value}; it must be {low} to {high}"
    if not 0.0 <= features.watermark < 1.0:
        yield f"features.watermark is {features.watermark}; it is a share of the pool, at least 0 and below 1"
    if 1 <= limits.budget < limits.sequences:
        yield (
            f"limits.budget ({limits.budget}) is below limits.sequences ({limits.sequences});"
            " an engine refuses a step that could not hold one token of each sequence"
        )


def _check_version_field(scenario: Scenario) -> Iterator[str]:
    if scenario.kvoracle_scenario != SCENARIO_FORMAT_VERSION:
        version = scenario.kvoracle_scenario
        yield f"kvoracle_scenario is {version}; this kvoracle runs {SCENARIO_FORMAT_VERSION}"


def _check_requests(scenario: Scenario) -> Iterator[str]:
    if not scenario.steps:
        yield "steps is empty; a scenario needs a step that adds a request"
    requests = scenario.requests()
    if scenario.steps and not requests:
        yield "no step adds a request"
    if len(requests) > MAX_REQUESTS:
        yield f"{len(requests)} requests; at most {MAX_REQUESTS} are run"
    seen: set[str] = set()
    for request in requests[:MAX_REQUESTS]:
        if request.id in seen:
            yield f"request {request.id!r} is added twice; ids must differ"
        seen.add(request.id)
        yield from _check_request(request)


def _check_request(request: Request) -> Iterator[str]:
    name = f"request {request.id!r}"
    if not _NAME.match(request.id):
        yield f"{name}: its id is no name; use {_NAME_RULE}"
    if request.output and not _NAME.match(request.output):
        yield f"{name}: output {request.output!r} is no stream name; use {_NAME_RULE}"
    if not request.prompt:
        yield f"{name}: the prompt is empty; it needs a segment such as 'sys:48'"
    for segment in request.prompt:
        if not _SEGMENT.match(segment):
            yield f"{name}: segment {segment[:60]!r} is not 'name:n', n at least 1; names are {_NAME_RULE}"
    if request.max_output < 1:
        yield f"{name}: max_output is {request.max_output}; it must be at least 1 token"
    if not request.accept or min(request.accept) < 0:
        yield f"{name}: accept is {list(request.accept)}; it needs numbers of drafts, each at least 0"
    if prompt_tokens(request) + max(request.max_output, 0) > MAX_REQUEST_TOKENS:
        yield f"{name}: prompt and output are longer than {MAX_REQUEST_TOKENS} tokens"


def _check_steps(scenario: Scenario) -> Iterator[str]:
    previous = -1
    for step in scenario.steps:
        if not 0 <= step.at <= MAX_STEP:
            yield f"a step has at={step.at}; it must be 0 to {MAX_STEP}"
        elif step.at == previous:
            yield f"two steps have at={step.at}; put their events into one"
        elif step.at < previous:
            yield f"the step with at={step.at} comes after at={previous}; order steps by at"
        previous = step.at


def _check_aborts(scenario: Scenario) -> Iterator[str]:
    every = {request.id for request in scenario.requests()}
    added: set[str] = set()
    for step in scenario.steps:
        now = {request.id for request in step.add}
        # Within a step aborts come before additions, and an abort in flight after them.
        for field, aborted, known in (
            ("abort", step.abort, added),
            ("abort_in_flight", step.abort_in_flight, added | now),
        ):
            for request_id in aborted:
                if request_id not in every:
                    yield f"step at={step.at}: {field} of {request_id!r}, which no step adds"
                elif request_id not in known:
                    yield f"step at={step.at}: {field} of {request_id!r} before it is added"
        added |= now


def _check_scheduler_block(scenario: Scenario) -> Iterator[str]:
    block = scheduler_block(scenario.geometry)
    if block > MAX_TOKENS:
        yield f"geometry.groups: the least common multiple of the blocks is {block}; it must be at most {MAX_TOKENS}"


def _check_hash_block(scenario: Scenario) -> Iterator[str]:
    geometry, asked = scenario.geometry, scenario.features.partial_hits
    unit, blocks = geometry.hash_block, [group.block for group in geometry.groups]
    default = default_hash_block(geometry)
    if any(block % unit for block in blocks):
        yield f"geometry.hash_block {unit} does not divide every group's block {blocks}"
    elif asked and not any(group.kind == "mamba" for group in geometry.groups):
        yield "features.partial_hits is set without a Mamba group; only Mamba states give hits inside a block"
    elif asked and len(blocks) == 1:
        yield "features.partial_hits is set with one group; hits inside a block need a second group"
    elif asked and not hits_inside_blocks(geometry):
        yield f"features.partial_hits is set, but no Mamba block is wider than geometry.hash_block {unit}"
    elif not asked and unit != default:
        rule = "its block" if len(blocks) == 1 else "the greatest common divisor of the groups' blocks"
        yield (
            f"geometry.hash_block is {unit}, but without features.partial_hits an engine hashes in units of"
            f" {default}, {rule}"
        )


def _check_chunked(scenario: Scenario) -> Iterator[str]:
    alignment = hit_alignment(scenario.geometry)
    for number, group in enumerate(scenario.geometry.groups):
        if group.kind == "chunked" and group.block != alignment:
            yield (
                f"geometry.groups[{number}] (chunked): its block is {group.block}, and hits are granted in units of"
                f" {alignment} tokens; its lookup asserts that they are alike"
            )


def _check_junction(scenario: Scenario) -> Iterator[str]:
    features = scenario.features
    if features.exact_junction and not (features.drafts and hits_inside_blocks(scenario.geometry)):
        yield "features.exact_junction is set without drafts, or without hits inside a block; it then does nothing"


def _check_retention(scenario: Scenario) -> Iterator[str]:
    retention = scenario.features.retention
    if not retention:
        return
    block = scheduler_block(scenario.geometry)
    if retention % block:
        yield f"features.retention {retention} is not a multiple of the scheduler block, {block} tokens"
    if keeps_all(scenario.geometry):
        yield "features.retention is set without a sliding-window or Mamba group; the others keep all"


def _check_caching(scenario: Scenario) -> Iterator[str]:
    if not scenario.features.caching and any(group.kind == "mamba" for group in scenario.geometry.groups):
        yield "features.caching is off with a Mamba group; its cache mode 'align' exists only with caching"


def _check_pool(scenario: Scenario) -> Iterator[str]:
    needed = blocks_needed(scenario)
    if scenario.geometry.blocks < needed:
        yield (
            f"geometry.blocks is {scenario.geometry.blocks}, but the longest request alone can need {needed}"
            " (the null block included)"
        )


# Each row computes only with what the rows before it have found sound.
_CHECKS: tuple[tuple[Callable[[Scenario], Iterator[str]], ...], ...] = (
    (_check_version_field, _check_groups, _check_numbers, _check_requests, _check_steps),
    (
        _check_aborts,
        _check_scheduler_block,
        _check_hash_block,
        _check_chunked,
        _check_junction,
        _check_retention,
        _check_caching,
    ),
    (_check_pool,),
)
