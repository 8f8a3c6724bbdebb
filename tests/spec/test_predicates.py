"""Claims that should be proved hold on plain numbers that Hypothesis draws, and it finds each planted fault."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from reference.policy import POLICIES, Policy
from reference.split import SplitSetting
from spec.claim import Case, Claim
from spec.claims import mask, split
from spec.domains import FEATURES, Plain, block_sizes, split_inputs
from spec.expected import expected_verdict
from spec.mask_domains import MASK_FEATURES, mask_inputs
from spec.plan import refused
from spec.subjects import MASK_SIZE_NAMES, SIZES
from spec.task import with_fault


@dataclass(frozen=True)
class Domain:
    """Where a case comes from."""

    subject: str
    policy: Policy
    sizes: Any
    features: Any

    def __repr__(self) -> str:
        return f"{self.subject} of {self.policy.release}, {self.sizes.name}, {self.features.name}"

    def expects_proof(self, claim: Claim, regime: tuple[str, ...]) -> bool:
        """Whether the claim is expected to be proved in a regime."""
        named = (claim.id, self.subject, self.policy.release, self.sizes.name, self.features.name)
        return expected_verdict(*named, regime)[0] == "proved"


SPLIT_DOMAINS = [
    Domain("split", policy, SIZES[sizes], features)
    for policy in POLICIES.values()
    for sizes in ("B", "B, H", "16/4", "grid 16, Mamba 1600")
    for features in FEATURES
    if features.exist_in(policy, SIZES[sizes]) and not refused(policy, SIZES[sizes])
]
MASK_DOMAINS = [
    Domain("mask", policy, MASK_SIZE_NAMES[sizes], features)
    for policy in POLICIES.values()
    for sizes in ("B in A, one boundary", "B by H, one boundary", "16 in 64", "16 by 4")
    for features in MASK_FEATURES
    if features.exist_in(policy, MASK_SIZE_NAMES[sizes])
]


# --- drawing cases ----------------------------------------------------------------------------------


def split_case(draw: st.DrawFn, domain: Domain) -> Case:
    """A legal call of the split; positions within a few blocks, and often on a boundary."""
    sizes = {"H": draw(st.integers(1, 4)), "k": draw(st.integers(1, 4)), "B": draw(st.integers(1, 5))}
    grid, hash_block, base, _ = block_sizes(Plain(sizes), domain.sizes)

    def position(least: int, most: int) -> int:
        boundary = draw(st.integers(least // grid, most // grid)) * grid
        near = st.integers(max(boundary - 1, least), min(boundary + 1, most))
        return draw(st.integers(least, most) | near if least <= boundary <= most else st.integers(least, most))

    known = position(1, 5 * grid) + draw(st.sampled_from((0, 0, base - base % grid)))
    end = draw(st.just(known) | st.integers(1, known))
    unit = hash_block if domain.features.partial_hits else base
    tokens = {
        "known": known,
        "end": end,
        "start": position(0, end - 1),
        "prompt": draw(st.just(known)) if draw(st.booleans()) else position(1, known),
        "junction": unit * draw(st.integers(0, (known - 1) // unit)),
        "room": draw(st.integers(1, 3 * grid)),
    }
    values = {**sizes, "drop": draw(st.integers(0, 1)), "lookahead": draw(st.integers(0, base + 1))}
    for name, value in tokens.items():
        values |= parts(name, blocks=value // base, units=value % base // hash_block, rest=value % hash_block)
    source = Plain(values)
    inputs = split_inputs(source, domain.sizes, domain.features)
    assert source.admits
    return split.run_split(domain.policy, None, inputs)


def mask_case(draw: st.DrawFn, domain: Domain) -> Case:
    """A legal mask and a block in it."""
    sizes, several = domain.sizes, domain.features.interval == "interval above 0"
    unit = draw(st.integers(1, 4))
    times = draw(st.integers(1, 4)) if sizes.symbolic else max(sizes.scheduler_block // sizes.alignment, 1)
    segments = draw(st.integers(1, 3)) if several else 1
    values = {"B": unit, "H": unit, "times": times, "interval.units": segments, "drop": draw(st.integers(0, 1))}
    alignment = sizes.alignment or (unit if sizes.fine else unit * times)
    block = sizes.block or (unit * times if sizes.fine else unit)
    blocks = max((alignment if not sizes.fine else block) // block, 1)
    width = alignment * times if sizes.fine else alignment
    for name in ("prompt", "junction", "b1", "b2", "b3"):
        unit_of = alignment if name == "junction" else 1
        value = unit_of * draw(st.integers(name == "prompt", 4 * width // unit_of))
        units = value % width // alignment if sizes.fine else 0
        values |= parts(name, whole=value // width, units=units, rest=value % alignment)
    values |= parts("window", whole=draw(st.integers(0, 3)), rest=draw(st.integers(0, block - 1)))
    number = draw(st.integers(0, 4 * blocks * segments))
    start, end = draw(st.integers(0, number)), number + draw(st.integers(1, 4))
    for name, at in (
        ("number", number), ("start", start), ("middle", draw(st.integers(start, end))), ("end", end),
    ):  # fmt: skip
        inside = at % (blocks * segments)
        part = inside // blocks if several else 0
        values |= parts(name, whole=at // (blocks * segments), part=part, rest=inside - part * blocks)
    source = Plain(values)
    inputs = mask_inputs(source, domain.sizes, domain.features)
    assert source.admits
    return mask.run_mask(domain.policy, None, inputs)


def parts(name: str, **numbers: int) -> dict[str, int]:
    """The parts of a number as a domain enters it."""
    return {f"{name}.{part}": number for part, number in numbers.items()}


CASES: dict[str, Callable[[st.DrawFn, Domain], Case]] = {"split": split_case, "mask": mask_case}
REGIMES: dict[str, Callable[[Case], tuple[str, ...]]] = {"split": split.regime_of, "mask": mask.regime_of}


class Drawn:
    """A case and where it comes from."""

    def __init__(self, domain: Domain, case: Case) -> None:
        self.domain = domain
        self.case = case

    def __repr__(self) -> str:
        fields = vars(self.case.inputs if self.domain.subject == "mask" else self.case)
        numbers = [f"{name}={value}" for name, value in fields.items() if isinstance(value, int | tuple | SplitSetting)]
        return f"{self.domain}: {', '.join(numbers)}"


@st.composite
def cases(draw: st.DrawFn, domains: Sequence[Domain]) -> Drawn:
    """A case out of any of the domains."""
    domain = draw(st.sampled_from(domains))
    return Drawn(domain, CASES[domain.subject](draw, domain))


def domains_of(claim: Claim, domains: Sequence[Domain]) -> list[Domain]:
    """The domains for which a claim is made."""
    return [domain for domain in domains if claim.applies(domain.policy, domain.sizes, domain.features)]


def breaks(claim: Claim, case: Case) -> bool:
    return bool(claim.premise(case)) and not claim.predicate(case)


ALL = [(claim, domains_of(claim, SPLIT_DOMAINS)) for claim in split.CLAIMS] + [
    (claim, domains_of(claim, MASK_DOMAINS)) for claim in mask.CLAIMS
]
each_claim = pytest.mark.parametrize(("claim", "domains"), ALL, ids=[claim.id for claim, _ in ALL])

QUIETLY = settings(
    max_examples=1000, database=None, derandomize=True, suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
)  # fmt: skip


# --- what holds, and what is found ------------------------------------------------------------------


@each_claim
def test_no_case_breaks_a_claim_that_is_expected_to_be_proved(claim: Claim, domains: list[Domain]) -> None:
    @settings(max_examples=4 * settings().max_examples)
    @given(cases(domains))
    def holds(drawn: Drawn) -> None:
        regime = REGIMES[drawn.domain.subject](drawn.case)
        broken = breaks(claim, drawn.case) and drawn.domain.expects_proof(claim, regime)
        assert not broken, regime

    holds()


@each_claim
def test_the_event_of_each_claim_happens(claim: Claim, domains: list[Domain]) -> None:
    find(cases(domains), lambda drawn: claim.premise(drawn.case) and claim.event(drawn.case), settings=QUIETLY)


@each_claim
def test_the_planted_fault_of_each_claim_is_found(claim: Claim, domains: list[Domain]) -> None:
    fault = with_fault(claim)
    find(cases(domains), lambda drawn: not breaks(claim, drawn.case) and breaks(fault, drawn.case), settings=QUIETLY)


def test_a_release_that_broke_a_rule_is_found_out() -> None:
    """The negative control: 0.26.0 ends chunks where nothing can resume, and 0.33.0 does not."""
    (useful,) = (claim for claim in split.CLAIMS if claim.id == "S2")

    def broken_in(release: str) -> Drawn:
        plain = [domain for domain in SPLIT_DOMAINS if domain.policy.release == release]
        plain = [domain for domain in plain if domain.features.name == "plain" and domain.sizes.name == "16/4"]
        return find(cases(plain), lambda drawn: breaks(useful, drawn.case), settings=QUIETLY)

    assert broken_in("0.26.0")
    with pytest.raises(NoSuchExample):
        broken_in("0.33.0")
