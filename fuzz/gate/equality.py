"""The proof layer of the gate: are the candidate's split, masks and boundary list the baseline's, for all inputs?

Both are compared with the reference under the policy of the release next to the baseline; where both equal it, they
equal each other. A function that no longer has the shape that can be lifted turns the layer off, not the gate.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from fuzz.engines.cache import cache_folder
from fuzz.gate.changes import Change
from fuzz.gate.model import Proof
from spec.cache import Cache
from spec.engine_masks import EngineBoundaries, EngineMask
from spec.engine_split import EngineSplit
from spec.lift import Lifted, ShapeChanged, SourceTree
from spec.plan import cost, tasks
from spec.row import Row
from spec.run import Options, run_tasks
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
    """What was proved. ``equal``: functions that are equal for all inputs, with the claim that says so. ``refuted``:
    rows of the candidate that were refuted, with their inputs. ``proof``: in short, for the report."""

    equal: dict[Key, str]
    refuted: list[Row]
    proof: Proof


def prove_equality(
    baseline: Path, candidate: Path, release: str, changes: Sequence[Change], seconds: float, jobs: int
) -> Equality:
    """Prove for ``seconds`` at most what the changes touch; unchanged functions need no proof."""
    if not changes:
        return Equality({}, [], Proof())
    covered = _covered(candidate)
    changed = {(change.file, change.qualname) for change in changes}
    claims = [claim for claim, functions in covered.parts.items() if changed & functions]
    if covered.off or not claims:
        return Equality({}, [], Proof(off=covered.off))
    deadline = time.monotonic() + seconds
    rows = list(_rows(candidate, release, claims, jobs, deadline))
    theirs = {claim for claim in claims if _is_proved(rows, claim)}
    ours = list(_rows(baseline, release, theirs, jobs, deadline)) if theirs else []
    both = [claim for claim in theirs if _is_proved(ours, claim)]
    equal = {key: claim for claim in both for key in changed & covered.parts[claim] if key[1].endswith(WHOLE)}
    refuted = [row for row in rows if row.verdict == "refuted" and row.counterexample is not None]
    proved = sum(row.verdict.startswith("proved") for row in rows)
    words = tuple(dict.fromkeys(f"{row.claim}, {row.sizes}, {row.features}" for row in refuted))
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


def _is_proved(rows: Sequence[Row], claim: str) -> bool:
    verdicts = [row.verdict for row in rows if row.claim == claim]
    return bool(verdicts) and all(verdict.startswith("proved") for verdict in verdicts)
