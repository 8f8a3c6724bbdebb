"""``kvoracle explain``: what a rule says, where it is checked, and what broke it."""

from __future__ import annotations

import difflib
import inspect
from typing import Any

import click

from fuzz.commands.common import Problem, json_option, print_json
from fuzz.public_reports import reports_on
from reference.rules import CATALOGUE, Rule
from spec.claim import Claim
from spec.plan import all_claims

DECIDED_BY = {
    "S": "Scheduler._mamba_block_aligned_split",
    "M1": "Scheduler._mamba_block_aligned_split, Scheduler.schedule",
    "L": "KVCacheManager.get_computed_blocks",
    "M2": "KVCacheManager.get_computed_blocks",
    "R": "SingleTypeKVCacheManager.cache_blocks",
    "M3": "SingleTypeKVCacheManager.cache_blocks",
    "C": "SingleTypeKVCacheManager.cache_blocks",
    "A": "BlockPool",
    "M4": "KVCacheCoordinator.remove_skipped_blocks, KVCacheCoordinator.free, BlockPool.free_blocks",
    "M5": "KVCacheManager.allocate_slots, Scheduler.schedule",
    "X2": "KVCacheCoordinator.get_num_blocks_to_allocate",
    "P": "Scheduler.schedule",
    "T1": "KVCacheManager.make_prefix_cache_stats",
}
"""The engine's function that a rule, or else its family, is about; the others are about a whole run."""

JUDGED_IN = {
    "oracle/check_split.py": ("S1", "S2", "S3", "S4", "M1"),
    "oracle/check_asked.py": ("M1",),
    "oracle/check_course.py": ("S5", "S6", "S8"),
    "oracle/check_lookup.py": ("L1", "L3", "M2"),
    "oracle/check_longest.py": ("L2",),
    "oracle/check_commits.py": ("M3",),
    "oracle/check_retention.py": ("R1", "R2", "R3", "R4", "R5", "R6"),
    "oracle/check_reuse.py": ("U1", "U3"),
    "oracle/check_content.py": ("C1", "C2"),
    "oracle/check_statistics.py": ("T1",),
    "oracle/check_step.py": ("A3", "P1", "P2", "M5"),
    "oracle/check_admission.py": ("M5", "X2"),
    "oracle/check_holdings.py": ("M4",),
    "oracle/ledger.py": ("A1", "A2"),
    "oracle/free_list.py": ("M4",),
    "oracle/judge.py": ("P3",),
    "fuzz/trial.py": ("D1",),
    "fuzz/metamorphic.py": ("U2", "V1", "V2", "V3", "V4"),
}
"""Where each rule is judged: on traces, but for the last ones, which compare two runs."""


@click.command()
@click.argument("rule")
@json_option
def explain(rule: str, as_json: bool) -> None:
    """Say what RULE demands, where it is judged and proved, and which public reports it would have caught."""
    found = CATALOGUE.get(rule.upper()) or CATALOGUE.get(rule)
    found = found or next((one for name, one in CATALOGUE.items() if name.casefold() == rule.casefold()), None)
    if found is None:
        near = difflib.get_close_matches(rule.upper(), CATALOGUE, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(near)}?" if near else f"rules are: {', '.join(CATALOGUE)}"
        raise Problem(f"no such rule: {rule}; {hint}")
    document = explanation(found)
    if as_json:
        print_json(document)
        return
    click.echo(f"{found.id}: {found.sentence}")
    for head in ("predicate", "judged", "proved", "decided by", "reports"):
        value = document[head] or "no"
        for number, line in enumerate(value if isinstance(value, list) else [value]):
            click.echo(f"  {head if number == 0 else '':<12}{line}")


def explanation(rule: Rule) -> dict[str, Any]:
    """What there is to know of a rule, as data."""
    claims = [claim for claim in all_claims().values() if claim.rule == rule.id]
    return {
        "rule": rule.id,
        "sentence": rule.sentence,
        "predicate": _predicate(rule),
        "judged": _judged(rule),
        "proved": [_claim_line(claim) for claim in claims],
        "decided by": DECIDED_BY.get(rule.id) or DECIDED_BY.get(rule.id[0]) or "the whole engine",
        "reports": [
            f"vLLM issue or PR {', '.join(map(str, report.threads))}: {report.sentence}"
            for report in reports_on(rule.id)
        ],
    }


def _predicate(rule: Rule) -> list[str]:
    """Where the formula is, and what its docstring says of the arguments."""
    if rule.predicate is None:
        return []
    function = inspect.unwrap(rule.predicate)
    module = function.__module__.replace(".", "/")
    names = ", ".join(inspect.signature(function).parameters)
    words = inspect.getdoc(function) or ""
    return [f"{function.__name__}({names}) in {module}.py", *filter(None, words.splitlines())]


def _judged(rule: Rule) -> str:
    """The files that judge the rule; none for a rule that is only claimed."""
    return ", ".join(file for file, ids in JUDGED_IN.items() if rule.id in ids)


def _claim_line(claim: Claim) -> str:
    command = f"{claim.id}: kvoracle prove {claim.id}"
    return f"{command} ({claim.qualification})" if claim.qualification else command
