"""Mutants of an engine change one place of one deciding function, and are drawn the same by the same seed."""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from fuzz.engines.sources import source_tree
from fuzz.gate.mutants import FUNCTIONS, Mutant, around_the_split, draw, is_different, mutants, mutants_of, whole_body
from fuzz.gate.source_file import Edit, SourceError, SourceFile

LADDER = {"split": 25, "masks": 10, "lookup": 10, "commit": 10, "schedule": 5}


def variants(body: str, result: str = "None") -> set[str]:
    """The bodies of the mutants of a function with this body."""
    head = f"def f(a, b, c, request) -> {result}:\n"
    indented = "".join(f"    {line}\n" for line in body.splitlines())
    source = SourceFile("some.py", head + indented)
    found = list(mutants_of(source, "group", "some.py", "f", whole_body))
    for mutant in found:
        assert mutant.text.startswith(head)
        assert mutant.text.count("\n") == source.text.count("\n")
    lines = [mutant.text.removeprefix(head).splitlines() for mutant in found]
    return {"\n".join(line.removeprefix("    ") for line in mutant) for mutant in lines}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return a < b", {"return a <= b"}),
        ("return a >= (b)", {"return a > (b)"}),
        ("return a == b", {"return a != b"}),
        ("return (a  # a < b\n    <= b)", {"return (a  # a < b\n    < b)"}),
        ("return a < b <= c", {"return a <= b <= c", "return a < b < c"}),
        ("return a is b", set()),
        ("return a + b - c", {"return a - b - c", "return a + b + c"}),
        ("return a // b * c", {"return a * b * c"}),
        ("return a[0]", {"return a[1]"}),
        ("return a[1]", {"return a[0]", "return a[2]"}),
        ("return True", set()),
        ("return a and b and c", {"return a or b or c"}),
        ("return a and (b or c)", {"return a or (b or c)", "return a and (b and c)"}),
        ("return min(a, b)", {"return max(a, b)"}),
        ("return a if b else c", {"return a if not (b) else c"}),
        ("if a:\n    return b", {"if not (a):\n    return b"}),
        ("if a == b:\n    return c", {"if a != b:\n    return c"}),
        ("while a:\n    break", {"while not (a):\n    break"}),
        ("if x := a:\n    return x", {"if not (x := a):\n    return x"}),
        ("a = b", {"pass"}),
        ("a: int = b", {"pass"}),
        ("a: int", set()),
        ("a += b", {"a -= b", "pass"}),
        ("a(\n    b,\n)", {"pass\n\n"}),
        ("for a in b:\n    continue", {"for a in b:\n    pass"}),
        ("x: tuple[1] = b", {"pass"}),
        ("assert a < 1, a - 1", set()),
        ("raise ValueError(a - 1)", set()),
        ("logger.info(a - 1)", set()),
        ('return f"{a - 1}"', set()),
    ],
)
def test_each_place_gives_its_variants(body: str, expected: set[str]) -> None:
    assert variants(body) == expected


def test_a_number_that_is_returned_is_one_off() -> None:
    assert variants("return a", "int") == {"return (a) + 1", "return (a) - 1"}
    assert variants("return a", "tuple[int]") == set()
    assert variants("return", "int") == set()


def test_only_the_code_before_and_of_the_split_is_taken_from_schedule() -> None:
    text = (
        "def schedule(self):\n    limit = 1\n    while self.running:\n        place = 2\n        num_new_tokens = 3\n"
        "        limit = 4\n        if self.need_mamba_block_aligned_split:\n            limit = 5\n        limit = 6\n"
    )
    (function,) = SourceFile("some.py", text).functions["schedule"]
    assert [ast.unparse(one) for one in around_the_split(function)][:2] == ["num_new_tokens = 3", "limit = 4"]
    assert len(around_the_split(function)) == 3


def test_a_function_that_is_not_there_is_told() -> None:
    with pytest.raises(SourceError, match=r"^some\.py has no g that could be changed$"):
        list(mutants_of(SourceFile("some.py", "def f(): pass\n"), "group", "some.py", "g", whole_body))


def some_mutants() -> list[Mutant]:
    text = "def f(a):\n    a = 1\n    a = 2\n    a = 3\n    return a\n"
    return list(mutants_of(SourceFile("some.py", text), "group", "some.py", "f", whole_body))


def test_only_mutants_that_are_none_are_drawn_again() -> None:
    """A change that does not compile, and one of the layout, are no mutants; all others are, even if equivalent."""
    real = some_mutants()
    assert all(is_different(mutant) for mutant in real)
    broken = replace(real[0], edit=Edit(0, 3, b"dfe"), what="broken")
    layout = replace(real[0], edit=Edit(14, 19, b"a = (1)"), what="layout")
    assert not is_different(broken)
    assert not is_different(layout)
    chosen, redrawn = draw([broken, layout, *real], {"group": len(real)}, 7)
    assert {mutant.name for mutant in chosen} == {mutant.name for mutant in real}
    assert redrawn <= 2
    with pytest.raises(ValueError, match="there are not"):
        draw([broken, layout, *real], {"group": len(real) + 1}, 7)
    assert max(draw([broken, layout, *real], {"group": 3}, seed)[1] for seed in range(20)) > 0


@pytest.fixture(scope="module")
def found() -> list[Mutant]:
    return mutants(source_tree("vllm==0.33.0"))


@pytest.mark.engines
def test_every_function_has_mutants_enough_for_the_ladder(found: list[Mutant]) -> None:
    assert {(mutant.group, mutant.file, mutant.qualname) for mutant in found} == {row[:3] for row in FUNCTIONS}
    per_group = Counter(mutant.group for mutant in found)
    assert all(per_group[group] > number for group, number in LADDER.items())


@pytest.mark.engines
def test_their_order_and_names_are_fixed(found: list[Mutant]) -> None:
    again = mutants(source_tree("vllm==0.33.0"))
    assert [mutant.name for mutant in again] == [mutant.name for mutant in found]
    assert len({mutant.name for mutant in found}) == len(found)


@pytest.mark.engines
def test_one_place_of_the_file_is_changed_and_lines_stay(found: list[Mutant]) -> None:
    for mutant in found[::5]:
        before, after = mutant.source.text.splitlines(), mutant.text.splitlines()
        assert len(before) == len(after)
        differing = [line for line, pair in enumerate(zip(before, after, strict=True), 1) if pair[0] != pair[1]]
        assert differing
        assert differing[0] >= mutant.line
        (function,) = mutant.source.functions[mutant.qualname]
        assert function.lineno < mutant.line
        assert differing[-1] <= (function.end_lineno or 0)


@pytest.mark.engines
def test_a_seed_draws_the_same(found: list[Mutant]) -> None:
    chosen, redrawn = draw(found, LADDER, 1)
    assert Counter(mutant.group for mutant in chosen) == LADDER
    assert redrawn == 0
    assert [mutant.name for mutant in draw(found, LADDER, 1)[0]] == [mutant.name for mutant in chosen]
    assert [mutant.name for mutant in draw(found, LADDER, 2)[0]] != [mutant.name for mutant in chosen]


@pytest.mark.engines
def test_an_older_release_lacks_functions() -> None:
    with pytest.raises(SourceError, match=r"has no .* that could be changed"):
        mutants(source_tree("vllm==0.26.0"))


def test_a_tree_without_the_files_is_told(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="cannot be read: No such file"):
        mutants(tmp_path)
