"""The reports of a gate run: each is what its readers take, tells the same facts, and tells the same twice."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from xml.etree import ElementTree

import jsonschema
import msgspec
import pytest
import xmlschema
from msgspec.structs import replace

from fuzz.engines.open import open_engine
from fuzz.gate.formats import github, html, json_, junit, markdown, sarif, text, words
from fuzz.gate.model import GateReport
from fuzz.trial import try_scenario
from oracle.compare import CONTEXT
from oracle.scenario import Scenario

from .gate_reports import ODD, REPORTS, SCENARIO, could_not_judge, odd, refines, regresses, trace_lines

SCHEMAS = Path(__file__).parent / "schemas"
FORMATS: dict[str, Callable[[GateReport], str]] = {
    module.__name__.rpartition(".")[2]: module.render for module in (github, html, json_, junit, markdown, sarif, text)
}
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")

every_format = pytest.mark.parametrize("name", FORMATS)
every_report = pytest.mark.parametrize("kind", REPORTS)


# --- all of them ---------------------------------------------------------------------------------------


@every_format
@every_report
def test_the_same_report_gives_the_same_text(name: str, kind: str) -> None:
    assert FORMATS[name](REPORTS[kind]()) == FORMATS[name](REPORTS[kind]())


@every_format
@every_report
def test_texts_can_be_written_and_obey_nobody(name: str, kind: str) -> None:
    told = FORMATS[name](REPORTS[kind]())
    assert told.encode().endswith(b"\n")
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]", told)


@every_format
def test_the_reason_why_it_could_not_judge_is_told(name: str) -> None:
    assert "No module named" in FORMATS[name](could_not_judge())
    assert "No module named" not in FORMATS[name](regresses())


@every_format
def test_both_builds_and_the_verdict_are_told(name: str) -> None:
    told = FORMATS[name](regresses())
    assert all(word in told for word in ("regresses", "vllm==0.26.0", "vllm==0.27.1"))


@every_format
def test_a_known_finding_is_not_told_as_a_new_one(name: str) -> None:
    report = regresses()
    excused = replace(report, findings=tuple(replace(one, known="an old story") for one in report.findings))
    assert "an old story" in FORMATS[name](excused)
    assert FORMATS[name](excused) != FORMATS[name](report)


# --- words ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["text", "markdown", "html"])
def test_rules_that_only_the_baseline_breaks_are_told(name: str) -> None:
    told = "P2 in 3 scenarios, U3 in 1 scenario"
    assert told in FORMATS[name](regresses())
    assert told not in FORMATS[name](replace(regresses(), mended={}))


def test_grounds_list_the_lines_that_were_never_seen() -> None:
    told = [words.ground(one) for one in regresses().grounds]
    assert told == [
        "executed in 198 scenarios with 3 of 4 changed lines; never executed: line 362",
        "proved equal",
        "never executed: lines 41–42",
        "removed (nobody calls it)",
    ]
    assert words.lines([9, 1, 2, 3, 7, 8]) == "lines 1–3, 7–9"


def test_steps_of_both_sides_are_aligned_and_the_first_difference_is_marked() -> None:
    rows = words.pairs(regresses().findings[1])
    first = next(n for n, row in enumerate(rows) if row.differs)
    assert first == CONTEXT
    assert [row.mark for row in rows].count(">") == 1
    assert (rows[first].what, rows[first].baseline, rows[first].candidate) == (
        "b split",
        "nothing (asked 3 from 0)",
        "tokens 0 to 3",
    )
    assert all(row.other == "the same" for row in rows[:first])
    # S3 is broken in the next step, by the chunk that starts inside the block.
    broken = [row for row in rows if row.broken]
    assert [(row.step, row.what, row.candidate) for row in broken] == [(1, "b split", "tokens 3 to 5")]


def test_decisions_of_different_kinds_stand_on_rows_of_their_own() -> None:
    finding = regresses().findings[0]
    header, line = finding.lines[1][:2]
    preempts = line.replace(b'["split","b",0,3,3,5,5,0]', b'["preempt","b"]')
    rows = words.pairs(replace(finding, finding=None, lines=((header, line), (header, preempts))))
    marked = [(row.what, row.baseline, row.candidate) for row in rows if row.first]
    assert marked == [("b split", "tokens 0 to 3", ""), ("b preempt", "", "back to the queue")]


def test_a_finding_far_behind_the_first_difference_is_still_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "AFTER", 2)
    rows = words.pairs(regresses().findings[1])
    assert [row.what for row in rows[-2:]] == ["…", "b split"]
    assert rows[-1].broken


def test_without_a_difference_or_a_trace_no_row_is_marked() -> None:
    finding = regresses().findings[0]
    alike = replace(finding, lines=(finding.lines[1], finding.lines[1]))
    assert not any(row.differs for row in words.pairs(alike))
    assert words.pairs(replace(finding, lines=((), ()))) == []


def test_reasons_name_what_is_broken_worse_and_mended() -> None:
    broken = words.reason(regresses().findings[2])
    assert "Because of that, on the candidate block 6" in broken
    assert "However, C1 holds on the baseline." in broken
    assert "worse in chunks (3 instead of 2)" in broken
    difference = refines().difference
    assert difference is not None
    assert "The baseline breaks S2, S3, C1 here, and the candidate no longer does." in words.reason(difference)


def test_what_only_differs_is_reproduced_by_both_builds() -> None:
    report = refines()
    assert report.difference is not None
    gate = "kvoracle gate --baseline vllm==0.26.0 --engine vllm==0.27.1 --seed 1 --time 180s"
    assert words.reproduce(report, report.difference) == gate
    stored = replace(report.difference, path="kvoracle-findings/it's here.json")
    assert words.reproduce(report, stored) == gate
    assert words.export(report, stored).startswith("""cat 'kvoracle-findings/it'"'"'s here.json'""")


# --- text ----------------------------------------------------------------------------------------------


def test_text_begins_with_the_verdict_and_keeps_the_order() -> None:
    told = text.render(regresses())
    assert told.startswith("regresses: vllm==0.26.0 against vllm==0.27.1, 3 new findings in 214 scenarios\n")
    heads = ("Changed", "Proof", "Scenarios", "Cost", "S2 · split", "Smallest scenario", "Steps", "Why", "Authority")
    heads += ("Reproduce", "Export", "S3 · split", "C1 · commit", "Known", "Controls", "Time", "Settings")
    places = [told.index(f"\n{head}") for head in heads]
    assert places == sorted(places)


def test_text_without_findings_shows_the_difference() -> None:
    told = text.render(refines())
    assert told.startswith("refines: ")
    assert "DIFF · split" in told
    assert "The candidate splits otherwise." in told


def test_text_names_controls_that_were_missed() -> None:
    report = regresses()
    missed = replace(report.controls[0], caught=False, why="it was equal")
    told = text.render(replace(report, controls=(missed, report.controls[1])))
    assert "1 of 2 planted faults caught" in told
    assert "MISSED split-off-by-one" in told
    assert "MISSED" not in text.render(report)


def test_text_has_colours_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = text.render(odd())
    monkeypatch.setenv("FORCE_COLOR", "1")
    coloured = text.render(odd())
    assert "\x1b[" in coloured
    assert "\x1b[31m\x00" not in coloured
    uncoloured = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert re.sub(r"(?m) +$", "", uncoloured) == plain == text.render_plain(odd())


# --- JSON ----------------------------------------------------------------------------------------------


def test_json_holds_all_of_the_report() -> None:
    report = regresses()
    document = json.loads(json_.render(report))
    assert document["kvoracle_gate"] == 1
    assert document["exit_status"] == 1
    assert [ground["lines_unseen"] for ground in document["grounds"]] == [[362], [], [41, 42], []]
    for told, finding in zip(document["findings"], report.findings, strict=True):
        assert msgspec.convert(told["scenario"], Scenario) == SCENARIO
        assert [tuple(line.encode() for line in side) for side in told["lines"]] == list(finding.lines)
    assert set(msgspec.structs.asdict(report)) <= set(document)


# --- JUnit ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def junit_schema() -> xmlschema.XMLSchema:
    return xmlschema.XMLSchema(str(SCHEMAS / "junit-10.xsd"))


@every_report
def test_junit_is_valid(junit_schema: xmlschema.XMLSchema, kind: str) -> None:
    junit_schema.validate(junit.render(REPORTS[kind]()))


@pytest.mark.parametrize(
    ("whole", "broken"),
    [('<testcase classname="kvoracle.gate.verdict" name=', "<testcase title="), ("system-out>", "system>")],
)
def test_the_junit_schema_refuses_a_broken_document(junit_schema: xmlschema.XMLSchema, whole: str, broken: str) -> None:
    told = junit.render(regresses())
    assert whole in told
    assert not junit_schema.is_valid(told.replace(whole, broken))


def cases(report: GateReport) -> dict[str, list[str]]:
    """The names of test cases by outcome; the numbers in the document are those."""
    root = ElementTree.fromstring(junit.render(report))
    found: dict[str, list[str]] = {"": [], "failure": [], "error": [], "skipped": []}
    for case in root.iter("testcase"):
        kind = case.get("classname", "").rpartition(".")[2]
        found[case[0].tag if len(case) else ""].append(f"{kind} {case.get('name')}")
    assert root.get("tests") == str(sum(map(len, found.values())))
    assert root.get("failures") == str(len(found["failure"]))
    assert root.get("errors") == str(len(found["error"]))
    return found


def test_junit_fails_where_the_gate_does() -> None:
    found = cases(regresses())
    assert [name.partition(" ")[0] for name in found["failure"]] == ["verdict", "finding", "finding", "finding"]
    assert [name.partition(" ")[0] for name in found["error"]] == ["changed", "changed"]


def test_junit_of_a_clean_run_has_no_failure() -> None:
    found = cases(replace(regresses(), word="identical", findings=(), grounds=(), exit_status=0))
    assert not found["failure"]
    assert not found["error"]


def test_junit_skips_what_is_known_and_errs_where_nothing_was_judged() -> None:
    report = regresses()
    known = replace(report, findings=(replace(report.findings[0], known="old"),), exit_status=0)
    assert cases(known)["skipped"] == ["finding S2 · split · full+mamba/eagle"]
    assert cases(could_not_judge())["error"] == ["verdict vllm==0.26.0 against vllm==0.27.1"]


# --- SARIF ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sarif_schema() -> jsonschema.Draft4Validator:
    return jsonschema.Draft4Validator(json.loads((SCHEMAS / "sarif-2.1.0-rtm.5.json").read_text()))


def sarif_run(report: GateReport) -> dict[str, Any]:
    run: dict[str, Any] = json.loads(sarif.render(report))["runs"][0]
    return run


@every_report
def test_sarif_is_valid(sarif_schema: jsonschema.Draft4Validator, kind: str) -> None:
    sarif_schema.validate(json.loads(sarif.render(REPORTS[kind]())))


@pytest.mark.parametrize("breaking", [("message", "words"), ("level", "bad"), ("ruleIndex", "S2"), ("unheard", 1)])
def test_the_sarif_schema_refuses_a_broken_document(
    sarif_schema: jsonschema.Draft4Validator, breaking: tuple[str, Any]
) -> None:
    document = json.loads(sarif.render(regresses()))
    document["runs"][0]["results"][0][breaking[0]] = breaking[1]
    assert not sarif_schema.is_valid(document)


def test_sarif_points_at_the_line_that_decides() -> None:
    run = sarif_run(regresses())
    place = run["results"][0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "vllm/v1/core/sched/scheduler.py"
    assert place["region"]["startLine"] == 355
    for result in run["results"]:
        assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]


@every_report
def test_sarif_uris_are_relative(kind: str) -> None:
    for result in sarif_run(REPORTS[kind]())["results"]:
        uri = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
        assert not urlsplit(uri).scheme
        assert not uri.startswith("/")
        assert re.fullmatch(r"[A-Za-z0-9/._~%-]+", uri)


def test_a_fingerprint_is_that_of_the_signature() -> None:
    def prints(report: GateReport) -> list[str]:
        return [one["partialFingerprints"]["kvoracleSignature/v1"] for one in sarif_run(report)["results"]]

    report = regresses()
    moved = replace(report.findings[0], place=None, count=99)
    assert prints(replace(report, findings=(moved, *report.findings[1:]))) == prints(report)
    assert len({*prints(report)}) == len(report.findings)


def test_sarif_says_when_nothing_was_judged() -> None:
    assert sarif_run(regresses())["invocations"][0]["executionSuccessful"]
    invocation = sarif_run(could_not_judge())["invocations"][0]
    assert not invocation["executionSuccessful"]
    assert invocation["toolExecutionNotifications"][0]["level"] == "error"


def test_sarif_suppresses_what_is_known() -> None:
    report = regresses()
    run = sarif_run(replace(report, findings=(replace(report.findings[0], known="old"), report.findings[1])))
    assert [len(result.get("suppressions", ())) for result in run["results"]] == [1, 0]


# --- GitHub and Markdown -------------------------------------------------------------------------------


def commands(told: str) -> list[tuple[str, dict[str, str], str]]:
    """Workflow commands, taken apart as the runner does it."""
    found = []
    for line in told.splitlines():
        match = re.fullmatch(r"::(\w+) ([^:]*)::(.*)", line)
        assert match, line
        properties = dict(part.split("=", 1) for part in match[2].split(","))
        found.append((match[1], {name: unescaped(value) for name, value in properties.items()}, unescaped(match[3])))
    return found


def unescaped(value: str) -> str:
    for code, sign in (("%2C", ","), ("%3A", ":"), ("%0A", "\n"), ("%0D", "\r"), ("%25", "%")):
        value = value.replace(code, sign)
    return value


def test_github_annotates_findings_and_tells_the_verdict() -> None:
    found = commands(github.render(regresses()))
    assert [name for name, _, _ in found] == ["notice", "error", "error", "error", "warning", "warning"]
    _, properties, message = found[1]
    assert properties["file"] == "vllm/v1/core/sched/scheduler.py"
    assert (properties["line"], properties["title"]) == ("355", "S2 · split · full+mamba/eagle")
    assert message.startswith("A chunk that does not reach")
    assert [name for name, _, _ in commands(github.render(could_not_judge()))] == ["error"]


def test_github_escapes_what_would_be_a_command() -> None:
    _, properties, message = commands(github.render(odd()))[1]
    assert properties["file"] == "vllm/v1/a,b:c %|<é>.py"
    assert message.startswith(words.plain(ODD))
    unsafe = github.render(odd()).replace("%0A", "\n")
    with pytest.raises(AssertionError):
        commands(unsafe)


def test_a_step_summary_is_cut_to_what_github_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = github.summary(regresses())
    assert whole == markdown.render(regresses())
    monkeypatch.setattr(github, "SUMMARY_BYTES_MAX", 1000)
    cut = github.summary(regresses())
    assert len(cut.encode()) <= 1000
    assert cut.endswith("the other formats have it all)\n")


@every_report
def test_markdown_tables_keep_their_columns(kind: str) -> None:
    def columns(line: str) -> int:
        return len(re.sub(r"\\.", "", line).split("|"))

    lines = markdown.render(REPORTS[kind]()).splitlines()
    tables = [n for n, line in enumerate(lines) if line.startswith("| --- |")]
    assert bool(tables) == bool(REPORTS[kind]().scenarios)
    for start in tables:
        for line in (lines[start - 1], *lines[start + 1 :]):
            if not line.startswith("|"):
                break
            assert columns(line) == columns(lines[start])


def test_markdown_holds_no_html_but_its_own() -> None:
    outside_blocks = re.sub(r"(?s)(`{3,})text\n.*?\n\1", "", markdown.render(odd()))
    assert {*re.findall(r"<[^`>]*>", outside_blocks)} <= {"<details>", "</details>", "<summary>", "</summary>"} | {
        "<sub>",
        "</sub>",
        "<é>",
    }


# --- HTML ----------------------------------------------------------------------------------------------

_VOID = {"meta", "link", "br", "hr", "img", "input"}


class Page(HTMLParser):
    """Tags, texts and attributes of a page; its tags must be closed in order."""

    def __init__(self, told: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(told)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def bars(self, look: str) -> int:
        """How many bars of the timeline look so."""
        return sum(
            tag == "g" and {"bar", look} <= {*(attributes.get("class") or "").split()} for tag, attributes in self.tags
        )


def loaded(page: Page) -> list[str]:
    """What a browser would fetch for the page."""
    named = [
        value or ""
        for _, attributes in page.tags
        for name, value in attributes.items()
        if name in ("src", "href", "xlink:href", "srcset", "data", "poster", "action")
    ]
    return named + re.findall(r"url\([^)]*\)|@import[^;]*|https?://[^\s\"'<]*", page.text)


@every_report
def test_html_is_whole_and_loads_nothing(kind: str) -> None:
    page = Page(html.render(REPORTS[kind]()))
    assert loaded(page) == []
    policies = [attributes for _, attributes in page.tags if attributes.get("http-equiv") == "Content-Security-Policy"]
    assert "default-src 'none'" in (policies[0]["content"] or "")
    assert sum(tag == "script" for tag, _ in page.tags) == 1


def test_what_a_page_loads_would_be_seen() -> None:
    told = html.render(regresses())
    assert loaded(Page(told.replace("</main>", '<img src="https://example.org/x.png"></main>')))
    assert loaded(Page(told.replace(":root {", "@import 'x.css'; :root {", 1)))


def test_html_escapes_what_others_wrote() -> None:
    page = Page(html.render(odd()))
    assert "<script>alert('a')</script>" in page.text
    assert "{{ 1 }}" in page.text


def test_html_shows_the_poisoned_block_in_the_build_that_has_it() -> None:
    told = html.render(regresses())
    assert Page(told).bars("wrong") == 2
    builds = told.split('<section class="build"')
    assert ["bar hashed wrong" in one for one in builds[1:]] == [False, True]
    assert "hashed as b after 4, which it DOES NOT HOLD" in builds[2]
    assert "first difference: b split: tokens 0 to 3" in told
    assert "left: 84px" in told


def test_html_without_findings_draws_the_difference_and_without_traces_nothing() -> None:
    assert "DIFF · split" in html.render(refines())
    assert Page(html.render(refines())).bars("hashed") > 0
    report = refines()
    assert report.difference is not None
    untraced = replace(report, difference=replace(report.difference, lines=((), ())))
    assert Page(html.render(untraced)).bars("hashed") == 0
    assert Page(html.render(could_not_judge())).bars("hashed") == 0


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium: the page is not looked at in a browser")
def test_a_browser_shows_the_page_and_runs_its_script(tmp_path: Path) -> None:
    page = tmp_path / "gate.html"
    page.write_text(html.render(regresses()), encoding="utf-8")
    assert 'tabindex="0" role="img"' not in page.read_text(encoding="utf-8")
    ran = subprocess.run(
        [str(CHROMIUM), "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
         "--dump-dom", page.as_uri()],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    shown = Page(ran.stdout)
    focusable = [attributes["tabindex"] for tag, attributes in shown.tags if tag == "g" and "tabindex" in attributes]
    assert focusable.count("0") == 1
    assert len(focusable) == sum(tag == "g" and attributes.get("role") == "img" for tag, attributes in shown.tags)
    assert "hidden" not in next(attributes for tag, attributes in shown.tags if tag == "output")


# --- the samples ---------------------------------------------------------------------------------------


@pytest.mark.engines
@pytest.mark.parametrize("release", ["0.26.0", "0.27.1"])
def test_the_stored_traces_are_what_the_releases_give(release: str) -> None:
    engine = open_engine(f"vllm=={release}", policy="none")
    try:
        assert try_scenario(engine, SCENARIO).lines == trace_lines(release)
    finally:
        engine.close()
