"""`make test-changed` chooses every test that a change can break, and says why."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests import changed

FILES = {
    "services/tessera/low.py": "ONE = 1\n",
    "services/tessera/middle.py": "def later():\n    from tessera.low import ONE\n    return ONE\n",
    "services/tessera/apart.py": "TWO = 2\n",
    "services/tessera/data.json": "{}\n",
    "services/tessera/room/plugins/__init__.py": "from pkgutil import iter_modules\nprint([*iter_modules(__path__)])\n",
    "services/tessera/room/plugins/one.py": "pass\n",
    "deploy/make_chart.py": "print()\n",
    "docs/page.md": "A page.\n",
    "tests/helper.py": "from tessera import middle\n",
    "tests/unit/test_middle.py": "from tests.helper import middle\n",
    "tests/unit/test_apart.py": "from tessera.apart import TWO\n",
    "tests/unit/test_plugins.py": "import tessera.room.plugins\n",
    "tests/unit/test_chart.py": "SCRIPT = 'deploy/make_chart.py'\n",
    "tests/unit/test_by_name.py": "MODULE = 'tessera.low'\n",
    "tests/unit/docs/test_docs.py": "pass\n",
    "tests/unit/project/test_words.py": "pass\n",
    "tests/steps/test_srun.py": "pass\n",
    "tests/e2e/conftest.py": "from tessera import apart\n",
    "tests/e2e/test_life.py": "pass\n",
}
RULES = {"tests/unit/docs/test_docs.py", "tests/unit/project/test_words.py"}


@pytest.fixture
def tree(tmp_path: Path) -> changed.Tree:
    """A small project."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return changed.Tree(tmp_path)


@pytest.mark.parametrize(
    ("path", "tests"),
    [
        # A lazy import counts, and so does a name in a text.
        ("services/tessera/low.py", {"tests/unit/test_middle.py", "tests/unit/test_by_name.py"}),
        ("services/tessera/apart.py", {"tests/unit/test_apart.py", "tests/e2e/test_life.py"}),  # a conftest counts
        ("services/tessera/room/plugins/one.py", {"tests/unit/test_plugins.py"}),  # found by the package's own search
        ("deploy/make_chart.py", {"tests/unit/test_chart.py"}),
        ("tests/unit/test_apart.py", {"tests/unit/test_apart.py"}),
        ("docs/page.md", set()),
    ],
)
def test_a_change_reaches_the_tests_that_use_it_and_the_rules_of_all_sources(
    tree: changed.Tree, path: str, tests: set[str]
) -> None:
    found = changed.choose(tree, path).tests
    assert found == tests | RULES


@pytest.mark.parametrize("path", ["requirements.lock", "tests/conftest.py", "unheard-of.toml"])
def test_what_counts_for_all_tests_or_is_not_known_runs_them_all(tree: changed.Tree, path: str) -> None:
    assert changed.choose(tree, path).tests is None


def test_a_suite_of_minutes_is_named_and_not_run(tree: changed.Tree) -> None:
    lines = [*changed.told([changed.choose(tree, "services/tessera/apart.py")])]
    assert lines == [
        "services/tessera/apart.py: 3 files of tests (imports, and the rules of all sources)",
        "also run: make test-platforms",
    ]


def test_the_command_tells_what_it_would_run_of_this_very_tree() -> None:
    words = [sys.executable, "-m", "tests.changed", "--base", "HEAD", "--tell"]
    done = subprocess.run(words, cwd=changed.ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_change_of_the_program_in_go_reaches_the_tests_that_run_it(tree: changed.Tree) -> None:
    assert changed.choose(tree, "services/tessera_steps/pod.go").tests == {"tests/steps/test_srun.py"}
