"""
`python -m tests.kubernetes.bench.pod_groups`: gangs of Kubernetes' own PodGroups, by kube-scheduler with its gang
scheduling switched on and by Tessera, in turn on one control plane.

Two scenes. Room for all: from the first create until every gang has all of its nodes. Room for half: what is bound
once nothing moves any more, and how many gangs hold nodes without being whole. In both a gang counts as bound in part
from its first binding to its last, as a watch shows them.
"""

import argparse
import asyncio
import json
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import uvloop

from tessera.kernel.errors import Transient
from tessera.kernel.kubernetes.cluster import HttpCluster
from tessera.kernel.ports import ApiError
from tessera_lab.bench.report import ReportRow, percentile
from tests.kubernetes.bench.creating import ROUND_LABEL, one_gpu_pod, pipelined
from tests.kubernetes.bench.staging import TENANT, platform_on
from tests.kubernetes.commands import WORKLOADS
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.deployed import NAMESPACE, deploy, let_in

Json = dict[str, Any]
API = "scheduling.k8s.io/v1alpha2"
GANG_LABEL = "bench-gang"
SCHEDULERS = {"kube-scheduler": "default-scheduler", "tessera": "tessera"}
STILL_SECONDS, MOST_SECONDS = 15.0, 300.0


@dataclass(frozen=True, slots=True)
class Seen:
    """Of one scene: when each pod of each gang was bound, from its begin."""

    bound: dict[str, list[float]]
    size: int

    @property
    def whole(self) -> list[float]:
        return [max(times) for times in self.bound.values() if len(times) == self.size]

    @property
    def in_part_at_the_end(self) -> int:
        return sum(0 < len(times) < self.size for times in self.bound.values())

    @property
    def in_part_ms(self) -> list[float]:
        """How long each whole gang was bound only in part."""
        return [1000 * (max(times) - min(times)) for times in self.bound.values() if len(times) == self.size]


class Watched:
    """Follows a scene's pods until as many are bound as there can be, or nothing has moved for a while."""

    def __init__(self, client: HttpCluster, scene: str) -> None:
        self._client, self._selector = client, f"{ROUND_LABEL}={scene}"
        self.times: dict[str, dict[str, float]] = defaultdict(dict)
        self.last = 0.0

    async def follow(self) -> None:
        loop = asyncio.get_running_loop()
        _, version = await self._client.list("pods", self._selector)
        while True:
            try:
                async for event in self._client.watch("pods", version, self._selector):
                    meta = event.object["metadata"]
                    version = meta["resourceVersion"]
                    if event.object.get("spec", {}).get("nodeName"):
                        gang = self.times[meta["labels"][GANG_LABEL]]
                        if meta["uid"] not in gang:
                            gang[meta["uid"]] = self.last = loop.time()
            except Transient:
                continue

    @property
    def count(self) -> int:
        return sum(map(len, self.times.values()))


async def scene(client: HttpCluster, name: str, scheduler: str, gangs: int, size: int) -> Seen:
    """Make all PodGroups, then their pods, the first of each gang first; watch what becomes of them."""
    loop = asyncio.get_running_loop()
    watched = Watched(client, name)
    following = asyncio.create_task(watched.follow())
    try:
        await asyncio.sleep(0.5)
        groups = [f"{name}-{number}" for number in range(gangs)]
        await pipelined([_group(client, group, size) for group in groups])
        began = watched.last = loop.time()
        pods = [(group, number) for number in range(size) for group in groups]
        await pipelined([_pod(client, group, number, name, scheduler) for group, number in pods])
        while watched.count < gangs * size and loop.time() - max(watched.last, began) < STILL_SECONDS:
            await asyncio.sleep(0.05)
        return Seen({g: [t - began for t in found.values()] for g, found in watched.times.items()}, size)
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


def _group(client: HttpCluster, name: str, size: int) -> Callable[[], Awaitable[None]]:
    body = {
        "apiVersion": API,
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": TENANT},
        "spec": {"schedulingPolicy": {"gang": {"minCount": size}}},
    }

    async def create() -> None:
        await client._call("POST", f"/apis/{API}/namespaces/{TENANT}/podgroups", body=body)

    return create


def _pod(client: HttpCluster, group: str, number: int, name: str, scheduler: str) -> Callable[[], Awaitable[None]]:
    pod = one_gpu_pod(f"{group}-{number}", name, scheduler)
    pod["metadata"]["labels"][GANG_LABEL] = group
    pod["spec"]["schedulingGroup"] = {"podGroupName": group}

    async def create() -> None:
        await client.create_pod(TENANT, pod)

    return create


async def clear(client: HttpCluster, name: str) -> None:
    """Nothing of a scene is left."""
    found, _ = await client.list("pods", f"{ROUND_LABEL}={name}")

    def one(pod: Json) -> Callable[[], Awaitable[None]]:
        async def delete() -> None:
            try:
                await client.delete_pod(TENANT, pod["metadata"]["name"], pod["metadata"]["uid"], 0)
            except ApiError as error:
                if error.status != 404:
                    raise

        return delete

    await pipelined([one(pod) for pod in found], 16)
    async with asyncio.timeout(MOST_SECONDS):
        while (await client.list("pods", f"{ROUND_LABEL}={name}"))[0]:
            await asyncio.sleep(0.5)
    await asyncio.sleep(5.0)


async def both(plane: ControlPlane, folder: Path, gangs: int, size: int, rounds: int) -> list[ReportRow]:
    """A first scene of each is not counted: connections open, and prices are learnt."""
    roomy: dict[str, list[Seen]] = {name: [] for name in SCHEDULERS}
    tight: dict[str, list[Seen]] = {name: [] for name in SCHEDULERS}
    client = plane.cluster(in_flight=64)
    try:
        async with platform_on(plane, folder / "up"):
            for number in range(rounds):
                for name, scheduler in SCHEDULERS.items():
                    for kind, seen, count in (("roomy", roomy, gangs), ("tight", tight, 2 * gangs)):
                        label = f"{kind}-{name}-{number}"
                        seen[name].append(await scene(client, label, scheduler, count, size))
                        await clear(client, label)
    finally:
        await client.close()
    ours, peer = (tuple(gangs / max(seen.whole) for seen in roomy[name]) for name in ("tessera", "kube-scheduler"))
    notes: dict[str, Any] = {}
    for name in SCHEDULERS:
        notes[f"bound in part, ms a gang, p50 and p99, {name}"] = [
            round(percentile(_all(seen.in_part_ms for seen in roomy[name]), share)) for share in (50, 99)
        ]
        notes[f"room for half of {2 * gangs} gangs: whole at the end, {name}"] = [len(s.whole) for s in tight[name]]
        notes[f"room for half: bound in part at the end, {name}"] = [s.in_part_at_the_end for s in tight[name]]
    what = f"gangs of {size} pods by PodGroups, first create to whole"
    return [ReportRow(what, "gangs/s", ">= kube-scheduler", ours, "kube-scheduler with GangScheduling", peer, notes)]


def _all(found: Iterable[list[float]]) -> list[float]:
    return [value for one in found for value in one]


async def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.kubernetes.bench.pod_groups", description=__doc__)
    parser.add_argument("--nodes", type=int, default=100, help="of eight GPUs each")
    parser.add_argument("--size", type=int, default=8, help="pods of a gang")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    asked = parser.parse_args()
    gangs = asked.nodes * 8 // asked.size
    with TemporaryDirectory(prefix="tessera-bench-") as folder:
        plane = ControlPlane(Path(folder) / "plane", scheduler=True, gates=WORKLOADS, say=lambda _: None)
        with plane:
            deploy(plane)("scale", "deployment", "--all", "--replicas=0", f"--namespace={NAMESPACE}")
            let_in(plane, TENANT)
            plane.add_nodes(asked.nodes)
            for row in await both(plane, Path(folder), gangs, asked.size, asked.rounds):
                print(json.dumps(row.as_json(), indent=2) if asked.output == "json" else "\n".join(row.lines()))


if __name__ == "__main__":
    uvloop.run(main())
