"""A stored result is found again exactly as long as nothing has changed that it depends on."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

import spec.cache
from reference.policy import POLICIES
from reference.split import floor_to
from spec.cache import Cache, explorer_text, key_of, values_read, watched
from spec.digest import Digest
from spec.lift import Lifted
from spec.row import ControlRow, Row
from spec.solver import Limits
from spec.task import Task, TaskResult

TASK = Task(subject="split", release="0.33.0", sizes="16/4", features="plain")
OLD = POLICIES["0.26.0"]


def digest(*values: Any) -> str:
    made = Digest()
    for value in values:
        made.add(value)
    return made.hex


def result(verdict: str = "proved", control: str = "refuted") -> TaskResult:
    row = Row(
        claim="S1",
        rule="S1",
        subject="split",
        target="reference",
        release="0.33.0",
        sizes="16/4",
        features="plain",
        regime="all",
        verdict=verdict,
    )
    planted = ControlRow(claim="S1", target="reference", release="", domain="", planted="", verdict=control)
    return TaskResult(rows=(row,), controls=(planted,))


def with_constant(function: types.FunctionType, old: Any, new: Any) -> types.FunctionType:
    """The function with a constant of its code changed."""
    constants = tuple(new if constant == old else constant for constant in function.__code__.co_consts)
    assert constants != function.__code__.co_consts
    code = function.__code__.replace(co_consts=constants)
    return types.FunctionType(code, function.__globals__, function.__name__, function.__defaults__)


def test_the_key_is_the_same_for_the_same() -> None:
    assert key_of(TASK, Limits()) == key_of(TASK, Limits())
    assert key_of(TASK, Limits()) == key_of(TASK, Limits(), TASK.build(watched(POLICIES["0.33.0"])))


def test_releases_share_a_key_where_they_make_the_same_claims() -> None:
    assert key_of(TASK, Limits()) == key_of(msgspec.structs.replace(TASK, release="0.32.0"), Limits())


@pytest.mark.parametrize(
    "change", [{"sizes": "64/16"}, {"features": "partial hits"}, {"claims": ("S1",)}, {"controls": True}], ids=str
)
def test_the_key_changes_with_the_task(change: dict[str, Any]) -> None:
    assert key_of(msgspec.structs.replace(TASK, **change), Limits()) != key_of(TASK, Limits())


def test_the_key_changes_with_the_limits() -> None:
    assert key_of(TASK, Limits(resource=1)) != key_of(TASK, Limits())


@pytest.mark.parametrize("part", ["predicate", "premise", "event"])
def test_the_key_changes_with_a_claim(part: str) -> None:
    subject = TASK.build()
    first, *others = subject.claims
    changed = replace(subject, claims=(replace(first, **{part: lambda case: case.granted == 7}), *others))
    assert key_of(TASK, Limits(), changed) != key_of(TASK, Limits(), subject)


def test_the_key_changes_with_a_constant_of_a_helper(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key_of(TASK, Limits())
    helper = __import__("reference.split").split.prefill_end
    monkeypatch.setattr("reference.split.prefill_end", with_constant(helper, 1, 2))
    assert key_of(TASK, Limits()) != before


def test_the_key_changes_with_the_source_of_the_lemmas(tmp_path: Path) -> None:
    texts = []
    for number, source in enumerate(("LEMMA = 1", "LEMMA = 2")):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "lemmas.py").write_text(source)
        (folder / "expected.py").write_text(source)
        texts.append(explorer_text(folder))
        (folder / "lemmas.py").unlink()
    assert len(set(texts)) == 2
    assert explorer_text(Path(spec.cache.__file__).parent) not in texts


def test_what_is_expected_does_not_matter(tmp_path: Path) -> None:
    before = explorer_text(tmp_path)
    explorer_text.cache_clear()
    (tmp_path / "expected.py").write_text("EXCEPTIONS = ()")
    assert explorer_text(tmp_path) == before


def test_a_digest_sees_lifted_parts_defaults_and_closures() -> None:
    def lifted(helper: str) -> Lifted:
        return Lifted(floor_to, {"vllm.a.f": "def f(x): return g(x)", "vllm.a.g": helper})

    def closure(number: int) -> Callable[[], int]:
        return lambda: number

    def default(number: int) -> Callable[..., int]:
        return lambda value=number: value

    assert digest(lifted("def g(x): return x")) != digest(lifted("def g(x): return x + 1"))
    assert digest(closure(1)) == digest(closure(1)) != digest(closure(2))
    assert digest(default(1)) == digest(default(1)) != digest(default(2))
    assert digest(1) != digest(True)


def test_a_policy_notes_what_is_read_of_it() -> None:
    policy = watched(OLD)
    assert values_read(policy) == {}
    assert policy.tail_drops == OLD.tail_drops
    assert values_read(policy) == {"tail_drops": OLD.tail_drops}
    hash(policy)
    assert values_read(policy)["release"] == "0.26.0"


def test_a_result_serves_the_policies_that_agree_on_what_was_read(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "new")
    cache.put("key", {"tail_drops": OLD.tail_drops}, result())
    assert cache.get("key", OLD) == result()
    assert cache.get("key", replace(OLD, keeps_one_token=True)) == result()
    assert cache.get("key", replace(OLD, tail_drops=True)) is None
    assert cache.get("other", OLD) is None


@pytest.mark.parametrize(
    "undecided", [result("unknown"), result("vacuous"), result(control="unknown"), TaskResult(rows=())], ids=repr
)
def test_nothing_undecided_is_stored(tmp_path: Path, undecided: TaskResult) -> None:
    Cache(tmp_path).put("key", {}, undecided)
    assert list(tmp_path.rglob("*.json")) == []


def test_a_broken_file_is_no_result(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.put("key", {}, result())
    (path,) = tmp_path.rglob("*.json")
    path.write_bytes(path.read_bytes()[:-5])
    assert cache.get("key", OLD) is None
    cache.put("key", {}, result())
    assert cache.get("key", OLD) == result()


def test_a_folder_that_cannot_be_written_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cache = Cache(tmp_path / "file")
    cache.put("key", {}, result())
    assert cache.get("key", OLD) is None
