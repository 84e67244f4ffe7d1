"""What the Ledger promises, over a real nats-server and in memory."""

import pytest

from tessera.kernel.errors import Conflict, Full, InvariantViolation
from tessera.kernel.ledger.stream import StreamLedger
from tessera.kernel.ports import Outgoing
from tessera_schemas import subjects
from tessera_schemas.shard.ledger_form import COMPRESSED_FROM, stored_form
from tests.contract.bus_worlds import World


async def ledger(world: World, **limits: int) -> StreamLedger:
    await world.add_stream("LEDGER_main", "ledger.main", **limits)
    await world.add_stream("SNAP_main", "snap.main.>")
    return StreamLedger(await world.connect(), "main")


async def test_records_are_numbered_from_one_without_a_gap(world: World) -> None:
    main = await ledger(world)
    assert [await main.append(b"record", expected) for expected in range(5)] == [1, 2, 3, 4, 5]


async def test_a_committer_that_is_behind_is_refused_and_nothing_is_written(world: World) -> None:
    main = await ledger(world)
    other = StreamLedger(await world.connect(), "main")
    await main.append(b"ours", 0)
    with pytest.raises(Conflict):
        await other.append(b"theirs", 0)
    tail = await other.tail()
    assert tail is not None
    assert (tail.seq, tail.data) == (1, b"ours")


async def test_a_committer_that_is_ahead_of_the_ledger_is_refused(world: World) -> None:
    main = await ledger(world)
    with pytest.raises(Conflict):
        await main.append(b"record", 3)


async def test_the_tail_of_an_empty_ledger_is_none(world: World) -> None:
    main = await ledger(world)
    assert await main.tail() is None
    assert await main.read(1) is None


async def test_records_are_read_by_number_and_followed_in_order(world: World) -> None:
    main = await ledger(world)
    for n in range(4):
        await main.append(b"%d" % (n + 1), n)
    third = await main.read(3)
    assert third is not None
    assert third.data == b"3"
    follow = main.follow(after=2)
    assert [(message.seq, message.data) for message in await follow.next(timeout=120)] == [(3, b"3"), (4, b"4")]


async def test_a_full_ledger_refuses_and_takes_what_still_fits(world: World) -> None:
    main = await ledger(world, bytes_max=1000)
    await main.append(b"record", 0)
    with pytest.raises(Full):
        await main.append(bytes(2000), 1)
    assert await main.append(b"record", 1) == 2


async def test_a_stream_that_somebody_else_wrote_to_halts_the_shard(world: World) -> None:
    await world.add_stream("LEDGER_main", "ledger.main", "intruder")
    bus = await world.connect()
    await bus.publish(Outgoing("intruder", b"x"))
    with pytest.raises(InvariantViolation, match="became 2"):
        await StreamLedger(bus, "main").append(b"record", 0)


async def test_a_compressed_record_takes_less_and_reads_as_any_other(world: World) -> None:
    main, plain = await ledger(world), b'{"records":[%s]}' % b",".join([b'{"kind":"released"}'] * 50)
    await main.append(plain, 0)
    await main.append(plain, 1, known=COMPRESSED_FROM)
    bus = await world.connect()
    stored = [await bus.get("LEDGER_main", seq) for seq in (1, 2)]
    assert [message is not None and len(message.data) for message in stored] == [
        len(plain),
        len(stored_form(plain, COMPRESSED_FROM)),
    ]
    assert len(stored_form(plain, COMPRESSED_FROM)) < len(plain) // 5
    tail, second = await main.tail(), await main.read(2)
    followed = await main.follow(after=0).next(timeout=120)
    assert [message.data for message in followed] == [plain, plain]
    assert tail is not None
    assert second is not None
    assert tail.data == second.data == plain


async def test_a_record_kept_compressed_beside_the_ledger_reads_as_any_other(world: World) -> None:
    main = await ledger(world)
    bus = await world.connect()
    await bus.publish(Outgoing(subjects.generation_kept("main", 7), stored_form(b'{"n":7}', COMPRESSED_FROM)))
    kept = await main.read(7)
    assert kept is not None
    assert (kept.seq, kept.data) == (7, b'{"n":7}')
