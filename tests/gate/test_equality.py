"""A changed function counts as equal only where a proof says so, and its words say to which bound and premise."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz.engines.sources import source_tree
from fuzz.gate.changes import Change
from fuzz.gate.equality import Equality, prove_equality

RELEASE = "0.33.0"
COORDINATOR, MANAGERS = "v1/core/kv_cache_coordinator.py", "v1/core/single_type_kv_cache_manager.py"
SCHEDULER = "v1/core/sched/scheduler.py"
HYBRID = "HybridKVCacheCoordinator.find_longest_cache_hit"
SECONDS = 600.0

Edit = tuple[str, str]


@pytest.fixture(scope="module")
def release() -> Path:
    return source_tree(f"vllm=={RELEASE}")


def with_file(source: Path, folder: Path, file: str, text: str) -> Path:
    """A tree like ``source`` in which one file of the package has another text."""
    here, there = source / "vllm", folder / "vllm"
    for part in Path(file).parts:
        there.mkdir(parents=True)
        for path in here.iterdir():
            if path.name != part:
                (there / path.name).symlink_to(path)
        here, there = here / part, there / part
    there.write_text(text)
    return folder


def judged(source: Path, folder: Path, change: tuple[str, str], *edits: Edit, seconds: float = SECONDS) -> Equality:
    """What is proved of a function once its file is edited."""
    file, qualname = change
    text = (source / "vllm" / file).read_text()
    for old, new in edits:
        assert text.count(old) == 1
        text = text.replace(old, new)
    candidate = with_file(source, folder, file, text)
    return prove_equality(source, candidate, RELEASE, [Change(file, qualname, "changed", 1, 2, (1,))], seconds, 1)


# --- statements --------------------------------------------------------------------------------------


def small(folder: Path, body: str) -> Path:
    path = folder / "vllm" / "v1" / "core" / "small.py"
    path.parent.mkdir(parents=True)
    path.write_text(f"def small(cap, n):\n{body}    return n\n")
    return folder


CAP = "    if 0 < cap < n:\n        n = cap\n"


@pytest.mark.parametrize(
    ("kind", "body", "words"),
    [
        ("changed", CAP.replace("cap < n", "cap <= n"), "statement by statement, for all integers cap, n"),
        ("changed", CAP.replace("0 < cap", "0 <= cap"), ""),
        ("added", CAP.replace("cap < n", "cap <= n"), ""),
    ],
)
def test_a_function_is_equal_where_each_changed_statement_is(tmp_path: Path, kind: str, body: str, words: str) -> None:
    baseline, candidate = small(tmp_path / "old", CAP), small(tmp_path / "new", body)
    key = "v1/core/small.py", "small"
    change = Change(*key, kind, 1, 4, (2,))  # type: ignore[arg-type]
    found = prove_equality(baseline, candidate, RELEASE, [change], 0.0, 1)
    assert found.equal.get(key, "") == words


@pytest.mark.engines
@pytest.mark.parametrize(
    ("change", "edit", "is_equal"),
    [
        (
            (SCHEDULER, "Scheduler.schedule"),
            (
                "            )\n            if 0 < long_prefill_token_threshold < num_new_tokens:",
                "            )\n            if 0 < long_prefill_token_threshold <= num_new_tokens:",
            ),
            True,
        ),
        (
            (SCHEDULER, "Scheduler.schedule"),
            (
                "            )\n            if 0 < long_prefill_token_threshold < num_new_tokens:",
                "            )\n            if 0 <= long_prefill_token_threshold < num_new_tokens:",
            ),
            False,
        ),
        (
            (MANAGERS, "MambaManager.cache_blocks"),
            (
                "num_cached_blocks_after > num_cached_blocks_before",
                "num_cached_blocks_after >= num_cached_blocks_before",
            ),
            True,
        ),
        (
            (MANAGERS, "MambaManager.cache_blocks"),
            (
                "num_cached_blocks_after > num_cached_blocks_before",
                "num_cached_blocks_after < num_cached_blocks_before",
            ),
            False,
        ),
    ],
)
def test_statements_of_a_release(
    release: Path, tmp_path: Path, change: tuple[str, str], edit: Edit, is_equal: bool
) -> None:
    assert (change in judged(release, tmp_path, change, edit, seconds=0.0).equal) is is_equal


# --- lookups -----------------------------------------------------------------------------------------

HARMLESS = (
    ("hit_length_by_group: list[int] = [0] * num_groups", "hit_length_by_group: list[int] = [1] * num_groups"),
    ("            if manager.retains_longer_hit:\n                continue", "            manager.retains_longer_hit"),
)


@pytest.mark.engines
def test_a_lookup_that_finds_the_same_is_equal_to_a_bound_under_a_premise(release: Path, tmp_path: Path) -> None:
    key = COORDINATOR, HYBRID
    found = judged(release, tmp_path, key, *HARMLESS)
    assert found.equal.keys() == {key}
    assert found.equal[key].startswith("M2.pair: to a bound both builds find the same blocks, hit and surplus, in ")
    assert "requests up to 13 tokens, in some up to 97;" in found.equal[key]
    assert "by no subclass, none of which retains a longer hit;" in found.equal[key]
    assert found.proof.rows == found.proof.proved > 0


@pytest.mark.engines
@pytest.mark.parametrize(
    ("change", "edit"),
    [
        ((COORDINATOR, HYBRID), ("longest_hit_length - hit_length\n", "longest_hit_length + hit_length\n")),
        # The hit is as long as before, and M2 holds; but a group keeps blocks beyond it.
        ((COORDINATOR, HYBRID), ("                    del blks[num_blocks:]\n", "                    pass\n")),
        (
            (MANAGERS, "SlidingWindowManager.find_longest_cache_hit"),
            ("num_contiguous_blocks >= sliding_window", "num_contiguous_blocks > sliding_window"),
        ),
        (
            (MANAGERS, "FullAttentionManager.find_longest_cache_hit"),
            ("hit_length = (fine_idx + 1) * alignment_tokens", "hit_length = (fine_idx + 2) * alignment_tokens"),
        ),
    ],
)
def test_a_lookup_that_finds_something_else_is_refuted(
    release: Path, tmp_path: Path, change: tuple[str, str], edit: Edit
) -> None:
    found = judged(release, tmp_path, change, edit)
    assert not found.equal
    assert [row.claim for row in found.refuted] == ["M2.pair"]
    assert found.proof.refuted


@pytest.mark.engines
def test_what_was_not_finished_or_cannot_be_lifted_is_not_equal(release: Path, tmp_path: Path) -> None:
    key = COORDINATOR, HYBRID
    hurried = judged(release, tmp_path / "hurried", key, *HARMLESS, seconds=0.0)
    assert (hurried.equal, hurried.proof.proved, hurried.proof.rows) == ({}, 1, 2)
    reshaped = judged(
        release, tmp_path / "reshaped", key, ("longest_hit_length = 0\n", "longest_hit_length = self.known_hit\n")
    )
    assert reshaped.equal == {}
    assert "known_hit" in reshaped.proof.off
