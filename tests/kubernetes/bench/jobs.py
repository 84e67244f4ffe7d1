"""
`python -m tests.kubernetes.bench.jobs`: many batch Jobs of one pod each, from the first create until the last pod is
bound, by kube-scheduler, by Tessera with pods that are there from the start, and by Tessera with Jobs that wait
suspended.

Nobody starts sooner than the Job controller makes pods, so each way has its floor: the same Jobs whose pods nobody
schedules, until the last pod exists. Suspended ones are resumed there by a bare client right after each create. All of
a round's rows share one control plane; whoever's turn it is not stands still meanwhile.
"""

import argparse
import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import uvloop

from tessera.kernel.kubernetes.cluster import HttpCluster
from tessera.kernel.ports import ApiError
from tessera_lab.bench.report import ReportRow
from tessera_local.platform import NATS, REDIS, Platform
from tests.kubernetes.bench.creating import ROUND_LABEL, Bound, has_node, is_there, one_gpu_pod, pipelined
from tests.kubernetes.bench.staging import TENANT, platform_on, platforms_pids, standing_still, stopped
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.deployed import NAMESPACE, deploy, let_in

Json = dict[str, Any]
JOBS = f"/apis/batch/v1/namespaces/{TENANT}/jobs"
GONE_SECONDS = 180.0


@dataclass(frozen=True, slots=True)
class Way:
    """`scheduler` "nobody": no pod is ever bound, and it is over once all pods are there."""

    scheduler: str
    suspend: bool = False

    @property
    def is_floor(self) -> bool:
        return self.scheduler == "nobody"


WAYS = {
    "made": Way("nobody"),
    "made-after-suspension": Way("nobody", suspend=True),
    "kube-scheduler": Way("default-scheduler"),
    "tessera": Way("tessera"),
    "tessera-suspended": Way("tessera", suspend=True),
}


async def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.kubernetes.bench.jobs", description=__doc__)
    parser.add_argument("--nodes", type=int, default=200, help="of eight GPUs each")
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ways", nargs="*", choices=tuple(WAYS), default=tuple(WAYS))
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    asked = parser.parse_args()
    with TemporaryDirectory(prefix="tessera-bench-") as folder:
        plane = ControlPlane(Path(folder) / "plane", scheduler=True, say=lambda _: None)
        with plane:
            deploy(plane)("scale", "deployment", "--all", "--replicas=0", f"--namespace={NAMESPACE}")
            let_in(plane, TENANT)
            plane.add_nodes(asked.nodes)
            seconds = await by_each_way(plane, Path(folder), asked.jobs, asked.rounds, asked.ways)
            for row in rows(seconds, asked.jobs):
                print(json.dumps(row.as_json(), indent=2) if asked.output == "json" else "\n".join(row.lines()))


async def by_each_way(
    plane: ControlPlane, folder: Path, jobs: int, rounds: int, ways: list[str]
) -> dict[str, tuple[float, ...]]:
    """Seconds of every round, by way. The kubelets begin once the last pod is bound."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    client = plane.cluster(in_flight=64)
    try:
        async with platform_on(plane, folder / "up") as platform:
            for number in range(rounds):
                for name in ways:
                    label = f"{name}-{number}"
                    async with standing_still(_not_of(WAYS[name], plane, platform)):
                        with stopped([_pid(plane, "kwok")]):
                            found[name].append(await _seconds(client, label, WAYS[name], jobs))
                        await _clear(client, label)
    finally:
        await client.close()
    return {name: tuple(each) for name, each in found.items()}


def rows(seconds: dict[str, tuple[float, ...]], jobs: int) -> list[ReportRow]:
    whats = {
        "kube-scheduler": ("kube-scheduler, pods from the start", "-", "made"),
        "tessera": ("Tessera, pods from the start", "<= kube-scheduler", "made"),
        "tessera-suspended": ("Tessera, waiting suspended", "-", "made-after-suspension"),
    }
    floor = "all pods are made, s"
    return [
        ReportRow(
            f"{jobs} Jobs, create to bound: {what}", "s", bar, seconds[name], floor, seconds.get(least, seconds[name])
        )
        for name, (what, bar, least) in whats.items()
        if name in seconds
    ]


async def _seconds(client: HttpCluster, label: str, way: Way, jobs: int) -> float:
    loop = asyncio.get_running_loop()

    def one(number: int) -> Callable[[], Awaitable[None]]:
        async def create() -> None:
            name = f"{label}-{number}"
            await client._call("POST", JOBS, body=job_of(name, label, way))
            if way.is_floor and way.suspend:
                await client.patch_object("batch/v1", "Job", TENANT, name, {"spec": {"suspend": False}})

        return create

    async with Bound(client, f"{ROUND_LABEL}={label}", is_there if way.is_floor else has_node) as seen:
        began = loop.time()
        await pipelined([one(number) for number in range(jobs)])
        return await seen.until(jobs) - began


def job_of(name: str, label: str, way: Way) -> Json:
    pod = one_gpu_pod(name, label, way.scheduler)
    template = {
        "metadata": {key: pod["metadata"][key] for key in ("labels", "annotations")},
        "spec": pod["spec"] | {"restartPolicy": "Never"},
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": {ROUND_LABEL: label}},
        "spec": {"template": template} | ({"suspend": True} if way.suspend else {}),
    }


def _not_of(way: Way, plane: ControlPlane, platform: Platform) -> list[int]:
    """The processes that have no part in a way."""
    services = [pid for part, pid in platforms_pids(platform).items() if part not in (NATS, REDIS)]
    ours, peer = way.scheduler == "tessera", way.scheduler == "default-scheduler"
    return [*([] if ours else services), *([] if peer else [_pid(plane, "kube-scheduler")])]


def _pid(plane: ControlPlane, part: str) -> int:
    process = plane.parts[part].process
    assert process is not None
    return process.pid


async def _clear(client: HttpCluster, label: str) -> None:
    """No Job and no pod of the round is left."""

    def one(name: str) -> Callable[[], Awaitable[None]]:
        async def delete() -> None:
            try:
                await client._call("DELETE", f"{JOBS}/{name}", body={"propagationPolicy": "Background"})
            except ApiError as error:
                if error.status != 404:
                    raise

        return delete

    selector = f"{ROUND_LABEL}={label}"
    found, _ = await client.list("jobs", selector)
    await pipelined([one(job["metadata"]["name"]) for job in found], 16)
    async with asyncio.timeout(GONE_SECONDS):
        while (await client.list("pods", selector))[0] or (await client.list("jobs", selector))[0]:
            await asyncio.sleep(0.5)
    await asyncio.sleep(3.0)


if __name__ == "__main__":
    uvloop.run(main())
