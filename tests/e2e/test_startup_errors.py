"""Something is missing or wrong when a service starts: one line that says what, where, how to mend it; exit code 5."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from tessera.kernel.process.settings import CONFIG_FILE_VARIABLE
from tessera_local.free_port import free_port
from tessera_local.platform import NATS, Platform
from tests.e2e.live import Said, eventually, tessera
from tests.servers import NatsServer, RedisServer, start_nats, start_redis

pytestmark = pytest.mark.asyncio(loop_scope="module")

UNAVAILABLE, USAGE = 5, 2


@dataclass(frozen=True, slots=True)
class Servers:
    """Everything that services need, without any service; a NATS without streams and a Redis that evicts."""

    platform: Platform
    empty_nats: NatsServer
    evicting_redis: RedisServer

    async def start(self, service: str, **changes: str) -> Said:
        """Run a service with its right settings, but for `changes`; it must end by itself."""
        settings = {**self.platform.environment(service), "TESSERA_CONNECT_SECONDS": "1", **changes}
        return await tessera("run", service, environment=settings)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def servers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Servers]:
    folder = tmp_path_factory.mktemp("servers")
    empty = start_nats(folder / "empty-nats")
    evicting = start_redis(folder / "evicting-redis", "--maxmemory-policy", "allkeys-lru")
    try:
        async with Platform(folder / "up", services=[], tenants=["lab"]) as platform:
            yield Servers(platform, empty, evicting)
    finally:
        empty.stop()
        evicting.stop()


def assert_one_line(said: Said, *words: str, code: int = UNAVAILABLE) -> None:
    """One line on stderr, nothing else, and each of `words` in it."""
    assert said.code == code, said
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert line.startswith("error: ")
    assert "Traceback" not in line
    missing = [word for word in words if word not in line]
    assert not missing, line


async def test_no_nats_server(servers: Servers) -> None:
    url = f"nats://127.0.0.1:{free_port()}"
    said = await servers.start("scheduler", TESSERA_NATS_URL=url)
    assert_one_line(said, f"no NATS server at {url}", "start one, or correct TESSERA_NATS_URL")


async def test_a_nats_server_that_does_not_know_us(servers: Servers) -> None:
    said = await servers.start("queueing", TESSERA_NATS_PASSWORD="wrong")
    assert_one_line(said, "refuses user 'queueing'", "TESSERA_CREDENTIALS_FILE")


async def test_a_port_on_which_something_else_listens(servers: Servers) -> None:
    url = servers.platform.redis.url.replace("redis://", "nats://").removesuffix("/0")
    assert_one_line(await servers.start("scheduler", TESSERA_NATS_URL=url), f"no NATS server at {url}")


async def test_a_nats_server_without_our_streams(servers: Servers) -> None:
    empty = servers.empty_nats
    settings = {"TESSERA_NATS_URL": empty.url, "TESSERA_NATS_USER": "admin", "TESSERA_NATS_PASSWORD": "admin"}
    assert_one_line(await servers.start("scheduler", **settings), "stream ", "stream not found", "Run `tessera init`")


async def test_the_streams_of_another_shard(servers: Servers) -> None:
    settings = servers.platform.environment("scheduler")
    said = await tessera("run", "scheduler", "--shard", "elsewhere", environment=settings)
    assert_one_line(said, "_elsewhere", "is it ours", "`tessera init`")


async def test_a_nats_server_that_acknowledges_before_it_synced(servers: Servers) -> None:
    said = await servers.start("scheduler", TESSERA_ALLOW_UNSYNCED="false")
    where = f"NATS monitoring at {servers.platform.nats.monitor_url}"
    assert_one_line(said, where, "sync_interval: always", "TESSERA_ALLOW_UNSYNCED=true")


async def test_a_nats_server_that_lets_anybody_in(tmp_path: Path) -> None:
    """Refused by `init` and by a service that starts, and red on the one that ran when it came back so."""
    async with Platform(tmp_path / "up", services=["queueing"], cluster=False, sync=True) as platform:
        (config,) = platform.directory.glob("**/nats.conf")
        config.write_text("".join(line for line in config.open() if not line.startswith("include ")))
        await platform.restart(NATS)

        async def is_red() -> bool:
            return any("lets anybody in" in text for text in (await platform.ready("queueing")).values())

        await eventually(is_red, "what runs is not ready")
        settings = {**platform.environment("queueing"), "TESSERA_PORT_FILE": str(tmp_path / "port")}
        assert_one_line(await tessera("run", "queueing", environment=settings), "lets anybody in", "nats-auth.conf")
        settings = {"TESSERA_NATS_URL": platform.nats.url, "TESSERA_ALLOW_UNSYNCED": "false"}
        said = await tessera("init", "--credentials", str(platform.directory / "credentials"), environment=settings)
        assert said.code == UNAVAILABLE
        assert "lets anybody in" in said.err


async def test_no_monitoring_to_ask_whether_it_syncs(servers: Servers) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    said = await servers.start("scheduler", TESSERA_ALLOW_UNSYNCED="false", TESSERA_NATS_MONITOR_URL=url)
    assert_one_line(said, f"NATS monitoring at {url}", "set TESSERA_NATS_MONITOR_URL")


@pytest.mark.parametrize("service", ["admission", "projection"])
async def test_no_redis(servers: Servers, service: str) -> None:
    url = f"redis://127.0.0.1:{free_port()}/0"
    said = await servers.start(service, TESSERA_REDIS_URL=url)
    assert_one_line(said, f"Redis at {url}: does not answer", "start it or set TESSERA_REDIS_URL")


async def test_a_redis_that_does_not_know_us(servers: Servers) -> None:
    said = await servers.start("projection", TESSERA_REDIS_PASSWORD="wrong")
    assert_one_line(said, f"Redis at {servers.platform.redis.url}: refuses us", "ACL file")


async def test_a_redis_that_evicts(servers: Servers) -> None:
    settings = {"TESSERA_REDIS_USER": "", "TESSERA_REDIS_PASSWORD": "", "TESSERA_CREDENTIALS_FILE": ""}
    login = servers.platform.credentials.read("projection").nats
    settings |= {"TESSERA_NATS_USER": login.user, "TESSERA_NATS_PASSWORD": login.password}
    said = await servers.start("projection", TESSERA_REDIS_URL=servers.evicting_redis.url, **settings)
    assert_one_line(said, "evicts keys (allkeys-lru)", "`maxmemory-policy noeviction`")


@pytest.mark.parametrize("service", ["binder", "reclamation"])
async def test_no_cluster(servers: Servers, service: str) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    said = await servers.start(service, TESSERA_CLUSTER_URL=url)
    assert_one_line(said, f"Kubernetes API at {url}: does not answer", "start it or set TESSERA_CLUSTER_URL")


async def test_a_cluster_that_does_not_know_us(servers: Servers) -> None:
    said = await servers.start("binder", TESSERA_CLUSTER_TOKEN="wrong")
    assert_one_line(said, f"Kubernetes API at {servers.platform.cluster_url}: refuses us (401", "its token")


async def test_something_that_is_no_cluster(servers: Servers) -> None:
    said = await servers.start("binder", TESSERA_CLUSTER_URL=servers.platform.nats.monitor_url)
    assert_one_line(said, f"Kubernetes API at {servers.platform.nats.monitor_url}: ", "set TESSERA_CLUSTER_URL")


async def test_services_that_need_neither_redis_nor_cluster_do_not_ask_for_them(servers: Servers) -> None:
    """Their next complaint is another one: they got past both."""
    nowhere = {"TESSERA_REDIS_URL": "redis://127.0.0.1:1/0", "TESSERA_CLUSTER_URL": "http://127.0.0.1:1"}
    said = await servers.start("scheduler", TESSERA_HTTP_HOST="203.0.113.1", **nowhere)
    assert_one_line(said, "health and metrics: cannot listen on 203.0.113.1", "TESSERA_HTTP_HOST")


async def test_credentials_that_are_not_there(servers: Servers, tmp_path: Path) -> None:
    said = await servers.start("scheduler", TESSERA_CREDENTIALS_FILE=str(tmp_path / "none.json"))
    assert_one_line(said, "setting credentials_file: cannot read", "none.json", "tessera init")


@pytest.mark.parametrize(
    ("setting", "value"),
    [("TESSERA_LEASE_SECONDS", "0"), ("TESSERA_NATS_URL", "http://x"), ("TESSERA_HTTP_PORT", "many")],
)
async def test_a_setting_that_is_wrong(servers: Servers, setting: str, value: str) -> None:
    assert_one_line(await servers.start("scheduler", **{setting: value}), "setting ", f"set {setting}")


async def test_a_settings_file_that_is_broken(servers: Servers, tmp_path: Path) -> None:
    file = tmp_path / "tessera.toml"
    file.write_text("lease_seconds = [")
    assert_one_line(await servers.start("scheduler", **{CONFIG_FILE_VARIABLE: str(file)}), str(file), "is not TOML")


async def test_a_service_that_does_not_exist(servers: Servers) -> None:
    assert_one_line(await servers.start("admiral"), "service admiral: there is none", "admission", code=USAGE)


async def test_a_health_port_that_is_taken(servers: Servers) -> None:
    port = servers.platform.nats.monitor_url.rpartition(":")[2]
    said = await servers.start("scheduler", TESSERA_HTTP_PORT=port)
    assert_one_line(said, f"127.0.0.1:{port}", "TESSERA_HTTP_PORT")
