"""What differs between two source trees: only what runs, with the lines of the candidate that hold it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz.engines.sources import source_tree
from fuzz.gate.changes import Change, changed_functions, decision_points
from fuzz.gate.source_file import SourceError

FILE = "v1/core/sched/scheduler.py"
OTHER = "v1/core/kv_cache_utils.py"
HELPER = "def helper(x=1):\n    return x\n"
BASELINE = '''\
"""A module."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from somewhere import Request


class Scheduler:
    """A class."""

    limit: int = 4

    def split(self, start: int, asked: int) -> int:
        """Clip a chunk."""
        end = start + asked
        if end > self.limit:
            end = min(
                self.limit,
                end,
            )
        else:
            end = end + 0
        return end - start

    def other(self):
        return 1


def helper(x=1):
    return x
'''


def tree(folder: Path, *files: tuple[str, str]) -> Path:
    for file, text in files:
        path = folder / "vllm" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def changes(tmp_path: Path, candidate: str, *more: tuple[str, str]) -> list[Change]:
    baseline = tree(tmp_path / "baseline", (FILE, BASELINE))
    return changed_functions(baseline, tree(tmp_path / "candidate", (FILE, candidate), *more))


def edited(*replacements: tuple[str, str]) -> str:
    text = BASELINE
    for old, new in replacements:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def texts(change: Change, candidate: str) -> list[str]:
    return [candidate.splitlines()[line - 1].strip() for line in change.lines]


@pytest.mark.parametrize(
    "candidate",
    [
        BASELINE,
        edited(('"""Clip a chunk."""', '"""Clip it\n\n        otherwise."""')),
        edited(('        """Clip a chunk."""\n', "")),
        edited(("end = start + asked", "end = start + asked  # why\n        # and more\n")),
        edited(("end = start + asked", "end = (\n            start\n            + asked\n        )")),
        edited(("start: int, asked: int) -> int", "start, asked: 'Tokens') -> Tokens")),
        edited(("end = start + asked", "end: int = start + asked")),
        edited(("limit: int = 4", "limit: Tokens = 4")),
        edited(("class Scheduler", "budget: int\n\n\nclass Scheduler")),
        edited(("import Request", "import Request, Status")),
        edited((HELPER, ""), ("class Scheduler", f"{HELPER}\n\nclass Scheduler")),
    ],
    ids=["same", "docstring", "no-docstring", "comment", "layout", "annotation", "local-annotation", "field-annotation",
         "name-annotation", "typing-import", "moved"],
)  # fmt: skip
def test_what_does_not_run_is_no_change(tmp_path: Path, candidate: str) -> None:
    assert changes(tmp_path, candidate) == []


@pytest.mark.parametrize(
    ("old", "new", "qualname", "lines"),
    [
        ("end > self.limit", "end >= self.limit", "Scheduler.split", ["if end >= self.limit:"]),
        ("                self.limit,\n", "                self.limit + 1,\n", "Scheduler.split", ["self.limit + 1,"]),
        ("def other(self)", "def other(self, x=2)", "Scheduler.other", ["def other(self, x=2):"]),
        ("    def other", "    @cached\n    def other", "Scheduler.other", ["@cached"]),
        ("limit: int = 4", "limit: int = 5", "<module>", ["limit: int = 5"]),
        ("limit: int = 4", "limit: int = 4\n    added: int", "<module>", ["added: int"]),
        ("class Scheduler:", "class Scheduler(Base):", "<module>", ["class Scheduler(Base):"]),
        # An import that ran for no one runs now.
        (
            "if TYPE_CHECKING:",
            "if not TYPE_CHECKING:",
            "<module>",
            ["if not TYPE_CHECKING:", "from somewhere import Request"],
        ),
        # Taken away: the statement that follows, or else the last one.
        ("        end = start + asked\n", "", "Scheduler.split", ["if end > self.limit:"]),
        ("return end - start", "pass", "Scheduler.split", ["pass"]),
        ("        else:\n            end = end + 0\n", "", "Scheduler.split", ["return end - start"]),
        ("        return end - start\n", "", "Scheduler.split", ["end = end + 0"]),
    ],
)
def test_what_runs_is_a_change_with_its_lines(
    tmp_path: Path, old: str, new: str, qualname: str, lines: list[str]
) -> None:
    candidate = edited((old, new))
    (change,) = changes(tmp_path, candidate)
    assert (change.file, change.qualname, change.kind) == (FILE, qualname, "changed")
    assert texts(change, candidate) == lines
    assert 0 < change.first <= min(change.lines) <= max(change.lines) <= change.last


def test_a_renamed_local_is_a_change(tmp_path: Path) -> None:
    (change,) = changes(tmp_path, BASELINE.replace("end", "stop"))
    assert change.qualname == "Scheduler.split"
    assert len(change.lines) == 6


def test_added_and_removed_functions_are_told(tmp_path: Path) -> None:
    candidate = edited(("    def other(self):\n        return 1\n", "    def new(self):\n        return 1\n"))
    added, removed = changes(tmp_path, candidate)
    assert (added.qualname, added.kind, texts(added, candidate)) == (
        "Scheduler.new",
        "added",
        ["def new(self):", "return 1"],
    )
    assert (removed.qualname, removed.kind, removed.lines) == ("Scheduler.other", "removed", ())


@pytest.mark.parametrize(("body", "is_moved"), [("    return x\n", True), ("    return x + 1\n", False)])
def test_a_function_moved_to_another_file_is_a_change_only_if_its_code_is(
    tmp_path: Path, body: str, is_moved: bool
) -> None:
    candidate = edited((HELPER, ""))
    found = changes(tmp_path, candidate, (OTHER, "def helper(x=1):\n" + body))
    expected = [] if is_moved else [(OTHER, "added"), (FILE, "removed")]
    assert [(change.file, change.kind) for change in found] == expected


def test_only_files_in_scope_are_compared(tmp_path: Path) -> None:
    assert changes(tmp_path, BASELINE, ("v1/worker/gpu.py", "x = 1\n"), ("v1/outputs.py", "x = 1\n")) == []
    (change,) = changes(tmp_path, BASELINE, ("v1/request.py", "x = 1\n"))
    assert (change.file, change.qualname, change.kind, change.lines) == ("v1/request.py", "<module>", "added", (1,))


def test_sources_that_cannot_be_compared_are_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=f"^{FILE} does not parse: line 2: "):
        changes(tmp_path, "x = 1\ndef broken(:\n")
    with pytest.raises(SourceError, match=r"has no Python files in vllm/v1/core$"):
        changed_functions(tmp_path / "baseline", tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("file", "qualname", "points"),
    [
        (FILE, "Scheduler._mamba_block_aligned_split", {"split"}),
        ("v1/core/kv_cache_coordinator.py", "HybridKVCacheCoordinator.find_longest_cache_hit", {"lookup"}),
        ("v1/core/kv_cache_coordinator.py", "replay_boundaries", {"masks"}),
        ("v1/core/single_type_kv_cache_manager.py", "MambaManager.reachable_block_mask", {"masks"}),
        ("v1/core/single_type_kv_cache_manager.py", "MambaManager.cache_blocks", {"commit"}),
        ("v1/core/single_type_kv_cache_manager.py", "MambaManager._cache_partial_tail_block", {"tails"}),
        ("v1/core/single_type_kv_cache_manager.py", "MambaManager.allocate_new_blocks", {"allocate"}),
        ("v1/core/block_pool.py", "BlockPool.free_blocks", {"pool"}),
        (
            "v1/core/single_type_kv_cache_manager.py",
            "ChunkedLocalAttentionManager.find_longest_cache_hit",
            {"lookup", "chunked-local"},
        ),
        (FILE, "Scheduler.schedule", {"schedule"}),
        ("v1/core/sched/request_queue.py", "FCFSRequestQueue.pop_request", {"schedule"}),
        # By their file.
        (FILE, "Scheduler.a_new_name", {"schedule"}),
        ("v1/core/block_pool.py", "<module>", {"pool"}),
        ("v1/core/kv_cache_coordinator.py", "<module>", {"lookup"}),
        ("v1/kv_cache_interface.py", "<module>", {"allocate"}),
        ("v1/request.py", "<module>", {"schedule"}),
    ],
)
def test_a_function_touches_its_points_of_decision(file: str, qualname: str, points: set[str]) -> None:
    assert decision_points([Change(file, qualname, "changed", 1, 1, ())]) == points


def test_no_change_touches_no_point() -> None:
    assert decision_points([]) == frozenset()


@pytest.mark.engines
def test_two_releases_differ_where_they_are_known_to() -> None:
    old, new = source_tree("vllm==0.26.0"), source_tree("vllm==0.27.1")
    assert changed_functions(old, old) == []
    found = changed_functions(old, new)
    split = next(change for change in found if change.qualname == "Scheduler._mamba_block_aligned_split")
    assert (split.file, split.kind) == (FILE, "changed")
    assert split.lines
    assert all(change.lines for change in found if change.kind != "removed")
    assert {"split", "tails"} <= decision_points(found)
