"""Draws what is sent to an engine: requests whose prompts meet in the cache, and the steps they come in.

Nothing here knows what an engine will do; where an event should meet a running or an ended request, its
step is an estimate from the sizes alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from fuzz.draw import Draw
from fuzz.swarm import Swarm
from oracle.scenario import Features, Limits, Request, Step

MAX_PROMPT_TOKENS = 200
LAST_STEP = 400

# The very object: msgspec leaves a default out of a document by identity.
_NO_DRAFTS = Request("", ()).accept


@dataclass(slots=True)
class Sizes:
    """What lengths are drawn by, in tokens. ``units``: the sizes whose multiples are boundaries.

    ``per_step``: the most that one prefill gets of a step. ``prompt``: the longest prompt.
    """

    units: tuple[int, ...]
    per_step: int
    prompt: int


@dataclass(slots=True)
class Job:
    """A request, its prompt's length in tokens, the step it is added in and the steps it may take."""

    request: Request
    tokens: int
    at: int
    steps: int


def sizes(blocks: list[int], hash_block: int, scheduler_block: int, limits: Limits) -> Sizes:
    """Bound the prompts: about six scheduler blocks, and no more than a small budget computes in time."""
    per_step = limits.room
    span = span_tokens(blocks, scheduler_block)
    longest = min(6 * span, max(MAX_PROMPT_TOKENS, 2 * span + 40))
    # One token a step is a good scenario, but not two hundred times.
    longest = max(2, min(longest, max(16 * per_step, 2 * span + 2)))
    units = tuple(sorted({hash_block, *blocks, scheduler_block}))
    return Sizes(tuple(unit for unit in units if unit <= longest), per_step, longest)


def span_tokens(blocks: list[int], scheduler_block: int) -> int:
    """What lengths are measured by: the scheduler block, or, where that is out of reach, the widest block.

    (The scheduler block of 816 and 1648 has 84,048 tokens.)
    """
    return scheduler_block if scheduler_block <= MAX_PROMPT_TOKENS else max(blocks)


def _length(draw: Draw, sizes: Sizes, longest: int) -> int:
    """A length from 1 to ``longest``, mostly on a boundary or one token beside it."""
    if not sizes.units or draw.chance(30):
        return draw.integer(1, longest)
    unit = draw.choice(sizes.units)
    length = unit * draw.integer(1, max(1, longest // unit)) + draw.choice((0, 0, 1, -1))
    return min(max(length, 1), longest)


def draw_jobs(draw: Draw, swarm: Swarm, features: Features, sizes: Sizes) -> list[Job]:
    """The requests in the order in which they arrive, each with its step."""
    # Prompts that are long for the budget take many steps: then send fewer of them.
    slow = sizes.prompt > 10 * sizes.per_step
    count = draw.choice((3, 2, 1, 3, 4, 2) if slow else (3, 2, 4, 1, 5, 3, 6, 4, 8))
    shared = _shared_prefixes(draw, sizes)
    jobs: list[Job] = []
    at = busy = 0
    for number in range(count):
        prompt, tokens, output = _prompt(draw, swarm, sizes, shared, jobs)
        request = _request(draw, swarm, features, number, prompt, output)
        at = min(LAST_STEP, _arrival(draw, swarm, at, busy) if jobs else 0)
        steps = -(-tokens // sizes.per_step) + request.max_output + features.async_depth + 1
        busy = max(at, busy) + steps
        jobs.append(Job(request, tokens, at, steps))
    return jobs


def _shared_prefixes(draw: Draw, sizes: Sizes) -> list[tuple[tuple[str, ...], int]]:
    """Three prefixes with their lengths: one, one that goes on after it, one that leaves it early or late."""
    longest = max(1, sizes.prompt * 3 // 4)
    first, other = _length(draw, sizes, longest), _length(draw, sizes, longest)
    prefixes: list[tuple[tuple[str, ...], int]] = [((f"sys:{first}",), first), ((f"sys:{other}",), other)]
    if first < longest:
        more = _length(draw, sizes, longest - first)
        prefixes.append(((f"sys:{first}", f"doc:{more}"), first + more))
    return prefixes


def _prompt(
    draw: Draw, swarm: Swarm, sizes: Sizes, shared: list[tuple[tuple[str, ...], int]], jobs: list[Job]
) -> tuple[tuple[str, ...], int, str]:
    """A prompt, its length in tokens, and the stream of its output (empty: its own)."""
    ways = ["fresh"]
    if "shared-prefix" in swarm:
        ways += ["share"] * 3
    if jobs and "repeat" in swarm:
        ways += ["repeat"] * 2
    if jobs and "extend" in swarm:
        ways += ["extend"] * 2
    way = draw.choice(ways)
    own = f"u{len(jobs)}"
    if way == "share":
        return *_with_tail(draw, sizes, *draw.choice(shared), own), ""
    if way in ("repeat", "extend"):
        job = draw.choice(jobs)
        if way == "repeat":
            # The same output, too, is what a deterministic model gives: the resend then also fills alike.
            return job.request.prompt, job.tokens, job.request.output_stream if draw.chance(50) else ""
        said = draw.integer(1, job.request.max_output)
        if job.tokens + said <= sizes.prompt + said // 2 + 8:
            prompt = (*job.request.prompt, f"{job.request.output_stream}:{said}")
            return *_with_tail(draw, sizes, prompt, job.tokens + said, own), ""
    length = _length(draw, sizes, sizes.prompt)
    return (f"{own}:{length}",), length, ""


def _with_tail(draw: Draw, sizes: Sizes, prompt: tuple[str, ...], tokens: int, own: str) -> tuple[tuple[str, ...], int]:
    """The prompt, mostly followed by tokens of its own, so that the whole ends near a boundary or not."""
    room = sizes.prompt - tokens
    if room < 1 or draw.chance(15):
        return prompt, tokens
    tail = draw.integer(1, min(room, 4)) if draw.chance(30) else _length(draw, sizes, room)
    return (*prompt, f"{own}:{tail}"), tokens + tail


def _request(
    draw: Draw, swarm: Swarm, features: Features, number: int, prompt: tuple[str, ...], output: str
) -> Request:
    max_output = draw.integer(1, 12) if draw.chance(50) else draw.integer(1, 4)
    if "long-output" in swarm and draw.chance(60):
        # So long that who is passed over meanwhile is starved.
        max_output = draw.integer(40, 90)
    accept = _NO_DRAFTS
    if features.drafts:
        accept = tuple(draw.integer(0, features.drafts) for _ in range(draw.integer(1, 4)))
    priority = 0
    if features.policy == "priority":
        # Late and urgent requests are those that push others out in the middle of a step.
        priority = max(2 - number, 0) if draw.chance(40) else draw.integer(0, 2)
    skips_lookup = "skip-lookup" in swarm and draw.chance(30)
    return Request(f"r{number}", prompt, max_output, output, accept, priority, skips_lookup)


def _arrival(draw: Draw, swarm: Swarm, at: int, busy: int) -> int:
    """The step of the next request: at once, some steps later, or after the earlier ones ended."""
    ways = ["together"]
    if "spread" in swarm:
        ways += ["spread"] * 2
    if "late-sibling" in swarm:
        ways += ["late"] * 2
    way = draw.choice(ways)
    if way == "spread":
        return at + draw.integer(1, 4)
    if way == "late":
        return max(at, busy + draw.integer(0, 2))
    return at


def draw_steps(draw: Draw, swarm: Swarm, jobs: list[Job]) -> tuple[Step, ...]:
    """The steps with all their events, ordered."""
    aborts = _draw_aborts(draw, jobs, 1) if "abort" in swarm and draw.chance(70) else {}
    in_flight = _draw_aborts(draw, jobs, 0) if "abort-in-flight" in swarm and draw.chance(70) else {}
    resets: set[int] = set()
    if "reset" in swarm and draw.chance(70):
        last = max(job.at + job.steps for job in jobs)
        resets = {draw.integer(1, last) for _ in range(draw.integer(1, 2))}
    adds: dict[int, list[Request]] = {}
    for job in jobs:
        adds.setdefault(job.at, []).append(job.request)
    return tuple(
        Step(
            at,
            tuple(adds.get(at, ())),
            tuple(aborts.get(at, ())),
            tuple(in_flight.get(at, ())),
            at in resets,
        )
        for at in sorted({*adds, *aborts, *in_flight, *resets})
    )


def _draw_aborts(draw: Draw, jobs: list[Job], earliest: int) -> dict[int, list[str]]:
    """One or two requests to abort, by step: ``earliest`` steps after they are added, or later."""
    aborts: dict[int, list[str]] = {}
    victims: list[str] = []
    for _ in range(draw.integer(1, 2)):
        job = draw.choice(jobs)
        if job.request.id not in victims:
            victims.append(job.request.id)
            at = job.at + draw.integer(earliest, max(earliest, job.steps))
            aborts.setdefault(at, []).append(job.request.id)
    return aborts
