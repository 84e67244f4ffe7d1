"""A snapshot is used only when the ledger vouches for it; anything else is passed over, and nothing breaks."""

from collections.abc import Callable
from zlib import decompress

import pytest

from tessera.domain.errors import Contradiction
from tessera.domain.storing.snapshot import load
from tessera.domain.storing.statehash import StateHash
from tessera.kernel.clock import SystemClock
from tessera.kernel.ledger.shard import restore
from tessera.kernel.ledger.snapshots import Manifest, chunks_of, read_snapshot, store_snapshot, write_snapshot
from tessera.kernel.ledger.stream import StreamLedger
from tessera.kernel.memory.broker import MemoryBroker
from tessera.kernel.memory.bus import MemoryBus
from tessera.kernel.ports import Outgoing
from tessera_schemas import subjects
from tests.builders import SHARD, admitted
from tests.ledgers import Committed

STREAM = subjects.stream("SNAP", SHARD)


class World:
    """A ledger in the broker, of which message `n` may be followed by a checkpoint."""

    def __init__(self) -> None:
        self.broker = MemoryBroker(SystemClock())
        self.broker.add_shard(SHARD)
        self.bus = MemoryBus(self.broker)
        self.ledger = StreamLedger(self.bus, SHARD)
        self.books = Committed().begin()
        self._stored = 0
        self.store()

    def store(self) -> None:
        for data in self.books.stored[self._stored :]:
            self.broker.store(Outgoing(subjects.ledger(SHARD), data))
        self._stored = len(self.books.stored)

    async def snapshot(self, *, vouched: bool = True) -> int:
        """Write a snapshot of the state as it is, then have the ledger vouch for it or not; returns its n."""
        state = self.books.state
        n, state_hash = state.n, self.books.shard.hasher.of(state)
        await write_snapshot(self.bus, SHARD, state, state_hash)
        self.books.commit(admitted(f"after-{n}"), checkpoint=vouched)
        self.store()
        return int(n)

    async def found(self) -> int | None:
        found = await read_snapshot(self.bus, self.ledger, SHARD)
        return None if found is None else found[0].n


async def test_without_a_snapshot_the_whole_ledger_is_folded() -> None:
    world = World()
    assert await world.found() is None
    shard = await restore(world.bus, world.ledger, SHARD)
    assert shard.state.n == 0
    await shard.catch_up(world.ledger)
    assert shard.state.n == world.books.state.n


async def test_a_snapshot_that_a_checkpoint_follows_is_used_and_goes_on_to_an_equal_state() -> None:
    world = World()
    n = await world.snapshot()
    shard = await restore(world.bus, world.ledger, SHARD)
    assert shard.state.n == n
    await shard.catch_up(world.ledger)
    assert shard.hasher.of(shard.state) == world.books.shard.hasher.of(world.books.state)


async def test_a_snapshot_that_no_checkpoint_follows_is_not_used() -> None:
    world = World()
    await world.snapshot(vouched=False)
    assert await world.found() is None


async def test_a_snapshot_at_the_very_tail_is_not_used_since_nothing_vouches_for_it_yet() -> None:
    world = World()
    await write_snapshot(world.bus, SHARD, world.books.state, world.books.shard.hasher.of(world.books.state))
    assert await world.found() is None


async def test_a_snapshot_that_cannot_be_used_is_passed_over_for_the_one_before() -> None:
    world = World()
    good = await world.snapshot()
    await world.snapshot(vouched=False)
    assert await world.found() == good


async def test_a_snapshot_of_which_one_entity_was_changed_is_not_used() -> None:
    world = World()
    chunks = [decompress(chunk).replace(b'"node-a"', b'"node-x"') for chunk in chunks_of(world.books.state)]
    n, state_hash = world.books.state.n, world.books.shard.hasher.of(world.books.state)
    await store_snapshot(world.bus, SHARD, chunks, n, state_hash)
    world.books.commit(checkpoint=True)
    world.store()
    assert await world.found() is None


GARBAGE = [
    pytest.param(lambda data: b"", id="nothing"),
    pytest.param(lambda data: b"\x00\xff", id="no JSON"),
    pytest.param(lambda data: b"[]", id="a list"),
    pytest.param(lambda data: b"7", id="a number"),
    pytest.param(lambda data: data.replace(b'"version":1', b'"version":2', 1), id="another version"),
    pytest.param(lambda data: data[: len(data) // 2], id="half of it"),
    pytest.param(lambda data: data + b"\nnowhere {}", id="an unknown table"),
    pytest.param(lambda data: data + b"\njobs []", id="a row that is none"),
]


@pytest.mark.parametrize("spoil", GARBAGE)
async def test_a_chunk_that_cannot_be_read_is_passed_over(spoil: Callable[[bytes], bytes]) -> None:
    world = World()
    chunks = [spoil(decompress(chunk)) for chunk in chunks_of(world.books.state)]
    n, state_hash = world.books.state.n, world.books.shard.hasher.of(world.books.state)
    await store_snapshot(world.bus, SHARD, chunks, n, state_hash)
    world.books.commit(checkpoint=True)
    world.store()
    assert await world.found() is None


async def test_a_snapshot_of_which_a_chunk_was_dropped_is_passed_over() -> None:
    world = World()
    await world.snapshot()
    world.broker.stream(STREAM).remove(1)
    assert await world.found() is None


async def test_chunks_without_their_manifest_are_not_seen() -> None:
    world = World()
    good = await world.snapshot()
    for index, chunk in enumerate(chunks_of(world.books.state)):
        await world.bus.publish(Outgoing(subjects.snapshot_chunk(SHARD, index), chunk))
    assert await world.found() == good


async def test_a_manifest_of_a_newer_build_is_passed_over() -> None:
    world = World()
    good = await world.snapshot()
    await world.bus.publish(Outgoing(subjects.snapshot_manifest(SHARD), b'{"v":2}'))
    assert await world.found() == good


async def test_a_whole_snapshot_of_a_state_that_never_was_hides_none_before_it() -> None:
    """Its chunks, hash and manifest fit each other, and it names none before it: the ledger does not vouch for it."""
    world = World()
    good = await world.snapshot()
    false = Committed().begin()
    false.commit(admitted("forged"))
    for n in (good, 10**9):
        false.state.n = n
        state_hash = StateHash().of(false.state)
        await store_snapshot(world.bus, SHARD, list(chunks_of(false.state)), n, state_hash)
        newest = await world.bus.last(STREAM, subjects.snapshot_manifest(SHARD))
        assert newest is not None
        alone = Manifest.model_validate_json(newest.data).model_copy(update={"before": 0})
        await world.bus.publish(Outgoing(newest.subject, alone.to_bytes()))
    assert await world.found() == good


async def test_a_row_that_stands_twice_is_refused() -> None:
    """Whoever may repeat rows can bring any sum about, and so any hash."""
    world = World()
    rows = [decompress(chunk) for chunk in chunks_of(world.books.state)]
    (node,) = [line for line in rows[0].split(b"\n") if line.startswith(b"nodes ")][:1]
    with pytest.raises(Contradiction, match="a row of nodes twice"):
        load(iter([*b"\n".join(rows).split(b"\n"), node]))


async def test_a_ledger_message_that_cannot_be_read_vouches_for_nothing() -> None:
    """The fold then meets it and halts with the right words; reading snapshots must not fall over it before."""
    world = World()
    state = world.books.state
    await write_snapshot(world.bus, SHARD, state, world.books.shard.hasher.of(state))
    world.broker.store(Outgoing(subjects.ledger(SHARD), b'{"v":9}'))
    assert await world.found() is None


async def test_a_large_state_is_cut_into_chunks_and_put_together_again() -> None:
    world = World()
    for part in range(5):
        world.books.commit(*(admitted(f"k{part}-{number}") for number in range(300)))
    world.store()
    assert len(list(chunks_of(world.books.state))) > 1
    n = await world.snapshot()
    assert await world.found() == n


async def test_a_compressed_chunk_that_is_cut_is_passed_over() -> None:
    world = World()
    chunks = [chunk[:-9] for chunk in chunks_of(world.books.state)]
    n, state_hash = world.books.state.n, world.books.shard.hasher.of(world.books.state)
    await store_snapshot(world.bus, SHARD, chunks, n, state_hash)
    world.books.commit(checkpoint=True)
    world.store()
    assert await world.found() is None


async def test_a_snapshot_of_a_release_that_did_not_compress_is_used() -> None:
    world = World()
    state = world.books.state
    chunks = [decompress(chunk) for chunk in chunks_of(state)]
    assert chunks[0].startswith(b"{")
    await store_snapshot(world.bus, SHARD, chunks, state.n, world.books.shard.hasher.of(state))
    world.books.commit(checkpoint=True)
    world.store()
    assert await world.found() == state.n - 1


async def test_a_ledger_of_the_old_format_gets_snapshots_that_its_readers_know() -> None:
    world = World()
    world.books.state.format = 1
    assert [chunk[:1] for chunk in chunks_of(world.books.state)] == [b"{"]
