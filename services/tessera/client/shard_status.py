"""Status of the shard: by the gateway's word where one is at hand, else looked at as the operator."""

import asyncio

from tessera.client.api import Api
from tessera.client.outcomes import Failure, Refused
from tessera.client.where import Where
from tessera.kernel.errors import StartupError, Transient
from tessera_schemas.status import ShardStatus, ShardTrouble
from tessera_schemas.subjects import OPERATOR

GATEWAY_SECONDS = 8.0
"""Time for the gateway's look and its way here, before an operator looks alone."""


async def shard_status(where: Where) -> ShardStatus:
    """An operator does without a gateway that is away or older. Raises Failure, Refused, Transient."""
    gateway = where.api or (None if where.gateway is None else Api(where.gateway))
    if gateway is not None:
        try:
            async with asyncio.timeout(GATEWAY_SECONDS if where.can_be(OPERATOR) else None):
                return ShardStatus.model_validate(await gateway.get("/v1/status"))
        except (Transient, Failure, Refused, TimeoutError):
            if not where.can_be(OPERATOR):
                raise
    return await _looked_at(where)


async def _looked_at(where: Where) -> ShardStatus:
    from tessera.kernel.clock import SystemClock
    from tessera.kernel.ledger.stream import StreamLedger
    from tessera.kernel.process.shard_status import StatusReader, judge

    clock, operator = SystemClock(), where.identity(OPERATOR)
    try:
        async with where.bus(operator) as bus, where.store(operator) as store:
            reader = StatusReader(bus, StreamLedger(bus, where.shard), store, clock, where.shard, OPERATOR)
            return judge(await reader.look(), where.shard, in_full=True)
    except StartupError as error:
        what, _, way_out = str(error).partition("; ")
        trouble = ShardTrouble(what=what, way_out=way_out or "see that NATS runs and lets us in")
        return ShardStatus(ts=clock.now_ms(), well=False, standstill=what, led=False, nats=what, troubles=(trouble,))
