"""
Two versions of every service side by side on one ledger, as docs/upgrade.md has it: the previous one from its commit.

Service by service goes over to this version under load, back, and over again. A committer of this version is there from
the beginning, and leads once nobody is left who does not know its format of the ledger. No submit fails, and everything
that is stored stands up to checker and replay. A service that the previous version has not comes in with this one: it
is started when its turn comes, stopped on the way back, and started again.
"""

import os
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from tessera_local.platform import Platform, service_command
from tessera_schemas.ledger import FORMAT
from tessera_schemas.shard.services import SERVICES
from tests.e2e.live import TENANTS, Instance, Live, configuration, eventually
from tests.e2e.platform_checks import assert_all_is_well
from tests.operations.steady_load import load

ROOT = Path(__file__).parents[2]
PREVIOUS = "343ebfbb762c28f39c846b83f71a27ccffc68d29"
LAST = "projection"  # of those that the version before shows to others, by a lease


class Versions:
    """Which of the two versions each service runs; whatever is started next is of it."""

    def __init__(self, previous: Path) -> None:
        self._previous = previous
        packages = previous / "services" / "tessera"
        self.known = tuple(service for service in SERVICES if (packages / service / "main.py").exists())
        self.new = tuple(service for service in SERVICES if service not in self.known)
        self.followers = (*(service for service in self.known if service not in ("scheduler", LAST)), LAST)
        self.old = set(self.known)

    def command(self, services: Sequence[str], shard: str) -> Sequence[str]:
        """The previous version's packages win over everything that is installed; its libraries are ours."""
        if not self.old.intersection(services):
            return service_command(services, shard)
        path = os.pathsep.join(str(self._previous / folder) for folder in ("schemas", "services"))
        return ["env", f"PYTHONPATH={path}", *service_command(services, shard)]

    async def exchange(self, live: Live, service: str) -> None:
        """Stop a service, and start it in the other version."""
        self.old ^= {service}
        await live.platform.restart(service)

    @asynccontextmanager
    async def new_services(self, live: Live) -> AsyncIterator[None]:
        """Those that the previous version has not, started in this one and ready; stopped afterwards."""
        async with AsyncExitStack() as stack:
            for service in self.new:
                instance = await stack.enter_async_context(live.another(service))
                await instance.until_ready()
            yield


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("previous")
    archive = ["git", "-C", str(ROOT), "archive", PREVIOUS, "schemas", "services"]
    done = subprocess.run(archive, capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"the previous version's commit is not in this checkout: {done.stderr.decode().strip()}")
    subprocess.run(["tar", "-x", "-C", str(folder)], input=done.stdout, check=True)
    return folder


async def test_each_service_goes_forward_back_and_forward_under_load(previous: Path, tmp_path: Path) -> None:
    versions = Versions(previous)
    assert {LAST, "scheduler"} <= versions.old
    async with (
        Platform(tmp_path, versions.known, tenants=TENANTS, command=versions.command) as platform,
        Live.on(platform, configuration()) as live,
        live.another("scheduler") as newer,
        AsyncExitStack() as to_the_end,
    ):
        async with load(live):
            async with versions.new_services(live):
                for service in versions.followers:
                    await versions.exchange(live, service)
            for service in versions.followers:
                await versions.exchange(live, service)
            await to_the_end.enter_async_context(versions.new_services(live))
            for service in versions.followers[:-1]:
                await versions.exchange(live, service)
            await platform.stop("scheduler")
            await eventually(lambda: waits_for(newer, f"{LAST}-"), "the new committer names who is behind")
            assert live.state.format < FORMAT
            await versions.exchange(live, LAST)
            await live.until(lambda state: state.format == FORMAT, "the new committer leads, and raises the format")
            await versions.exchange(live, "scheduler")
        assert not versions.old
        await assert_all_is_well(live, by_older_engine=True)


async def waits_for(newer: Instance, instance: str) -> bool:
    """Whether the scheduler stands by, not ready, because of one instance alone."""
    status, checks = await newer.readyz()
    return status == 503 and checks["format"].count("-") == 1 and instance in checks["format"]
