"""The program inside an engine's process: it drives a real vLLM scheduler and streams what it decided.

Run as ``driver.py READ_FD WRITE_FD TRACE_FD [SOURCES]`` by the engine's own interpreter. It needs the standard library
and what vLLM itself depends on, so nothing of kvoracle can collide with an engine's packages; that is why
records are plain tuples here, in the field order of ``oracle/trace.py``.

``SOURCES`` is a JSON file with ``patches`` (by file within the package ``vllm``, the text that is loaded in its
place) and ``watch`` (by file, the lines whose execution is noted). Without it Python imports as it always does.

Frames, both ways: a 4-byte little-endian length, one byte that says the kind, JSON (``X``: text).

    parent -> driver   S {"scenario": …, "record": bool}    Q (quit)
    driver -> parent   K {"version", "python", "pid"[, "patched", "lines"]}   once, when the engine is loaded
                       E {"steps", "cpu", "rss_mb"[, "crash"][, "lines"]} when a scenario has ended
                       X why the engine will not build for this scenario (then no E)

``TRACE_FD`` is a file in memory that the parent reads: 8 bytes, little-endian, say how many bytes of the trace follow.
They are its lines, the header and one a step, and count as soon as they are whole. Written through shared memory they
cost no call of the system, and outlive a process that dies or is killed.

With ``SOURCES`` ``patched`` names the files whose patch was loaded, and ``lines`` says which watched lines ran, as
[[file, [line, …]], …]: in K while the engine loaded, in E in the scenario.

The engine is observed, never steered: each decision point is wrapped on the instance, calls the original
and notes what came of it. There is no branch on a version, only "does this method or field exist".

**Order of records.** ``lookup``, ``split``: after the call. ``cache``, ``preempt``, ``finish``: before what
they cause. ``commit``, ``evict``, ``take``, ``touch``, ``free``: as the pool does it (the evictions of a take
come first). ``pin`` and ``table`` of an allocation: when its blocks are in place, before its ``cache``
records. ``allocate``: after all its effects. ``table`` of a freed request: after its ``free``. ``output``
stands before what the output caused, though its counts are only known afterwards. ``statistics``: after the call,
if anything was counted.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import dataclasses
import gc
import hashlib
import json
import linecache
import logging
import mmap
import os
import signal
import struct
import sys
import tempfile
import time
import zlib
from collections import deque
from collections.abc import Callable
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType, SimpleNamespace, TracebackType
from typing import Any, BinaryIO

IDLE_STEPS_MAX = 40
PR_SET_PDEATHSIG = 1
# A line in so many is timed, since reading the clock costs about as much as handing it over.
TIMED_LINES = 8
TRACE_BYTES = 1 << 20
TRACE_START = 8
SNAPSHOT_STEPS = 64
# One scenario in so many ends with a snapshot; its text decides, so that a trace depends on nothing else.
SNAPSHOT_SCENARIOS = 4
GARBAGE_OBJECTS_MAX = 200_000
# Far above every right token (a right token is below 2**48 plus a position).
WRONG_DRAFT_OFFSET = 1 << 49

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
}
RUNNER_VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"
RETENTION_VARIABLE = "VLLM_PREFIX_CACHE_RETENTION_INTERVAL"
JUNCTION_OPTIONS = ("enable_mamba_shared_prefix_checkpoint", "enable_mamba_fine_grained_prefix_cache")
QUEUES = ("waiting", "skipped_waiting", "kv_holding_waiting")
ARCHITECTURE = "TinyForCausalLM"
ENGINE_PACKAGE = "vllm"
# What a watched module calls to note a statement; not a name that a class body would mangle.
HIT = "__kvoracle_hit__"

Records = list[tuple[Any, ...]]


class Refused(Exception):
    """The scenario cannot be given to this build; the message says why."""


# --- the engine's sources, patched or watched ---------------------------------------------------------


Claim = Callable[[int, int], int | None]
"""Asked with the first and last line of a statement: the number under which to note it, None for not at all."""


class Sources:
    """Finds the modules whose text is replaced or whose lines are watched, before Python's own finders do.

    ``patches``: by file within the package, the whole text that is loaded. ``watch``: by file, line numbers.
    ``patched``: the files whose patch was loaded.
    """

    def __init__(self, patches: dict[str, str], watch: dict[str, list[int]]) -> None:
        self.patches = patches
        self.watch = watch
        self.patched: list[str] = []
        self.hits: set[int] = set()
        self._places: list[tuple[str, list[int]]] = []
        self._files = {module_name(file): file for file in (*patches, *watch)}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Python's own answer, with a loader of ours; None for a module that is none of ours."""
        file = self._files.get(name)
        spec = None if file is None else PathFinder.find_spec(name, path, target)
        if file is None or spec is None or spec.origin is None:
            return None
        spec.loader = Loader(self, file, name, spec.origin)
        return spec

    def claim(self, file: str, first: int, last: int) -> int | None:
        """A number for the watched ones of these lines, None if there are none."""
        lines = [line for line in self.watch.get(file, ()) if first <= line <= last]
        if not lines:
            return None
        self._places.append((file, lines))
        return len(self._places) - 1

    def taken(self) -> list[tuple[str, list[int]]]:
        """The watched lines that ran since this was last asked, by file."""
        found: dict[str, set[int]] = {}
        for number in self.hits:
            file, lines = self._places[number]
            found.setdefault(file, set()).update(lines)
        self.hits.clear()
        return [(file, sorted(lines)) for file, lines in sorted(found.items())]


class Loader(SourceFileLoader):
    """Loads one module of ``Sources``; compiled files are neither read nor written for it."""

    def __init__(self, sources: Sources, file: str, name: str, path: str) -> None:
        super().__init__(name, path)
        self._sources = sources
        self._file = file

    def get_data(self, path: str) -> bytes:
        """The patch in place of the file."""
        patch = self._sources.patches.get(self._file)
        return super().get_data(path) if patch is None else patch.encode()

    def get_code(self, fullname: str) -> CodeType:
        """Compile the text, past the cache of compiled files."""
        data = self.get_data(self.path)
        if self._file in self._sources.patches:
            # So that tracebacks, and whoever reads the source of a class, see what was loaded and not the file.
            lines = data.decode().splitlines(keepends=True)
            linecache.cache[self.path] = (len(data), None, lines, self.path)
            self._sources.patched.append(self._file)
        tree = ast.parse(data, self.path)
        if self._file in self._sources.watch:
            tree.body = noting(tree.body, lambda first, last: self._sources.claim(self._file, first, last))
        code: CodeType = compile(tree, self.path, "exec", dont_inherit=True)
        return code

    def exec_module(self, module: ModuleType) -> None:
        """Run the module, which may note what runs."""
        setattr(module, HIT, self._sources.hits.add)
        super().exec_module(module)


def module_name(file: str) -> str:
    """The module of a file within the package: ``v1/request.py`` is ``vllm.v1.request``."""
    parts = [ENGINE_PACKAGE, *file.removesuffix(".py").split("/")]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def noting(block: list[ast.stmt], claim: Claim) -> list[ast.stmt]:
    """The statements of a block, each after a call that notes its lines where ``claim`` gives a number.

    A call before a compound statement stands for its header: that is evaluated where, and only where, the
    statement is reached, also for an ``elif``, which is a statement in an ``else``. The header of a definition
    runs where it stands. ``else``, ``finally`` and docstrings are no statements.
    """
    noted: list[ast.stmt] = []
    for statement in block:
        first, last = header(statement)
        for name in ("body", "orelse", "finalbody"):
            if inner := getattr(statement, name, None):
                setattr(statement, name, noting(inner, claim))
        for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
            note_part(part, claim)
        if is_run(statement) and (number := claim(first, last)) is not None:
            noted.append(ast.copy_location(ast.Expr(note(number, statement)), statement))
        noted.append(statement)
    return noted


def note_part(part: Any, claim: Claim) -> None:
    """Note an ``except`` or ``case`` when it is entered, or when the guard of the case is evaluated."""
    first, last = header(part)
    number = claim(first, last)
    place = part.body[0]
    part.body = noting(part.body, claim)
    guard = getattr(part, "guard", None)
    if number is not None and guard is not None:
        # The call gives None, so the guard decides.
        part.guard = ast.copy_location(ast.BoolOp(ast.Or(), [note(number, guard), guard]), guard)
    elif number is not None:
        part.body.insert(0, ast.copy_location(ast.Expr(note(number, place)), place))


def note(number: int, place: Any) -> ast.Call:
    """The call that notes a number, for tracebacks at ``place``."""
    call = ast.Call(ast.Name(HIT, ast.Load()), [ast.Constant(number)], [])
    for node in ast.walk(call):
        if isinstance(node, ast.expr):
            ast.copy_location(node, place)
    return call


def header(node: Any) -> tuple[int, int]:
    """First and last line of a statement, or, of a compound one, of all before the first statement within it."""
    own = getattr(node, "pattern", node)
    first = min([own.lineno, *[decorator.lineno for decorator in getattr(node, "decorator_list", ())]])
    inner = getattr(node, "body", None) or getattr(node, "cases", None)
    return first, max(own.lineno, header(inner[0])[0] - 1) if inner else own.end_lineno


def is_run(statement: ast.stmt) -> bool:
    """Whether a statement is more than a docstring or an order to the compiler."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return not isinstance(statement.value.value, str)
    return not (isinstance(statement, ast.ImportFrom) and statement.module == "__future__")


def use_sources(file: str) -> Sources:
    """Patch and watch what a file of the parent's says, in every import from now on."""
    with open(file, encoding="utf-8") as stream:
        sources = Sources(**json.load(stream))
    sys.meta_path.insert(0, sources)
    return sources


# --- the engine's classes, loaded once --------------------------------------------------------------


def load_engine() -> SimpleNamespace:
    """Import vLLM and return what the driver uses of it, with the caches that outlive a scenario."""
    import msgspec
    import torch
    import vllm
    from vllm.config import (
        CacheConfig,
        DeviceConfig,
        ModelConfig,
        ParallelConfig,
        SchedulerConfig,
        SpeculativeConfig,
        VllmConfig,
    )
    from vllm.model_executor.models import ModelRegistry
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1 import kv_cache_interface as kv
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
    from vllm.v1.request import Request, RequestStatus
    from vllm.v1.structured_output import StructuredOutputManager

    # Without Triton a config refuses runner V2; no kernel of it ever runs here.
    sys.modules[VllmConfig.__module__].HAS_TRITON = True  # type: ignore[attr-defined]
    # The class object, not its name: a name would be inspected in a subprocess that imports it again.
    ModelRegistry.register_model(ARCHITECTURE, stub_model(torch))
    hash_function = get_hash_fn_by_name("sha256")
    kv_cache_utils.init_none_hash(hash_function)
    return SimpleNamespace(
        msgspec=msgspec, torch=torch, version=vllm.__version__, kv=kv, kv_cache_utils=kv_cache_utils,
        CacheConfig=CacheConfig, DeviceConfig=DeviceConfig, ModelConfig=ModelConfig,
        ParallelConfig=ParallelConfig, SchedulerConfig=SchedulerConfig, SpeculativeConfig=SpeculativeConfig,
        VllmConfig=VllmConfig, SamplingParams=SamplingParams, AsyncScheduler=AsyncScheduler,
        Scheduler=Scheduler, DraftTokenIds=DraftTokenIds, ModelRunnerOutput=ModelRunnerOutput,
        Request=Request, RequestStatus=RequestStatus, StructuredOutputManager=StructuredOutputManager,
        hash_function=hash_function, model_folder=write_model_folder(), model_configs={},
        structured_output=None,
    )  # fmt: skip


def stub_model(torch: Any) -> type:
    """A model class without weights: just enough for the engine's model registry."""

    class TinyForCausalLM(torch.nn.Module):
        def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
            super().__init__()

        def embed_input_ids(self, input_ids: Any) -> Any:
            raise NotImplementedError

        get_input_embeddings = embed_input_ids

        def forward(self, input_ids: Any, positions: Any) -> Any:
            raise NotImplementedError

        def compute_logits(self, hidden_states: Any) -> Any:
            raise NotImplementedError

    return TinyForCausalLM


def write_model_folder() -> str:
    """A temporary folder with the config of a tiny llama; the driver's exit removes it."""
    folder = tempfile.TemporaryDirectory(prefix="kvoracle-model-")
    config = {
        "architectures": [ARCHITECTURE], "model_type": "llama", "hidden_size": 8, "intermediate_size": 16,
        "num_attention_heads": 1, "num_key_value_heads": 1, "num_hidden_layers": 1, "head_dim": 8,
        "vocab_size": 64, "max_position_embeddings": 1 << 20, "torch_dtype": "bfloat16",
    }  # fmt: skip
    with open(os.path.join(folder.name, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)
    write_model_folder.keep = folder  # type: ignore[attr-defined]
    return folder.name


# --- tokens and requests ----------------------------------------------------------------------------


def stream_base(name: str) -> int:
    """The token at position 0 of a stream; position i is ``base + i``, so streams do not meet."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "little") << 16


class Tracked:
    """What the driver, in the worker's place, knows of one request.

    ``known``: tokens that the worker has, sampled ones in flight included. ``ahead``: drafts rejected in
    steps whose output the scheduler has not seen yet, so how far its count of computed tokens is ahead
    of the truth. ``drafted``: the worker has drafts that follow what is known. ``epoch`` goes up when the
    request is scheduled afresh: what was in flight before that no longer counts.
    """

    __slots__ = ("accept", "ahead", "drafted", "engine", "epoch", "id", "known", "output_base", "prompt", "verified")

    def __init__(self, spec: dict[str, Any], engine_request: Any) -> None:
        self.id: str = spec["id"]
        self.engine = engine_request
        self.prompt: int = engine_request.num_prompt_tokens
        self.output_base = stream_base(spec.get("output") or spec["id"])
        self.accept: list[int] = list(spec.get("accept", (0,))) or [0]
        self.known = self.prompt
        self.ahead = 0
        self.drafted = False
        self.epoch = 0
        self.verified = 0

    def right_drafts(self) -> int:
        """How many drafts are right in the next verifying step."""
        return self.accept[self.verified % len(self.accept)]

    def token(self, position: int) -> int:
        """The token that is right at an absolute position past the prompt."""
        return self.output_base + position - self.prompt

    def drafts(self, number: int) -> list[int]:
        """Draft tokens that follow what is known: the right ones first, then wrong ones."""
        first, right = self.token(self.known), self.right_drafts()
        return [first + i if i < right else first + i + WRONG_DRAFT_OFFSET for i in range(number)]


def prompt_tokens(segments: list[str]) -> list[int]:
    """The token ids of a prompt of segments such as ``["sys:48", "a:20"]``."""
    tokens: list[int] = []
    for segment in segments:
        name, _, length = segment.rpartition(":")
        base = stream_base(name)
        tokens.extend(range(base, base + int(length)))
    return tokens


def make_request(engine: SimpleNamespace, spec: dict[str, Any], arrival: int, hasher: Any) -> Any:
    """The engine's own request object; arrival times rise by one, since priority breaks ties on them."""
    params = engine.SamplingParams(
        max_tokens=spec.get("max_output", 1),
        ignore_eos=True,
        temperature=0,
        skip_reading_prefix_cache=spec.get("skips_lookup", False),
    )
    return engine.Request(
        request_id=spec["id"],
        prompt_token_ids=prompt_tokens(spec["prompt"]),
        sampling_params=params,
        pooling_params=None,
        arrival_time=float(arrival),
        priority=spec.get("priority", 0),
        block_hasher=hasher,
    )


# --- building the engine ----------------------------------------------------------------------------


def scenario_requests(scenario: dict[str, Any]) -> list[dict[str, Any]]:
    """All requests of a scenario in the order of arrival; a scenario that no front end lets in is refused."""
    requests = [spec for step in scenario.get("steps", ()) for spec in step.get("add", ())]
    names = [spec["id"] for spec in requests]
    if len(set(names)) != len(names):
        raise Refused("scenario: a request id occurs twice")
    for spec in requests:
        if prompt_length(spec) < 1:
            raise Refused(f"scenario: request {spec['id']!r} has an empty prompt")
    return requests


def prompt_length(spec: dict[str, Any]) -> int:
    """Tokens of a request's prompt."""
    return sum(int(segment.rpartition(":")[2]) for segment in spec["prompt"])


def model_length(scenario: dict[str, Any]) -> int:
    """A context length that no request of the scenario reaches: a power of two, so that few are needed."""
    drafts = scenario.get("features", {}).get("drafts", 0)
    lengths = [prompt_length(spec) + spec.get("max_output", 1) for spec in scenario_requests(scenario)]
    longest: int = max(lengths, default=1) + drafts + 2
    # A threshold above the model's length is refused, though it would change nothing.
    longest = max(longest, scenario["limits"].get("long_prefill_threshold", 0))
    return max(256, 1 << (longest - 1).bit_length())


def model_config(engine: SimpleNamespace, length: int) -> Any:
    """The model's config for a context length, built once per length."""
    config = engine.model_configs.get(length)
    if config is None:
        config = engine.model_configs[length] = engine.ModelConfig(
            model=engine.model_folder,
            skip_tokenizer_init=True,
            max_model_len=length,
            dtype="bfloat16",
            seed=0,
        )
    return config


def cache_config(engine: SimpleNamespace, geometry: dict[str, Any], features: dict[str, Any]) -> Any:
    """The cache config; retention goes by environment to builds that have no field for it."""
    retention = features.get("retention")
    os.environ.pop(RETENTION_VARIABLE, None)
    fields: dict[str, Any] = {}
    if "prefix_cache_retention_interval" in engine.CacheConfig.__dataclass_fields__:
        fields["prefix_cache_retention_interval"] = retention
    elif retention is not None:
        os.environ[RETENTION_VARIABLE] = str(retention)
    if features.get("exact_junction"):
        fields[junction_option(engine)] = True
    return engine.CacheConfig(
        block_size=min(group["block"] for group in geometry["groups"]),
        enable_prefix_caching=features.get("caching", True),
        prefix_match_unit=geometry["hash_block"] if features.get("partial_hits") else None,
        **fields,
    )


def junction_option(engine: SimpleNamespace) -> str:
    """The name of the opt-in to stop at exact junctions."""
    for name in JUNCTION_OPTIONS:
        if name in engine.CacheConfig.__dataclass_fields__:
            return name
    raise Refused("this build has no opt-in for exact junctions")


def scheduler_config(engine: SimpleNamespace, scenario: dict[str, Any], length: int) -> Any:
    """The scheduler's config."""
    limits, features = scenario["limits"], scenario.get("features", {})
    return engine.SchedulerConfig(
        max_num_seqs=limits["sequences"],
        max_num_batched_tokens=limits["budget"],
        max_model_len=length,
        enable_chunked_prefill=True,
        is_encoder_decoder=False,
        policy=features.get("policy", "fcfs"),
        async_scheduling=features.get("async_depth", 0) > 0,
        long_prefill_token_threshold=limits.get("long_prefill_threshold", 0),
        watermark=features.get("watermark", 0.0),
        scheduler_reserve_full_isl=features.get("reserve_full_sequence", True),
    )


def speculative_config(engine: SimpleNamespace, features: dict[str, Any], model: Any) -> Any:
    """The config of EAGLE drafts, or None. There is no draft model: only its method's name matters here."""
    drafts = features.get("drafts", 0)
    if not drafts:
        return None
    config = engine.SpeculativeConfig(
        method="ngram",
        num_speculative_tokens=drafts,
        prompt_lookup_max=2,
        prompt_lookup_min=1,
        target_model_config=model,
        target_parallel_config=engine.ParallelConfig(),
    )
    config.method = "eagle"
    if hasattr(config, "disable_lookahead_block_hashes"):
        config.disable_lookahead_block_hashes = not features.get("lookahead_hashes", True)
    return config


def vllm_config(engine: SimpleNamespace, scenario: dict[str, Any]) -> Any:
    """The whole config, validated by the engine, then put back to what was asked for.

    The hooks of a platform or of a hybrid model rewrite the restored fields on the way.
    """
    geometry, features = scenario["geometry"], scenario.get("features", {})
    os.environ[RUNNER_VARIABLE] = "1" if features.get("runner") == "v2" else "0"
    length = model_length(scenario)
    model = model_config(engine, length)
    cache = cache_config(engine, geometry, features)
    block_size = cache.block_size
    schedule = scheduler_config(engine, scenario, length)
    config = engine.VllmConfig(
        model_config=model,
        cache_config=cache,
        scheduler_config=schedule,
        speculative_config=speculative_config(engine, features, model),
        device_config=engine.DeviceConfig(device="cpu"),
    )
    cache.block_size = block_size
    cache.enable_prefix_caching = features.get("caching", True)
    cache.mamba_cache_mode = "align" if has_mamba(geometry) else "none"
    cache.num_gpu_blocks = geometry["blocks"]
    schedule.async_scheduling = features.get("async_depth", 0) > 0
    # With drafts the engine lowers this below the budget that the scenario names.
    schedule.max_num_scheduled_tokens = None
    config.validate_block_size()
    if features.get("async_depth", 0) > 1:
        deepen(engine, config, features["async_depth"])
    return config


def has_mamba(geometry: dict[str, Any]) -> bool:
    """Whether some group is a Mamba group."""
    return any(group["kind"] == "mamba" for group in geometry["groups"])


def deepen(engine: SimpleNamespace, config: Any, depth: int) -> None:
    """Let the config know of more steps in flight than the V1 runner ever has.

    The cache manager sizes a sliding window's share by it; a property cannot be set on an instance.
    """
    deep = type("VllmConfig", (engine.VllmConfig,), {"max_concurrent_batches": depth + 1})
    object.__setattr__(config, "__class__", deep)


def saved_states(engine: SimpleNamespace, unit: int) -> dict[str, Any]:
    """What a Mamba spec says of states that the backend saves inside a chunk, in units of so many tokens."""
    if not unit:
        return {}
    fields = {field.name for field in dataclasses.fields(engine.kv.MambaSpec)}
    told = {"num_prefill_checkpoint_blocks": 1, "prefill_checkpoint_alignment": unit}
    if unit == 1 and "prefill_checkpoint_alignment" not in fields:
        del told["prefill_checkpoint_alignment"]  # then any position will do
    if not told.keys() <= fields:
        raise Refused(f"this build saves no states inside a chunk in units of {unit} tokens")
    return told


def group_spec(engine: SimpleNamespace, group: dict[str, Any], drafts: int) -> Any:
    """The engine's spec of one KV-cache group."""
    kind, block = group["kind"], group["block"]
    if kind == "mamba":
        return engine.kv.MambaSpec(
            block_size=block,
            shapes=((4, 4),),
            dtypes=(engine.torch.float32,),
            mamba_cache_mode="align",
            num_speculative_blocks=drafts,
            **saved_states(engine, group.get("checkpoint", 0)),
        )
    shape = {"block_size": block, "num_kv_heads": 1, "head_size": 8, "dtype": engine.torch.bfloat16}
    if kind == "swa":
        return engine.kv.SlidingWindowSpec(**shape, sliding_window=group["window"])
    if kind == "chunked":
        return engine.kv.ChunkedLocalAttentionSpec(**shape, attention_chunk_size=group["attention_chunk"])
    return engine.kv.FullAttentionSpec(**shape)


def kv_cache_config(engine: SimpleNamespace, scenario: dict[str, Any]) -> Any:
    """The groups and the pool, as the engine core would hand them to the scheduler."""
    geometry, features = scenario["geometry"], scenario.get("features", {})
    drafts = features.get("drafts", 0)
    groups = [
        engine.kv.KVCacheGroupSpec(
            [f"layer.{index}"],
            group_spec(engine, group, drafts),
            is_eagle_group=bool(group.get("eagle")) and drafts > 0,
        )
        for index, group in enumerate(geometry["groups"])
    ]
    config = engine.kv.KVCacheConfig(num_blocks=geometry["blocks"], kv_cache_tensors=[], kv_cache_groups=groups)
    if hasattr(config, "prefix_cache_retention_interval"):
        config.prefix_cache_retention_interval = features.get("retention")
    return config


def build_scheduler(engine: SimpleNamespace, scenario: dict[str, Any]) -> tuple[Any, Any, Any]:
    """The scheduler, the function that hashes a request's blocks, and the config they stand on."""
    features = scenario.get("features", {})
    caching = features.get("caching", True)
    config = vllm_config(engine, scenario)
    cache = kv_cache_config(engine, scenario)
    block_size, hash_block = engine.kv_cache_utils.resolve_kv_cache_block_sizes(cache, config)
    asked = scenario["geometry"]["hash_block"]
    if caching and hash_block != asked:
        raise Refused(f"hash block: the scenario says {asked}, this build resolves {hash_block}")
    if hasattr(cache, "hash_block_size"):
        cache.hash_block_size = hash_block
    if engine.structured_output is None:
        engine.structured_output = engine.StructuredOutputManager(config)
    scheduler = (engine.AsyncScheduler if features.get("async_depth", 0) else engine.Scheduler)(
        vllm_config=config,
        kv_cache_config=cache,
        structured_output_manager=engine.structured_output,
        block_size=block_size,
        hash_block_size=hash_block,
        log_stats=True,
    )
    if not caching:
        return scheduler, None, config
    lookahead = getattr(config, "num_hash_lookahead_tokens", 0)
    more = {"num_hash_lookahead_tokens": lookahead} if lookahead else {}
    hasher = engine.kv_cache_utils.get_request_block_hasher(hash_block, engine.hash_function, **more)
    return scheduler, hasher, config


def read_setup(scheduler: Any) -> dict[str, Any]:
    """The facts of ``Setup``, from the built engine's own objects."""
    manager = scheduler.kv_cache_manager
    coordinator = manager.coordinator
    scheduler_block = getattr(coordinator, "scheduler_block_size", scheduler.block_size)
    alignment = getattr(coordinator, "_cache_hit_alignment_tokens", None)
    if alignment is None:
        alignment = getattr(coordinator, "block_size", scheduler_block)
    return {
        "scheduler_block": scheduler_block,
        "hash_block": coordinator.block_pool.hash_block_size,
        "split_grid": scheduler.cache_config.block_size,
        "alignment": alignment,
        "partial_hits": bool(getattr(coordinator, "enable_partial_hash_hits", False)),
        "split": bool(scheduler.need_mamba_block_aligned_split),
        "block_drop": bool(getattr(scheduler, "use_eagle_block_drop", scheduler.use_eagle)),
        "lookahead_hash": getattr(scheduler, "num_hash_lookahead_tokens", 0),
        "drop_groups": drop_groups(coordinator),
        "exact_junction": any(
            bool(getattr(scheduler, name, False))
            for name in ("mamba_shared_prefix_checkpoint", "mamba_fine_grained_prefix_cache")
        ),
        "lookahead": scheduler.num_lookahead_tokens,
        "retention": getattr(coordinator, "retention_interval", None),
        "watermark_blocks": getattr(manager, "watermark_blocks", 0),
        "zeroing": bool(scheduler.needs_kv_cache_zeroing),
        "checkpoint_alignment": checkpoint_alignment(scheduler),
        "model_length": scheduler.max_model_len,
    }


def checkpoint_alignment(scheduler: Any) -> int:
    """The unit of the position at which the backend saves a state inside a chunk, 0 if it does not."""
    if not getattr(scheduler, "mamba_has_prefill_checkpoint_blocks", False):
        return 0
    return getattr(scheduler, "mamba_prefill_checkpoint_alignment", None) or 1


def drop_groups(coordinator: Any) -> list[bool]:
    """Per group, the EAGLE bit that the coordinator hands to the group's lookup."""
    managers = coordinator.single_type_managers
    groups = getattr(coordinator, "attention_groups", None)
    if groups is None:
        dropping = getattr(coordinator, "drop_eagle_group_ids", coordinator.eagle_group_ids)
        return [index in dropping for index in range(len(managers))]
    dropping = {index for group in groups if group.use_eagle for index in group.group_ids}
    return [index in dropping for index in range(len(managers))]


# --- observing the engine ---------------------------------------------------------------------------


class Observer:
    """Wraps an engine's decision points on its instances and notes in ``records`` what they did."""

    def __init__(self, engine: SimpleNamespace, scheduler: Any, records: Records) -> None:
        self.records = records
        self.emit = records.append
        self.scheduler = scheduler
        self.manager = scheduler.kv_cache_manager
        self.managers = list(self.manager.coordinator.single_type_managers)
        self.pool = self.manager.coordinator.block_pool
        self.group_of = engine.kv_cache_utils.get_group_id
        # References as the records tell them; the difference to the engine's own counts are pins.
        self.references = [0] * len(self.pool.blocks)
        self.tables: dict[str, list[list[Any]]] = {}
        self.positions: dict[bytes, int] = {}
        self.unsettled: str | None = None
        self.promised: int | None = None
        self.owner = ""
        self.missing: list[str] = []
        self.watch_scheduler()
        self.watch_manager()
        self.watch_pool()

    def wrap(self, target: Any, method: str, decision: str, make: Any) -> None:
        """Put ``make(original)`` in a method's place; without the method the decision is missing."""
        original = getattr(target, method, None)
        if original is not None:
            setattr(target, method, make(original))
        elif decision and decision not in self.missing:
            self.missing.append(decision)

    def watch_scheduler(self) -> None:
        """Observe the split, preemptions, ends and resets."""
        self.wrap(self.scheduler, "_mamba_block_aligned_split", "split", self.on_split)
        self.wrap(self.scheduler, "_preempt_request", "preempt", self.on_preempt)
        self.wrap(self.scheduler, "_free_request", "", self.on_finish)
        self.wrap(self.scheduler, "reset_prefix_cache", "", self.on_reset)

    def watch_manager(self) -> None:
        """Observe lookups, allocations, and what each group is told to cache."""
        self.wrap(self.manager, "get_computed_blocks", "lookup", self.on_lookup)
        self.wrap(self.manager, "allocate_slots", "allocate", self.on_allocate)
        self.wrap(self.manager.coordinator, "get_num_blocks_to_allocate", "", self.on_promise)
        self.wrap(self.manager, "free", "", self.on_release)
        self.wrap(self.manager, "make_prefix_cache_stats", "statistics", self.on_statistics)
        for group, manager in enumerate(self.managers):
            self.wrap(manager, "cache_blocks", "cache", lambda call, group=group: self.on_cache(call, group))

    def watch_pool(self) -> None:
        """Observe hashes and references where they change."""
        self.wrap(self.pool, "_insert_block_hash", "commit", self.on_commit)
        self.wrap(self.pool, "_remove_cached_block_hashes", "evict", self.on_evict)
        self.wrap(self.pool, "get_new_blocks", "take", self.on_take)
        self.wrap(self.pool, "touch", "touch", self.on_touch)
        self.wrap(self.pool, "free_blocks", "free", self.on_free)

    # The scheduler.

    def on_split(self, call: Any) -> Any:
        emit = self.emit

        def split(request: Any, asked: int, local: int = 0, external: int = 0) -> int:
            granted: int = call(request, asked, local, external)
            start = request.num_computed_tokens + local + external
            emit(
                ("split", request.request_id, start, asked, granted, request.num_tokens,
                 request.num_prompt_tokens, request.shared_prefix_boundary)
            )  # fmt: skip
            return granted

        return split

    def on_preempt(self, call: Any) -> Any:
        emit = self.emit

        def preempt(request: Any, *args: Any, **fields: Any) -> Any:
            emit(("preempt", request.request_id))
            return call(request, *args, **fields)

        return preempt

    def on_finish(self, call: Any) -> Any:
        emit = self.emit
        reasons = {"FINISHED_LENGTH_CAPPED": "length"}

        def finish(request: Any, *args: Any, **fields: Any) -> Any:
            name = request.status.name
            emit(("finish", request.request_id, reasons.get(name) or name.removeprefix("FINISHED_").lower()))
            return call(request, *args, **fields)

        return finish

    def on_reset(self, call: Any) -> Any:
        def reset(*args: Any, **fields: Any) -> Any:
            done = call(*args, **fields)
            if done:
                self.positions.clear()
            self.emit(("reset", bool(done)))
            return done

        return reset

    # The cache manager.

    def on_lookup(self, call: Any) -> Any:
        emit = self.emit

        def lookup(request: Any, *args: Any, **fields: Any) -> Any:
            found = call(request, *args, **fields)
            junction = found[2] if len(found) > 2 else request.shared_prefix_boundary
            blocks = [[block.block_id for block in group] for group in found[0].blocks]
            emit(("lookup", request.request_id, request.num_tokens, found[1], junction, blocks))
            return found

        return lookup

    def on_allocate(self, call: Any) -> Any:
        emit, settle = self.emit, self.settle

        def allocate(request: Any, tokens: int, *args: Any, **fields: Any) -> Any:
            hit = args[0] if args else fields.get("num_new_computed_tokens", 0)
            computed = request.num_computed_tokens + hit + fields.get("num_external_computed_tokens", 0)
            self.unsettled = name = request.request_id
            self.promised = None
            blocks = call(request, tokens, *args, **fields)
            if self.unsettled is not None:
                settle(name)
            emit(("allocate", name, computed, tokens, hit, blocks is not None, self.promised))
            return blocks

        return allocate

    def on_promise(self, call: Any) -> Any:
        def count(*args: Any, **fields: Any) -> int:
            self.promised = promised = call(*args, **fields)
            return promised

        return count

    def on_release(self, call: Any) -> Any:
        emit, tables = self.emit, self.tables

        def free(request: Any, *args: Any, **fields: Any) -> Any:
            result = call(request, *args, **fields)
            for group, blocks in enumerate(tables.pop(request.request_id, ())):
                if blocks:
                    emit(("table", request.request_id, group, 0, ()))
            return result

        return free

    def on_statistics(self, call: Any) -> Any:
        emit = self.emit

        def make_statistics(*args: Any, **fields: Any) -> Any:
            told = call(*args, **fields)
            if told is not None and (told.requests or told.preempted_requests):
                emit(
                    ("statistics", told.requests, told.queries, told.hits,
                     told.preempted_requests, told.preempted_queries, told.preempted_hits)
                )  # fmt: skip
            return told

        return make_statistics

    def on_cache(self, call: Any, group: int) -> Any:
        emit = self.emit

        def cache_blocks(request: Any, tokens: int, *args: Any, **fields: Any) -> Any:
            if self.unsettled is not None:
                self.settle(self.unsettled)
            emit(("cache", request.request_id, group, tokens))
            self.owner = request.request_id
            try:
                return call(request, tokens, *args, **fields)
            finally:
                self.owner = ""

        return cache_blocks

    # The pool.

    def on_commit(self, call: Any) -> Any:
        emit, positions, group_of, pool = self.emit, self.positions, self.group_of, self.pool

        def insert(key: bytes, block: Any, num_tokens: int | None = None) -> Any:
            known = block.block_hash == key or pool.cached_block_hash_to_block.contain(key, block.block_id)
            result = call(key, block, num_tokens=num_tokens)
            if known:
                return result
            if self.owner and num_tokens is not None:
                position = positions[key] = num_tokens
            else:
                # Moved: the engine passes one count for all hashes of the block; it suits the first only.
                position = positions.get(key, num_tokens or 0)
            digest = int.from_bytes(key[:6], "big")
            emit(("commit", self.owner, group_of(key), block.block_id, position, digest))
            return result

        return insert

    def on_evict(self, call: Any) -> Any:
        emit = self.emit

        def remove(block: Any) -> Any:
            removed = call(block)
            if removed:
                emit(("evict", block.block_id))
            return removed

        return remove

    def on_take(self, call: Any) -> Any:
        emit, references = self.emit, self.references

        def take(number: int, *args: Any, **fields: Any) -> Any:
            blocks = call(number, *args, **fields)
            if blocks:
                ids = [block.block_id for block in blocks]
                for block in ids:
                    references[block] += 1
                emit(("take", ids))
            return blocks

        return take

    def on_touch(self, call: Any) -> Any:
        emit, references = self.emit, self.references

        def touch(blocks: Any, *args: Any, **fields: Any) -> Any:
            blocks = blocks if isinstance(blocks, (list, tuple)) else list(blocks)
            result = call(blocks, *args, **fields)
            ids = [block.block_id for block in blocks if not block.is_null]
            if ids:
                for block in ids:
                    references[block] += 1
                emit(("touch", ids))
            return result

        return touch

    def on_free(self, call: Any) -> Any:
        emit, references = self.emit, self.references

        def free_blocks(blocks: Any, *args: Any, **fields: Any) -> Any:
            blocks = list(blocks)
            ids = []
            for block in blocks:
                if not block.is_null:
                    if block.ref_cnt != references[block.block_id]:
                        self.pin(block)
                    ids.append(block.block_id)
            result = call(blocks, *args, **fields)
            if ids:
                for name in ids:
                    references[name] -= 1
                emit(("free", ids))
            return result

        return free_blocks

    # What no single call tells.

    def pin(self, block: Any) -> None:
        """Note references that a block got or lost outside the pool's calls (the ends of a copy)."""
        name = block.block_id
        delta = block.ref_cnt - self.references[name]
        for _ in range(abs(delta)):
            self.emit(("pin", (name,), 1 if delta > 0 else -1))
        self.references[name] = block.ref_cnt

    def settle(self, request: str) -> None:
        """Note pins and changes of a request's tables, once an allocation has put its blocks in place."""
        self.unsettled = None
        tables = self.tables.get(request)
        if tables is None:
            tables = self.tables[request] = [[] for _ in self.managers]
        for group, manager in enumerate(self.managers):
            for pair in manager._pending_cow_copies:
                for block in pair:
                    if block.ref_cnt != self.references[block.block_id]:
                        self.pin(block)
            # Equality is cheap: identical blocks are equal at once, and the first field of others differs.
            blocks = manager.req_to_blocks.get(request, ())
            if blocks != tables[group]:
                self.change_table(request, group, tables, blocks)

    def change_table(self, request: str, group: int, tables: list[list[Any]], blocks: list[Any]) -> None:
        """Note how a table differs from what was last said of it."""
        old = tables[group]
        start = len(old)
        if blocks[:start] != old:
            pairs = zip(old, blocks, strict=False)
            start = next((i for i, (a, b) in enumerate(pairs) if a is not b), min(start, len(blocks)))
        elif len(blocks) == start:
            return
        self.emit(("table", request, group, start, [block.block_id for block in blocks[start:]]))
        tables[group] = list(blocks)

    def snapshot(self) -> None:
        """Note the whole state, read from the engine, not from what was noted before."""
        pool = self.pool
        cached: list[tuple[int, int, int]] = []
        for key, value in pool.cached_block_hash_to_block._cache.items():
            group, digest = self.group_of(key), int.from_bytes(key[:6], "big")
            holders = value.values() if isinstance(value, dict) else (value,)
            cached.extend((group, block.block_id, digest) for block in holders)
        tables = [
            (request, group, [block.block_id for block in blocks])
            for group, manager in enumerate(self.managers)
            for request, blocks in manager.req_to_blocks.items()
            if blocks
        ]
        references = [(b.block_id, b.ref_cnt) for b in pool.blocks if b.ref_cnt and not b.is_null]
        free = [block.block_id for block in pool.free_block_queue.get_all_free_blocks()]
        self.emit(("snapshot", references, free, cached, tables))


# --- the worker's side of a step --------------------------------------------------------------------


class Flight:
    """One step handed to the worker: its output, and what the driver must remember until it is processed."""

    __slots__ = ("executed", "index", "output", "plan", "rejected", "sampling")

    def __init__(self, index: int, plan: Any) -> None:
        self.index = index
        self.plan = plan
        self.executed: bool = plan.total_num_scheduled_tokens > 0
        self.output: Any = None
        self.rejected: list[tuple[Tracked, int, int]] = []
        self.sampling: list[Tracked] = []


class Worker:
    """Stands in for the model runner: knows every request's tokens, samples, accepts and proposes drafts."""

    def __init__(self, engine: SimpleNamespace, scenario: dict[str, Any], groups: int) -> None:
        features = scenario.get("features", {})
        self.engine = engine
        self.drafts: int = features.get("drafts", 0)
        self.in_flight: int = features.get("async_depth", 0)
        self.keeps_drafts = features.get("runner") == "v2"
        self.requests: dict[str, Tracked] = {}
        self.nothing = ((),) * groups
        # The requests of the last step that ran; only for them has the worker drafts of its own (async).
        self.previous: set[str] = set()

    def execute(self, flight: Flight) -> list[tuple[Any, ...]]:
        """Run a step: fill in its output, and return a ``Scheduled`` entry per request."""
        plan = flight.plan
        scheduled = []
        fresh, running = self.sent_requests(plan)
        all_drafts = plan.scheduled_spec_decode_tokens
        names = list(plan.num_scheduled_tokens)
        sampled = []
        for name, tokens in plan.num_scheduled_tokens.items():
            tracked = self.requests[name]
            is_fresh = name in fresh
            planned, blocks = (fresh if is_fresh else running)[name]
            if is_fresh:
                tracked.known, tracked.ahead, tracked.drafted = tracked.engine.num_tokens, 0, False
                tracked.epoch += 1
            start = planned - tracked.ahead
            drafts = all_drafts.get(name, ())
            samples = start + tokens - len(drafts) == tracked.known
            accepted = self.verify(tracked, drafts, is_fresh) if samples and drafts else 0
            tracked.drafted = samples and not getattr(plan, "skip_drafts", False)
            scheduled.append(
                (name, start, planned, tokens, len(drafts), accepted, samples, is_fresh,
                 blocks or self.nothing)
            )  # fmt: skip
            sampled.append(self.sample(flight, tracked, len(drafts), accepted) if samples else [])
        if names:
            self.previous = set(names)
        flight.output = self.engine.ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=sampled,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=None,
        )
        return scheduled

    @staticmethod
    def sent_requests(plan: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """What the scheduler sent of each request: (computed tokens, blocks), whole tables and additions."""
        fresh = {new.req_id: (new.num_computed_tokens, new.block_ids) for new in plan.scheduled_new_reqs}
        running: dict[str, Any] = {}
        cached = plan.scheduled_cached_reqs
        for index, name in enumerate(cached.req_ids):
            sent = (cached.num_computed_tokens[index], cached.new_block_ids[index])
            (fresh if name in cached.resumed_req_ids else running)[name] = sent
        return fresh, running

    def verify(self, tracked: Tracked, drafts: list[int], is_fresh: bool) -> int:
        """How many drafts are right. Padding, which stands where the worker has no drafts, never is."""
        if self.keeps_drafts:
            are_drafts = tracked.drafted
        elif self.in_flight:
            are_drafts = not is_fresh and tracked.id in self.previous
        else:
            are_drafts = drafts[0] >= 0
        if not are_drafts:
            return 0
        accepted = min(tracked.right_drafts(), len(drafts))
        tracked.verified += 1
        return accepted

    @staticmethod
    def sample(flight: Flight, tracked: Tracked, drafts: int, accepted: int) -> list[int]:
        """The tokens that a sampling step yields: the accepted drafts and one more."""
        first = tracked.token(tracked.known)
        tracked.known += accepted + 1
        tracked.ahead += drafts - accepted
        flight.sampling.append(tracked)
        if drafts != accepted:
            flight.rejected.append((tracked, tracked.epoch, drafts - accepted))
        return list(range(first, first + accepted + 1))

    @staticmethod
    def processed(flight: Flight) -> None:
        """The scheduler has seen the step's output, so it took back the rejected drafts itself."""
        for tracked, epoch, rejected in flight.rejected:
            if tracked.epoch == epoch:
                tracked.ahead -= rejected

    def propose(self, flight: Flight) -> Any:
        """The drafts that a synchronous worker offers after a step, or None.

        Runner V2 only says how many it has, and makes none when the scheduler says that no request could use them.
        """
        if not self.drafts or self.in_flight or not flight.sampling:
            return None
        if getattr(flight.plan, "skip_drafts", False):
            return None
        names = [tracked.id for tracked in flight.sampling]
        offered = [[-1] * self.drafts if self.keeps_drafts else t.drafts(self.drafts) for t in flight.sampling]
        return self.engine.DraftTokenIds(names, offered)


# --- running a scenario -----------------------------------------------------------------------------


class Run:
    """One scenario on one fresh engine."""

    def __init__(self, engine: SimpleNamespace, channel: Channel, raw: bytes, record: bool) -> None:
        self.engine = engine
        self.channel = channel
        self.raw = raw
        self.scenario: dict[str, Any] = json.loads(raw)
        self.records: Records = []
        self.observer: Observer | None = None
        self.record = record
        self.flights: deque[Flight] = deque()
        self.index = 0
        self.arrivals = 0
        self.calls = self.construct = self.transport = 0.0
        self.crash: tuple[str, str] | None = None

    def build(self) -> None:
        """Build the engine, wrap it, send the header. Raises what the engine's validators raise."""
        clock = time.thread_time()
        scheduler, self.hasher, config = build_scheduler(self.engine, self.scenario)
        self.scheduler = scheduler
        self.queues = [queue for queue in QUEUES if hasattr(scheduler, queue)]
        self.depth: int = self.scenario.get("features", {}).get("async_depth", 0)
        self.worker = Worker(self.engine, self.scenario, len(self.scenario["geometry"]["groups"]))
        self.construct = time.thread_time() - clock
        if not self.record:
            return
        setup = read_setup(scheduler)
        self.observer = Observer(self.engine, scheduler, self.records)
        header = {
            "engine": "vllm",
            "version": self.engine.version,
            "runner": "v2" if config.use_v2_model_runner else "v1",
            "setup": setup,
            "scenario": self.engine.msgspec.Raw(self.raw),
            "missing": self.observer.missing,
            "kvoracle_trace": 1,
        }
        self.channel.note(header)

    def play(self) -> None:
        """Run the scenario to its end, or into the engine's exception, which becomes a ``crash`` record."""
        try:
            self.loop()
        except Exception as error:
            self.crash = describe(error)
            self.records.append(("crash", "exception", *self.crash))
        self.flush()

    def loop(self) -> None:
        """Step until every request ended, nothing moves any more, or the limit of steps is reached."""
        events = {step["at"]: step for step in self.scenario.get("steps", ())}
        last_event = max(events, default=-1)
        steps_max = last_event + 1 + self.step_allowance()
        idle = 0
        while self.index <= last_event or self.scheduler.requests:
            event = events.get(self.index, {})
            executed = self.step(event)
            idle = 0 if executed or self.index <= last_event else idle + 1
            self.index += 1
            if idle >= IDLE_STEPS_MAX or self.index >= steps_max:
                break
            if self.index % SNAPSHOT_STEPS == 0:
                self.snapshot()
                self.construct += collect_garbage()
            self.flush()
        while self.flights:
            self.update(self.flights.popleft())
        if zlib.crc32(self.raw) % SNAPSHOT_SCENARIOS == 0:
            self.snapshot()
        self.records.append(("end", self.index, sorted(self.scheduler.requests)))

    def step_allowance(self) -> int:
        """Steps after the last event within which a live engine must have ended everything."""
        requests = scenario_requests(self.scenario)
        tokens: int = sum(prompt_length(spec) + spec.get("max_output", 1) for spec in requests)
        return 4 * tokens + 200

    def step(self, event: dict[str, Any]) -> bool:
        """One call of ``schedule()`` with its events, and the update that is due; whether anything ran.

        As the engine core's loop: a step's output is processed once the queue is full, or when there is
        nothing more to schedule.
        """
        self.before(event)
        clock = time.thread_time()
        plan = self.scheduler.schedule()
        self.calls += time.thread_time() - clock
        flight = Flight(self.index, plan)
        self.execute(flight)
        self.flights.append(flight)
        self.abort(event.get("abort_in_flight"))
        waits = len(self.flights) <= self.depth and (flight.executed or self.scheduler.has_requests())
        if not waits:
            self.update(self.flights.popleft())
        return flight.executed

    def before(self, event: dict[str, Any]) -> None:
        """The events that precede ``schedule()``."""
        if event.get("reset"):
            clock = time.thread_time()
            self.scheduler.reset_prefix_cache()
            self.calls += time.thread_time() - clock
        self.abort(event.get("abort"))
        for spec in event.get("add", ()):
            self.add(spec)

    def add(self, spec: dict[str, Any]) -> None:
        """A request arrives."""
        clock = time.thread_time()
        request = make_request(self.engine, spec, self.arrivals, self.hasher)
        self.arrivals += 1
        self.worker.requests[spec["id"]] = Tracked(spec, request)
        if self.record:
            output = spec.get("output") or spec["id"]
            self.records.append(("add", spec["id"], spec["prompt"], output, request.num_prompt_tokens))
        self.scheduler.add_request(request)
        self.calls += time.thread_time() - clock

    def abort(self, names: list[str] | None) -> None:
        """Requests are aborted; ids that are unknown or ended already are the engine's to ignore."""
        if names:
            clock = time.thread_time()
            self.scheduler.finish_requests(list(names), self.engine.RequestStatus.FINISHED_ABORTED)
            self.calls += time.thread_time() - clock

    def execute(self, flight: Flight) -> None:
        """Hand a step to the worker and note it."""
        scheduled = self.worker.execute(flight)
        if not self.record:
            return
        plan = flight.plan
        self.records.append(
            ("step", flight.index, scheduled, plan.new_block_ids_to_zero or (),
             [(copy.src_block_id, copy.dst_block_id) for copy in plan.kv_cache_block_copies or ()],
             sorted(plan.preempted_req_ids or ()), sorted(plan.finished_req_ids),
             self.waiting(), len(self.scheduler.running))
        )  # fmt: skip

    def waiting(self) -> int:
        """Requests that wait, in whichever queues this build has."""
        return sum([len(getattr(self.scheduler, queue)) for queue in self.queues])

    def update(self, flight: Flight) -> None:
        """The scheduler processes a step's output, then, without async scheduling, is offered drafts."""
        place = len(self.records)
        before = [tracked.engine.num_tokens for tracked in flight.sampling]
        if self.record:
            self.records.append(("output", flight.index, ()))
        clock = time.thread_time()
        self.scheduler.update_from_output(flight.plan, flight.output)
        drafts = self.worker.propose(flight)
        if drafts is not None:
            self.scheduler.update_draft_token_ids(drafts)
        self.calls += time.thread_time() - clock
        self.worker.processed(flight)
        if self.record:
            pairs = zip(flight.sampling, before, strict=True)
            got = [(tracked.id, tracked.engine.num_tokens - known) for tracked, known in pairs]
            self.records[place] = ("output", flight.index, got)

    def snapshot(self) -> None:
        """Note the whole state if recording."""
        if self.observer is not None:
            self.observer.snapshot()

    def flush(self) -> None:
        """Hand over what was noted since the last line, so that a crash of the process keeps it."""
        if self.records and self.record:
            if self.index % TIMED_LINES:
                self.channel.note(self.records)
            else:
                clock = time.thread_time()
                self.channel.note(self.records)
                self.transport += TIMED_LINES * (time.thread_time() - clock)
        self.records.clear()

    def summary(self) -> dict[str, Any]:
        """What ``E`` says."""
        cpu = {"construct": self.construct, "calls": self.calls, "transport": self.transport}
        summary = {"steps": self.index, "cpu": cpu, "rss_mb": resident_mb()}
        return summary if self.crash is None else {**summary, "crash": self.crash}


def describe(error: BaseException) -> tuple[str, str]:
    """Where an exception came from, and what it said: (``module:function``, first line).

    The innermost frame of vLLM or of this driver decides; ``driver:`` marks a fault of the driver.
    """
    where, line = "driver:unknown", ""
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        module = trace.tb_frame.f_globals.get("__name__", "")
        # A plugin's package (vllm_ascend) is part of the engine.
        if module == __name__ or module.startswith("vllm"):
            owner = "driver" if module == __name__ else module
            where = f"{owner}:{getattr(code, 'co_qualname', code.co_name)}"
            line = linecache.getline(code.co_filename, trace.tb_lineno).strip()
        trace = trace.tb_next
    said = str(error).strip().split("\n", 1)[0] or line
    return where, f"{type(error).__name__}: {said}"


def refusal(error: Exception) -> str:
    """Why the engine would not build, on one line."""
    if isinstance(error, Refused):
        return str(error)
    details = getattr(error, "errors", None)
    if callable(details):
        # Pydantic's first line only counts its errors.
        found = details()
        if found:
            return str(found[0].get("msg", error)).split("\n", 1)[0]
    where, said = describe(error)
    expected = isinstance(error, (ValueError, AssertionError, NotImplementedError))
    return said if expected and not where.startswith("driver:") else f"{where}: {said}"


def resident_mb() -> float:
    """Resident memory of this process."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return round(int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)
    except OSError:
        return 0.0


# --- talking to the parent --------------------------------------------------------------------------


class Trace:
    """The lines of one trace in a file that the parent reads too; it grows, and begins anew with each scenario."""

    def __init__(self, descriptor: int) -> None:
        os.ftruncate(descriptor, TRACE_BYTES)
        self.map = mmap.mmap(descriptor, TRACE_BYTES)
        self.end = TRACE_START

    def begin(self) -> None:
        """Begin anew; the parent has read the trace before, and set the count to 0."""
        self.end = TRACE_START

    def add(self, line: bytes) -> None:
        """Add a line; only then count it."""
        end = self.end + len(line) + 1
        while end > len(self.map):
            self.map.resize(2 * len(self.map))
        self.map[self.end : end] = line + b"\n"
        self.map[:TRACE_START] = (end - TRACE_START).to_bytes(TRACE_START, "little")
        self.end = end


class Channel:
    """Frames over two private descriptors, and the trace; what vLLM prints can never get into them."""

    def __init__(self, read_fd: int, write_fd: int, trace_fd: int) -> None:
        self.source: BinaryIO = os.fdopen(read_fd, "rb")
        self.sink: BinaryIO = os.fdopen(write_fd, "wb", buffering=1 << 16)
        self.trace = Trace(trace_fd)
        self.encode: Any = None

    def note(self, value: Any) -> None:
        """Add a line of JSON to the trace."""
        self.trace.add(self.encode(value))

    def send(self, kind: bytes, payload: bytes) -> None:
        """Send one frame at once."""
        self.sink.write(struct.pack("<I", len(payload) + 1) + kind + payload)
        self.sink.flush()

    def send_json(self, kind: bytes, value: Any) -> None:
        """Send one frame of JSON."""
        self.send(kind, self.encode(value))

    def receive(self) -> tuple[bytes, bytes]:
        """The next frame; the parent's death reads as ``Q``."""
        size = self.source.read(4)
        if len(size) < 4:
            return b"Q", b""
        frame = self.source.read(struct.unpack("<I", size)[0])
        return frame[:1], frame[1:]


def serve(engine: SimpleNamespace, channel: Channel) -> None:
    """Answer scenarios until told to quit."""

    order_type = engine.msgspec.defstruct("Order", [("scenario", engine.msgspec.Raw), ("record", bool, True)])
    decoder = engine.msgspec.json.Decoder(order_type)
    while True:
        kind, payload = channel.receive()
        if kind != b"S":
            return
        order = decoder.decode(payload)
        answer(engine, channel, bytes(order.scenario), order.record)


def collect_garbage() -> float:
    """Collect if there may be much: engines are full of cycles. Gives the CPU seconds that it took.

    What is noted of a run is freed as it is handed over, so what is found here are engines that have served.
    """
    if gc.get_count()[0] <= GARBAGE_OBJECTS_MAX:
        return 0.0
    clock = time.thread_time()
    gc.collect()
    return time.thread_time() - clock


def answer(engine: SimpleNamespace, channel: Channel, raw: bytes, record: bool) -> None:
    """Run one scenario: write its trace, and send what it ended with."""
    if engine.sources is not None:
        engine.sources.hits.clear()  # a scenario that was refused left its own
    channel.trace.begin()
    run = Run(engine, channel, raw, record)
    try:
        run.build()
    except Exception as error:
        channel.send(b"X", refusal(error).encode())
        return
    run.play()
    # Freeing engines is part of what it costs to build one for each scenario.
    run.construct += collect_garbage()
    lines = {"lines": engine.sources.taken()} if engine.sources is not None else {}
    channel.send_json(b"E", {**run.summary(), **lines})


def die_with_parent() -> None:
    """Ask the system to end this process with its parent, which may be killed while an engine hangs here."""
    with contextlib.suppress(OSError, AttributeError):  # only Linux has it
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    """Load the engine, say so, serve."""
    die_with_parent()
    channel = Channel(*map(int, sys.argv[1:4]))
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    sources = use_sources(sys.argv[4]) if len(sys.argv) > 4 else None
    engine = load_engine()
    engine.sources = sources
    channel.encode = engine.msgspec.json.Encoder().encode
    # A warning per failed reset of the cache would cost more than the reset.
    logging.disable(logging.WARNING)
    # What the engine's import left behind is never searched for garbage again.
    gc.collect()
    gc.freeze()
    gc.disable()
    hello = {"version": engine.version, "python": sys.version.split()[0], "pid": os.getpid()}
    if sources is not None:
        hello.update(patched=sources.patched, lines=sources.taken())
    channel.send_json(b"K", hello)
    serve(engine, channel)


if __name__ == "__main__":
    main()
