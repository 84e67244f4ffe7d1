"""The churn replay compiled by numba and in plain Python: one source, one result."""

import os
import subprocess
import sys

import pytest

STORY = """
from tessera.lab.churn.replay import Ready, Span, bound, replay
from tests.unit.lab.churn.made import mixed
ready = Ready(mixed(pods=20), 105, 1, Span(0, 1))
for outcome in (replay(ready, "bestfit", True), bound(ready)):
    print(outcome.arrived, outcome.waiting, outcome.moves, outcome.hours.tolist())
"""


def told(more: dict[str, str]) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_DISABLE_JIT"}
    environment |= {"PYTHONPATH": os.pathsep.join([*(path for path in sys.path if path), os.getcwd()]), **more}
    found = subprocess.run([sys.executable, "-c", STORY], capture_output=True, text=True, env=environment, check=False)
    assert found.returncode == 0, found.stderr
    return found.stdout


def test_compiled_and_plain_replays_count_the_same_hours() -> None:
    pytest.importorskip("numba")
    compiled = told({})
    assert len(compiled.splitlines()) == 2
    assert told({"NUMBA_DISABLE_JIT": "1"}) == compiled
