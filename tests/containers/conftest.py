"""One engine, one set of images and one stack for all tests here; where no engine can run, they are skipped by name."""

import os
import subprocess
from collections.abc import Iterator

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


def _stand_in(*images: str) -> None:
    try:
        for image in images:
            stand_ins.ensure(image)
    except (stand_ins.NoStandIn, RuntimeError, subprocess.SubprocessError) as why:
        pytest.skip(f"no base image: {why}")


@pytest.fixture(scope="session")
def servers(engine: str) -> str:
    """The images of NATS and Redis."""
    _stand_in(stand_ins.NATS, stand_ins.REDIS)
    return engine


@pytest.fixture(scope="session")
def prometheus(engine: str) -> str:
    """The image of Prometheus."""
    _stand_in(stand_ins.PROMETHEUS)
    return engine


@pytest.fixture(scope="session")
def images(servers: str) -> str:
    """Every image of `make images`; of the network the build sees what the machine sees."""
    _stand_in(stand_ins.PYTHONS[0])
    done = run("make", "-C", str(ROOT), "images", "IMAGE_FLAGS=--network host", timeout=BUILD_SECONDS)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return servers
