"""Compares what a campaign found with what it is known to find.

    python .ci/signatures.py FUZZ.json EXPECTED.json

Both directions count: a signature too many is a new fault, ours or the engine's, and one too few means that
something is no longer seen. ``--write`` as a third argument writes EXPECTED.json instead.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def signatures(campaign: dict) -> list[list[str]]:
    """The signatures of a campaign's findings, sorted."""
    return sorted(
        [finding["finding"][part] for part in ("rule", "decision", "geometry")] for finding in campaign["findings"]
    )


def differences(found: list[list[str]], expected: list[list[str]]) -> list[str]:
    """One line for each signature that only one side has."""
    lines = [f"new      {' · '.join(signature)}" for signature in found if signature not in expected]
    return lines + [f"missing  {' · '.join(signature)}" for signature in expected if signature not in found]


def main(arguments: list[str]) -> int:
    """Status 0 if both are the same."""
    campaign, expected = json.loads(Path(arguments[0]).read_text()), Path(arguments[1])
    found = signatures(campaign)
    if arguments[2:] == ["--write"]:
        expected.write_text(json.dumps(found, indent=1) + "\n")
        return 0
    lines = differences(found, json.loads(expected.read_text()))
    if campaign["could_not_judge"]:
        lines.append(f"could not judge: {campaign['could_not_judge']}")
    if not campaign["scenarios"]:
        lines.append("nothing was run")
    print("\n".join(lines) or f"{len(found)} signatures, all of them known, in {campaign['scenarios']} scenarios")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
