"""What tests on real builds share: two releases at work, sources with a change, and plain pytest on a build."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import xml.etree.ElementTree as xml
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fuzz.engines.open import Prepared, open_prepared, prepare_engine
from fuzz.engines.process import VllmEngine
from fuzz.engines.provision import Launch, clean_environment
from fuzz.engines.sources import source_tree

CHANGED = Path("vllm/v1/core/sched/scheduler.py")

SourceCopy = Callable[[str, Path, str], None]
"""Makes a folder into a copy of a release's sources, with a text appended to its scheduler."""

RunTests = Callable[[Launch, dict[str, str]], dict[str, tuple[str, str]]]
"""Runs test files on a build by plain pytest; gives for each its outcome and the first line of its message."""


@pytest.fixture(scope="module", params=("0.33.0", "0.26.0"))
def prepared(request: pytest.FixtureRequest) -> Prepared:
    """The newest release, and the one with most of what was mended since."""
    return prepare_engine(f"vllm=={request.param}")


@pytest.fixture(scope="module")
def engine(prepared: Prepared) -> Iterator[VllmEngine]:
    """That release, in a process of its own."""
    opened = open_prepared(prepared)
    assert isinstance(opened, VllmEngine)
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def source_copy() -> SourceCopy:
    """A copy is links to the release's files, but for the folders down to the file that differs."""

    def make(release: str, folder: Path, appended: str) -> None:
        source = source_tree(f"vllm=={release}")
        parents = [source / parent for parent in CHANGED.parents if parent != Path()]
        for parent in parents:
            copied = folder / parent.relative_to(source)
            copied.mkdir(parents=True, exist_ok=True)
            for entry in parent.iterdir():
                if entry not in parents and entry != source / CHANGED and entry.name != "__pycache__":
                    (copied / entry.name).symlink_to(entry)
        (folder / CHANGED).write_text((source / CHANGED).read_text() + appended)

    return make


@pytest.fixture(scope="session")
def only_pytest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with pytest and what it needs, and nothing else of the environment that runs this."""
    folder = tmp_path_factory.mktemp("only-pytest")
    for name in ("pytest", "pluggy", "iniconfig", "packaging", "pygments"):
        distribution = importlib.metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or () if file.parts[0] != ".."}:
            if top != "__pycache__" and not (folder / top).exists():
                (folder / top).symlink_to(str(distribution.locate_file(top)))
    return folder


@pytest.fixture
def run_tests(tmp_path: Path, only_pytest: Path) -> RunTests:
    runs = iter(range(100))

    def run(launch: Launch, files: dict[str, str]) -> dict[str, tuple[str, str]]:
        folder = tmp_path / f"run-{next(runs)}"
        folder.mkdir()
        for name, text in files.items():
            (folder / f"test_{name}.py").write_text(text)
        report = folder / "report.xml"
        plain = ("-q", "-p", "no:cacheprovider", f"--rootdir={folder}", f"--basetemp={folder / 'tmp'}")
        done = subprocess.run(
            [str(launch.python), "-m", "pytest", *plain, f"--junit-xml={report}", str(folder)],
            check=False,
            capture_output=True,
            text=True,
            timeout=500,
            cwd=folder,
            env=clean_environment()
            | {
                "PYTHONPATH": os.pathsep.join((*launch.pythonpath, str(only_pytest))),
                "PYTHONNOUSERSITE": "1",
                "PYTHONDONTWRITEBYTECODE": "1",
                "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
                "HF_HUB_OFFLINE": "1",
                "OMP_NUM_THREADS": "1",
            },
        )
        assert report.exists(), done.stdout + done.stderr
        return outcomes(report)

    return run


def outcomes(report: Path) -> dict[str, tuple[str, str]]:
    """Of a JUnit report with one test a file: by the file's name what became of it, and why."""
    found = {}
    for case in xml.parse(report).iter("testcase"):
        name = case.attrib["classname"].rpartition(".")[2].removeprefix("test_")
        told = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
        message = "" if told is None else told.attrib.get("message", "").partition("\n")[0]
        found[name] = ("passed" if told is None else told.tag, message)
    return found
