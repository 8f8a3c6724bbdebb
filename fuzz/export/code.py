"""Pieces of Python text, formatted as vLLM's own formatter would."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable

from oracle.scenario import Request, Scenario

# What a test file may import, in the order in which it does: one list is one block of lines.
_IMPORTS: tuple[dict[str, tuple[str, ...]], ...] = (
    {
        "": ("json",),
        "collections": ("Counter", "defaultdict", "deque"),
        "itertools": ("count",),
        "typing": ("NamedTuple",),
    },
    {"": ("pytest", "torch")},
    {
        "vllm.config": (
            "CacheConfig",
            "DeviceConfig",
            "ModelConfig",
            "ParallelConfig",
            "SchedulerConfig",
            "SpeculativeConfig",
            "VllmConfig",
        ),
        "vllm.model_executor.models": ("ModelRegistry",),
        "vllm.sampling_params": ("SamplingParams",),
        "vllm.utils.hashing": ("get_hash_fn_by_name",),
        "vllm.v1.core.kv_cache_utils": (
            "get_block_hash",
            "get_group_id",
            "get_request_block_hasher",
            "init_none_hash",
            "make_block_hash_with_group_id",
            "resolve_kv_cache_block_sizes",
        ),
        "vllm.v1.core.sched.async_scheduler": ("AsyncScheduler",),
        "vllm.v1.core.sched.scheduler": ("Scheduler",),
        "vllm.v1.kv_cache_interface": (
            "ChunkedLocalAttentionSpec",
            "FullAttentionSpec",
            "KVCacheConfig",
            "KVCacheGroupSpec",
            "MambaSpec",
            "SlidingWindowSpec",
        ),
        "vllm.v1.outputs": ("DraftTokenIds", "ModelRunnerOutput"),
        "vllm.v1.request": ("Request", "RequestStatus"),
        "vllm.v1.structured_output": ("StructuredOutputManager",),
    },
)


def prose(text: str, width: int) -> str:
    """Text for a docstring: wrapped, and unable to end it."""
    safe = text.replace("\\", "\\\\").replace('"""', "'''")
    return textwrap.fill(safe, width, break_long_words=False, break_on_hyphens=False)


def imports(body: str, width: int) -> str:
    """The import lines for all names that ``body`` uses."""
    used = set(re.findall(r"(?<![\w.])[A-Za-z]\w*", body))
    blocks = []
    for block in _IMPORTS:
        lines = [f"import {name}" for name in block.get("", ()) if name in used]
        for module, names in block.items():
            wanted = [name for name in names if name in used]
            if module and wanted:
                lines.append(_import_line(module, wanted, width))
        if lines:
            blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _import_line(module: str, names: list[str], width: int) -> str:
    line = f"from {module} import {', '.join(names)}"
    if len(line) <= width:
        return line
    return f"from {module} import (\n" + "".join(f"    {name},\n" for name in names) + ")"


def constant(name: str, value: object, why: str, width: int) -> str:
    """A constant with a comment above it; a dict or list that does not fit on a line gets one for each item."""
    line = f"{name} = {literal(value)}"
    if len(line) > width and isinstance(value, dict):
        items = [f"{literal(key)}: {literal(item)}" for key, item in value.items()]
        line = f"{name} = {{\n" + "".join(f"    {item},\n" for item in items) + "}"
    elif len(line) > width and isinstance(value, list):
        line = f"{name} = [\n" + "".join(f"    {literal(item)},\n" for item in value) + "]"
    return f"# {why}\n{line}\n"


def literal(value: object) -> str:
    """A literal of strings, whole numbers, lists, tuples and dicts; the names of a scenario hold no quotes."""
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, dict):
        return "{" + ", ".join(f"{literal(key)}: {literal(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(literal, value))}]"
    if isinstance(value, tuple):
        return f"({', '.join(map(literal, value))}{',' if len(value) == 1 else ''})"
    return f"{value:_}" if isinstance(value, int) and value >= 10_000 else str(value)


def arrivals(scenario: Scenario, width: int) -> str:
    """The items of a dict from steps to the requests that arrive in them."""
    lines = []
    for step in scenario.steps:
        if step.add:
            lines += [f"        {step.at}: [", *(line for r in step.add for line in _request(r, width)), "        ],"]
    return "\n".join(lines)


def _request(request: Request, width: int) -> Iterable[str]:
    """A call that makes the request, over several lines if it is long."""
    parts = [f"text({literal(name)}, {length})" for name, _, length in (s.rpartition(":") for s in request.prompt)]
    options = ["skips_lookup=True"] if request.skips_lookup else []
    options += [f"priority={request.priority}"] if request.priority else []
    arguments = [literal(request.id), " + ".join(parts), str(request.max_output), *options]
    line = f"            request({', '.join(arguments)}),"
    if len(line) <= width:
        return [line]
    inner = " " * 16
    if len(inner + arguments[1] + ",") > width:
        arguments[1] = f"\n{inner}+ ".join(parts)
    return ["            request(", *(f"{inner}{argument}," for argument in arguments), "            ),"]
