"""Counterexamples about the split are brought about on real builds, or it is said why they are not.

These tests fail, and never skip, when an engine cannot be had; ``-m "not engines"`` leaves them out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import msgspec
import pytest

from fuzz.confirm import JUDGED_RULES, SplitCall, confirm
from fuzz.engines.open import open_engine
from fuzz.engines.process import EngineLoadError
from fuzz.engines.protocol import Engine, Run
from fuzz.trial import try_scenario
from oracle.scenario import Scenario
from oracle.trace import Split, records_decoder
from oracle.validate import check
from reference import rules, split
from reference.policy import POLICIES

pytestmark = pytest.mark.engines

PLAIN = SplitCall(
    grid=4,
    hash_block=4,
    scheduler_block=4,
    room=8,
    block_drop=True,
    partial_hits=False,
    exact_junction=False,
    lookahead=0,
    checkpoint_alignment=0,
    start=0,
    asked=2,
    prompt=9,
    known=9,
    junction=0,
    granted=0,
)


def opened(release: str) -> Iterator[Engine]:
    engine = open_engine(f"vllm=={release}")
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def oldest() -> Iterator[Engine]:
    yield from opened("0.26.0")


@pytest.fixture(scope="module")
def newest() -> Iterator[Engine]:
    yield from opened("0.33.0")


def answered(call: SplitCall, release: str) -> SplitCall:
    """The call with the answer of a release's split, by the reference."""
    arguments = (call.start, call.asked, call.prompt, call.known, call.junction)
    return replace(call, granted=split.split(POLICIES[release], call.setting, *arguments))


def breaks(rule: str, call: SplitCall) -> bool:
    """Whether the call breaks the rule where the only Mamba block is the split's grid."""
    finish = split.prefill_end(call.prompt, call.known)
    if rule == "S2":
        tail = split.partial_tail(POLICIES["0.26.0"], call.setting, call.prompt)
        return not rules.chunk_end_is_useful(call.start, call.granted, finish, [call.grid], [tail], call.room)
    return not rules.chunk_empty_only_when_short(call.start, call.asked, call.granted, finish, call.grid, call.room)


def refuting(rule: str, call: SplitCall, starts: range) -> SplitCall:
    """The last counterexample among the calls of this setting for fresh requests that 0.26.0 answers."""
    found = [
        one
        for known in range(1, 3 * call.grid)
        for start in starts
        for asked in range(1, min(call.room, known - start) + 1)
        if breaks(rule, one := answered(replace(call, start=start, asked=asked, prompt=known, known=known), "0.26.0"))
    ]
    assert found
    return found[-1]


def makes_the_call(engine: Engine, scenario: Scenario, call: SplitCall) -> bool:
    """Whether the engine, given the scenario, splits with these very numbers."""
    assert check(scenario) == []
    wanted = (call.start, call.asked, call.granted, call.known, call.prompt, call.junction)
    records = [record for line in engine.run(scenario).lines[1:] for record in records_decoder.decode(line)]
    splits = [record for record in records if isinstance(record, Split)]
    return any((r.start, r.asked, r.granted, r.known, r.prompt, r.junction) == wanted for r in splits)


@pytest.mark.parametrize("hash_block", [4, 16])
@pytest.mark.parametrize("starts", [range(1), range(1, 3), range(16, 17)], ids=["fresh", "inside a block", "second"])
def test_a_chunk_that_ends_inside_a_block_is_confirmed(oldest: Engine, hash_block: int, starts: range) -> None:
    setting = replace(PLAIN, grid=16, hash_block=hash_block, scheduler_block=16, room=32, partial_hits=hash_block < 16)
    call = refuting("S2", setting, starts)
    confirmed = confirm(oldest, "S2", call, 10)
    assert (confirmed.status, confirmed.exact) == ("confirmed on engine", True), confirmed.reason
    assert confirmed.scenario is not None
    assert makes_the_call(oldest, confirmed.scenario, call)
    found = try_scenario(oldest, confirmed.scenario, frozenset({"S2"})).verdict.findings
    assert [finding.decision for finding in found[:1]] == ["split"]


def test_a_chunk_that_saves_its_state_inside_is_confirmed(newest: Engine) -> None:
    sizes = replace(PLAIN, grid=16, hash_block=4, scheduler_block=16, room=32, block_drop=False, partial_hits=True)
    stopped = answered(replace(sizes, asked=20, prompt=20, known=20), "0.33.0")
    call = answered(replace(stopped, checkpoint_alignment=1), "0.33.0")
    assert stopped.granted < call.granted
    confirmed = confirm(newest, "S3i", call, 10)
    assert (confirmed.status, confirmed.exact) == ("confirmed on engine", True), confirmed.reason
    assert confirmed.scenario is not None
    assert makes_the_call(newest, confirmed.scenario, call)


def test_the_same_fault_with_other_numbers_is_confirmed_as_such(oldest: Engine) -> None:
    """A junction lies on a block boundary, so the very call is never made; its like without one is."""
    call = answered(replace(PLAIN, start=1, asked=3, junction=6), "0.26.0")
    confirmed = confirm(oldest, "S2", call, 6)
    assert (confirmed.status, confirmed.exact) == ("confirmed on engine", False), confirmed.reason
    assert "in the nearest one" in confirmed.reason
    assert confirmed.scenario is not None
    assert try_scenario(oldest, confirmed.scenario, frozenset({"S2"})).verdict.findings


def test_what_a_later_release_mended_is_model_only_there(newest: Engine) -> None:
    call = refuting("S2", replace(PLAIN, grid=16, hash_block=16, scheduler_block=16, room=32), range(1))
    told = confirm(newest, "S2", call, 10)
    assert told.status == "model only"
    assert f"not {call.granted}" in told.reason
    assert told.scenario is not None
    assert makes_the_call(newest, told.scenario, answered(call, "0.33.0"))
    assert answered(call, "0.33.0").granted != call.granted


def test_whether_a_chunk_is_empty_is_confirmed_though_no_trace_of_this_release_is_judged_by_it(oldest: Engine) -> None:
    call = refuting("S4", replace(PLAIN, block_drop=False), range(5, 6))
    confirmed = confirm(oldest, "S4", call, 10)
    assert (confirmed.status, confirmed.exact) == ("confirmed on engine", True), confirmed.reason
    assert confirmed.scenario is not None
    assert makes_the_call(oldest, confirmed.scenario, call)


def test_the_wrong_grid_is_confirmed_where_the_mamba_block_is_the_wide_one(newest: Engine) -> None:
    """The call does not name the Mamba block; the first cache that fits, with Mamba's block as grid, shows nothing."""
    wide = replace(PLAIN, grid=2, hash_block=2, scheduler_block=8, block_drop=False, partial_hits=True, asked=6)
    call = answered(replace(wide, prompt=20, known=20), "0.33.0")
    confirmed = confirm(newest, "S2", call, 10)
    assert (confirmed.status, confirmed.exact) == ("confirmed on engine", True), confirmed.reason


def test_a_call_in_sizes_of_real_models_is_reached(newest: Engine) -> None:
    large = replace(PLAIN, grid=528, hash_block=16, scheduler_block=528, room=2048, partial_hits=True, asked=777)
    call = answered(replace(large, start=1056, prompt=3000, known=3000), "0.33.0")
    confirmed = confirm(newest, "S5", call, 15)
    assert (confirmed.status, confirmed.exact) == ("confirmed on engine", True), confirmed.reason


@pytest.mark.parametrize(
    "change",
    [
        {"prompt": 20, "known": 20, "junction": 8, "asked": 8},
        {"prompt": 20, "known": 20, "junction": 12, "start": 8, "asked": 8},
        {"prompt": 10, "known": 13, "start": 8, "asked": 5},
    ],
    ids=["junction", "junction after a hit or chunk", "resumed"],
)
def test_calls_that_need_earlier_requests_or_a_preemption_are_reached(newest: Engine, change: dict[str, int]) -> None:
    """A rule without a judge: the decision itself is what is looked for."""
    assert "S5" not in JUDGED_RULES
    call = answered(replace(PLAIN, block_drop=False, **change), "0.33.0")
    confirmed = confirm(newest, "S5", call, 15)
    assert (confirmed.status, confirmed.exact) == ("confirmed on engine", True), confirmed.reason
    assert confirmed.scenario is not None
    assert makes_the_call(newest, confirmed.scenario, call)


def test_a_call_that_nothing_leads_to_is_told_with_its_nearest(newest: Engine) -> None:
    call = answered(replace(PLAIN, prompt=12, known=12, start=1, asked=3), "0.33.0")
    told = confirm(newest, "S5", call, 3)
    assert (told.status, told.scenario) == ("not reachable there", None)
    assert "in the nearest one" in told.reason


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"junction": 40}, "does not lie within 9 tokens"),
        ({"known": 5}, "knows at least its prompt"),
        ({"room": 2}, "below the smallest block"),
        ({"exact_junction": True}, "exact_junction is False, not True"),
        ({"grid": 5}, "no cache that can be driven has these block sizes"),
    ],
)
def test_what_cannot_be_is_told_at_once(oldest: Engine, change: dict[str, int], why: str) -> None:
    told = confirm(oldest, "S2", replace(PLAIN, **change), 10)
    assert (told.status, told.scenario, told.exact) == ("not reachable there", None, False)
    assert why in told.reason


class Failing:
    """An engine whose every run ends with a crash after its header, or whose process is lost for good."""

    def __init__(self, engine: Engine, *, is_lost: bool) -> None:
        self.name, self.version, self.release = engine.name, engine.version, engine.release
        self._engine = engine
        self._is_lost = is_lost

    def run(self, scenario: Scenario, *, record: bool = True) -> Run:
        if self._is_lost:
            raise EngineLoadError("its process did not come up")
        header = self._engine.run(scenario, record=record).lines[0]
        return Run([header, msgspec.json.encode([["crash", "hang", "Scheduler.schedule", "nothing was decided"]])])

    def close(self) -> None:
        self._engine.close()


@pytest.mark.parametrize(("is_lost", "why"), [(False, "ended with hang in Scheduler.schedule"), (True, "started")])
def test_an_engine_that_crashes_or_is_lost_is_a_reason(oldest: Engine, is_lost: bool, why: str) -> None:
    told = confirm(Failing(oldest, is_lost=is_lost), "S2", PLAIN, 5)
    assert told.status == "not reachable there"
    assert why in told.reason
