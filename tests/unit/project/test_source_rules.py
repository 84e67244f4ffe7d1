"""Rules of the source that no linter of ours has; each failure names the file and the line."""

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MODULES = {
    path: ast.parse(path.read_text())
    for room in ("services", "schemas")
    for path in sorted((ROOT / room).rglob("*.py"))
}
GENERATED_SOURCE_IN = ROOT / "services/tessera/domain/storing/fast.py"
KEYED_CALLS = ("get", "setdefault", "pop")
# Public, by the documentation of Python.
DOCUMENTED = {"_asdict", "_current_frames", "_exit", "_fields", "_make", "_replace"}
PRIVATE = re.compile(r"_[a-z]\w*")


@cache
def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """Everything within a piece of source; each file is walked once, though every rule looks at it."""
    return tuple(ast.walk(tree))


def calls_of(node: ast.AST, *names: str) -> Iterator[ast.Call]:
    """Calls of these built-in functions anywhere in a piece of source."""
    return (
        each
        for each in nodes(node)
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Name) and each.func.id in names
    )


def keys(tree: ast.AST) -> Iterator[ast.AST]:
    """Expressions that name an entry of a mapping: in a subscript, a dict display, or a call such as `get`."""
    for node in nodes(tree):
        if isinstance(node, ast.Subscript):
            yield node.slice
        elif isinstance(node, ast.Dict):
            yield from (key for key in node.keys if key is not None)
        elif isinstance(node, ast.DictComp):
            yield node.key
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in KEYED_CALLS:
            yield from node.args[:1]


def where(path: Path, node: ast.expr) -> str:
    return f"{path.relative_to(ROOT)}:{node.lineno}"


def generated_source(path: Path, tree: ast.AST) -> list[str]:
    """Calls that run text as source."""
    return [where(path, call) for call in calls_of(tree, "exec", "eval", "compile")]


def id_keys(path: Path, tree: ast.AST) -> list[str]:
    """Keys made of `id()`, which a later object may have too."""
    return [where(path, call) for key in keys(tree) for call in calls_of(key, "id")]


def private_names(tree: ast.AST, of_self: bool) -> Iterator[ast.Attribute]:
    """Accesses of private attributes: of `self` and `cls`, or of anything else."""
    for node in nodes(tree):
        if isinstance(node, ast.Attribute) and PRIVATE.fullmatch(node.attr) and node.attr not in DOCUMENTED:
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            yield from (node,) if own == of_self else ()


def defined_names(tree: ast.AST) -> set[str]:
    """What a module defines: functions and classes, fields, and attributes that it assigns to its own objects."""
    names = {node.name for node in nodes(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    names |= {node.id for node in nodes(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return names | {node.attr for node in private_names(tree, of_self=True) if isinstance(node.ctx, ast.Store)}


def foreign_bases(tree: ast.AST) -> Iterator[tuple[ast.ClassDef, type]]:
    """Classes with each of their bases that is a library's."""
    imported = {
        alias.asname or alias.name: node.module
        for node in nodes(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    packages = {alias.name for node in nodes(tree) if isinstance(node, ast.Import) for alias in node.names}
    for node in nodes(tree):
        for base in node.bases if isinstance(node, ast.ClassDef) else ():
            package, _, name = ast.unparse(base).split("[")[0].rpartition(".")
            module = package if package in packages else imported.get(name, "tessera")
            if not module.startswith("tessera") and isinstance(node, ast.ClassDef):
                found = getattr(importlib.import_module(module), name)
                if isinstance(found, type):
                    yield node, found


def private_members_of_libraries(path: Path, tree: ast.AST) -> list[str]:
    """Private attributes that another package defines: read from its objects, or inherited or replaced by a class."""
    ours = defined_names(tree)
    found = [where(path, node) for node in private_names(tree, of_self=False) if node.attr not in ours]
    for node, base in foreign_bases(tree):
        names = {each.attr for each in private_names(node, of_self=True)} | {
            each.name for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        source = "".join(source_of(kind) for kind in base.__mro__)
        theirs = [name for name in sorted(names) if PRIVATE.fullmatch(name) and re.search(rf"\b{name}\b", source)]
        found += [f"{path.relative_to(ROOT)}:{node.lineno} {name}" for name in theirs]
    return found


@cache
def source_of(kind: type) -> str:
    """Source of a class; "" of one that is compiled."""
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):
        return ""


def test_no_private_member_of_a_library_is_used() -> None:
    assert [each for path, tree in MODULES.items() for each in private_members_of_libraries(path, tree)] == []


@pytest.mark.parametrize(
    "source",
    [
        "client._server_info",
        "from nats.aio.client import Client\nclass Ours(Client):\n    def f(self): return self._pending",
        "from nats.aio.client import Client\nclass Ours(Client):\n    async def _process_msg(self): ...",
        "import nats.aio.client\nclass Ours(nats.aio.client.Client):\n    def f(self): self._ps = None",
    ],
    ids=["read", "inherited", "replaced", "assigned"],
)
def test_a_private_member_of_a_library_is_found_in_every_form(source: str) -> None:
    assert private_members_of_libraries(ROOT / "some.py", ast.parse(source)) != []


def test_source_is_generated_behind_one_door_only() -> None:
    found = [each for path, tree in MODULES.items() for each in generated_source(path, tree)]
    assert {each.split(":")[0] for each in found} == {str(GENERATED_SOURCE_IN.relative_to(ROOT))}


def test_no_cache_is_keyed_by_the_address_of_an_object() -> None:
    assert [each for path, tree in MODULES.items() for each in id_keys(path, tree)] == []


@pytest.mark.parametrize("source", ["x[id(y)]", "x[id(y), 1]", "{id(y): 1}", "{id(y): 1 for y in z}", "x.get(id(y))"])
def test_a_key_made_of_an_address_is_found_in_every_form(source: str) -> None:
    assert id_keys(ROOT / "some.py", ast.parse(source)) == ["some.py:1"]


@pytest.mark.parametrize("source", ["exec(text)", "f(eval(text))", "compile(text, name, 'exec')"])
def test_generated_source_is_found_in_every_form(source: str) -> None:
    assert generated_source(ROOT / "some.py", ast.parse(source)) == ["some.py:1"]
