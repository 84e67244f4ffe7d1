"""The clock of starts: it runs only while a binder acts, its facts flow, and the committer looks and can write."""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from unittest.mock import Mock

import pytest

from tessera.kernel.errors import Transient
from tessera.scheduler.start_clock import StartClock
from tessera_schemas.config import Policy
from tessera_schemas.ledger import Allocated
from tessera_schemas.reasons import Code
from tests.builders import admitted, config_body, config_proposed, node_seen
from tests.unit.scheduler.committer_world import made, started
from tests.unit.scheduler.committers import ActingBinder, Leader, World, line_of

START_SECONDS = 60


class Starting(World):
    """One job is allocated and its pod is made; nothing has said yet that it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.leader, self.binder = Leader(self), ActingBinder(self)

    async def begin(self) -> None:
        await self.leader.__aenter__()
        await self.binder.__aenter__()
        policy = Policy(start_timeout_seconds=START_SECONDS)
        for fact in (config_proposed(config_body(policy=policy)), node_seen(), admitted("k1")):
            await self.fact(fact)
        await self.clock.run(0.1)
        await self.order(line_of(self, "k1"))
        await self.clock.run(0.1)
        assert isinstance(self.ledger[-1].records[0], Allocated)
        await self.fact(made())

    async def end(self) -> None:
        await self.binder.__aexit__()
        await self.leader.__aexit__()

    @contextmanager
    def no_nats(self) -> Iterator[None]:
        """Whatever the committer asks of NATS fails."""

        async def fail(op: str, subject: str) -> None:
            raise Transient("no servers are available")

        before, self.leader.faults.before = self.leader.faults.before, fail  # type: ignore[method-assign]
        yield
        self.leader.faults.before = before  # type: ignore[method-assign]


@pytest.fixture
async def world() -> AsyncIterator[Starting]:
    world = Starting()
    await world.begin()
    yield world
    await world.end()


def stopped_for(world: World) -> list[Code]:
    return [record.reason.code for message in world.ledger for record in message.records if record.kind == "revoked"]


async def test_a_run_that_does_not_start_while_all_look_is_stopped(world: Starting) -> None:
    await world.clock.run(START_SECONDS - 2)
    assert stopped_for(world) == []
    await world.clock.run(4)
    assert stopped_for(world) == [Code.START_TIMEOUT]


async def test_a_run_that_started_while_nats_was_away_goes_on(world: Starting) -> None:
    await world.clock.run(40)
    with world.no_nats():
        await world.clock.run(40)
        await world.fact(started())
    await world.clock.run(600)
    assert stopped_for(world) == []
    assert "started" in world.said


async def test_after_a_gap_a_run_has_its_whole_time_again_and_no_more(world: Starting) -> None:
    with world.no_nats():
        await world.clock.run(600)
    await world.clock.run(START_SECONDS - 2)
    assert stopped_for(world) == []
    await world.clock.run(8)
    assert stopped_for(world) == [Code.START_TIMEOUT]


async def test_while_no_binder_is_alive_no_start_is_late(world: Starting) -> None:
    await world.binder.__aexit__()
    await world.clock.run(1800)
    assert stopped_for(world) == []


async def test_while_a_binder_cannot_act_no_start_is_late(world: Starting) -> None:
    world.binder.acts = False
    await world.clock.run(1800)
    assert stopped_for(world) == []
    world.binder.acts = True
    await world.clock.run(START_SECONDS + 8)
    assert stopped_for(world) == [Code.START_TIMEOUT]


async def test_a_wall_clock_that_jumps_makes_no_start_late(world: Starting) -> None:
    world.clock.ahead_ms = 600_000
    await world.fact(admitted("k2"))
    await world.clock.run(START_SECONDS - 4)
    assert stopped_for(world) == []
    assert world.ledger[-1].starts_since


async def test_a_shorter_start_timeout_takes_no_time_from_a_run_that_has_begun(world: Starting) -> None:
    """After a gap the run had only so long as the next one would have: it was stopped with most of its time left."""
    shorter = config_body(policy=Policy(start_timeout_seconds=5))
    await world.fact(config_proposed(shorter, expected_version=1))
    await world.clock.run(10)
    with world.no_nats():
        await world.clock.run(600)
    await world.clock.run(START_SECONDS - 4)
    assert stopped_for(world) == []
    await world.clock.run(8)
    assert stopped_for(world) == [Code.START_TIMEOUT]


class HalfMilliseconds:
    """A clock whose monotonic time has fractions of what the ledger's time is in."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def monotonic(self) -> float:
        return self.seconds


def test_starts_are_never_watched_from_an_earlier_moment_than_was_said() -> None:
    clock = HalfMilliseconds()
    watched = StartClock(Mock(clock=clock), "s", Mock(), 6.0)
    watched.fresh.looked()
    clock.seconds += 1.0004  # 1,000 ms
    first = watched.since(1_000)
    clock.seconds += 0.0007  # 1,001 ms, within which the ledger went on by none
    assert watched.since(1_000) == first
