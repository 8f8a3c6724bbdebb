"""Proves a sample of what the quick tier leaves out, chosen by the commit: python .ci/sample_proofs.py [TASKS]

Ends with 1 where a verdict is not the expected one, and with 2 where something is undecided.
"""

from __future__ import annotations

import random
import subprocess
import sys

from spec.ledger import summary
from spec.plan import RELEASES, cost, tasks
from spec.run import Options, run_tasks
from spec.solver import Limits

ENDS = (RELEASES[0], RELEASES[-1])
"""The oldest and the newest policy."""

SMALL = ("16/16", "64/16")
"""Sizes of the split on which Z3 has not been seen to hang; larger ones are for whoever proves the full tier."""

COST_MAX = 8
"""Tasks that take longer than this, in the plan's own measure, are left to whoever proves the full tier."""


def main(number: int) -> int:
    """Prove ``number`` tasks of the full tier."""
    commit = subprocess.run(("git", "rev-parse", "HEAD"), check=True, capture_output=True, text=True).stdout.strip()
    quick = {task.name for task in tasks("quick", ENDS)}
    left = [
        task
        for task in tasks("full", ENDS)
        if task.name not in quick and cost(task) <= COST_MAX and (task.subject != "split" or task.sizes in SMALL)
    ]
    chosen = random.Random(commit).sample(left, number)
    print(f"{number} of {len(left)} tasks, chosen by commit {commit[:12]}")
    rows = [row for done in run_tasks(chosen, Options(2, Limits(), None), cost) for row in done.result.rows]
    print(summary(rows, []))
    for row in rows:
        if not row.as_expected:
            place = f"{row.release}, {row.sizes}, {row.features}, {row.regime}"
            print(f"NOT as expected: {row.claim} is {row.verdict}: {place}")
    if any(row.verdict in ("unknown", "vacuous") for row in rows) or not rows:
        return 2
    return 0 if all(row.as_expected for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 6))
