"""The proof layer of the gate: which changed functions of the candidate do what the baseline's do?

The split, the masks and the boundary list of both are compared with the reference under the policy of the release next
to the baseline; where both equal it, they equal each other. Lookups are compared with each other, to a bound. Of any
function the changed statements are looked at one by one. A function that no longer has the shape that can be lifted
turns the layer off, not the gate.
"""

from __future__ import annotations

import ast
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from fuzz.engines.cache import cache_folder
from fuzz.gate.changes import Change
from fuzz.gate.model import Proof
from fuzz.gate.source_file import read_source
from spec.cache import Cache
from spec.engine_lookup import FIND, EngineLookup
from spec.engine_masks import EngineBoundaries, EngineMask
from spec.engine_split import EngineSplit
from spec.lift import Lifted, ShapeChanged, SourceTree
from spec.lookup_pair import SAME, equal_words, layouts, prove_pair
from spec.plan import cost, tasks
from spec.row import Row
from spec.run import Options, run_tasks
from spec.statement import Alike, alike
from spec.task import Task

SIZES_OF = {"M1": ("16/4", "B"), "M3": ("16 in 64", "16 by 4"), "M3.boundaries": ("4 in 4", "4 in 8")}
"""By claim (the split, the masks, the boundary list equal the reference's) over which sizes, so that it takes about a
minute: fine hashes, and for the split every block size where hashes are not fine."""

SIZES = tuple(size for sizes in SIZES_OF.values() for size in sizes)
CONCRETE = frozenset(SIZES) - {"B"}

WHOLE = ("_mamba_block_aligned_split", "reachable_block_mask")
"""Functions that are proved equal as such. Of others that they call no more is proved than they need of them."""

Key = tuple[str, str]
"""A function: its file within the package, and its name within the file."""


class Equality(msgspec.Struct):
    """What was proved. ``equal``: functions that do the same, with what was proved, in words. ``alike``: what was
    proved of the statements of changed functions. ``refuted``: rows of the candidate that were refuted, with their
    inputs. ``proof``: in short, for the report."""

    equal: dict[Key, str] = {}
    refuted: list[Row] = []
    proof: Proof = Proof()
    alike: dict[Key, Alike] = {}


def prove_equality(
    baseline: Path, candidate: Path, release: str, changes: Sequence[Change], seconds: float, jobs: int
) -> Equality:
    """Prove for ``seconds`` at most what the changes touch; unchanged functions need no proof."""
    deadline = time.monotonic() + seconds
    found = {(one.file, one.qualname): statements_alike(baseline, candidate, one) for one in changes}
    equal = {key: f"statement by statement, {one.words}" for key, one in found.items() if one.whole}
    left = found.keys() - equal.keys()
    sources = baseline, candidate
    claims, lookups = _by_claims(sources, release, left, deadline, jobs), _by_lookups(sources, release, left, deadline)
    return Equality(
        equal | claims.equal | lookups.equal,
        claims.refuted + lookups.refuted,
        Proof(
            claims.proof.rows + lookups.proof.rows,
            claims.proof.proved + lookups.proof.proved,
            claims.proof.refuted + lookups.proof.refuted,
            claims.proof.off or lookups.proof.off,
        ),
        found,
    )


# --- statements --------------------------------------------------------------------------------------


def statements_alike(baseline: Path, candidate: Path, change: Change) -> Alike:
    """What is proved of the statements of one changed function."""
    if change.kind != "changed":
        return Alike()
    files = [read_source(root, change.file) for root in (baseline, candidate)]
    match [one for file in files for one in file.functions.get(change.qualname, [])]:
        case [ast.FunctionDef() as old, ast.FunctionDef() as new]:
            return alike(old, new)
    return Alike()


# --- what equals the reference -----------------------------------------------------------------------


def _by_claims(
    sources: tuple[Path, Path], release: str, changed: Collection[Key], deadline: float, jobs: int
) -> Equality:
    baseline, candidate = sources
    if not changed:
        return Equality()
    covered = _covered(candidate)
    claims = [claim for claim, functions in covered.parts.items() if functions & {*changed}]
    if covered.off or not claims:
        return Equality(proof=Proof(off=covered.off))
    rows = list(_rows(candidate, release, claims, jobs, deadline))
    theirs = {claim for claim in claims if _is_proved(rows, claim)}
    ours = list(_rows(baseline, release, theirs, jobs, deadline)) if theirs else []
    both = [claim for claim in theirs if _is_proved(ours, claim)]
    equal = {
        key: _equal_the_reference(claim, release)
        for claim in both
        for key in covered.parts[claim] & {*changed}
        if key[1].endswith(WHOLE)
    }
    return _told(equal, rows)


def _equal_the_reference(claim: str, release: str) -> str:
    sizes = ", ".join("symbolic B" if size == "B" else size for size in SIZES_OF[claim])
    return f"{claim}: both builds equal the reference under the policy of {release}, over {sizes}"


def _told(equal: dict[Key, str], rows: Sequence[Row]) -> Equality:
    refuted = [row for row in rows if row.verdict == "refuted" and row.counterexample is not None]
    proved = sum(row.verdict.startswith("proved") for row in rows)
    words = tuple(dict.fromkeys(", ".join(filter(None, (row.claim, row.sizes, row.features))) for row in refuted))
    shape = next((row.reason for row in rows if row.reason.startswith("shape changed")), "")
    return Equality(equal, refuted, Proof(len(rows), proved, words, shape))


class _Covered(msgspec.Struct):
    """By claim the functions that it speaks of; ``off``: why one cannot be lifted."""

    parts: dict[str, set[Key]]
    off: str = ""


def _covered(source: Path) -> _Covered:
    tree = SourceTree(source)
    makers: dict[str, Callable[[], Iterable[Lifted]]] = {
        "M1": lambda: [EngineSplit(tree).lifted],
        "M3": lambda: [EngineMask(tree, kind).lifted for kind in ("mamba", "swa")],
        "M3.boundaries": lambda: [EngineBoundaries(tree).lifted],
    }
    found = _Covered({})
    for claim, make in makers.items():
        try:
            found.parts[claim] = {_key(tree, part) for lifted in make() for part in lifted.parts}
        except ShapeChanged as error:
            found.off = found.off or f"shape changed: {error}"
    return found


def _key(tree: SourceTree, part: str) -> Key:
    """The function that a part's dotted name means: the longest prefix that is a module names the file."""
    names = part.split(".")
    for count in range(len(names), 0, -1):
        path = tree.root.joinpath(*names[:count]).with_suffix(".py")
        if path.is_file():
            return "/".join(names[1:count]) + ".py", ".".join(names[count:])
    return part, ""


def _rows(source: Path, release: str, claims: Iterable[str], jobs: int, deadline: float) -> Iterator[Row]:
    """Rows of the tasks; those that are not done in time are told as unknown."""
    todo: list[Task] = [
        msgspec.structs.replace(task, controls=False)
        for task in tasks("quick", [release], target="engine", source=str(source), claims=claims, sizes=SIZES)
    ]
    options = Options(jobs, cache=Cache(cache_folder() / "proofs"))
    done = 0
    # The quick ones first: they are enough to refute most of what is not equal, and then no more is needed.
    for one in run_tasks(todo, options, lambda task: -cost(task)):
        done += 1
        rows = [row for row in one.result.rows if row.claim in SIZES_OF]
        yield from rows
        if time.monotonic() > deadline or any(_shows_numbers(row) for row in rows):
            break
    if done < len(todo):
        yield from (_undone(claim, release, len(todo) - done) for claim in claims)


def _shows_numbers(row: Row) -> bool:
    """Whether a row is refuted over sizes that an engine can have."""
    return row.verdict == "refuted" and row.counterexample is not None and row.sizes in CONCRETE


def _undone(claim: str, release: str, tasks_left: int) -> Row:
    return Row(
        claim=claim,
        rule=claim.partition(".")[0],
        subject="",
        target="engine",
        release=release,
        sizes="",
        features="",
        regime="all",
        verdict="unknown",
        reason=f"{tasks_left} tasks were not done in time",
    )


# --- lookups -----------------------------------------------------------------------------------------


def _by_lookups(sources: tuple[Path, Path], release: str, changed: Collection[Key], deadline: float) -> Equality:
    asked = {key for key in changed if key[1].endswith(f".{FIND}")}
    if not asked:
        return Equality()
    trees = [SourceTree(source) for source in sources]
    try:
        ours, theirs = (EngineLookup(tree) for tree in trees)
    except ShapeChanged as error:
        return Equality(proof=Proof(off=f"shape changed: {error}"))
    covered = asked & {_key(trees[1], part) for part in theirs.lifted.parts}
    rows = list(_lookup_rows(release, ours, theirs, deadline)) if covered else []
    equal = dict.fromkeys(covered, equal_words(release, ours, theirs)) if _is_proved(rows, SAME.id) else {}
    return _told(equal, rows)


def _lookup_rows(release: str, ours: EngineLookup, theirs: EngineLookup, deadline: float) -> Iterator[Row]:
    todo = layouts(release)
    for done, layout in enumerate(todo, 1):
        row = prove_pair(release, layout, ours, theirs)
        yield row
        if row.verdict == "refuted":
            return
        if done < len(todo) and time.monotonic() > deadline:
            yield _undone(SAME.id, release, len(todo) - done)
            return


def _is_proved(rows: Sequence[Row], claim: str) -> bool:
    verdicts = [row.verdict for row in rows if row.claim == claim]
    return bool(verdicts) and all(verdict.startswith("proved") for verdict in verdicts)
