"""Leases say who should work: quickly taken over, never proof of anything."""

import asyncio
import heapq
import itertools
from collections.abc import Iterable
from fnmatch import fnmatchcase

import pytest

from tessera.kernel.errors import Conflict, Transient, UnknownOutcome
from tessera.kernel.ports import Message, Outgoing
from tessera.kernel.process.leases import PARTITIONS, Leadership, Members, partition_of

LEASE = 2.0


class VirtualClock:
    """Time that moves only when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def now_ms(self) -> int:
        return round(self.now * 1000)

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        woken = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.now + seconds, next(self._order), woken))
        await woken

    async def run(self, seconds: float) -> None:
        until = self.now + seconds
        await _settle()
        while self._sleepers and self._sleepers[0][0] <= until:
            self.now, _, woken = heapq.heappop(self._sleepers)
            if not woken.done():
                woken.set_result(None)
            await _settle()
        self.now = until


async def _settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


class OneStream:
    """The part of a bus that leases use: the newest message of each subject, with compare-and-swap."""

    def __init__(self) -> None:
        self.seq = 0
        self.newest: dict[str, Message] = {}

    async def publish(self, out: Outgoing) -> int:
        newest = self.newest.get(out.subject)
        if out.expected_last_subject_seq is not None and out.expected_last_subject_seq != (newest.seq if newest else 0):
            raise Conflict(out.subject)
        self.seq += 1
        self.newest[out.subject] = Message(out.subject, self.seq, out.data)
        return self.seq

    async def last(self, _stream: str, subject: str) -> Message | None:
        return self.newest.get(subject)

    async def last_all(self, _stream: str, subject: str) -> list[Message]:
        return [message for name, message in sorted(self.newest.items()) if fnmatchcase(name, subject)]


class Cable:
    """One replica's connection to the bus, which a test may cut, or make swallow answers."""

    def __init__(self, bus: OneStream) -> None:
        self._bus, self.cut, self.answers_lost = bus, False, False

    async def publish(self, out: Outgoing) -> int:
        self._check()
        seq = await self._bus.publish(out)
        if self.answers_lost:
            raise UnknownOutcome("no answer")
        return seq

    async def last(self, stream: str, subject: str) -> Message | None:
        self._check()
        return await self._bus.last(stream, subject)

    async def last_all(self, stream: str, subject: str) -> list[Message]:
        self._check()
        return await self._bus.last_all(stream, subject)

    def _check(self) -> None:
        if self.cut:
            raise Transient("cut")


class World:
    """A bus, a clock, and the replicas of one service."""

    def __init__(self) -> None:
        self.clock, self.bus = VirtualClock(), OneStream()
        self.cables: dict[str, Cable] = {}
        self.waiting: dict[str, asyncio.Task[None]] = {}

    def cable(self, name: str) -> Cable:
        return self.cables.setdefault(name, Cable(self.bus))

    def leadership(self, name: str) -> Leadership:
        return Leadership(self.cable(name), self.clock, "main", "scheduler", name, LEASE)  # type: ignore[arg-type]

    def members(self, name: str) -> Members:
        return Members(self.cable(name), self.clock, "main", "binder", name, LEASE)  # type: ignore[arg-type]

    def starts_to_acquire(self, name: str) -> Leadership:
        lease = self.leadership(name)
        self.waiting[name] = asyncio.create_task(lease.acquire())
        return lease


@pytest.fixture
def world() -> World:
    return World()


def shares(members: Iterable[Members]) -> list[int]:
    return sorted(partition for member in members for partition in member.partitions())


async def test_the_first_to_ask_leads_at_once(world: World) -> None:
    lease = world.leadership("a")
    assert not lease.held
    await lease.acquire()
    assert lease.held


async def test_a_leader_that_renews_is_never_replaced(world: World) -> None:
    leader, standby = world.starts_to_acquire("a"), world.starts_to_acquire("b")
    await world.clock.run(20 * LEASE)
    assert leader.held
    assert not standby.held


async def test_a_standby_takes_over_when_the_leader_has_been_silent_for_the_lease(world: World) -> None:
    leader, standby = world.starts_to_acquire("a"), world.starts_to_acquire("b")
    await world.clock.run(LEASE)
    world.cable("a").cut = True
    await world.clock.run(0.7 * LEASE)
    assert not standby.held
    await world.clock.run(0.7 * LEASE)
    assert standby.held
    assert not leader.held


async def test_a_leader_stops_believing_before_any_standby_takes_over(world: World) -> None:
    leader, standby = world.starts_to_acquire("a"), world.starts_to_acquire("b")
    await world.clock.run(LEASE)
    world.cable("a").cut = True
    for _ in range(40):
        await world.clock.run(LEASE / 20)
        assert not (leader.held and standby.held)
    assert standby.held


async def test_a_lease_that_was_let_go_is_taken_at_once(world: World) -> None:
    leader, standby = world.starts_to_acquire("a"), world.starts_to_acquire("b")
    await world.clock.run(LEASE)
    await leader.release()
    assert not leader.held
    await world.clock.run(0.2)
    assert standby.held


async def test_a_leader_that_was_replaced_while_asleep_notices_at_its_next_renewal(world: World) -> None:
    leader = world.starts_to_acquire("a")
    await world.clock.run(LEASE)
    await world.bus.publish(Outgoing("lease.main.scheduler.leader", b'{"holder":"b"}'))
    assert leader.held
    await world.clock.run(LEASE / 4)
    assert not leader.held


async def test_a_lease_lost_stays_lost_until_it_is_acquired_again(world: World) -> None:
    leader = world.starts_to_acquire("a")
    await world.clock.run(LEASE)
    world.cable("a").cut = True
    await world.clock.run(2 * LEASE)
    world.cable("a").cut = False
    await world.clock.run(5 * LEASE)
    assert not leader.held
    await leader.acquire()
    assert leader.held


async def test_a_short_outage_does_not_cost_the_lease(world: World) -> None:
    leader, standby = world.starts_to_acquire("a"), world.starts_to_acquire("b")
    await world.clock.run(LEASE)
    world.cable("a").cut = True
    await world.clock.run(0.5 * LEASE)
    world.cable("a").cut = False
    await world.clock.run(5 * LEASE)
    assert leader.held
    assert not standby.held


async def test_a_renewal_whose_answer_was_lost_is_recognised_as_our_own(world: World) -> None:
    leader = world.starts_to_acquire("a")
    await world.clock.run(LEASE)
    world.cable("a").answers_lost = True
    await world.clock.run(0.3 * LEASE)
    world.cable("a").answers_lost = False
    await world.clock.run(5 * LEASE)
    assert leader.held


async def test_two_standbys_never_both_win(world: World) -> None:
    leases = [world.starts_to_acquire(name) for name in ("a", "b", "c")]
    await world.clock.run(LEASE)
    leader = next(lease for lease in leases if lease.held)
    await leader.release()
    await world.clock.run(LEASE)
    assert sum(lease.held for lease in leases) == 1


async def test_bytes_that_are_no_lease_only_delay_the_next_leader(world: World) -> None:
    await world.bus.publish(Outgoing("lease.main.scheduler.leader", b"\xff"))
    lease = world.starts_to_acquire("a")
    await world.clock.run(1.5 * LEASE)
    assert lease.held


async def test_a_replica_alone_works_every_partition(world: World) -> None:
    member = world.members("a")
    await member.join()
    assert member.partitions() == frozenset(range(PARTITIONS))


async def test_live_replicas_share_all_partitions_without_overlap(world: World) -> None:
    members = [world.members(name) for name in ("a", "b", "c")]
    for member in members:
        await member.join()
    await world.clock.run(LEASE)
    assert shares(members) == list(range(PARTITIONS))
    assert all(member.partitions() for member in members)


async def test_a_replica_that_leaves_gives_only_its_own_partitions_away(world: World) -> None:
    a, b, c = members = [world.members(name) for name in ("a", "b", "c")]
    for member in members:
        await member.join()
    await world.clock.run(LEASE)
    before = a.partitions()
    await c.leave()
    await world.clock.run(LEASE / 4)
    assert before <= a.partitions()
    assert shares([a, b]) == list(range(PARTITIONS))


async def test_the_partitions_of_a_silent_replica_are_taken_over(world: World) -> None:
    a, b = world.members("a"), world.members("b")
    await a.join()
    await b.join()
    await world.clock.run(LEASE)
    world.cable("b").cut = True
    await world.clock.run(1.5 * LEASE)
    assert a.partitions() == frozenset(range(PARTITIONS))


async def test_what_a_dead_replica_left_behind_holds_no_partition(world: World) -> None:
    await world.bus.publish(Outgoing("lease.main.binder.long-gone", b'{"holder":"long-gone"}'))
    member = world.members("a")
    await member.join()
    assert member.partitions() == frozenset(range(PARTITIONS))


async def test_a_bus_that_was_away_for_all_declares_nobody_dead(world: World) -> None:
    members = [world.members(name) for name in ("a", "b")]
    for member in members:
        await member.join()
    await world.clock.run(LEASE)
    before = [member.partitions() for member in members]
    for name in ("a", "b"):
        world.cable(name).cut = True
    await world.clock.run(10 * LEASE)
    assert [member.partitions() for member in members] == before
    for name in ("a", "b"):
        world.cable(name).cut = False
    await world.clock.run(LEASE / 4)
    assert [member.partitions() for member in members] == before


async def test_the_leaders_lease_is_no_member(world: World) -> None:
    leader = Leadership(world.bus, world.clock, "main", "binder", "a", LEASE)  # type: ignore[arg-type]
    await leader.acquire()
    member = world.members("b")
    await member.join()
    await world.clock.run(3 * LEASE)
    assert member.partitions() == frozenset(range(PARTITIONS))


def test_a_job_keeps_its_partition_in_every_process_and_version() -> None:
    assert [partition_of(job) for job in ("a", "b", "c")] == [10, 10, 2]
    assert {partition_of(f"job-{i}") for i in range(500)} == set(range(PARTITIONS))
