"""One gate run: what changed, what is proved of it, what scenarios show, and whether planted faults are noticed."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path

from fuzz import worker
from fuzz.compiled import judge_kind
from fuzz.engines.open import Prepared
from fuzz.findings import kvoracle_version
from fuzz.gate import controls as planted
from fuzz.gate.account import Account
from fuzz.gate.changes import Change, changed_functions, decision_points
from fuzz.gate.directed import directed
from fuzz.gate.equality import Equality, prove_equality
from fuzz.gate.model import Control, GateFinding, GateReport, KnownEntry, Layer, Place
from fuzz.gate.model import Side as SideFacts
from fuzz.gate.pair import DIFFERENCE, Pair
from fuzz.gate.settle import SHRUNK_MAX, by_weight, gate_finding, make_small, store
from fuzz.gate.side import Side, SideError
from fuzz.gate.steer import Supply
from fuzz.known import Known
from fuzz.tally import Signature
from oracle.compare import Word
from oracle.scenario import Scenario

UNRUN_SHARE_MAX = 0.01
"""Above this share of scenarios that one build could not run, the gate could not judge."""

PROOF_SHARE = 0.25
SHRINK_SHARE = 0.25
LIVENESS_SHARE = 0.03
"""Shares of the time that proofs may take, making small what was found, and scenarios of contention."""

CONTROL_SCENARIOS = 600
LIVENESS_SCENARIOS = 96
REACH_SECONDS = 6.0


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the user asked for. ``seconds`` and ``scenarios`` (None: no limit): whichever is reached first.

    ``accept``: verdicts that are to be let through, and ``unseen`` for changed lines that never ran. ``tolerance``: by
    what share a cost may be worse.
    """

    seconds: float
    scenarios: int | None = None
    seed: int
    tolerance: float
    accept: frozenset[str]
    require_proof: bool
    known: tuple[Known, ...]
    today: datetime.date
    folder: Path


class Gate:
    """Compares ``candidate`` with ``baseline``. ``sources``: the folders that hold their packages. ``say`` gets lines
    about the progress."""

    def __init__(
        self,
        baseline: Prepared,
        candidate: Prepared,
        sources: tuple[Path, Path],
        settings: Settings,
        say: Callable[[str], None],
    ) -> None:
        self.prepared = (baseline, candidate)
        self.sources = sources
        self.settings = settings
        self.say = say
        self.changes: list[Change] = []
        self.equality = Equality()
        self.account = Account(())
        self.excused: dict[Signature, str] = {}
        self.known: list[KnownEntry] = []
        self.controls: list[Control] = []
        self.reason = ""
        self.seconds: dict[str, float] = {}
        self._began = time.monotonic()
        self._judge = judge_kind()
        self._paths: dict[Signature, str] = {}
        self._pair: Pair | None = None

    # --- the order of work -------------------------------------------------------------------------------

    def run(self) -> GateReport:
        """Run it to its end. What was found until an interruption or a failure is in the report."""
        try:
            with self._phase("sources"):
                self.changes = changed_functions(*self.sources)
                self.account = Account(self.changes)
            self._compare()
            self._plant()
        except SideError as error:
            self.reason = str(error)
            if error.traceback:
                self.say(error.traceback)
        except KeyboardInterrupt:
            self.reason = "interrupted"
        finally:
            if self._pair is not None:
                self._pair.close()
        return self._report()

    def _compare(self) -> None:
        cores = worker.cores()
        baseline, candidate = self.prepared
        sides = Side(baseline, cores[0]), Side(_watching(candidate, self.changes), cores[-1])
        self._pair = pair = Pair(*sides, self.settings.tolerance)
        with self._phase("proof"):
            self._prove(len(cores))
        with self._phase("load"):
            pair.wait()
            self.account.ran_at_import(pair.candidate.lines_at_import)
        with self._phase("known findings"):
            self._recheck(pair)
        with self._phase("vectors"):
            self._run("vector", self._supply.stored())
        with self._phase("directed"):
            seconds = min(REACH_SECONDS, max(1.0, 0.05 * self.settings.seconds))
            rows = self.equality.refuted
            self._run("directed", directed(rows, self.sources[1], pair.candidate, seconds), self._is_fuzzed)
        with self._phase("fuzzing"):
            self._run("fuzz", self._supply.generated(), self._is_fuzzed)
        with self._phase("liveness"):
            self._run("fuzz", self._supply.contending(LIVENESS_SCENARIOS))
        with self._phase("shrinking"):
            self._make_small(pair)

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        self.say(name)
        try:
            yield
        finally:
            self.seconds[name] = round(time.monotonic() - began, 2)

    def _left(self) -> float:
        return self._began + self.settings.seconds - time.monotonic()

    def _is_fuzzed(self) -> bool:
        """Whether what is left of the time is for liveness, shrinking and controls; it grows with what is found."""
        if self.settings.scenarios is not None and self.account.scenarios >= self.settings.scenarios:
            return True
        kept = self._controls_wanted() * self._seconds_a_control() + LIVENESS_SHARE * self.settings.seconds
        return self._left() <= kept + self._seconds_to_shrink()

    def _seconds_to_shrink(self) -> float:
        found = len(list(self.account.worse()))
        return min(SHRINK_SHARE * self.settings.seconds, 6.0 * min(found + 1, SHRUNK_MAX)) if self.account.seen else 0.0

    def _seconds_a_control(self) -> float:
        return self.seconds["load"] * 0.7 + 4.0

    def _controls_wanted(self) -> int:
        return 1 if self.settings.seconds < 150 else 2 if self.settings.seconds < 270 else 3

    def _prove(self, jobs: int) -> None:
        release = self.prepared[0].launch.release if self.prepared[0].launch else ""
        seconds = PROOF_SHARE * self.settings.seconds
        self.equality = prove_equality(*self.sources, release, self.changes, seconds, jobs)

    # --- scenarios ---------------------------------------------------------------------------------------

    @cached_property
    def _supply(self) -> Supply:
        """Scenarios for both builds, once it is known what changed."""
        return Supply(self.prepared, self.settings.seed, decision_points(self.changes))

    def _run(self, layer: Layer, scenarios: Iterable[Scenario], is_over: Callable[[], bool] = lambda: False) -> None:
        assert self._pair is not None
        pairs = ((layer, scenario) for scenario in scenarios)
        for one in self._pair.run(pairs, lambda: is_over() or self._left() <= 0):
            for signature in self.account.add(one, time.monotonic() - self._began):
                self._paths[signature] = str(store(one, signature, self.settings.folder, self.prepared[1]))

    def _recheck(self, pair: Pair) -> None:
        for entry in self.settings.known:
            one = pair.one(entry.scenario)
            if one.comparison is None:
                status = f"could not run: {one.sides[1].could_not_run or one.sides[0].could_not_run}"
            elif entry.signature not in one.signatures:
                status = "no longer there"
            elif entry.expired(self.settings.today):
                status = f"still there, expired on {entry.expires}"
            else:
                status = "still there"
                self.excused[entry.signature] = entry.reason
            self.known.append(KnownEntry(entry.signature, status, entry.reason, entry.report))

    def _make_small(self, pair: Pair) -> None:
        wanted = by_weight(self.account, self.excused)[:SHRUNK_MAX]
        if not wanted:
            wanted = [signature for signature in self.account.seen if signature[0] == DIFFERENCE][:1]
        deadline = time.monotonic() + self._seconds_to_shrink()
        make_small(pair, self.account, wanted, deadline)
        for signature in wanted:
            smallest = self.account.seen[signature].smallest
            self._paths[signature] = str(store(smallest, signature, self.settings.folder, self.prepared[1]))

    # --- controls ----------------------------------------------------------------------------------------

    def _plant(self) -> None:
        """Plant faults in the candidate's own source, and see that the same scenarios and judge notice them."""
        assert self._pair is not None
        with self._phase("controls"):
            self._pair.baseline.close()
            for control in self._chosen_controls():
                self.controls.append(self._planted(control, self._pair.candidate))

    def _chosen_controls(self) -> list[planted.Control]:
        there = [control for control in planted.controls(self.sources[1]) if not control.missing]
        return there[: self._controls_wanted()]

    def _planted(self, control: planted.Control, candidate: Side) -> Control:
        place = Place(control.file, control.qualname, control.line)
        faulty = Side(self.prepared[1].launched(patches=(control.patch,)), worker.cores()[0])
        try:
            faulty.wait()
            pair = Pair(candidate, faulty, self.settings.tolerance)
            word, scenarios = self._caught(pair)
            return Control(control.name, control.sentence, place, word != "identical", scenarios, word)
        except SideError as error:
            return Control(control.name, control.sentence, place, False, 0, "", str(error))
        finally:
            faulty.close()

    def _caught(self, pair: Pair) -> tuple[Word, int]:
        """The first verdict that lets a change through no gate, and after how many scenarios it came."""
        some = islice(chain(self._supply.stored(), self._supply.generated()), CONTROL_SCENARIOS)
        scenarios: Iterator[tuple[Layer, Scenario]] = (("fuzz", scenario) for scenario in some)
        for number, one in enumerate(pair.run(scenarios, lambda: False), 1):
            if one.comparison is not None and one.comparison.word in ("regresses", "incomparable"):
                return one.comparison.word, number
        return "identical", CONTROL_SCENARIOS

    # --- the end -----------------------------------------------------------------------------------------

    def _report(self) -> GateReport:
        account, settings = self.account, self.settings
        baseline, candidate = self.prepared
        findings = [self._told(signature) for signature in by_weight(account, self.excused)]
        differing = [signature for signature in account.seen if signature[0] == DIFFERENCE]
        report = GateReport(
            kvoracle=kvoracle_version(),
            baseline=SideFacts(baseline.name.typed, baseline.version, baseline.release, str(self.sources[0])),
            candidate=SideFacts(candidate.name.typed, candidate.version, candidate.release, str(self.sources[1])),
            word=account.word(self.excused),
            settings={**settings_document(settings), "judge": self._judge},
            scenarios=account.scenarios,
            words=dict(account.words),
            mended=dict(account.mended.most_common()),
            costs=account.costs,
            grounds=account.grounds(self.equality.equal, self.equality.alike),
            proof=self.equality.proof,
            findings=tuple(findings),
            difference=self._told(differing[0]) if differing else None,
            known=tuple(self.known),
            controls=tuple(self.controls),
            seconds=self.seconds,
        )
        return self._judged(report)

    def _told(self, signature: Signature) -> GateFinding:
        known, path = self.excused.get(signature, ""), self._paths.get(signature, "")
        return gate_finding(signature, self.account, self.sources[1], known, path)

    def _judged(self, report: GateReport) -> GateReport:
        """The report with its exit status: 1 wins over 2, and nothing that could not be judged passes."""
        accept = self.settings.accept
        report.reason = self.could_not_judge(report)
        if report.word in ("regresses", "incomparable"):
            report.accepted = report.word in accept
            report.exit_status = 0 if report.accepted and not report.reason else 2 if report.accepted else 1
        else:
            report.exit_status = 2 if report.reason else 0
        if report.exit_status == 2:
            report.tested, report.word = report.word, "could not judge"
        return report

    def could_not_judge(self, report: GateReport) -> str:
        """Why there is no verdict; empty when there is one."""
        account = self.account
        if self.reason:
            return self.reason
        if account.ours:
            return f"kvoracle itself failed: {next(iter(account.ours))}"
        if not report.scenarios:
            return "no scenario ran on both builds in the time given; give it more with --time"
        if self._pair is not None and not any(self._pair.judged.values()):
            return "nothing was judged"
        if account.one_sided > UNRUN_SHARE_MAX * (account.scenarios + account.one_sided):
            return f"{account.one_sided} scenarios could not run: {_most(account)}"
        if not any(control.caught for control in report.controls) or not all(c.caught for c in report.controls):
            missed = ", ".join(control.name for control in report.controls if not control.caught)
            return f"the planted fault was missed: {missed}" if missed else "no fault could be planted in the candidate"
        if gone := [entry for entry in report.known if entry.status.startswith("could not run")]:
            return f"the scenario of a known finding {gone[0].status}"
        if self.settings.require_proof and (why := _unproved(report)):
            return f"--require-proof: {why}"
        unseen = sum(len(ground.lines_unseen) for ground in report.grounds)
        if unseen and "unseen" not in self.settings.accept:
            return f"{unseen} changed lines were neither proved nor run (listed; --accept unseen lets them pass)"
        return ""


def settings_document(settings: Settings) -> dict[str, object]:
    """The settings as a report tells them."""
    return {
        "seconds": settings.seconds,
        "scenarios": settings.scenarios,
        "seed": settings.seed,
        "tolerance": settings.tolerance,
        "accept": sorted(settings.accept),
        "require_proof": settings.require_proof,
    }


def _unproved(report: GateReport) -> str:
    if report.proof.off:
        return report.proof.off
    left = [ground.place.function for ground in report.grounds if ground.status not in ("proved equal", "removed")]
    return f"not proved equal: {', '.join(left[:3])}" if left else ""


def _most(account: Account) -> str:
    reasons = account.unrun[0] + account.unrun[1]
    return reasons.most_common(1)[0][0]


def _watching(candidate: Prepared, changes: Sequence[Change]) -> Prepared:
    """The candidate, told to note which changed lines run."""
    lines: dict[str, set[int]] = {}
    for change in changes:
        lines.setdefault(change.file, set()).update(change.lines)
    watch = tuple((file, tuple(sorted(numbers))) for file, numbers in sorted(lines.items()) if numbers)
    return candidate.launched(watch=watch)
