"""A ledger that lost its end: whatever knows more of it than it holds halts the service."""

import asyncio
from dataclasses import replace
from itertools import accumulate

import orjson
import pytest

from tessera.domain.state import State
from tessera.domain.storing.statehash import StateHash
from tessera.kernel.errors import InvariantViolation, Transient
from tessera.kernel.ledger.end import LedgerEnd
from tessera.kernel.ledger.snapshots import write_snapshot
from tessera.kernel.memory.store import MemoryStore, MemoryViews
from tessera.kernel.ports import Outgoing
from tessera_schemas import subjects
from tessera_schemas.ledger import GENESIS
from tessera_schemas.shard.ledger_form import chain_hash
from tessera_schemas.shard.orders import Order
from tests.builders import SHARD
from tests.unit.scheduler.committers import World
from tests.virtual_time import ImpatientClock, settle

END = 3


def stored(prev: str) -> bytes:
    return orjson.dumps({"prev": prev})


CHAIN = list(accumulate(range(END), lambda prev, _: chain_hash(prev, stored(prev)), initial=GENESIS))


async def shard(lost: str = "", chain: str = "") -> LedgerEnd:
    """A ledger of three messages, of which every witness knows the last; the one that is `lost` knows of a fourth."""
    world, clock = World(), ImpatientClock()
    known = {name: END + (name == lost) for name in ("events", "snapshot", "order", "redis")}
    for prev in CHAIN[:END]:
        await world.bus.publish(Outgoing(subjects.ledger(SHARD), stored(prev)))
    event = subjects.event(SHARD, "lab", "default", "job.bound.v1")
    await world.bus.publish(Outgoing(event, b"{}", headers={"Tessera-Cursor": f"{known['events']}.1"}))
    state = State()
    state.n = known["snapshot"]
    await write_snapshot(world.bus, SHARD, state, StateHash().of(state))
    order = Order(v=1, pool="default", basis_n=known["order"], ts=1, engine="e", policy=0, jobs=())
    await world.order(order)
    store = MemoryStore(MemoryViews(clock))
    await store.replace(known["redis"], (), chain)
    return LedgerEnd(replace(world.ports(), store=store, clock=clock), SHARD, subjects.OPERATOR)


async def test_a_ledger_of_which_nobody_knows_more_than_it_holds_is_whole() -> None:
    await (await shard()).check()


@pytest.mark.parametrize(
    ("lost", "witness"),
    [("events", "the public events"), ("order", "an order"), ("redis", "Redis")],
)
async def test_each_witness_of_a_later_record_halts(lost: str, witness: str) -> None:
    end = await shard(lost)
    with pytest.raises(InvariantViolation, match=f"the ledger ends at 3, but {witness} of this shard knows record 4"):
        await end.check()


async def test_a_snapshot_is_no_witness_however_whole_it_is() -> None:
    """Nothing of the ledger vouches for it, so that whoever may write snapshots would stop every service for good."""
    await (await shard("snapshot")).check()


async def test_it_is_seen_while_a_service_runs_too() -> None:
    end = await shard()
    watching = asyncio.ensure_future(end.watch())
    await end._ports.store.replace(END + 1, ())
    with pytest.raises(InvariantViolation, match="Redis of this shard knows record 4"):
        await watching


async def test_an_order_from_the_future_halts_nobody_who_runs() -> None:
    """It may be forged by whoever has queueing's credential; the committer leaves it until its time has come."""
    end = await shard("order")
    watching = asyncio.ensure_future(end.watch())
    await settle()
    assert not watching.done()
    watching.cancel()


async def test_a_witness_that_cannot_be_asked_stops_nobody() -> None:
    end = await shard()

    async def away() -> int:
        raise Transient("no answer")

    end._witnesses = dict.fromkeys(end._witnesses, away)
    await end.check()


async def test_redis_whose_head_is_the_ledgers_own_is_content() -> None:
    await (await shard(chain=CHAIN[END])).check()


async def test_a_ledger_that_was_written_again_does_not_hash_as_redis_knows_it() -> None:
    with pytest.raises(InvariantViolation, match=r"up to record 3 hashes to .* the ledger was written again"):
        await (await shard(chain="f" * 64)).check()


async def test_a_ledger_that_was_written_again_is_seen_while_a_service_runs_too() -> None:
    end = await shard(chain=CHAIN[END])
    watching = asyncio.ensure_future(end.watch())
    await settle()
    await end._ports.store.replace(END - 1, (), "f" * 64)
    with pytest.raises(InvariantViolation, match="up to record 2 hashes to"):
        await watching


async def test_a_ledger_that_was_swapped_and_appended_to_is_known_by_its_record_of_the_last_look() -> None:
    """Redis knows the other ledger by now, or nothing: this process still knows the one that it looked at."""
    end = await shard()
    await end.check()
    stream = end._ports.bus.broker.stream(subjects.stream("LEDGER", SHARD))
    stream.messages[END] = replace(stream.messages[END], data=stored("f" * 64))
    await end._ports.bus.publish(Outgoing(subjects.ledger(SHARD), stored("e" * 64)))
    with pytest.raises(InvariantViolation, match=r"up to record 3 hashes to .* this process saw"):
        await end.check()


async def test_a_ledger_that_lost_its_end_is_known_by_whoever_saw_it_alone() -> None:
    end = await shard()
    await end._ports.bus.publish(Outgoing(subjects.ledger(SHARD), stored(CHAIN[END])))
    await end.check()
    end._ports.bus.broker.stream(subjects.stream("LEDGER", SHARD)).remove(END + 1)
    with pytest.raises(InvariantViolation, match="the ledger ends at 3, but this process of this shard knows record 4"):
        await end.check()


# -- FACTS: whoever takes facts in goes by their numbers


FACTS_UPTO = 225


async def shard_that_took_facts_in(stored_facts: int, service: str = "scheduler") -> LedgerEnd:
    world = World()
    await world.bus.publish(Outgoing(subjects.ledger(SHARD), orjson.dumps({"facts_upto": FACTS_UPTO})))
    world.broker.streams[subjects.stream("FACTS", SHARD)].last_seq = stored_facts
    clock = ImpatientClock()
    return LedgerEnd(replace(world.ports(), store=MemoryStore(MemoryViews(clock)), clock=clock), SHARD, service)


async def test_facts_that_grew_too_old_are_no_loss() -> None:
    await (await shard_that_took_facts_in(FACTS_UPTO)).check()


@pytest.mark.parametrize("service", ["scheduler", "admission", "binder", "reclamation", "preemption", "gateway"])
async def test_facts_that_begin_anew_halt_whoever_says_or_takes_them(service: str) -> None:
    """New ones would get the numbers of facts that were taken in, and be passed over while everybody is ready."""
    with pytest.raises(InvariantViolation, match=r"FACTS_main ends at 12, .* up to 225: .* `tessera init --mend`"):
        await (await shard_that_took_facts_in(12, service)).check()


async def test_facts_that_begin_anew_are_seen_while_a_service_runs_as_soon_as_it_is_connected_again() -> None:
    end = await shard_that_took_facts_in(FACTS_UPTO)
    await end.check()
    watching = asyncio.ensure_future(end.watch())
    await settle()
    end._ports.bus.broker.streams[subjects.stream("FACTS", SHARD)].last_seq = 3
    with pytest.raises(InvariantViolation, match="FACTS_main ends at 3"):
        await watching


async def test_who_may_not_read_the_ledger_asks_for_nothing() -> None:
    end = await shard_that_took_facts_in(12, "notifier")
    asked: list[str] = []

    async def note(name: str, *_: object) -> None:
        asked.append(name)

    end._ports.bus.before = note
    await end.check()
    assert asked == []
