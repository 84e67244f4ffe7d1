"""The whole docker-compose.yml on a real engine, as docs/install.md says: a story, more replicas, faults under load."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
import yaml

from tessera_schemas.shard.services import SERVICES
from tests.containers.compose import ROOT, ComposeStack
from tests.containers.engine import docker
from tests.e2e.live import SECONDS, TENANTS, Live, configuration, eventually, job, told
from tests.e2e.platform_checks import assert_all_is_well

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]
PATIENCE = 180.0
AWAY_SECONDS = 30.0


@pytest.fixture(scope="module")
def stack(images: str, tmp_path_factory: pytest.TempPathFactory) -> "AsyncIterator[ComposeStack]":
    stack = ComposeStack(tmp_path_factory.mktemp("stack"), "tessera-tests")
    stack.compose("down", "-v", "--remove-orphans")
    try:
        stack.make("compose-up")
        yield stack
    finally:
        stack.compose("down", "-v", "--remove-orphans", "-t", "2")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(stack: ComposeStack) -> AsyncIterator[Live]:
    """A configuration in force with two tenants, let in as the docs say it."""
    for service in SERVICES:
        await until(lambda service=service: stack.is_ready(service), f"{service} is ready")
    stack.configure(configuration())
    async with Live.on(stack) as live:  # type: ignore[arg-type]  # it has what a live test looks at
        yield live


async def until(condition: Callable[[], bool], what: str) -> None:
    """Wait in a thread, since asking the engine blocks."""
    await eventually(lambda: asyncio.to_thread(condition), what, PATIENCE)


@asynccontextmanager
async def load(live: Live) -> AsyncIterator[None]:
    """
    Both tenants submit without pause; every submit has to be acknowledged, whatever is down meanwhile.

    At least ten jobs are handed in, and the first failed submit fails the test.
    """
    over = asyncio.Event()

    async def submit(tenant: str) -> None:
        number = 0
        while number < 5 or not over.is_set():
            await live.submit(job(f"load-{number}", seconds=0.2), tenant, publish_seconds=PATIENCE)
            number += 1
            await asyncio.sleep(0.3)

    tasks = [asyncio.create_task(submit(tenant)) for tenant in TENANTS]
    try:
        yield
    finally:
        over.set()
        await asyncio.gather(*tasks)


async def test_every_container_is_without_root_rights_and_cannot_write_its_root(stack: ComposeStack) -> None:
    for service in (*SERVICES, "nats", "redis"):
        (container,) = stack.containers(service)
        said = docker(
            "inspect", "-f", "{{.Config.User}} {{.HostConfig.ReadonlyRootfs}} {{.HostConfig.CapDrop}}", container
        )
        assert said.stdout.split() == ["10001:10001", "true", "[ALL]"]
        limits = docker("inspect", "-f", "{{.HostConfig.Memory}} {{.HostConfig.NanoCpus}}", container).stdout.split()
        assert all(int(limit) > 0 for limit in limits)


async def test_a_service_finds_its_own_credential_and_no_other(stack: ComposeStack) -> None:
    (container,) = stack.containers("preemption")
    assert docker("exec", container, "ls", "/var/lib/tessera").stdout.split() == ["own"]
    assert docker("exec", container, "ls", "/var/lib/tessera/own").stdout.split() == ["identity.json"]


async def test_a_job_of_one_accelerator_runs_and_succeeds(live: Live, stack: ComposeStack, tmp_path: Path) -> None:
    file = tmp_path / "job.json"
    file.write_text(job("story", seconds=0.5).model_dump_json(exclude_defaults=True))
    said = await asyncio.to_thread(
        stack.cli, "submit", "--as", "lab", "--key", "story", "--wait", "-f", "/in.yaml", file=file
    )
    live.acknowledged.append(("lab", "story"))
    assert "succeeded" in said
    async with live.listening() as heard:
        done = await live.submit(job("watched", seconds=0.5))
        events = await heard.of(done.job_id, "succeeded")
    kinds = [event.type.split(".")[3] for event in events]
    assert [kind for kind in kinds if kind in ("allocated", "running", "succeeded")] == [
        "allocated",
        "running",
        "succeeded",
    ]


async def test_the_gateway_shows_the_log_of_a_job_that_runs(live: Live, stack: ComposeStack) -> None:
    token = await asyncio.to_thread(stack.new_token, "lab")
    done = await live.submit(job("logged", seconds=600))
    await live.until_phase(done.job_id, "running")
    (gateway,) = stack.containers("gateway")
    url = f"http://{docker('port', gateway, '8480').stdout.split()[0]}/v1/jobs/{done.job_id}/logs"
    said: list[str] = []
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as http:

        async def is_the_log() -> bool:
            try:
                async with http.get(url) as answer:
                    said.append(f"{answer.status} {await answer.text()}")
            except aiohttp.ClientError as error:
                said.append(repr(error))
            return said[-1].startswith("200 ") and "simulated program, rank 0: 600 s of work" in said[-1]

        with told(lambda: f"no log at {url}: {said[-1]}"):
            async with asyncio.timeout(SECONDS):
                while not await is_the_log():
                    await asyncio.sleep(0.5)
    await live.clients["lab"].cancel(done.job_id, now=True)
    await live.until_ended(done.job_id)


async def test_prometheus_reads_every_service_and_rings_by_our_rules(
    live: Live, stack: ComposeStack, prometheus: str
) -> None:
    """As the profile `watch` brings it up."""
    await asyncio.to_thread(stack.compose, "up", "-d", "--no-recreate", "prometheus")
    url = f"http://127.0.0.1:{stack.prometheus_port}/api/v1"
    async with aiohttp.ClientSession() as http:

        async def asked(path: str) -> dict[str, Any]:
            try:
                async with http.get(f"{url}/{path}") as answer:
                    return dict((await answer.json())["data"])
            except (aiohttp.ClientError, KeyError):
                return {}

        async def all_are_up() -> bool:
            targets = (await asked("targets")).get("activeTargets", ())
            return {one["labels"]["service"] for one in targets if one["health"] == "up"} == set(SERVICES)

        await eventually(all_are_up, "every service is read", PATIENCE)
        groups = (await asked("rules"))["groups"]
    ours = yaml.safe_load((ROOT / "deploy" / "alerts.yaml").read_text())["groups"]
    assert {rule["name"] for group in groups for rule in group["rules"]} == {
        rule["alert"] for group in ours for rule in group["rules"]
    }


async def test_admission_and_binder_scale_under_load(live: Live, stack: ComposeStack) -> None:
    async with load(live):
        await asyncio.to_thread(stack.make, "scale", "admission=3", "binder=2")
        await until(lambda: stack.is_ready("admission", 3), "three replicas of admission are ready")
        await until(lambda: stack.is_ready("binder", 2), "two replicas of the binder are ready")
    await live.until_idle()


@pytest.mark.nightly("three minutes; processes of their own are restarted so for each change")
async def test_each_service_restarts_in_turn_under_load(live: Live, stack: ComposeStack) -> None:
    async with load(live):
        for service in SERVICES:
            replicas = len(stack.containers(service))
            await asyncio.to_thread(stack.compose, "restart", "-t", "15", service)
            await until(lambda s=service, r=replicas: stack.is_ready(s, r), f"{service} is ready again")
    await live.until_idle()


async def test_a_scheduler_without_network_for_half_a_minute_is_followed_again(live: Live, stack: ComposeStack) -> None:
    (container,) = stack.containers("scheduler")
    network = f"{stack.project}_default"
    async with load(live):
        docker("network", "disconnect", "-f", network, container)
        await asyncio.sleep(AWAY_SECONDS)
        docker("network", "connect", "--alias", "scheduler", network, container)
        await until(lambda: stack.is_ready("scheduler"), "the scheduler is ready again")
    await live.until_idle()


@pytest.mark.parametrize("server", ["redis", "nats"])
async def test_a_server_that_is_stopped_and_started_loses_nothing(live: Live, stack: ComposeStack, server: str) -> None:
    async with load(live):
        await asyncio.to_thread(stack.compose, "stop", "-t", "10", server)
        await asyncio.sleep(5)
        await asyncio.to_thread(stack.compose, "start", server)
        for service in SERVICES:
            replicas = len(stack.containers(service))
            await until(lambda s=service, r=replicas: stack.is_ready(s, r), f"{service} is ready again")
    await live.until_idle()


async def test_checkers_and_replay_find_nothing_wrong(live: Live, stack: ComposeStack) -> None:
    await assert_all_is_well(live)
    assert "ok: every record is valid" in await asyncio.to_thread(stack.cli, "replay", "--verify")
