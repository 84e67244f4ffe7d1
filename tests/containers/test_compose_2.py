"""
docker-compose.yml by Compose 2, built from its Go module where the machine has none: it reads the file as Compose 1.29
does, `up --wait` brings everything up healthy, and a job runs.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tessera_schemas.services import SERVICES
from tests.containers.compose import ROOT, ComposeStack
from tests.containers.engine import docker, run
from tests.e2e.live import configuration, job
from tests.kubernetes import binaries

pytestmark = pytest.mark.timeout(900)
PROFILES = ("", "sim", "sim,watch,cli")


@pytest.fixture(scope="module")
def compose_2() -> str:
    """The program; where it can neither be found nor built the tests are skipped with the reason, in CI they fail."""
    if run("docker", "compose", "version").stdout.startswith("Docker Compose version v2"):
        return "docker compose"
    try:
        return str(binaries.find("compose-2"))
    except binaries.Unavailable as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


def read(words: list[str], profiles: str) -> set[str]:
    """The services that a version of Compose finds in the file."""
    done = run(*words, "-f", str(ROOT / "docker-compose.yml"), "config", "--services", COMPOSE_PROFILES=profiles)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize("profiles", PROFILES)
def test_both_versions_read_the_same_services(compose_2: str, profiles: str) -> None:
    found = read(compose_2.split(), profiles)
    assert {*SERVICES, "nats", "redis", "identities", "init"} <= found
    if shutil.which("docker-compose"):
        assert read(["docker-compose"], profiles) >= found  # 1.29 names those of other profiles, too


@pytest.fixture(scope="module")
def stack(images: str, compose_2: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComposeStack]:
    stack = ComposeStack(tmp_path_factory.mktemp("stack"), "tessera-two", command=compose_2.split())
    stack.compose("down", "-v", "--remove-orphans")
    try:
        stack.compose("up", "-d", "--wait", profiles=stack.profiles)
        yield stack
    finally:
        stack.compose("down", "-v", "--remove-orphans", "-t", "2")


def test_up_waits_until_every_service_is_healthy(stack: ComposeStack) -> None:
    for service in SERVICES:
        (container,) = stack.containers(service)
        assert docker("inspect", "-f", "{{.State.Health.Status}}", container).stdout.strip() == "healthy"


def test_a_job_of_one_accelerator_runs_and_succeeds(stack: ComposeStack, tmp_path: Path) -> None:
    stack.configure(configuration())
    file = tmp_path / "job.json"
    file.write_text(job("story", seconds=0.5).model_dump_json(exclude_defaults=True))
    assert "succeeded" in stack.cli("submit", "--as", "lab", "--key", "story", "--wait", "-f", "/in.yaml", file=file)
    stack.make("scale", "admission=2")
    assert len(stack.containers("admission")) == 2
