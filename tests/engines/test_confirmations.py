"""Counterexamples of a proof run are taken to the engine, one for each claim, and whatever the engine does is told.

The last test drives a real build; it fails, and never skips, when that cannot be had.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from fuzz import confirmations
from fuzz.confirm import Confirmation, SplitCall
from fuzz.confirmations import Taken, call_of, smallest_by_claim, take_to_engine
from fuzz.engines.names import EngineError
from fuzz.engines.open import open_engine
from fuzz.engines.process import EngineLoadError
from fuzz.engines.protocol import Engine, Run
from fuzz.trial import try_scenario
from oracle.scenario import Scenario
from oracle.validate import check
from spec.row import Row
from spec.solver import Limits
from spec.task import Task, run_task

NUMBERS = {"known": 9, "prompt": 9, "start": 0, "end": 2, "junction": 0, "room": 16}


def refuted(claim: str, *, sizes: str = "16/16", rule: str = "", release: str = "0.26.0", **numbers: int) -> Row:
    """A refuted row about the split with these numbers, in the parts of a proof."""
    values = {"drop": 0, **NUMBERS, **numbers}
    unit = int(sizes.partition("/")[2] or 1)
    parts = {"drop": values["drop"]}
    for name in NUMBERS:
        inside = values[name] % 16
        parts |= {f"{name}.blocks": values[name] // 16, f"{name}.units": inside // unit, f"{name}.rest": inside % unit}
    return Row(
        claim=claim,
        rule=rule or claim,
        subject="split",
        target="an engine",
        release=release,
        sizes=sizes,
        features="plain",
        regime="all",
        verdict="refuted",
        counterexample=parts,
        shown=values,
    )


def taken(rows: list[Row], engine: str = "reference") -> tuple[list[Taken], list[str]]:
    """What became of the rows, and what was said."""
    said: list[str] = []
    return list(take_to_engine(engine, rows, said.append)), said


# --- what becomes of a counterexample ----------------------------------------------------------------


def test_each_row_is_told_what_became_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference engine decides as 0.33.0: 0.26.0's chunk of 2 tokens is not its own, and no chunk ends at 1."""
    monkeypatch.setattr(confirmations, "SECONDS", 4.0)
    rows = [
        refuted("S5", release="0.33.0", end=9),
        refuted("S2"),
        refuted("S3", start=1, end=17, known=17, prompt=17),
    ]
    found, said = taken(rows)
    assert [(one.row.claim, one.confirmation.status) for one in found] == [
        ("S5", "confirmed on engine"),
        ("S2", "model only"),
        ("S3", "not reachable there"),
    ]
    assert said == []
    same, other, none = found
    assert same.words.startswith(
        "S5: confirmed on engine with the same numbers: the scheduler takes this very decision"
    )
    assert other.words == "S2: model only: given these very inputs the engine grants 0 tokens, not 2"
    assert none.words.startswith("S3: not reachable there: ")
    for one in (same, other):
        assert check(msgspec.json.decode(one.scenario, type=Scenario)) == []
    assert none.scenario == ""


# --- which are taken ---------------------------------------------------------------------------------


def asked_of(monkeypatch: pytest.MonkeyPatch, rows: list[Row]) -> list[tuple[str, SplitCall]]:
    """The rules and calls that are looked for, without looking."""
    asked: list[tuple[str, SplitCall]] = []

    def note(_: Engine, rule: str, call: SplitCall, seconds: float) -> Confirmation:
        asked.append((rule, call))
        return Confirmation("not reachable there", "nobody looked")

    monkeypatch.setattr(confirmations, "confirm", note)
    found, _ = taken(rows)
    assert len(found) == len(asked)
    return asked


def test_of_each_claim_the_smallest_is_taken_and_rather_a_fresh_one(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        refuted("S2", prompt=1),
        refuted("S2", known=12, prompt=12),
        refuted("S5.other", rule="S5", known=12, prompt=12),
        refuted("S2"),
        refuted("S5", known=12, prompt=12),
        refuted("S2", known=12, prompt=12, release="0.27.1"),
    ]
    asked = asked_of(monkeypatch, rows)
    assert [(rule, call.prompt, call.known) for rule, call in asked] == [("S2", 9, 9), ("S5", 12, 12), ("S5", 12, 12)]
    (only,) = asked_of(monkeypatch, rows[:1])
    assert only == ("S2", call_of(rows[0]))


def test_what_no_engine_can_be_asked_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unknown sizes are no engine's, masks and lookups have no such call, and what is proved has no numbers."""
    row = refuted("S2")
    others = [
        msgspec.structs.replace(row, sizes="B"),
        msgspec.structs.replace(row, sizes="B, H"),
        msgspec.structs.replace(row, subject="mask"),
        msgspec.structs.replace(row, verdict="proved", counterexample=None, shown={}),
    ]
    assert smallest_by_claim(others) == []
    assert asked_of(monkeypatch, [*others, row]) == [("S2", call_of(row))]


def test_without_a_counterexample_no_engine_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("an engine was prepared")

    monkeypatch.setattr(confirmations, "prepare_engine", never)
    assert taken([]) == ([], [])
    with pytest.raises(AssertionError, match="was prepared"):
        taken([refuted("S2")])


# --- the call of a row -------------------------------------------------------------------------------


@pytest.mark.parametrize(("release", "granted"), [("0.26.0", 2), ("0.33.0", 0)])
def test_a_call_has_the_answer_of_the_releases_policy(release: str, granted: int) -> None:
    assert call_of(refuted("S2", release=release)) == SplitCall(
        grid=16,
        hash_block=16,
        scheduler_block=16,
        room=16,
        block_drop=False,
        partial_hits=False,
        exact_junction=False,
        lookahead=0,
        checkpoint_alignment=0,
        start=0,
        asked=2,
        prompt=9,
        known=9,
        junction=0,
        granted=granted,
    )


@pytest.mark.parametrize(("end", "room"), [(2, 16), (9, 16), (40, 40)])
def test_a_room_that_does_not_matter_is_one_that_a_step_can_have(end: int, room: int) -> None:
    row = refuted("S3", room=1, end=end, known=50, prompt=50)
    assert call_of(row).room == 1
    assert call_of(msgspec.structs.replace(row, free=("junction", "room"))).room == room


@pytest.mark.parametrize(("sizes", "release", "is_on"), [("16/4", "0.26.0", True), ("16/4", "0.33.0", False)])
def test_finer_hashes_are_hits_inside_blocks_where_a_release_has_it_so(sizes: str, release: str, is_on: bool) -> None:
    assert call_of(refuted("S2", sizes=sizes, release=release)).partial_hits is is_on
    assert call_of(refuted("S2", release=release)).partial_hits is False


# --- engines that fail -------------------------------------------------------------------------------


class Watched:
    """The reference engine, with its runs replaced, which notes that it was closed."""

    def __init__(self, run: Callable[[Scenario], Run] | None = None) -> None:
        self.engine = open_engine("reference")
        self.name, self.version, self.release = self.engine.name, self.engine.version, self.engine.release
        self.closed = 0
        self._run = run

    def run(self, scenario: Scenario, *, record: bool = True) -> Run:
        return self._run(scenario) if self._run is not None else self.engine.run(scenario, record=record)

    def close(self) -> None:
        self.closed += 1
        self.engine.close()


def lost(_: Scenario) -> Run:
    raise EngineLoadError("its process did not come up")


def crashes(_: Scenario) -> Run:
    return Run([msgspec.json.encode([["crash", "died", "", "its process ended"]])])


def refuses(_: Scenario) -> Run:
    return Run([], refused="it is out of order")


@pytest.fixture(params=[lost, crashes, refuses])
def failing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Watched:
    engine = Watched(request.param)
    monkeypatch.setattr(confirmations, "open_prepared", lambda _: engine)
    return engine


def test_an_engine_that_fails_is_told_for_each_row_and_closed(failing: Watched) -> None:
    found, said = taken([refuted("S2"), refuted("S4")])
    assert [(one.row.claim, one.confirmation.status) for one in found] == [
        ("S2", "not reachable there"),
        ("S4", "not reachable there"),
    ]
    reasons = {lost: "could not be started again", crashes: "crashed while it was built", refuses: "it is out of order"}
    assert all(reasons[failing._run] in one.confirmation.reason for one in found)
    assert said == []
    assert failing.closed == 1


@pytest.mark.parametrize("step", ["prepare_engine", "open_prepared"])
def test_an_engine_that_cannot_be_had_is_told_once(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise EngineError("no torch for it")

    monkeypatch.setattr(confirmations, step, fail)
    assert taken([refuted("S2"), refuted("S4")]) == (
        [],
        ["counterexamples are not taken to the engine: no torch for it"],
    )


def test_the_engine_is_closed_whoever_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    engines: list[Watched] = []

    def watched(_: Any) -> Watched:
        engines.append(Watched())
        return engines[-1]

    monkeypatch.setattr(confirmations, "open_prepared", watched)
    reader = take_to_engine("reference", [refuted("S2"), refuted("S4")], print)
    assert next(reader).row.claim == "S2"
    assert engines[-1].closed == 0
    reader.close()  # type: ignore[attr-defined]
    assert engines[-1].closed == 1

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(confirmations, "confirm", interrupted)
    with pytest.raises(KeyboardInterrupt):
        taken([refuted("S2")])
    assert engines[-1].closed == 1


# --- a real build ------------------------------------------------------------------------------------


@pytest.mark.engines
def test_what_is_refuted_of_a_release_is_confirmed_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counterexamples in several regimes of two claims; what the first one's scenario shows, another release mended."""
    monkeypatch.setattr(confirmations, "SECONDS", 60.0)  # a confirmation ends the search, however slow the machine
    task = Task(subject="split", release="0.26.0", sizes="16/16", features="plain", claims=("S2", "S10.last"))
    rows = [row for row in run_task(task, Limits()).rows if row.verdict == "refuted"]
    assert len(rows) > len({row.claim for row in rows}) == 2
    found, _ = taken(rows, "vllm==0.26.0")
    assert {one.row.claim: one.confirmation.status for one in found} == dict.fromkeys(
        task.claims, "confirmed on engine"
    )
    assert all(one.confirmation.exact for one in found)
    shown = msgspec.json.decode(found[0].scenario, type=Scenario)
    assert findings("vllm==0.26.0", shown) == {"S2"}
    assert findings("reference", shown) == set()


def findings(name: str, scenario: Scenario) -> set[str]:
    engine = open_engine(name)
    try:
        return {finding.rule for finding in try_scenario(engine, scenario, frozenset({"S2"})).verdict.findings}
    finally:
        engine.close()
