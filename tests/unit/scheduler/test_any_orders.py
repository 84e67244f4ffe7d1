"""Whatever is published as orders, the committer serves a valid one soon: no pool stops for another or a bad one."""

import asyncio
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.engine import ENGINE_ID
from tessera.kernel.ports import Outgoing
from tessera.scheduler.cycle import ORDERS_ALONE_SECONDS
from tessera_schemas import subjects
from tessera_schemas.shard.orders import HEADS_MAX, Order
from tests.builders import SHARD, admitted, config_body, config_proposed, job_spec, node_seen, queue
from tests.unit.scheduler.committers import Leader, World

FAR = 2**53 - 1
MANY = tuple(admitted(f"nobody-{number}").job_id for number in range(HEADS_MAX))
SERVED_WITHIN_SECONDS = 3.0


def order(pool: str, *jobs: str, basis_n: int = 1, ts: int = 1, engine: str = ENGINE_ID) -> Order:
    return Order(v=1, pool=pool, basis_n=basis_n, ts=ts, engine=engine, policy=1, jobs=jobs)


def valid(world: World, *jobs: str, pool: str = "default", ts: int = 2) -> Order:
    return order(pool, *jobs, basis_n=len(world.ledger), ts=ts)


async def one_job_waits(world: World, pools: int = 0) -> str:
    """A job that could start, a free node, and `pools` further pools with a queue each; nobody has ordered yet."""
    others = [queue(f"queue-{number:03}", pool=f"a-pool-{number:03}") for number in range(pools)]
    await world.fact(config_proposed(config_body(queue(), *others)))
    await world.fact(node_seen())
    await world.fact(admitted("k1", job_spec()))
    await world.clock.run(0.1)
    return admitted("k1").job_id


async def test_orders_that_come_to_nothing_do_not_hide_one_that_starts_a_job() -> None:
    """With 64 KiB of them a pool stayed idle for 21 minutes beside 32 free GPUs."""
    world = World()
    async with Leader(world):
        job = await one_job_waits(world, pools=30)
        for number in range(30):
            await world.order(order(f"a-pool-{number:03}", *MANY))
        await world.clock.run(1)
        await world.order(valid(world, job))
        await world.clock.run(SERVED_WITHIN_SECONDS)
        assert world.said.count("allocated") == 1


async def test_orders_of_pools_that_nobody_configured_hide_none() -> None:
    world = World()
    async with Leader(world):
        job = await one_job_waits(world)
        for number in range(40):
            await world.order(order(f"a-nowhere-{number:03}", *MANY))
        await world.clock.run(1)
        await world.order(valid(world, job))
        await world.clock.run(SERVED_WITHIN_SECONDS)
        assert world.said.count("allocated") == 1


async def test_an_order_from_the_far_future_does_not_stop_its_pool() -> None:
    world = World()
    async with Leader(world):
        job = await one_job_waits(world)
        await world.order(order("default", basis_n=FAR, ts=FAR))
        await world.clock.run(1)
        await world.order(valid(world, job))
        await world.clock.run(SERVED_WITHIN_SECONDS)
        assert world.said.count("allocated") == 1


async def test_an_order_of_a_time_to_come_does_not_stop_its_pool() -> None:
    """Whoever wrote it had a clock that went wrong; the next one is of the same state and of an earlier time."""
    world = World()
    async with Leader(world):
        job = await one_job_waits(world)
        await world.order(order("default", basis_n=len(world.ledger), ts=FAR))
        await world.clock.run(1)
        await world.order(valid(world, job))
        await world.clock.run(SERVED_WITHIN_SECONDS)
        assert world.said.count("allocated") == 1


async def test_an_order_on_the_subject_of_another_pool_is_ignored() -> None:
    world = World()
    async with Leader(world):
        job = await one_job_waits(world, pools=1)
        await world.bus.publish(Outgoing(subjects.order(SHARD, "a-pool-000"), valid(world, job).to_bytes()))
        await world.clock.run(SERVED_WITHIN_SECONDS)
        assert "allocated" not in world.said


async def test_an_order_that_is_too_large_is_ignored() -> None:
    """No message could hold it, and the committer would try again and again."""
    world = World()
    async with Leader(world) as leader:
        job = await one_job_waits(world)
        await world.order(order("default", job, basis_n=len(world.ledger), ts=1, engine="x" * 523_500))
        await world.clock.run(1)
        assert not leader.task.done()
        await world.order(valid(world, job))
        await world.clock.run(SERVED_WITHIN_SECONDS)
        assert world.said.count("allocated") == 1


async def test_what_comes_to_nothing_is_written_down_seldom_and_together() -> None:
    """Else an idle ledger would grow with each new order, and queueing's line would be old for ever."""
    world = World()
    async with Leader(world):
        await one_job_waits(world, pools=3)
        for number in range(3):
            await world.order(order(f"a-pool-{number:03}", MANY[number]))
        before = len(world.ledger)
        await world.clock.run(ORDERS_ALONE_SECONDS - 2)
        assert len(world.ledger) == before
        await world.clock.run(4)
        assert [len(message.orders) for message in world.ledger[before:]] == [3]
        await world.clock.run(3 * ORDERS_ALONE_SECONDS)
        assert len(world.ledger) == before + 1


@dataclass(frozen=True)
class Said:
    """One message on the stream of orders, as far as it can be said before there is a ledger."""

    pool: str
    keys: tuple[str, ...]  # of the jobs that it names; "many" stands for as many as it may name
    ahead: int  # of the ledger's end; negative is a stale order
    ts: int
    form: str
    pause: float

    def out(self, world: World) -> Outgoing:
        jobs = MANY if "many" in self.keys else tuple(admitted(key).job_id for key in self.keys)
        made = order(self.pool, *jobs, basis_n=min(FAR, max(0, len(world.ledger) + self.ahead)), ts=self.ts)
        data = {"order": made.to_bytes(), "another thing": b"[]", "huge": b"x" * 400_000}[self.form]
        return Outgoing(subjects.order(SHARD, self.pool), data)


SAID = st.builds(
    Said,
    pool=st.sampled_from(["default", "a-pool-000", "a-pool-001", "a-nowhere"]),
    keys=st.lists(st.sampled_from(["k1", "k2", "nobody", "many"]), max_size=5).map(tuple),
    ahead=st.one_of(st.integers(-4, 3), st.just(FAR)),
    ts=st.one_of(st.integers(0, 3), st.just(FAR)),
    form=st.sampled_from(["order", "order", "order", "another thing", "huge"]),
    pause=st.sampled_from([0.0, 0.5]),
)


@given(before=st.lists(SAID, max_size=12), waits=st.sampled_from(["k1", "k2"]))
@settings(max_examples=40)
def test_after_any_orders_a_valid_one_is_served_soon(before: list[Said], waits: str) -> None:
    """Which it says again each second, as queueing does while the line in the ledger is another."""

    async def main() -> None:
        world = World()
        async with Leader(world) as leader:
            await one_job_waits(world, pools=2)
            await world.fact(admitted("k2", job_spec()))
            for said in before:
                await world.bus.publish(said.out(world))
                await world.clock.run(said.pause)
            for attempt in range(2):
                await world.order(valid(world, admitted(waits).job_id, ts=10 + attempt))
                await world.clock.run(SERVED_WITHIN_SECONDS)
            assert not leader.task.done()
            started = [r.job_id for m in world.ledger for r in m.records if r.kind == "allocated"]
            assert started.count(admitted(waits).job_id) == 1

    asyncio.run(main())
