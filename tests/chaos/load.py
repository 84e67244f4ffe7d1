"""Work of two tenants without end: gangs, shares, elastic, failing and urgent jobs, cancels, and users' own pods."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any

from tessera.client.outcomes import Refused
from tessera.kernel.errors import KernelError
from tessera.kernel.ports import ApiError
from tessera_schemas.cluster.labels import GPU_RESOURCE, QUEUE_LABEL, SCHEDULER_NAME
from tessera_schemas.job import JobSpec, Retry, Role
from tests.chaos.world import World
from tests.e2e.live import TENANTS, eventually, job
from tests.e2e.node_faults import saving

PATIENT = Retry(max_attempts=1000, backoff_seconds=0)
"""No fault of the machine uses an attempt up for good: whatever ends otherwise than it should was our mistake."""
LIVE_MAX = 60  # more would only wait in line
SUBMITTERS = 3


def _elastic() -> JobSpec:
    spec = job("elastic", gpus=2, seconds=1.5, retry=PATIENT)
    role = Role.model_validate(spec.roles[0].model_dump() | {"max_replicas": 3})
    return spec.model_copy(update={"roles": (role,)})


def kinds() -> tuple[JobSpec, ...]:
    return (
        job("single", seconds=0.4, retry=PATIENT),
        job("share", gpus=0, gpu_milli=300, seconds=0.8, retry=PATIENT),
        job("gang", gpus=2, replicas=3, seconds=0.7, retry=PATIENT),
        job("guest", gpus=4, replicas=2, seconds=2.0, queue="guest", priority_class="low", retry=PATIENT),
        job("failing", seconds=0.2, exit_code=1, retry=PATIENT),
        job("wide", gpus=1, replicas=8, seconds=0.4, priority_class="high", retry=PATIENT),
        saving(job("saving", gpus=8, seconds=3.0, queue="guest", priority_class="low", retry=PATIENT), 0.5, 1),
        job("urgent", gpus=8, replicas=2, seconds=0.4, priority_class="urgent", retry=PATIENT),
        _elastic(),
    )


def users_pod(name: str, tenant: str, seconds: float) -> dict[str, Any]:
    """A pod that a user made, naming our scheduler."""
    asked = {"cpu": "1", "memory": "1Gi", GPU_RESOURCE: "1"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": tenant,
            "labels": {QUEUE_LABEL: "default"},
            "annotations": {"tessera.io/simulate-seconds": str(seconds)},
        },
        "spec": {
            "schedulerName": SCHEDULER_NAME,
            "restartPolicy": "Never",
            "containers": [{"name": "main", "image": "theirs:1", "resources": {"requests": asked, "limits": asked}}],
        },
    }


class Load:
    """What was asked for. `expected` is how each acknowledged job should end, where only that end is right."""

    def __init__(self, world: World, chance: Random) -> None:
        self._world, self._chance = world, chance
        self._stop = asyncio.Event()
        self.cancelled: set[str] = set()
        self.expected: dict[str, str] = {}
        self.users_pods: list[tuple[str, str]] = []
        self.refused: list[str] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Work comes from before the body until it ends; every submit that was begun is acknowledged at the end."""
        self._stop.clear()
        before = len(self._world.live.acknowledged)
        tasks = [asyncio.create_task(self._submit()) for _ in range(SUBMITTERS)]
        tasks.append(asyncio.create_task(self._make_pods()))
        try:
            await eventually(lambda: len(self._world.live.acknowledged) >= before + 5, "the load has begun")
            yield
        finally:
            self._stop.set()
            await asyncio.gather(*tasks)

    async def _submit(self) -> None:
        live, chance, choices = self._world.live, self._chance, kinds()
        while not self._stop.is_set():
            if len(live.state.jobs) < LIVE_MAX:
                spec, tenant = chance.choice(choices), chance.choice(TENANTS)
                try:
                    done = await live.submit(spec, tenant, answer_seconds=0)
                except Refused as refused:
                    self.refused.append(str(refused))
                    continue
                self.expected[done.job_id] = "failed" if spec.name == "failing" else "succeeded"
                if chance.random() < 0.1:
                    await self._cancel(tenant, done.job_id)
            await asyncio.sleep(chance.uniform(0.1, 0.8))

    async def _cancel(self, tenant: str, job: str) -> None:
        await asyncio.sleep(self._chance.uniform(0.0, 1.0))
        self.cancelled.add(job)
        with suppress(KernelError, Refused):
            await self._world.live.clients[tenant].cancel(job)

    async def _make_pods(self) -> None:
        number = 0
        while not self._stop.is_set():
            number += 1
            name, tenant = f"theirs-{self._chance.randrange(10**9)}-{number}", self._chance.choice(TENANTS)
            with suppress(ApiError):
                await self._world.api.call("POST", f"/api/v1/namespaces/{tenant}/pods", users_pod(name, tenant, 0.5))
            self.users_pods.append((tenant, name))  # also one whose answer was lost may be there
            await asyncio.sleep(self._chance.uniform(1.0, 3.0))

    async def clear_users_pods(self) -> list[str]:
        """Take users' pods away, as their owners do; returns sentences about those that never came to an end."""
        left = []
        found = {
            (pod["metadata"]["namespace"], pod["metadata"]["name"]): pod for pod in await self._world.api.items("pods")
        }
        for tenant, name in self.users_pods:
            pod = found.get((tenant, name))
            if pod is None:
                continue
            if (phase := pod["status"].get("phase")) not in ("Succeeded", "Failed"):
                left.append(f"pod {name} of {tenant} is {phase}")
            with suppress(ApiError):
                await self._world.api.call("DELETE", f"/api/v1/namespaces/{tenant}/pods/{name}")
        self.users_pods.clear()
        return left
