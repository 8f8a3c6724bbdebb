"""Campaigns end to end, on the reference engine and planted faults."""

from __future__ import annotations

import datetime
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fuzz.campaign import Campaign, Settings, State
from fuzz.engines.names import EngineName
from fuzz.engines.open import Prepared, open_engine, prepare_engine
from fuzz.findings import decode_finding
from fuzz.known import Known
from fuzz.smoke import SCENARIO
from fuzz.sources import Scenarios, scenario_source
from fuzz.supported import withheld
from fuzz.trial import Trial, try_scenario
from fuzz.worker import OurFault
from oracle.compare import records_of
from oracle.costs import COSTS
from oracle.trace import Allocate
from oracle.validate import decode_scenario
from oracle.verdict import Verdict

TODAY = datetime.date(2026, 11, 29)


def run(engine: str, folder: Path, **changes: Any) -> State:
    prepared = prepare_engine(engine, policy=changes.pop("policy", None))
    only = changes.pop("only", ())
    without = () if only else withheld(prepared)
    source = Scenarios(seed=1, only=only, without=without, backend=changes.pop("backend", "seeded"))
    asked: dict[str, Any] = {
        "workers": 1, "scenarios": 60, "seconds": None, "rules": None, "folder": folder, "today": TODAY,
    }  # fmt: skip
    return Campaign(prepared, Settings(source=source, **(asked | changes))).run()


def test_the_conforming_engine_gives_no_finding(tmp_path: Path) -> None:
    state = run("reference", tmp_path, scenarios=100)
    assert state.exit_status == 0, state.found
    assert not state.could_not_judge
    assert state.tally.judged["S2"] > 0
    assert not list(tmp_path.rglob("*.json"))


def test_a_fault_is_found_shrunk_and_stored(tmp_path: Path) -> None:
    state = run("planted:ends-inside-a-block", tmp_path)
    assert state.exit_status == 1
    assert any(signature[0] == "S2" for signature in state.found)
    for signature, path in state.paths.items():
        stored = decode_finding(path.read_bytes(), str(path))
        assert stored == state.found[signature]
        assert stored.shrunk
        assert stored.count == state.tally.signatures[signature]


def test_what_is_found_does_not_depend_on_the_number_of_workers(tmp_path: Path) -> None:
    one = run("planted:ends-inside-a-block", tmp_path / "one", workers=1)
    two = run("planted:ends-inside-a-block", tmp_path / "two", workers=2)
    assert one.found == two.found
    assert one.tally.digest == two.tally.digest
    assert (one.tally.scenarios, one.tally.judged) == (two.tally.scenarios, two.tally.judged)


def test_a_loss_beside_the_reference_engine_is_told_and_is_no_finding(tmp_path: Path) -> None:
    rules = frozenset({"A1"})
    state = run("planted:never-hits", tmp_path, against="0.33.0", rules=rules)
    against = state.tally.against
    assert (state.exit_status, against.scenarios, against.unlike) == (0, 60, 0)
    assert against.engine.hit_tokens == 0 < against.reference.hit_tokens
    assert against.ratio("hit_tokens") == 0
    chunks = against.ratio("chunks")
    assert chunks is not None
    assert chunks > 1
    largest = against.largest["hit_tokens"]
    alone = try_scenario(open_engine("reference"), scenario_source(state.settings.source)(largest.index))
    hits = [record.hit for record in records_of(alone.lines) if isinstance(record, Allocate) and record.granted]
    assert (largest.engine, largest.reference) == (0, sum(hits))


def test_the_reference_engine_beside_itself_is_even_for_any_number_of_workers(tmp_path: Path) -> None:
    one, two = (run("reference", tmp_path, against="0.33.0", workers=workers) for workers in (1, 2))
    assert {one.tally.against.ratio(name) for name in COSTS} == {1.0}
    assert one.tally.against.largest == {}
    assert one.tally.against == two.tally.against
    faulty = [run("planted:second-best-hit", tmp_path, against="0.33.0", workers=n).tally.against for n in (1, 2, 3)]
    assert faulty[0] == faulty[1] == faulty[2]
    assert faulty[0].largest["hit_tokens"].amount > 0


def test_costs_are_compared_only_where_both_ran_to_the_end(tmp_path: Path) -> None:
    against = run("planted:raises-on-a-hit", tmp_path, against="0.33.0").tally.against
    assert against.unlike > 0
    assert against.scenarios == 60 - against.unlike
    assert against.reference.hit_tokens == 0


def test_an_engine_that_does_not_repeat_itself_is_a_class_of_its_own(tmp_path: Path) -> None:
    state = run("planted:every-other-run", tmp_path)
    assert {signature[0] for signature in state.found} == {"D1", "M4", "V1"}
    assert state.tally.repeated == state.tally.judged["D1"]


def test_time_ends_a_campaign_with_shrinking_in_it(tmp_path: Path) -> None:
    state = run("planted:ends-inside-a-block", tmp_path, scenarios=None, seconds=3.0)
    assert state.found
    assert state.clock.fuzzing > 0
    assert state.clock.shrinking > 0


def test_a_rule_that_was_asked_for_and_never_judged_is_no_pass(tmp_path: Path) -> None:
    plain = run("reference", tmp_path, only=("shared-prefix",), rules=frozenset({"S2", "L1"}))
    assert plain.tally.judged["L1"] > 0
    assert plain.exit_status == 2
    assert plain.could_not_judge == "nothing to judge by S2"


def test_a_campaign_in_which_nothing_ran_is_no_pass(tmp_path: Path) -> None:
    state = run("reference", tmp_path, only=("eagle", "mamba", "abort-in-flight"), scenarios=1)
    state.tally.judged.clear()
    assert state.exit_status == 2


def test_hypothesis_draws_a_campaign_that_can_be_repeated(tmp_path: Path) -> None:
    one = run("reference", tmp_path, backend="hypothesis", workers=1, scenarios=30)
    two = run("reference", tmp_path, backend="hypothesis", workers=2, scenarios=30)
    assert one.tally.digest == two.tally.digest
    assert one.tally.steps > 0


def known_from(state: State, expires: datetime.date) -> tuple[Known, ...]:
    return tuple(
        Known(signature, document.scenario, "planted", "none", expires) for signature, document in state.found.items()
    )


def test_known_findings_do_not_change_the_status(tmp_path: Path) -> None:
    first = run("planted:stale-hash", tmp_path)
    known = known_from(first, TODAY + datetime.timedelta(1))
    second = run("planted:stale-hash", tmp_path / "again", known=known)
    assert second.exit_status == 0
    assert set(second.known.values()) == {"still there"}
    assert second.tally.signatures == first.tally.signatures
    assert run("reference", tmp_path / "fixed", known=known).known == dict.fromkeys(second.known, "no longer there")


def test_expired_findings_count_as_new(tmp_path: Path) -> None:
    first = run("planted:stale-hash", tmp_path)
    second = run("planted:stale-hash", tmp_path / "again", known=known_from(first, TODAY), scenarios=1)
    assert second.exit_status == 1
    assert second.found.keys() == first.found.keys()
    assert all("expired" in status for status in second.known.values())


def test_an_entry_that_no_longer_shows_its_finding_excuses_nothing(tmp_path: Path) -> None:
    first = run("planted:stale-hash", tmp_path)
    tomorrow = TODAY + datetime.timedelta(1)
    known = tuple(Known(signature, SCENARIO, "planted", "none", tomorrow) for signature in first.found)
    second = run("planted:stale-hash", tmp_path / "again", known=known)
    gone = {signature for signature, status in second.known.items() if status == "no longer there"}
    assert gone
    assert second.exit_status == 1
    assert gone <= second.found.keys()


def test_an_entry_of_a_rule_that_is_not_asked_for_is_not_run(tmp_path: Path) -> None:
    first = run("planted:stale-hash", tmp_path)
    known = known_from(first, TODAY + datetime.timedelta(1))
    state = run("planted:stale-hash", tmp_path / "again", known=known, rules=frozenset({"L1"}))
    assert not state.known


def test_a_shorter_campaign_leaves_the_better_finding(tmp_path: Path) -> None:
    first = run("planted:ends-inside-a-block", tmp_path)
    before = {path: decode_finding(path.read_bytes(), str(path)) for path in first.paths.values()}
    second = run("planted:ends-inside-a-block", tmp_path, attempts=2)
    assert not all(document.shrunk for document in second.found.values())
    for path, earlier in before.items():
        after = decode_finding(path.read_bytes(), str(path))
        assert (after.scenario, after.shrunk, after.attempts) == (earlier.scenario, True, earlier.attempts)


def test_a_finding_that_cannot_be_stored_still_counts(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    state = run("planted:ends-inside-a-block", tmp_path / "file")
    assert state.found
    assert state.exit_status == 1
    assert state.error.startswith("cannot write")


def test_a_fault_of_the_judge_is_counted_apart_and_stored(tmp_path: Path) -> None:
    prepared = prepare_engine("reference")
    settings = Settings(
        source=Scenarios(seed=1), workers=1, scenarios=3, seconds=None, rules=None, folder=tmp_path, today=TODAY
    )
    campaign = Campaign(prepared, settings)
    trial = Trial([], Verdict(), "the judge failed: KeyError: 1", ours=True)
    campaign.state.tally.add(0, trial)
    campaign._store_fault(OurFault(0, SCENARIO, trial.could_not_run))
    (path,) = campaign.state.faults
    assert decode_scenario(path.read_bytes(), "s").steps == SCENARIO.steps
    assert campaign.state.tally.unrun == 0
    assert campaign.state.exit_status == 2
    assert "kvoracle itself failed on 1 of 1 scenarios" in campaign.state.could_not_judge


def test_an_engine_that_does_not_come_up_is_told_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    prepared = Prepared(EngineName("planted:x", "planted", "x"), None, "0.33.0", "0.33.0", "planted:x")
    settings = Settings(
        source=Scenarios(seed=1), workers=2, scenarios=3, seconds=None, rules=None, folder=tmp_path, today=TODAY
    )
    state = Campaign(prepared, settings).run()
    assert state.exit_status == 2
    assert state.error.startswith("no planted fault 'x'")
    assert not state.tally.made
    assert capfd.readouterr().err == ""


def test_an_interrupted_campaign_without_findings_is_no_pass(tmp_path: Path) -> None:
    state = run("reference", tmp_path)
    state.interrupted = True
    assert (state.exit_status, state.could_not_judge) == (2, "interrupted")


def test_a_campaign_that_skips_most_is_no_pass(tmp_path: Path) -> None:
    state = run("reference", tmp_path, policy="0.28.0", only=("mamba", "checkpoint"))
    assert state.tally.skipped > state.tally.scenarios
    assert state.exit_status == 2
    assert state.could_not_judge.startswith(f"ran {state.tally.scenarios} of 60 scenarios")


def test_features_are_counted(tmp_path: Path) -> None:
    state = run("reference", tmp_path, only=("shared-prefix",))
    assert state.tally.features == {"shared-prefix": 60}


@pytest.mark.parametrize(("by", "status"), [("reference", 2), ("planted:ends-inside-a-block", 1)])
def test_ctrl_c_keeps_what_was_found(tmp_path: Path, by: str, status: int) -> None:
    command = [sys.executable, "-c", "from fuzz.cli import main; main()", "fuzz", "--engine", by, "--time", "60s"]
    campaign = subprocess.Popen(
        [*command, "--seed", "1", "--folder", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # Whoever runs the tests in the background of a shell ignores interruptions, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 (no thread runs here)
    )
    try:
        assert campaign.stdout is not None
        heading = campaign.stdout.readline()  # the first that it prints, once it is up
        # Without a finding there is nothing more to see from outside; it may then be loading or fuzzing.
        wait_until(lambda: status == 2 or list(tmp_path.rglob("[!.]*.json")))
        time.sleep(2.0)
        os.killpg(campaign.pid, signal.SIGINT)
        printed, told = campaign.communicate(timeout=30)
    finally:
        campaign.kill()
    assert campaign.returncode == status
    assert "Traceback" not in told
    assert heading.startswith(by)
    assert "interrupted" in told + printed


def test_kill_9_loses_no_finding_and_leaves_no_process(tmp_path: Path) -> None:
    command = "from fuzz.cli import main; main()"
    options = [
        "--engine",
        "planted:ends-inside-a-block",
        "--time",
        "60s",
        "--seed",
        "1",
        "--folder",
        str(tmp_path),
    ]
    campaign = subprocess.Popen(
        [sys.executable, "-c", command, "fuzz", *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: len(list(tmp_path.rglob("[!.]*.json"))) >= 3)
        children = children_of(campaign.pid)
        assert children
    finally:
        campaign.send_signal(signal.SIGKILL)
        campaign.wait()
    for path in tmp_path.rglob("[!.]*.json"):
        stored = decode_finding(path.read_bytes(), str(path))
        engine = prepare_engine("planted:ends-inside-a-block")
        assert stored.engine.name == engine.name.typed
    wait_until(lambda: not any(is_running(child) for child in children))


def wait_until(holds: Any, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize("where", ["driver:Worker.plan", "driver:unknown"])
def test_a_fault_of_the_driver_is_no_finding(where: str) -> None:
    import msgspec

    from fuzz.engines.open import open_engine
    from fuzz.engines.protocol import Run

    engine = open_engine("reference")
    lines = engine.run(SCENARIO).lines
    crash = msgspec.json.encode([["crash", "exception", where, "KeyError: 'x'"]])
    engine.run = lambda scenario, record=True: Run([*lines[:-1], crash])  # type: ignore[method-assign, misc]
    trial = try_scenario(engine, SCENARIO)
    assert trial.could_not_run.startswith("the driver failed")
    assert trial.ours
    assert not trial.verdict.findings
