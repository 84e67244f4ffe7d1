"""Pods made as fast as one client can, by any scheduler's name, and an eye on when they are bound."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from tessera.kernel.errors import Transient
from tessera.kernel.kubernetes.cluster import HttpCluster

Json = dict[str, Any]
ROUND_LABEL = "bench-round"
IN_FLIGHT = 64
SILENCE_SECONDS = 60.0  # without any binding: something is wrong, and the rest would wait for ever
LIVES_SECONDS = 3600


def one_gpu_pod(name: str, round_name: str, scheduler: str) -> Json:
    """A pod of one GPU that runs until it is deleted; about 1 KB."""
    amounts = {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1"}
    container = {"name": "main", "image": "train:1", "resources": {"requests": amounts, "limits": amounts}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {ROUND_LABEL: round_name},
            "annotations": {"tessera.io/simulate-seconds": str(LIVES_SECONDS), "tessera.io/preemptible": "true"},
        },
        "spec": {"schedulerName": scheduler, "containers": [container], "terminationGracePeriodSeconds": 0},
    }


async def pipelined(work: Sequence[Callable[[], Awaitable[None]]], in_flight: int = IN_FLIGHT) -> None:
    """All of it, so many at a time."""
    rest = iter(work)

    async def one_after_another() -> None:
        for call in rest:
            await call()

    await asyncio.gather(*(one_after_another() for _ in range(in_flight)))


def has_node(pod: Json) -> bool:
    return bool(pod.get("spec", {}).get("nodeName"))


def is_there(_: Json) -> bool:
    return True


class Bound:
    """
    Counts the pods of a round that have a node (or of which else `counts` holds), as a watch shows them, and when the
    last of each number came.
    """

    def __init__(self, cluster: HttpCluster, selector: str, counts: Callable[[Json], bool] = has_node) -> None:
        self._cluster, self._selector, self._counts = cluster, selector, counts
        self.at: dict[str, float] = {}
        self._task: asyncio.Task[None] | None = None
        self._came = asyncio.Event()

    async def __aenter__(self) -> "Bound":
        _, version = await self._cluster.list("pods", self._selector)
        self._task = asyncio.create_task(self._watch(version))
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self, version: str) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                async for event in self._cluster.watch("pods", version, self._selector):
                    meta = event.object["metadata"]
                    version = meta["resourceVersion"]
                    if self._counts(event.object):
                        self.at.setdefault(meta["uid"], loop.time())
                        self._came.set()
            except Transient:
                continue

    async def until(self, count: int) -> float:
        """When the pod that made it `count` was bound."""
        while len(self.at) < count:
            self._came.clear()
            async with asyncio.timeout(SILENCE_SECONDS):
                await self._came.wait()
        return sorted(self.at.values())[count - 1]
