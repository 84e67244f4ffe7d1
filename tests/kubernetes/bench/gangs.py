"""
Gangs of 1 to 64 pods on a real API server: all or nothing, a twentieth of the nodes taken away under them, and what the
binder costs with ten thousand pods.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random

from tessera.client.connect.connecting import open_bus
from tessera.client.connect.locating import find
from tessera.client.ledger.reading import ledger_of
from tessera.client.ledger.replay import ReplayReport, verify
from tessera.kernel.kubernetes.cluster import HttpCluster
from tessera.kernel.ports import Outgoing
from tessera_lab.bench.report import ReportRow
from tessera_local.platform import Platform
from tessera_schemas import subjects
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import RUN_LABEL
from tessera_schemas.commands import SubmitJob
from tessera_schemas.job import JobSpec, Resources, Role, Template
from tests.kubernetes.bench.creating import LIVES_SECONDS
from tests.kubernetes.bench.staging import TENANT, platform_on
from tests.kubernetes.control_plane import ControlPlane

LARGEST, LOST_SHARE, ALL_PODS = 64, 20, 10_000
STILL_SECONDS = 300.0


def gang_sizes(pods: int, random: Random) -> list[int]:
    """Sizes from 1 to 64 that add up to `pods`."""
    sizes: list[int] = []
    while sum(sizes) < pods:
        sizes.append(min(random.randint(1, LARGEST), pods - sum(sizes)))
    return sizes


def spec(replicas: int, gpus: int) -> JobSpec:
    template = Template(image="train:1", annotations={"tessera.io/simulate-seconds": str(LIVES_SECONDS)})
    asked = Resources(cpu_milli=1000, memory_bytes=2**30, gpus=gpus)
    role = Role(name="worker", replicas=replicas, resources=asked, template=template)
    return JobSpec(name="gang", queue="default", roles=(role,), termination_grace_seconds=0)


async def gangs(plane: ControlPlane, folder: Path, nodes: int, pods: int) -> list[ReportRow]:
    sizes = gang_sizes(pods, Random(7))
    loop = asyncio.get_running_loop()
    client = plane.cluster("admin")
    try:
        async with platform_on(plane, folder / "gangs") as platform:
            began = loop.time()
            await _submit(platform, [spec(size, 1) for size in sizes], "g")
            await _until_whole(client, sizes)
            placed = loop.time() - began

            gone = [f"gpu-{number}" for number in Random(8).sample(range(nodes), nodes // LOST_SHARE)]
            hit = frozenset(
                pod["metadata"]["labels"][RUN_LABEL] for pod in await _pods(client) if pod["spec"]["nodeName"] in gone
            )
            began = loop.time()
            for name in gone:
                plane.api().delete(f"/api/v1/nodes/{name}")
            await _until_whole(client, sizes, without=hit)
            restarted = loop.time() - began

            rest = ALL_PODS - pods
            more = [50] * (rest // 50)
            await _submit(platform, [spec(size, 0) for size in more], "c")
            await _until_whole(client, sizes + more, without=hit)
            resident = _resident_mib(platform.pid("binder"))
            began = loop.time()
            await client.list("pods")
            listed = loop.time() - began
            began = loop.time()
            await platform.restart("binder")
            ready = loop.time() - began
            replay = await _replayed(platform)
    finally:
        await client.close()
    notes = {
        "gangs": len(sizes),
        "gangs hit by the lost nodes": len(hit),
        "until all of them run elsewhere, s": restarted,
        "replay --verify, messages recomputed": f"{replay.recomputed} of {replay.messages}",
    }
    return [
        ReportRow(
            f"{pods:,} pods in gangs of 1-64, whole", "pods/s", "all or nothing", (pods / placed,), "-", (1.0,), notes
        ),
        ReportRow(
            f"a list of {ALL_PODS:,} pods", "s", "<= 5", (listed,), "-", (1.0,), {"binder ready again, s": ready}
        ),
        ReportRow(f"binder's memory at {ALL_PODS:,} pods", "MiB", "<= 300", (resident,), "-", (1.0,)),
    ]


async def _submit(platform: Platform, specs: list[JobSpec], prefix: str) -> None:
    place = find(platform.directory, {}, platform.shard)
    commands = [
        SubmitJob(kind="submit_job", v=1, key=f"{prefix}-{number}", spec=one).to_bytes()
        for number, one in enumerate(specs)
    ]
    async with open_bus(place, place.tenant(TENANT)) as bus:
        await bus.publish_all([Outgoing(subjects.submit(platform.shard, TENANT), command) for command in commands])


async def _pods(client: HttpCluster) -> list[Json]:
    """Ours that are neither over nor on their way out."""
    found, _ = await client.list("pods", RUN_LABEL)
    return [pod for pod in found if "deletionTimestamp" not in pod["metadata"] and not _is_over(pod)]


def _is_over(pod: Json) -> bool:
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


async def _until_whole(client: HttpCluster, sizes: Sequence[int], without: frozenset[str] = frozenset()) -> None:
    """Until every gang has all its pods on nodes, in one run each, and none of them in a run of `without`."""
    async with asyncio.timeout(STILL_SECONDS):
        while True:
            there = Counter(
                pod["metadata"]["labels"][RUN_LABEL] for pod in await _pods(client) if pod["spec"].get("nodeName")
            )
            if sorted(there.values()) == sorted(sizes) and not without & there.keys():
                return
            await asyncio.sleep(0.5)


async def _replayed(platform: Platform) -> ReplayReport:
    place = find(platform.directory, {}, platform.shard)
    async with open_bus(place, place.identity(subjects.OPERATOR)) as bus:
        replay = verify([data async for _, data in ledger_of(bus, platform.shard).messages()])
    if not replay.ok:
        raise AssertionError(replay.findings)
    return replay


def _resident_mib(pid: int | None) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))
