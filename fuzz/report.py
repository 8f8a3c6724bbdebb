"""What a person reads: a finding, a scenario, a campaign's summary. The same facts give the same text."""

from __future__ import annotations

import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path

import msgspec

from fuzz.campaign import State
from fuzz.engines.open import is_conforming, policy_to_ask_for
from fuzz.findings import FOLDER, EngineFacts, FindingFile, kvoracle_version, representatives
from fuzz.generator import FEATURES
from fuzz.shrink import size
from fuzz.story import Row, count
from fuzz.tally import COVERED, Tally
from oracle.cells import CELLS
from oracle.costs import COSTS
from oracle.scenario import Features, Group, Request, Scenario, Step
from oracle.validate import prompt_tokens
from reference.rules import RULES

WIDTH_MIN, WIDTH_MAX = 60, 100
_INDENT = "  "
_DEFAULTS = Features()

# Which function of the engine takes a decision; the names are the same in all supported releases.
DECIDED_BY = {
    "lookup": "KVCacheManager.get_computed_blocks",
    "split": "Scheduler._mamba_block_aligned_split",
    "allocate": "KVCacheManager.allocate_slots",
    "cache": "SingleTypeKVCacheManager.cache_blocks",
    "commit": "SingleTypeKVCacheManager.cache_blocks",
    "take": "BlockPool.get_new_blocks",
    "touch": "BlockPool.touch",
    "free": "BlockPool.free_blocks",
    "table": "SingleTypeKVCacheManager.allocate_new_blocks",
    "copy": "SingleTypeKVCacheManager.allocate_new_blocks",
    "evict": "BlockPool.get_new_blocks",
    "step": "Scheduler.schedule",
    "output": "Scheduler.update_from_output",
    "preempt": "Scheduler.schedule",
    "statistics": "KVCacheManager.make_prefix_cache_stats",
}


def width() -> int:
    """Columns of a report: those of the terminal up to a hundred, which is also what a file gets."""
    if not sys.stdout.isatty():
        return WIDTH_MAX
    return max(WIDTH_MIN, min(WIDTH_MAX, shutil.get_terminal_size().columns))


# --- a finding -----------------------------------------------------------------------------------------


class Advice(msgspec.Struct, frozen=True):
    """How to see a finding again (one line for a shell), and how to hand it to others (one sentence)."""

    reproduce: str
    export: str


def replay_advice(document: FindingFile, path: Path) -> Advice:
    """The advice for a finding that is stored in a file."""
    engine = document.engine
    policy = policy_to_ask_for(engine.name, engine.version, engine.release)
    place = shlex.quote(str(path))
    export = (
        f"send {path}: it holds the scenario and needs nothing else to be replayed"
        if is_conforming(engine.name)
        else f"kvoracle replay {place} --export upstream (a test in vLLM's style) or --export issue (a bug report)"
    )
    return Advice(
        f"kvoracle replay {place} --engine {shlex.quote(engine.name)}" + (f" --policy {policy}" if policy else ""),
        export,
    )


def finding_text(document: FindingFile, advice: Advice) -> str:
    """A finding as it is understood: rule, scenario, steps, reason, authority, what to do."""
    rule, decision, geometry = document.signature
    title = f"── {rule} · {decision} · {geometry} "
    return "\n".join(
        [
            title + "─" * max(3, width() - len(title)),
            *_wrapped(document.sentence, ""),
            "",
            *_scenario_section(document),
            "",
            *_steps_section(document.steps),
            "",
            "Why",
            *_wrapped(document.finding.reason, _INDENT),
            "",
            "Authority",
            *_wrapped(_authority(document), _INDENT),
            "",
            "Reproduce",
            f"{_INDENT}{advice.reproduce}",
            "",
            "Export",
            *_wrapped(advice.export, _INDENT),
        ]
    )


def _scenario_section(document: FindingFile) -> list[str]:
    words = "Smallest scenario" if document.shrunk else "Scenario (smallest so far)"
    lines = [f"{words}: {scenario_size(document.scenario)}", *scenario_lines(document.scenario)]
    facts = []
    if document.scenario != document.original:
        facts.append(f"shrunk in {document.attempts} trials from {scenario_size(document.original)}")
    if document.origin.index >= 0:
        facts.append(f"scenario {document.origin.index} of seed {document.origin.seed}")
        facts.append(f"seen in {count(document.count, 'scenario')}")
    lines += _wrapped("; ".join(facts), _INDENT)
    return lines + _wrapped(document.origin.note, _INDENT)


def _steps_section(rows: Iterable[Row]) -> list[str]:
    """The two sides side by side; the right one says "the same" where the reference was asked and agrees."""
    rows = list(rows)
    if not rows:
        return ["Steps", f"{_INDENT}(none were recorded)"]
    what = min(24, max(len(row.what) for row in rows))
    side = (width() - what - 16) // 2
    heads = f"{_INDENT}  step  {'decision':<{what}}  {'engine':<{side}}  expected"
    lines = ["Steps", heads]
    for row in rows:
        mark = ">" if row.differs else " "
        expected = row.expected if row.differs else "the same" if row.compared else ""
        left = textwrap.wrap(row.actual, side) or [""]
        right = textwrap.wrap(expected, side) or [""]
        for number in range(max(len(left), len(right))):
            head = f"{mark} {row.step:>4}  {row.what[:what]:<{what}}" if number == 0 else " " * (what + 8)
            ours = left[number] if number < len(left) else ""
            theirs = right[number] if number < len(right) else ""
            lines.append(f"{_INDENT}{head}  {ours:<{side}}  {theirs}".rstrip())
    return lines


def _authority(document: FindingFile) -> str:
    rule, decision, _ = document.signature
    kind = "conformance with the reference" if rule in RULES and RULES[rule].conformance else "an invariant"
    # A crash names the function itself, after its kind.
    place = DECIDED_BY.get(decision, decision.rpartition(" ")[2])
    return f"rule {rule}, {kind}; decided by {place} in {engine_words(document.engine)}"


def engine_words(engine: EngineFacts) -> str:
    """Which build, with what it was compared, on one line."""
    runner = f", model runner {engine.runner}" if engine.runner else ""
    against = f"policy of {engine.release}" if engine.release else "no policy: invariants only"
    return f"{engine.name} (version {engine.version}{runner}; {against})"


# --- a scenario ----------------------------------------------------------------------------------------


def scenario_size(scenario: Scenario) -> str:
    """How large a scenario is, in words."""
    requests, events, _, _ = size(scenario)
    tokens = sum(prompt_tokens(request) for request in scenario.requests())
    return f"{count(requests, 'request')}, {count(events, 'event')}, {count(tokens, 'prompt token')}"


def scenario_lines(scenario: Scenario) -> list[str]:
    """A scenario, to be read rather than parsed; only what is not the default."""
    geometry, limits = scenario.geometry, scenario.limits
    cache = f"{' + '.join(map(_group, geometry.groups))}; {geometry.blocks} blocks"
    if any(group.block != geometry.hash_block for group in geometry.groups):
        cache += f"; hash block {geometry.hash_block}"
    step = f"at most {count(limits.budget, 'token')} and {count(limits.sequences, 'sequence')} a step"
    if limits.long_prefill_threshold:
        step += f"; at most {limits.long_prefill_threshold} of one prefill"
    parts = [("cache", cache), ("limits", step)]
    if features := _features(scenario.features):
        parts.append(("features", features))
    parts += [(f"step {step.at}", event) for step in scenario.steps for event in _events(step)]
    lines, last = [], ""
    for name, text in parts:
        shown = "" if name == last else name
        last = name
        lines += _wrapped(text, f"{_INDENT}{shown:<10}", f"{_INDENT}{'':<10}")
    return lines


def _group(group: Group) -> str:
    window = f", window {group.window}" if group.window is not None else ""
    window += f", chunks of {group.attention_chunk}" if group.attention_chunk is not None else ""
    draft = ", draft layers" if group.eagle else ""
    saves = f", saves states every {group.checkpoint} inside a chunk" if group.checkpoint else ""
    return f"{group.kind}({group.block}{window}{draft}{saves})"


def _features(features: Features) -> str:
    """The features that are not at their default, by name."""
    on = []
    for name in Features.__struct_fields__:
        value = getattr(features, name)
        if value != getattr(_DEFAULTS, name):
            on.append(f"{name} {'on' if value is True else 'off' if value is False else value}")
    return ", ".join(on)


def _events(step: Step) -> list[str]:
    """The events of a step in the order in which they happen."""
    events = ["reset the prefix cache"] if step.reset else []
    events += [f"abort {name}" for name in step.abort]
    events += [_request(request) for request in step.add]
    return events + [f"abort {name}, between the step and its output" for name in step.abort_in_flight]


def _request(request: Request) -> str:
    tokens = prompt_tokens(request)
    text = f"add {request.id}: prompt {' '.join(request.prompt)} ({count(tokens, 'token')})"
    text += f", at most {count(request.max_output, 'output token')}"
    if request.accept != (0,):
        text += f", accepts {' '.join(map(str, request.accept))} drafts"
    if request.priority:
        text += f", priority {request.priority}"
    if request.skips_lookup:
        text += ", takes nothing from the cache"
    return text + (f", output stream {request.output}" if request.output else "")


# --- a campaign ----------------------------------------------------------------------------------------


def heading(state: State) -> str:
    """What is about to be checked, and everything that is needed to do it again."""
    settings, prepared = state.settings, state.prepared
    against = f"the policy of {prepared.release}" if prepared.release else "no policy, by the invariants only"
    source = settings.source
    limits = [f"{settings.seconds:g} s"] if settings.seconds is not None else []
    limits += [count(settings.scenarios, "scenario")] if settings.scenarios is not None else []
    lines = [
        f"{prepared.label}: version {prepared.version}, compared with {against}",
        f"kvoracle {kvoracle_version()}, seed {source.seed}, {count(settings.workers, 'worker')},"
        f" {' or '.join(limits) or 'until stopped'}, {source.backend} generator, {state.judge} judge",
    ]
    if settings.rules is not None:
        lines.append(f"rules {', '.join(sorted(settings.rules))}")
    lines += _wrapped(f"features only: {', '.join(source.only)}", "") if source.only else []
    lines += _wrapped(f"features left out: {', '.join(source.without)}", "") if source.without else []
    return "\n".join([*lines, *(f"note: {note}" for note in prepared.notes)])


def summary_text(state: State) -> str:
    """What was checked, on which build, what was found; then one finding per rule and decision."""
    sections: list[list[str] | str] = [_checked(state), _rules(state), _found(state)]
    if state.settings.against is not None:
        sections.append(_costs(state))
    shown = representatives(state.found)
    for signature in shown:
        document = state.found[signature]
        sections.append(finding_text(document, replay_advice(document, state.paths[signature])))
    if more := len(state.found) - len(shown):
        words = f"{count(more, 'finding')} of the same rules and decisions, with other geometries, not printed"
        sections.append(_wrapped(f"{words}; kvoracle replay {state.paths[shown[0]].parent} prints all", ""))
    if last := _last_line(state):
        sections.append(last)
    return "\n\n".join("\n".join(s) if isinstance(s, list) else s for s in sections)


def _checked(state: State) -> list[str]:
    tally = state.tally
    facts = EngineFacts(state.prepared.name.typed, state.prepared.version, state.tally.runner, state.prepared.release)
    lines = [
        _fact("Build", engine_words(facts)),
        _fact("Checked", f"{_scenarios(tally)}, {count(tally.steps, 'step')}"),
        _fact("Time", time_words(state)),
        _fact("CPU", cpu_words(tally.seconds)),
        _fact("Features", _drawn(state)),
        _fact("Reached", coverage_words(state)),
        _fact("Cells", ", ".join(f"{cell}: {count(tally.coverage.get(cell, 0), 'scenario')}" for cell in CELLS)),
        _fact(
            "Repeated",
            f"{count(tally.repeated, 'scenario')} run twice; digest of all traces {tally.digest:016x}",
        ),
        _fact("Twins", _twins(tally)),
        _fact("Allowed", _counts(tally.allowed) or "no allowed difference was seen"),
    ]
    if tally.skipped:
        lines.append(_fact("Skipped", f"{count(tally.skipped, 'scenario')} that this build is known to refuse"))
    if tally.unrun:
        lines.append(_fact("Unrun", f"{tally.unrun} of {count(tally.scenarios, 'scenario')} could not run"))
        lines += _reasons(tally.could_not_run)
    if tally.failed:
        lines.append(_fact("Failed", f"kvoracle itself, on {count(tally.failed, 'scenario')}; please report this"))
        lines += _reasons(tally.ours)
        lines += [line for path in state.faults for line in _wrapped(f"stored as {path}", " " * 12)]
    return lines


def _twins(tally: Tally) -> str:
    pairs = f"{count(sum(tally.twins.values()), 'pair')} of scenarios compared"
    return f"{pairs}: {_counts(tally.twins)}" if tally.twins else pairs


def _scenarios(tally: Tally) -> str:
    if tally.ran == tally.made:
        return count(tally.made, "scenario")
    return f"ran {tally.ran:,} of {count(tally.made, 'scenario')}"


def _reasons(reasons: dict[str, int]) -> list[str]:
    """The five most frequent."""
    often = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    return [line for reason, n in often[:5] for line in _wrapped(f"{n} × {reason}", " " * 12)]


def _drawn(state: State) -> str:
    """The share of scenarios whose swarm had each feature on."""
    tally = state.tally
    if state.settings.source.backend == "hypothesis":
        return "drawn by Hypothesis for each scenario, not counted"
    drawn = [name for name in FEATURES if tally.features.get(name)]
    return ", ".join(f"{name} {100 * tally.features[name] / tally.made:.0f}%" for name in drawn) or "(plain)"


def time_words(state: State) -> str:
    """Where the wall-clock time went."""
    clock, tally = state.clock, state.tally
    rate = tally.scenarios / clock.fuzzing if clock.fuzzing else 0.0
    steps = tally.steps / clock.fuzzing if clock.fuzzing else 0.0
    return (
        f"set-up {clock.setup:.1f} s, engine load {clock.load:.1f} s, fuzzing {clock.fuzzing:.1f} s,"
        f" shrinking {clock.shrinking:.1f} s; {rate:.0f} scenarios/s, {steps:.0f} steps/s"
    )


def cpu_words(seconds: dict[str, float]) -> str:
    """The share of each phase in the CPU time that was measured."""
    total = sum(seconds.values())
    if not total:
        return "not measured"
    names = {"calls": "engine calls", "construct": "engine construction"}
    parts = sorted(seconds.items(), key=lambda item: -item[1])
    return ", ".join(f"{names.get(name, name)} {100 * part / total:.0f}%" for name, part in parts)


def coverage_words(state: State) -> str:
    """The share of scenarios in which each event happened, the five that matter most first."""
    tally = state.tally
    run = max(1, tally.ran)
    others = sorted(set(tally.coverage) - set(COVERED) - set(CELLS))
    return ", ".join(f"{name} {100 * tally.coverage.get(name, 0) / run:.0f}%" for name in (*COVERED, *others))


def _rules(state: State) -> list[str]:
    judged = state.tally.judged
    asked = [rule for rule in RULES if state.settings.rules is None or rule in state.settings.rules]
    lines = [_fact("Judged", ", ".join(f"{rule} {judged[rule]}×" for rule in asked if judged.get(rule)) or "nothing")]
    if never := [rule for rule in asked if not judged.get(rule)]:
        lines.append(_fact("Not judged", ", ".join(never)))
    # Where a rule was judged in other scenarios, these are not what it comes to.
    reasons = {what: why for what, why in sorted(state.tally.unjudged.items()) if not judged.get(what)}
    lines += [line for what, why in reasons.items() for line in _wrapped(f"{what}: {why}", " " * 12)]
    return lines


def _found(state: State) -> list[str]:
    lines = [_fact("Found", f"{count(len(state.found), 'finding')} by signature" if state.found else "nothing")]
    for signature in sorted(state.found):
        document = state.found[signature]
        words = f"{' · '.join(signature)}: {count(document.count, 'scenario')}"
        words += "" if document.shrunk else ", not shrunk to the end"
        lines += _wrapped(words, " " * 12, " " * 14)
    for known in state.settings.known:
        status = state.known.get(known.signature, "not run")
        seen = count(state.tally.signatures.get(known.signature, 0), "scenario")
        words = f"known {' · '.join(known.signature)}: {status}; {seen}; {known.reason} ({known.report})"
        lines += _wrapped(words, " " * 12, " " * 14)
    return lines


def _costs(state: State) -> list[str]:
    """What the engine's decisions cost beside the reference engine's, and where it loses most."""
    against, settings = state.tally.against, state.settings
    unlike = f"; {count(against.unlike, 'scenario')} not run to its end by both" if against.unlike else ""
    words = f"beside the reference engine's under the policy of {settings.against}, in all of"
    lines = [_fact("Costs", f"{words} {count(against.scenarios, 'scenario')}{unlike}")]
    lines.append(f"{'':12}{'':<18}{'engine':>12}{'reference':>12}{'ratio':>8}")
    for name in COSTS:
        ratio = against.ratio(name)
        told = "-" if ratio is None else f"{ratio:.3f}"
        ours, theirs = getattr(against.engine, name), getattr(against.reference, name)
        lines.append(f"{'':12}{name.replace('_', ' '):<18}{ours:>12,}{theirs:>12,}{told:>8}")
    for name, loss in sorted(against.largest.items()):
        where = f"scenario {loss.index} of seed {settings.source.seed}"
        words = f"most {name.replace('_', ' ')} lost: {loss.engine} against {loss.reference} in {where}"
        lines += _wrapped(words, " " * 12)
    return lines


def _last_line(state: State) -> str:
    """The verdict; empty when there is none, which is told on stderr."""
    problem = state.could_not_judge
    if state.found:
        where = state.paths[min(state.found)].parent if state.paths else FOLDER
        also = f"; also: {problem}" if problem else ""
        return f"{count(len(state.found), 'finding')}, stored in {where}{also}"
    if problem:
        return ""
    return f"no findings in {count(state.tally.scenarios, 'scenario')}"


# --- small helpers -------------------------------------------------------------------------------------


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {number}×" for name, number in sorted(counts.items()))


def _fact(name: str, text: str) -> str:
    return "\n".join(_wrapped(text, f"{name:<12}", " " * 12))


def _wrapped(text: str, first: str, rest: str | None = None) -> list[str]:
    """Lines of at most ``width()``; no line for no text. Paths and names are never broken."""
    return textwrap.wrap(
        text,
        width(),
        initial_indent=first,
        subsequent_indent=first if rest is None else rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
