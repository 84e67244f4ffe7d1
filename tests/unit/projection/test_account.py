"""The stored account: the same bytes whoever stores them, however often they break off, whatever is lost."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from random import Random
from typing import Any

import pytest

from tessera.engine.accounts.owners import USE, GpuCause, Resource
from tessera.engine.accounts.periods import DAYS, HOURS, Period
from tessera.kernel.errors import Conflict
from tessera.kernel.ledger.accounts import read_open, read_sums, unpacked
from tessera.kernel.ledger.generations import StoredShard
from tessera.kernel.ledger.shard import Shard, decode_entry
from tessera.kernel.ledger.snapshots import find_snapshot
from tessera.kernel.ledger.stream import StreamLedger
from tessera.kernel.memory.bus import MemoryBus
from tessera.kernel.ports import Message
from tessera.projection.account import STORE_SECONDS, AccountKeeper, StoredAccount
from tests.builders import SHARD
from tests.random_ledger import random_ledger
from tests.unit.projection.projection_world import Chance, World

LEDGER = random_ledger(7, 400, ts=20_400 * DAYS.ms - 150_000).stored
OFTEN = {"snapshot_seconds": 1.0}


@pytest.fixture
async def worlds() -> AsyncIterator[Iterator[World]]:
    made = list[World]()

    def more() -> Iterator[World]:
        while True:
            made.append(World())
            yield made[-1]

    yield more()
    for world in made:
        await world.close()


async def stored(world: World) -> dict[str, Any]:
    """All of the account that is stored; where its parts lie differs with how often they were."""
    bus, prefix = MemoryBus(world.broker, "gateway"), f"snap.{SHARD}.account."
    newest = {message.subject: message.data for message in world.stream("SNAP").messages.values()}
    now = await read_open(bus, SHARD)
    assert now is not None
    over = {subject: data for subject, data in newest.items() if subject.startswith(prefix) and subject[-1].isdigit()}
    newest_part = now.n, now.chain, now.since_ts, now.upto_ts, now.newest
    return {"over": over, "now": newest_part, "sums": await read_sums(bus, SHARD, now)}


async def undisturbed(world: World) -> dict[str, Any]:
    world.append(LEDGER)
    world.start()
    await world.clock.run(2 * STORE_SECONDS)
    found = await stored(world)
    assert found["now"][0] == len(LEDGER)
    assert len(found["over"]) >= 3, "five minutes, an hour and a day are over"
    return found


def parts(number: int) -> Iterator[list[bytes]]:
    size = -(-len(LEDGER) // number)
    yield from (LEDGER[at : at + size] for at in range(0, len(LEDGER), size))


async def test_after_fifty_restarts_it_is_the_same_to_the_byte(worlds: Iterator[World]) -> None:
    expected, world = await undisturbed(next(worlds)), next(worlds)
    chance, restarts = Random(1), 0
    for part in parts(51):
        world.append(part)
        running = world.start(**OFTEN)
        await world.clock.run(chance.uniform(0, 3 * STORE_SECONDS))
        await running.kill()
        restarts += 1
    assert restarts >= 50
    world.start(**OFTEN)
    await world.clock.run(4 * STORE_SECONDS)
    assert await stored(world) == expected


async def test_whichever_replica_stores_it_it_is_the_same_and_a_wiped_redis_changes_nothing(
    worlds: Iterator[World],
) -> None:
    expected, world = await undisturbed(next(worlds)), next(worlds)
    replicas = [world.start(**OFTEN), world.start(**OFTEN)]
    for at, part in enumerate(parts(8)):
        world.append(part)
        await world.clock.run(2.5 * STORE_SECONDS)
        await replicas[at % 2].kill()
        world.views.current = None
        await world.clock.run(STORE_SECONDS * 1.5)
        replicas[at % 2] = world.start(**OFTEN)
    await world.clock.run(4 * STORE_SECONDS)
    assert await stored(world) == expected


async def test_what_fails_on_the_way_is_stored_later(worlds: Iterator[World]) -> None:
    expected, world = await undisturbed(next(worlds)), next(worlds)
    faults = Chance(Random(3), 0.3, (f"snap.{SHARD}.account.",))
    world.start(faults, **OFTEN)
    for part in parts(12):
        world.append(part)
        await world.clock.run(STORE_SECONDS)
    faults.share = 0
    await world.clock.run(6 * STORE_SECONDS)
    assert await stored(world) == expected


async def test_a_roll_over_takes_nothing_from_it(worlds: Iterator[World]) -> None:
    expected, world = await undisturbed(next(worlds)), next(worlds)
    *begin, end = parts(3)
    for part in begin:
        world.append(part)
        running = world.start(**OFTEN)
        await world.clock.run(2 * STORE_SECONDS)
        await running.kill()
    rolling = asyncio.ensure_future(roll_over(world))
    while not rolling.done():  # whoever reads several messages at once waits a moment for more, by the world's clock
        await world.clock.run(0.01)
    await rolling
    world.append(end)
    world.start(**OFTEN)
    await world.clock.run(3 * STORE_SECONDS)
    assert await stored(world) == expected


async def roll_over(world: World) -> None:
    bus: Any = MemoryBus(world.broker, "administrator")
    ledger: Any = StreamLedger(bus, SHARD)
    opening = await find_snapshot(bus, ledger, SHARD, lambda manifest: True)
    assert opening is not None
    admin: Any = None
    await StoredShard(bus, ledger, SHARD, admin).open_generation(opening)
    stream = world.stream("LEDGER")
    for seq in range(1, opening.state.n + 1):
        stream.remove(seq)


async def test_every_stored_period_sums_to_the_capacity(worlds: Iterator[World]) -> None:
    found = await undisturbed(next(worlds))
    periods = [Period.read(unpacked(data)) for data in found["over"].values()]
    periods += [Period.read(each) for each in (found["now"][4], *found["sums"].values())]
    assert any(period.start % HOURS.ms == 0 and period.rows for period in periods)
    for period in periods:
        sums = Counter[tuple[str, str, str]]()
        for owner, amounts in period.rows.items():
            for resource in Resource if owner.cause not in USE else ():
                amount = owner.part(amounts, resource)
                sums[resource, owner.pool, owner.flavor] += -amount if owner.cause is GpuCause.CAPACITY else amount
        assert set(sums.values()) <= {0}
        assert {resource for resource, _, _ in sums} == set(Resource)


async def test_an_account_of_another_ledger_is_not_gone_on_with(worlds: Iterator[World]) -> None:
    world, shard = next(worlds), Shard()
    await undisturbed(world)
    for at, data in enumerate(random_ledger(8, len(LEDGER)).stored[: len(LEDGER)], start=1):
        shard.fold(decode_entry(Message("", at, data)))
    running = world.start()
    await running.kill()
    bus = running.ports.bus
    keeper = AccountKeeper(running.ports, SHARD, shard.state, await StoredAccount.read(bus, SHARD))
    await keeper.store()
    now = await read_open(bus, SHARD)
    assert now is not None
    assert (now.n, now.chain, now.since_ts) == (len(LEDGER), shard.state.chain, shard.state.ts)


async def test_one_who_comes_late_stores_nothing_over_an_account_that_began_earlier(worlds: Iterator[World]) -> None:
    world, shard = next(worlds), Shard()
    expected = await undisturbed(world)
    for at, data in enumerate(LEDGER, start=1):
        shard.fold(decode_entry(Message("", at, data)))
    running = world.start()
    await running.kill()
    with pytest.raises(Conflict):
        await AccountKeeper(running.ports, SHARD, shard.state, None).store()
    assert (await stored(world))["now"] == expected["now"]
