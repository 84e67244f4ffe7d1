"""Projection as a service: every sink ends where the ledger does, whatever breaks on the way."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from random import Random

import pytest

from tessera.kernel.errors import Conflict, InvariantViolation, Transient
from tessera.kernel.ledger.shard import Shard, decode_entry
from tessera.kernel.ledger.snapshots import Manifest, find_snapshot
from tessera.kernel.ledger.stream import StreamLedger
from tessera.kernel.memory.bus import MemoryBus
from tessera.kernel.ports import Message, Outgoing
from tessera.kernel.process.leases import Leadership
from tessera.projection.cycle import SHARE_SECONDS
from tessera_schemas import subjects
from tessera_schemas.events import CONTENT_TYPE, CURSOR_HEADER
from tessera_schemas.ledger import LEDGER_MESSAGE
from tests.builders import SHARD, Chain
from tests.ledgers import Committed
from tests.random_ledger import random_ledger
from tests.unit.projection.projection_world import (
    UNKNOWN,
    Away,
    Breaks,
    Chance,
    Crash,
    World,
    expected_digest,
    expected_events,
    held_digest,
)

LEDGER = random_ledger(7, 60)
EVENTS = expected_events(LEDGER.stored)
ABOUT_EVENTS = f"events.{SHARD}."
KEPT_SECONDS = 30 * 86_400


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    await made.close()


def half(ledger: Committed) -> tuple[list[bytes], list[bytes]]:
    middle = len(ledger.stored) // 2
    return ledger.stored[:middle], ledger.stored[middle:]


def assert_all_done(world: World, ledger: Committed = LEDGER) -> None:
    assert world.published() == expected_events(ledger.stored)
    assert world.views.current is not None
    assert world.views.current.cursor == len(ledger.stored)
    assert held_digest(world.views) == expected_digest(ledger.state)


async def test_events_and_views_follow_the_ledger(world):
    running = world.start()
    for data in LEDGER.stored:
        world.append([data])
        await world.clock.run(0.01)
    await world.clock.run(0.1)
    assert_all_done(world)
    assert running.trouble == {}
    assert running.ports.metrics.registry.get_sample_value("tessera_ledger_n") == len(LEDGER.stored)


async def test_a_ledger_that_is_long_already_is_taken_in_one_go(world):
    world.append(LEDGER.stored)
    counted = Away()
    world.start(store_faults=counted)
    await world.clock.run(1)
    assert_all_done(world)
    assert counted.calls.count("apply") + counted.calls.count("replace") == 1


async def test_an_event_says_what_it_is_and_where_it_comes_from(world):
    world.append(LEDGER.stored)
    world.start()
    await world.clock.run(1)
    first = next(iter(world.stream("EVENTS").messages.values()))
    assert first.headers == {CURSOR_HEADER: EVENTS[0][1], "Content-Type": CONTENT_TYPE}


@pytest.mark.parametrize("after", [False, True], ids=["before it is stored", "after it is stored"])
@pytest.mark.parametrize("at", range(1, len(EVENTS) + 1, 5))
async def test_a_crash_at_any_event_loses_and_doubles_none(world, at, after):
    world.append(LEDGER.stored)
    crash = Breaks("publish", [at], Crash(), about=ABOUT_EVENTS, after=after)
    running = world.start(crash)
    await world.clock.run(1)
    with pytest.raises(Crash):
        await running.task
    assert world.published() == EVENTS[: at - (not after)]
    world.start()
    await world.clock.run(5)
    assert_all_done(world)


@pytest.mark.parametrize("after", [False, True], ids=["not stored, arrives late", "stored"])
async def test_events_of_unknown_outcome_are_looked_for_and_never_doubled(world, after):
    world.append(LEDGER.stored)
    world.start(Breaks("publish", {1, 9, 10, 11, 40}, UNKNOWN, about=ABOUT_EVENTS, after=after))
    for _ in range(60):
        await world.clock.run(0.5)
        world.land_late()
    assert_all_done(world)


async def test_a_conflict_with_another_publisher_is_taken_up_behind_it(world):
    world.append(LEDGER.stored)
    late = world.start(Breaks("publish", {3}, Conflict("lost"), about=ABOUT_EVENTS))
    await world.clock.run(30)
    assert_all_done(world)
    assert late.ports.metrics.registry.get_sample_value("tessera_conflicts_total") == 1


async def test_a_standby_takes_over_with_everything_at_hand(world):
    first, second = half(LEDGER)
    leader, standby = world.start(), world.start()
    world.append(first)
    await world.clock.run(1)
    # The leader dies with events and views unsent.
    leader.ports.bus.faults = Away(Transient("gone"), ABOUT_EVENTS)
    leader.ports.store.faults = Away(Transient("gone"))
    world.append(second)
    await world.clock.run(0.5)
    assert set(leader.trouble) == {"events", "redis"}
    assert len(world.published()) < len(EVENTS)
    await leader.kill()
    await world.clock.run(3)
    assert_all_done(world)
    assert standby.ports.metrics.registry.get_sample_value("tessera_leading") == 1


async def test_two_that_both_believe_to_lead_write_what_one_would(world, monkeypatch):
    monkeypatch.setattr(Leadership, "held", True)
    one, two = world.start(snapshot_seconds=0), world.start(snapshot_seconds=0)
    for at, data in enumerate(LEDGER.stored):
        for running, turn in ((one, at % 3 == 0), (two, at % 3 == 1)):
            slept = Away(Transient("slept"), "ledger.") if turn else None
            running.ports.bus.faults = slept
        world.append([data])
        await world.clock.run(0.07)
    one.ports.bus.faults = two.ports.bus.faults = None
    await world.clock.run(10)
    assert_all_done(world)


@pytest.mark.parametrize("seed", range(12))
async def test_whatever_breaks_by_chance_everything_is_right_in_the_end(world, seed):
    """Calls fail, answers are lost, late publishes arrive, Redis is wiped, processes die and start again."""
    chance, ledger = Random(seed), random_ledger(seed, 60)
    share = chance.choice((0.02, 0.1, 0.2))
    running = []
    for at in range(0, len(ledger.stored), 3):
        world.append(ledger.stored[at : at + 3])
        if not running or chance.random() < 0.1:
            broken = Chance(chance, share), Chance(chance, share)
            running.append(world.start(*broken, view_changes_max=chance.choice((5, 20_000)), snapshot_seconds=0))
        if len(running) > 1 and chance.random() < 0.5:
            await running.pop(0).kill()
        if chance.random() < 0.1:
            world.views.wipe()
        await world.clock.run(chance.choice((0.0, 0.01, 0.3, 2.0)))
        world.land_late()
        assert world.published() == expected_events(ledger.stored)[: len(world.published())]
    for one in running:
        one.ports.bus.faults = one.ports.store.faults = None
    await world.clock.run(20)
    assert_all_done(world, ledger)


# Redis


async def test_events_and_snapshots_go_on_without_redis(world):
    redis = Away(Transient("refused"))
    running = world.start(store_faults=redis, snapshot_seconds=0)
    world.append(LEDGER.stored)
    await world.clock.run(5)
    assert world.published() == EVENTS
    assert world.stream("SNAP").messages
    assert set(running.trouble) == {"redis"}
    redis.error = None
    await world.clock.run(10)
    assert_all_done(world)
    assert running.trouble == {}


async def test_views_and_snapshots_go_on_without_the_events_stream(world):
    bus = Away(Transient("stream offline"), ABOUT_EVENTS)
    running = world.start(snapshot_seconds=0)
    await world.clock.run(0.1)
    running.ports.bus.faults = bus
    world.append(LEDGER.stored)
    await world.clock.run(5)
    assert held_digest(world.views) == expected_digest(LEDGER.state)
    assert world.stream("SNAP").messages
    assert set(running.trouble) == {"events"}
    bus.error = None
    await world.clock.run(10)
    assert_all_done(world)


async def test_a_wiped_redis_is_filled_again_though_nothing_happens(world):
    world.append(LEDGER.stored)
    world.start()
    await world.clock.run(1)
    world.views.wipe()
    await world.clock.run(6)
    assert_all_done(world)


async def test_a_redis_wiped_under_load_is_filled_again(world):
    first, second = half(LEDGER)
    world.append(first)
    world.start()
    await world.clock.run(1)
    world.views.wipe()
    for data in second:
        world.append([data])
        await world.clock.run(0.01)
    await world.clock.run(1)
    assert_all_done(world)


async def test_a_redis_that_lost_its_last_writes_gets_them_again(world):
    first, second = half(LEDGER)
    world.append(first)
    world.start()
    await world.clock.run(1)
    older = world.views.copy()
    world.append(second)
    await world.clock.run(1)
    world.views.current = older
    await world.clock.run(6)
    assert_all_done(world)


async def test_a_redis_that_is_ahead_of_the_ledger_is_left_as_it_is_since_it_proves_a_loss(world):
    assert world.views.current is None
    other = World()
    other.append(random_ledger(8, 90).stored)
    other.start()
    await other.clock.run(1)
    await other.close()
    ahead = world.views.current = other.views.current
    world.append(LEDGER.stored)
    world.start()
    await world.clock.run(2)
    assert (world.views.current, world.views.current.cursor) == (ahead, 90)


async def test_a_redis_that_is_far_behind_is_built_anew_at_once(world):
    redis = Away()
    world.start(store_faults=redis, view_changes_max=20)
    first, second = half(LEDGER)
    world.append(first[:3])
    await world.clock.run(1)
    redis.error = Transient("refused")
    world.append([*first[3:], *second])
    await world.clock.run(5)
    redis.error, redis.calls = None, []
    await world.clock.run(10)
    assert_all_done(world)
    assert redis.calls.count("replace") == 1


async def test_changes_that_are_too_large_for_one_script_are_built_anew(world, monkeypatch):
    monkeypatch.setattr("tessera.projection.mirror.CHANGES_BYTES_MAX", 2_000)
    redis = Away()
    world.start(store_faults=redis)
    first, second = half(LEDGER)
    world.append(first[:3])
    await world.clock.run(1)
    redis.error = Transient("refused")
    world.append([*first[3:], *second])
    await world.clock.run(5)
    redis.error, redis.calls = None, []
    await world.clock.run(10)
    assert_all_done(world)
    assert redis.calls.count("replace") == 1


async def test_an_apply_whose_answer_was_lost_is_not_applied_twice(world):
    world.start(store_faults=Breaks("apply", {2, 3, 7}, Transient("no answer"), after=True))
    for data in LEDGER.stored:
        world.append([data])
        await world.clock.run(0.05)
    await world.clock.run(3)
    assert_all_done(world)


async def test_what_happens_while_the_views_are_built_is_in_them_at_the_end(world):
    """The fold goes on during a build; no reader ever sees a mixture."""
    first, second = half(LEDGER)
    world.append(first)
    redis = Breaks("switch", {1, 2}, Transient("no answer"))
    world.views.current = None
    world.start(store_faults=redis, view_changes_max=1)
    await world.clock.run(0.01)
    for data in second:
        world.append([data])
        await world.clock.run(0.05)
        now = world.views.current
        if now is not None:
            assert held_digest(world.views) in digests_at(now.cursor)
    await world.clock.run(3)
    assert_all_done(world)


def digests_at(n: int) -> set[str]:
    shard = Shard()
    for at, data in enumerate(LEDGER.stored[:n], start=1):
        shard.fold(decode_entry(Message("", at, data)))
    return {expected_digest(shard.state)}


# Snapshots and the events' stream


async def snapshots(world: World) -> list[int]:
    """The n of every snapshot that can be restored, newest first."""
    bus, found = MemoryBus(world.broker), []

    def unseen(manifest: Manifest) -> bool:
        return manifest.n not in found

    async def look() -> None:
        while one := await find_snapshot(bus, StreamLedger(bus, SHARD), SHARD, unseen):
            found.append(one.state.n)

    looking = asyncio.ensure_future(look())
    while not looking.done():
        await world.clock.run(0.1)
    looking.result()
    return found


async def grown(world: World, **settings: object) -> None:
    """The ledger, a message at a time, each after the rest that many records earn, so that none shares a batch."""
    running = world.start(**settings)
    for data in LEDGER.stored:
        world.append([data])
        await world.clock.run(2 * SHARE_SECONDS)
    await world.clock.run(1)
    await running.kill()


async def test_snapshots_are_taken_before_checkpoints_and_older_ones_stay_readable(world):
    await grown(world, snapshot_seconds=0)
    found = await snapshots(world)
    checkpoints = [n for n, data in enumerate(LEDGER.stored, start=1) if b'"checkpoint"' in data]
    assert len(found) > 3
    assert found == [n - 1 for n in reversed(checkpoints)][: len(found)]


async def test_snapshots_keep_their_distance(world):
    await grown(world, snapshot_seconds=3600)
    assert len(await snapshots(world)) == 1


async def test_much_that_came_calls_for_a_snapshot_before_its_time(world, monkeypatch):
    monkeypatch.setattr("tessera.projection.snapshots.GROWTH_BYTES", 6_000)
    monkeypatch.setattr("tessera.projection.snapshots.CHUNK_BYTES", 10)  # by which the size of a state is reckoned
    monkeypatch.setattr("tessera.projection.snapshots.SOONEST", 0.0001)
    await grown(world, snapshot_seconds=3600)
    taken = await snapshots(world)
    assert 2 < len(taken) < sum(b'"checkpoint"' in data for data in LEDGER.stored)


async def test_a_restart_folds_only_what_came_after_the_snapshot(world):
    await grown(world, snapshot_seconds=0)
    world.stream("LEDGER").remove(1)  # whoever began at the beginning would find a gap
    running = world.start()
    await world.clock.run(3)
    assert not running.task.done()
    assert_all_done(world)


async def test_a_restart_writes_neither_the_snapshot_nor_the_views_that_are_there(world):
    """With a hundred thousand jobs that was half of what projection did at its start."""
    await grown(world, snapshot_seconds=3600)  # one early snapshot, and much behind it
    snap, redis = world.stream("SNAP").last_seq, Away()
    running = world.start(store_faults=redis, snapshot_seconds=3600, view_changes_max=1)
    await world.clock.run(10)
    assert_all_done(world)
    assert running.trouble == {}
    assert not {"apply", "replace"} & set(redis.calls)
    assert world.stream("SNAP").last_seq == snap


async def test_a_redis_wiped_while_a_restart_folds_what_it_held_is_filled_again(world):
    await grown(world, snapshot_seconds=3600)
    world.start(store_faults=WipedAfterFirstLook(world))
    await world.clock.run(10)
    assert_all_done(world)


class WipedAfterFirstLook(Away):
    """A Redis that is emptied once somebody has read its cursor."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    async def before(self, op: str, subject: str = "") -> None:
        await super().before(op, subject)
        if op == "cursor" and self.calls.count("cursor") == 2:
            self._world.views.wipe()


async def test_a_stream_that_lost_its_last_events_gets_them_again_from_an_older_state(world):
    await grown(world, snapshot_seconds=0)
    world.lose_last_events(12)
    world.start()
    await world.clock.run(5)
    assert_all_done(world)


async def test_a_stream_that_loses_its_end_while_it_is_written_gets_it_again(world):
    first, second = half(LEDGER)
    world.append(first)
    world.start(snapshot_seconds=0)
    await world.clock.run(1)
    world.lose_last_events(5)
    world.append(second)
    await world.clock.run(10)
    assert_all_done(world)


async def test_a_stream_made_anew_gets_every_event_again(world):
    await grown(world, snapshot_seconds=0)
    world.lose_last_events(len(EVENTS))
    world.start()
    await world.clock.run(5)
    assert_all_done(world)


async def test_a_stream_whose_events_all_grew_too_old_goes_on_with_the_younger_ones(world):
    first, second = half(LEDGER)
    world.append(first)
    running = world.start()
    await world.clock.run(1)
    await running.kill()
    for seq in list(world.stream("EVENTS").messages):
        world.stream("EVENTS").remove(seq)
    world.clock.now = ts(first[-1]) / 1000 + KEPT_SECONDS + 0.001
    world.append(second)
    world.start()
    await world.clock.run(60)
    young = {n for n, data in enumerate(LEDGER.stored, start=1) if ts(data) > ts(first[-1])}
    assert young
    assert world.published() == [event for event in EVENTS if int(event[1].partition(".")[0]) in young]


def ts(stored: bytes) -> int:
    return LEDGER_MESSAGE.validate_json(stored).ts


# What halts


async def test_a_ledger_that_contradicts_itself_halts_projection(world):
    chain = Chain()
    chain.add()
    chain.prev = "0" * 64
    chain.add()
    world.append(chain.stored)
    running = world.start()
    await world.clock.run(1)
    with pytest.raises(InvariantViolation, match="fork"):
        running.task.result()


FALSE_CURSORS = {
    "no cursor": {},
    "no number": {CURSOR_HEADER: "newest"},
    "a record far ahead": {CURSOR_HEADER: f"{10**9}.0"},
    "a record without an event": {CURSOR_HEADER: "1.0"},
    "an event that is due later": {CURSOR_HEADER: EVENTS[-1][1]},
}


@pytest.mark.parametrize("while_it_runs", [False, True], ids=["at a start", "while it runs"])
@pytest.mark.parametrize("headers", FALSE_CURSORS.values(), ids=FALSE_CURSORS)
async def test_a_false_event_keeps_no_true_one_out(world, headers, while_it_runs):
    """Whoever may write there could say that all is published up to any record: events would be passed over."""
    first, second = half(LEDGER)
    world.append(first)
    running = world.start()
    await world.clock.run(1)
    if not while_it_runs:
        await running.kill()
        world.append(second)
    false = f"{ABOUT_EVENTS}lab.research.job.bound.v1"
    world.broker.store(Outgoing(false, b"{}", headers=headers))
    if while_it_runs:
        world.append(second)
    else:
        world.start()
    await world.clock.run(60)
    left = iter(event for event in world.events() if event != (false, b"{}"))
    assert all((subject, data) in left for subject, _, data in EVENTS)  # each in its turn, perhaps once more
    assert held_digest(world.views) == expected_digest(LEDGER.state)


async def test_a_snapshot_that_says_that_its_events_are_published_is_not_believed(world):
    """Its chunks are true, only its word of the newest event is not: restored there, what is due would never come."""
    await grown(world, snapshot_seconds=0)
    bus, snap = MemoryBus(world.broker), subjects.stream("SNAP", SHARD)
    newest = await bus.last(snap, subjects.snapshot_manifest(SHARD))
    assert newest is not None
    false = Manifest.model_validate_json(newest.data).model_copy(update={"last_event": EVENTS[0][1]})
    world.broker.store(Outgoing(newest.subject, false.to_bytes()))
    world.lose_last_events(len(EVENTS) - 1)
    world.start()
    await world.clock.run(30)
    assert world.published() == EVENTS


async def test_told_to_stop_it_lets_go_of_its_lease(world):
    running = world.start()
    world.append(LEDGER.stored)
    await world.clock.run(1)
    running.stop.set()
    await world.clock.run(0.1)
    assert running.task.done()
    last = world.stream("LEASES").last(subjects.lease(SHARD, "projection", "leader"))
    assert b'""' in last.data


async def test_told_to_stop_it_ends_while_the_bus_is_away(world):
    bus = Hangs()
    running = world.start(bus_faults=bus)
    await world.clock.run(1)
    running.stop.set()
    await world.clock.run(10)
    assert running.task.done()
    assert bus.calls < 5


class Hangs:
    """A bus whose first call hangs and loses its cancellation, as in Python 3.11; later calls fail at once."""

    def __init__(self) -> None:
        self.calls = 0

    async def before(self, op: str, subject: str = "") -> None:
        if subject.startswith("lease"):
            return
        self.calls += 1
        if self.calls > 100:
            raise Crash("asked without a pause")  # a loop that never waits holds the thread
        if self.calls == 1:
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        raise Transient("away")

    async def after(self, op: str, subject: str = "") -> None: ...

    def deliver(self, batch: list[Message]) -> list[Message]:
        return batch
