"""
Services that share a process, as they really run: each keeps its identity, fails and comes back alone, the process may
be killed, and a shard goes from one layout to the other and back while it works.
"""

import json
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from tessera.kernel.tasks.task_group import gather_all
from tessera_local.platform import EACH, Platform
from tessera_schemas.shard.services import COMPACT, LAYOUTS, SEPARATE, SERVICES, SINGLE
from tests.e2e.live import TENANTS, Instance, Live, configuration, eventually
from tests.e2e.platform_checks import assert_all_is_well
from tests.operations.steady_load import load

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROCESS = "services"
FOLLOWERS = LAYOUTS[COMPACT]["followers"]


@pytest.fixture(scope="module")
def bugs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bugs")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(bugs: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    """All nine in one process, in each of which a bug can be planted."""

    def command(services: Sequence[str], shard: str) -> Sequence[str]:
        return [sys.executable, "-m", "tests.operations.failing", str(bugs), "+".join(services), shard]

    platform = Platform(tmp_path_factory.mktemp("single"), tenants=TENANTS, layout=SINGLE, command=command)
    async with platform, Live.on(platform, configuration()) as live:
        yield live


def said(live: Live, event: str) -> list[dict[str, Any]]:
    """Lines of the process with this event."""
    lines = (live.home / "logs" / f"{PROCESS}.log").read_text().splitlines()
    return [line for text in lines if text.startswith("{") and (line := json.loads(text))["event"] == event]


def starts(live: Live) -> Counter[str]:
    return Counter(line["service"] for line in said(live, "service_starts"))


async def test_each_service_of_a_process_is_itself_at_nats(live: Live) -> None:
    """By its own user, so that the server lets it do what it lets that one, and under its own name."""
    url = f"{live.platform.nats.monitor_url}/connz?auth=1"
    async with aiohttp.ClientSession() as http, http.get(url) as answer:
        connections = (await answer.json())["connections"]
    users = {(one["name"].rpartition("-")[0], one["authorized_user"]) for one in connections if one.get("name")}
    assert {(service, service) for service in SERVICES} == {pair for pair in users if pair[0] in SERVICES}


@pytest.mark.parametrize("service", SERVICES)
async def test_a_bug_in_a_service_of_a_process_restarts_that_service_alone(
    live: Live, bugs: Path, service: str
) -> None:
    pid, before = live.platform.pid(service), starts(live)
    failed = len(said(live, "service_failed"))
    (bugs / service).touch()
    try:
        await eventually(lambda: len(said(live, "service_failed")) > failed, f"{service} meets its bug")
    finally:
        (bugs / service).unlink()
    await eventually(lambda: starts(live)[service] > before[service], f"{service} is started again")
    await live.until_ready(service)
    assert {line["service"] for line in said(live, "service_failed")[failed:]} == {service}
    assert (starts(live) - before).keys() == {service}
    assert live.platform.pid(service) == pid


async def test_jobs_go_on_over_a_kill_of_the_process_and_everything_can_be_accounted_for(live: Live) -> None:
    """As the kernel kills one whose memory is out: all nine go, and come back by what is stored."""
    async with load(live):
        await live.kill("scheduler")
        for service in SERVICES:
            await live.until_ready(service)
    await assert_all_is_well(live)


class Together:
    """The services of a group in one process, beside a platform that does not know of it."""

    def __init__(self, live: Live, services: Sequence[str]) -> None:
        self._live, self._services = live, services

    async def start(self, stack: AsyncExitStack) -> None:
        command = [sys.executable, "-m", "tessera", "run", "+".join(self._services)]
        started = await stack.enter_async_context(self._live.another(EACH, command, TESSERA_HTTP_PORT="0"))
        for service in self._services:
            one: Instance = replace(started, port_file=Path(str(started.port_file).replace(EACH, service)))
            await one.until_ready()


async def test_a_shard_goes_from_separate_to_compact_and_back_under_load(tmp_path: Path) -> None:
    async with (
        Platform(tmp_path, tenants=TENANTS, layout=SEPARATE) as platform,
        Live.on(platform, configuration()) as live,
    ):
        async with load(live):
            async with AsyncExitStack() as group:
                await Together(live, FOLLOWERS).start(group)
                await gather_all(*(platform.stop(service) for service in FOLLOWERS))
                await goes_on(live, "the six in one process")
                await gather_all(*(platform.start(service) for service in FOLLOWERS))
            await goes_on(live, "the six apart again")
        await assert_all_is_well(live)


async def goes_on(live: Live, by: str) -> None:
    n = live.state.n
    await live.until(lambda state: state.n > n + 4, f"the ledger goes on by {by}")
