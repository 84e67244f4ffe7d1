"""
Each mutant in a copy of the sources, and the tests that must notice: how many of them ran until one failed.

`python -m tests.mutants [NAME ...]`; a mutant that survives is a missing test, and ends this with 1.
"""

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from shutil import copytree, ignore_patterns
from tempfile import TemporaryDirectory

from tests.mutants.mutant import Mutant, mutants

ROOT = Path(__file__).parents[2]
PARTS = ("services", "schemas", "tests")
SECONDS_MAX = 300.0
ENDED = re.compile(r"(\d+) (passed|failed|errors?)")


def tests_until_killed(mutant: Mutant, tree: Path) -> tuple[bool, str]:
    """Whether a test noticed, and after how many, or why nobody can say."""
    if refused := mutant.apply(tree):
        return False, f"does not apply: {refused}"
    paths = os.pathsep.join(str(tree / part) for part in ("services", "schemas", ""))
    words = ("-m", "pytest", "-x", "-q", "-n0", "-p", "no:cacheprovider", *mutant.killers)
    try:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=tree,
            env={**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return True, f"killed: its tests did not come to an end in {SECONDS_MAX:.0f} s"
    finally:
        mutant.apply(tree, "--reverse")
    ended = done.stdout.rstrip().rpartition("\n")[2]
    counts = Counter({what.rstrip("s"): int(number) for number, what in ENDED.findall(ended)})
    if done.returncode == 1 and counts["failed"]:
        return True, f"killed by test {counts.total()}"
    return False, "SURVIVES" if done.returncode == 0 else f"its tests cannot be run: {ended}"


def main(names: list[str]) -> int:
    """Exit code 1 when one survives."""
    survivors = 0
    with TemporaryDirectory() as folder:
        tree = Path(folder)
        for part in PARTS:
            copytree(ROOT / part, tree / part, ignore=ignore_patterns("__pycache__", "*.egg-info"))
        (tree / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
        for mutant in mutants():
            if not names or mutant.name in names:
                killed, said = tests_until_killed(mutant, tree)
                survivors += not killed
                print(f"{mutant.name:<26} {said}", flush=True)
    print(f"{survivors} survive")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
