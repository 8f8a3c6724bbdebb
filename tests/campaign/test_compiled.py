"""The compiled judge is the judge: it says the same of every trace, and none of other sources is ever used."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from random import Random

import msgspec
import pytest
from click.testing import CliRunner, Result

import oracle.case
from fuzz import compiled
from fuzz.cli import cli
from fuzz.compiled import compile_judge, compiled_first, compiled_judge
from fuzz.engines.cache import ProvisionError
from fuzz.engines.open import open_prepared, prepare_engine
from fuzz.engines.planted import FAULTS
from fuzz.generator import scenario_at
from oracle.judge import BadTrace, judge_lines

SEED = 11
SCENARIOS = 4
MALFORMED = 300

Lines = list[bytes]


def said(traces: list[Lines]) -> tuple[str, list[str]]:
    """Which file the judge is, and what it says of each trace, in this process."""
    words = []
    for lines in traces:
        try:
            words.append(msgspec.json.encode(judge_lines(lines, "0.33.0")).decode())
        except BadTrace as error:
            words.append(str(error))
    return str(oracle.case.__file__), words


def said_by_a_worker(traces: list[Lines]) -> tuple[str, list[str]]:
    with compiled_first(), ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(said, traces).result()


def traces_of_faults() -> list[Lines]:
    """Traces of every planted fault: most rules have something to find in one of them."""
    traces = []
    for name in ("reference", *(f"planted:{fault}" for fault in sorted(FAULTS))):
        engine = open_prepared(prepare_engine(name))
        runs = [engine.run(scenario_at(SEED, index)) for index in range(SCENARIOS)]
        traces += [run.lines for run in runs if run.lines]
    return traces


def malformed(traces: list[Lines]) -> Iterator[Lines]:
    """Traces with one record too few or too many, or one number that is another, also one that fits no machine word."""
    random = Random(SEED)
    for _ in range(MALFORMED):
        lines = list(random.choice(traces))
        line = random.randrange(1, len(lines))
        records = json.loads(lines[line])
        place = random.randrange(len(records))
        kind = random.randrange(3)
        if kind == 0:
            del records[place]
        elif kind == 1:
            records.insert(place, random.choice(records))
        else:
            record = records[place]
            numbers = [index for index, value in enumerate(record) if type(value) is int]
            for index in random.sample(numbers, min(1, len(numbers))):
                record[index] = random.choice((0, 1, record[index] + 1, 1 << 22, (1 << 63) - 1))
        lines[line] = json.dumps(records).encode()
        yield lines


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with the judge compiled, which takes a minute."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KVORACLE_CACHE", str(folder))
        facts = compile_judge(lambda text: None)
    assert int(facts["modules"]) > 30
    return folder


@pytest.fixture
def cached(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVORACLE_CACHE", str(cache))


def kvoracle(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments, prog_name="kvoracle")


@pytest.mark.usefixtures("cached")
def test_it_says_the_same_of_every_trace_good_or_bad() -> None:
    traces = traces_of_faults()
    traces += malformed(traces)
    (our_file, ours), (their_file, theirs) = said(traces), said_by_a_worker(traces)
    assert our_file.endswith(".py")
    assert their_file.endswith(".so")
    assert theirs == ours
    rules = {finding["rule"] for words in ours if words.startswith("{") for finding in json.loads(words)["findings"]}
    assert len(rules) > 10
    assert sum(not words.startswith("{") for words in ours) > MALFORMED / 20


def test_a_campaign_finds_the_same_with_it(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    documents = []
    for folder in (cache, tmp_path / "empty"):
        monkeypatch.setenv("KVORACLE_CACHE", str(folder))
        result = kvoracle("fuzz", "--engine", "planted:stale-hash", "--scenarios", "60", "--seed", "1", "--json")
        assert result.exit_code == 1
        documents.append(json.loads(result.stdout))
    assert [document.pop("judge") for document in documents] == ["compiled", "interpreted"]
    for document in documents:
        for changing in ("clock", "cpu_seconds"):
            del document[changing]
    assert documents[0] == documents[1]
    assert documents[0]["findings"]


@pytest.mark.usefixtures("cached")
def test_one_of_other_sources_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in compiled.PACKAGES:
        shutil.copytree(compiled.ROOT / package, tmp_path / package)
    monkeypatch.setattr(compiled, "ROOT", tmp_path)
    assert compiled_judge() is not None  # the same sources elsewhere
    with (tmp_path / "reference" / "split.py").open("a") as file:
        file.write("# changed\n")
    assert compiled_judge() is None
    assert said_by_a_worker([])[0].endswith(".py")


@pytest.mark.usefixtures("cached")
def test_it_is_compiled_once() -> None:
    result = kvoracle("compile", "--json")
    assert result.exit_code == 0
    assert result.stderr == ""  # nothing was compiled
    assert json.loads(result.stdout)["modules"]


def test_what_is_missing_is_said_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVORACLE_CACHE", str(tmp_path))
    monkeypatch.setenv("CC", "a-compiler-that-nobody-has")
    without_compiler = kvoracle("compile")
    monkeypatch.setattr(compiled, "find_spec", lambda name: None)
    without_mypyc = kvoracle("compile")
    for result, word in ((without_compiler, "C compiler"), (without_mypyc, "pip install 'kvoracle[compiled]'")):
        assert result.exit_code == 2
        assert word in result.stderr.splitlines()[-1]
    assert len(without_mypyc.stderr.splitlines()) == 1
    assert compiled_judge() is None


def test_one_that_does_not_load_is_compiled_again(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(cache, tmp_path, dirs_exist_ok=True)
    monkeypatch.setenv("KVORACLE_CACHE", str(tmp_path))
    folder = compiled_judge()
    assert folder is not None
    (library,) = folder.glob("*.so")
    library.write_bytes(library.read_bytes()[:1000])
    monkeypatch.setattr(compiled, "find_spec", lambda name: None)  # seen to try, which takes no minute
    assert "mypyc" in kvoracle("compile").stderr


@pytest.mark.usefixtures("cached")
def test_sources_that_change_while_they_are_compiled_are_not_taken(tmp_path: Path) -> None:
    with pytest.raises(ProvisionError, match="changed"):
        compiled._compile(tmp_path, "another digest")


def test_without_a_home_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for variable in ("KVORACLE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(Path, "home", nobody)
    assert compiled_judge() is None
