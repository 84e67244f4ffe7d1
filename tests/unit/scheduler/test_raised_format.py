"""A committer of a newer version leads an older ledger once everybody who is alive knows the format that it raises."""

import pytest

from tessera.kernel.process.leases import Leadership
from tessera.kernel.process.store_probe import StoreProbe
from tessera.scheduler import decide
from tessera_schemas import subjects
from tessera_schemas.ledger import FORMAT, LedgerMessage
from tessera_schemas.shard.ledger_form import COMPRESSED_FROM
from tests.builders import SHARD, config_proposed, node_seen
from tests.unit.scheduler.committers import Leader, Served, World

LEASE = 2.0


@pytest.fixture
async def older(monkeypatch: pytest.MonkeyPatch) -> World:
    return await began(monkeypatch, FORMAT - 1)


async def began(monkeypatch: pytest.MonkeyPatch, known: int) -> World:
    """A ledger that a committer of an earlier format began, and ended well."""
    world = World()
    with monkeypatch.context() as patch:
        patch.setattr(decide, "FORMAT", known)
        async with Leader(world, "scheduler-old"):
            await world.fact(config_proposed())
            await world.clock.run(0.1)
    return world


def formats_in(message: LedgerMessage) -> list[int]:
    return [record.format for record in message.records if record.kind == "format_raised"]


def formats(world: World) -> list[int]:
    return [known for message in world.ledger for known in formats_in(message)]


async def test_nobody_is_waited_for_where_nobody_is_behind(older: World) -> None:
    newer = Served(older, "scheduler-new")
    await older.clock.run(2)
    assert formats(older) == [FORMAT - 1, FORMAT]
    await newer.dies()


async def test_a_ledger_is_not_raised_while_somebody_of_an_earlier_version_lives(older: World) -> None:
    lease = Leadership(older.bus, older.clock, SHARD, "projection", "projection-old", LEASE)
    await lease.acquire()
    newer = Served(older, "scheduler-new")
    await older.clock.run(20)
    assert formats(older) == [FORMAT - 1]
    assert f"which know {FORMAT - 1} at most: projection-old" in newer.ports.health.readiness()["format"]
    await StoreProbe(older.ports("projection-new"), SHARD, "projection").probe()
    await lease.release()
    await older.clock.run(2)
    assert formats(older) == [FORMAT - 1, FORMAT]
    assert newer.ports.health.readiness()["format"] == "ok"
    await newer.dies()


async def test_a_committer_of_this_format_asks_nobody(older: World) -> None:
    first = Served(older, "scheduler-new")
    await older.clock.run(2)
    await first.dies()
    lease = Leadership(older.bus, older.clock, SHARD, "projection", "projection-old", LEASE)
    await lease.acquire()
    before = len(older.ledger)
    second = Served(older, "scheduler-newer")
    await older.clock.run(LEASE + 1)
    assert second.ports.health.readiness()["format"] == "ok"
    assert len(older.ledger) == before + 1
    await second.dies()


async def test_messages_are_compressed_once_the_ledger_has_the_format_that_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    older = await began(monkeypatch, COMPRESSED_FROM - 1)
    newer = Served(older, "scheduler-new")
    await older.clock.run(2)
    await older.fact(node_seen())
    await older.clock.run(1)
    stored = [message.data for message in older.broker.stream(subjects.stream("LEDGER", SHARD)).messages.values()]
    raised = next(n for n, message in enumerate(older.ledger) if FORMAT in formats_in(message))
    assert all(data.startswith(b"{") for data in stored[: raised + 1]), "as those know them who were there before"
    assert len(stored) > raised + 1
    assert not any(data.startswith(b"{") for data in stored[raised + 1 :])
    await newer.dies()
