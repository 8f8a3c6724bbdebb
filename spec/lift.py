"""Lifting: one function of an engine, cut out of its sources and compiled alone, without importing the engine."""

from __future__ import annotations

import ast
import builtins
import copy
import hashlib
import importlib
import inspect
import symtable
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

ENGINE_PACKAGE = "vllm"

_PLAIN_MODULES = frozenset({"collections", "collections.abc", "itertools", "math", "typing"})
"""Modules outside the engine that a lifted function may use: they neither read nor change anything."""

_DECORATORS = frozenset({"abstractmethod", "classmethod", "final", "override", "property", "staticmethod"})
_DECORATOR_MODULES = frozenset({"abc", "typing", "typing_extensions"})

_REFUSED_BUILTINS = frozenset(
    ("__import__", "compile", "delattr", "eval", "exec", "globals", "locals", "open", "setattr", "super", "vars")
)
"""Builtins that reach around what a stub declares, or need the class that the function was cut out of."""

_CONSTANT_NODES = (
    ast.Constant, ast.Name, ast.Tuple, ast.List, ast.Set, ast.Dict, ast.UnaryOp, ast.BinOp, ast.BoolOp, ast.Compare,
    ast.IfExp, ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop,
)  # fmt: skip

Definition = ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign


class ShapeChanged(Exception):
    """The engine's sources are not of the shape that was expected; the message names what is unexpected.

    No AttributeError, so that ``getattr`` with a default and ``hasattr`` cannot swallow it.
    """


# --- stand-ins ---------------------------------------------------------------------------------------


class StubType(type):
    """The type of stub classes: to read what the class does not declare is a ShapeChanged."""

    def __getattr__(cls, name: str) -> NoReturn:
        raise ShapeChanged(f"the engine reads {cls.__name__}.{name}, which nothing was declared for")


class Stub(metaclass=StubType):
    """Stands in for an object of the engine's: it has the declared attributes, and nothing else.

    Reading anything else, its truth, or setting what is not in ``settable`` is a ShapeChanged.
    """

    def __init__(self, label: str, /, *, settable: Collection[str] = (), **attributes: object) -> None:
        vars(self).update(attributes, _label=label, _settable=frozenset(settable))

    def __getattr__(self, name: str) -> NoReturn:
        raise ShapeChanged(f"the engine reads {vars(self)['_label']}.{name}, which nothing was declared for")

    def __setattr__(self, name: str, value: object) -> None:
        if name not in vars(self)["_settable"]:
            raise ShapeChanged(f"the engine sets {vars(self)['_label']}.{name}")
        vars(self)[name] = value

    def __bool__(self) -> bool:
        raise ShapeChanged(f"the engine asks whether {vars(self)['_label']} is true")

    def __repr__(self) -> str:
        return f"<stub {vars(self)['_label']}>"


def stub_class(name: str, members: Mapping[str, object]) -> Any:
    """A class of stubs that also has ``members``, such as lifted methods."""
    return StubType(name, (Stub,), dict(members))


# --- what was lifted ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lifted:
    """A function that can be called, and all the source that it consists of.

    ``parts``: by dotted name the source of the function and of every helper and constant that it reaches,
    without comments, docstrings and annotations. ``binding``: what the source declares it as: "function",
    "classmethod", "staticmethod", "property", or "value" for a constant, which the function gives.
    """

    function: Callable[..., Any]
    parts: dict[str, str]
    binding: str = "function"

    @property
    def fingerprint(self) -> str:
        """Equal for equal source, under one version of Python (another may print the same source otherwise)."""
        return fingerprint(self.parts)

    @property
    def member(self) -> object:
        """The function as a member of a class, bound the way its source declares it."""
        wrap = {"classmethod": classmethod, "staticmethod": staticmethod, "property": property}.get(self.binding)
        return self.function if wrap is None else wrap(self.function)

    def require(self, binding: str) -> Lifted:
        """Itself, if its source declares it as ``binding``."""
        if self.binding != binding:
            raise ShapeChanged(f"{next(iter(self.parts))} is declared as a {self.binding}, not as a {binding}")
        return self

    @cached_property
    def _signature(self) -> inspect.Signature:
        return inspect.signature(self.function)

    def call(self, *arguments: object, **named: object) -> Any:
        """Call the function; arguments that it does not take, or lacks, are a ShapeChanged."""
        try:
            self._signature.bind(*arguments, **named)
        except TypeError as error:
            raise ShapeChanged(f"{next(iter(self.parts))} is called otherwise than expected: {error}") from None
        return self.function(*arguments, **named)


def fingerprint(parts: Mapping[str, str]) -> str:
    """The SHA-256 of named pieces of source, whatever their order."""
    text = "\n".join(f"# {name}\n{source}" for name, source in sorted(parts.items()))
    return hashlib.sha256(text.encode()).hexdigest()


def joined(lifted: Sequence[Lifted], function: Callable[..., Any]) -> Lifted:
    """Several lifted functions as one: ``function`` uses them, and their parts are its parts."""
    parts: dict[str, str] = {}
    for one in lifted:
        parts.update(one.parts)
    return Lifted(function, parts)


# --- the sources -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """Where something is defined: the module, its name there, and the statement."""

    module: str
    name: str
    node: Definition

    @property
    def dotted(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass
class Module:
    """A parsed module: what its top level binds. ``conditional``: names bound inside an ``if``, ``try`` or the like."""

    name: str
    path: Path
    body: list[ast.stmt]
    bound: dict[str, list[ast.stmt]] = field(default_factory=dict)
    conditional: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        for statement in self.body:
            for name in _bound_names(statement):
                self.bound.setdefault(name, []).append(statement)
            for nested in _nested_statements(statement):
                self.conditional.update(_bound_names(nested))

    def binding(self, name: str) -> ast.stmt | None:
        """The one statement that binds a name, None where the module does not bind it."""
        found = self.bound.get(name, [])
        if len(found) > 1 or name in self.conditional:
            raise ShapeChanged(f"{self.name} binds {name} more than once, or under a condition")
        if not found and "*" in self.bound:
            raise ShapeChanged(f"{self.name} may bind {name} by an import of everything")
        return found[0] if found else None


class SourceTree:
    """The Python sources of one engine. ``root`` is the folder that holds its package."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._modules: dict[str, Module] = {}

    def module(self, name: str) -> Module:
        """A module by its dotted name."""
        if name not in self._modules:
            path = self.root.joinpath(*name.split("."))
            path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
            try:
                body = ast.parse(path.read_text(encoding="utf-8"), str(path)).body
            except (OSError, ValueError, SyntaxError) as error:
                raise ShapeChanged(f"there is no readable module {name} in {self.root}: {error}") from None
            self._modules[name] = Module(name, path, body)
        return self._modules[name]

    def find(self, module: str, qualname: str) -> Place:
        """A function, class or constant of a module, or of a class or any base that it inherits it from."""
        owner, _, member = qualname.rpartition(".")
        if owner:
            return self._member(module, owner, member)
        place = self.follow(module, member)
        if place is None:
            raise ShapeChanged(f"{module} has no {member}")
        return place

    def follow(self, module: str, name: str) -> Place | None:
        """Where a global name is defined, through imports within the engine; None if it comes from outside."""
        binding = self.module(module).binding(name)
        if isinstance(binding, ast.ImportFrom):
            source, original = imported_from(module, self.module(module).path, binding, name)
            return self.follow(source, original) if is_engine_module(source) else None
        if isinstance(binding, ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign):
            return Place(module, name, binding)
        return None

    def has(self, module: str, qualname: str) -> bool:
        """Whether a member of a class exists, there or in a base of it."""
        owner, _, member = qualname.rpartition(".")
        return self._look_up(self.find(module, owner), member) is not None

    def _member(self, module: str, owner: str, member: str) -> Place:
        place = self._look_up(self.find(module, owner), member)
        if place is None:
            raise ShapeChanged(f"{module}.{owner} has no {member}, nor has a base of it")
        return place

    def _look_up(self, owner: Place, member: str) -> Place | None:
        for cls in self.bases(owner):
            assert isinstance(cls.node, ast.ClassDef)
            found = [node for node in cls.node.body if member in _bound_names(node)]
            if len(found) > 1:
                raise ShapeChanged(f"{cls.dotted} defines {member} more than once")
            if found:
                if not isinstance(found[0], ast.FunctionDef | ast.Assign | ast.AnnAssign):
                    raise ShapeChanged(f"{cls.dotted}.{member} is no function and no value")
                return Place(cls.module, f"{cls.name}.{member}", found[0])
        return None

    def bases(self, cls: Place) -> list[Place]:
        """The class and its bases within the engine, in Python's order of method resolution."""
        if not isinstance(cls.node, ast.ClassDef):
            raise ShapeChanged(f"{cls.dotted} is no class")
        _check_decorators(self, cls.module, cls.node.decorator_list, cls.dotted, frozenset({"final"}))
        parents = [place for base in cls.node.bases if (place := self._base(cls, base)) is not None]
        orders = [self.bases(parent) for parent in parents] + [parents]
        merged = [cls]
        while orders := [order for order in orders if order]:
            tails = {place.dotted for order in orders for place in order[1:]}
            head = next((order[0] for order in orders if order[0].dotted not in tails), None)
            if head is None:
                raise ShapeChanged(f"the bases of {cls.dotted} have no consistent order")
            merged.append(head)
            orders = [[place for place in order if place.dotted != head.dotted] for order in orders]
        return merged

    def _base(self, cls: Place, base: ast.expr) -> Place | None:
        name = base.value if isinstance(base, ast.Subscript) else base
        if not isinstance(name, ast.Name):
            raise ShapeChanged(f"{cls.dotted} has the base {ast.unparse(base)}, which cannot be followed")
        return self.follow(cls.module, name.id)


def is_engine_module(name: str) -> bool:
    """Whether a module belongs to the engine."""
    return name.partition(".")[0] == ENGINE_PACKAGE


def imported_from(module: str, path: Path, statement: ast.ImportFrom, name: str) -> tuple[str, str]:
    """The module and the name there that ``name`` is imported from."""
    original = next(alias.name for alias in statement.names if (alias.asname or alias.name) == name)
    if statement.level == 0:
        return statement.module or "", original
    drop = statement.level - (1 if path.name == "__init__.py" else 0)
    package = module.split(".")[: len(module.split(".")) - drop]
    return ".".join([*package, *([statement.module] if statement.module else [])]), original


def _bound_names(statement: ast.stmt) -> Iterator[str]:
    """The names that one statement binds, without those inside of it; overloads are for type checkers only."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        if not any(ast.unparse(mark).rpartition(".")[2] == "overload" for mark in statement.decorator_list):
            yield statement.name
    elif isinstance(statement, ast.Import | ast.ImportFrom):
        for alias in statement.names:
            yield alias.asname or (alias.name if isinstance(statement, ast.ImportFrom) else alias.name.split(".")[0])
    elif isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Delete):
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                yield node.id


def _nested_statements(statement: ast.stmt) -> Iterator[ast.stmt]:
    """Statements inside another one, except for those of functions and classes."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return
    for child in ast.iter_child_nodes(statement):
        inner = child.body if isinstance(child, ast.ExceptHandler) else [child]
        for node in inner:
            if isinstance(node, ast.stmt):
                yield node
                yield from _nested_statements(node)


def _check_decorators(
    tree: SourceTree, module: str, marks: Sequence[ast.expr], where: str, allowed: Collection[str]
) -> None:
    for mark in marks:
        name = ast.unparse(mark)
        binding = tree.module(module).binding(name) if name in allowed else None
        standard = binding is None or (
            isinstance(binding, ast.ImportFrom) and (binding.module or "") in _DECORATOR_MODULES
        )
        if name not in allowed or not standard:
            raise ShapeChanged(f"{where} has the decorator {name}")


# --- normal form -------------------------------------------------------------------------------------


class _Normal(ast.NodeTransformer):
    """Drops docstrings and annotations. A class keeps that a field is annotated, which a named tuple needs."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        _drop_docstring(node)
        self.generic_visit(node)
        node.body = node.body or [ast.Pass()]
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        _drop_docstring(node)
        node.body = [item for item in node.body if not _is_overload(item)]
        for index, item in enumerate(node.body):
            if isinstance(item, ast.AnnAssign):
                item.annotation = ast.Constant(None)
            else:
                node.body[index] = self.visit(item)
        node.body = node.body or [ast.Pass()]
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        if node.value is None:
            return None
        return ast.Assign([node.target], self.visit(node.value))


def _drop_docstring(node: ast.FunctionDef | ast.ClassDef) -> None:
    first = node.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        node.body = node.body[1:]


def _is_overload(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef) and next(_bound_names(node), None) is None


def normal_form(node: ast.stmt) -> ast.stmt:
    """A copy of a definition without docstrings and annotations."""
    normal = _Normal().visit(copy.deepcopy(node))
    assert isinstance(normal, ast.stmt)
    return ast.fix_missing_locations(ast.copy_location(normal, node))


# --- compiling ---------------------------------------------------------------------------------------


class Lifter:
    """Compiles definitions with everything that they name, each module's in a namespace of its own.

    A global name is looked for in ``stubs``, then in the module (followed through imports within the
    engine), then in ``rebind``, then among the builtins.
    """

    def __init__(self, tree: SourceTree, stubs: Mapping[str, object], rebind: Mapping[str, object]) -> None:
        self.tree = tree
        self.stubs = stubs
        self.rebind = rebind
        self.parts: dict[str, str] = {}
        self._namespaces: dict[str, dict[str, Any]] = {}

    def namespace(self, module: str) -> dict[str, Any]:
        """The globals of one module's lifted functions; no builtin is there unless it was resolved."""
        empty = {"__builtins__": {"__build_class__": builtins.__build_class__}, "__name__": module}
        return self._namespaces.setdefault(module, empty)

    def define(self, place: Place) -> Any:
        """The object that a definition makes."""
        if isinstance(place.node, ast.Assign | ast.AnnAssign):
            return self._constant(place)
        allowed = _DECORATORS if isinstance(place.node, ast.FunctionDef) else frozenset({"final"})
        _check_decorators(self.tree, place.module, place.node.decorator_list, place.dotted, allowed)
        self._check_body(place)
        normal = normal_form(place.node)
        assert isinstance(normal, ast.FunctionDef | ast.ClassDef)
        self.parts[place.dotted] = ast.unparse(normal)
        normal.decorator_list = []
        eager, lazy = _global_names(normal, place)
        namespace = self.namespace(place.module)
        for name in sorted(eager):
            self.resolve(place.module, name)
        made: dict[str, Any] = {}
        path = self.tree.module(place.module).path
        exec(compile(ast.Module([normal], []), str(path), "exec"), namespace, made)
        # Entered before its names are resolved, so that functions may name each other.
        if place.name == normal.name:
            namespace[normal.name] = made[normal.name]
        for name in sorted(lazy):
            self.resolve(place.module, name)
        return made[normal.name]

    def _constant(self, place: Place) -> Any:
        assert isinstance(place.node, ast.Assign | ast.AnnAssign)
        value = place.node.value
        bare = isinstance(place.node, ast.AnnAssign) or isinstance(place.node.targets[0], ast.Name)
        if value is None or not bare or not all(isinstance(node, _CONSTANT_NODES) for node in ast.walk(value)):
            raise ShapeChanged(f"{place.dotted} is no simple constant: {ast.unparse(place.node)}")
        self.parts[place.dotted] = ast.unparse(value)
        for node in ast.walk(value):
            if isinstance(node, ast.Name):
                self.resolve(place.module, node.id)
        return eval(compile(ast.Expression(value), place.dotted, "eval"), self.namespace(place.module))

    def _check_body(self, place: Place) -> None:
        for node in ast.walk(place.node):
            if isinstance(node, ast.Import | ast.ImportFrom | ast.Global | ast.Nonlocal):
                raise ShapeChanged(f"{place.dotted} has the statement: {ast.unparse(node)}")
            if node is not place.node and isinstance(node, ast.FunctionDef):
                allowed = _DECORATORS | {"overload"}
                _check_decorators(self.tree, place.module, node.decorator_list, place.dotted, allowed)

    def resolve(self, module: str, name: str) -> None:
        """Make a global name known in a module's namespace."""
        namespace = self.namespace(module)
        if name in namespace:
            return
        if name in self.stubs:
            namespace[name] = self.stubs[name]
            return
        binding = self.tree.module(module).binding(name)
        if binding is None:
            namespace[name] = self._builtin(module, name)
        elif isinstance(binding, ast.ImportFrom):
            namespace[name] = self._imported(module, binding, name)
        elif isinstance(binding, ast.Import):
            names = {alias.name for alias in binding.names if (alias.asname or alias.name.split(".")[0]) == name}
            if not names <= _PLAIN_MODULES:
                raise ShapeChanged(f"{module}.{name} is the module {', '.join(sorted(names))}")
            namespace[name] = importlib.import_module(names.pop())
        elif isinstance(binding, ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign):
            namespace[name] = self.define(Place(module, name, binding))
        else:
            raise ShapeChanged(f"{module}.{name} is bound by: {ast.unparse(binding)}")

    def _builtin(self, module: str, name: str) -> Any:
        if name in self.rebind:
            return self.rebind[name]
        if name in _REFUSED_BUILTINS or not hasattr(builtins, name):
            raise ShapeChanged(f"{module} uses {name}, which it neither defines nor imports")
        return getattr(builtins, name)

    def _imported(self, module: str, statement: ast.ImportFrom, name: str) -> Any:
        source, original = imported_from(module, self.tree.module(module).path, statement, name)
        if is_engine_module(source):
            if self.tree.module(source).binding(original) is None:
                raise ShapeChanged(f"{module} imports {original} from {source}, which does not define it")
            self.resolve(source, original)
            return self.namespace(source)[original]
        if source not in _PLAIN_MODULES:
            raise ShapeChanged(f"{module} uses {name} of {source}, which is outside the engine")
        return getattr(importlib.import_module(source), original)


def _global_names(node: ast.stmt, place: Place) -> tuple[set[str], set[str]]:
    """The global names of a definition: those looked up when it is made, and those looked up when it runs."""
    eager: set[str] = set()
    lazy: set[str] = set()

    def collect(table: symtable.SymbolTable, running: bool) -> None:
        for symbol in table.get_symbols():
            outer = table.get_type() == "module" and not symbol.is_assigned() and not symbol.is_namespace()
            if symbol.is_referenced() and (outer or symbol.is_global()):
                (lazy if running else eager).add(symbol.get_name())
        for child in table.get_children():
            collect(child, running or child.get_type() == "function")

    collect(symtable.symtable(ast.unparse(node), place.dotted, "exec"), False)
    return eager, lazy - eager


def _binding(node: ast.AST) -> str:
    marks = {ast.unparse(mark) for mark in node.decorator_list} if isinstance(node, ast.FunctionDef) else set()
    return next((kind for kind in ("classmethod", "staticmethod", "property") if kind in marks), "function")


# --- lifting -----------------------------------------------------------------------------------------


def lift(
    tree: SourceTree,
    module: str,
    qualname: str,
    *,
    stubs: Mapping[str, object] | None = None,
    rebind: Mapping[str, object] | None = None,
) -> Lifted:
    """Lift a function or method; a method may be inherited. A class's constant becomes a function without arguments.

    ``stubs`` stand in for names wherever they are used; ``rebind`` replaces builtins that a module does
    not define itself. What a method reaches by ``self`` or ``cls`` is for the caller to provide.
    """
    lifter = Lifter(tree, stubs or {}, rebind or {})
    place = tree.find(module, qualname)
    made = lifter.define(place)
    if isinstance(place.node, ast.Assign | ast.AnnAssign):
        return Lifted(lambda: made, lifter.parts, "value")
    return Lifted(made, lifter.parts, _binding(place.node))


def lift_assignment(
    tree: SourceTree,
    module: str,
    qualname: str,
    target: str,
    *,
    parameters: Sequence[str],
    stubs: Mapping[str, object] | None = None,
    rebind: Mapping[str, object] | None = None,
) -> Lifted:
    """Lift what a function assigns to ``target`` (such as ``self.x``), as a function of ``parameters``.

    It must be assigned once, and not under a condition.
    """
    place = tree.find(module, qualname)
    values = [node.value for node in assignments(place, target)]
    top = [node for node in getattr(place.node, "body", []) if node in assignments(place, target)]
    if len(values) != 1 or len(top) != 1 or values[0] is None:
        raise ShapeChanged(f"{place.dotted} does not assign {target} once and unconditionally")
    local = stored_names(place.node) | {node.arg for node in ast.walk(place.node) if isinstance(node, ast.arg)}
    used = {node.id for node in ast.walk(values[0]) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    if unknown := used & local - stored_names(values[0]) - set(parameters):
        raise ShapeChanged(f"{place.dotted} computes {target} from its local {', '.join(sorted(unknown))}")
    name = target.rpartition(".")[2]
    function = ast.parse(f"def {name}({', '.join(parameters)}): return None").body[0]
    assert isinstance(function, ast.FunctionDef)
    function.body = [ast.Return(copy.deepcopy(values[0]))]
    lifter = Lifter(tree, stubs or {}, rebind or {})
    made = lifter.define(Place(place.module, f"{place.name}.{name}", ast.fix_missing_locations(function)))
    return Lifted(made, lifter.parts)


def assignments(place: Place, target: str) -> list[ast.Assign | ast.AnnAssign]:
    """The statements anywhere in a function that assign ``target``, written as in its source."""
    found: list[ast.Assign | ast.AnnAssign] = []
    for node in ast.walk(place.node):
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
        if isinstance(node, ast.Assign | ast.AnnAssign) and target in {ast.unparse(item) for item in targets}:
            found.append(node)
    return found


def stored_names(node: ast.AST) -> set[str]:
    """The variables that are bound anywhere within a piece of source."""
    return {item.id for item in ast.walk(node) if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store)}


def attributes_read(source: str, name: str) -> frozenset[str]:
    """The attributes that ``source`` reads directly off the variable ``name``."""
    return frozenset(
        node.attr
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Load)
        and isinstance(node.value, ast.Name)
        and node.value.id == name
    )
