"""An order that the committer never got is said again, until the ledger shows that it was taken in."""

import asyncio
import itertools
from typing import Any, cast

from tessera.engine import ORDER_ENGINE_ID
from tessera.kernel.ledger.stream import StreamLedger
from tessera.kernel.memory.broker import MemoryBroker
from tessera.kernel.memory.bus import MemoryBus
from tessera.kernel.ports import Outgoing
from tessera.kernel.process.leases import Leadership
from tessera.kernel.service.context import Ports
from tessera.kernel.service.health import Health
from tessera.kernel.service.metrics import Metrics
from tessera.queueing.handlers import OrderPublisher
from tessera_schemas.shard.orders import ORDER, Order
from tessera_schemas.subjects import order, stream
from tests.builders import SHARD, admitted, node_seen
from tests.ledgers import Committed
from tests.virtual_time import VirtualClock


async def test_an_order_overwritten_by_an_older_one_is_published_again() -> None:
    clock, made = VirtualClock(), Committed()
    made.begin(node_seen(gpus=1))
    made.commit(admitted("k1"))
    broker = MemoryBroker(clock)
    broker.add_shard(SHARD)
    bus, metrics, ids = MemoryBus(broker), Metrics("queueing"), itertools.count()
    ports = Ports(
        clock=clock,
        bus=bus,
        ledger=StreamLedger(bus, SHARD),
        store=cast(Any, None),
        cluster=cast(Any, None),
        health=Health(clock, metrics),
        metrics=metrics,
        instance="queueing-1",
        new_tx=lambda: str(next(ids)),
    )
    publisher = OrderPublisher(ports, SHARD, made.state)
    task = asyncio.create_task(publisher.keep_published(Leadership(bus, clock, SHARD, "queueing", "queueing-1")))
    await clock.run(0.5)
    jobs = _newest(broker).jobs
    old = Order(v=1, pool="default", basis_n=0, ts=1, engine=ORDER_ENGINE_ID, policy=0)
    await bus.publish(Outgoing(order(SHARD, "default"), old.to_bytes()))
    await clock.run(3)
    task.cancel()
    assert jobs == (admitted("k1").job_id,)
    assert _newest(broker).jobs == jobs


def _newest(broker: MemoryBroker) -> Order:
    last = broker.stream(stream("ORDERS", SHARD)).last(order(SHARD, "default"))
    assert last is not None
    return ORDER.validate_json(last.data)
