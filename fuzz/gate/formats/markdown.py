"""The report as Markdown, for the summary of a CI step or a comment."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from fuzz.gate.formats import words
from fuzz.gate.model import GateFinding, GateReport
from fuzz.report import scenario_lines, scenario_size
from fuzz.story import count

_SIGNS = {"identical": "✅", "refines": "✅", "regresses": "❌", "incomparable": "❌"}
_SPECIAL = re.compile(r"[\\`*_\[\]|~$]|^[-+#=]|^\d+(?=[.)])")
_HTML = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


def render(report: GateReport) -> str:
    """The verdict, what changed, costs, findings, controls."""
    sign = "✅" if report.accepted else _SIGNS.get(report.word, "⚠️")
    parts = [f"## {sign} kvoracle gate: {_text(report.title)}", _text(words.verdict(report))]
    parts += [_grounds(report), _scenarios(report), *_findings(report), *_tail(report)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _grounds(report: GateReport) -> str:
    rows = [(_code(words.place(one.place)), _text(words.ground(one))) for one in report.grounds]
    return _table(("changed", "grounds"), rows) if rows else ""


def _scenarios(report: GateReport) -> str:
    """Scenarios by verdict, and the table of costs."""
    if not report.scenarios:
        return ""
    told = ", ".join((count(report.scenarios, "scenario"), *(f"{word} {n:,}" for word, n in report.words.items())))
    mended = f"\n\nBroken by the baseline only: {words.mended(report)}." if report.mended else ""
    rows = [
        (row.name, f"{row.baseline:,}", f"{row.candidate:,}", f"{row.difference} {row.trend}".strip())
        for row in words.cost_rows(report.costs)
    ]
    table = _table(("cost", "baseline", "candidate", "difference"), rows)
    return f"{_text(told)}{mended}\n\n{table}"


def _findings(report: GateReport) -> Iterator[str]:
    told = words.shown(report.new_findings)
    for one in told:
        yield _finding(report, one)
    others = [one for one in report.new_findings if one not in told]
    yield _list(f"{words.signature(one.signature)}: {words.seen(one)}" for one in others)
    if not report.findings and report.difference is not None:
        yield _finding(report, report.difference)


def _finding(report: GateReport, one: GateFinding) -> str:
    """The order is that of all reports; what is long is folded away."""
    scenario = f"{scenario_size(one.scenario)}\n" + "\n".join(scenario_lines(one.scenario))
    rows = [
        (pair.mark, str(pair.step), *map(_text, (pair.what, pair.baseline, pair.other))) for pair in words.pairs(one)
    ]
    steps = _table(("", "step", "decision", "baseline", "candidate"), rows)
    return "\n\n".join(
        [
            f"### {_text(words.signature(one.signature))}",
            _text(one.sentence),
            f"<details><summary>Smallest scenario</summary>\n\n{_block(scenario)}\n\n</details>",
            f"<details><summary>Steps of both sides</summary>\n\n{steps}\n\n{_text(words.MARKS)}\n\n</details>",
            f"**Why** {_text(words.reason(one))}",
            f"**Authority** {_text(words.authority(report, one))}",
            f"**Reproduce**\n\n{_block(words.reproduce(report, one))}",
            f"**Export**\n\n{_block(words.export(report, one))}",
        ]
    )


def _tail(report: GateReport) -> Iterator[str]:
    yield _list(f"known {told}" for told in words.known(report))
    yield _list(f"proof {told}" for told in words.proof(report))
    yield _list(words.missed(report))
    settings = words.facts({"kvoracle": report.kvoracle, **report.settings})
    told = f"controls: {words.controls(report)}; time {words.seconds(report.seconds)}; {settings}"
    yield f"<sub>{_text(told)}</sub>"


def _text(text: str) -> str:
    """On one line, and read as it stands."""
    return _SPECIAL.sub(_escaped, words.one_line(text)).translate(_HTML)


def _escaped(found: re.Match[str]) -> str:
    """A number is escaped behind it, where the sign stands that makes it a list."""
    return f"{found[0]}\\" if found[0].isdigit() else f"\\{found[0]}"


def _code(text: str) -> str:
    """A code span; its fence is longer than any in the text. Tables are split at bars even inside of one."""
    text = words.one_line(text)
    fence = _fence(text, 1)
    return f"{fence} {text} {fence}".replace("|", "\\|") if "`" in text else f"`{text}`".replace("|", "\\|")


def _block(text: str) -> str:
    """A code block."""
    fence = _fence(text, 3)
    return f"{fence}text\n{words.plain(text)}\n{fence}"


def _fence(text: str, least: int) -> str:
    longest = max(map(len, re.findall("`+", text)), default=0)
    return "`" * max(least, longest + 1)


def _list(lines: Iterable[str]) -> str:
    return "\n".join(f"- {_text(line)}" for line in lines)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *rows)]
    return "\n".join(lines)
