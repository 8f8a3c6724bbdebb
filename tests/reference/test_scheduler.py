"""The reference's own engine, driven by hand: what it plans, and what it makes of output that comes late."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from reference.decisions import Decisions
from reference.geometry import Group
from reference.policy import NEWEST, POLICIES, Policy
from reference.request import Request
from reference.scheduler import Plan, Scheduler
from reference.shape import Shape
from reference.split import SplitSetting

FULL, WINDOW, MAMBA = Group("full", 4), Group("swa", 4, 6), Group("mamba", 4)


class Heard:
    """A listener that keeps all that it is told, as tuples that begin with what happened."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def __getattr__(self, what: str) -> Callable[..., None]:
        return lambda *facts: self.told.append((what, *facts))

    def of(self, what: str) -> list[tuple[Any, ...]]:
        """The facts of every call of one kind."""
        return [facts for kind, *facts in self.told if kind == what]  # type: ignore[misc]


def engine(
    *groups: Group,
    unseen: int = 0,
    policy: Policy = NEWEST,
    hash_block: int = 4,
    decisions: Decisions | None = None,
    **more: Any,
) -> tuple[Scheduler, Heard]:
    """An engine over blocks of 4 tokens; hits may end inside a block where hashes are finer."""
    heard = Heard()
    facts: dict[str, Any] = {"blocks": 40, "budget": 8, "sequences": 4, **more}
    fine = hash_block < 4
    setting = SplitSetting(grid=4, hash_block=hash_block, scheduler_block=4, room=facts["budget"], partial_hits=fine)
    shape = Shape(policy, groups, setting, alignment=hash_block, steps_unseen=unseen, **facts)
    return Scheduler(shape, heard, decisions or Decisions()), heard  # type: ignore[arg-type]


def request(name: str, prompt: int, max_output: int, stream: int = 0, priority: int = 0) -> Request:
    """A request whose tokens are those of a numbered stream."""
    return Request(name, [stream * 1000 + n for n in range(prompt + max_output + 9)], prompt, max_output, priority)


def chunks(plan: Plan) -> list[tuple[str, int, int, int]]:
    """Request, start, tokens and drafts of each chunk."""
    return [(chunk.request.name, chunk.start, chunk.tokens, chunk.drafts) for chunk in plan.chunks]


def update(scheduler: Scheduler, plan: Plan, accepted: Mapping[str, int] | None = None) -> None:
    """The output of a step, with no draft right unless said."""
    scheduler.update(plan, {chunk.request.name: 0 for chunk in plan.chunks} | dict(accepted or {}))


def ends(heard: Heard) -> list[str]:
    return [name for name, reason in heard.of("finished") if reason == "length"]


# One step at a time.


def test_a_prompt_is_computed_by_the_budget_and_then_a_token_at_a_time() -> None:
    scheduler, heard = engine(FULL)
    scheduler.add(request("r", 10, 3))
    seen = []
    for _ in range(5):
        plan = scheduler.schedule()
        seen.append(chunks(plan))
        update(scheduler, plan)
    assert seen == [[("r", 0, 8, 0)], [("r", 8, 2, 0)], [("r", 10, 1, 0)], [("r", 11, 1, 0)], []]
    assert ends(heard) == ["r"]
    assert len(scheduler.tables.pool.free_list) == 39


def test_the_worker_is_told_of_each_block_once() -> None:
    scheduler, _ = engine(FULL)
    scheduler.add(request("r", 10, 3))
    told = []
    for _ in range(4):
        plan = scheduler.schedule()
        told.append([(chunk.fresh, chunk.blocks) for chunk in plan.chunks])
        update(scheduler, plan)
    assert told == [[(True, [[1, 2]])], [(False, [[3]])], [(False, [[]])], [(False, [[]])]]


def test_a_resend_reuses_what_is_cached_and_a_decision_can_be_exchanged() -> None:
    class NeverHits(Decisions):
        def hit_and_junction(self, *facts: Any) -> tuple[int, int]:
            return 0, 0

    for decisions, hit in ((Decisions(), 8), (NeverHits(), 0)):
        scheduler, heard = engine(FULL, budget=16, decisions=decisions)
        for name in ("first", "again"):
            scheduler.add(request(name, 10, 1))
            update(scheduler, scheduler.schedule())
        assert [found[2] for found in heard.of("looked_up")] == [0, hit]


def test_who_runs_out_of_blocks_preempts_the_last_and_under_priorities_the_least_urgent() -> None:
    for by_priority, victim in ((False, "b"), (True, "a")):
        scheduler, heard = engine(FULL, blocks=6, budget=16, by_priority=by_priority, reserves_full_sequence=False)
        scheduler.add(request("a", 7, 6, stream=1, priority=1))
        scheduler.add(request("b", 7, 6, stream=2))
        for _ in range(4):
            update(scheduler, scheduler.schedule())
        assert heard.of("preempted") == [[victim]]


# Steps whose output is not seen yet.


def test_a_step_is_scheduled_before_the_output_of_the_last_is_seen() -> None:
    scheduler, heard = engine(FULL, unseen=1, budget=16)
    scheduler.add(request("r", 10, 3))
    first, second = scheduler.schedule(), scheduler.schedule()
    assert (chunks(first), chunks(second)) == ([("r", 0, 10, 0)], [("r", 10, 1, 0)])
    update(scheduler, first)
    assert scheduler.running[0].known == 11
    third = scheduler.schedule()
    assert chunks(third) == [("r", 11, 1, 0)]
    update(scheduler, second)
    assert chunks(scheduler.schedule()) == []
    update(scheduler, third)
    assert ends(heard) == ["r"]


@pytest.mark.parametrize("unseen", [1, 2])
def test_nothing_is_scheduled_beyond_the_last_token(unseen: int) -> None:
    scheduler, _ = engine(FULL, unseen=unseen, budget=16)
    scheduler.add(request("r", 10, 2))
    plans = [scheduler.schedule() for _ in range(unseen + 1)]
    assert [chunks(plan) for plan in plans] == [[("r", 0, 10, 0)], [("r", 10, 1, 0)], []][: unseen + 1]
    update(scheduler, plans[0])
    assert chunks(scheduler.schedule()) == []


def test_wrong_drafts_are_taken_back_when_they_are_seen() -> None:
    scheduler, _ = engine(FULL, unseen=1, budget=16, drafts=2)
    scheduler.add(request("r", 10, 20))
    plans = [scheduler.schedule(), scheduler.schedule()]
    update(scheduler, plans[0])
    plans.append(scheduler.schedule())
    # The first decode counts on the prompt's token, the second on that and on both drafts of the first.
    assert [chunks(plan)[0][1:] for plan in plans] == [(0, 10, 0), (10, 3, 2), (13, 3, 2)]
    update(scheduler, plans[1], {"r": 1})
    assert (scheduler.running[0].known, scheduler.running[0].computed) == (13, 15)
    assert chunks(scheduler.schedule())[0][1:] == (15, 3, 2)


def test_a_window_keeps_what_a_step_in_flight_may_take_back() -> None:
    scheduler, _ = engine(WINDOW, unseen=1, budget=16, drafts=3)
    scheduler.add(request("r", 7, 20))
    plans = [scheduler.schedule(), scheduler.schedule()]
    update(scheduler, plans[0])
    plans.append(scheduler.schedule())
    # Seen from 11 block 0 lies before the window of 6; if all drafts in flight are wrong, the step starts at 8.
    running = scheduler.running[0]
    assert [chunk.start for chunk in plans[2].chunks] == [11]
    assert running.tables[0][0] != 0
    update(scheduler, plans[1], {"r": 2})
    scheduler.schedule()
    assert running.tables[0][0] == 0


def tight(unseen: int) -> tuple[Scheduler, Heard, list[Plan]]:
    """Two requests of which one must go at the next step, when the plans' outputs are still unseen."""
    scheduler, heard = engine(FULL, unseen=unseen, blocks=5, budget=16, reserves_full_sequence=False)
    scheduler.add(request("a", 7, 6, stream=1))
    scheduler.add(request("b", 7, 6, stream=2))
    return scheduler, heard, [scheduler.schedule(), scheduler.schedule()]


def test_what_a_preempted_request_is_given_while_it_waits_is_kept() -> None:
    scheduler, heard, plans = tight(1)
    update(scheduler, plans[0])
    scheduler.schedule()
    assert heard.of("preempted") == [["b"]]
    update(scheduler, plans[1])
    assert heard.of("output")[-1] == [1, {"a": 1, "b": 1}]
    assert scheduler.waiting[0].known == 9


def test_what_comes_for_a_request_that_computes_it_anew_is_not_counted_twice() -> None:
    scheduler, heard, plans = tight(2)
    plans.append(scheduler.schedule())
    assert heard.of("preempted") == [["b"]]
    update(scheduler, plans[0])
    scheduler.abort(["a"])
    again = scheduler.schedule()
    assert chunks(again) == [("b", 4, 4, 0)]
    update(scheduler, plans[1])
    assert heard.of("output")[-1] == [1, {}]
    update(scheduler, plans[2])
    update(scheduler, again)
    assert scheduler.running[0].known == 9


def test_the_output_of_an_aborted_request_is_nobodys() -> None:
    scheduler, heard = engine(FULL, unseen=1, budget=16)
    scheduler.add(request("r", 10, 3))
    plans = [scheduler.schedule(), scheduler.schedule()]
    scheduler.abort(["r", "stranger"])
    for plan in plans:
        update(scheduler, plan)
    assert heard.of("finished") == [["r", "aborted"]]
    assert heard.of("output") == [[0, {}], [1, {}]]
    assert len(scheduler.tables.pool.free_list) == 39


def test_a_tail_is_named_by_the_chunk_that_ends_on_it_and_not_again_while_its_output_is_in_flight() -> None:
    scheduler, heard = engine(FULL, MAMBA, unseen=1, policy=POLICIES["0.31.0"], hash_block=2)
    scheduler.add(request("r", 6, 3))
    plans = [scheduler.schedule() for _ in range(3)]
    assert [chunks(plan)[0][1:3] for plan in plans] == [(0, 4), (4, 2), (6, 1)]
    update(scheduler, plans[0])
    update(scheduler, plans[1])
    owners = [owner for owner, group, _, position, _ in heard.of("named") if (group, position) == (1, 6)]
    # Once for the request, once more when the hash moved to a copy that the next token does not overwrite.
    assert owners == ["r", ""]
