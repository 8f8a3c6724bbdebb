"""``kvoracle judge``: the verdict on traces that were recorded elsewhere."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from fuzz.commands.common import (
    CLEAN,
    COULD_NOT_JUDGE,
    FINDINGS,
    json_option,
    leave,
    print_json,
    rule_option,
    rules,
)
from fuzz.engines.open import INVARIANTS_ONLY, checked_policy
from fuzz.findings import EngineFacts, FindingFile, Origin, kvoracle_version, new_finding
from fuzz.report import Advice, engine_words, finding_text
from fuzz.story import count, story
from fuzz.tally import by_signature
from fuzz.traces import Judgement, TraceFile, judge_file
from fuzz.trial import Rules
from oracle.judge import BadTrace
from oracle.verdict import Finding
from reference.rules import RULES


@click.command()
@click.argument("traces", nargs=-1, required=True, type=click.Path())
@click.option("--policy", metavar="RELEASE", help="Compare with this release's policy (default: the trace's), or none.")
@rule_option
@json_option
def judge(traces: tuple[str, ...], policy: str | None, rule_names: tuple[str, ...], as_json: bool) -> None:
    """Judge TRACES: files of JSON lines, or .zst of such.

    ``kvoracle replay --trace`` records such files. A trace that breaks off before its end is no pass.

    Exit status: 0 clean, 1 findings, 2 could not judge (of several traces 1 wins over 2).
    """
    wanted = rules(rule_names)
    release = checked_policy(policy)
    statuses, documents = set(), []
    for name in traces:
        file = TraceFile(Path(name))
        try:
            judgement = judge_file(file, release, wanted, invariants_only=policy == INVARIANTS_ONLY)
        except BadTrace as error:
            click.echo(f"kvoracle: {error}", err=True)
            documents.append({"trace": name, "word": "not judged", "problem": str(error)})
            statuses.add(COULD_NOT_JUDGE)
            continue
        problem = judgement.problem or _unjudged(judgement, wanted)
        if problem:
            click.echo(f"kvoracle: {name}: {problem}", err=True)
        statuses.add(_status(judgement, problem))
        never = _never_judged(judgement, wanted)
        documents.append(_document(name, judgement, problem, never))
        if not as_json:
            click.echo(_text(file, judgement, never, policy))
    if as_json:
        print_json(documents)
    leave(FINDINGS if FINDINGS in statuses else max(statuses))


def _unjudged(judgement: Judgement, wanted: Rules) -> str:
    judged = judgement.verdict.judged
    if not any(judged.values()):
        return "nothing in it was judged"
    if broken := judgement.verdict.unjudged.get("end"):
        return broken
    never = sorted(rule for rule in wanted or () if not judged.get(rule))
    return f"nothing to judge by {', '.join(never)}" if never else ""


def _never_judged(judgement: Judgement, wanted: Rules) -> list[str]:
    """The rules that had nothing to judge, in their own order."""
    judged = judgement.verdict.judged
    return [rule for rule in RULES if not judged.get(rule) and (wanted is None or rule in wanted)]


def _status(judgement: Judgement, problem: str) -> int:
    if judgement.verdict.findings:
        return FINDINGS
    return COULD_NOT_JUDGE if problem else CLEAN


def _facts(judgement: Judgement) -> EngineFacts:
    header = judgement.header
    return EngineFacts(header.engine, header.version, header.runner, judgement.release)


def _text(file: TraceFile, judgement: Judgement, never: list[str], policy: str | None) -> str:
    verdict = judgement.verdict
    found = by_signature(verdict.findings)
    judged = ", ".join(f"{rule} {times}×" for rule, times in sorted(verdict.judged.items()) if times)
    lines = [
        f"{file.path}: {verdict.word}",
        f"  kvoracle {kvoracle_version()}, {engine_words(_facts(judgement))}",
        f"  {count(verdict.steps, 'step')}, {count(verdict.records, 'record')},"
        f" {count(len(verdict.findings), 'finding')} of {count(len(found), 'signature')}",
        f"  judged: {judged or 'nothing'}",
    ]
    lines += [f"  not judged: {', '.join(never)}"] if never else []
    lines += [f"    {what}: {why}" for what, why in sorted(verdict.unjudged.items())]
    lines += [f"  allowed difference: {name} {times}×" for name, times in sorted(verdict.allowed.items())]
    lines += [f"  note: {note}" for note in judgement.notes]
    again = f"kvoracle judge {shlex.quote(str(file.path))}" + (f" --policy {policy}" if policy else "")
    advice = Advice(again, f"send {file.path}: it holds all that was judged")
    for finding in found.values():
        lines += ["", finding_text(_as_document(file, judgement, finding), advice)]
    return "\n".join(lines)


def _as_document(file: TraceFile, judgement: Judgement, finding: Finding) -> FindingFile:
    return new_finding(
        finding,
        judgement.header.scenario,
        _facts(judgement),
        Origin(note="as recorded"),
        story(file, finding, judgement.verdict.judged),
    )


def _document(name: str, judgement: Judgement, problem: str, never: list[str]) -> dict[str, Any]:
    return {
        "trace": name,
        "word": judgement.verdict.word,
        "engine": _facts(judgement),
        "verdict": judgement.verdict,
        "not_judged": never,
        "notes": judgement.notes,
        "problem": problem,
    }
