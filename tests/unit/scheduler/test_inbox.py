"""What waits for the committer is the newest of its kind, in whatever order it comes."""

from tessera.domain.state import State
from tessera.engine import ENGINE_ID
from tessera.scheduler.inbox import Inbox
from tessera_schemas.config import Config
from tessera_schemas.shard.orders import Order
from tests.builders import SHARD, config_body
from tests.unit.scheduler.committers import World


def order(basis_n: int, ts: int) -> Order:
    return Order(v=1, pool="default", basis_n=basis_n, ts=ts, engine=ENGINE_ID, policy=1, jobs=())


async def test_an_order_that_hung_somewhere_does_not_push_out_a_newer_one() -> None:
    world, state = World(), State()
    state.n = 9
    state.set_config(Config(version=1, body=config_body()))
    async with Inbox(world.ports(), SHARD, state) as inbox:
        await world.order(order(basis_n=5, ts=2))
        await world.order(order(basis_n=3, ts=1))
        await world.clock.run(1)
        assert [waiting.basis_n for waiting in inbox.orders()] == [5]
