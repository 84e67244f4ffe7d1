"""A crew that a trace goes through ends with it, however that ends."""

import asyncio

import pytest

from tessera.local.cluster.nodes import NodeRow
from tessera.testkit.end_to_end.services import TraceCrew, Undecided, through
from tessera.testkit.sim.coverage import SIMULATED
from tessera_schemas.config import ConfigBody, Queue, Tenant

BODY = ConfigBody(tenants=(Tenant(name="t"),), queues=(Queue(name="q"),))


def test_a_run_that_fails_leaves_no_service_behind() -> None:
    tasks: list[asyncio.Task[None]] = []

    async def fail(crew: TraceCrew) -> None:
        await crew.start([NodeRow(name="n", cpu="1", memory="1Gi")], BODY)
        tasks.extend(member.task for member in crew.crew.members.values())
        raise Undecided("on purpose")

    with pytest.raises(Undecided, match="on purpose"):
        through(1, fail)
    assert len(tasks) == len(SIMULATED)
    assert all(task.done() for task in tasks)


def test_whoever_waits_for_what_never_comes_is_told_so() -> None:
    async def wait(crew: TraceCrew) -> None:
        await crew.start([], BODY)
        await crew.until(lambda state: len(state.nodes) > 0)

    with pytest.raises(Undecided, match="nothing was decided for 60 s"):
        through(1, wait)
