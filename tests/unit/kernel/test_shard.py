"""A shard's fold: what contradicts the books halts it, and nothing is skipped."""

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from tessera.kernel.clock import SystemClock
from tessera.kernel.errors import InvariantViolation
from tessera.kernel.ledger.shard import Entry, Shard, decode_entry
from tessera.kernel.ledger.stream import StreamLedger
from tessera.kernel.memory.broker import MemoryBroker
from tessera.kernel.memory.bus import MemoryBus
from tessera.kernel.ports import Message, Outgoing
from tessera_schemas.ledger import LEDGER_MESSAGE
from tests.builders import SHARD, Chain, admitted, config_proposed
from tests.ledgers import Committed, rechain


def folded(stored: list[bytes]) -> Shard:
    shard = Shard()
    for seq, data in enumerate(stored, start=1):
        shard.fold(decode_entry(Message("ledger.main", seq, data)))
    return shard


def checked() -> Committed:
    """Three messages, the last of which carries a checkpoint."""
    ledger = Committed().begin()
    ledger.commit(admitted("k1"), checkpoint=True)
    return ledger


def changed(data: bytes, change: Callable[[dict[str, Any]], Any]) -> bytes:
    fields = orjson.loads(data)
    change(fields)
    return orjson.dumps(fields)


def test_a_ledger_that_is_whole_is_folded_to_its_end() -> None:
    ledger = checked()
    shard = folded(ledger.stored)
    assert shard.state.n == len(ledger.stored)
    assert shard.hasher.of(shard.state) == ledger.shard.hasher.of(ledger.state)


def test_a_gap_halts() -> None:
    chain = Chain()
    for _ in range(3):
        chain.add()
    shard = folded(chain.stored[:1])
    with pytest.raises(InvariantViolation, match="ledger gap: record 3 after 1"):
        shard.fold(decode_entry(Message("", 3, chain.stored[2])))


def test_a_fork_halts() -> None:
    one, other = Chain(), Chain()
    one.add()
    other.add(ms=5)
    other.add()
    shard = folded(one.stored)
    with pytest.raises(InvariantViolation, match="ledger fork at 2"):
        shard.fold(decode_entry(Message("", 2, other.stored[1])))


def test_a_byte_that_changed_without_changing_its_meaning_halts_at_the_next_message() -> None:
    chain = Chain()
    for _ in range(2):
        chain.add()
    with pytest.raises(InvariantViolation, match="ledger fork at 2"):
        folded([chain.stored[0].replace(b'"v":1', b'"v": 1'), chain.stored[1]])


def test_a_checkpoint_that_does_not_hash_halts() -> None:
    stored = list(checked().stored)

    def other_hash(fields: dict[str, Any]) -> None:
        fields["records"][0]["state_hash"] = "0" * 64

    stored[-1] = changed(stored[-1], other_hash)
    with pytest.raises(InvariantViolation, match="the ledger says 0000"):
        folded(stored)


def test_a_record_that_contradicts_the_state_halts() -> None:
    chain = Chain()
    record = LEDGER_MESSAGE.validate_json(checked().stored[-1]).records[-1]
    chain.add(record, facts=(config_proposed(),))
    with pytest.raises(InvariantViolation, match="cannot be queued"):
        folded(chain.stored)


def test_a_record_that_points_at_no_fact_halts() -> None:
    chain = Chain()
    chain.add(LEDGER_MESSAGE.validate_json(checked().stored[-1]).records[-1])
    with pytest.raises(InvariantViolation):
        folded(chain.stored)


UNREADABLE = [
    pytest.param(lambda data: b"{", id="no JSON"),
    pytest.param(lambda data: changed(data, lambda fields: fields.update(more=1)), id="an unknown field"),
    pytest.param(lambda data: changed(data, lambda fields: fields.update(v=2)), id="an unknown version"),
    pytest.param(
        lambda data: changed(data, lambda fields: fields["records"].append({"kind": "new"})), id="an unknown record"
    ),
]


@pytest.mark.parametrize("spoil", UNREADABLE)
def test_a_message_that_this_build_cannot_read_halts_and_is_not_skipped(spoil: Callable[[bytes], bytes]) -> None:
    with pytest.raises(InvariantViolation, match="cannot be read by this build"):
        decode_entry(Message("", 1, spoil(checked().stored[0])))


def test_a_message_that_stands_where_another_belongs_halts() -> None:
    with pytest.raises(InvariantViolation, match="ledger message 7 calls itself 1"):
        decode_entry(Message("", 7, checked().stored[0]))


# -- catching up ----------------------------------------------------------------------------------------------------


class World:
    def __init__(self) -> None:
        self.broker = MemoryBroker(SystemClock())
        self.broker.add_shard(SHARD)
        self.ledger = StreamLedger(MemoryBus(self.broker), SHARD)

    def holds(self, stored: list[bytes]) -> "World":
        for data in stored:
            self.broker.store(Outgoing(f"ledger.{SHARD}", data))
        return self


async def test_catching_up_folds_what_is_new_and_says_what_it_was() -> None:
    ledger = checked()
    world, shard = World().holds(ledger.stored), Shard()
    new: list[Entry] = []
    await shard.catch_up(world.ledger, new.append)
    await shard.catch_up(world.ledger, new.append)
    assert [entry.message.n for entry in new] == [1, 2, 3, 4]
    ledger.commit(admitted("k2"))
    world.holds(ledger.stored[-1:])
    await shard.catch_up(world.ledger, new.append)
    assert [entry.message.n for entry in new] == [1, 2, 3, 4, 5]


async def test_an_empty_ledger_is_caught_up_with_at_once() -> None:
    shard = Shard()
    await shard.catch_up(World().ledger)
    assert shard.state.n == 0


async def test_a_ledger_that_ends_before_what_was_seen_lost_its_tail() -> None:
    ledger = checked()
    shard = folded(ledger.stored)
    with pytest.raises(
        InvariantViolation, match=r"ends at 2, but this process of .* knows record 4: .* restore the newest copy"
    ):
        await shard.catch_up(World().holds(ledger.stored[:2]).ledger)


async def test_a_ledger_of_the_same_length_that_was_written_again_is_not_ours() -> None:
    ledger = checked()
    other = rechain(ledger.stored, 2, lambda message: message.update(tx="another-tx"))
    shard = folded(ledger.stored)
    with pytest.raises(InvariantViolation, match=r"up to record 4 hashes to .* the ledger was written again"):
        await shard.catch_up(World().holds(other).ledger)


def test_a_message_of_an_epoch_that_nobody_opened_is_folded_by_nobody() -> None:
    books = Committed().begin()
    books.commit(admitted("last"))
    forged = rechain(books.stored, len(books.stored), lambda message: message.update(epoch=message["epoch"] + 1))
    shard = Shard()
    for seq, data in enumerate(forged[:-1], start=1):
        shard.fold(decode_entry(Message("", seq, data)))
    with pytest.raises(InvariantViolation, match="was never opened"):
        shard.fold(decode_entry(Message("", len(forged), forged[-1])))
