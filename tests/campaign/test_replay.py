"""Each word of a replay is said when it is due, and FIXED never too early."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from fuzz import replay
from fuzz.engines.open import open_engine
from fuzz.findings import EngineFacts, FindingFile, Origin
from fuzz.replay import Item, Replayed
from fuzz.smoke import SCENARIO
from fuzz.trial import try_scenario
from oracle.scenario import Geometry, Group, Scenario


def found_by(fault: str, scenario: Scenario = SCENARIO) -> Item:
    engine = open_engine(f"planted:{fault}")
    finding = try_scenario(engine, scenario).verdict.findings[0]
    document = FindingFile(
        kvoracle="0",
        signature=finding.signature,
        sentence="",
        finding=finding,
        scenario=scenario,
        original=scenario,
        engine=EngineFacts(engine.name, engine.version, "v1", engine.release),
        origin=Origin(),
    )
    return Item(Path("f.json"), scenario, document)


def replayed(engine: str, item: Item) -> Replayed:
    return replay.replay(open_engine(engine), item)


def test_still_there() -> None:
    item = found_by("ends-inside-a-block")
    assert item.document is not None
    outcome = replayed("planted:ends-inside-a-block", item)
    assert outcome.word == replay.STILL_THERE
    assert outcome.finding == item.document.finding


def test_fixed() -> None:
    assert replayed("reference", found_by("ends-inside-a-block")).word == replay.FIXED


def test_a_finding_by_another_policy_is_not_called_fixed() -> None:
    item = found_by("stops-a-block-early")
    assert item.document is not None
    assert item.document.signature[0] == "M1"
    engine = open_engine("reference")
    by = replace(item.document.engine, name=engine.name, version=engine.version, release="0.26.0")
    outcome = replay.replay(engine, Item(item.path, item.scenario, replace(item.document, engine=by)))
    assert outcome.word == replay.NOT_REACHED
    assert outcome.why == "could not compare: it was found by the policy of 0.26.0, and this is the policy of 0.33.0"
    other_build = replace(item.document, engine=replace(by, version="0.26.0"))
    assert replay.replay(engine, Item(item.path, item.scenario, other_build)).word == replay.FIXED


def test_another_finding_of_the_same_rule_is_not_called_fixed() -> None:
    item = found_by("ends-inside-a-block")
    assert item.document is not None
    elsewhere = replace(item.document.finding, decision="step")
    outcome = replayed(
        "planted:ends-inside-a-block",
        Item(item.path, item.scenario, replace(item.document, finding=elsewhere)),
    )
    assert outcome.word == replay.STILL_THERE
    assert "another decision" in outcome.why


def test_a_crash_on_the_way_is_not_reached() -> None:
    outcome = replayed("planted:raises-on-a-hit", found_by("ends-inside-a-block"))
    assert outcome.word == replay.NOT_REACHED
    assert [finding.rule for finding in outcome.others] == ["P3"]


def test_a_request_that_never_came_to_the_decision_is_not_reached() -> None:
    item = found_by("ends-inside-a-block")
    assert item.document is not None
    other = replace(item.document.finding, request="r9")
    outcome = replayed("reference", Item(item.path, item.scenario, replace(item.document, finding=other)))
    assert outcome.word == replay.NOT_REACHED
    assert "r9" in outcome.why


def test_a_rule_that_judged_nothing_is_not_reached() -> None:
    item = found_by("ends-inside-a-block")
    assert item.document is not None
    other = replace(item.document.finding, rule="X9")
    outcome = replayed("reference", Item(item.path, item.scenario, replace(item.document, finding=other)))
    assert outcome.word == replay.NOT_REACHED
    assert outcome.why == "X9 had nothing to judge"


def test_what_cannot_run_says_why() -> None:
    budget = Scenario(SCENARIO.geometry, replace(SCENARIO.limits, budget=1), SCENARIO.steps)
    outcome = replayed("reference", Item(Path("s.json"), budget))
    assert (outcome.word, "limits.budget" in outcome.why) == (replay.COULD_NOT_RUN, True)
    saves = Geometry((Group("mamba", 4), Group("mamba", 4, checkpoint=1)), 4, 40)
    outcome = replayed("reference", Item(Path("s.json"), Scenario(saves, SCENARIO.limits, SCENARIO.steps)))
    assert (outcome.word, "save states in different units" in outcome.why) == (replay.COULD_NOT_RUN, True)


def test_a_bare_scenario_conforms_or_violates() -> None:
    assert replayed("reference", Item(Path("s.json"), SCENARIO)).word == replay.CONFORMS
    assert replayed("planted:ends-inside-a-block", Item(Path("s.json"), SCENARIO)).word == replay.VIOLATES


def test_a_folder_is_replayed_file_by_file(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.json").write_bytes(msgspec.json.encode(SCENARIO))
    (tmp_path / "b.json").write_bytes(msgspec.json.encode(found_by("ends-inside-a-block").document))
    (tmp_path / "c.json").write_bytes(b"{")
    first, second, third = replay.items(tmp_path)
    assert isinstance(first, Item)
    assert first.document is not None
    assert isinstance(second, Replayed)
    assert second.word == replay.COULD_NOT_RUN
    assert isinstance(third, Item)
    assert third.document is None


@pytest.mark.parametrize("name", ["none.json", "."])
def test_nothing_to_replay_could_not_run(tmp_path: Path, name: str) -> None:
    (only,) = replay.items(tmp_path / name)
    assert isinstance(only, Replayed)
    assert only.word == replay.COULD_NOT_RUN
