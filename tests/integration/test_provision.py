"""`init` on real servers: made once, drift refused, and every identity can do what the table says and nothing else."""

import dataclasses
import json
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import nats
import pytest
import pytest_asyncio
from nats.aio.client import Client
from nats.js.api import DiscardPolicy, StoreCompression
from redis.asyncio import Redis
from redis.exceptions import AuthenticationError, ResponseError

from tessera.kernel.errors import StartupError
from tessera.kernel.nats.once import connect_once
from tessera.kernel.process.preflight import check_redis, open_bus
from tessera.kernel.process.settings import ServiceSettings, load_settings
from tessera.kernel.provisioning.credentials import reload_nats
from tessera.kernel.provisioning.streams import Bounds, ensure_streams, ensure_subscribers
from tessera_local.platform import EVENTS_BYTES_MAX, LEDGER_BYTES_MAX, Platform
from tessera_schemas import subjects
from tests.forked_command import run_command
from tests.permission_matrix import (
    IDENTITIES,
    NEVER,
    READS,
    SERVICES,
    TENANT_NEXT,
    WRITES,
    all_answered,
    heard,
    may_hear,
    may_publish,
    permitted,
    published,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

BOUNDS = Bounds(ledger_bytes_max=LEDGER_BYTES_MAX, events_bytes_max=EVENTS_BYTES_MAX)


def servers(folder: Path) -> Platform:
    return Platform(folder, services=[], cluster=False, tenants=["acme", "other"])


@pytest_asyncio.fixture(loop_scope="module")
async def platform(tmp_path: Path) -> AsyncIterator[Platform]:
    """Servers of the test's own, for one that changes what `init` made or counts what is stored."""
    async with servers(tmp_path / "up") as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Platform]:
    """Servers of all tests that look at permissions and settings alone; `acme` has a durable subscriber `ci`."""
    async with servers(tmp_path_factory.mktemp("shared") / "up") as running:
        await running.add_tenant("acme", {"ci": []})
        yield running


@asynccontextmanager
async def connected(platform: Platform, identity: str, refusals: list[str] | None = None) -> AsyncIterator[Client]:
    async def note(error: Exception) -> None:
        if refusals is not None:
            refusals.append(str(error))

    login = platform.credentials.read(identity).nats
    client = await nats.connect(
        platform.nats.url,
        user=login.user,
        password=login.password,
        inbox_prefix=f"_INBOX.{identity}",
        error_cb=note,
        allow_reconnect=False,
    )
    try:
        yield client
    finally:
        await client.close()


async def messages(platform: Platform, stream: str) -> int:
    async with connected(platform, "administrator") as admin:
        return (await admin.jsm().stream_info(stream)).state.messages


# -- streams


async def test_a_second_init_makes_nothing(shared: Platform) -> None:
    async with connected(shared, "administrator") as admin:
        assert await ensure_streams(admin, "main", BOUNDS) == []


async def test_each_shard_has_streams_that_no_other_shards_administrator_sees(
    tmp_path: Path,
) -> None:
    both = Platform(tmp_path / "up", services=[], cluster=False, shards=["main", "second"])
    async with both:
        for shard, other in (("main", "second"), ("second", "main")):
            login = both.credentials_of(shard).read("administrator").nats
            admin = await connect_once(both.nats.url, login.user, login.password, seconds=60)
            names = {stream.config.name for stream in await admin.jsm().streams_info()}
            await admin.close()
            assert f"LEDGER_{shard}" in names
            assert not any(name and name.endswith(f"_{other}") for name in names)


async def test_init_works_before_the_servers_have_read_of_its_identity(platform: Platform) -> None:
    """As after an update from a version whose operator made the streams: NATS reads its users again when told to."""
    told = json.loads(platform.credentials.nats_file.read_text().removeprefix("accounts: "))
    users = {user["user"]: user for user in told["TESSERA"]["users"]}
    users["operator"]["permissions"]["publish"] = users.pop("administrator")["permissions"]["publish"]
    told["TESSERA"]["users"] = list(users.values())
    platform.credentials.nats_file.write_text(f"accounts: {json.dumps(told)}")
    await reload_nats(platform._children["nats"].pid or 0, platform.nats.monitor_url, platform.clock)
    words = ("init", "--credentials", str(platform.credentials.path), "--shard", "main", "--mend")
    where = {"TESSERA_NATS_URL": platform.nats.url, "TESSERA_NATS_MONITOR_URL": platform.nats.monitor_url}
    code, out, err = await run_command(words, {**os.environ, **where}, 240)
    assert (code, err) == (0, ""), out


async def test_drift_is_refused_with_every_field_that_differs(platform: Platform) -> None:
    async with connected(platform, "administrator") as admin:
        stream = (await admin.jsm().stream_info("FACTS_main")).config
        await admin.jsm().update_stream(
            dataclasses.replace(stream, max_age=60.0, max_msg_size=10, duplicate_window=30.0)
        )
        durable = (await admin.jsm().consumer_info("SUBMIT_main", "admission")).config
        await admin.jsm().add_consumer("SUBMIT_main", dataclasses.replace(durable, ack_wait=5.0))
        with pytest.raises(StartupError) as caught:
            await ensure_streams(admin, "main", BOUNDS)
    story = str(caught.value)
    assert "FACTS_main.max_age is 60.0, expected 604800.0" in story
    assert "FACTS_main.max_msg_size is 10, expected 524288" in story
    assert "FACTS_main.duplicate_window is 30.0, expected 0.1" in story
    assert "SUBMIT_main/admission.ack_wait is 5.0, expected 30.0" in story
    assert "\n" not in story


async def test_a_queue_of_an_older_version_is_drift_and_is_mended_with_its_backlog(
    platform: Platform,
) -> None:
    async with connected(platform, "administrator") as admin:
        made = (await admin.jsm().stream_info("SUBMIT_main")).config
        older = dataclasses.replace(made, max_msg_size=128 * 1024, max_bytes=-1, sources=None, duplicate_window=120.0)
        await admin.jsm().update_stream(older)
        async with connected(platform, "acme") as acme:
            await acme.jetstream().publish("submit.main.acme", b"waiting")
        with pytest.raises(StartupError, match=r"SUBMIT_main\.max_msg_size is 131072, expected 1048576"):
            await ensure_streams(admin, "main", BOUNDS)
        assert await ensure_streams(admin, "main", BOUNDS, mend=True) == ["SUBMIT_main"]
        assert await ensure_streams(admin, "main", BOUNDS) == []
        async with connected(platform, "acme") as acme:
            for _ in range(2):  # message ids count for nothing from now on
                await acme.jetstream().publish("submit.main.acme", b"waiting", headers={"Nats-Msg-Id": "build-1"})
    assert await messages(platform, "SUBMIT_main") == 3


async def test_compression_of_streams_ends_and_they_keep_what_they_hold(platform: Platform) -> None:
    """Builds between two releases had NATS compress them."""
    async with connected(platform, "administrator") as admin:
        for name in ("LEDGER_main", "EVENTS_main"):
            made = (await admin.jsm().stream_info(name)).config
            bound = made.max_bytes if name == "LEDGER_main" else -1
            await admin.jsm().update_stream(dataclasses.replace(made, compression=StoreCompression.S2, max_bytes=bound))
        async with connected(platform, "projection") as projection:
            await projection.jetstream().publish("events.main.acme.q.job.bound.v1", b"{}")
        held = await messages(platform, "EVENTS_main")
        with pytest.raises(StartupError, match=r"EVENTS_main\.max_bytes is None, expected.*EVENTS_main\.compression"):
            await ensure_streams(admin, "main", BOUNDS)
        assert await ensure_streams(admin, "main", BOUNDS, mend=True) == ["LEDGER_main", "EVENTS_main"]
        assert await ensure_streams(admin, "main", BOUNDS) == []
        found = (await admin.jsm().stream_info("EVENTS_main")).config
    assert (found.max_bytes, found.discard) == (EVENTS_BYTES_MAX, DiscardPolicy.OLD)
    assert found.compression == StoreCompression.NONE
    assert await messages(platform, "EVENTS_main") == held > 0


async def test_drift_is_mended_only_when_asked(platform: Platform) -> None:
    async with connected(platform, "administrator") as admin:
        roomier = dataclasses.replace(BOUNDS, ledger_bytes_max=2 * LEDGER_BYTES_MAX)
        with pytest.raises(StartupError, match=r"LEDGER_main\.max_bytes"):
            await ensure_streams(admin, "main", roomier)
        assert await ensure_streams(admin, "main", roomier, mend=True) == ["LEDGER_main"]
        assert await ensure_streams(admin, "main", roomier) == []


async def test_a_ledger_loses_nothing_by_itself_and_one_that_denies_purges_goes_on_doing_so(platform: Platform) -> None:
    async with connected(platform, "administrator") as admin:
        config = (await admin.jsm().stream_info("LEDGER_main")).config
        assert (config.deny_delete, config.deny_purge, config.allow_rollup_hdrs) == (True, False, False)
        assert (config.discard, config.max_age) == ("new", 0)
        await admin.jsm().update_stream(dataclasses.replace(config, deny_purge=True))  # as releases up to 0.3 made it
        assert await ensure_streams(admin, "main", BOUNDS) == []
        roomier = dataclasses.replace(BOUNDS, ledger_bytes_max=2 * LEDGER_BYTES_MAX)
        assert await ensure_streams(admin, "main", roomier, mend=True) == ["LEDGER_main"]
        assert (await admin.jsm().stream_info("LEDGER_main")).config.deny_purge


async def facts_of(admin: Client) -> tuple[int, int]:
    state = (await admin.jsm().stream_info("FACTS_main")).state
    return state.first_seq, state.last_seq


async def test_facts_go_on_behind_what_the_ledger_has_taken_in(platform: Platform) -> None:
    """Numbers below that are those of facts that were taken in: whoever got one would never be heard."""
    fact = "fact.main.admission.job-admitted"
    async with connected(platform, "scheduler") as scheduler, connected(platform, "admission") as admission:
        await scheduler.jetstream().publish("ledger.main", b'{"facts_upto": 225}')
        await admission.jetstream().publish(fact, b"swallowed")
        async with connected(platform, "administrator") as admin:
            with pytest.raises(StartupError, match=r"FACTS_main.last_seq is 1, expected 225; .* `tessera init --mend`"):
                await ensure_streams(admin, "main", BOUNDS)
            assert await facts_of(admin) == (1, 1), "refused, and nothing was changed"
            assert await ensure_streams(admin, "main", BOUNDS, mend=True) == ["FACTS_main"]
            assert await facts_of(admin) == (226, 225)
            assert (await admission.jetstream().publish(fact, b"heard")).seq == 226
    await platform.stop("nats")
    (folder,) = (platform.directory / "nats" / "store").glob("**/streams/FACTS_main")
    shutil.rmtree(folder)
    await platform.start("nats")
    async with connected(platform, "administrator") as admin:
        assert await ensure_streams(admin, "main", BOUNDS) == ["FACTS_main"]
        assert await facts_of(admin) == (226, 225)


async def test_a_live_stream_is_heard_on_live_and_its_subject(shared: Platform) -> None:
    async with connected(shared, "scheduler") as scheduler, connected(shared, "binder") as binder:
        live = await binder.subscribe("live.ledger.main")
        await all_answered(binder)
        await scheduler.jetstream().publish("ledger.main", b"{}")
        assert (await live.next_msg(30)).subject == "live.ledger.main"


# -- durable subscribers of tenants


async def test_a_tenants_subscriber_reads_its_own_events_through_its_own_account(platform: Platform) -> None:
    await platform.add_tenant("acme", {"ci": ["job.admitted.v1", "job.refused.v1"]})
    async with connected(platform, "projection") as projection, connected(platform, "acme") as acme:
        for tenant, kind in (("other", "job.admitted.v1"), ("acme", "job.queued.v1"), ("acme", "job.admitted.v1")):
            await projection.jetstream().publish(subjects.event("main", tenant, "q", kind), kind.encode())
        durable = subjects.subscriber_durable("acme", "ci")
        pull = await acme.jetstream().pull_subscribe_bind(durable=durable, stream="EVENTS_main")
        received = await pull.fetch(10, timeout=20)
        assert [message.subject for message in received] == ["events.main.acme.q.job.admitted.v1"]
        await received[0].ack_sync()


async def test_subscribers_follow_the_configuration_and_leave_other_tenants_alone(platform: Platform) -> None:
    async with connected(platform, "administrator") as admin:
        await ensure_subscribers(admin, "main", {"acme": {"ci": [], "cd": []}, "other": {"ci": []}})
        again = await ensure_subscribers(admin, "main", {"acme": {"ci": [], "cd": []}})
        assert again == {}
        changed = await ensure_subscribers(admin, "main", {"acme": {"ci": ["job.>"]}})
        assert changed == {
            "acme_cd": "taken away",
            "acme_ci": "goes on from its place with the events that are declared now",
        }
        left = {info.name for info in await admin.jsm().consumers_info("EVENTS_main")}
    assert left == {"acme_ci", "other_ci"}


async def test_a_subscriber_begins_where_it_is_declared_to_and_never_anew(platform: Platform) -> None:
    declared = {"acme": {"all": [], "fresh": []}}
    async with connected(platform, "administrator") as admin, connected(platform, "projection") as projection:
        await projection.jetstream().publish("events.main.acme.q.job.admitted.v1", b"{}")
        made = await ensure_subscribers(admin, "main", declared, {("acme", "fresh")})
        assert made == {
            "acme_all": "begins with the oldest event that is kept",
            "acme_fresh": "begins with new events",
        }
        assert await ensure_subscribers(admin, "main", declared, {("acme", "all")}) == {}
        await ensure_subscribers(admin, "main", {"acme": {"all": ["job.>"], "fresh": ["job.>"]}})
        waiting = {info.name: info.num_pending for info in await admin.jsm().consumers_info("EVENTS_main")}
    assert waiting == {"acme_all": 1, "acme_fresh": 0}


@pytest.mark.parametrize("kind", ["*", ">", "a..b", "job.*", "x.>.y", "a b", ""])
async def test_an_event_type_that_is_none_is_refused(shared: Platform, kind: str) -> None:
    async with connected(shared, "administrator") as admin:
        with pytest.raises(StartupError, match="no event type"):
            await ensure_subscribers(admin, "main", {"acme": {"ci": [kind]}})


@pytest.mark.parametrize(
    "name", ["scheduler", "operator", "administrator", "tenant", "a.b", "a*", ">", "", "A", "x" * 64]
)
async def test_a_tenant_cannot_have_a_name_that_is_taken_or_a_pattern(shared: Platform, name: str) -> None:
    with pytest.raises(StartupError):
        await shared.add_tenant(name)


async def test_a_new_tenant_is_let_in_while_others_stay_connected(platform: Platform) -> None:
    async with connected(platform, "acme") as acme, connected(platform, "scheduler") as scheduler:
        await platform.add_tenant("late", {"ci": []})
        async with connected(platform, "late") as late:
            await late.jetstream().publish("submit.main.late", b"{}")
        assert acme.is_connected
        assert scheduler.is_connected


# -- the permission matrix: who may publish what; whoever is not named may not


@pytest.mark.parametrize("identity", IDENTITIES)
async def test_an_identity_publishes_what_the_matrix_grants_and_nothing_else(shared: Platform, identity: str) -> None:
    texts: list[str] = []
    async with connected(shared, identity, texts) as client:
        assert await published(client, identity, texts) == may_publish(identity)


@pytest.mark.parametrize("queue", ["", "group"], ids=["plainly", "in a queue group"])
@pytest.mark.parametrize("identity", IDENTITIES)
async def test_an_identity_hears_what_the_matrix_grants_and_nothing_else(
    shared: Platform, identity: str, queue: str
) -> None:
    texts: list[str] = []
    async with connected(shared, identity, texts) as client:
        assert await heard(client, queue, texts) == may_hear(identity)


@pytest.mark.parametrize(
    "target", ["ledger.main", "control.main", "control.main.health", "submit.main.other", "fact.main.binder.bound"]
)
async def test_a_tenant_cannot_have_a_servers_answer_stored_elsewhere(platform: Platform, target: str) -> None:
    """Reply subjects are not checked against allow-lists; the account's border is what stops them."""
    await platform.add_tenant("acme", {"ci": []})
    async with connected(platform, "projection") as projection:
        await projection.jetstream().publish("events.main.acme.q.job.admitted.v1", b"{}")
    stream = {"l": "LEDGER", "c": "CONTROL", "s": "SUBMIT", "f": "FACTS"}[target[0]] + "_main"
    async with connected(platform, "acme") as acme:
        await acme.publish("submit.main.acme", b"{}", reply=target)
        await acme.publish(TENANT_NEXT, b'{"batch":1,"no_wait":true}', reply=target)
        await acme.jetstream().publish("submit.main.acme", b"{}")  # answered after the two above
    assert await messages(platform, stream) == (2 if stream == "SUBMIT_main" else 0)


async def test_a_tenant_asks_for_its_own_durable_and_gets_one_answer(platform: Platform) -> None:
    """The server's own "JetStream not enabled for account" came first, so that clients could open no consumer."""
    for tenant in ("acme", "other"):
        await platform.add_tenant(tenant, {"ci": []})
    texts: list[str] = []
    async with connected(platform, "acme", texts) as acme:
        answers = await acme.subscribe("_INBOX.acme.info")
        for durable in ("acme_ci", "other_ci"):
            await acme.publish(f"$JS.API.CONSUMER.INFO.EVENTS_main.{durable}", reply="_INBOX.acme.info")
            await acme.publish(f"own.CONSUMER.INFO.EVENTS_main.{durable}", reply="_INBOX.acme.info")
        await all_answered(acme)
        found = [json.loads((await answers.next_msg(timeout=60)).data).get("name") for _ in range(2)]
        with pytest.raises(nats.errors.TimeoutError):
            await answers.next_msg(timeout=0.3)
        assert found == ["acme_ci"] * 2  # by either name of the request
        assert sum("other_ci" in text for text in texts) == 2


async def test_nobody_connects_without_a_password(shared: Platform) -> None:
    with pytest.raises(Exception, match=r"(?i)authorization|closed|no servers"):
        await nats.connect(shared.nats.url, allow_reconnect=False)


# -- Redis


@pytest.mark.parametrize(
    ("identity", "may_write"),
    [("projection", True), ("admission", False), ("gateway", False), ("operator", False)],
    ids=str,
)
async def test_a_user_of_redis_reads_or_writes_its_own_shard_only(
    shared: Platform, identity: str, may_write: bool
) -> None:
    login = shared.credentials.read(identity).redis
    assert login is not None
    client = Redis.from_url(shared.redis.url, username=login.user, password=login.password)
    try:
        assert [await permitted(client, *command) for command in READS] == [True] * len(READS)
        assert [await permitted(client, *command) for command in WRITES] == [may_write] * len(WRITES)
        assert [await permitted(client, *command) for command in NEVER] == [False] * len(NEVER)
    finally:
        await client.aclose()


async def test_redis_knows_no_user_without_a_password_and_no_tenant(shared: Platform) -> None:
    client = Redis.from_url(shared.redis.url)
    with pytest.raises((ResponseError, AuthenticationError)):
        await client.ping()
    await client.aclose()
    have = {name for name in IDENTITIES if shared.credentials.read(name).redis is not None}
    assert have == {*SERVICES, "operator"}


# -- what a service checks before it works


def settings(platform: Platform, **overrides: object) -> ServiceSettings:
    return load_settings(
        ServiceSettings,
        **{
            "credentials_file": platform.credentials.file("projection"),
            "nats_url": platform.nats.url,
            "nats_monitor_url": platform.nats.monitor_url,
            "redis_url": platform.redis.url,
            "allow_unsynced": True,
            **overrides,
        },
    )


async def test_a_service_starts_on_what_init_made(shared: Platform) -> None:
    await (await open_bus(settings(shared), ["LEDGER", "EVENTS", "SNAP", "LEASES"])).close()
    await check_redis(settings(shared))


async def test_a_server_that_acknowledges_before_it_syncs_is_refused(shared: Platform) -> None:
    with pytest.raises(StartupError, match="sync_interval: always"):
        await open_bus(settings(shared, allow_unsynced=False), [])


async def test_a_server_that_syncs_is_accepted(tmp_path: Path) -> None:
    async with Platform(tmp_path / "synced", services=[], cluster=False, sync=True) as platform:
        await (await open_bus(settings(platform, allow_unsynced=False), ["LEDGER"])).close()


async def test_each_missing_part_is_one_line_with_the_fix(shared: Platform) -> None:
    cases = {
        "Run `tessera init`": open_bus(settings(shared, shard="nowhere"), ["LEDGER"]),
        "TESSERA_NATS_URL": open_bus(settings(shared, nats_url="nats://127.0.0.1:9"), []),
        "TESSERA_CREDENTIALS_FILE": open_bus(settings(shared, nats_password="wrong"), []),
        "TESSERA_REDIS_URL": check_redis(settings(shared, redis_url="redis://127.0.0.1:9/0")),
        "ACL file": check_redis(settings(shared, redis_password="wrong")),
    }
    for fix, check in cases.items():
        with pytest.raises(StartupError, match=fix) as caught:
            await check
        assert "\n" not in str(caught.value)
