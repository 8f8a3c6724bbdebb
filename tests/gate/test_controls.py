"""The gate's controls are planted where the candidate has their functions, and are missing where it has not."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz.gate.controls import Control, controls
from fuzz.gate.source_file import SourceError

SCHEDULER = "v1/core/sched/scheduler.py"
MANAGERS = "v1/core/single_type_kv_cache_manager.py"
POOL = "v1/core/block_pool.py"
SOURCES = {
    SCHEDULER: '''\
class Scheduler:
    def _mamba_block_aligned_split(self, request, asked, local=0):
        """A docstring
        of two lines."""
        end = max(
            asked,
            local,
        )
        return end - 1
''',
    MANAGERS: """\
class SingleTypeKVCacheManager:
    def reachable_block_mask(cls, start, end): return None
class SlidingWindowManager:
    def reachable_block_mask(cls, start, end, more):
        return [True] * (end - start)
class MambaManager:
    def reachable_block_mask(cls, first, last):
        if first:
            return None
        return [True] * last
""",
    POOL: """\
class BlockPool:
    def get_cached_block(self, block_hash, groups):
        return self.map[block_hash]
""",
}


def planted(tmp_path: Path, **changed: str) -> dict[str, Control]:
    for file, text in (SOURCES | changed).items():
        path = tmp_path / "vllm" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return {control.name: control for control in controls(tmp_path)}


def run(control: Control, owner: str, method: str, *arguments: object) -> object:
    namespace: dict[str, object] = {}
    exec(control.text, namespace)
    return getattr(namespace[owner], method)(*arguments)


def test_each_fault_is_at_the_top_of_its_function(tmp_path: Path) -> None:
    found = planted(tmp_path)
    split, masks, lookup = found["split grants all"], found["masks keep nothing"], found["lookup finds nothing"]
    assert run(split, "Scheduler", "_mamba_block_aligned_split", None, None, 7) == 7
    assert run(masks, "SlidingWindowManager", "reachable_block_mask", None, 1, 3, 0) == [False, False]
    assert run(masks, "MambaManager", "reachable_block_mask", None, 0, 2) == [False, False]
    assert run(masks, "SingleTypeKVCacheManager", "reachable_block_mask", None, 0, 2) is None
    assert run(lookup, "BlockPool", "get_cached_block", None, 0, 0) is None
    assert not any(control.missing for control in found.values())


def test_the_other_lines_stay_where_they_were(tmp_path: Path) -> None:
    for control in planted(tmp_path).values():
        before, after = SOURCES[control.file].splitlines(), control.text.splitlines()
        assert len(before) == len(after)
        assert after[control.line - 1].strip().startswith("return ")
        assert before[: control.line - 1] == after[: control.line - 1]
        assert control.patch == (control.file, control.text)


def test_a_function_that_is_gone_makes_its_control_missing(tmp_path: Path) -> None:
    renamed = SOURCES[SCHEDULER].replace("_mamba_block_aligned_split", "_split")
    narrowed = SOURCES[MANAGERS].replace("start, end, more", "blocks").replace("first, last", "blocks")
    found = planted(tmp_path, **{SCHEDULER: renamed, MANAGERS: narrowed})
    assert {name: control.missing for name, control in found.items()} == {
        "split grants all": True,
        "masks keep nothing": True,
        "lookup finds nothing": False,
    }
    assert found["split grants all"].qualname == "Scheduler._mamba_block_aligned_split"
    (tmp_path / "vllm" / POOL).unlink()
    assert [control.missing for control in controls(tmp_path)] == [True, True, True]


def test_a_mask_that_is_left_is_planted_alone(tmp_path: Path) -> None:
    found = planted(tmp_path, **{MANAGERS: SOURCES[MANAGERS].replace("SlidingWindowManager", "Another")})
    masks = found["masks keep nothing"]
    assert masks.qualname == "MambaManager.reachable_block_mask"
    assert run(masks, "MambaManager", "reachable_block_mask", None, 0, 2) == [False, False]


def test_a_file_that_is_no_python_is_told(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=f"^{POOL} does not parse: line 1: "):
        planted(tmp_path, **{POOL: "class (:\n"})
