"""Readiness names each stream that a service reads or writes and cannot reach, and a Redis that refuses it."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tessera.kernel.errors import Denied, Transient
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
