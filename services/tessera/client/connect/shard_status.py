"""Status of the shard: by the gateway's word where one is at hand, else looked at as the operator."""

import asyncio

from tessera.client.connect.connecting import api_of, open_bus, open_store
from tessera.client.connect.where import Where
from tessera.client.outcomes import Failure, Refused
from tessera.kernel.clock import SystemClock
from tessera.kernel.errors import KernelError, StartupError
from tessera_schemas.shard.status import ShardStatus, ShardTrouble
from tessera_schemas.subjects import OPERATOR

GATEWAY_SECONDS = 8.0
"""Time for the gateway's look and its way here, before an operator looks alone."""
SETTLED_SECONDS, POLL_SECONDS = 5.0, 0.1
"""How long the views may take to hold all that was sent, and how often we look."""


async def shard_status(where: Where) -> ShardStatus:
    """An operator does without a gateway that is away or older. Raises Failure, Refused, Transient."""
    try:
        async with asyncio.timeout(GATEWAY_SECONDS if where.can_be(OPERATOR) else None):
            return ShardStatus.model_validate(await api_of(where).get("/v1/status"))
    except (KernelError, Failure, Refused, TimeoutError):
        if not where.can_be(OPERATOR):
            raise
    return await _looked_at(where)


async def why_views_lack(where: Where, seconds: float | None = None) -> str:
    """
    Why the views may lack something that was sent before now; "" once they hold all of it.

    A view proves that nothing changes only then: with nobody leading, the end of the ledger is as old as the views.
    """
    clock, sent_ts = SystemClock(), 0
    until = clock.monotonic() + (SETTLED_SECONDS if seconds is None else seconds)
    while True:
        try:
            status = await shard_status(where)
            sent_ts = sent_ts or status.ts
            why = lacking(status, sent_ts)
        except (KernelError, Failure, Refused) as error:
            why = str(error)
        if not why or clock.monotonic() >= until:
            return why
        await clock.sleep(POLL_SECONDS)


def lacking(status: ShardStatus, sent_ts: int) -> str:
    """The part of all that was sent until `sent_ts` that the views of a shard may lack; "" for none."""
    if status.standstill or not status.led:
        return status.standstill or "no scheduler leads"
    if 0 < status.waiting_since_ts <= sent_ts:
        return "what was sent before is not decided yet"
    if status.views_n < status.ledger_n:
        return f"the lists hold up to record {status.views_n} of {status.ledger_n}"
    return ""


async def _looked_at(where: Where) -> ShardStatus:
    from tessera.kernel.ledger.stream import StreamLedger
    from tessera.kernel.process.shard_status import StatusReader, judge

    clock, operator = SystemClock(), where.identity(OPERATOR)
    try:
        async with open_bus(where, operator) as bus, open_store(where, operator) as store:
            reader = StatusReader(bus, StreamLedger(bus, where.shard), store, clock, where.shard, OPERATOR)
            return judge(await reader.look(), where.shard, in_full=True)
    except StartupError as error:
        what, _, way_out = str(error).partition("; ")
        trouble = ShardTrouble(what=what, way_out=way_out or "see that NATS runs and lets us in")
        return ShardStatus(ts=clock.now_ms(), well=False, standstill=what, led=False, nats=what, troubles=(trouble,))
