"""Services that a trace is replayed through end with it, however that ends."""

import asyncio

import pytest

from tessera.testkit.end_to_end.services import FOR_EVER_SECONDS, TraceServices, Undecided, job, run_end_to_end
from tessera.testkit.sim.coverage import SIMULATED
from tessera_local.cluster.machines.nodes import NodeRow
from tessera_schemas.commands import SubmitJob
from tessera_schemas.config import ConfigBody, Limits, Queue, Tenant
from tessera_schemas.job import Resources

LIMITS = Limits(jobs=None, submits_per_second=None, bytes_per_second=None)
BODY = ConfigBody(tenants=(Tenant(name="t", limits=LIMITS),), queues=(Queue(name="q"),))


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


def test_a_job_that_fits_starts_behind_a_thousand_blocked_ones() -> None:
    """Nodes are idle all the while: nobody starves because only the first 512 jobs are named in an order."""

    async def crowd(services: TraceServices) -> float:
        async def submit(key: str, gpus: int, pods: int, cpu_milli: int) -> None:
            need = Resources(cpu_milli=cpu_milli, memory_bytes=1, gpus=gpus)
            spec = job(key, "q", [(pods, need, ())], FOR_EVER_SECONDS)
            await services.send("t", SubmitJob(kind="submit_job", v=1, key=key, spec=spec))

        await services.start([NodeRow(name=f"n{at}", cpu="32", memory="64Gi", gpus=4) for at in range(2)], BODY)
        await submit("keeps-a-gpu", 1, 1, 1000)
        await services.until(lambda state: len(state.runs) == 1)
        for at in range(1000):
            await submit(f"large-{at}", 4, 2, 1000 + at % 50)
        await services.until(lambda state: len(state.jobs) == 1001)
        sent = services.clock.monotonic()
        await submit("small", 1, 1, 1000)
        await services.until(lambda state: len(state.runs) == 2)
        took = services.clock.monotonic() - sent
        await services.close()
        return took

    assert run_end_to_end(1, crowd) < 2.0
