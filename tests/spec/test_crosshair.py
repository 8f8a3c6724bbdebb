"""A second tool, which knows nothing of our explorer, confirms the same, and finds the faults that were planted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from checked_by_crosshair import case_of, keeps_its_rules
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st

from fuzz.engines.sources import source_tree
from spec.claims.split import one_too_many

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
CONFIRMED = "info: Confirmed over all paths."
PROFILE = "KVORACLE_HYPOTHESIS_PROFILE"


def in_this_project(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python on modules of the project and of this folder."""
    known = {"PYTHONPATH": os.pathsep.join((str(ROOT), str(HERE)))}
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        cwd=ROOT,
        env={**os.environ, **known, **variables},
    )


def crosshair(function: str, **variables: str) -> str:
    """What CrossHair says of one function: a line, which is no confirmation unless it says so."""
    report = in_this_project(
        "-m", "crosshair", "check", "--report_all", "--per_condition_timeout", "200", function, **variables
    )
    return report.stdout.strip() + report.stderr.strip()


# --- the reference ----------------------------------------------------------------------------------


def test_the_splits_rules_are_confirmed_for_all_fresh_requests() -> None:
    said = crosshair("checked_by_crosshair.split_keeps_its_rules")
    assert said.endswith(CONFIRMED), said


def test_a_fault_at_one_start_and_one_room_is_found() -> None:
    said = crosshair("checked_by_crosshair.split_with_a_fault_keeps_its_rules")
    assert "error: false when calling split_with_a_fault_keeps_its_rules(48, " in said
    assert ", 77, " in said


def test_an_empty_premise_confirms_nothing() -> None:
    said = crosshair("checked_by_crosshair.premise_is_empty")
    assert said.endswith("info: Unable to meet precondition.")


# --- the engine -------------------------------------------------------------------------------------


@pytest.mark.engines
def test_the_engines_split_is_confirmed_to_be_the_references() -> None:
    sources = str(source_tree("vllm==0.33.0"))
    said = crosshair("engine_checked_by_crosshair.engine_agrees", ENGINE_SOURCE=sources)
    assert said.endswith(CONFIRMED), said


@pytest.mark.engines
def test_the_rules_of_another_release_are_refuted() -> None:
    sources = str(source_tree("vllm==0.33.0"))
    said = crosshair("engine_checked_by_crosshair.engine_agrees_with_another_release", ENGINE_SOURCE=sources)
    assert "error: false when calling engine_agrees_with_another_release(" in said


# --- CrossHair behind Hypothesis --------------------------------------------------------------------


def test_the_profile_is_loaded_only_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = ("-c", "import conftest, hypothesis; print(hypothesis.settings().backend)")
    monkeypatch.delenv(PROFILE, raising=False)
    assert in_this_project(*ask).stdout == "hypothesis\n"
    assert in_this_project(*ask, **{PROFILE: "crosshair"}).stdout == "crosshair\n"
    assert in_this_project(*ask, **{PROFILE: "cross-hair"}).returncode != 0


def test_the_profile_finds_a_needle() -> None:
    number = st.integers(0, 10**6)

    @settings(settings.get_profile("crosshair"), max_examples=50, phases=[Phase.generate], database=None)
    @given(start=number, asked=number, prompt=number, room=number)
    def rules_hold(start: int, asked: int, prompt: int, room: int) -> None:
        assume(asked >= 1 and start + asked <= prompt and room >= 1)
        case = case_of(start, start + asked, prompt, 0, room, False)
        assert keeps_its_rules(one_too_many(case) if start == 123_456 else case)

    with pytest.raises(AssertionError) as failure:
        rules_hold()
    assert "start=123456," in "".join(failure.value.__notes__)
