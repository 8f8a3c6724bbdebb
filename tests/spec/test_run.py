"""Tasks are run apart from each other, and whatever happens to one is told in its rows."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

import spec.run
from fuzz.engines.sources import source_tree
from spec.cache import Cache
from spec.plan import PLANS, RELEASES, all_claims, claims_of, cost, left_out, size_names, tasks
from spec.run import Options, answer_of, run_tasks
from spec.second import second_opinion
from spec.smt import Export, questions
from spec.solver import Limits
from spec.task import Task, undone

ROOT = Path(__file__).parents[2]
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


def _work_greedily(*arguments: Any) -> None:
    spec.run.answer_of = _answer_greedily
    spec.run._work(*arguments)


def _answer_greedily(task: Task, limits: Limits, *_: Any) -> spec.run.Answer:
    """Ask for no more than the system would give, and than is allowed: nothing is written to it."""
    try:
        bytearray(2 * limits.memory_mib << 20)
    except MemoryError:
        return undone(task, "it was refused"), {}
    return undone(task, "it got the memory"), {}


@pytest.mark.skipif(sys.platform != "linux", reason="only there is the limit kept")
def test_a_task_gets_no_more_memory_than_it_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spec.run._work", _work_greedily)
    assert [one.result.rows[0].reason for one in run([TASK])] == ["it was refused"]
    monkeypatch.setattr("spec.run._work", _work_greedily_unlimited)
    assert [one.result.rows[0].reason for one in run([TASK])] == ["it got the memory"]


def _work_greedily_unlimited(*arguments: Any) -> None:
    spec.run._limit_memory = lambda _: None
    _work_greedily(*arguments)


PROMPT, SLOW, STUCK = "lookahead 1", "plain", "lookahead any"
SECONDS = {PROMPT: 0.0, SLOW: 0.5, STUCK: 1e6}
"""By the features of a task, how long its process takes below."""


def _work_slowly(*arguments: Any) -> None:
    """What the process of a task does, in that process, with an answer that takes its time."""
    spec.run.answer_of = _answer_slowly
    spec.run._work(*arguments)


def _answer_slowly(task: Task, *_: Any) -> spec.run.Answer:
    time.sleep(SECONDS[task.features])
    return undone(task, "it came back"), {}


def task_that_is(features: str, release: str = "0.33.0") -> Task:
    return msgspec.structs.replace(TASK, features=features, release=release)


def test_a_task_that_hangs_is_given_up_and_the_run_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One process at a time, the stuck ones first, so that whatever comes after them shows that the run went on."""
    monkeypatch.setattr("spec.run._work", _work_slowly)
    todo = [task_that_is(PROMPT), task_that_is(STUCK, "0.32.0"), task_that_is(STUCK)]
    options = Options(1, cache=Cache(tmp_path), task_seconds_max=4)
    done = list(run_tasks(todo, options, lambda task: task.features == STUCK))
    told = [(one.place, *[(row.release, row.verdict, row.reason) for row in one.result.rows]) for one in done]
    late = "Z3 did not come back within 4 s"
    assert told == [
        (1, ("0.32.0", "unknown", late)),
        (2, ("0.33.0", "unknown", late)),
        (0, ("0.33.0", "unknown", "it came back")),
    ]
    assert list(tmp_path.iterdir()) == []


def test_a_result_counts_though_it_is_looked_for_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the test above: who has come back is not given up because nobody looked in time."""
    monkeypatch.setattr("spec.run._work", _work_slowly)
    reasons = []
    for one in run_tasks([task_that_is(PROMPT), task_that_is(SLOW)], Options(2, task_seconds_max=2), lambda _: 1):
        reasons.append(one.result.rows[0].reason)
        time.sleep(5 if len(reasons) == 1 else 0)
    assert reasons == ["it came back"] * 2


INTERRUPTED = """
import spec.run, tests.spec.test_run as test

class Told(spec.run._Run):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        print(self.process.pid, flush=True)

if __name__ == "__main__":
    spec.run._work, spec.run._Run = test._work_slowly, Told
    list(spec.run.run_tasks([test.task_that_is(test.STUCK)], spec.run.Options(1), lambda task: 1))
"""


def test_an_interruption_ends_a_run_whose_task_hangs(tmp_path: Path) -> None:
    """As Ctrl-C in a terminal does, it reaches every process of the run."""
    script = tmp_path / "interrupted.py"
    script.write_text(INTERRUPTED)
    ours = subprocess.Popen(
        [sys.executable, script],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # Whoever runs the tests in the background of a shell ignores interruptions, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 (no thread runs here)
    )
    assert ours.stdout is not None
    worker = int(ours.stdout.readline())
    assert is_alive(worker)
    os.killpg(ours.pid, signal.SIGINT)
    _, said = ours.communicate(timeout=60)
    assert said.splitlines()[-1] == "KeyboardInterrupt"
    assert ours.returncode != 0
    assert any(not is_alive(worker) or time.sleep(0.1) for _ in range(600)), "the task's process outlives its run"


def is_alive(process: int) -> bool:
    """Whether there is such a process, and not only what is left of it for its parent to ask about."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


PROVES = """
import sys, msgspec
from spec.run import answer_of
from spec.solver import Limits
from spec.task import Task

result, read = answer_of(msgspec.json.decode(sys.argv[1], type=Task), Limits(), None)
print(list(set(map(str, range(20)))))
print(msgspec.json.encode(result.rows).decode())
print(msgspec.json.encode(read).decode())
"""


def proved_with(seed: int, task: Task) -> list[str]:
    """The order of a set, the rows, and what was read of the policy, in a fresh interpreter."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": str(seed)}
    told = msgspec.json.encode(task).decode()
    command = [sys.executable, "-c", PROVES, told]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.parametrize(
    ("task", "verdict"),
    [
        ({"release": "0.29.0", "sizes": "B", "features": "checkpoints of a token", "claims": ("S1",)}, "proved"),
        ({"release": "0.26.0", "sizes": "16/4", "features": "plain", "claims": ("S2",)}, "refuted"),
    ],
    ids=["with witnesses", "with counterexamples"],
)
def test_a_proof_does_not_depend_on_the_order_of_sets(task: dict[str, Any], verdict: str) -> None:
    """What the solver is told first decides which model it finds, so rows showed it when a set was iterated."""
    (order, *answer), (other_order, *other_answer) = (
        proved_with(seed, Task(subject="split", **task)) for seed in (1, 2)
    )
    assert order != other_order, "the two interpreters order sets alike, so nothing is compared"
    assert answer == other_answer
    assert {row["verdict"] for row in msgspec.json.decode(answer[0])} == {verdict}


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
    assert {"S3", "S3i", "M1"} <= all_claims().keys()
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


@pytest.mark.engines
def test_a_checkout_that_is_edited_in_place_is_proved_anew(tmp_path: Path) -> None:
    """Neither what this process read of it before nor a result of another text may stand for it."""
    source = source_tree("vllm==0.33.0")
    for part in ("v1", "utils"):
        shutil.copytree(source / "vllm" / part, tmp_path / "vllm" / part, ignore=shutil.ignore_patterns("__pycache__"))
    scheduler = tmp_path / "vllm" / "v1" / "core" / "sched" / "scheduler.py"
    good = scheduler.read_text()
    bad = good.replace("if end < prefill_end:", "if end <= prefill_end:")
    assert bad != good
    task = Task(
        release="0.33.0", subject="split", sizes="16/16", features="plain", claims=("M1",), source=str(tmp_path)
    )
    verdicts = []
    for text in (good, bad, good, bad):
        scheduler.write_text(text)
        (done,) = run([task], tmp_path / "cache")
        verdicts.append(({row.verdict for row in done.result.rows}, done.reused))
    assert [("refuted" in found, reused) for found, reused in verdicts] == [
        (False, False),
        (True, False),
        (False, True),
        (True, True),
    ]


def test_a_result_is_not_kept_under_a_key_that_its_own_process_does_not_find(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a source is edited after this process has looked at it, and before the task's process does."""
    monkeypatch.setattr("spec.run.key_of", lambda task, limits: "0" * 64)
    (done,) = run([TASK], tmp_path)
    assert {row.verdict for row in done.result.rows} == {"proved"}
    assert not list(tmp_path.rglob("*.json"))
    monkeypatch.undo()
    run([TASK], tmp_path)
    assert list(tmp_path.rglob("*.json"))


def test_all_claims_together_are_decided_for_every_block_and_every_hash_size() -> None:
    """Paths that turn out to be infeasible count as covered, also where another claim has told Z3 why before."""
    result, _ = answer_of(Task(subject="split", release="0.33.0", sizes="B, H", features="lookahead 1"), Limits(), None)
    assert len(result.rows) > 20
    assert {row.verdict for row in result.rows} == {"proved"}


@pytest.mark.engines
def test_a_claim_that_rests_on_equality_says_nothing_of_a_mask_that_differs(tmp_path: Path) -> None:
    source = source_tree("vllm==0.33.0")
    for part in ("v1", "utils"):
        shutil.copytree(source / "vllm" / part, tmp_path / "vllm" / part, ignore=shutil.ignore_patterns("__pycache__"))
    managers = tmp_path / "vllm" / "v1" / "core" / "single_type_kv_cache_manager.py"
    good = managers.read_text()
    bad = good.replace("% per_segment >= per_segment - need", "% per_segment > per_segment - need")
    assert bad != good
    task = Task(
        release="0.33.0",
        subject="mask",
        sizes="16 in 64",
        features="window, interval above 0",
        claims=("R3.through_M3", "R4.through_M3"),
        source=str(tmp_path),
    )
    (done,) = run([task], tmp_path / "cache")
    assert {row.claim for row in done.result.rows} == set(task.claims)
    assert all(row.as_expected for row in done.result.rows)
    equalities = ("M3", "M3.zero", "M3.dense")
    (done,) = run([msgspec.structs.replace(task, claims=(*task.claims, *equalities), controls=True)])
    assert {one.claim for one in done.result.controls if one.caught} == {*task.claims, *equalities}
    managers.write_text(bad)
    (done,) = run([task], tmp_path / "cache")
    assert {row.verdict for row in done.result.rows} == {"unknown"}
    assert all(row.reason.startswith("it rests on M3") for row in done.result.rows)
