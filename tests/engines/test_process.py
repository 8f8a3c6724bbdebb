"""An engine's process may do whatever it likes: each run ends in time and says what happened."""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fuzz.engines.driver import TRACE_BYTES, TRACE_START, Trace
from fuzz.engines.process import EngineLoadError, VllmEngine, child_environment
from fuzz.engines.process import _sources as given_sources
from fuzz.engines.protocol import Run
from fuzz.engines.provision import Launch
from oracle.scenario import Geometry, Group, Limits, Scenario

FAKE = Path(__file__).parent / "fake_drivers" / "fake.py"


def scenario(note: str = "") -> Scenario:
    return Scenario(Geometry((Group("full", 16),), 16, 10), Limits(64, 2), (), note=note)


def launch(**environment: str) -> Launch:
    return Launch(Path(sys.executable), (), "0.33.0", "0.33.0", "fake 0.33.0", tuple(environment.items()))


def engine_with(**options: Any) -> VllmEngine:
    options = {"hang_seconds": 1.5, "load_seconds": 20.0, "growth_mb_max": 100.0} | options
    return VllmEngine("fake", options.pop("launch", launch()), driver=FAKE, **options)


@pytest.fixture
def engine() -> Iterator[VllmEngine]:
    with engine_with() as built:
        yield built


def pid(run: Run) -> int:
    return int(json.loads(run.lines[0])["pid"])


def crash(run: Run) -> tuple[str, str, str]:
    """Kind, place and message of the one crash record that ends the run."""
    ((tag, kind, where, message),) = json.loads(run.lines[-1])
    assert tag == "crash"
    return kind, where, message


def crashed(run: Run) -> bool:
    return b'"crash"' in run.lines[-1]


def is_alive(process: int) -> bool:
    return Path(f"/proc/{process}").exists()


def test_one_process_serves_many_scenarios(engine: VllmEngine) -> None:
    first, second = engine.run(scenario()), engine.run(scenario(), record=False)
    assert pid(first) == pid(second)
    assert first.lines[1:] == [b"[]"]
    assert first.cpu == {"calls": 0.5}
    assert [json.loads(run.lines[0])["record"] for run in (first, second)] == [True, False]


@pytest.mark.parametrize("note", ["refuse", "refuse-late"])
def test_a_refusal_is_no_crash_and_has_no_lines(engine: VllmEngine, note: str) -> None:
    refused, after = engine.run(scenario(note)), engine.run(scenario())
    assert (refused.lines, refused.refused) == ([], "it will not have it")
    assert after.refused == ""
    assert len(after.lines) == 2


@pytest.mark.timeout(60)
@pytest.mark.parametrize("note", ["hang", "deaf"])
def test_a_hang_is_told_in_time_and_the_process_replaced(engine: VllmEngine, note: str) -> None:
    before = pid(engine.run(scenario()))
    kind, where, _ = crash(engine.run(scenario(note)))
    assert kind == "hang"
    assert not is_alive(before)
    if note == "hang":  # one that ignores the signal cannot say where it is
        assert where == "fake.stuck_in_the_scheduler"
    assert pid(engine.run(scenario())) != before


@pytest.mark.parametrize(
    ("note", "words"),
    [
        ("exit:3", "exit code 3; last line printed: the last thing it said"),
        ("segfault", "killed by SIGSEGV"),
        ("truncate", "exit code 0"),
        ("half-line", "exit code 0"),
        ("garbage", "which is none"),
        ("unknown", "unknown kind"),
        ("bad-end", "no proper frame"),
    ],
)
def test_a_dead_or_babbling_process_is_told_and_replaced(engine: VllmEngine, note: str, words: str) -> None:
    run = engine.run(scenario(note))
    kind, _, message = crash(run)
    assert kind == "died"
    assert words in message
    assert len(run.lines) == 2  # the header and the crash: half a line is none
    assert pid(engine.run(scenario())) != pid(run)


def test_the_last_words_are_those_of_this_run(engine: VllmEngine) -> None:
    engine.run(scenario("noise"))
    _, _, message = crash(engine.run(scenario("truncate")))
    assert "garbage" not in message


def test_what_the_engine_prints_does_not_disturb(engine: VllmEngine) -> None:
    assert engine.run(scenario("noise")).lines[1:] == [b"[]"]


def test_a_process_that_grows_is_told_and_replaced() -> None:
    with engine_with(hang_seconds=20.0) as engine:
        first = engine.run(scenario("grow:80"))  # sets the level
        calm = engine.run(scenario("grow:60"))
        grown = engine.run(scenario("grow:60"))
        assert pid(first) == pid(calm) == pid(grown)
        assert calm.lines[-1] == b"[]"
        assert crash(grown)[0] == "memory"
        assert pid(engine.run(scenario())) != pid(grown)


def test_the_memory_that_the_driver_tells_counts_too(engine: VllmEngine) -> None:
    engine.run(scenario("claim:1000"))
    assert engine.run(scenario("claim:1090")).lines[1:] == []
    assert crash(engine.run(scenario("claim:1110")))[0] == "memory"


@pytest.mark.timeout(60)
def test_growth_within_a_scenario_is_stopped_before_it_ends() -> None:
    with engine_with(hang_seconds=600.0) as engine:
        engine.run(scenario())
        assert crash(engine.run(scenario("grow-and-hang:200")))[0] == "memory"


def test_an_endless_scenario_is_stopped() -> None:
    with engine_with(run_seconds=1.0) as engine:
        run = engine.run(scenario("endless"))
    assert crash(run)[0] == "hang"
    assert len(run.lines) > 10


def test_a_scenario_that_decides_is_no_hang_however_long_it_takes() -> None:
    with engine_with(hang_seconds=4.0) as engine:
        assert engine.run(scenario("steady:12")).lines[1:] == [b"[]"] * 13


def test_large_traces_and_slow_frames_arrive_whole() -> None:
    with engine_with(hang_seconds=20.0) as engine:
        assert len(engine.run(scenario("big:8")).lines[1]) == (8 << 20) + 2
        assert engine.run(scenario("many:20000")).lines[1:-1] == [b'["%d"]' % index for index in range(20000)]
        assert len(engine.run(scenario()).lines) == 2
        assert not crashed(engine.run(scenario("trickle")))


def test_the_drivers_trace_grows_and_counts_whole_lines_only() -> None:
    file = os.memfd_create("trace")
    trace = Trace(file)
    for number in range(2):
        os.pwrite(file, bytes(TRACE_START), 0)  # as the parent does before it asks for another
        trace.begin()
        lines = [b'["%d"]' % (number + index) * 1000 for index in range(700)]
        for line in lines:
            trace.add(line)
            whole = int.from_bytes(os.pread(file, TRACE_START, 0), "little")
            assert os.pread(file, 1, TRACE_START + whole - 1) == b"\n"
        assert whole > TRACE_BYTES
        assert os.pread(file, whole, TRACE_START).splitlines() == lines
    os.close(file)


def test_a_python_without_memory_files_has_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    with engine_with() as engine:
        assert engine.run(scenario("many:3")).lines[1:] == [b'["0"]', b'["1"]', b'["2"]', b"[]"]
    monkeypatch.setattr("fuzz.engines.process._SHARED_MEMORY", Path("/nowhere"))
    with engine_with() as engine, pytest.raises(EngineLoadError, match=r"^no memory to share .*/nowhere: No such file"):
        engine.start()


def test_a_start_that_fails_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    open_files = len(os.listdir("/proc/self/fd"))
    with engine_with(launch=replace(launch(), python=Path("/nobody/has/this"))) as engine:
        for _ in range(3):
            with pytest.raises(EngineLoadError, match="cannot be started"):
                engine.start()
    assert [*tmp_path.iterdir()] == []
    assert len(os.listdir("/proc/self/fd")) == open_files


def test_a_scenario_larger_than_the_pipe_is_taken(engine: VllmEngine) -> None:
    # The fake takes no notice of what it does not know; only the size matters here.
    run = engine.run(scenario("many:1" + " " * (1 << 20)))
    assert run.lines[-1] == b"[]"


def test_a_process_that_takes_nothing_is_a_hang(engine: VllmEngine) -> None:
    process = pid(engine.run(scenario()))
    os.kill(process, 19)  # SIGSTOP: alive, and reading nothing
    assert crash(engine.run(scenario(" " * (1 << 20))))[0] == "hang"
    assert not is_alive(process)


def test_a_process_killed_between_runs_is_told(engine: VllmEngine) -> None:
    os.kill(pid(engine.run(scenario())), 9)
    run = engine.run(scenario())
    kind, _, message = crash(run)
    assert kind == "died"
    assert "SIGKILL" in message
    assert len(run.lines) == 1  # nothing of the run before
    assert engine.run(scenario()).lines[-1] == b"[]"


def test_a_missing_dependency_is_named_with_its_remedy() -> None:
    engine = engine_with(launch=launch(FAKE_LOAD="missing"))
    with pytest.raises(EngineLoadError) as caught:
        engine.start()
    assert f"{sys.executable} -m pip install a_module_that_nobody_has" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_slow_loading_and_silent_death_are_told_in_one_line() -> None:
    with pytest.raises(EngineLoadError, match="did not load within 1 s"):
        engine_with(launch=launch(FAKE_LOAD="slow"), load_seconds=1.0).start()
    with pytest.raises(EngineLoadError, match="killed by SIGKILL"):
        engine_with(launch=launch(FAKE_LOAD="killed")).start()
    nowhere = Launch(Path("/nonexistent/python"), (), "0.33.0", "0.33.0", "fake")
    with pytest.raises(EngineLoadError, match="cannot be started"):
        engine_with(launch=nowhere).start()


def test_sources_are_handed_over_only_where_something_is_patched_or_watched(tmp_path: Path) -> None:
    assert given_sources(launch(), tmp_path) == []
    assert list(tmp_path.iterdir()) == []
    changed = replace(launch(), patches=(("v1/request.py", "x = 1\n"),), watch=(("v1/request.py", (1, 3)),))
    (file,) = given_sources(changed, tmp_path)
    assert json.loads(Path(file).read_text()) == {
        "patches": {"v1/request.py": "x = 1\n"},
        "watch": {"v1/request.py": [1, 3]},
    }


def test_a_patch_that_the_driver_did_not_load_is_told_in_one_line() -> None:
    changed = replace(launch(), patches=(("v1/request.py", "x = 1\n"),))
    with pytest.raises(EngineLoadError, match=r"^fake 0\.33\.0 does not load v1/request\.py, which was to be patched$"):
        engine_with(launch=changed).start()


def test_the_process_sees_a_fixed_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_PREFIX_CACHE_RETENTION_INTERVAL", "7")
    monkeypatch.setenv("PYTHONPATH", "/somewhere/of/ours")
    with engine_with(launch=launch(EXTRA="1")) as engine:
        header = json.loads(engine.run(scenario()).lines[0])
    seen = header["environment"]
    assert "VLLM_PREFIX_CACHE_RETENTION_INTERVAL" not in seen
    assert "PYTHONPATH" not in seen
    assert (seen["VLLM_PLUGINS"], seen["PYTHONHASHSEED"], seen["CUDA_VISIBLE_DEVICES"]) == ("", "0", "")
    assert seen["EXTRA"] == "1"
    assert str(FAKE.parent) not in header["path"]
    shown = child_environment(Launch(Path("python"), ("/a", "/b"), "0.33.0", "0.33.0", "x"))
    assert shown["PYTHONPATH"] == f"/a{os.pathsep}/b"


def test_the_process_can_be_pinned_to_a_core() -> None:
    core = min(os.sched_getaffinity(0))
    with engine_with(core=core) as engine:
        assert os.sched_getaffinity(pid(engine.run(scenario()))) == {core}


def test_nothing_is_left_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    pipes_before = len(os.listdir("/proc/self/fd"))
    closed, forgotten = engine_with(), engine_with()
    processes = [pid(engine.run(scenario())) for engine in (closed, forgotten)]
    crash(closed.run(scenario("exit:1")))
    processes.append(pid(closed.run(scenario())))
    closed.close()
    del forgotten
    gc.collect()
    assert not [process for process in processes if is_alive(process)]
    assert len(os.listdir("/proc/self/fd")) == pipes_before
    assert list(tmp_path.iterdir()) == []
