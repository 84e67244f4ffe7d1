"""The program of steps, built once for these tests; without Go they are skipped, but in CI."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.steps.pods import Pods, build, go, pods_of_a_run


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not go():
        assert not os.environ.get("CI"), "there is no go, which builds the program of steps"
        pytest.skip("there is no go, which builds the program of steps")
    return build(tmp_path_factory.mktemp("steps"))


@pytest.fixture
def pods(program: Path, tmp_path: Path) -> Callable[..., AbstractContextManager[Pods]]:
    """`pods(count, script, variables)`: a run of so many pods."""
    return lambda count, script, variables=None: pods_of_a_run(program, tmp_path, count, script, variables)
