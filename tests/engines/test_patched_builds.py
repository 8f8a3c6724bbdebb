"""A real build can be loaded with patched sources, and told on which lines it ran, with nothing else changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fuzz.engines.open import Prepared, open_prepared, prepare_engine
from fuzz.engines.process import EngineLoadError, VllmEngine
from fuzz.engines.sources import source_tree
from fuzz.gate.controls import controls
from fuzz.gate.source_file import SourceFile, read_source
from fuzz.generator import scenario_at
from fuzz.refusals import refused_by
from fuzz.supported import withheld
from oracle.scenario import Geometry, Group, Limits, Request, Scenario, Step

pytestmark = pytest.mark.engines

ENGINE = "vllm==0.33.0"
SCHEDULER = "v1/core/sched/scheduler.py"
SPLIT = "Scheduler._mamba_block_aligned_split"

Open = Callable[..., VllmEngine]


@pytest.fixture(scope="module")
def prepared() -> Prepared:
    return prepare_engine(ENGINE)


@pytest.fixture(scope="module")
def root() -> Path:
    return source_tree(ENGINE)


@pytest.fixture(scope="module")
def scheduler(root: Path) -> SourceFile:
    return read_source(root, SCHEDULER)


@pytest.fixture
def opened(prepared: Prepared) -> Iterator[Open]:
    """Opens the build with some of its launch changed; all are closed in the end."""
    engines: list[VllmEngine] = []

    def open_changed(**changed: Any) -> VllmEngine:
        assert prepared.launch is not None
        engine = open_prepared(replace(prepared, launch=replace(prepared.launch, **changed)))
        assert isinstance(engine, VllmEngine)
        engines.append(engine)
        return engine

    yield open_changed
    for engine in engines:
        engine.close()


def scenarios(prepared: Prepared, seed: int, number: int) -> list[Scenario]:
    drawn = (scenario_at(seed, index, without=withheld(prepared)) for index in range(number))
    return [scenario for scenario in drawn if not refused_by(scenario, prepared.release or "")]


def one_request(kind: str) -> Scenario:
    groups = (Group("full", 16), Group(kind, 16))  # type: ignore[arg-type]
    step = Step(0, add=(Request("r", ("a:40",)),))
    return Scenario(Geometry(groups[: 2 if kind == "mamba" else 1], 16, 20), Limits(64, 2), (step,))


def body_lines(source: SourceFile, qualname: str) -> set[int]:
    """The lines of a function that run when it is called."""
    (function,) = source.functions[qualname]
    return {line for line in source.executable if function.body[0].lineno <= line <= (function.end_lineno or 0)}


def test_watching_every_line_and_patching_none_changes_no_byte_of_a_trace(
    prepared: Prepared, root: Path, opened: Open, engine: VllmEngine
) -> None:
    files = [path.relative_to(root / "vllm").as_posix() for path in sorted((root / "vllm/v1/core").rglob("*.py"))]
    sources = [read_source(root, file) for file in (*files, "v1/request.py", "v1/kv_cache_interface.py")]
    (split,) = (source for source in sources if source.file == SCHEDULER)
    watch = tuple((source.file, tuple(sorted(source.executable))) for source in sources)
    watched = opened(watch=watch, patches=((SCHEDULER, split.text),))
    drawn = scenarios(prepared, 21, 60)
    before, runs = [engine.run(scenario) for scenario in drawn], [watched.run(scenario) for scenario in drawn]
    assert [run.trace() for run in runs] == [run.trace() for run in before]
    assert {run.lines_hit for run in before} == {frozenset()}
    assert engine.lines_at_import == frozenset()
    # What ran is nearly all of the split, and of definitions only their first lines ran at import.
    hit = {line for run in runs for file, line in run.lines_hit if file == SCHEDULER}
    assert len(body_lines(split, SPLIT) & hit) > 0.9 * len(body_lines(split, SPLIT))
    at_import = {line for file, line in watched.lines_at_import if file == SCHEDULER}
    (function,) = split.functions[SPLIT]
    assert function.lineno in at_import
    assert not body_lines(split, SPLIT) & (at_import | body_lines(split, "Scheduler.shutdown") & hit)


def test_lines_are_those_of_this_scenario(opened: Open, scheduler: SourceFile) -> None:
    """A model without Mamba never comes to the split, also after one that did; a refused scenario leaves nothing."""
    lines = tuple(sorted(body_lines(scheduler, SPLIT)))
    engine = opened(watch=((SCHEDULER, lines), ("v1/core/kv_cache_utils.py", tuple(range(1, 1300)))))
    assert SCHEDULER not in {file for file, _ in engine.lines_at_import}
    mamba, full = one_request("mamba"), one_request("full")
    first, second = engine.run(mamba), engine.run(full)
    assert (SCHEDULER, lines[0]) in first.lines_hit
    assert SCHEDULER not in {file for file, _ in second.lines_hit}
    # The engine refuses this one while it is built, when lines have run already.
    refused = engine.run(msgspec.structs.replace(mamba, geometry=Geometry(mamba.geometry.groups, 8, 20)))
    assert refused.refused
    assert refused.lines_hit == frozenset()
    assert engine.run(full).lines_hit == second.lines_hit
    silent = engine.run(mamba, record=False)
    assert silent.lines == []
    # Observing asks blocks for their hashes, which runs lines of its own, but none that decide.
    assert silent.lines_hit <= first.lines_hit
    assert {hit for hit in first.lines_hit if hit[0] == SCHEDULER} <= silent.lines_hit


@pytest.mark.parametrize("number", range(3), ids=["split", "masks", "lookup"])
def test_every_control_changes_decisions(
    prepared: Prepared, root: Path, opened: Open, engine: VllmEngine, number: int
) -> None:
    """In many of 200 scenarios, and in none in which the planted lines did not run."""
    control = controls(root)[number]
    assert not control.missing
    pairs = zip(control.text.splitlines(), read_source(root, control.file).lines, strict=True)
    planted = tuple(line for line, (new, old) in enumerate(pairs, 1) if new != old)
    changed = opened(patches=(control.patch,), watch=((control.file, planted),))
    runs = [(changed.run(scenario), engine.run(scenario)) for scenario in scenarios(prepared, 23, 200)]
    differing = [run for run, before in runs if run.lines[1:] != before.lines[1:]]
    print(f"{control.name}: {len(differing)} of {len(runs)}")
    assert len(differing) > 20
    assert all(run.lines_hit for run in differing)
    assert any(not run.lines_hit for run, _ in runs)


def test_a_patch_that_is_never_loaded_is_told_in_one_line(opened: Open, scheduler: SourceFile) -> None:
    with pytest.raises(EngineLoadError) as caught:
        opened(patches=((SCHEDULER, scheduler.text), ("v1/core/sched/no_such_file.py", "x = 1\n")))
    assert str(caught.value) == ("vllm 0.33.0 does not load v1/core/sched/no_such_file.py, which was to be patched")


def test_a_patch_that_cannot_be_imported_is_told_in_one_line(opened: Open) -> None:
    with pytest.raises(EngineLoadError, match=r"^vllm 0\.33\.0 does not load: .*way$") as caught:
        opened(patches=((SCHEDULER, "raise ValueError('no\\nway')\n"),))
    assert "\n" not in str(caught.value)
