"""Mutants of the reference, each with one place changed, and what notices them: an invariant, or only the engine.

A mutant is planted in every module of the reference that uses the function, except in the rules. So it speaks
wherever the reference is asked: in the decision, and where a claim asks for the last cacheable position, the tail,
the junction stop or the prefill end. What the rules and the claims work out themselves stays as it is: it is
what a mutant is measured by, and would else bend with it (``floor_to`` is used by both).

Samples are tried first. Z3 is asked about what they do not settle: whether the mutant ever decides otherwise than
the original, and whether a claim that is proved for the original is refuted for it.
"""

from __future__ import annotations

import ast
import copy
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from reference import arithmetic, boundaries, geometry, retention, split
from reference.policy import NEWEST
from spec.claim import Claim, always
from spec.claims.boundaries import BoundaryCase
from spec.claims.mask import MaskCase, MaskInputs, run_mask
from spec.claims.split import SplitCase, finish_of, junction_stop_of, run_split, saves_and_passes
from spec.domains import Plain
from spec.engine_masks import EngineBoundaries, EngineMask
from spec.lift import SourceTree
from spec.mask_domains import MASK_FEATURES
from spec.prove import Prover, Result, Subject, Values
from spec.rebind import Copier
from spec.solver import Limits
from spec.space import ExplorationError, Outside, Raised, Space
from spec.subjects import MASK_FEATURE_NAMES, SUBJECTS, engine_split

FUNCTIONS: dict[Any, tuple[str, ...]] = {
    split: (
        "prefill_end",
        "resumable_position",
        "last_cacheable_position",
        "partial_tail",
        "tail_stop",
        "junction_stop",
        "saves_inside",
        "saved_position",
        "aligned_end",
        "split",
        "earliest_stop",
        "nearer",
    ),
    arithmetic: ("floor_to", "ceil_div"),
    retention: ("in_tail", "ends_segment", "keep", "mask"),
    geometry: ("blocks_needed_for_hit",),
    boundaries: ("replay_boundaries", "boundary_list"),
}
"""What is mutated, by module. A mutant is planted in these modules only."""

SUBJECTS_OF = {
    "reference.split": ("split",),
    "reference.arithmetic": ("split", "mask", "boundaries"),
    "reference.retention": ("mask",),
    "reference.geometry": ("mask",),
    "reference.boundaries": ("mask", "boundaries"),
}
"""Which subjects use a module."""

SPLIT_DOMAINS = tuple(
    ("split", "16/4", features)
    for features in (
        "plain",
        "lookahead 1",
        "checkpoints of a token",
        "partial hits, lookahead 1",
        "partial hits",
        "partial hits, checkpoints of a hash block",
        "partial hits, lookahead 1, checkpoints of a hash block",
        "exact junction",
    )
)
MASK_DOMAINS = (
    *(("mask", "16 in 64", features.name) for features in MASK_FEATURES),
    *(("mask", "16 by 4", features.name) for features in MASK_FEATURES if features.kind == "mamba"),
)
BOUNDARY_DOMAINS = tuple(("boundaries", sizes, "") for sizes in ("4 in 4", "4 in 8", "16 in 64"))
DOMAINS = (*SPLIT_DOMAINS, *BOUNDARY_DOMAINS, *MASK_DOMAINS)
"""Subject, sizes and features, all under the newest policy."""

SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
NAME_SWAPS = {"max": "min", "min": "max"}

FAULTS = (ArithmeticError, AssertionError, LookupError, TypeError, ValueError)
"""What a mutant can raise; a claim about a decision that is never made counts as refuted."""


# --- making mutants ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mutant:
    """A function of the reference with one place changed. ``place``: file, line and column; ``change``: in words;
    ``changed``: the function."""

    place: str
    function: str
    change: str
    original: Any = field(repr=False)
    changed: Any = field(repr=False)

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.place} {self.function}: {self.change}"

    @property
    def subjects(self) -> tuple[str, ...]:
        """Which subjects it can matter to."""
        return SUBJECTS_OF[self.original.__module__]


def mutants() -> list[Mutant]:
    """All mutants, in the order of the source."""
    return [mutant for module, names in FUNCTIONS.items() for name in names for mutant in _mutants_of(module, name)]


def _mutants_of(module: Any, name: str) -> Iterator[Mutant]:
    path = Path(module.__file__)
    tree = ast.parse(path.read_text())
    (function,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
    seen = {ast.unparse(function)}
    for node in ast.walk(function):
        for old, new in alternatives(node):
            # A copy that takes the new node for the old one.
            changed = copy.deepcopy(function, {id(old): ast.copy_location(new, old)})
            text = ast.unparse(changed)
            if text not in seen:
                seen.add(text)
                place = f"{path.parent.name}/{path.name}:{old.lineno}:{old.col_offset + 1}"
                change = f"{ast.unparse(old)} -> {ast.unparse(new)}"
                yield Mutant(place, name, change, vars(module)[name], _compiled(module, changed))


def _compiled(module: Any, function: ast.FunctionDef) -> Any:
    """The function, seeing the module's own names."""
    tree = ast.fix_missing_locations(ast.Module([function], []))
    found: dict[str, Any] = {}
    exec(compile(tree, module.__file__, "exec"), vars(module), found)
    return found[function.name]


def alternatives(node: Any) -> Iterator[tuple[Any, Any]]:
    """The changes at one place of the source: what is replaced, and by what."""
    if isinstance(node, ast.If | ast.IfExp):
        yield from ((node.test, ast.Constant(value)) for value in (True, False))
    elif isinstance(node, ast.Compare):
        for place, operator in enumerate(node.ops):
            if type(operator) in SWAPS:
                operators = [*node.ops[:place], SWAPS[type(operator)](), *node.ops[place + 1 :]]
                yield node, ast.Compare(node.left, operators, node.comparators)
    elif isinstance(node, ast.BinOp) and type(node.op) in SWAPS:
        yield node, ast.BinOp(node.left, SWAPS[type(node.op)](), node.right)
    elif isinstance(node, ast.BoolOp):
        yield node, ast.BoolOp(SWAPS[type(node.op)](), node.values)
        for place in range(len(node.values)):
            left = [*node.values[:place], *node.values[place + 1 :]]
            yield node, left[0] if len(left) == 1 else ast.BoolOp(node.op, left)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node, node.operand
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield from ((node, ast.Constant(node.value + step)) for step in (1, -1))
    elif isinstance(node, ast.Name) and node.id in NAME_SWAPS:
        yield node, ast.Name(NAME_SWAPS[node.id], node.ctx)


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """The mutant in place of its function, in the mutated modules only."""
    name = mutant.function
    places = [module for module in FUNCTIONS if vars(module).get(name) is mutant.original]
    for module in places:
        setattr(module, name, mutant.changed)
    try:
        yield
    finally:
        for module in places:
            setattr(module, name, mutant.original)


class _Quick(Prover):
    """Takes the first counterexample of each regime as it is, and looks for no witnesses."""

    def _refute(self, claim: Claim, regime: tuple[str, ...], outcome: Result, reason: str) -> None:
        if outcome.counterexample is None:
            super()._refute(claim, regime, outcome, reason)

    def _holds(self, _: Claim) -> None:
        return

    def _free(self, *_: Any) -> tuple[str, ...]:
        return ()

    def _find_witnesses(self, _: Any) -> None:
        return


# --- what is compared --------------------------------------------------------------------------------


View = Callable[[Any], tuple[Any, ...]]
"""Some of what can be seen of a case. Several small ones are explored faster than one of everything."""


def granted(case: SplitCase) -> tuple[Any, ...]:
    """What the split decides."""
    return (case.granted,)


def granted_for_more(case: SplitCase) -> tuple[Any, ...]:
    """What it decides, and would if one token more were asked."""
    return case.granted, case.grant(case.asked + 1)


def granted_and_positions(case: SplitCase) -> tuple[Any, ...]:
    """What it decides, the positions that claims ask the reference for, and where there are checkpoints, theirs."""
    finish = finish_of(case)
    last = case.last_of(case.policy, case.setting, case.known)
    tail = case.tail_of(case.policy, case.setting, case.prompt)
    positions = case.granted, finish, last, tail, junction_stop_of(case)
    if case.setting.checkpoint_alignment == 0:
        return positions
    return *positions, saves_and_passes(case), split.saved_position(case.policy, case.setting, finish)


def kept_for_any(case: MaskCase) -> tuple[Any, ...]:
    """Whether the block is kept for arbitrary boundaries."""
    return (bool(case.keep(case.inputs.interval, case.inputs.any_boundaries)),)


def kept_without_boundaries(case: MaskCase) -> tuple[Any, ...]:
    """Whether the block is kept for its place alone."""
    return bool(case.keep(None, ())), bool(case.keep(case.inputs.interval, ()))


def kept_for_own(case: MaskCase) -> tuple[Any, ...]:
    """Whether the block is kept for the request's own boundaries."""
    return (bool(case.keep(case.inputs.interval, case.listed)),)


def kept_and_listed(case: MaskCase) -> tuple[Any, ...]:
    """The same, and the boundaries."""
    return *kept_for_own(case), *case.listed


def kept_by_intervals(case: MaskCase) -> tuple[Any, ...]:
    """Whether the block is kept for arbitrary boundaries, also by interval 0 and dense."""
    boundaries = case.inputs.any_boundaries
    return *kept_for_any(case), bool(case.keep(0, boundaries)), bool(case.keep(None, boundaries))


def kept_in_parts(case: MaskCase) -> tuple[Any, ...]:
    """Whether the block is kept by the whole mask, and by the part of two that has it."""
    inputs = case.inputs
    if not inputs.start < inputs.middle < inputs.end:
        return kept_for_any(case)
    ends = (inputs.start, inputs.middle) if inputs.number < inputs.middle else (inputs.middle, inputs.end)
    return *kept_for_any(case), bool(case.keep(inputs.interval, inputs.any_boundaries, *ends))


def listed(case: BoundaryCase) -> tuple[Any, ...]:
    """The boundary list."""
    return case.listed


DECISIONS: dict[str, tuple[View, ...]] = {"split": (granted,), "mask": (kept_for_any, kept_for_own), "boundaries": ()}
"""What is decided, by subject. Boundary lists decide nothing but through masks."""

SEEN: dict[str, View] = {
    "S7": granted_for_more,
    "R1": kept_and_listed,
    "R2": kept_and_listed,
    "R3": kept_in_parts,
    "R4": kept_by_intervals,
    "R5": kept_for_any,
    "R6": listed,
    "R7": listed,
    "R8": kept_without_boundaries,
}
"""All that the claims about a rule see of the reference's functions; for other rules about the split
``granted_and_positions``. Where that is as before, they hold as before."""


def engine_case(source: Path, subject: str, features: str) -> Callable[[Any], Any]:
    """What makes the case of plain inputs with the engine's own functions."""
    if subject == "split":
        return partial(run_split, NEWEST, engine_split(source, {}))
    tree = SourceTree(source)
    engine, listed = EngineMask(tree, MASK_FEATURE_NAMES[features].kind), EngineBoundaries(tree)

    def run(inputs: MaskInputs) -> MaskCase:
        group, whole = inputs.group, inputs.scheduler_block
        found = listed(group, inputs.prompt, inputs.junction, whole, group.drops)
        return replace(run_mask(NEWEST, engine, inputs), listed=found)

    return run


@dataclass(frozen=True)
class Sample:
    """Plain inputs, what is decided and seen of the reference, and the engine's decision, None without an engine."""

    inputs: Any
    decision: tuple[Any, ...]
    seen: tuple[Any, ...]
    engine: tuple[Any, ...] | None


class Ground:
    """A domain on which mutants are tried: samples, and where which claims are not proved.

    ``source``: folder that holds the ``vllm`` of the newest release, None to go without an engine; ``number``: of
    samples, legal or not.
    """

    def __init__(self, subject: str, sizes: str, features: str, source: Path | None, number: int) -> None:
        # Counterexamples need not be small.
        self.subject = replace(SUBJECTS[subject](NEWEST, sizes, features, None), measure=lambda _: (0,))
        self.kind, self.name = subject, ", ".join(filter(None, (f"{subject} {sizes}", features)))
        self.decisions = DECISIONS[subject]
        self.seen_by: dict[View, list[Claim]] = {}
        for claim in self.subject.claims:
            self.seen_by.setdefault(SEEN.get(claim.rule, granted_and_positions), []).append(claim)
        self._engine = engine_case(source, subject, features) if source is not None and self.decisions else None
        drawn = self.subject.examples(random.Random(1), number)
        self.samples = [sample for values in drawn if (sample := self.sample(values)) is not None]
        self.unproved = self._unproved()

    def sample(self, values: Values) -> Sample | None:
        """The sample of plain inputs, None where they are not legal."""
        plain = Plain(values)
        inputs = self.subject.build(plain)
        try:
            case = self.case(inputs) if plain.admits else None
        except Outside:
            return None
        if case is None:
            return None
        engine = self.decision(self._engine(inputs)) if self._engine is not None else None
        return Sample(inputs, self.decision(case), self.seen(case), engine)

    def decision(self, case: Any) -> tuple[Any, ...]:
        """All that is decided in a case."""
        return tuple(value for view in self.decisions for value in view(case))

    def seen(self, case: Any) -> tuple[Any, ...]:
        """All that claims can see of a case's answers."""
        return (*self.decision(case), *(value for view in self.seen_by for value in view(case)))

    def case(self, inputs: Any) -> Any:
        """The case of plain inputs, as the reference has it now."""
        return self.subject.run(*self.subject.arguments({}), inputs)

    def _unproved(self) -> frozenset[tuple[str, tuple[str, ...]]]:
        """Claims and regimes that can tell nothing, since they do not hold of the original."""
        report = _Quick(self.subject, self.subject.claims, LIMITS).prove()
        if report.problem:
            raise ExplorationError(f"{self.name}: {report.problem}")
        found = report.results.items()
        # A claim without a witness holds as well.
        verdicts = ("proved", "vacuous")
        return frozenset(
            (claim, key) for claim, results in found for key in results if results[key].verdict not in verdicts
        )

    def broken(self, case: Any) -> str:
        """The first proved claim that does not hold of a plain case, empty for none."""
        regime = self.subject.regime(case)
        for claim in self.subject.claims:
            if (claim.id, regime) not in self.unproved and claim.premise(case) and not claim.predicate(case):
                return claim.id
        return ""


LIMITS = Limits(paths=10_000_000, samples=1_000)


# --- what notices a mutant ---------------------------------------------------------------------------


@dataclass
class Finding:
    """What notices a mutant. ``invariant``: the id of a claim that refutes it, empty for none; ``equality``: whether
    it was seen to decide otherwise than the engine; ``differs``: otherwise than the original. ``where``: the domain in
    which it was noticed first; ``problem``: what Z3 left open."""

    mutant: Mutant
    invariant: str = ""
    equality: bool = False
    differs: bool = False
    where: str = ""
    problem: str = ""

    @property
    def verdict(self) -> str:
        """What it comes to."""
        if self.invariant:
            return "invariant"
        if self.equality:
            return "equality only"
        return "undecided" if self.problem else "survived" if self.differs else "equivalent"


def judge(mutants: Sequence[Mutant], grounds: Sequence[Ground], say: Callable[[str], None] = print) -> list[Finding]:
    """What notices each mutant, over all grounds. ``say`` gets one line at a time."""
    findings = [Finding(mutant) for mutant in mutants]
    for ground in grounds:
        for finding in _open(findings, ground):
            try_samples(finding, ground, ground.samples)
        say(f"{ground.name}: samples leave {len(_open(findings, ground))}")
    for ground in grounds:
        find_differences(_open(findings, ground), ground)
        say(f"{ground.name}: decisions compared")
    for ground in grounds:
        find_broken_claims(_open(findings, ground), ground)
        say(f"{ground.name}: claims tried, {sum(not one.invariant for one in findings)} not refuted anywhere")
    return findings


def _open(findings: Sequence[Finding], ground: Ground) -> list[Finding]:
    """What no claim has refuted, as far as the ground can matter to it."""
    return [one for one in findings if ground.kind in one.mutant.subjects and not (one.invariant and one.equality)]


def try_samples(finding: Finding, ground: Ground, samples: Sequence[Sample]) -> None:
    """Run the mutant on samples until a claim is broken and the engine is seen to decide otherwise."""
    with planted(finding.mutant):
        for sample in samples:
            if finding.invariant and finding.equality:
                return
            _try_sample(finding, ground, sample)


def _try_sample(finding: Finding, ground: Ground, sample: Sample) -> None:
    try:
        case = ground.case(sample.inputs)
        # A claim that sees the same answers as before holds as before.
        if ground.seen(case) == sample.seen:
            return
        decision = ground.decision(case)
        broken = finding.invariant or ground.broken(case)
    except FAULTS as error:
        decision, broken = (), f"raises {type(error).__name__}"
    finding.differs = finding.differs or decision != sample.decision
    finding.equality = finding.equality or (sample.engine is not None and decision != sample.engine)
    if finding.differs or broken:
        finding.where = finding.where or ground.name
    finding.invariant = finding.invariant or broken


Part = Callable[[Copier, Any], bool]
"""Whether something holds of a mutant's case; functions are to be copied by the copier."""


def find_differences(findings: Sequence[Finding], ground: Ground) -> None:
    """Ask Z3 whether mutants that were not seen to decide otherwise ever do."""
    for view in ground.decisions:
        left = [one for one in findings if not one.invariant and not one.differs]
        explore(left, ground, view, [lambda *_: False])


def find_broken_claims(findings: Sequence[Finding], ground: Ground) -> None:
    """Ask Z3 whether claims that are proved for the original are refuted for mutants that decide otherwise."""
    for view, claims in ground.seen_by.items():
        left = [one for one in findings if not one.invariant and one.differs]
        explore(left, ground, view, [partial(_still_holds, ground, claim) for claim in claims])


def _still_holds(ground: Ground, claim: Claim, copier: Copier, case: Any) -> bool:
    """Whether a claim holds of a mutant's case, or does not hold of the original in such cases either."""
    if not copier.copy(claim.premise)(case) or copier.copy(claim.predicate)(case):
        return True
    return (claim.id, copier.copy(ground.subject.regime)(case)) in ground.unproved


def explore(findings: Sequence[Finding], ground: Ground, view: View, parts: Sequence[Part]) -> None:
    """In one exploration of the original, look for inputs whose case looks different for a mutant, and of whose case
    a part does not hold. What is found is tried as a sample."""
    if not findings:
        return
    space = ground.subject.space(LIMITS)
    names = ground.subject.builtins(space) if ground.subject.builtins is not None else {}
    changed = [_Changed(finding.mutant, ground, view, Copier(names), parts) for finding in findings]
    subject = replace(ground.subject, run=_viewing(ground, view, Copier(names)), regime=lambda _: EVERYWHERE)
    results = _Search(subject, [one.claim for one in changed], LIMITS, space, changed).prove().results
    for finding, one in zip(findings, changed, strict=True):
        for result in results[one.claim.id].values():
            sample = ground.sample(result.counterexample) if result.counterexample is not None else None
            try_samples(finding, ground, [sample] if sample is not None else [])
            if result.verdict == "unknown":
                finding.problem = f"{ground.name}: {result.reason}"


EVERYWHERE = ("all",)
"""The one regime of a search."""


@dataclass(frozen=True)
class _Viewed:
    """The inputs of a case, the case, and what is seen of it."""

    inputs: Any
    case: Any
    values: tuple[Any, ...]


def _viewing(ground: Ground, view: View, copier: Copier) -> Callable[..., _Viewed]:
    """What gives the view of the case of inputs, by copies of the functions as they are when first called."""

    def run(*arguments: Any) -> _Viewed:
        case = copier.copy(ground.subject.run)(*arguments)
        return _Viewed(arguments[-1], case, copier.copy(view)(case))

    return run


class _Changed:
    """A mutant in a search. ``claim``: that its case looks like the original's, or that all parts hold of it."""

    def __init__(self, mutant: Mutant, ground: Ground, view: View, copier: Copier, parts: Sequence[Part]) -> None:
        self._mutant, self._copier = mutant, copier
        self._arguments = ground.subject.arguments({})
        self._run = _viewing(ground, view, copier)
        self.parts = [partial(self._broken, part) for part in parts]
        self.claim = replace(
            ground.subject.claims[0], id=mutant.name, premise=self.different, predicate=self._holds, event=always
        )

    def different(self, viewed: _Viewed) -> Any:
        """The mutant's case where it looks different, else None."""
        with planted(self._mutant):
            own = self._run(*self._arguments, viewed.inputs)
        pairs = zip(own.values, viewed.values, strict=False)
        same = len(own.values) == len(viewed.values) and all(bool(left == right) for left, right in pairs)
        return None if same else own.case

    def _holds(self, viewed: _Viewed) -> bool:
        case = self.different(viewed)
        return case is None or not any(broken(case) for broken in self.parts)

    def _broken(self, part: Part, case: Any) -> tuple[str, ...] | None:
        with planted(self._mutant):
            return None if part(self._copier, case) else EVERYWHERE


class _Search(_Quick):
    """Explores the parts one by one, where a mutant's case looks different; together they would multiply."""

    def __init__(
        self, subject: Subject, claims: Sequence[Claim], limits: Limits, space: Space, changed: Sequence[_Changed]
    ) -> None:
        super().__init__(subject, claims, limits, space)
        self._changed = {one.claim.id: one for one in changed}

    def _explore(self, claim: Claim, viewed: Any) -> Any:
        def different() -> Any:
            case = claim.premise(viewed)
            if case is None:
                raise Outside
            return case

        return self.space.explore(different, partial(self._try_parts, claim))

    def _try_parts(self, claim: Claim, case: Any) -> None:
        if isinstance(case, Raised):
            self._raised(claim, case)
            return
        for broken in self._changed[claim.id].parts:
            if any(result.counterexample is not None for result in self.report.results[claim.id].values()):
                return
            covered = self.space.explore(partial(broken, case), partial(self._judge, claim))
            if not self.space.covers(covered):
                raise ExplorationError("the paths through a claim are not shown to cover the path that led to it")
