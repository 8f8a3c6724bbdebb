"""Writes a finding as the body of a bug report, in Markdown; nothing in it goes beyond what the finding says."""

from __future__ import annotations

import platform
from collections.abc import Iterable

import msgspec

from fuzz.export.render import render
from fuzz.export.upstream import NoExport, check_is_vllm, upstream_test
from fuzz.findings import FindingFile, kvoracle_version, scenario_document
from fuzz.report import scenario_lines, scenario_size
from fuzz.story import Row

TEST_FILE = "test_scheduler_finding.py"
"""What the report calls the test that it holds."""


def issue_body(document: FindingFile) -> str:
    """The text of the report. Raises NoExport for a finding on what is no vLLM build."""
    check_is_vllm(document)
    finding, engine = document.finding, document.engine
    return render(
        "issue.md.j2",
        {
            "finding": finding,
            "engine": engine,
            # A checkout's name is a path on somebody's machine.
            "build": engine.name if engine.name.startswith("vllm==") else "a build of its own",
            "engine_argument": engine.name if engine.name.startswith("vllm==") else "CHECKOUT",
            "sentence": document.sentence,
            "found_by": document.kvoracle,
            "kvoracle": kvoracle_version(),
            "python": platform.python_version(),
            "size": scenario_size(document.scenario),
            "is_smallest": document.shrunk,
            "words": "\n".join(scenario_lines(document.scenario)),
            "json": msgspec.json.format(msgspec.json.encode(scenario_document(document.scenario)), indent=1).decode(),
            "rows": [_row(row) for row in document.steps],
            "test_file": TEST_FILE,
            **_test(document),
        },
    )


def _test(document: FindingFile) -> dict[str, str]:
    """The stand-alone test, or why there is none."""
    try:
        return {"test": upstream_test(document), "no_test": ""}
    except NoExport as reason:
        return {"test": "", "no_test": str(reason)}


def _row(row: Row) -> str:
    """A row of the table of steps; what differs is set in bold."""
    cells: Iterable[str] = (str(row.step), row.what, row.actual, _expected(row))
    cells = (cell.replace("|", "\\|") for cell in cells)
    return "| " + " | ".join(f"**{cell}**" if row.differs and cell else cell for cell in cells) + " |"


def _expected(row: Row) -> str:
    return row.expected if row.differs else "the same" if row.compared else ""
