"""
`python -m tests.changed`: run the tests that a change can break, and tell which they are and why.

A change is what differs from `--base`: without it from where `origin/main` was left, else from the commit before the
last. Tests are chosen by imports that stand in the source, lazy ones and names of modules in texts among them, and by
names of files. Suites of minutes are named, not run; where no rule knows a file, all of `make test` runs.
"""

import argparse
import ast
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = ("schemas", "services", "deploy", "docs", "tests")
IMPORTED_FROM = ("schemas", "services")  # the other rooms are imported from the root
HEAVY: Mapping[str, str] = {
    "tests/kubernetes": "test-kubernetes",
    "tests/containers": "test-containers",
    "tests/operations": "test-platforms",
    "tests/e2e": "test-platforms",
    "tests/clients": "test-clients",
    "tests/beside_slurm": "test-slurm",
}
RULES = ("tests/unit/project/", "tests/unit/docs/")
"""Tests that read all sources and pages, whatever they import."""
EVERYTHING = ("pyproject.toml", "schemas/pyproject.toml", "requirements.lock", "tests/conftest.py")
PAGES = (".md", ".svg", ".png")
DOTTED = re.compile(r"([a-z_]\w*(?:\.[a-z_]\w*)+)(?::\w+)?")
BY_NAME = ("import_module", "iter_modules", "walk_packages")


def module_of(path: str) -> str:
    """The dotted name of a Python file."""
    parts = Path(path).with_suffix("").parts
    return ".".join(parts[1:] if parts[0] in IMPORTED_FROM else parts).removesuffix(".__init__")


PROGRAM = "services/tessera_steps/"


def is_test(path: str) -> bool:
    """Whether pytest collects the file."""
    return path.startswith("tests/") and Path(path).name.startswith("test_") and path.endswith(".py")


def with_packages(name: str) -> Iterator[str]:
    """The module and every package around it, which an import of it runs too."""
    while name:
        yield name
        name = name.rpartition(".")[0]


def names_used(path: str, source: str) -> set[str]:
    """Modules that a file imports or names; what imports modules by a name that it computes may import its package."""
    found: set[str] = set()
    module = module_of(path)
    package = module if path.endswith("__init__.py") else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                found |= {alias.name for alias in names}
            case ast.ImportFrom(module=str(origin), names=names):
                found |= {origin, *(f"{origin}.{alias.name}" for alias in names)}
            case ast.Constant(value=str(text)) if path not in EVERYTHING and (named := DOTTED.fullmatch(text)):
                found.add(named[1])
            case ast.Attribute(attr=called) | ast.Name(id=called) if called in BY_NAME and package.count(".") > 1:
                found.add(f"{package}.*")
    return {each for name in found for each in with_packages(name)}


@dataclass
class Tree:
    """The Python files under `root` and who imports whom."""

    root: Path
    sources: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        files = sorted(path for room in ROOMS for path in (self.root / room).rglob("*.py"))
        self.sources = {path.relative_to(self.root).as_posix(): path.read_text() for path in files}

    @cached_property
    def importers(self) -> Mapping[str, set[str]]:
        """The files that import or name a module, by its name."""
        found: dict[str, set[str]] = defaultdict(set)
        for path, source in self.sources.items():
            for name in names_used(path, source):
                found[name].add(path)
        for path in self.sources:  # a conftest counts for every test below it
            folder = path.removesuffix("conftest.py")
            if folder != path:
                found[module_of(path)] |= {each for each in self.sources if is_test(each) and each.startswith(folder)}
        return found

    def reached_from(self, paths: Iterable[str]) -> set[str]:
        """These files and all that import one of them, themselves or through others."""
        reached: set[str] = set()
        ahead = list(paths)
        while ahead:
            path = ahead.pop()
            if path not in reached:
                reached.add(path)
                name = module_of(path)
                wildcards = {each for package in with_packages(name) for each in self.importers.get(f"{package}.*", ())}
                ahead += self.importers.get(name, set()) | wildcards
        return reached

    def naming(self, path: str) -> set[str]:
        """The Python files that name this file."""
        name = Path(path).name
        return {each for each, source in self.sources.items() if name in source}

    def package_of(self, path: str) -> set[str]:
        """The Python files of the folder in which a file lies, or of the nearest one above it that has any."""
        for folder in Path(path).parents[:-1]:
            if beside := {each for each in self.sources if Path(each).parent == folder}:
                return beside
        return set()


@dataclass(frozen=True, slots=True)
class Choice:
    """The tests that a changed file reaches, and by what rule; `tests` are None where no rule knows the file."""

    path: str
    tests: frozenset[str] | None
    why: str


def choose(tree: Tree, path: str) -> Choice:
    """The tests that a change of this file can break."""
    tests = {each for each in tree.sources if is_test(each)}
    rules = {each for each in tests if each.startswith(RULES)}
    if path in EVERYTHING:
        return Choice(path, None, "counts for all tests")
    if path.endswith(".py") and path.split("/")[0] in ROOMS:
        reached = tree.reached_from([path, *tree.naming(path)] if path.startswith("deploy/") else [path])
        return Choice(path, frozenset(reached & tests | rules), "imports, and the rules of all sources")
    if path.startswith(PROGRAM):
        return Choice(path, frozenset(each for each in tests if each.startswith("tests/steps/")), "the program in Go")
    if path.endswith(PAGES):
        return Choice(path, frozenset(tree.naming(path) & tests | rules), "pages, and tests that name the file")
    inside = tree.package_of(path) if path.startswith(("tests/", "services/", "schemas/")) else set()
    if found := tree.reached_from(tree.naming(path) | inside) & tests:
        return Choice(path, frozenset(found), "modules that name the file or lie beside it")
    return Choice(path, None, "no rule knows it")


def suite_of(test: str) -> str:
    """The target that runs a test of a heavy suite, or nothing."""
    return next((target for folder, target in HEAVY.items() if test.startswith(f"{folder}/")), "")


def told(choices: Sequence[Choice]) -> Iterator[str]:
    """What was chosen and why, a line for each changed file, and the suites that the change reaches."""
    for choice in choices:
        what = "all" if choice.tests is None else f"{sum(not suite_of(test) for test in choice.tests)} files of tests"
        yield f"{choice.path}: {what} ({choice.why})"
    reached = {suite_of(test) for choice in choices for test in choice.tests or ()} - {""}
    yield from (f"also run: make {target}" for target in sorted(reached))


def changed_paths(root: Path, base: str) -> list[str]:
    """Files that differ from where this branch left `base`, with what is not committed yet."""

    def git(*words: str) -> list[str]:
        return subprocess.run(["git", *words], cwd=root, check=True, capture_output=True, text=True).stdout.splitlines()

    if not base:
        known = git("for-each-ref", "--format=%(refname:short)", "refs/remotes/origin/main")
        base = known[0] if known else "HEAD~1"
    (since,) = git("merge-base", base, "HEAD")
    return sorted({*git("diff", "--name-only", "--no-renames", since), *git("ls-files", "-o", "--exclude-standard")})


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.changed", description="The tests that a change can break.")
    parser.add_argument("--base", default="", help="the commit that the change is compared with")
    parser.add_argument("--workers", default=str((os.cpu_count() or 1) + 1), help="as many processes run tests")
    parser.add_argument("--tell", action="store_true", help="say what would run, and run nothing")
    asked = parser.parse_args(words)
    tree = Tree(ROOT)
    choices = [choose(tree, path) for path in changed_paths(ROOT, asked.base)]
    print(*told(choices), sep="\n", flush=True)
    chosen = sorted({test for choice in choices for test in choice.tests or () if not suite_of(test)})
    if asked.tell:
        return 0
    if any(choice.tests is None for choice in choices):
        return subprocess.run(["make", "test"], cwd=ROOT).returncode
    if not chosen:
        print("no test is reached")
        return 0
    return subprocess.run([sys.executable, "-m", "pytest", "-q", "-n", asked.workers, *chosen], cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
