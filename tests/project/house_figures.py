"""
`make figures`: how the code stands, as figures that may only get better.

Each figure is measured anew and held against `house_figures.json`, which keeps the best that was reached: a worse one
fails, a better one asks to be kept (`--keep`). The lines of a package have a ceiling there, which an ADR alone raises;
lines in all are told beside their aim.
Lines are those of code and docstrings, and a function's include its signature. A line that is a comment counts for
nothing: a ceiling on explanations would be a price on them. Imports are counted wherever they stand: also
inside of functions, and those that serve types alone.
"""

import ast
import json
import re
import subprocess
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from importlib import import_module
from io import StringIO
from pathlib import Path

ROOT = Path(__file__).parents[2]
KEPT = Path(__file__).with_suffix(".json")
PACKAGES = ("services/tessera", "services/tessera_local", "services/tessera_lab", "schemas/tessera_schemas")
CODE = tuple(ROOT / package for package in PACKAGES)
OURS = {Path(package).name for package in PACKAGES}
PRODUCT = {"services/tessera", "schemas/tessera_schemas"}
REASONED = ("tessera.engine", "tessera.scheduler.decide", "tessera.binder.adoption")
"""Packages of algorithms, whose comments say why."""
SMALL = 40  # lines of a file that is one thought with another one
ROOMS = 15  # at the top of a package, at most
AIMS: Mapping[str, int] = {
    "95 of 100 functions are no longer than (lines)": 22,
    "largest function (lines)": 80,
    "largest file (lines)": 600,
    "public functions without a docstring (of 1,000)": 25,
    "docstrings that begin with a pronoun (of 1,000)": 5,
    "modules in import cycles": 0,
    "our modules that the client's SDK loads": 30,
    "numpy is loaded by the client's SDK": 0,
    f"packages with more than {ROOMS} rooms at the top": 0,
    "class names defined in two modules": 0,
    "names with two meanings, aliases too": 15,
    "names that nothing names": 0,
    f"files of {SMALL} lines or less": 40,
    "lines of algorithms that no comment explains (of 1,000)": 950,
    "test modules that import another test module": 0,
    "hand-written lines": 74_000,
    "of which the product": 59_000,
}
TOLD = ("hand-written lines", "of which the product")
"""Figures that the ceilings of packages hold in place of what was reached."""
WRITTEN_BY_HAND = {".py", ".js", ".css", ".html", ".lua"}
Function = ast.FunctionDef | ast.AsyncFunctionDef
DIRECTIVE = re.compile(r"#\s*(noqa|type:|mypy:|fmt:|pragma)")
# A docstring whose subject is one of these is understood only by a reader who knows what surrounds it.
PRONOUN = re.compile(
    r"\W*(what|who|whom|whose|which|how|when|where|(what|who|whom|which|how|when|where)ever|that|this|these|those|it|its"
    r"|they|their|he|she|here|there|everything|nothing|everybody|nobody)\b",
    re.IGNORECASE,
)


def module_files() -> dict[str, Path]:
    """The file of every module of ours by its dotted name."""
    paths = ((root, path) for root in CODE for path in sorted(root.rglob("*.py")))
    return {".".join(p.relative_to(r.parent).with_suffix("").parts).removesuffix(".__init__"): p for r, p in paths}


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
    """Our modules that a module imports, wherever in it."""
    found = set()
    for node in ast.walk(tree):
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


def rooms(package: Path) -> int:
    """Modules and packages at the top of a package."""
    top = [path for path in package.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()]
    return len([path for path in top if path.name not in ("__init__.py", "__main__.py")])


def full_packages() -> int:
    """Packages with more rooms at the top than a newcomer keeps in mind."""
    return sum(rooms(path.parent) > ROOMS for root in CODE for path in root.rglob("__init__.py"))


def comment_lines(text: str) -> set[int]:
    """The numbers of the lines of Python source that are comments, without code before them."""
    found = set[int]()
    for token in tokenize.generate_tokens(StringIO(text).readline):
        if token.type == tokenize.COMMENT and token.line.lstrip().startswith("#"):
            found.add(token.start[0])
    return found


def lines_of(path: Path) -> int:
    """Lines of a file; those of Python without comments."""
    text = path.read_text(encoding="utf-8")
    return len(text.splitlines()) - (len(comment_lines(text)) if path.suffix == ".py" else 0)


def function_lengths(text: str, tree: ast.Module) -> Iterator[int]:
    """Lines of each function of a module, from its signature to its end, without comments."""
    comments = comment_lines(text)
    for node in functions(tree):
        lines = range(node.lineno, (node.end_lineno or 0) + 1)
        yield len(lines) - sum(line in comments for line in lines)


def lines_by_hand(package: str) -> int:
    """Lines of the code that is shipped, without what is generated."""
    paths = (path for path in (ROOT / package).rglob("*") if "generated" not in path.parts)
    return sum(lines_of(path) for path in paths if path.suffix in WRITTEN_BY_HAND)


def meanings(known: Mapping[str, ast.Module]) -> Counter[str]:
    """Modules that define each public name in capital letters and small ones: a class, or an alias of a type."""
    found = Counter[str]()
    for tree in known.values():
        names = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
        for node in tree.body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
        found.update(name for name in names if re.fullmatch(r"[A-Z][A-Za-z0-9]*[a-z][A-Za-z0-9]*", name))
    return found


def kinds_of_records(known: Mapping[str, ast.Module]) -> set[str]:
    """Values by which the contract tells its records and facts apart: the literals of their field `kind`."""
    contract = (tree for name, tree in known.items() if name.startswith("tessera_schemas."))
    fields = (node for tree in contract for node in ast.walk(tree) if isinstance(node, ast.AnnAssign))
    kinds = (field.annotation for field in fields if getattr(field.target, "id", "") == "kind")
    return {word.value for kind in kinds for word in ast.walk(kind) if isinstance(word, ast.Constant)}


def found_by_kind(owner: ast.ClassDef, kinds: Collection[str]) -> set[str]:
    """Names of methods that a class looks up by a record's kind, as `getattr(self, f"_{record.kind}")` does."""
    prefixes = set[str]()
    for node in ast.walk(owner):
        match node:
            case ast.Call(
                func=ast.Name(id="getattr"),
                args=[
                    ast.Name(id="self"),
                    ast.JoinedStr(
                        values=[ast.Constant(value=prefix), ast.FormattedValue(value=ast.Attribute(attr="kind"))]
                    ),
                    *_,
                ],
            ):
                prefixes.add(prefix)
    return {prefix + kind for prefix in prefixes for kind in kinds}


def overridable(owner: ast.ClassDef, tree: ast.Module) -> set[str]:
    """Names that the base classes from outside of the project have: their own code calls an override of one."""
    imported = {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] not in OURS
        for alias in node.names
    }
    bases = (imported[base.id] for base in owner.bases if isinstance(base, ast.Name) and base.id in imported)
    return {name for module, base in bases for name in dir(getattr(import_module(module), base))}


def called_by_others(tree: ast.Module, kinds: Collection[str]) -> set[ast.AST]:
    """Methods that nobody has to name: Python calls them, a foreign base class, or a lookup by a record's kind."""
    found = set[ast.AST]()
    for owner in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        names = found_by_kind(owner, kinds) | overridable(owner, tree)
        methods = (node for node in owner.body if isinstance(node, Function))
        found.update(node for node in methods if node.name in names or re.fullmatch(r"__\w+__", node.name))
    return found


def named_nowhere(known: Mapping[str, ast.Module]) -> list[str]:
    """Functions and classes whose name stands where it is defined and nowhere else, and that nothing else calls."""
    words = Counter[str]()
    for root in ("services", "schemas", "tests", "deploy", "docs"):
        for path in (ROOT / root).rglob("*.py"):
            words.update(re.findall(r"\w+", path.read_text(encoding="utf-8")))
    kinds, found = kinds_of_records(known), list[str]()
    for tree in known.values():
        called = called_by_others(tree, kinds)
        defined = (node for node in ast.walk(tree) if isinstance(node, Function | ast.ClassDef) and node not in called)
        found += [node.name for node in defined if words[node.name] == 1 and not node.decorator_list]
    return found


def unexplained(known: Mapping[str, ast.Module], files: Mapping[str, Path]) -> int:
    """Lines of the algorithms beside every 1,000 that are comments."""
    texts = [files[name].read_text(encoding="utf-8") for name in known if name.startswith(REASONED)]
    lines = sum(len(text.splitlines()) for text in texts)
    comments = sum(
        token.type == tokenize.COMMENT and not DIRECTIVE.match(token.string)
        for text in texts
        for token in tokenize.generate_tokens(StringIO(text).readline)
    )
    return 1000 - comments * 1000 // lines


def measured() -> dict[str, int]:
    files = module_files()
    texts = {name: path.read_text(encoding="utf-8") for name, path in files.items()}
    known = {name: ast.parse(text) for name, text in texts.items()}
    lengths = sorted(length for name, tree in known.items() for length in function_lengths(texts[name], tree))
    public = [node for tree in known.values() for node in public_functions(tree)]
    documented = [text for tree in known.values() for text in docstrings(tree)]
    sizes = {path: lines_of(path) for path in files.values()}
    classes = Counter(node.name for tree in known.values() for node in tree.body if isinstance(node, ast.ClassDef))
    edges: dict[str, set[str]] = defaultdict(set)
    edges.update({name: imports(name, tree, known) for name, tree in known.items()})
    loaded = loaded_by_the_sdk()
    lines = {package: lines_by_hand(package) for package in PACKAGES}
    values = (
        lengths[len(lengths) * 95 // 100],
        lengths[-1],
        max(sizes.values()),
        sum(ast.get_docstring(node) is None for node in public) * 1000 // len(public),
        sum(PRONOUN.match(text) is not None for text in documented) * 1000 // len(documented),
        in_cycles(dict(edges)),
        sum(name.split(".")[0] in ("tessera", "tessera_schemas") for name in loaded),
        int("numpy" in loaded),
        full_packages(),
        sum(count > 1 for name, count in classes.items() if name[0] != "_"),
        sum(count > 1 for count in meanings(known).values()),
        len(named_nowhere(known)),
        sum(size <= SMALL and path.name != "__init__.py" for path, size in sizes.items()),
        unexplained(known, files),
        importers_of_tests(),
        sum(lines.values()),
        sum(count for package, count in lines.items() if package in PRODUCT),
    )
    return dict(zip(AIMS, values, strict=True))


def lines_by_package() -> dict[str, int]:
    """Hand-written lines of each package of the product, of the guests and of the contract."""
    parts = [path for path in CODE[0].iterdir() if (path / "__init__.py").exists()]
    return {path.relative_to(ROOT).as_posix(): lines_by_hand(str(path)) for path in sorted([*parts, *CODE[1:]])}


def main() -> int:
    now, kept = measured(), json.loads(KEPT.read_text())
    worse = [name for name, value in now.items() if value > kept.get(name, value) and name not in TOLD]
    print(f"{'figure':<56}{'now':>7}{'kept':>7}{'aim':>7}")
    for name, value in now.items():
        reached = "" if name in TOLD else kept.get(name, value)
        print(f"{name:<56}{value:>7}{reached:>7}{AIMS[name]:>7}{'  worse' if name in worse else ''}")
    for package, lines in lines_by_package().items():
        if lines > (ceiling := kept["ceilings"].get(package, 0)):
            worse.append(package)
            print(f"{package}: {lines} lines, above its ceiling of {ceiling}: take some out, or say in an ADR why not")
    if "--keep" in sys.argv and not worse:
        KEPT.write_text(json.dumps({**kept, **{n: v for n, v in now.items() if n not in TOLD}}, indent=2) + "\n")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
