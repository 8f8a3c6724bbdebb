"""A trace from anywhere gets a verdict or one clear line, and what a build cannot show is not judged."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from fuzz.engines.conforming import open_reference
from fuzz.generator import scenario_at
from fuzz.limits import allow_limits
from oracle import trace
from oracle.judge import NEEDED_BY, BadTrace, Judge, judge_lines
from oracle.scenario import Features, Geometry, Group, Limits, Request, Scenario, Step
from oracle.validate import MAX_TOKENS, check
from oracle.verdict import Verdict
from reference.policy import POLICIES
from reference.rules import RULES

ODD_VALUES = (-1, 0, 1, 7, 10**6, 10**12, "", "a:x", "a:1000000000", "nobody", None, [], [[1]], True, {})
RECORD_KINDS = {
    "lookup": trace.Lookup, "split": trace.Split, "allocate": trace.Allocate, "cache": trace.Cache,
    "commit": trace.Commit, "evict": trace.Evict, "take": trace.Take, "touch": trace.Touch, "free": trace.Free,
    "preempt": trace.Preempt, "statistics": trace.Statistics,
}  # fmt: skip


def lines(index: int, release: str = "0.33.0") -> list[bytes]:
    """The conforming engine's trace of a generated scenario, empty where it refuses it."""
    return open_reference(release).run(scenario_at(11, index, without=("async",))).lines


def mutate(draw: random.Random, value: Any) -> Any:
    """The value with one part of it, somewhere inside, replaced by an odd one."""
    if isinstance(value, list) and value and draw.random() < 0.8:
        at = draw.randrange(len(value))
        return [*value[:at], mutate(draw, value[at]), *value[at + 1 :]]
    if isinstance(value, dict) and value and draw.random() < 0.9:
        key = draw.choice(sorted(value))
        return {**value, key: mutate(draw, value[key])}
    return draw.choice(ODD_VALUES)


@pytest.mark.parametrize("seed", range(6))
def test_a_damaged_trace_never_ends_in_an_exception(seed: int) -> None:
    draw = random.Random(seed)
    whole = [json.loads(line) for line in lines(seed * 7)]
    refused = 0
    for _ in range(150):
        at = draw.randrange(len(whole)) if draw.random() < 0.9 else 0
        damaged = [*whole[:at], mutate(draw, whole[at]), *whole[at + 1 :]]
        problem = problem_of([msgspec.json.encode(line) for line in damaged])
        assert "\n" not in problem
        refused += bool(problem)
    assert refused > 10


def variants(value: Any) -> Iterator[Any]:
    """The value with each part of it, one at a time, replaced by each odd one."""
    yield from ODD_VALUES
    if isinstance(value, list):
        for at, part in enumerate(value):
            yield from ([*value[:at], odd, *value[at + 1 :]] for odd in variants(part))
    if isinstance(value, dict):
        for key, part in value.items():
            yield from ({**value, key: odd} for odd in variants(part))


@pytest.mark.parametrize("index", [1, 14, 21])
def test_no_value_of_a_header_ends_in_an_exception(index: int) -> None:
    whole = lines(index)
    problems = [problem_of([msgspec.json.encode(odd), *whole[1:6]]) for odd in variants(json.loads(whole[0]))]
    assert len(problems) > 500
    assert 0 < sum(map(bool, problems)) < len(problems)
    assert not any("\n" in problem for problem in problems)


def problem_of(damaged: list[bytes]) -> str:
    """What the judge says of a trace that it cannot judge, empty when it can. Nothing else may be raised."""
    try:
        judge_lines(damaged, "0.33.0")
    except BadTrace as error:
        return str(error)
    return ""


def feed(header: trace.Header, records: list[trace.AnyRecord]) -> Verdict:
    judge = Judge(header, "0.33.0")
    judge.feed_all(records)
    verdict = judge.close()
    allow_limits(verdict, header.scenario, "0.33.0")
    return verdict


@pytest.mark.parametrize("point", sorted(NEEDED_BY))
def test_rules_that_need_a_missing_decision_point_are_not_judged(point: str) -> None:
    seen = 0
    for index in range(25):
        found = lines(index)
        if not found:
            continue
        header = msgspec.structs.replace(trace.header_decoder.decode(found[0]), missing=(point,))
        records = [
            record
            for line in found[1:]
            for record in trace.records_decoder.decode(line)
            if not isinstance(record, (RECORD_KINDS[point], trace.Snapshot))
        ]
        verdict = feed(header, records)
        assert verdict.findings == []
        assert not verdict.judged.keys() & set(NEEDED_BY[point])
        assert set(NEEDED_BY[point]) <= verdict.unjudged.keys()
        seen += 1
    assert seen > 10


def test_what_rules_need_is_named_by_rules_that_exist() -> None:
    assert {rule for needed in NEEDED_BY.values() for rule in needed} <= RULES.keys()


@pytest.mark.parametrize("release", [release for release in POLICIES if release != "0.26.0"])
def test_without_a_policy_no_release_breaks_an_invariant(release: str) -> None:
    """What releases decide differently (tails, last cacheable positions, masks) is no invariant."""
    seen = 0
    for index in range(60):
        found = lines(index, release)
        if found:
            seen += 1
            verdict = judge_lines(found, None)
            allow_limits(verdict, trace.header_decoder.decode(found[0]).scenario, release)
            assert verdict.findings == []
    assert seen > 30


def test_the_largest_sizes_that_a_scenario_may_have_fit_a_header() -> None:
    size = MAX_TOKENS
    largest = Scenario(
        geometry=Geometry(groups=(Group("full", size), Group("swa", size, window=size)), hash_block=size, blocks=8),
        limits=Limits(budget=size, sequences=2, long_prefill_threshold=size),
        features=Features(retention=size),
        steps=(Step(at=0, add=(Request("r0", ("a:9",)),)),),
    )
    assert check(largest) == []
    assert judge_lines(open_reference("0.33.0").run(largest).lines, "0.33.0").findings == []


def test_a_header_of_no_engine_is_refused() -> None:
    whole = [json.loads(line) for line in lines(1)]
    for setup, says in (
        ({"drop_groups": []}, "drop_groups"),
        ({"hash_block": 3_000}, "hash_block"),
        ({"scheduler_block": 1}, "scheduler_block"),
    ):
        header = {**whole[0], "setup": {**whole[0]["setup"], **setup}}
        with pytest.raises(BadTrace, match=says):
            judge_lines([msgspec.json.encode(header)], None)


def test_without_a_policy_stops_and_blocks_are_not_judged_where_states_are_saved_inside_a_chunk() -> None:
    whole = [json.loads(line) for line in lines(0)]
    whole[0]["setup"]["checkpoint_alignment"] = 8
    verdict = judge_lines([msgspec.json.encode(line) for line in whole], None)
    assert {"S3", "X2"} <= verdict.unjudged.keys()
    assert not {"S3", "X2"} & verdict.judged.keys()


@pytest.mark.parametrize("prompt", [["a:1000000000"], ["a:5", "b:1000000000"], ["a:-5", "b:10"], ["a"], ["a:5", "a:x"]])
def test_a_request_of_other_tokens_than_its_segments_have_is_refused_before_these_are_made(prompt: list[str]) -> None:
    whole = [json.loads(line) for line in lines(1)]
    add = ["add", "new", prompt, "new", 5]
    with pytest.raises(BadTrace, match="segments"):
        judge_lines([msgspec.json.encode(line) for line in (whole[0], [add])], None)
