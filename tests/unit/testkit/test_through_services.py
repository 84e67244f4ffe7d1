"""Services that a trace is replayed through end with it, however that ends."""

import asyncio

import pytest

from tessera.local.cluster.nodes import NodeRow
from tessera.testkit.end_to_end.services import TraceServices, Undecided, run_end_to_end
from tessera.testkit.sim.coverage import SIMULATED
from tessera_schemas.config import ConfigBody, Queue, Tenant

BODY = ConfigBody(tenants=(Tenant(name="t"),), queues=(Queue(name="q"),))


def test_a_run_that_fails_leaves_no_service_behind() -> None:
    tasks: list[asyncio.Task[None]] = []

    async def fail(services: TraceServices) -> None:
        await services.start([NodeRow(name="n", cpu="1", memory="1Gi")], BODY)
        tasks.extend(member.task for member in services.services.members.values())
        raise Undecided("on purpose")

    with pytest.raises(Undecided, match="on purpose"):
        run_end_to_end(1, fail)
    assert len(tasks) == len(SIMULATED)
    assert all(task.done() for task in tasks)


def test_whoever_waits_for_what_never_comes_is_told_so() -> None:
    async def wait(services: TraceServices) -> None:
        await services.start([], BODY)
        await services.until(lambda state: len(state.nodes) > 0)

    with pytest.raises(Undecided, match="nothing was decided for 60 s"):
        run_end_to_end(1, wait)
