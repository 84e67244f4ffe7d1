"""
Free slots of each pool as metrics: slots by size, idle GPUs by what keeps them from use, and who holds the rest.

Computed beside the decisions, on frozen values, a few nodes at a time and for a small part of the time only.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace

import structlog

from tessera.domain.devices.resources import WHOLE_GPU
from tessera.domain.entities import Use
from tessera.domain.folding.services import count_below_minimum
from tessera.domain.health.folding import count_sick
from tessera.domain.state import State
from tessera.engine.ahead.booked_nodes import count_unserved, shut_now
from tessera.engine.explain.held_back import held_back
from tessera.engine.placement.capacity import count_backed_off, nodes_for
from tessera.engine.placement.free_slots import tally_of, unused
from tessera.kernel.ledger.shard import Shard
from tessera.kernel.service.context import Ports
from tessera.kernel.tasks.task_group import cancel_all
from tessera_schemas.work.tenant_shares import Limits

Shown = tuple[str, tuple[str, ...], float]


def sharing(state: State) -> Iterator[Shown]:
    """Shares as of now, from sums that the state keeps anyway."""
    yield from _queues(state)
    yield from _tenants(state)


def _queues(state: State) -> Iterator[Shown]:
    for name, queue in state.tree.queues.items():
        nominal = sum(quota.nominal for quota in queue.quotas if quota.resource == "gpu_milli")
        yield "queue_nominal_gpus", (name,), nominal / WHOLE_GPU
        waiting = state.index.waiting.get(name, ())
        yield "queue_waiting_jobs", (name,), len(waiting)
        head = state.jobs.get(waiting[0][-1]) if waiting else None
        if head is not None:
            yield "queue_head_submitted_timestamp_seconds", (name,), head.submitted_ts / 1000


def _tenants(state: State) -> Iterator[Shown]:
    for who, amount in state.index.held.items():
        if len(who) == 2:  # with a user it is a part of the same
            queue, tenant = who
            yield "tenant_held_gpus", (tenant, queue), amount.gpu_milli / WHOLE_GPU
    for name, known in state.tree.tenants.items():
        use = state.tenant_use.get(name)
        yield "tenant_asked_gpus", (name,), 0 if use is None else use.amount.gpu_milli / WHOLE_GPU
        yield "tenant_jobs", (name,), 0 if use is None else use.jobs
        yield "tenant_weight", (name,), known.weight
        if known.limits.gpus is not None:
            yield "tenant_gpus_max", (name,), known.limits.gpus
        yield from _counted(use or Use(name), known.limits)


def _counted(use: Use, limits: Limits) -> Iterator[Shown]:
    """Numbers that count against each limit of a tenant, by its name, and the limit; GPUs are shown by themselves."""
    counted = {"jobs": use.jobs, "pods": use.pods, "services": use.services, "sessions": use.sessions_of(None)}
    for limit, number in counted.items():
        most = getattr(limits, limit)
        if most is not None:
            yield "tenant_counted", (use.name, limit), number
            yield "tenant_counted_max", (use.name, limit), most


NODES_AT_ONCE = 64
SHARE = 20  # of the time, one part at most


log = structlog.get_logger()


@asynccontextmanager
async def measuring(ports: Ports, shard: Shard, every_seconds: float) -> AsyncIterator[None]:
    """Measure while inside. What goes wrong with it is logged, and stops nobody who decides."""
    task = asyncio.create_task(measure(ports, shard, every_seconds))
    try:
        yield
    finally:
        await cancel_all(task)
        ports.metrics.left_of_pools([])  # the next leader measures
        ports.metrics.nodes_backed_off({})
        ports.metrics.nodes_sick({})
        ports.metrics.services_below_minimum.set(0)
        ports.metrics.reservations_unserved.set(0)
        ports.metrics.sharing.show([])
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            log.error("slots_not_measured", error=repr(error))


async def measure(ports: Ports, shard: Shard, every_seconds: float) -> None:
    """Measures free slots for ever, whenever the ledger has moved; every so many seconds at most."""
    clock, seen = ports.clock, -1
    while True:
        spent = 0.0
        if shard.state.n != seen:
            seen, started = shard.state.n, clock.monotonic()
            await _measure_once(ports, shard)
            spent = clock.monotonic() - started
        await clock.sleep(max(every_seconds, SHARE * spent))


async def _measure_once(ports: Ports, shard: Shard) -> None:
    found = []
    for pool in sorted(shard.state.tree.queues_of):
        state = shard.state
        tally, nodes = tally_of(state, pool), nodes_for(state, pool, "", shut=shut_now(state, pool))
        for at, node in enumerate(nodes):
            tally.add(node)
            if at % NODES_AT_ONCE == NODES_AT_ONCE - 1:
                await ports.clock.sleep(0)
        left = tally.sum()
        rules = held_back(state, pool, left.can_be_had)
        found.append(replace(left, unused=unused(state, pool), held_back=rules))
    ports.metrics.left_of_pools(found)
    ports.metrics.nodes_backed_off(count_backed_off(shard.state))
    ports.metrics.nodes_sick(count_sick(shard.state))
    ports.metrics.services_below_minimum.set(count_below_minimum(shard.state))
    ports.metrics.reservations_unserved.set(count_unserved(shard.state))
    ports.metrics.sharing.show(sharing(shard.state))
