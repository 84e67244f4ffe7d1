"""
docker-compose.yml by Compose 2, built from its Go module where the machine has none: it reads the file as Compose 1.29
does, `up --wait` brings everything up healthy, and a job runs.
"""

import os
import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tessera_schemas.shard.services import COMPACT, LAYOUTS, SERVICES
from tests.containers.compose import ROOT, ComposeStack
from tests.containers.engine import docker, run
from tests.kubernetes import binaries

pytestmark = pytest.mark.timeout(900)
PROFILES = ("", "sim", "sim,watch,cli")
SMALL = "deploy/compose/small.yaml"


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


def read(words: list[str], profiles: str, *more: str) -> set[str]:
    """The services that a version of Compose finds in the file, and in `more` over it."""
    files = ":".join(str(ROOT / name) for name in ("docker-compose.yml", *more))
    done = run(*words, "config", "--services", COMPOSE_PROFILES=profiles, COMPOSE_FILE=files)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize("profiles", PROFILES)
def test_both_versions_read_the_same_services(compose_2: str, profiles: str) -> None:
    found = read(compose_2.split(), profiles)
    assert {*SERVICES, "nats", "redis", "identities", "init"} <= found
    if shutil.which("docker-compose"):
        assert read(["docker-compose"], profiles) >= found  # 1.29 names those of other profiles, too


@pytest.mark.parametrize("profiles", PROFILES)
def test_the_small_layout_changes_which_services_are_up_and_nothing_else(compose_2: str, profiles: str) -> None:
    separate = read(compose_2.split(), profiles)
    small = read(compose_2.split(), profiles, SMALL)
    assert small - set(LAYOUTS[COMPACT]) == separate - set(SERVICES)
    assert small - separate == {"followers"}
    assert separate - small == set(LAYOUTS[COMPACT]["followers"])
    if shutil.which("docker-compose"):
        assert read(["docker-compose"], profiles, SMALL) >= small


@pytest.fixture(scope="module")
def stack(images: str, compose_2: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComposeStack]:
    stack = ComposeStack(
        tmp_path_factory.mktemp("stack"), "tessera-two", command=compose_2.split(), settings={"TESSERA_TENANT": "demo"}
    )
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


def test_the_pages_commands_for_a_laptop_run_a_first_job(stack: ComposeStack) -> None:
    """Each as docs/install.md has it, on what was never configured; `compose-up` is what brought the stack up."""
    page = (ROOT / "docs" / "install.md").read_text()
    block = re.search(r"## A laptop with Docker\n.*?```sh\n(.*?)```", page, re.DOTALL)
    assert block is not None
    commands = [line.partition("#")[0].strip() for line in block[1].splitlines()]
    made, up, *told = commands
    assert (made, up) == ("make images", "make compose-up")
    said = [stack.compose(*shlex.split(command.removeprefix("docker compose "))) for command in told]
    assert "succeeded" in said[-1]


def test_a_service_is_scaled_by_compose_2(stack: ComposeStack) -> None:
    stack.make("scale", "admission=2")
    assert len(stack.containers("admission")) == 2


def test_four_containers_of_services_go_on_with_the_same_data(stack: ComposeStack) -> None:
    """As docs/install.md says it: down, one file more, up."""
    stack.make("compose-down")
    small = replace(stack, over=(SMALL,))
    try:
        small.compose("up", "-d", "--wait", profiles=stack.profiles)
        for process in LAYOUTS[COMPACT]:
            (container,) = small.containers(process)
            assert docker("inspect", "-f", "{{.State.Health.Status}}", container).stdout.strip() == "healthy"
        assert not any(small.containers(service) for service in LAYOUTS[COMPACT]["followers"])
        assert "succeeded" in small.cli("submit", "--as", "demo", "--gpus", "1", "--wait", "--", "sleep", "1")
        small.cli("replay", "--verify")
    finally:
        small.make("compose-down")
