"""
One engine and one set of images for all tests here; where no engine can run, they are skipped by name.

Workers side by side share the engine of `python -m tests.containers.engine`, and make what is missing in turn.
"""

import fcntl
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.containers import stand_ins
from tests.containers.compose import ROOT
from tests.containers.engine import NoEngine, run, running

# Its helper container comes from a registry; what is started here is ended here.
os.environ["TESTCONTAINERS_RYUK_DISABLED"] = "true"
BUILD_SECONDS = 900.0


@pytest.fixture(scope="session")
def engine() -> Iterator[str]:
    """A container engine, by DOCKER_HOST."""
    try:
        with running() as which:
            print(f"containers: {which}", flush=True)
            yield which
    except NoEngine as why:
        pytest.skip(str(why))


@contextmanager
def _in_turn(factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One worker at a time; gives the directory that all of them share."""
    shared = factory.getbasetemp().parent if "PYTEST_XDIST_WORKER" in os.environ else factory.getbasetemp()
    with (shared / "making.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield shared


def _stand_in(factory: pytest.TempPathFactory, *images: str) -> None:
    try:
        with _in_turn(factory):
            for image in images:
                stand_ins.ensure(image)
    except (stand_ins.NoStandIn, RuntimeError, subprocess.SubprocessError) as why:
        pytest.skip(f"no base image: {why}")


@pytest.fixture(scope="session")
def servers(engine: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The images of NATS and Redis."""
    _stand_in(tmp_path_factory, stand_ins.NATS, stand_ins.REDIS)
    return engine


@pytest.fixture(scope="session")
def prometheus(engine: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The image of Prometheus."""
    _stand_in(tmp_path_factory, stand_ins.PROMETHEUS)
    return engine


@pytest.fixture(scope="session")
def images(servers: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Every image of `make images`; of the network the build sees what the machine sees."""
    _stand_in(tmp_path_factory, stand_ins.PYTHONS[0], stand_ins.GO)
    with _in_turn(tmp_path_factory) as shared:
        made = shared / "images.made"
        if not made.exists():
            done = run("make", "-C", str(ROOT), "images", "IMAGE_FLAGS=--network host", timeout=BUILD_SECONDS)
            assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
            made.touch()
    return servers


ORDER = (
    "test_bare_wheels",
    "test_nats_of_the_chart",
    "test_stack",
    "test_images",
    "test_driven_devices",
    "test_real_pods",
    "test_two_hosts",
)
"""Files that take long. Two need none of our images: they come first, and the others wait for images together."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """For workers that take file after file (with `--no-loadscope-reorder`)."""
    items.sort(key=lambda item: ORDER.index(item.path.stem) if item.path.stem in ORDER else len(ORDER))
