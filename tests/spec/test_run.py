"""Tasks are run apart from each other, and whatever happens to one is told in its rows."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import spec.run
from spec.cache import Cache
from spec.plan import PLANS, RELEASES, all_claims, claims_of, cost, left_out, size_names, tasks
from spec.run import Options, answer_of, run_tasks
from spec.second import second_opinion
from spec.smt import Export, questions
from spec.solver import Limits
from spec.task import Task

SMALL = {"subject": "split", "sizes": "16/16", "features": "lookahead 1", "claims": ("S1",)}
TASK = Task(release="0.33.0", **SMALL)


def run(tasks: list[Task], cache: Path | None = None, **options: Any) -> list[spec.run.Done]:
    kept = Cache(cache) if cache is not None else None
    done = run_tasks(tasks, Options(2, cache=kept, **options), cost)
    return sorted(done, key=lambda one: one.place)


def test_a_result_is_found_again_and_serves_the_release_that_agrees(tmp_path: Path) -> None:
    plain = [Task(release=r, subject="split", sizes="16/16", features="plain", claims=("S1",)) for r in RELEASES[-2:]]
    first, second = run(plain, tmp_path)
    assert (first.reused, second.reused) == (False, True)
    assert {row.release for row in second.result.rows} == {"0.33.0"}
    again = run(plain, tmp_path)
    assert [one.result.rows for one in again] == [first.result.rows, second.result.rows]
    assert all(one.reused for one in again)
    assert not run(plain[:1], tmp_path, fresh=True)[0].reused


def test_a_worker_that_dies_is_told_in_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spec.run._work", _die)
    (done,) = run([TASK])
    assert [(row.claim, row.verdict) for row in done.result.rows] == [("S1", "unknown")]
    assert "killed, probably for its memory" in done.result.rows[0].reason


def _die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_an_engine_of_another_shape_gives_unknown_rows(tmp_path: Path) -> None:
    (tmp_path / "vllm").mkdir()
    task = Task(release="0.33.0", target="ours", source=str(tmp_path), **SMALL)
    for cache in (None, tmp_path / "cache"):
        (done,) = run([task], cache)
        (row,) = done.result.rows
        assert (row.claim, row.verdict, row.target) == ("S1", "unknown", "ours")
        assert row.reason.startswith("shape changed: ")


def test_a_failure_of_ours_is_told_in_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr("spec.run.run_task", fail)
    result, _ = answer_of(TASK, Limits(), None)
    assert result.rows[0].reason == "kvoracle failed on it: ZeroDivisionError('oh')"


def test_every_claim_has_its_control_in_every_plan() -> None:
    for sizes in ([], ["16/16"]):
        made = tasks("quick", ["0.33.0"], sizes=sizes)
        controlled = set().union(*(claims_of(task) for task in made if task.controls))
        assert controlled == set().union(*map(claims_of, made))
    assert 1 <= sum(task.controls for task in tasks("quick")) <= 3 * len(PLANS)


def test_a_plan_holds_what_was_asked_for() -> None:
    assert {task.release for task in tasks("quick", ["0.30.0"])} == {"0.30.0"}
    assert {task.sizes for task in tasks("quick", sizes=["B, H"])} == {"B, H"}
    assert {task.sizes for task in tasks("full")} == set(size_names())
    assert {"S3", "S3i", "M1"} <= {claim.id for claim in all_claims()}
    assert tasks("quick", claims=["M1"]) == []
    assert len(left_out("quick")) > len(left_out("full")) > 0


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("smt")
    task = Task(release="0.33.0", subject="split", sizes="16/16", features="lookahead 1")
    run([task], export=Export(str(folder), every=10))
    return folder


def test_cvc5_agrees(scripts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cvc5")
    monkeypatch.setattr("spec.second.SECONDS", 3)
    assert {path.name.split("-")[1] for path, _, _ in questions(scripts)} == {"path", "coverage"}
    opinion = second_opinion(scripts, 60)
    assert opinion.agree >= 50
    assert opinion.disagree == []
    assert opinion.asked == 60


def test_a_wrong_answer_is_a_disagreement(scripts: Path, tmp_path: Path) -> None:
    pytest.importorskip("cvc5")
    _, script, status = next(questions(scripts))
    wrong = "sat" if status == "unsat" else "unsat"
    (tmp_path / "q.smt2").write_text(script.replace(f":status {status}", f":status {wrong}"))
    assert second_opinion(tmp_path, 5).disagree == [str(tmp_path / "q.smt2")]
