"""Readiness names each stream that a service reads or writes and cannot reach, and a Redis that refuses it."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tessera.kernel.errors import Conflict, Denied, Transient
from tessera.kernel.process.reach import Reach
from tessera_schemas import subjects
from tessera_schemas.shard.services import SPECS, ServiceSpec
from tessera_schemas.shard.streams import streams
from tests.builders import SHARD
from tests.unit.scheduler.committers import World


def reach_of(world: World, service: str, cursor: Callable[[], int] = lambda: 1) -> tuple[Reach, Callable[[], Any]]:
    async def read_cursor() -> int:
        return cursor()

    ports = replace(world.ports(), store=cast(Any, SimpleNamespace(cursor=read_cursor)))
    return Reach(ports, SHARD, service), ports.health.readiness


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
async def test_each_stream_that_is_away_is_named_by_those_who_read_or_write_it(spec: ServiceSpec) -> None:
    for kind in [stream.name.removesuffix(f"_{SHARD}") for stream in streams(SHARD)]:
        world = World()
        reach, ready = reach_of(world, spec.name)
        await reach.look()
        assert {text for name, text in ready().items() if name.startswith("stream ")} == {"ok"}
        del world.broker.streams[subjects.stream(kind, SHARD)]
        await reach.look()
        away = [name for name, text in ready().items() if name.startswith("stream ") and text != "ok"]
        assert away == ([f"stream {kind}"] if kind in (*spec.reads, *spec.writes, "LEASES") else [])
        world.broker.add_shard(SHARD)
        await reach.look()
        assert ready().get(f"stream {kind}", "ok") == "ok"


async def test_the_words_say_what_is_away_and_what_makes_it() -> None:
    world = World()
    reach, ready = reach_of(world, "queueing")
    del world.broker.streams[subjects.stream("ORDERS", SHARD)]
    await reach.look()
    assert ready()["stream ORDERS"].startswith(subjects.stream("ORDERS", SHARD))
    assert "`tessera init`" in ready()["stream ORDERS"]


async def test_a_redis_that_refuses_a_reader_of_views_is_trouble_and_one_that_is_away_is_not() -> None:
    answers: list[Exception | int] = [Transient("Redis: away"), Denied("Redis refuses us: WRONGPASS"), 7]

    def cursor() -> int:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    reach, ready = reach_of(World(), "gateway", cursor)
    await reach.look()
    assert ready()["redis"] == "ok"
    await reach.look()
    assert ready()["redis"].startswith("Redis refuses us: WRONGPASS; ")
    await reach.look()
    assert ready()["redis"] == "ok"


async def test_who_only_glances_at_redis_does_not_wait_for_it() -> None:
    reach, ready = reach_of(World(), "scheduler")
    await reach.look()
    assert "redis" not in ready()


@pytest.mark.parametrize(
    ("service", "kind"),
    [("scheduler", "ORDERS"), ("scheduler", "FACTS"), ("queueing", "LEDGER"), ("gateway", "EVENTS")],
)
async def test_who_follows_a_stream_that_begins_anew_begins_anew_with_it(service: str, kind: str) -> None:
    """Its follower waits behind a number that the stream reaches in days, and every check is green meanwhile."""
    world = World()
    reach, ready = reach_of(world, service)
    stream = subjects.stream(kind, SHARD)
    world.broker.streams[stream].last_seq = 500
    await reach.look()
    world.broker.streams[stream].last_seq = 3
    await reach.look()
    assert ready()[f"stream {kind}"] == "ok"
    with pytest.raises(Conflict, match=f"{stream} ended at 500, and ends at 3 now"):
        await reach.look()


@pytest.mark.parametrize("kind", ["SUBMIT", "CONTROL", "LEASES", "DLQ"])
async def test_what_nobody_follows_may_begin_anew(kind: str) -> None:
    """A work queue's place is the server's, and leases are read whole."""
    world = World()
    reach, _ = reach_of(world, "admission")
    for end in (500, 3, 3, 3):
        world.broker.streams[subjects.stream(kind, SHARD)].last_seq = end
        await reach.look()


async def test_one_look_at_a_deposed_leader_of_a_stream_ends_nobody() -> None:
    world = World()
    reach, _ = reach_of(world, "scheduler")
    for end in (500, 3, 501, 4, 502):
        world.broker.streams[subjects.stream("ORDERS", SHARD)].last_seq = end
        await reach.look()
