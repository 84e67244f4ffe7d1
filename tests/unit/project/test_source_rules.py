"""Rules of the source that no linter of ours has; each failure names the file and the line."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MODULES = [path for room in ("services", "schemas") for path in sorted((ROOT / room).rglob("*.py"))]
GENERATED_SOURCE_IN = ROOT / "services/tessera/domain/fast.py"
KEYED_CALLS = ("get", "setdefault", "pop")


def calls_of(node: ast.AST, *names: str) -> Iterator[ast.Call]:
    """Calls of these built-in functions anywhere in a piece of source."""
    return (
        each
        for each in ast.walk(node)
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Name) and each.func.id in names
    )


def keys(tree: ast.AST) -> Iterator[ast.AST]:
    """Expressions that name an entry of a mapping: in a subscript, a dict display, or a call such as `get`."""
    for node in ast.walk(tree):
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


def test_source_is_generated_behind_one_door_only() -> None:
    found = [each for path in MODULES for each in generated_source(path, ast.parse(path.read_text()))]
    assert {each.split(":")[0] for each in found} == {str(GENERATED_SOURCE_IN.relative_to(ROOT))}


def test_no_cache_is_keyed_by_the_address_of_an_object() -> None:
    assert [each for path in MODULES for each in id_keys(path, ast.parse(path.read_text()))] == []


@pytest.mark.parametrize("source", ["x[id(y)]", "x[id(y), 1]", "{id(y): 1}", "{id(y): 1 for y in z}", "x.get(id(y))"])
def test_a_key_made_of_an_address_is_found_in_every_form(source: str) -> None:
    assert id_keys(ROOT / "some.py", ast.parse(source)) == ["some.py:1"]


@pytest.mark.parametrize("source", ["exec(text)", "f(eval(text))", "compile(text, name, 'exec')"])
def test_generated_source_is_found_in_every_form(source: str) -> None:
    assert generated_source(ROOT / "some.py", ast.parse(source)) == ["some.py:1"]
