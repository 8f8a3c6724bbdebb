"""What many compared scenarios add up to, and when that is no verdict."""

from __future__ import annotations

import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from fuzz.engines.names import parse_engine_name
from fuzz.engines.open import Prepared
from fuzz.engines.provision import Launch
from fuzz.gate.account import Account
from fuzz.gate.changes import Change
from fuzz.gate.formats import words
from fuzz.gate.gate import Gate, Settings
from fuzz.gate.model import Control, GateReport, Place
from fuzz.gate.pair import COST, Compared
from fuzz.gate.side import Ran
from fuzz.known import BadKnown, Known, load_known
from oracle.compare import Comparison, Difference
from oracle.costs import Costs
from oracle.decisions import Decision
from oracle.scenario import Geometry, Group, Limits, Request, Scenario, Step
from oracle.verdict import Finding
from spec.statement import Alike

SCENARIO = Scenario(Geometry((Group("full", 4),), 4, 9), Limits(8, 2), (Step(0, add=(Request("r0", ("a:9",)),)),))
SPLIT = Decision("split", "r0", (("granted", 4),), 0, 3)
DIFFERENCE = Difference(SPLIT, None)
BROKEN = Finding("S2", "split", "full", 0, 3, "a chunk ends inside a block")
CHANGE = Change("v1/core/block_pool.py", "BlockPool.touch", "changed", 10, 20, (12, 13))
KEY = CHANGE.file, CHANGE.qualname
PLACE = Place("v1/core/sched/scheduler.py", "Scheduler.schedule", 1)


def compared(comparison: Comparison | None, baseline: Ran | None = None, candidate: Ran | None = None) -> Compared:
    plain = Ran(b"", Costs(steps=1), (), frozenset())
    return Compared(SCENARIO, "fuzz", (baseline or plain, candidate or plain), comparison)


def account(*comparisons: Comparison | None) -> Account:
    made = Account([CHANGE])
    for one in comparisons:
        made.add(compared(one), 1.0)
    return made


IDENTICAL = Comparison()
REFINES = Comparison(DIFFERENCE)
COSTLIER = Comparison(DIFFERENCE, worse=("steps",))
MIXED = Comparison(DIFFERENCE, worse=("steps",), better=("hit_tokens",))
BREAKS = Comparison(DIFFERENCE, broken=(BROKEN,))


@pytest.mark.parametrize(
    ("comparisons", "word"),
    [
        ([IDENTICAL], "identical"),
        ([IDENTICAL, REFINES], "refines"),
        ([COSTLIER], "regresses"),
        ([COSTLIER, REFINES], "incomparable"),
        ([MIXED], "incomparable"),
        ([MIXED, BREAKS], "regresses"),
    ],
)
def test_the_verdict_of_all_scenarios(comparisons: list[Comparison], word: str) -> None:
    assert account(*comparisons).word(()) == word


def test_a_rule_that_the_baseline_breaks_in_another_scenario_is_no_new_fault() -> None:
    made = account(BREAKS)
    assert made.word(()) == "regresses"
    made.add(compared(IDENTICAL, baseline=Ran(b"", Costs(), (BROKEN,), frozenset())), 2.0)
    assert made.word(()) == "refines"


def test_what_only_the_baseline_breaks_is_counted_by_rule() -> None:
    mends = Comparison(DIFFERENCE, mended=(BROKEN, BROKEN))
    assert account(mends, mends, REFINES, BREAKS).mended == {"S2": 2}


def test_what_is_known_is_excused_and_nothing_else() -> None:
    made = account(BREAKS)
    assert made.word({("S2", "split", "full")}) == "refines"
    assert made.word({("S3", "split", "full")}) == "regresses"
    costly = account(COSTLIER)
    assert costly.word({("COST", "split", "full")}) == "refines"


def test_a_signature_is_new_once_and_its_smallest_scenario_is_kept() -> None:
    made = Account(())
    assert made.add(compared(BREAKS), 1.0) == (("S2", "split", "full"),)
    assert made.add(compared(BREAKS), 2.0) == ()
    assert made.seen["S2", "split", "full"].count == 2
    assert made.seen["S2", "split", "full"].seconds == 1.0


def test_changed_lines_that_never_ran_are_listed_unless_the_function_is_proved_equal() -> None:
    made = account(IDENTICAL)
    made.ran_at_import(frozenset({(CHANGE.file, 12)}))
    (ground,) = made.grounds({}, {})
    assert (ground.status, ground.lines_hit, ground.lines_unseen) == ("executed", (12,), (13,))
    (ground,) = made.grounds({KEY: "M3"}, {})
    assert (ground.status, ground.lines_unseen, ground.why) == ("proved equal", (), "M3")
    (ground,) = Account([CHANGE]).grounds({}, {})
    assert (ground.status, ground.lines_unseen) == ("never executed", (12, 13))


def test_changed_lines_that_are_proved_to_make_no_difference_need_not_run() -> None:
    (ground,) = Account([CHANGE]).grounds({}, {KEY: Alike(frozenset({9, 13}), False, "for all integers n")})
    assert (ground.status, ground.lines_proved, ground.lines_unseen) == ("never executed", (13,), (12,))
    assert words.ground(ground) == (
        "never executed: line 12; proved to make no difference: line 13 (for all integers n)"
    )
    (ground,) = Account([CHANGE]).grounds({}, {KEY: Alike(frozenset({9}), False, "for all integers n")})
    assert (ground.lines_proved, ground.why) == ((), "")


# --- exit statuses -----------------------------------------------------------------------------------


def gate_of(made: Account, *, caught: bool = True, controls: int = 1, **settings: object) -> Gate:
    """A run that saw this."""
    launch = Launch(Path("python"), (), "0.33.0", "0.33.0", "vllm 0.33.0")
    prepared = Prepared(parse_engine_name("vllm==0.33.0"), launch, "0.33.0", None, "vllm 0.33.0")
    chosen = {"seconds": 60.0, "seed": 1, "tolerance": 0.0, "accept": frozenset(), "require_proof": False,
              "known": (), "today": datetime.date(2026, 1, 1), "folder": Path()} | settings  # fmt: skip
    run = Gate(prepared, prepared, (Path(), Path()), Settings(**chosen), lambda line: None)  # type: ignore[arg-type]
    run.account = made
    run.controls = [Control("one", "a fault", PLACE, caught, 3)] * controls
    return run


def gate(made: Account, **options: Any) -> GateReport:
    """The report of a run that saw this."""
    return gate_of(made, **options)._report()


def seen_whole(*comparisons: Comparison | None) -> Account:
    made = account(*comparisons)
    made.ran_at_import(frozenset({(CHANGE.file, 12), (CHANGE.file, 13)}))
    return made


@pytest.mark.parametrize(
    ("comparison", "status", "word"),
    [(IDENTICAL, 0, "identical"), (REFINES, 0, "refines"), (COSTLIER, 1, "regresses"), (MIXED, 1, "incomparable")],
)
def test_exit_status_follows_the_verdict(comparison: Comparison, status: int, word: str) -> None:
    report = gate(seen_whole(comparison))
    assert (report.exit_status, report.word, report.reason) == (status, word, "")


def test_incomparable_can_be_accepted_and_regresses_cannot() -> None:
    assert gate(seen_whole(MIXED), accept=frozenset({"incomparable"})).exit_status == 0
    assert gate(seen_whole(COSTLIER), accept=frozenset({"incomparable"})).exit_status == 1


@pytest.mark.parametrize(
    ("report", "reason"),
    [
        (gate(Account(())), "no scenario ran"),
        (gate(seen_whole(IDENTICAL), caught=False), "the planted fault was missed: one"),
        (gate(seen_whole(IDENTICAL), controls=0), "no fault could be planted"),
        (gate(account(IDENTICAL)), "2 changed lines were neither proved nor run"),
        (gate(seen_whole(IDENTICAL), require_proof=True), "--require-proof: not proved equal: BlockPool.touch"),
    ],
)
def test_what_was_not_looked_at_never_passes(report: GateReport, reason: str) -> None:
    assert (report.exit_status, report.word) == (2, "could not judge")
    assert report.reason.startswith(reason)


def test_every_planted_fault_must_be_noticed() -> None:
    run = gate_of(seen_whole(IDENTICAL))
    run.controls.append(Control("two", "another fault", PLACE, False, 600))
    assert (run._report().exit_status, run._report().reason) == (2, "the planted fault was missed: two")


def test_lines_that_never_ran_can_be_accepted() -> None:
    assert gate(account(IDENTICAL), accept=frozenset({"unseen"})).exit_status == 0


def test_a_regression_is_told_even_where_the_rest_could_not_be_judged() -> None:
    report = gate(account(BREAKS), caught=False)
    assert (report.exit_status, report.word) == (1, "regresses")
    assert report.reason


def test_scenarios_that_one_build_cannot_run_are_no_pass() -> None:
    made = seen_whole(*[IDENTICAL] * 50)
    made.add(compared(None, candidate=Ran(b"", Costs(), (), frozenset(), "refused: no")), 1.0)
    assert gate(made).exit_status == 2
    assert gate(seen_whole(*[IDENTICAL] * 50)).exit_status == 0


def test_what_runs_at_import_is_counted_as_no_scenario() -> None:
    made = account(IDENTICAL)
    made.ran_at_import(frozenset({(CHANGE.file, 12)}))
    (ground,) = made.grounds({}, {})
    assert ground.scenarios == 0
    assert words.ground(ground).startswith("executed at import only with 1 of 2 changed lines")
    made.add(compared(IDENTICAL, candidate=Ran(b"", Costs(), (), frozenset({(CHANGE.file, 13)}))), 1.0)
    (ground,) = made.grounds({}, {})
    assert (ground.scenarios, ground.lines_unseen) == (1, ())


# --- known findings ----------------------------------------------------------------------------------


class Sees:
    """A pair of builds on which every scenario compares like this."""

    def __init__(self, comparison: Comparison | None) -> None:
        self.comparison = comparison

    def one(self, _: Scenario) -> Compared:
        if self.comparison is None:
            return compared(None, candidate=Ran(b"", Costs(), (), frozenset(), "refused: no"))
        return compared(self.comparison)


@pytest.mark.parametrize(
    ("seen", "expires", "status", "is_excused", "exit_status"),
    [
        (BREAKS, datetime.date(2030, 1, 1), "still there", True, 0),
        (BREAKS, datetime.date(2020, 1, 1), "still there, expired on 2020-01-01", False, 1),
        (IDENTICAL, datetime.date(2030, 1, 1), "no longer there", False, 1),
        (None, datetime.date(2030, 1, 1), "could not run: refused: no", False, 1),
    ],
)
def test_a_known_finding_excuses_only_while_its_scenario_shows_it(
    seen: Comparison | None, expires: datetime.date, status: str, is_excused: bool, exit_status: int
) -> None:
    entry = Known(("S2", "split", "full"), SCENARIO, "mended upstream", "public report 1", expires)
    run = gate_of(seen_whole(BREAKS), known=(entry,))
    run._recheck(Sees(seen))  # type: ignore[arg-type]
    report = run._report()
    assert [one.status for one in report.known] == [status]
    assert bool(report.findings[0].known) == is_excused
    assert report.exit_status == exit_status


def test_a_cost_can_be_known_to_a_gate_and_to_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "known.toml"
    scenario = msgspec.json.encode(SCENARIO).decode()
    file.write_text(
        f"[[known]]\nsignature = ['COST', 'split', 'full']\nscenario = '{scenario}'\n"
        "reason = 'one step more'\nreport = 'none'\nexpires = 2030-01-01\n"
    )
    assert load_known(file, (COST,))[0].signature == ("COST", "split", "full")
    with pytest.raises(BadKnown, match="no such rule"):
        load_known(file)


def test_scenarios_of_which_nothing_was_judged_are_no_pass() -> None:
    run = gate_of(seen_whole(IDENTICAL))
    run._pair = SimpleNamespace(judged={"S1": 0})  # type: ignore[assignment]
    assert (run._report().exit_status, run._report().reason) == (2, "nothing was judged")
    run._pair = SimpleNamespace(judged={"S1": 7})  # type: ignore[assignment]
    assert run._report().exit_status == 0
