"""A lifted function is the engine's own, decides what the reference decides, and any other shape is refused loudly."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from fuzz.engines.names import SUPPORTED_RELEASES
from fuzz.engines.sources import source_tree
from reference import lookup, retention, split
from reference.boundaries import boundary_list
from reference.geometry import Group, Kind, hashed_tokens, scheduler_block
from reference.lookup import LookupGroup, Present
from reference.policy import POLICIES
from spec.engine_lookup import EngineLookup
from spec.engine_masks import EngineBoundaries, EngineMask, check_pointwise
from spec.engine_split import EngineSplit
from spec.lift import ShapeChanged, SourceTree, Stub, lift, lift_assignment, stub_class

CASES = 3000


def tree(folder: Path, **modules: str) -> SourceTree:
    """An engine of a few modules, ``vllm.<name>`` each."""
    for name, source in {"__init__": "", **modules}.items():
        (folder / "vllm").mkdir(exist_ok=True)
        (folder / "vllm" / f"{name}.py").write_text(source)
    return SourceTree(folder)


def refusal(attempt: Callable[[], object]) -> str:
    with pytest.raises(ShapeChanged) as caught:
        attempt()
    return str(caught.value)


# --- what is lifted ----------------------------------------------------------------------------------


def test_helpers_and_constants_come_along_from_their_own_modules(tmp_path: Path) -> None:
    engine = tree(
        tmp_path,
        a="from vllm.b import twice as double\nSTEP = 3\ndef f(x: Unknown, y: int = STEP) -> Missing:\n"
        "    'Words.'\n    z: Other = double(x)  # more words\n    return z + y\n",
        b="from .c import FACTOR\nSTEP = 100\ndef twice(x): return x * FACTOR + 0 * STEP\n",
        c="BASE = 1\nFACTOR = BASE + 1\n",
    )
    lifted = lift(engine, "vllm.a", "f")
    assert lifted.function(5) == 13
    assert list(lifted.parts) == [
        "vllm.a.f",
        "vllm.a.STEP",
        "vllm.b.twice",
        "vllm.c.FACTOR",
        "vllm.c.BASE",
        "vllm.b.STEP",
    ]
    assert lifted.parts["vllm.a.f"] == "def f(x, y=STEP):\n    z = double(x)\n    return z + y"


def test_words_do_not_change_the_fingerprint_and_a_helper_does(tmp_path: Path) -> None:
    prints = set()
    for number, (words, helper) in enumerate([("'One.'", "x + 1"), ("'Two.'", "x + 1"), ("'Two.'", "x + 2")]):
        (tmp_path / str(number)).mkdir()
        source = f"def g(x): return {helper}\ndef f(x):\n    {words}\n    return g(x)\n"
        prints.add(lift(tree(tmp_path / str(number), a=source), "vllm.a", "f").fingerprint)
    assert len(prints) == 2


def test_stubs_come_before_the_module_and_the_module_before_rebound_builtins(tmp_path: Path) -> None:
    source = "def max(a, b): return 'module'\ndef f(a, b): return (max(a, b), min(a, b), abs(a))\n"
    engine = tree(tmp_path, a=source)
    rebind = {"max": lambda a, b: "rebound", "min": lambda a, b: "rebound"}
    assert lift(engine, "vllm.a", "f", rebind=rebind).function(-1, 2) == ("module", "rebound", 1)
    stubbed = lift(engine, "vllm.a", "f", rebind=rebind, stubs={"max": lambda a, b: "stub"})
    assert stubbed.function(-1, 2) == ("stub", "rebound", 1)


def test_functions_that_name_each_other_are_lifted(tmp_path: Path) -> None:
    source = "def even(n): return n == 0 or odd(n - 1)\ndef odd(n): return n != 0 and even(n - 1)\n"
    assert lift(tree(tmp_path, a=source), "vllm.a", "even").function(10)


def test_a_class_that_a_function_makes_is_lifted(tmp_path: Path) -> None:
    source = (
        "from typing import NamedTuple, overload\nclass Pair(NamedTuple):\n    left: int\n    right: Unknown = 7\n"
        "class View:\n    'Words.'\n    @overload\n    def get(self, a: int) -> int: ...\n"
        "    def get(self, a): return a\n"
        "def f(x): return Pair(x)._replace(left=View().get(9))\n"
    )
    assert lift(tree(tmp_path, a=source), "vllm.a", "f").function(1) == (9, 7)


METHODS = (
    "class Base:\n    FLAG: bool = False\n    @classmethod\n    def need(cls, w): return w\n"
    "    @classmethod\n    def f(cls, w): return (cls.FLAG, cls.need(w))\n"
)


def test_a_method_is_found_in_a_base_and_an_override_before_it(tmp_path: Path) -> None:
    sub = "from vllm.a import Base\nclass Sub(Base):\n    @classmethod\n    def need(cls, w): return w + 1\n"
    engine = tree(tmp_path, a=METHODS, b=sub)
    members = {name: lift(engine, "vllm.b", f"Sub.{name}") for name in ("f", "need", "FLAG")}
    assert [next(iter(one.parts)) for one in members.values()] == [
        "vllm.a.Base.f",
        "vllm.b.Sub.need",
        "vllm.a.Base.FLAG",
    ]
    manager = stub_class("Sub", {"need": members["need"].member, "FLAG": members["FLAG"].function()})
    assert members["f"].require("classmethod").call(manager, 4) == (False, 5)


def test_what_a_constructor_assigns_is_lifted_as_a_function(tmp_path: Path) -> None:
    source = (
        "LIMIT = 4\nclass A:\n    def __init__(self, config, size):\n        other = size\n"
        "        self.on: bool = self.size < LIMIT and all(x > 0 for x in config.sizes)\n        self.off = other\n"
        "        self.twice = 1\n        if size:\n            self.twice = 2\n            self.maybe = 3\n"
    )
    engine = tree(tmp_path, a=source)

    def lifted(target: str) -> Any:
        return lift_assignment(engine, "vllm.a", "A.__init__", target, parameters=("self", "config"))

    on = lifted("self.on")
    assert on.call(Stub("a", size=3), Stub("config", sizes=[1, 2])) is True
    assert on.call(Stub("a", size=4), Stub("config", sizes=[1, 2])) is False
    assert "from its local other" in refusal(lambda: lifted("self.off"))
    for target in ("self.twice", "self.maybe", "self.never"):
        assert f"does not assign {target} once" in refusal(lambda target=target: lifted(target))


# --- what is refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("def f(x): return helper(x)\n", "vllm.a uses helper"),
        ("from torch import add\ndef f(x): return add(x)\n", "add of torch, which is outside"),
        ("import torch\ndef f(x): return torch.add(x)\n", "vllm.a.torch is the module torch"),
        ("import vllm.b\ndef f(x): return vllm.b.g(x)\n", "vllm.a.vllm is the module vllm.b"),
        ("from vllm.b import g\ndef f(x): return g(x)\n", "no readable module vllm.b"),
        ("from vllm import g\ndef f(x): return g(x)\n", "imports g from vllm, which does not define it"),
        ("from vllm.c import *\ndef f(x): return g(x)\n", "may bind g by an import of everything"),
        ("@cache\ndef f(x): return x\n", "vllm.a.f has the decorator cache"),
        ("from vllm.c import final\n@final\ndef f(x): return x\n", "vllm.a.f has the decorator final"),
        ("@wrap(1)\ndef g(x): return x\ndef f(x): return g(x)\n", "vllm.a.g has the decorator wrap(1)"),
        ("LIMIT = read()\ndef f(x): return LIMIT\n", "vllm.a.LIMIT is no simple constant"),
        ("a, LIMIT = 1, 2\ndef f(x): return LIMIT\n", "vllm.a.LIMIT is no simple constant"),
        ("try:\n    import m\nexcept E:\n    m = 1\ndef f(x): return m\n", "binds m more than once, or under"),
        ("if X:\n    def min(a): return 0\ndef f(x): return min(x)\n", "binds min more than once, or under"),
        ("L = 1\nL += 1\ndef f(x): return L\n", "binds L more than once"),
        ("def f(x):\n    from vllm.c import g\n    return g(x)\n", "has the statement: from vllm.c import g"),
        ("def f(x):\n    global y\n    y = 1\n", "has the statement: global y"),
        ("def f(x): return eval('x')\n", "vllm.a uses eval"),
        ("def f(x): return super().f(x)\n", "vllm.a uses super"),
        ("def g(x): return x\n", "vllm.a has no f"),
        ("def f(x: return x\n", "no readable module vllm.a"),
        ("f = print\n", ""),
    ],
)  # fmt: skip
def test_an_unexpected_shape_is_named(tmp_path: Path, source: str, complaint: str) -> None:
    engine = tree(tmp_path, a=source, c="def g(x): return x\ndef final(f): return f\n")
    if complaint:
        assert complaint in refusal(lambda: lift(engine, "vllm.a", "f"))
    else:
        assert lift(engine, "vllm.a", "f").binding == "value"


def test_a_missing_method_module_or_class_is_named(tmp_path: Path) -> None:
    engine = tree(tmp_path, a=METHODS)
    assert "vllm.a.Base has no g" in refusal(lambda: lift(engine, "vllm.a", "Base.g"))
    assert "vllm.a has no Other" in refusal(lambda: lift(engine, "vllm.a", "Other.f"))
    assert "no readable module vllm.z" in refusal(lambda: lift(engine, "vllm.z", "f"))
    assert "is declared as a classmethod" in refusal(lambda: lift(engine, "vllm.a", "Base.f").require("function"))
    assert "called otherwise" in refusal(lambda: lift(engine, "vllm.a", "Base.f").call(None))


def test_a_stub_has_what_was_declared_and_swallows_nothing() -> None:
    stub = Stub("request", settable=("hit",), tokens=3)
    stub.hit = 4
    assert (stub.tokens, stub.hit) == (3, 4)
    assert "reads request.other" in refusal(lambda: getattr(stub, "other", 0))
    assert "reads request.other" in refusal(lambda: hasattr(stub, "other"))
    assert "sets request.tokens" in refusal(lambda: setattr(stub, "tokens", 4))
    assert "whether request is true" in refusal(lambda: bool(stub))
    assert "reads Manager.other" in refusal(lambda: getattr(stub_class("Manager", {}), "other", 0))


LOOP = "def f(mask, start_block, end_block, reachable_boundaries):\n    for i in range(start_block, end_block):\n"


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("        if i > 3:\n            mask[i - start_block] = True\n    return mask", ""),
        ("        mask[i] = True\n    for b in reachable_boundaries:\n        c = b + 1\n    return mask", ""),
        ("        mask[i + 1] = True", "has the statement: mask[i + 1] = True"),
        ("        mask[i] = False", "has the statement: mask[i] = False"),
        ("        start_block += 1", "has the statement: start_block += 1"),
        ("        if i:\n            break", "has the statement: break"),
        ("        if (start_block := i):\n            mask[i] = True", "assigns in a condition"),
        ("        if mask[i]:\n            mask[i] = True", "from its own entries"),
        ("        mask[i] = True\n    else:\n        pass", "a loop of another shape"),
        ("        mask[i] = True\n    for j in mask:\n        pass", "loops over mask"),
        ("        mask[i] = True\n    while end_block:\n        pass", "a loop of another kind"),
    ],
)  # fmt: skip
def test_a_mask_may_only_be_set_point_by_point(body: str, complaint: str) -> None:
    if complaint:
        assert complaint in refusal(lambda: check_pointwise(LOOP + body))
    else:
        check_pointwise(LOOP + body)


# --- the real releases -------------------------------------------------------------------------------

releases = pytest.mark.parametrize("release", SUPPORTED_RELEASES)


@cache
def sources(release: str) -> SourceTree:
    return SourceTree(source_tree(f"vllm=={release}", say=lambda line: None))


def split_case(rng: random.Random, supports: frozenset[str]) -> tuple[split.SplitSetting, tuple[int, ...]]:
    """A setting that the release can have, and the numbers of one chunk."""
    sizes = [(16, 16, 16), (16, 4, 16), (64, 16, 64), (16, 16, 64), (16, 4, 64), (4, 4, 8), (8, 1, 8)]
    grid, hash_block, whole = rng.choice(sizes)
    lookahead = rng.choice([0, 0, 1, 3]) if "lookahead" in supports else 0
    partial = hash_block < whole and rng.random() < 0.6
    setting = split.SplitSetting(
        grid=grid,
        hash_block=hash_block,
        scheduler_block=whole,
        room=rng.choice([1, grid - 1, grid, grid + 1, 3 * grid, 1000]),
        block_drop=lookahead == 0 and rng.random() < 0.5,
        partial_hits=partial,
        lookahead=lookahead,
        exact_junction=partial and "exact junction" in supports and rng.random() < 0.4,
        checkpoint_alignment=rng.choice([0, 0, hash_block, 1]) if "internal checkpoint" in supports else 0,
    )
    prompt = rng.randint(1, 5 * whole)
    known = prompt + rng.choice([0, 0, 1, 2, rng.randint(0, 3 * grid)])
    start = rng.randint(0, known - 1)
    start -= start % hash_block if rng.random() < 0.4 else 0
    asked = rng.choice([known - start, rng.randint(1, known - start)])
    return setting, (start, asked, prompt, known, rng.choice([0, rng.randint(0, known - 1)]))


@pytest.mark.engines
@releases
def test_the_split_is_the_references(release: str) -> None:
    engine = EngineSplit(sources(release))
    rng = random.Random(release)
    for _ in range(CASES):
        setting, numbers = split_case(rng, engine.supports)
        assert engine(setting, *numbers) == split.split(POLICIES[release], setting, *numbers), (setting, numbers)


@pytest.mark.engines
@releases
def test_a_threshold_is_a_smaller_room(release: str) -> None:
    engine = EngineSplit(sources(release))
    rng = random.Random(release)
    for _ in range(CASES // 3):
        setting, numbers = split_case(rng, engine.supports)
        plain = engine(setting, *numbers)
        assert engine(setting, *numbers, threshold=setting.room, budget=setting.room + rng.randint(0, 99)) == plain
        assert engine(setting, *numbers, threshold=0, budget=setting.room) == plain


@pytest.mark.engines
@releases
def test_another_releases_split_is_told_apart(release: str) -> None:
    """The control: each release differs from the one that changed the split next, or the inputs are too tame."""
    engine = EngineSplit(sources(release))
    other = POLICIES["0.26.0" if release != "0.26.0" else "0.27.1"]
    rng = random.Random(release)
    cases = [split_case(rng, engine.supports) for _ in range(CASES)]
    assert any(engine(setting, *numbers) != split.split(other, setting, *numbers) for setting, numbers in cases)


class Symbol:
    """An integer that can only be computed with and compared: it stands for a symbolic one."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, value: Any) -> None:
        self.value = value.value if isinstance(value, Symbol) else value

    def __index__(self) -> int:
        raise AssertionError("a symbolic integer was used as a plain one")

    __int__ = __index__

    def __bool__(self) -> bool:
        return bool(self.value)

    def __neg__(self) -> Symbol:
        return Symbol(-self.value)


def _operation(name: str) -> Callable[[Symbol, Any], Symbol]:
    return lambda self, other: Symbol(getattr(self.value, name)(Symbol(other).value))


_ARITHMETIC = ("add", "radd", "sub", "rsub", "mul", "rmul", "floordiv", "rfloordiv", "mod", "rmod")
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
for _name in (*_ARITHMETIC, *_COMPARISONS):
    setattr(Symbol, f"__{_name}__", _operation(f"__{_name}__"))


@pytest.mark.engines
@releases
def test_the_split_runs_on_integers_that_are_no_int(release: str) -> None:
    engine = EngineSplit(sources(release))
    rng = random.Random(release)
    for _ in range(CASES // 10):
        setting, numbers = split_case(rng, engine.supports)
        symbolic = split.SplitSetting(**{name: Symbol(value) for name, value in vars(setting).items()})
        granted = engine(symbolic, *(Symbol(number) for number in numbers))
        assert Symbol(granted).value == engine(setting, *numbers)


@pytest.mark.engines
@releases
@pytest.mark.parametrize("kind", ["mamba", "swa"])
def test_the_mask_is_the_references(release: str, kind: Any) -> None:
    engine = EngineMask(sources(release), kind)
    rng = random.Random(release)
    for _ in range(CASES):
        block = rng.choice([1, 2, 4, 16, 48])
        # Releases before 0.30 assert that a window's block divides the alignment.
        whole = kind == "swa" and release < "0.30"
        alignment = block * rng.randint(1, 4) if whole or rng.random() < 0.8 else rng.choice([1, 2, 3, block + 1])
        group = Group(kind, block, rng.randint(1, 6 * block) if kind == "swa" else 0, rng.random() < 0.5)
        interval = rng.choice([None, 0, alignment, 2 * alignment, 3 * alignment])
        start = rng.randint(0, 12)
        end = start + rng.randint(0, 14)
        boundaries = [rng.randint(0, 30 * block) for _ in range(rng.randint(0, 3))]
        found = engine(group, start, end, alignment, interval, boundaries)
        expected = retention.mask(group, start, end, alignment, interval, boundaries)
        assert ([True] * (end - start) if found is None else found) == expected


@pytest.mark.engines
@releases
def test_the_boundary_list_is_the_references(release: str) -> None:
    engine = EngineBoundaries(sources(release))
    rng = random.Random(release)
    for _ in range(CASES):
        block = rng.choice([1, 4, 16])
        whole = block * rng.randint(1, 3)
        drops = rng.random() < 0.5
        kind: Kind = rng.choice(["mamba", "swa"])
        group = Group(kind, block, 5 if kind == "swa" else 0, drops and rng.random() < 0.5)
        prompt = rng.randint(1, 6 * whole)
        junction = rng.choice([0, rng.randint(1, 7 * whole)])
        expected = boundary_list(POLICIES[release], group, prompt, junction, whole, drops)
        assert engine(group, prompt, junction, whole, drops) == expected


def random_present(rng: random.Random, unit: int, limit: int) -> Present:
    share = rng.choice([0.2, 0.5, 0.8, 0.95])
    held = {tokens for tokens in range(unit, limit + 1, unit) if rng.random() < share}
    return held.__contains__


@pytest.mark.engines
@releases
def test_the_hit_of_one_group_is_the_references(release: str) -> None:
    engine: Any = EngineLookup(sources(release))
    reference: Any = lookup
    rng = random.Random(release)
    for _ in range(CASES):
        unit = rng.choice([1, 2, 4])
        block = unit * rng.randint(1, 4)
        limit = rng.randint(0, 8 * block)
        present = random_present(rng, 1, limit + block)
        alignment = rng.choice([unit, block, 2 * block, 3 * block])
        whole = block * rng.randint(1, 3)
        drop = rng.random() < 0.5
        group = Group("swa", block, rng.randint(2, 4 * block))
        for name, arguments in (
            ("full_hit", (present, limit, block, alignment, drop)),
            ("window_hit", (present, limit, group, whole, drop)),
            ("mamba_hit", (present, limit, block, alignment)),
        ):
            assert getattr(engine, name)(*arguments) == getattr(reference, name)(*arguments), (name, arguments)


def random_groups(rng: random.Random, unit: int, *, partial: bool, narrow_windows: bool) -> list[Group]:
    """Groups of at least two specs; before 0.30 partial hits need windows of one hash unit a block."""
    drops = rng.choice([0.0, 0.5, 1.0])
    while True:
        groups = []
        for _ in range(rng.randint(2, 4)):
            kind: Kind = rng.choice(["full", "full", "swa", "mamba"])
            block = unit * (1 if kind == "swa" and partial and narrow_windows else rng.choice([1, 2, 4]))
            window = rng.choice([block, block + 1, 2 * block + 1]) if kind == "swa" else 0
            groups.append(Group(kind, block, window, rng.random() < drops))
        if len({group.spec for group in groups}) > 1:
            return groups


@pytest.mark.engines
@releases
def test_what_all_groups_agree_on_is_the_references(release: str) -> None:
    engine = EngineLookup(sources(release))
    policy = POLICIES[release]
    rng = random.Random(release)
    for _ in range(CASES):
        unit = rng.choice([1, 2, 4])
        partial = rng.random() < 0.5
        groups = random_groups(rng, unit, partial=partial, narrow_windows=release < "0.30")
        alignment = unit if partial else scheduler_block(group.block for group in groups)
        known = rng.randint(1, 40)
        lookahead = 1 if policy.lookahead_hashes and not any(group.drops for group in groups) else 0
        hashed = hashed_tokens(known, unit, lookahead)
        items = [LookupGroup(group, random_present(rng, unit, hashed)) for group in groups]
        expected = lookup.hybrid_hit(policy, items, known, hashed, alignment, unit)
        assert engine.hybrid_hit(items, known, hashed, alignment, unit, partial) == expected, groups


@pytest.mark.engines
@releases
def test_each_adaptor_says_what_it_is_made_of_and_what_it_takes_for_granted(release: str) -> None:
    engine = sources(release)
    adaptors = [EngineSplit(engine), EngineMask(engine, "swa"), EngineBoundaries(engine), EngineLookup(engine)]
    assert len({adaptor.lifted.fingerprint for adaptor in adaptors}) == len(adaptors)
    assert all(adaptor.premises and adaptor.lifted.parts for adaptor in adaptors)
