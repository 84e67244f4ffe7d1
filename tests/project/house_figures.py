"""
`make figures`: how the code stands, as figures that may only get better.

Each figure is measured anew and held against `house_figures.json`, which keeps the best that was reached: a worse one
fails, a better one asks to be kept (`--keep`); the lines have 3,000 to spare. The aims are those of the plan of the
house; lines are source lines, and a function's include its signature and docstring.
"""

import ast
import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
KEPT = Path(__file__).with_suffix(".json")
CODE = (ROOT / "services/tessera", ROOT / "schemas/tessera_schemas")
AIMS: Mapping[str, int] = {
    "95 of 100 functions are no longer than (lines)": 22,
    "largest function (lines)": 80,
    "largest file (lines)": 600,
    "public functions without a docstring (of 1,000)": 150,
    "docstrings that begin with a pronoun (of 1,000)": 20,
    "modules in import cycles": 0,
    "our modules that the client's SDK loads": 30,
    "numpy is loaded by the client's SDK": 0,
    "rooms at the top of engine": 15,
    "rooms at the top of kernel": 14,
    "class names defined in two modules": 0,
    "test modules that import another test module": 0,
    "hand-written lines": 54_700,
}
WRITTEN_BY_HAND = {".py", ".js", ".css", ".html", ".lua"}
Function = ast.FunctionDef | ast.AsyncFunctionDef
# A docstring whose subject is one of these is understood only by a reader who knows what surrounds it.
PRONOUN = re.compile(
    r"\W*(what|who|whom|whose|which|how|when|where|(what|who|whom|which|how|when|where)ever|that|this|these|those|it|its"
    r"|they|their|he|she|here|there|everything|nothing|everybody|nobody)\b",
    re.IGNORECASE,
)


def modules() -> dict[str, ast.Module]:
    """Every module of ours by its dotted name."""
    found = {}
    for root in CODE:
        for path in sorted(root.rglob("*.py")):
            name = ".".join(path.relative_to(root.parent).with_suffix("").parts).removesuffix(".__init__")
            found[name] = ast.parse(path.read_text(encoding="utf-8"))
    return found


def functions(tree: ast.Module) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def public_functions(tree: ast.Module) -> Iterator[Function]:
    """Functions of a module and methods of its public classes whose names do not begin with an underscore."""
    public = [node for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
    for body in (tree.body, *(node.body for node in public)):
        yield from (node for node in body if isinstance(node, Function) and not node.name.startswith("_"))


def docstrings(tree: ast.Module) -> Iterator[str]:
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    yield from (text for node in ast.walk(tree) if isinstance(node, documented) and (text := ast.get_docstring(node)))


def imports(name: str, tree: ast.Module, known: Mapping[str, ast.Module]) -> set[str]:
    """Our modules that a module imports when it is loaded."""
    found = set()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                found.add(full if full in known else node.module)
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    return {other for other in found if other in known and other != name}


def in_cycles(edges: Mapping[str, set[str]]) -> int:
    """Modules that import themselves by way of others."""

    def reached(start: str) -> set[str]:
        seen, todo = set[str](), [*edges[start]]
        while todo:
            if (at := todo.pop()) not in seen:
                seen.add(at)
                todo.extend(edges[at])
        return seen

    return sum(name in reached(name) for name in edges)


def loaded_by_the_sdk() -> list[str]:
    asked = "import sys, tessera.client.sending.sdk; print(*sys.modules)"
    return subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True).stdout.split()


def importers_of_tests() -> int:
    """Test modules that take something from another one; what several share stands in `conftest` or beside them."""
    imports = re.compile(r"^(?:from tests\.(?:\w+\.)*test_\w+ import|from tests[\w.]* import .*\btest_)", re.MULTILINE)
    return sum(bool(imports.search(path.read_text(encoding="utf-8"))) for path in (ROOT / "tests").rglob("*.py"))


def rooms(package: str) -> int:
    """Modules and packages at the top of a package."""
    top = [path for path in (CODE[0] / package).iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()]
    return len([path for path in top if path.name != "__init__.py"])


def lines_by_hand() -> int:
    """Lines of the code that is shipped, without what is generated."""
    paths = (
        path for root in ("services", "schemas") for path in (ROOT / root).rglob("*") if "generated" not in path.parts
    )
    return sum(len(path.read_bytes().splitlines()) for path in paths if path.suffix in WRITTEN_BY_HAND)


def measured() -> dict[str, int]:
    known = modules()
    lengths = sorted((node.end_lineno or 0) - node.lineno + 1 for tree in known.values() for node in functions(tree))
    public = [node for tree in known.values() for node in public_functions(tree)]
    documented = [text for tree in known.values() for text in docstrings(tree)]
    files = [len(path.read_text(encoding="utf-8").splitlines()) for root in CODE for path in root.rglob("*.py")]
    defined = Counter(
        node.name
        for tree in known.values()
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name[0] != "_"
    )
    edges: dict[str, set[str]] = defaultdict(set)
    edges.update({name: imports(name, tree, known) for name, tree in known.items()})
    loaded = loaded_by_the_sdk()
    values = (
        lengths[len(lengths) * 95 // 100],
        lengths[-1],
        max(files),
        sum(ast.get_docstring(node) is None for node in public) * 1000 // len(public),
        sum(PRONOUN.match(text) is not None for text in documented) * 1000 // len(documented),
        in_cycles(dict(edges)),
        sum(name.split(".")[0] in ("tessera", "tessera_schemas") for name in loaded),
        int("numpy" in loaded),
        rooms("engine"),
        rooms("kernel"),
        sum(count > 1 for count in defined.values()),
        importers_of_tests(),
        lines_by_hand(),
    )
    return dict(zip(AIMS, values, strict=True))


def main() -> int:
    now, kept = measured(), json.loads(KEPT.read_text()) if KEPT.exists() else {}
    worse = [name for name, value in now.items() if value > kept.get(name, value)]
    print(f"{'figure':<52}{'now':>6}{'kept':>6}{'aim':>6}")
    for name, value in now.items():
        print(f"{name:<52}{value:>6}{kept.get(name, value):>6}{AIMS[name]:>6}{'  worse' if name in worse else ''}")
    if "--keep" in sys.argv and not worse:
        KEPT.write_text(json.dumps(now, indent=2) + "\n")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
