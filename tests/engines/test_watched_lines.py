"""The driver notes which lines run, and changes nothing else about a module."""

from __future__ import annotations

import ast
import importlib.util
import json
import linecache
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest

from fuzz.engines import driver

TEXT = '''\
"""A module."""
from __future__ import annotations
import enum

class Kind(enum.Enum):
    """A class."""
    ONE = 1
    TWO = 2

    @property
    def twice(self) -> int:
        return 2 * self.value

def choose(x):
    """A function."""
    global CHOSEN
    if x == 1:
        CHOSEN = (
            "one",
            x,
        )
    elif x == 2:
        CHOSEN = "two"
    else:
        CHOSEN = "more"
    return CHOSEN

def loop(n):
    found = []
    for i in range(n):
        if i % 2: continue
        found.append(i)
    else:
        found.append("end")
    while found and found[0] == 0:
        found.pop(0)
    return found

def guarded(x):
    try:
        return 1 // x
    except ZeroDivisionError as error:
        return str(error)
    except (
        TypeError,
        ValueError,
    ):
        return "type"
    finally:
        choose(1)

def matched(x):
    match x:
        case [1, *rest]:
            return rest
        case int() if x > 5:
            return "large"
        case _:
            return "other"

def inner():
    with open(__file__) as file, \\
            open(__file__):
        def read():
            return file.read(
                3
            )
        yield read()
        assert True
        yield (
            3
        )
'''
LINES = TEXT.splitlines()


def number(start: str, skip: int = 0) -> int:
    """The line that begins like this."""
    return [place for place, line in enumerate(LINES, 1) if line.strip().startswith(start)][skip]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package called vllm that holds the text as v1/some.py; nothing of it stays in this process."""
    folder = tmp_path / "vllm" / "v1"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    (folder / "__init__.py").touch()
    (folder / "some.py").write_text(TEXT)
    monkeypatch.syspath_prepend(str(tmp_path))
    modules, finders = dict(sys.modules), list(sys.meta_path)
    yield folder
    sys.modules.clear()
    sys.modules.update(modules)
    sys.meta_path[:] = finders
    linecache.clearcache()


def load(
    package: Path, *, watch: list[int] | None = None, patch: str | None = None
) -> tuple[ModuleType, driver.Sources]:
    """The module as the driver loads it, with what it was told to do."""
    orders = {
        "patches": {} if patch is None else {"v1/some.py": patch},
        "watch": {} if watch is None else {"v1/some.py": watch},
    }
    file = package / "sources.json"
    file.write_text(json.dumps(orders))
    sources = driver.use_sources(str(file))
    return importlib.import_module("vllm.v1.some"), sources


def lines(sources: driver.Sources) -> set[int]:
    return {line for _, numbers in sources.taken() for line in numbers}


def results(module: ModuleType) -> list[Any]:
    """What all of the module's functions give."""
    given = [module.choose(1), module.choose(2), module.choose(3), module.loop(6), module.guarded(2), module.guarded(0)]
    given += [module.guarded("x"), module.matched([1, 2]), module.matched(7), module.matched(3), [*module.inner()]]
    return [*given, [kind.twice for kind in module.Kind], list(module.Kind.__members__), module.__doc__,
            module.choose.__doc__, module.Kind.__doc__]  # fmt: skip


ALL = range(1, len(LINES) + 1)
CALLS: tuple[tuple[str, list[str]], ...] = (
    ("choose(1)", ["global CHOSEN", "if x == 1", "CHOSEN = (", '"one",', "x,", ")", "return CHOSEN"]),
    ("choose(2)", ["global CHOSEN", "if x == 1", "elif x == 2", 'CHOSEN = "two"', "return CHOSEN"]),
    ("choose(3)", ["global CHOSEN", "if x == 1", "elif x == 2", 'CHOSEN = "more"', "return CHOSEN"]),
    ("loop(0)", ["found = []", "for i in", 'found.append("end")', "while found", "return found"]),
    (
        "loop(1)",
        ["found = []", "for i in", "if i % 2", "found.append(i)", 'found.append("end")', "while found", "found.pop(0)",
         "return found"],
    ),
    ("matched([1])", ["match x", "case [1", "return rest"]),
    ("matched(7)", ["match x", "case int()", 'return "large"']),
    ("matched(3)", ["match x", "case int()", "case _", 'return "other"']),
)  # fmt: skip


@pytest.mark.parametrize(("call", "starts"), CALLS, ids=[call for call, _ in CALLS])
def test_exactly_the_lines_that_run_are_noted(package: Path, call: str, starts: list[str]) -> None:
    module, sources = load(package, watch=[*ALL])
    sources.taken()
    eval(call, vars(module))
    assert lines(sources) == {number(start) for start in starts}
    assert lines(sources) == set()


def test_an_exception_is_noted_where_it_is_caught(package: Path) -> None:
    module, sources = load(package, watch=[*range(number("def guarded"), number("def matched"))])
    sources.taken()
    assert module.guarded("x") == "type"
    handler = range(number("except ("), number("):") + 1)
    assert lines(sources) == {
        number("try:"),
        number("return 1 //"),
        *handler,
        number('return "type"'),
        number("choose(1)"),
    }


def test_statements_of_several_lines_count_by_any_of_them(package: Path) -> None:
    module, sources = load(package, watch=[number('"one",'), number("open(__file__)"), number("3", 0)])
    sources.taken()
    module.choose(1)
    assert lines(sources) == {number('"one",')}
    [*module.inner()]
    assert lines(sources) == {number("open(__file__)"), number("3", 0)}


def test_definitions_and_what_is_in_no_function_run_at_import(package: Path) -> None:
    _, sources = load(package, watch=[*ALL])
    starts = ["import enum", "class Kind", "ONE", "TWO", "@property", "def twice", "def choose", "def loop"]
    starts += ["def guarded", "def matched", "def inner"]
    assert lines(sources) == {number(start) for start in starts}


def test_a_watched_module_does_what_it_did(package: Path) -> None:
    watched, sources = load(package, watch=[*ALL])
    spec = importlib.util.spec_from_file_location("plain", package / "some.py")
    assert spec is not None
    assert spec.loader is not None
    plain = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plain)
    assert results(watched) == results(plain)
    assert len(lines(sources)) > 50


def test_what_is_not_watched_is_compiled_as_ever(package: Path) -> None:
    """Only the watched statement gets a call; another module has not even the name."""
    module, sources = load(package, watch=[number("return CHOSEN")])
    for function, is_watched in ((module.choose, True), (module.loop, False)):
        code: CodeType = function.__code__
        assert (driver.HIT in code.co_names) == is_watched
    assert sources.find_spec("vllm.v1.other") is None
    assert not hasattr(sys.modules["vllm.v1"], driver.HIT)


def test_a_patch_is_loaded_and_leaves_no_compiled_file(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    patch = TEXT.replace('"two"', '"patched"')
    module, sources = load(package, patch=patch)
    assert module.choose(2) == "patched"
    assert sources.patched == ["v1/some.py"]
    assert list(package.glob("__pycache__/some.*")) == []
    assert list(package.glob("__pycache__/__init__.*"))  # as every other module does
    assert linecache.getline(str(package / "some.py"), number('CHOSEN = "two"')) == '        CHOSEN = "patched"\n'


def test_a_patch_can_be_watched_too(package: Path) -> None:
    patch = TEXT.replace('"two"', '"patched"')
    module, sources = load(package, patch=patch, watch=[number('CHOSEN = "two"')])
    sources.taken()
    module.choose(1)
    assert lines(sources) == set()
    module.choose(2)
    assert lines(sources) == {number('CHOSEN = "two"')}


def test_a_patch_of_a_module_that_is_not_there_is_not_loaded(package: Path) -> None:
    (package / "some.py").rename(package / "other.py")
    with pytest.raises(ModuleNotFoundError):
        load(package, patch="x = 1\n")


def test_no_compiled_file_is_read_for_a_patch(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    plain = importlib.import_module("vllm.v1.some")
    assert plain.choose(2) == "two"
    assert list(package.glob("__pycache__/some.*"))
    del sys.modules["vllm.v1.some"]
    module, _ = load(package, patch=TEXT.replace('"two"', '"TWO"'))
    assert module.choose(2) == "TWO"


def test_every_statement_of_a_function_can_be_noted() -> None:
    """Whatever Python reports as run lies in a range that the driver offers."""
    offered: set[int] = set()

    def claim(first: int, last: int) -> None:
        offered.update(range(first, last + 1))

    driver.noting(ast.parse(TEXT).body, claim)
    run: set[int] = set()

    def trace(frame: Any, event: str, _: Any) -> Any:
        if frame.f_code.co_filename == "traced":
            if event == "line":
                run.add(frame.f_lineno)
            return trace
        return None

    module = ModuleType("traced")
    module.__file__ = __file__
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        exec(compile(TEXT, "traced", "exec"), vars(module))
        results(module)
    finally:
        sys.settrace(before)
    docstrings = {number(start) for start in ('"""A module', '"""A class', '"""A function', "from __future__")}
    assert run - offered <= docstrings
    assert len(run) > 40


@pytest.mark.parametrize(
    ("file", "name"),
    [("v1/core/sched/scheduler.py", "vllm.v1.core.sched.scheduler"), ("v1/core/__init__.py", "vllm.v1.core"),
     ("__init__.py", "vllm")],
)  # fmt: skip
def test_a_file_has_its_module(file: str, name: str) -> None:
    assert driver.module_name(file) == name
