"""A roll-over takes nothing away that is not kept elsewhere, wherever it breaks off, and no follower notices."""

from dataclasses import replace
from pathlib import Path

import pytest

from tessera.binder.pods.templates import Templates
from tessera.client.commands.ledger_care.backup import extend
from tessera.client.commands.ledger_care.ledger import replayed
from tessera.client.ledger.accounts.accounting import account_report
from tessera.client.ledger.backup import Backup
from tessera.client.ledger.reading import LedgerBackup, StoredLedger
from tessera.client.ledger.rolling import RolledLedger, RollPolicy, roll
from tessera.client.outcomes import Failure
from tessera.client.views.explain import gone_sentence
from tessera.engine.accounts.naming import name_by
from tessera.kernel.clock import SystemClock
from tessera.kernel.errors import InvariantViolation, RolledOver
from tessera.kernel.ledger import generations
from tessera.kernel.ledger.shard import restore
from tessera.kernel.ledger.snapshots import chunks_of, store_snapshot
from tessera.kernel.ledger.stream import StreamLedger
from tessera.kernel.memory.broker import MemoryBroker, matches
from tessera.kernel.memory.bus import MemoryBus
from tessera.kernel.ports import Outgoing
from tessera.projection.events import cursors_of
from tessera_schemas import subjects
from tessera_schemas.events import CURSOR_HEADER
from tessera_schemas.ledger import LEDGER_MESSAGE
from tessera_schemas.shard.ledger_form import Head
from tests.builders import SHARD, admitted
from tests.ledgers import Committed

LEDGER, SNAP = subjects.stream("LEDGER", SHARD), subjects.stream("SNAP", SHARD)


CALLS = 7
"""Calls of a roll-over that follows another: each is a place to die at."""


class Killed(Exception):
    """The operator's process died here."""


class World:
    """A ledger, its snapshots, a backup, and an operator who can be killed at any of the calls of a roll-over."""

    def __init__(self, directory: Path) -> None:
        self.broker = MemoryBroker(SystemClock())
        self.broker.add_shard(SHARD)
        self.bus = MemoryBus(self.broker)
        self.ledger = StreamLedger(self.bus, SHARD)
        self.books, self._stored = Committed().begin(), 0
        self.directory, self.calls_left, self.purged = directory, -1, list[int]()
        self.publishes = True
        self.store()

    def store(self) -> None:
        for data in self.books.stored[self._stored :]:
            self.broker.store(Outgoing(subjects.ledger(SHARD), data))
            for cursor in cursors_of(LEDGER_MESSAGE.validate_json(data)) if self.publishes else ():
                self.event(str(cursor))
        self._stored = len(self.books.stored)

    def event(self, cursor: str) -> None:
        """Public event as projection stores it."""
        subject = subjects.event(SHARD, "lab", "research", "job.admitted.v1")
        self.broker.store(Outgoing(subject, b"{}", {CURSOR_HEADER: cursor}))

    async def snapshot(self, last_event: str = "") -> int:
        """Snapshot of the state as it is, for which the next message vouches; returns its n."""
        state = self.books.state
        n = int(state.n)
        hashed = self.books.shard.hasher.of(state)
        await store_snapshot(self.bus, SHARD, list(chunks_of(state)), n, hashed, last_event)
        self.books.commit(admitted(f"after-{n}"), checkpoint=True)
        self.store()
        return n

    def stored(self) -> StoredLedger:
        return StoredLedger(self.bus, self.ledger, SHARD)

    async def roll(self, keep: int = 0) -> RolledLedger:
        backup = await extend(self.directory, self.stored())
        return await roll(StoredLedger(self, self.ledger, SHARD), self, backup, keep)  # type: ignore[arg-type]

    def _count(self) -> None:
        if self.calls_left == 0:
            raise Killed
        self.calls_left -= 1

    async def publish(self, out: Outgoing) -> int:
        self._count()
        return await self.bus.publish(out)

    async def publish_all(self, batch: list[Outgoing]) -> list[int]:
        return [await self.publish(out) for out in batch]

    async def purge_before(self, stream: str, seq: int) -> None:
        self.purged.append(seq)
        self._count()
        messages = self.broker.stream(stream)
        messages.purge((min(messages.messages) + seq) // 2)  # a server that dies on the way has done a part
        self._count()
        messages.purge(seq)

    async def purge_subject(self, stream: str, subject: str) -> None:
        self._count()
        found = self.broker.stream(stream)
        for seq in list(found.by_subject.get(subject, ())):
            found.remove(seq)

    async def subjects(self, stream: str, pattern: str) -> list[str]:
        return [name for name, seqs in self.broker.stream(stream).by_subject.items() if seqs and matches(pattern, name)]

    def __getattr__(self, name: str) -> object:
        return getattr(self.bus, name)


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    for key in ("k1", "k2"):
        made.books.run_to_its_end(key)
    made.store()
    return made


async def is_whole(world: World) -> None:
    """Everybody who reads the ledger comes to the state that it had before."""
    shard = await restore(world.bus, world.ledger, SHARD)
    await shard.catch_up(world.ledger)
    assert shard.hasher.of(shard.state) == world.books.shard.hasher.of(world.books.state)
    report = await replayed(world.stored(), None)
    assert report.ok, report.findings
    assert (report.n, report.chain) == (world.books.state.n, world.books.state.chain)
    templates = Templates(world.ledger)
    for job in shard.state.jobs.values():
        assert (await templates.of(job)).name == job.name


async def test_what_is_before_a_generation_leaves_the_stream_and_stays_in_the_backup(world: World) -> None:
    waits = world.books.commit(admitted("waits")).n
    world.store()
    n = await world.snapshot()
    done = await world.roll()
    assert done == RolledLedger(opened_n=n, first_before=1, first=n + 1)
    assert min(world.broker.stream(LEDGER).messages) == n + 1
    kept = await world.ledger.read(waits)
    assert kept is not None
    assert kept.data == world.books.stored[waits - 1]
    assert await world.ledger.read(waits - 1) is None
    await is_whole(world)
    copy = Backup.read(world.directory)
    assert [data for _, data in copy.messages()] == world.books.stored
    gap = await world.stored().gap_before(waits)
    assert gap is not None
    assert (gap.n, gap.text) == (n, gone_sentence(waits))  # the words in which a tenant is told the same, by token
    assert await world.stored().gap_before(n + 1) is None


async def test_an_account_begins_where_the_ledger_does_and_the_backup_has_the_rest(world: World) -> None:
    whole = await account_report(world.stored(), 0, 0, name_by("job"))
    n = await world.snapshot()
    await world.roll()
    later = await account_report(world.stored(), 0, 0, name_by("job"))
    backup = LedgerBackup(Backup.read(world.directory))
    every = await account_report(backup, 0, 0, name_by("job"))
    before = await account_report(backup, 0, later.since_ts, name_by("job"))
    assert (later.since_ts, later.n, later.sum) == (whole.until_ts, n + 1, later.capacity)
    assert before == replace(whole, n=before.n)
    assert every.sum == every.capacity == before.capacity + later.capacity


async def dies(world: World, calls: int) -> bool:
    """Roll over, and die at a call; False when there are fewer calls."""
    world.calls_left = calls
    try:
        await world.roll()
    except Killed:
        return True
    finally:
        world.calls_left = -1
    return False


@pytest.mark.parametrize("calls", range(CALLS + 1))
async def test_a_roll_over_that_dies_anywhere_leaves_a_whole_ledger_and_is_done_again(world: World, calls: int) -> None:
    world.books.commit(admitted("stays"))
    await world.snapshot()
    await world.roll()
    world.books.run_to_its_end("k3")
    world.books.commit(admitted("stays-too"))
    n = await world.snapshot()
    assert await dies(world, calls) == (calls < CALLS)
    await is_whole(world)
    assert (await world.roll()).first == n + 1
    await is_whole(world)


async def test_messages_leave_in_small_parts_since_appends_wait_for_each(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generations, "PURGED_AT_ONCE", 5)
    n = await world.snapshot()
    await world.roll()
    assert world.purged == [*range(6, n + 1, 5), n + 1]
    await is_whole(world)


async def test_nothing_is_dropped_before_the_first_event_was_published(world: World) -> None:
    """Projection may have been away since the shard began: an empty stream of events is no proof that it was not."""
    events = world.broker.stream(subjects.stream("EVENTS", SHARD))
    unpublished = list(events.messages.values())
    for message in unpublished:
        events.remove(message.seq)
    events.last_seq, world.publishes = 0, False
    await world.snapshot()
    with pytest.raises(Failure, match="whose events are published"):
        await world.roll()
    assert await world.ledger.first() == 1
    for message in unpublished:
        world.event(message.headers[CURSOR_HEADER])
    assert (await world.roll()).first > 1
    events.purge(events.last_seq + 1)  # they grew too old, and so have those that nobody published
    before = await world.snapshot(last_event="5.0")
    assert (await world.roll()).opened_n == before


async def test_generations_stay_in_the_stream_as_many_as_are_asked_for(world: World) -> None:
    opened = [await world.snapshot()]
    assert (await world.roll(keep=1)).first == 1
    for key in ("k3", "k4"):
        world.books.run_to_its_end(key)
        opened.append(await world.snapshot())
        assert (await world.roll(keep=1)).first == opened[-2] + 1
        await is_whole(world)


async def test_messages_of_jobs_that_ended_are_kept_no_longer(world: World) -> None:
    waits = admitted("waits")
    n = world.books.commit(waits).n
    await world.snapshot()
    await world.roll()
    assert await world.ledger.read(n) is not None
    world.books.end(waits.job_id, "waits")
    await world.snapshot()
    await world.roll()
    assert await world.ledger.read(n) is None
    await is_whole(world)


async def test_who_follows_crosses_a_roll_over_and_who_slept_through_it_begins_anew(world: World) -> None:
    follows, slept = world.ledger.follow(0), world.ledger.follow(2)
    seen = [message.seq for message in await follows.next(timeout=5)]
    n = await world.snapshot()
    await world.roll()
    seen += [message.seq for message in await follows.next(timeout=5)]
    assert seen == list(range(1, n + 2))
    with pytest.raises(RolledOver, match="3 was not read yet"):
        await slept.next(timeout=5)
    assert (await restore(world.bus, world.ledger, SHARD)).state.n == n


@pytest.mark.parametrize("at", [1, 2], ids=["next", "behind the next"])
async def test_a_gap_behind_the_first_record_is_damage_and_no_roll_over(world: World, at: int) -> None:
    await world.snapshot()
    await world.roll()
    shard = await restore(world.bus, world.ledger, SHARD)
    await shard.catch_up(world.ledger)
    world.books.run_to_its_end("k3")
    world.store()
    world.broker.stream(LEDGER).remove(shard.state.n + at)
    with pytest.raises(InvariantViolation, match="gap"):
        await shard.catch_up(world.ledger)


async def test_a_rolled_ledger_without_any_snapshot_halts_and_says_why(world: World) -> None:
    n = await world.snapshot()
    await world.roll()
    world.broker.stream(SNAP).purge(10**9)
    with pytest.raises(InvariantViolation, match=f"begins with record {n + 1}, and no state before it can be read"):
        await restore(world.bus, world.ledger, SHARD)
    with pytest.raises(Failure, match="no generation opens there"):
        await world.stored().opening()


async def test_an_opening_is_found_when_every_newer_snapshot_is_lost(world: World) -> None:
    n = await world.snapshot()
    await world.roll()
    world.broker.stream(SNAP).by_subject[subjects.snapshot_manifest(SHARD)].clear()
    assert (await restore(world.bus, world.ledger, SHARD)).state.n == n
    await is_whole(world)


async def test_nothing_is_dropped_while_a_file_of_the_backup_is_not_what_was_written(world: World) -> None:
    await world.snapshot()
    await extend(world.directory, world.stored())
    segment = next(world.directory.glob("*.jsonl.gz"))
    segment.write_bytes(segment.read_bytes()[:-9] + bytes(9))
    with pytest.raises(Failure, match="is not what was written"):
        await world.roll()
    assert min(world.broker.stream(LEDGER).messages) == 1


async def test_a_backup_that_begins_after_a_roll_over_proves_itself_and_keeps_what_live_jobs_need(
    world: World, tmp_path_factory: pytest.TempPathFactory
) -> None:
    waits = world.books.commit(admitted("waits")).n
    n = await world.snapshot()
    await world.roll()
    world.books.run_to_its_end("k3")
    world.store()
    made = await extend(tmp_path_factory.mktemp("second") / "backup", world.stored())
    assert made.beginning == Head(n, made.opening.chain if made.opening else "")
    assert made.opening is not None
    assert waits in [number async for number, _ in made.opening.kept(made.directory)]
    report = await replayed(LedgerBackup(Backup.read(made.directory)), None)
    assert report.ok, report.findings
    assert report.n == world.books.state.n
    altered = made.directory / made.opening.file
    altered.write_bytes(altered.read_bytes()[:-9] + bytes(9))
    with pytest.raises(Failure, match="is not what was written"):
        await replayed(LedgerBackup(made), None)


async def test_an_anchor_from_before_the_generation_proves_nothing_and_says_so(world: World) -> None:
    before = Head(3, "0" * 64)
    n = await world.snapshot()
    await world.roll()
    report = await replayed(world.stored(), before)
    assert "the anchor at 3 lies before message" in report.findings[0]
    at = await world.stored().begin()
    assert at.n == n
    assert (await replayed(world.stored(), at)).anchored


def test_a_policy_without_bounds_always_rolls_and_with_them_when_either_is_passed() -> None:
    assert RollPolicy().is_due(0, 0)
    assert not RollPolicy(bytes_max=10).is_due(10, 99)
    assert RollPolicy(bytes_max=10).is_due(11, 0)
    assert RollPolicy(bytes_max=10, age_ms_max=5).is_due(1, 6)
    assert not RollPolicy(bytes_max=10, age_ms_max=5).is_due(1, 5)
