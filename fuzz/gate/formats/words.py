"""What all formats say alike: the verdict, grounds, costs and findings in words, the steps of both sides aligned."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from difflib import SequenceMatcher
from typing import Any

import msgspec
from msgspec import structs

from fuzz.gate.model import GateFinding, GateReport, Ground, Place, Side
from fuzz.public_reports import reports_on
from fuzz.story import count
from fuzz.tally import Signature
from oracle import trace
from oracle.compare import CONTEXT, records_of
from oracle.costs import COSTS, MORE_IS_BETTER, Costs
from oracle.decisions import Decision, decisions
from reference.rules import RULES

AFTER = 14
"""Decisions of each side that are shown from the first difference on."""

_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def plain(text: str) -> str:
    """The text without what terminals obey and XML forbids: such characters are spelt out."""
    return _UNPRINTABLE.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def one_line(text: str) -> str:
    """The text, plain and without line breaks."""
    return " ".join(plain(text).split())


def plain_document(document: Any) -> Any:
    """Data, all texts in it made plain."""
    if isinstance(document, dict):
        return {plain_document(name): plain_document(value) for name, value in document.items()}
    if isinstance(document, list | tuple):
        return [plain_document(value) for value in document]
    return plain(document) if isinstance(document, str) else document


# --- the verdict ---------------------------------------------------------------------------------------


def verdict(report: GateReport) -> str:
    """The verdict on one line."""
    sides = f"{report.candidate.name} against {report.baseline.name}"
    if report.word == "could not judge":
        tested = f"; the scenarios alone say {report.tested}" if report.tested else ""
        return one_line(f"could not judge {sides}: {report.reason or 'no reason was given'}{tested}")
    new, known = len(report.new_findings), len(report.findings) - len(report.new_findings)
    found = f"{count(new, 'new finding')} in {count(report.scenarios, 'scenario')}"
    known_words = f", {count(known, 'known finding')}" if known else ""
    accepted = "; accepted" if report.accepted else ""
    reason = f"; {report.reason}" if report.reason else ""
    return one_line(f"{report.title}: {sides}, {found}{known_words}{accepted}{reason}")


def side(one: Side) -> str:
    """A build, and what it was judged by."""
    judged = f"policy of {one.policy}" if one.policy else "the invariants only"
    return plain(f"{one.name} (version {one.version}; judged by {judged})")


def place(one: Place) -> str:
    """Function, file and line."""
    return plain(f"{one.function} ({path(one)}:{one.line})")


def path(one: Place) -> str:
    """The file as it is called in a checkout: from the folder that holds the package."""
    return f"vllm/{one.file}"


def signature(one: Signature) -> str:
    """Rule, decision and geometry."""
    return plain(" · ".join(one))


# --- grounds, costs, proof -----------------------------------------------------------------------------


def ground(one: Ground) -> str:
    """What was done about a changed function."""
    if one.status == "executed":
        where = f"in {count(one.scenarios, 'scenario')}" if one.scenarios else "at import only"
        words = f"executed {where} with {len(one.lines_hit)} of {count(len(one.lines), 'changed line')}"
    else:
        words = one.status
    if one.lines_unseen and one.status == "executed":
        words += f"; never executed: {lines(one.lines_unseen)}"
    elif one.lines_unseen:
        words += f": {lines(one.lines_unseen)}"
    if one.lines_proved:
        words += f"; proved to make no difference: {lines(one.lines_proved)}"
    return plain(words + (f" ({one.why})" if one.why else ""))


def lines(numbers: Iterable[int]) -> str:
    """``line 3``, ``lines 3–5, 9``."""
    numbers = sorted(numbers)
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1] = [ranges[-1][0], number]
        else:
            ranges.append([number])
    noun = "line" if len(numbers) == 1 else "lines"
    return f"{noun} {', '.join('–'.join(map(str, one)) for one in ranges)}"


class CostRow(msgspec.Struct, frozen=True):
    """One cost of both sides. ``trend``: ``better``, ``worse`` or empty, of the candidate."""

    name: str
    baseline: int
    candidate: int
    trend: str

    @property
    def difference(self) -> str:
        """With its sign; 0 without one."""
        return f"{self.candidate - self.baseline:+,}" if self.trend else "0"


def cost_rows(costs: tuple[Costs, Costs]) -> list[CostRow]:
    """The table of costs."""
    rows = []
    for name in COSTS:
        ours, theirs = (getattr(one, name) for one in costs)
        gain = (theirs - ours) * (1 if name in MORE_IS_BETTER else -1)
        rows.append(CostRow(cost(name), ours, theirs, "better" if gain > 0 else "worse" if gain < 0 else ""))
    return rows


def cost(name: str) -> str:
    """A cost's name as words."""
    return name.replace("_", " ")


def proof(report: GateReport) -> list[str]:
    """What the proof layer said; nothing where it had nothing to do."""
    one = report.proof
    said = [f"off: {one.off}"] if one.off else []
    said += [f"{one.proved} of {count(one.rows, 'row')} proved"] if one.rows else []
    return [plain(words) for words in (*said, *(f"refuted: {claim}" for claim in one.refuted))]


def mended(report: GateReport) -> str:
    """The rules that the candidate keeps where the baseline breaks them; empty if there are none."""
    return ", ".join(f"{rule} in {count(number, 'scenario')}" for rule, number in report.mended.items())


def controls(report: GateReport) -> str:
    """How many of the planted faults were caught."""
    if not report.controls:
        return "none was planted"
    caught = sum(one.caught for one in report.controls)
    return f"{caught} of {count(len(report.controls), 'planted fault')} caught"


def missed(report: GateReport) -> list[str]:
    """Planted faults that were not caught, each with the reason."""
    return [
        plain(f"MISSED {one.name}: {one.sentence} In {place(one.place)}: {one.why or one.word or 'no verdict'}")
        for one in report.controls
        if not one.caught
    ]


def known(report: GateReport) -> list[str]:
    """Findings that are excused, and what became of the entries of the known findings."""
    excused = [f"{signature(one.signature)}: excused, {one.known}" for one in report.findings if one.known]
    entries = [f"{signature(one.signature)}: {one.status}; {one.reason} ({one.report})" for one in report.known]
    return [plain(told) for told in (*excused, *entries)]


def facts(values: dict[str, Any]) -> str:
    """Settings, on one line."""
    return plain(", ".join(f"{name} {value}" for name, value in values.items() if value not in (None, "", (), [])))


def seconds(values: dict[str, float]) -> str:
    """Wall time by phase, on one line."""
    parts = ", ".join(f"{name} {value:.1f} s" for name, value in values.items())
    return plain(f"{sum(values.values()):.1f} s: {parts}") if values else "not measured"


# --- a finding -----------------------------------------------------------------------------------------


def shown(findings: Sequence[GateFinding]) -> list[GateFinding]:
    """Those that are told in full: the first of each rule and decision."""
    first: dict[tuple[str, str], GateFinding] = {}
    for one in findings:
        first.setdefault(one.signature[:2], one)
    return list(first.values())


def seen(one: GateFinding) -> str:
    """Where a finding came from and how often."""
    words = f"seen in {count(one.count, 'scenario')}, first in a {_LAYERS[one.layer]} after {one.seconds:.1f} s"
    baseline = "; the baseline breaks the same rule in other scenarios" if one.on_baseline else ""
    return plain(words + baseline)


_LAYERS = {"vector": "stored scenario", "directed": "scenario made by the solver", "fuzz": "generated scenario"}


def reason(one: GateFinding) -> str:
    """Why it is one, in sentences: let … then … because … however …."""
    said, difference = ["Let both builds run this scenario."], one.comparison.difference
    if difference is None:
        said.append("Then they decide alike, block ids and what follows from them aside.")
    else:
        ours, theirs = decision(difference.baseline), decision(difference.candidate)
        said.append(f"Then the baseline decides “{ours}”, and the candidate “{theirs}”.")
    if one.finding is not None:
        expected = f" (expected: {one.finding.expected})" if one.finding.expected else ""
        said.append(f"Because of that, on the candidate {one.finding.reason.rstrip('.')}{expected}.")
        said.append(f"However, {one.finding.rule} holds on the baseline.")
    if one.comparison.mended:
        rules = ", ".join(dict.fromkeys(mended.rule for mended in one.comparison.mended))
        said.append(f"The baseline breaks {rules} here, and the candidate no longer does.")
    if one.comparison.worse:
        said.append(f"The candidate is worse in {_in_words(one, one.comparison.worse)}.")
    if one.comparison.better:
        said.append(f"It is better in {_in_words(one, one.comparison.better)}.")
    return plain(" ".join(said))


def _in_words(one: GateFinding, names: Iterable[str]) -> str:
    ours, theirs = one.costs
    return ", ".join(f"{cost(name)} ({getattr(theirs, name)} instead of {getattr(ours, name)})" for name in names)


def authority(report: GateReport, one: GateFinding) -> str:
    """Which rule, who decides, what is publicly known."""
    name = one.signature[0]
    if name in RULES:
        said = [f"rule {name}, {'conformance with the reference' if RULES[name].conformance else 'an invariant'}"]
    else:
        said = ["no rule is broken; the decisions and their costs are compared"]
    if one.place is not None:
        said.append(f"decided by {place(one.place)} of {report.candidate.name}")
    threads = sorted({thread for known in reports_on(name) for thread in known.threads})
    if threads:
        said.append(f"public issues of vLLM that break it: {', '.join(map(str, threads))}")
    return plain("; ".join(said))


def reproduce(report: GateReport, one: GateFinding) -> str:
    """One line for a shell."""
    if _is_replayed(one):
        return plain(f"kvoracle replay {shlex.quote(one.path)} --engine {shlex.quote(report.candidate.name)}")
    baseline, candidate = shlex.quote(report.baseline.name), shlex.quote(report.candidate.name)
    seed = f" --seed {report.settings['seed']}" if "seed" in report.settings else ""
    time = f" --time {report.settings['seconds']:g}s" if "seconds" in report.settings else ""
    return plain(f"kvoracle gate --baseline {baseline} --engine {candidate}{seed}{time}")


def export(report: GateReport, one: GateFinding) -> str:
    """How to hand it to others: lines for a shell."""
    line = reproduce(report, one)
    if _is_replayed(one):
        return f"{line} --export upstream  # a pytest file for plain vLLM\n{line} --export issue  # a bug report"
    stored = plain(f"cat {shlex.quote(one.path)}  # the scenario, which is all that is needed\n") if one.path else ""
    return f"{stored}{line} --format json  # the scenario and both traces"


def _is_replayed(one: GateFinding) -> bool:
    """A replay judges one build; what is only a difference from another build it cannot show."""
    return bool(one.path) and one.finding is not None


# --- the steps of both sides ---------------------------------------------------------------------------


class Pair(msgspec.Struct, frozen=True):
    """Two decisions side by side, empty where a side has none. ``differs``: they are not the same. ``first``: the
    first that are not. ``broken``: at the candidate's the finding was seen."""

    step: int
    what: str
    baseline: str
    candidate: str
    differs: bool = False
    first: bool = False
    broken: bool = False

    @property
    def mark(self) -> str:
        """A sign for it."""
        return (">" if self.first else "≠" if self.differs else "") + ("!" if self.broken else "")

    @property
    def other(self) -> str:
        """The candidate's side; what is the same is told once."""
        return self.candidate if self.differs else "the same"


MARKS = "> the first difference, ≠ another one, ! where the broken rule was seen"


def pairs(one: GateFinding) -> list[Pair]:
    """What both sides decided alike before the first difference, the difference, and what followed."""
    ours, theirs = (_placed(side_lines) for side_lines in one.lines)
    alike = next(
        (n for n, (left, right) in enumerate(zip(ours, theirs, strict=False)) if not left[1].same(right[1])),
        min(len(ours), len(theirs)),
    )
    # A finding is seen at a record; some records are no decisions, or were gathered into one.
    record = one.finding.record if one.finding else -1
    broken = next((placed for placed in reversed(theirs) if placed[1].record <= record), None)
    rows = [_pair(both, both, broken) for both in theirs[max(0, alike - CONTEXT) : alike]]
    after = _aligned(ours[alike : alike + AFTER], theirs[alike : alike + AFTER], broken)
    # Where the two took decisions of different kinds, each stands on a row of its own.
    first = {next((n for n, row in enumerate(after) if getattr(row, name)), -1) for name in ("baseline", "candidate")}
    rows += [structs.replace(row, first=n in first) for n, row in enumerate(after)]
    if broken is not None and broken not in theirs[: alike + AFTER]:
        rows += [Pair(broken[0], "…", "", "(further decisions left out)", True), _pair(None, broken, broken)]
    return rows


def decision(one: Decision | None) -> str:
    """A decision in words; of None that there was no further one."""
    if one is None:
        return "nothing more"
    what, words = _what(one), _facts(one)
    return plain(f"{what}: {words}" if words else what)


_Placed = tuple[int, Decision]
"""A decision and the step that it leads to."""


def _placed(side_lines: Sequence[bytes]) -> list[_Placed]:
    step, steps = 0, []
    records = records_of(side_lines)
    for record in records:
        steps.append(step)
        if isinstance(record, trace.Step):
            step = record.index + 1
    return [(steps[one.record], one) for one in decisions(records)]


def _aligned(ours: Sequence[_Placed], theirs: Sequence[_Placed], broken: _Placed | None) -> list[Pair]:
    """Decisions of one kind and request face each other."""
    left_keys, right_keys = ([(one.kind, one.request) for _, one in placed] for placed in (ours, theirs))
    rows: list[Pair] = []
    for word, a, a_end, b, b_end in SequenceMatcher(None, left_keys, right_keys, False).get_opcodes():
        if word == "equal":
            rows += [_pair(left, right, broken) for left, right in zip(ours[a:a_end], theirs[b:b_end], strict=True)]
        else:
            rows += [_pair(left, None, broken) for left in ours[a:a_end]]
            rows += [_pair(None, right, broken) for right in theirs[b:b_end]]
    return rows


def _pair(left: _Placed | None, right: _Placed | None, broken: _Placed | None) -> Pair:
    step, one = right or left  # type: ignore[misc]
    texts = [plain(_facts(placed[1])) if placed else "" for placed in (left, right)]
    differs = left is None or right is None or not left[1].same(right[1])
    return Pair(step, plain(_what(one)), texts[0], texts[1], differs, broken=right is not None and right is broken)


def _what(one: Decision) -> str:
    return f"{one.request} {one.kind}".strip() if one.kind != "step" else "worker"


def _facts(one: Decision) -> str:
    told = _WORDS.get(one.kind)
    return told(dict(one.facts)) if told else ", ".join(f"{name} {value}" for name, value in one.facts)


def _lookup(facts: dict[str, Any]) -> str:
    junction = f", junction {facts['junction']}" if facts["junction"] else ""
    return f"hit {facts['hit']} of {count(facts['known'], 'token')}{junction}"


def _split(facts: dict[str, Any]) -> str:
    start, asked, granted = facts["start"], facts["asked"], facts["granted"]
    cut = f" (asked {asked})" if asked != granted else ""
    return f"tokens {start} to {start + granted}{cut}" if granted else f"nothing (asked {asked} from {start})"


def _allocate(facts: dict[str, Any]) -> str:
    granted = "granted" if facts["granted"] else "refused"
    return f"{granted}: {count(facts['tokens'], 'token')} after {facts['computed']}"


def _commit(facts: dict[str, Any]) -> str:
    hashed = [f"{request or 'a copy'} to {position} (group {group})" for request, group, position in facts["blocks"]]
    return f"hashes {', '.join(hashed)}"


def _evict(facts: dict[str, Any]) -> str:
    told = [" and ".join(f"{position} (group {group})" for group, position in held) for held in facts["blocks"]]
    return ", ".join(f"a block hashed to {held}" if held else "a block" for held in told)


def _step(facts: dict[str, Any]) -> str:
    parts = [f"drops {', '.join(facts['preempted'])}"] if facts["preempted"] else []
    parts += [f"copies {count(facts['copies'], 'block')}"] if facts["copies"] else []
    for request, start, tokens, drafts, accepted, _samples, _fresh in facts["scheduled"]:
        guessed = f" ({count(drafts, 'draft')}, {accepted} right)" if drafts else ""
        parts.append(f"computes {request} from {start} to {start + tokens}{guessed}")
    return "; ".join(parts) or "nothing to compute"


_WORDS: dict[str, Callable[[dict[str, Any]], str]] = {
    "add": lambda facts: count(facts["prompt_tokens"], "prompt token"),
    "lookup": _lookup,
    "split": _split,
    "allocate": _allocate,
    "commit": _commit,
    "evict": _evict,
    "preempt": lambda facts: "back to the queue",
    "finish": lambda facts: str(facts["reason"]),
    "reset": lambda facts: "done" if facts["done"] else "refused",
    "step": _step,
    "output": lambda facts: ", ".join(f"{request} gets {tokens}" for request, tokens in facts["sampled"]) or "nothing",
    "end": lambda facts: f"unfinished: {', '.join(facts['unfinished'])}" if facts["unfinished"] else "all ended",
    "crash": lambda facts: f"{facts['kind']} in {facts['where']}: {facts['message']}",
}
