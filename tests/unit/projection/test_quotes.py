"""Quotes in Redis and what they rest on: drawn while somebody waits, gone on with after a restart."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tessera.engine.quoting.lengths import KNOWN_ENDS
from tessera.kernel.ledger.quotes import newest_quotes, read_quotes
from tessera.kernel.memory.bus import MemoryBus
from tessera.kernel.ports import Outgoing
from tessera.projection.quotes import STORE_SECONDS
from tessera_schemas import subjects
from tessera_schemas.facts import RunAbsent, RunEnded
from tessera_schemas.shard.quotes import KeptQuotes
from tests.builders import SHARD, admitted, config_body, job_spec, role
from tests.ledgers import Committed
from tests.unit.projection.projection_world import World

SECONDS = {"quote_seconds": 10.0}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    await made.close()


def busy(ended: int = 0) -> tuple[Committed, str]:
    """A job that holds the only 16 GPUs, and another one behind it, after so many that have ended."""
    made = Committed().begin(body=config_body())
    for key in (f"before-{at}" for at in range(ended)):
        job = admitted(key, job_spec(role(gpus=8)))
        made.commit(job)
        made.start(job.job_id, key)
        made.commit(RunEnded(kind="run_ended", run_id=f"{job.job_id}-1"))
        made.commit(RunAbsent(kind="run_absent", run_id=f"{job.job_id}-1"))
    first, late = admitted("first", job_spec(role(replicas=2, gpus=8))), admitted("late", job_spec(role(gpus=8)))
    made.commit(first)
    made.start(first.job_id, "first")
    made.commit(late)
    return made, late.job_id


def kept(world: World) -> KeptQuotes | None:
    return None if world.views.quotes is None else KeptQuotes.model_validate_json(world.views.quotes)


async def record_of(world: World) -> Any:
    return await read_quotes(MemoryBus(world.broker, "gateway"), SHARD)


async def test_who_waits_has_a_quote_within_seconds(world: World) -> None:
    made, late = busy()
    world.append(made.stored)
    world.start(**SECONDS)
    await world.clock.run(15)
    found = kept(world)
    assert found is not None
    assert list(found.quotes) == [late]
    quote = found.quotes[late]
    assert quote.ts <= quote.by_10_ts <= quote.by_50_ts <= quote.by_80_ts <= quote.by_95_ts
    assert found.n == len(made.stored)


async def test_on_a_quiet_ledger_a_start_that_does_not_come_is_looked_at_again(world: World) -> None:
    # Lengths are drawn by ages alone: runs that go on longer are then to go on longer yet.
    made, late = busy(ended=KNOWN_ENDS)
    world.append(made.stored)
    world.start(**SECONDS)
    await world.clock.run(15)
    first = kept(world)
    assert first is not None
    await world.clock.run(STORE_SECONDS + 15)
    again = kept(world)
    assert again is not None
    assert again.n == first.n
    assert again.quotes[late].ts >= min(first.quotes[late].by_50_ts, first.ts + int(STORE_SECONDS * 1000))
    assert again.quotes[late].by_50_ts > first.quotes[late].by_50_ts


async def test_without_seconds_there_are_none(world: World) -> None:
    world.append(busy()[0].stored)
    world.start(quote_seconds=0.0)
    await world.clock.run(2 * STORE_SECONDS)
    assert world.views.quotes is None
    assert await newest_quotes(MemoryBus(world.broker, "gateway"), SHARD) == 0


async def test_a_redis_that_was_emptied_has_new_ones_once_the_ledger_moves(world: World) -> None:
    made, late = busy()
    world.append(made.stored)
    world.start(**SECONDS)
    await world.clock.run(15)
    world.views.wipe()
    made.commit(ms=60_000)
    world.append(made.stored[-1:])
    await world.clock.run(15)
    found = kept(world)
    assert found is not None
    assert list(found.quotes) == [late]


async def test_a_quote_that_is_open_is_scored_though_projection_was_replaced_meanwhile(world: World) -> None:
    made, late = busy()
    world.append(made.stored)
    running = world.start(**SECONDS)
    await world.clock.run(STORE_SECONDS + 15)
    made.commit(ms=1)
    world.append(made.stored[-1:])
    await world.clock.run(STORE_SECONDS + 15)
    stored = await record_of(world)
    assert [job for job, *_ in stored.record["given"]] == [late]
    await running.kill()
    before, run = len(made.stored), f"{admitted('first').job_id}-1"
    made.commit(RunEnded(kind="run_ended", run_id=run))
    made.commit(RunAbsent(kind="run_absent", run_id=run))
    made.commit(orders=(made.line(),))
    world.append(made.stored[before:])
    world.start(**SECONDS)
    await world.clock.run(15)
    found = kept(world)
    assert found is not None
    assert (found.quotes, found.scores["default"].quotes) == ({}, 1)


@pytest.mark.parametrize("junk", [b"{}", b"no json", json.dumps({"n": 1, "chain": "", "chunks": [1]}).encode()])
async def test_a_record_that_cannot_be_read_is_begun_anew(world: World, junk: bytes) -> None:
    world.broker.store(Outgoing(subjects.quotes_manifest(SHARD), junk))
    made, late = busy()
    world.append(made.stored)
    world.start(**SECONDS)
    await world.clock.run(STORE_SECONDS + 15)
    found = kept(world)
    assert found is not None
    assert list(found.quotes) == [late]
    made.commit(ms=1)
    world.append(made.stored[-1:])
    await world.clock.run(STORE_SECONDS + 15)
    assert [job for job, *_ in (await record_of(world)).record["given"]] == [late]
