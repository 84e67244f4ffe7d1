"""
One control plane for all tests of a run, since starting it takes longer than most of them.

On a machine that has no such programs and cannot build them the tests are skipped with the reason; in CI they fail,
but for those on a program that is built only by name.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes.binaries import BUILT_BY_NAME, Unavailable
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.live import KubernetesLive
from tests.kubernetes.users import Users

_RUNNING: list[ControlPlane] = []


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """etcd, API server, controllers and KWOK; empty but for what the tests before have left."""
    with running(tmp_path_factory.mktemp("kubernetes")) as plane:
        yield plane


@pytest.fixture(scope="module")
def own_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """One for a module that breaks it, or looks at everything in it."""
    with running(tmp_path_factory.mktemp("kubernetes")) as plane:
        yield plane


@pytest.fixture
def users(live: KubernetesLive) -> Users:
    """The people of a tenant's namespace, on the platform of the test's own file."""
    return Users(live)


@contextmanager
def running(directory: Path, gates: Sequence[str] = (), **more: Any) -> Iterator[ControlPlane]:
    try:
        plane = ControlPlane(directory, **{"lease_seconds": 10, "silence_seconds": 20, "gates": gates, **more})
    except Unavailable as error:
        if os.environ.get("CI") and more.get("api_server") not in BUILT_BY_NAME:
            raise
        pytest.skip(str(error))
    with plane:
        _RUNNING.append(plane)
        yield plane
        _RUNNING.remove(plane)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """A failure shows what the parts of the control plane said last."""
    report = (yield).get_result()
    if report.failed:
        for plane in _RUNNING:
            for name, tail in plane.log_tails().items():
                report.sections.append((f"{name}, last lines", tail))
