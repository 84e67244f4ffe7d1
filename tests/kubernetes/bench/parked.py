"""
`python -m tests.kubernetes.bench.parked`: many batch Jobs of one GPU that wait suspended behind a full cluster.

How long until all of them are in line, what each costs in CPU and calls, what the services hold in memory by then, and
how long after a few GPUs came free the next Jobs are resumed, have pods, and have these bound. GPUs are freed twice:
at once, when the Job controller still has to look at most of the new Jobs, and again after it has looked at all.
"""

import argparse
import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import uvloop

from tessera.client.connect.connecting import views_of
from tessera.client.connect.locating import find
from tessera.client.connect.shard_views import LIVE
from tessera.kernel.errors import Transient
from tessera.kernel.kubernetes.cluster import HttpCluster
from tessera.kernel.ports import WatchEvent
from tessera_lab.bench.report import ReportRow
from tessera_local.platform import Platform
from tessera_schemas import subjects
from tessera_schemas.base import Json
from tests.kubernetes.bench.calls import ApiCalls
from tests.kubernetes.bench.creating import ROUND_LABEL, has_node, pipelined
from tests.kubernetes.bench.jobs import JOBS, Way, job_of
from tests.kubernetes.bench.staging import TENANT, Spending, platform_on, platforms_pids
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.deployed import NAMESPACE, deploy, let_in

STAGE_SECONDS = 900.0
GPUS_PER_NODE = 8
LABEL = "parked"
SELECTOR = f"{ROUND_LABEL}={LABEL}"
STAGES = ("resumed", "pod", "bound")


async def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.kubernetes.bench.parked", description=__doc__)
    parser.add_argument("--nodes", type=int, default=25, help="of eight GPUs each")
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--freed", type=int, default=20, help="Jobs at work that are deleted, each of the two times")
    parser.add_argument("--controller-flags", nargs="*", default=(), help="of kube-controller-manager: kube-api-qps=20")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    asked = parser.parse_args()
    with TemporaryDirectory(prefix="tessera-bench-") as folder:
        plane = ControlPlane(Path(folder) / "plane", controller_flags=asked.controller_flags, say=lambda _: None)
        with plane:
            deploy(plane)("scale", "deployment", "--all", "--replicas=0", f"--namespace={NAMESPACE}")
            let_in(plane, TENANT)
            plane.add_nodes(asked.nodes)
            room = asked.nodes * GPUS_PER_NODE
            async for row in parked(plane, Path(folder), asked.jobs, room, asked.freed):
                line = json.dumps(row.as_json(), indent=2) if asked.output == "json" else "\n".join(row.lines())
                print(line, flush=True)


async def parked(plane: ControlPlane, folder: Path, jobs: int, room: int, freed: int) -> AsyncIterator[ReportRow]:
    """All Jobs created, until all are in line and as many as fit are bound; then some make room for others."""
    client = plane.cluster(in_flight=64)
    try:
        async with platform_on(plane, folder / "up") as platform, _watched(client) as stages:
            loop, what = asyncio.get_running_loop(), f"{jobs} Jobs created suspended on {room} GPUs"
            began, spent, asked = loop.time(), Spending.now(plane, platforms_pids(platform)), ApiCalls.now(plane)
            await pipelined([_create(client, number) for number in range(jobs)])
            created = loop.time() - began
            in_line = await _until_in_line(platform, jobs) - began
            await stages.until("bound", room)
            full = max(stages.at["bound"].values()) - began
            notes = {
                "CPU ms per Job": _ranked(Spending.now(plane, platforms_pids(platform)).since(spent, 1000 / jobs)),
                "API calls per Job": _ranked(ApiCalls.now(plane).since(asked, 1 / jobs)),
                "resident MiB": _ranked({name: _resident_mib(pid) for name, pid in platforms_pids(platform).items()}),
            }
            floor = "all are created, s"
            yield ReportRow(f"{what}: all in line", "s", "-", (in_line,), floor, (created,), notes)
            yield ReportRow(f"{what}: all GPUs taken", "s", "-", (full,), floor, (created,))
            yield await _freed(client, stages, f"{what}: {freed} freed at once, taken again", freed, jobs)
            await stages.until("looked at", jobs)
            yield await _freed(client, stages, f"{what}: {freed} freed once all are suspended", freed, jobs)
    finally:
        await client.close()


class Stages:
    """
    When each Job came to each stage, by name: `looked at` by the Job controller, `resumed` by the binder, with a
    `pod`, that is `bound`.
    """

    def __init__(self) -> None:
        self.at: dict[str, dict[str, float]] = {stage: {} for stage in ("looked at", *STAGES)}
        self._came = asyncio.Event()

    def note_job(self, event: WatchEvent) -> None:
        self._note("looked at", _has_status(event.object), event.object["metadata"]["name"])
        self._note("resumed", not event.object["spec"].get("suspend"), event.object["metadata"]["name"])

    def note_pod(self, event: WatchEvent) -> None:
        name = event.object["metadata"]["labels"]["job-name"]
        self._note("pod", True, name)
        self._note("bound", has_node(event.object), name)

    def _note(self, stage: str, reached: bool, name: str) -> None:
        if reached and name not in self.at[stage]:
            self.at[stage][name] = asyncio.get_running_loop().time()
            self._came.set()

    async def until(self, stage: str, count: int) -> None:
        """Until so many Jobs have come to the stage."""
        async with asyncio.timeout(STAGE_SECONDS):
            while len(self.at[stage]) < count:
                self._came.clear()
                await self._came.wait()


def _has_status(job: Json) -> bool:
    """A condition `Suspended`, either way, or its start: the controller has worked on it."""
    status = job.get("status", {})
    return bool(status.get("startTime")) or any(one["type"] == "Suspended" for one in status.get("conditions", ()))


@asynccontextmanager
async def _watched(client: HttpCluster) -> AsyncIterator[Stages]:
    stages = Stages()
    watches = [
        asyncio.create_task(_watch(client, kind, note))
        for kind, note in (("jobs", stages.note_job), ("pods", stages.note_pod))
    ]
    try:
        yield stages
    finally:
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)


async def _watch(client: HttpCluster, kind: str, note: Callable[[WatchEvent], None]) -> None:
    _, version = await client.list(kind, SELECTOR)
    while True:
        try:
            async for event in client.watch(kind, version, SELECTOR):
                version = event.object["metadata"]["resourceVersion"]
                if event.type in ("ADDED", "MODIFIED"):
                    note(event)
        except Transient:
            continue


async def _freed(client: HttpCluster, stages: Stages, what: str, freed: int, jobs: int) -> ReportRow:
    """Delete some Jobs at work; when the last of as many others was resumed, had its pod, and was bound."""
    at_work, _ = await client.list("pods", SELECTOR, "spec.nodeName!=")
    bound, behind = len(stages.at["bound"]), jobs - len(stages.at["looked at"])
    began = asyncio.get_running_loop().time()
    await pipelined([_delete(client, pod) for pod in at_work[:freed]])
    deleted = asyncio.get_running_loop().time() - began
    await stages.until("bound", bound + freed)
    last = {f"last {stage}, s": round(max(stages.at[stage].values()) - began, 2) for stage in STAGES}
    notes = {"Jobs that the Job controller has not looked at": behind, **last}
    return ReportRow(what, "s", "-", (last["last bound, s"],), "all are deleted, s", (deleted,), notes)


def _create(client: HttpCluster, number: int) -> Callable[[], Awaitable[None]]:
    async def create() -> None:
        await client._call("POST", JOBS, body=job_of(f"{LABEL}-{number}", LABEL, Way("tessera", suspend=True)))

    return create


def _delete(client: HttpCluster, pod: Json) -> Callable[[], Awaitable[None]]:
    async def delete() -> None:
        meta = pod["metadata"]
        await client._call("DELETE", f"{JOBS}/{meta['labels']['job-name']}", body={"propagationPolicy": "Background"})
        await client.delete_pod(TENANT, meta["name"], meta["uid"], 0)

    return delete


async def _until_in_line(platform: Platform, jobs: int) -> float:
    """When the views show as many live jobs."""
    place = find(platform.directory, {}, platform.shard)
    views = views_of(place, subjects.OPERATOR)
    async with asyncio.timeout(STAGE_SECONDS):
        while (await views.list_work(1, LIVE))[1] < jobs:
            await asyncio.sleep(0.5)
    return asyncio.get_running_loop().time()


def _resident_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


def _ranked(found: dict[str, float]) -> dict[str, float]:
    ranked = dict(sorted(((name, round(n, 2)) for name, n in found.items() if n >= 0.01), key=lambda item: -item[1]))
    return ranked | {"all": round(sum(found.values()), 2)}


if __name__ == "__main__":
    uvloop.run(main())
