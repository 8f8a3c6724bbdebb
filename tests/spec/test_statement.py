"""A changed statement counts as proved only where it makes no difference for any integers, and changes nothing else."""

from __future__ import annotations

import ast
import textwrap

import pytest

from spec.statement import Alike, alike

CAP = """
    if 0 < cap < n:
        n = cap
"""
LOOP = """
    if after > before:
        blocks = self.table[request.key]
        for place in range(before, after):
            self.seen.add(blocks[place])
"""
CAP_SAME = "for all integers cap, n"


def function(body: str) -> ast.FunctionDef:
    made = ast.parse("def f(self, request, cap, n, before, after):" + textwrap.indent(textwrap.dedent(body), "    "))
    assert isinstance(made.body[0], ast.FunctionDef)
    return made.body[0]


def judged(body: str, old: str, new: str) -> Alike:
    """What is proved of a function once ``old`` is replaced by ``new``."""
    assert body.count(old) == 1
    return alike(function(body), function(body.replace(old, new)))


@pytest.mark.parametrize(
    ("body", "old", "new"),
    [
        (CAP, "cap < n", "cap <= n"),
        (CAP, "0 < cap < n", "not (cap <= 0 or n <= cap)"),
        (CAP, "0 < cap < n", "n > cap >= 1"),
        ("\n    n = cap + before\n", "cap + before", "before + cap"),
        ("\n    n += cap\n", "n += cap", "n = cap + n"),
        ("\n    n = cap if cap < n else n\n", "cap < n", "cap <= n"),
        ("\n    n = -cap if not (cap and n) else cap * n\n", "cap and n", "cap != 0 and n != 0"),
    ],
)
def test_what_gives_the_same_integers_is_proved(body: str, old: str, new: str) -> None:
    found = judged(body, old, new)
    assert found.whole
    assert found.lines == {2}
    assert found.words.startswith("for all integers ")


@pytest.mark.parametrize(
    ("body", "old", "new"),
    [
        (CAP, "0 < cap", "0 <= cap"),
        (CAP.replace("n = cap", "n = cap + 1"), "cap < n", "cap <= n"),
        (CAP, "n = cap", "n = cap - 1"),
        (CAP, "n = cap", "before = cap"),
        (CAP, "0 < cap < n", "0 < cap"),
        ("\n    n = cap < before\n", "cap < before", "1 if cap < before else 0"),
        ("\n    n = cap * before\n", "cap * before", "cap + before"),
        # What cannot be told is no proof. A truth is a number, too, and is not followed where it is used as one.
        ("\n    n = 1 if cap == (n < before) else 2\n", "n < before", "before < n"),
        ("\n    n = cap + (n < before)\n", "n < before", "n <= before"),
        ("\n    if cap < cap:\n        n = 1\n", "n = 1", "before = 1"),
        ("\n    n = cap // before\n", "cap // before", "1 * (cap // before)"),
        ("\n    n = min(cap, n)\n", "cap, n", "n, cap"),
        ("\n    n = 1\n", "1", "True"),
        ("\n    self.n = cap + n\n", "cap + n", "n + cap"),
        ("\n    before, n = cap, n\n", "before, n = cap, n", "before, n = cap, n + 0"),
    ],
)
def test_what_gives_other_integers_or_is_not_understood_is_not(body: str, old: str, new: str) -> None:
    assert judged(body, old, new) == Alike()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("after > before", "after >= before"),
        ("after > before", "after != before"),
        ("after > before", "1"),
        ("after > before", "before < after"),
    ],
)
def test_a_body_that_does_nothing_where_the_tests_differ_is_proved(old: str, new: str) -> None:
    found = judged(LOOP, old, new)
    assert found.whole
    assert found.lines == {2}
    assert "taken for granted: they are there, and reading changes nothing" in found.words
    assert found.words.startswith("for all integers after, before:")


@pytest.mark.parametrize(
    ("body", "old", "new"),
    [
        (LOOP.replace("before, after", "before, after + 1"), "after > before", "after >= before"),
        (LOOP, "after > before", "after > before + 1"),
        (LOOP, "after > before", "not after > before"),
        (LOOP + "    return blocks\n", "after > before", "after >= before"),
        (LOOP + "    return lambda: blocks\n", "after > before", "after >= before"),
        (LOOP + "    del blocks\n", "after > before", "after >= before"),
        (LOOP + "    return locals()\n", "after > before", "after >= before"),
        (LOOP + "    else:\n        n = 1\n", "after > before", "after >= before"),
        (LOOP.replace("blocks = ", "blocks = self.made()\n        n = "), "after > before", "after >= before"),
        (LOOP.replace("blocks = ", "self.n = "), "after > before", "after >= before"),
        (LOOP.replace("range(before, after)", "range(before, after, 2)"), "after > before", "after >= before"),
        (LOOP.replace("range(before, after)", "self.places"), "after > before", "after >= before"),
        (LOOP.replace("range(before, after)", "range(before, blocks)"), "after > before", "after >= before"),
        (LOOP + "    range = 1\n", "after > before", "after >= before"),
        (LOOP, "after > before", "self.after >= before"),
        # Run once more, the body would hand on another table.
        (LOOP.replace("blocks = ", "last = old\n        old = "), "after > before", "after >= before"),
        (LOOP, "self.seen.add(blocks[place])", "self.seen.add(place)"),
    ],
)
def test_a_body_that_may_do_something_there_is_not(body: str, old: str, new: str) -> None:
    assert judged(body, old, new) == Alike()


def test_each_statement_counts_by_itself() -> None:
    before = function(CAP + LOOP)
    both = function(CAP.replace("cap < n", "cap <= n") + LOOP.replace("after > before", "after >= before"))
    assert (alike(before, both).whole, alike(before, both).lines) == (True, {2, 5})
    one = function(CAP.replace("cap < n", "cap <= n") + LOOP.replace("(before, after)", "(before, after - 1)"))
    assert alike(before, one) == Alike(frozenset({2}), False, CAP_SAME)
    longer = function(CAP.replace("cap < n", "cap <= n") + "    n = 1\n")
    assert alike(function(CAP), longer) == Alike()


def test_what_is_declared_otherwise_is_not_the_same() -> None:
    assert not alike(function(CAP), ast.parse("def f(n, cap):\n    n = 1").body[0]).whole  # type: ignore[arg-type]
