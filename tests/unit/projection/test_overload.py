"""Events that come faster than they are stored: bounded in memory, and folding leaves room for publishing."""

from collections.abc import AsyncIterator

import pytest

from tessera.kernel.errors import Transient
from tessera.projection.publisher import BATCH, SOON
from tests.builders import admitted
from tests.ledgers import Committed
from tests.unit.projection.projection_world import Away, World, expected_events

PER_MESSAGE = 64
MESSAGES = 64


class Slow(Away):
    """Each event takes 10 ms to be stored."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    async def before(self, op: str, subject: str = "") -> None:
        if op == "publish" and subject.startswith("events."):
            await self._world.clock.sleep(0.01)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    await made.close()


@pytest.fixture(scope="module")
def ledger() -> Committed:
    committed = Committed().begin()
    for number in range(MESSAGES):
        committed.commit(*(admitted(f"k{number}-{i}") for i in range(PER_MESSAGE)))
    return committed


def waiting(running: object) -> float:
    return running.ports.metrics.registry.get_sample_value("tessera_queue_depth") or 0  # type: ignore[attr-defined]


async def test_a_leader_folds_no_further_ahead_than_is_under_way(world: World, ledger: Committed) -> None:
    world.append(ledger.stored[:4])
    running = world.start(Slow(world))
    await world.clock.run(3)
    assert world.published()
    world.append(ledger.stored[4:])
    await world.clock.run(3)
    assert 0 < waiting(running) <= SOON + PER_MESSAGE
    await world.clock.run(0.012 * MESSAGES * PER_MESSAGE + 5)
    assert world.published() == expected_events(ledger.stored)


async def test_what_waits_for_the_bus_is_bounded_in_bytes(
    world: World, ledger: Committed, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound = 256 * 1024
    monkeypatch.setattr("tessera.projection.publisher.WAITING_BYTES_MAX", bound)
    bus = Away(only="events.")
    world.append(ledger.stored[:4])
    running = world.start(bus)
    await world.clock.run(3)
    bus.error = Transient("away")
    world.append(ledger.stored[4:])
    await world.clock.run(10)
    smallest = min(len(data) for _, _, data in expected_events(ledger.stored))
    assert BATCH <= waiting(running) <= bound / smallest + PER_MESSAGE
    assert waiting(running) < MESSAGES * PER_MESSAGE
    bus.error = None
    await world.clock.run(30)
    assert world.published() == expected_events(ledger.stored)
