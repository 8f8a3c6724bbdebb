"""The judge's memory follows what is alive: what it forgets never changes a verdict, and long traces do not fill it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import oracle.forgetting
from fuzz.engines.open import open_engine
from fuzz.generator import scenario_at
from oracle import trace
from oracle.forgetting import Forgetting
from oracle.judge import BadTrace, Judge, judge_lines, read_header
from oracle.prefixes import EMPTY_PREFIX, Prefixes
from oracle.scenario import Features, Geometry, Group, Limits, Request, Scenario, Step

GEOMETRY = Geometry((Group("full", 4), Group("mamba", 4), Group("swa", 4, 8)), 4, 40)


def long_scenario(requests: int) -> Scenario:
    """Requests one after another that share a prefix, each with tokens of its own."""
    steps = tuple(
        Step(4 * number, (Request(f"r{number}", ("sys:16", f"u{number}:7"), 3),)) for number in range(requests)
    )
    return Scenario(GEOMETRY, Limits(32, 4), steps, Features(retention=0))


def judged(lines: list[bytes]) -> Judge:
    judge = Judge(read_header(lines[0]), "0.33.0")
    for line in lines[1:]:
        judge.feed_all(trace.records_decoder.decode(line))
    return judge


def alive(judge: Judge) -> tuple[int, ...]:
    """Requests, prefixes, names of hashes, arrivals by urgency."""
    case = judge.case
    return (
        len(case.requests),
        len(case.prefixes.parents),
        len(case.index.names),
        len(judge.progress.urgency),
    )


def test_what_is_known_does_not_grow_with_the_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oracle.prefixes.NEW_PREFIXES_MIN", 256)
    monkeypatch.setattr("oracle.check_reuse.PROMISES_MAX", 8)
    engine = open_engine("reference")
    short, long = (alive(judged(engine.run(long_scenario(number)).lines)) for number in (150, 1200))
    assert all(more <= 2 * less for less, more in zip(short, long, strict=True)), (short, long)


def test_a_promise_that_is_given_up_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = open_engine("reference").run(long_scenario(150)).lines
    assert "promise given up" not in judged(lines).case.verdict.coverage
    monkeypatch.setattr("oracle.check_reuse.PROMISES_MAX", 1)
    assert judged(lines).case.verdict.coverage["promise given up"] > 0


def test_without_forgetting_it_would_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin of the test above."""
    monkeypatch.setattr("oracle.forgetting.Forgetting.step", lambda self: None)
    engine = open_engine("reference")
    short, long = (alive(judged(engine.run(long_scenario(number)).lines)) for number in (150, 1200))
    assert all(more > 4 * less for less, more in zip(short, long, strict=True)), (short, long)


def forget_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oracle.prefixes.Prefixes.is_full", property(lambda self: True))
    monkeypatch.setattr("oracle.forgetting.KEPT_STEPS", 3)


def traces_of(name: str) -> list[list[bytes]]:
    engine = open_engine(name)
    return [run.lines for index in range(0, 1500, 10) if (run := engine.run(scenario_at(5, index))).lines]


@pytest.mark.parametrize("name", ["planted:stale-hash", "planted:state-hit-too-early"])
def test_a_verdict_is_the_same_whatever_was_forgotten(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    traces = traces_of(name)
    before = [judge_lines(lines, "0.33.0") for lines in traces]
    assert any(verdict.findings for verdict in before)
    forget_at_once(monkeypatch)
    assert [judge_lines(lines, "0.33.0") for lines in traces] == before


@pytest.mark.parametrize("holds", [True, False])
def test_what_was_promised_is_known_when_nothing_else_of_it_is_left(
    holds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a prompt, which no hash covers, was overwritten by others before the prompt is sent again."""
    prompts = ["a:10", *(f"b{number}:10" for number in range(6)), "a:10"]
    steps = tuple(Step(4 * number, (Request(f"r{number}", (one,), 1),)) for number, one in enumerate(prompts))
    scenario = Scenario(Geometry((Group("full", 4),), 4, 40), Limits(32, 4), steps)
    forget_at_once(monkeypatch)
    if not holds:
        monkeypatch.setattr("oracle.check_reuse.Reuse.held", lambda self: iter(()))
    found = judged(open_engine("planted:never-hits").run(scenario).lines).close().findings
    assert ("U3" in {finding.rule for finding in found}) == holds


@pytest.mark.parametrize("held", ["hashes", "contents"])
def test_a_judge_that_forgot_more_would_find_what_is_not_there(held: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin of the test above."""

    def holds_less(self: Forgetting) -> Iterator[int]:
        case = self.case
        yield from (state.ids[-1] for state in case.requests.values())
        if held != "hashes":
            yield from (entry.key for entries in case.index.by_block.values() for entry in entries)
        if held != "contents":
            yield from (prefix for block in case.memory.owner for prefix in case.memory.slots[block])

    traces = traces_of("reference")
    before = [judge_lines(lines, "0.33.0") for lines in traces]
    forget_at_once(monkeypatch)
    monkeypatch.setattr("oracle.forgetting.Forgetting._held", holds_less)
    assert [judge_lines(lines, "0.33.0") for lines in traces] != before


def test_a_held_prefix_keeps_its_id_with_all_that_it_begins_with() -> None:
    prefixes = Prefixes()
    short, other = prefixes.of_prompt(["a:5"]), prefixes.of_prompt(["a:3", "b:4"])
    kept = prefixes.keep([short[4], 0, -1])
    assert set(kept) == {*short[1:5]}
    assert prefixes.of_prompt(["a:5"])[:5] == short[:5]
    assert not {*prefixes.of_prompt(["a:3", "b:4"])[4:]} & {*other, *short}
    assert EMPTY_PREFIX not in kept


def added(name: str) -> trace.Add:
    return trace.Add(name, ("x:4",), name, 4)


def empty_step(index: int) -> trace.Step:
    return trace.Step(index, (), (), (), (), (), 0, 0)


def ended_for(steps: int) -> Judge:
    """A judge that knows of one request, which ended so many steps ago."""
    line = open_engine("reference").run(long_scenario(1)).lines[0]
    judge = Judge(read_header(line), "0.33.0")
    judge.feed_all([added("a"), trace.Finish("a", "aborted"), *map(empty_step, range(steps))])
    return judge


def test_a_name_is_free_again_long_after_its_request_ended() -> None:
    known = oracle.forgetting.KEPT_STEPS
    with pytest.raises(BadTrace, match="second time"):
        ended_for(known - 1).feed_all([added("a")])
    judge = ended_for(known)
    judge.feed_all([added("a"), *map(empty_step, range(2 * known))])
    assert "a" in judge.case.requests


def test_an_output_in_flight_may_name_a_request_that_ended() -> None:
    output = trace.Output(0, (("a", 0),))
    ended_for(oracle.forgetting.KEPT_STEPS - 1).feed_all([output])
    with pytest.raises(BadTrace, match="ended long ago"):
        ended_for(oracle.forgetting.KEPT_STEPS).feed_all([output])


def test_a_request_that_ended_twice_does_not_take_the_next_of_its_name_along() -> None:
    judge = ended_for(1)
    judge.feed_all([trace.Finish("a", "aborted"), *map(empty_step, range(oracle.forgetting.KEPT_STEPS - 1))])
    judge.feed_all([added("a"), empty_step(0), empty_step(1)])
    assert "a" in judge.case.requests
