"""NATS and Redis in containers, as docker-compose.yml runs them: bus, store and the whole permission matrix on them."""

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import nats
import pytest
import yaml
from nats.aio.client import Client
from redis.asyncio import Redis
from testcontainers.core.container import DockerContainer

from tessera.kernel.errors import Conflict
from tessera.kernel.ledger.stream import StreamLedger
from tessera.kernel.nats.bus import NatsBus
from tessera.kernel.process.preflight import check_redis, open_bus
from tessera.kernel.process.settings import ServiceSettings, load_settings
from tessera.kernel.provisioning.credential_files import CredentialDirectory
from tessera.kernel.provisioning.credentials import ensure_identities, system_identities, tenant_identity
from tessera.kernel.provisioning.streams import Bounds, ensure_streams, ensure_subscribers
from tests.containers.compose import ROOT
from tests.containers.stand_ins import NATS, REDIS
from tests.permission_matrix import (
    IDENTITIES,
    NEVER,
    READS,
    REDIS_COMMANDS,
    WRITES,
    granted_commands,
    heard,
    may_hear,
    may_publish,
    permitted,
    published,
)

pytestmark = pytest.mark.timeout(900)  # the first one makes the images
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
START_SECONDS = 180.0


@dataclass(frozen=True, slots=True)
class Servers:
    """Where the two listen, and who may do what there."""

    credentials: CredentialDirectory
    nats_url: str
    monitor_url: str
    redis_url: str

    @asynccontextmanager
    async def connected(self, identity: str, refusals: list[str]) -> AsyncIterator[Client]:
        """An identity's connection; what the server refuses is put into `refusals`."""

        async def note(error: Exception) -> None:
            refusals.append(str(error))

        login = self.credentials.read(identity).nats
        inbox = f"_INBOX.{identity}"
        client = await nats.connect(
            self.nats_url, user=login.user, password=login.password, inbox_prefix=inbox, error_cb=note
        )
        try:
            yield client
        finally:
            await client.close()


@pytest.fixture(scope="module")
def credentials(tmp_path_factory: pytest.TempPathFactory) -> CredentialDirectory:
    directory = CredentialDirectory(tmp_path_factory.mktemp("containers") / "credentials", "main")
    tenants = [tenant_identity("acme", ("ci",)), tenant_identity("other")]
    ensure_identities(directory, [*system_identities(), *tenants])
    return directory


@pytest.fixture(scope="module")
def running(servers: str, credentials: CredentialDirectory) -> Iterator[Servers]:
    """Both servers by the images, commands and configuration of docker-compose.yml."""
    own = "/var/lib/tessera"
    bus = DockerContainer(NATS).with_command(COMPOSE["nats"]["command"]).with_exposed_ports(4222, 8222)
    bus = bus.with_volume_mapping(str(ROOT / "deploy/compose/nats.conf"), "/etc/nats/nats.conf")
    bus = bus.with_volume_mapping(str(credentials.nats_file), f"{own}/nats/nats-auth.conf")
    store = DockerContainer(REDIS).with_command(COMPOSE["redis"]["command"]).with_exposed_ports(6379)
    store = store.with_volume_mapping(str(credentials.redis_file), f"{own}/redis/redis-users.acl")
    # A folder for its data; root runs it here, so that no owner matters.
    store = store.with_tmpfs_mount(f"{own}/redis-data").with_kwargs(user="0:0")
    with bus, store:
        _until_said(bus, "Server is ready")
        _until_said(store, "Ready to accept connections")
        yield Servers(
            credentials,
            f"nats://127.0.0.1:{bus.get_exposed_port(4222)}",
            f"http://127.0.0.1:{bus.get_exposed_port(8222)}",
            f"redis://127.0.0.1:{store.get_exposed_port(6379)}/0",
        )


def _until_said(container: DockerContainer, words: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        said = b"".join(container.get_logs()).decode(errors="replace")
        if words in said:
            return
        time.sleep(0.1)
    raise AssertionError(f"{container.image}: {said[-2000:]}")


@pytest.fixture
async def provided(running: Servers) -> Servers:
    """The streams, and the durable subscriber of a tenant."""
    async with running.connected("administrator", []) as admin:
        await ensure_streams(admin, "main", Bounds(ledger_bytes_max=2**28, events_bytes_max=2**28))
        await ensure_subscribers(admin, "main", {"acme": {"ci": []}})
    return running


async def test_a_service_accepts_both_servers_as_the_compose_file_runs_them(provided: Servers) -> None:
    settings = load_settings(
        ServiceSettings,
        credentials_file=provided.credentials.file("projection"),
        nats_url=provided.nats_url,
        nats_monitor_url=provided.monitor_url,
        redis_url=provided.redis_url,
    )
    await (await open_bus(settings, ["LEDGER", "EVENTS", "SNAP", "LEASES"])).close()
    await check_redis(settings)


async def test_the_ledger_is_appended_by_compare_and_swap(provided: Servers) -> None:
    login = provided.credentials.read("scheduler").nats
    bus = await NatsBus.connect(
        provided.nats_url, user=login.user, password=login.password, inbox_prefix="_INBOX.scheduler"
    )
    try:
        ledger = StreamLedger(bus, "main")
        tail = await ledger.tail()
        seq = tail.seq if tail else 0
        await ledger.append(b"first", seq)
        with pytest.raises(Conflict):
            await ledger.append(b"second", seq)
        last = await ledger.tail()
        assert last is not None
        assert (last.seq, last.data) == (seq + 1, b"first")
    finally:
        await bus.close()


@pytest.mark.parametrize("identity", IDENTITIES)
async def test_nats_refuses_an_identity_what_the_matrix_does_not_grant(provided: Servers, identity: str) -> None:
    texts: list[str] = []
    async with provided.connected(identity, texts) as client:
        assert await published(client, identity, texts) == may_publish(identity)
        texts.clear()
        assert await heard(client, "", texts) == may_hear(identity)


@pytest.mark.parametrize("identity", IDENTITIES)
async def test_redis_refuses_a_user_every_command_that_is_not_granted(running: Servers, identity: str) -> None:
    credential = running.credentials.read(identity)
    login = credential.redis or credential.nats  # a tenant's login for NATS opens nothing here
    assert await granted_commands(running.redis_url, login) == REDIS_COMMANDS.get(identity, set())


@pytest.mark.parametrize("identity", sorted(REDIS_COMMANDS))
async def test_redis_refuses_a_user_keys_of_another_shard(running: Servers, identity: str) -> None:
    login = running.credentials.read(identity).redis
    assert login is not None
    client = Redis.from_url(running.redis_url, username=login.user, password=login.password)
    try:
        assert [await permitted(client, *command) for command in READS] == [True] * len(READS)
        assert [await permitted(client, *command) for command in WRITES] == [identity == "projection"] * len(WRITES)
        assert [await permitted(client, *command) for command in NEVER] == [False] * len(NEVER)
    finally:
        await client.aclose()
