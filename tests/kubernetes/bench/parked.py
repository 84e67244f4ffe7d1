"""
`python -m tests.kubernetes.bench.parked`: many batch Jobs of one GPU that wait suspended behind a full cluster.

How long until all of them are in line, what each costs in CPU and calls, what the services hold in memory by then, and
how long after a few GPUs came free the next ones are resumed and bound. KWOK stands still: whoever is bound stays.
"""

import argparse
import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import uvloop

from tessera.client import where
from tessera.client.shard_views import ShardViews
from tessera.kernel.kubernetes.cluster import HttpCluster
from tessera.kernel.ports import JsonObject
from tessera.lab.bench.report import ReportRow
from tessera.local.platform import Platform
from tessera_schemas import subjects
from tests.kubernetes.bench.calls import ApiCalls
from tests.kubernetes.bench.creating import ROUND_LABEL, Bound, pipelined
from tests.kubernetes.bench.jobs import JOBS, Way, job_of
from tests.kubernetes.bench.staging import TENANT, Spending, platform_on, platforms_pids, standing_still
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.deployed import NAMESPACE, deploy, let_in

IN_LINE_SECONDS = 400.0
GPUS_PER_NODE = 8
LABEL = "parked"


async def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.kubernetes.bench.parked", description=__doc__)
    parser.add_argument("--nodes", type=int, default=25, help="of eight GPUs each")
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--freed", type=int, default=50, help="Jobs at work that are deleted in the end")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    asked = parser.parse_args()
    with TemporaryDirectory(prefix="tessera-bench-") as folder:
        plane = ControlPlane(Path(folder) / "plane", scheduler=True, say=lambda _: None)
        with plane:
            deploy(plane)("scale", "deployment", "--all", "--replicas=0", f"--namespace={NAMESPACE}")
            let_in(plane, TENANT)
            plane.add_nodes(asked.nodes)
            room = asked.nodes * GPUS_PER_NODE
            for row in await parked(plane, Path(folder), asked.jobs, room, asked.freed):
                print(json.dumps(row.as_json(), indent=2) if asked.output == "json" else "\n".join(row.lines()))


async def parked(plane: ControlPlane, folder: Path, jobs: int, room: int, freed: int) -> list[ReportRow]:
    """All Jobs created, until all are in line and as many as fit are bound; then some make room for others."""
    client = plane.cluster(in_flight=64)
    try:
        async with (
            platform_on(plane, folder / "up") as platform,
            standing_still([_pid(plane, "kwok"), _pid(plane, "kube-scheduler")]),
            Bound(client, f"{ROUND_LABEL}={LABEL}") as bound,
        ):
            return await _measured(plane, platform, client, bound, jobs, room, freed)
    finally:
        await client.close()


async def _measured(
    plane: ControlPlane, platform: Platform, client: HttpCluster, bound: Bound, jobs: int, room: int, freed: int
) -> list[ReportRow]:
    loop = asyncio.get_running_loop()
    began, spent, asked = loop.time(), Spending.now(plane, platforms_pids(platform)), ApiCalls.now(plane)
    await pipelined([_create(client, number) for number in range(jobs)])
    created = loop.time() - began
    in_line = await _until_in_line(platform, jobs) - began
    full = await bound.until(room) - began
    notes = {
        "CPU ms per Job": _told(Spending.now(plane, platforms_pids(platform)).since(spent, 1000 / jobs)),
        "API calls per Job": _told(ApiCalls.now(plane).since(asked, 1 / jobs)),
        "resident MiB": _told({name: _resident_mib(pid) for name, pid in platforms_pids(platform).items()}),
    }
    at_work, _ = await client.list("pods", f"{ROUND_LABEL}={LABEL}", "spec.nodeName!=")
    again = loop.time()
    await pipelined([_delete(client, pod) for pod in at_work[:freed]])
    refilled = await bound.until(room + freed) - again
    floor, what = "all are created, s", f"{jobs} Jobs created suspended on {room} GPUs"
    return [
        ReportRow(f"{what}: all in line", "s", "-", (in_line,), floor, (created,), notes),
        ReportRow(f"{what}: all GPUs taken", "s", "-", (full,), floor, (created,)),
        ReportRow(f"{what}: {freed} freed GPUs taken again", "s", "-", (refilled,), floor, (created,)),
    ]


def _create(client: HttpCluster, number: int) -> Callable[[], Awaitable[None]]:
    async def create() -> None:
        await client._call("POST", JOBS, body=job_of(f"{LABEL}-{number}", LABEL, Way("tessera", suspend=True)))

    return create


def _delete(client: HttpCluster, pod: JsonObject) -> Callable[[], Awaitable[None]]:
    """A Job with its pod, which no kubelet has begun."""

    async def delete() -> None:
        meta = pod["metadata"]
        await client._call("DELETE", f"{JOBS}/{meta['labels']['job-name']}", body={"propagationPolicy": "Background"})
        await client.delete_pod(TENANT, meta["name"], meta["uid"], 0)

    return delete


async def _until_in_line(platform: Platform, jobs: int) -> float:
    """When the views show as many live jobs."""
    place = where.find(platform.directory, {}, platform.shard)
    async with place.store(place.identity(subjects.OPERATOR)) as store, asyncio.timeout(IN_LINE_SECONDS):
        views = ShardViews(store)
        while len(await views.jobs()) < jobs:
            await asyncio.sleep(0.5)
    return asyncio.get_running_loop().time()


def _resident_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


def _told(found: dict[str, float]) -> dict[str, float]:
    ranked = dict(sorted(((name, round(n, 2)) for name, n in found.items() if n >= 0.01), key=lambda item: -item[1]))
    return ranked | {"all": round(sum(found.values()), 2)}


def _pid(plane: ControlPlane, part: str) -> int:
    process = plane.parts[part].process
    assert process is not None
    return process.pid


if __name__ == "__main__":
    uvloop.run(main())
