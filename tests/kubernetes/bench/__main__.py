"""
`python -m tests.kubernetes.bench`: from create to bound on a real API server, beside kube-scheduler and a bare client.

All of a round's rows share one control plane, its thousand nodes and their KWOK, and the two cores of whoever runs it.
Whoever's turn it is not stands still meanwhile, since watching the pods of others costs CPU, too.
"""

import argparse
import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import uvloop

from tessera.kernel.kubernetes.cluster import HttpCluster
from tessera.kernel.ports import ApiError
from tessera_lab.bench.report import ReportRow
from tessera_local.platform import NATS, REDIS, Platform
from tests.kubernetes.bench import offered
from tests.kubernetes.bench.calls import ApiCalls
from tests.kubernetes.bench.creating import ROUND_LABEL, Bound, one_gpu_pod, pipelined
from tests.kubernetes.bench.gangs import gangs
from tests.kubernetes.bench.staging import TENANT, Spending, platform_on, platforms_pids, standing_still, stopped
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.deployed import NAMESPACE, deploy, let_in

GONE_SECONDS = 120.0
SCHEDULERS = {"bare": "nobody", "kube-scheduler": "default-scheduler", "tessera": "tessera"}


async def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.kubernetes.bench", description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--offered-rounds", type=int, default=3, help="at a steady pace, in turn; their p99 is a row")
    parser.add_argument("--gang-pods", type=int, default=5000, help="pods of the gangs; 0 leaves them out")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    asked = parser.parse_args()
    with TemporaryDirectory(prefix="tessera-bench-") as folder:
        plane = ControlPlane(Path(folder) / "plane", scheduler=True, say=_quiet)
        with plane:
            deploy(plane)("scale", "deployment", "--all", "--replicas=0", f"--namespace={NAMESPACE}")  # not run here
            let_in(plane, TENANT)
            plane.add_nodes(asked.nodes)
            rows = await bound_by_each(plane, Path(folder), asked.pods, asked.rounds, asked.offered_rounds)
            _print(rows, asked.output)
            if asked.gang_pods:
                _print(await gangs(plane, Path(folder), asked.nodes, asked.gang_pods), asked.output)


async def bound_by_each(
    plane: ControlPlane, folder: Path, pods: int, rounds: int, offered_rounds: int
) -> list[ReportRow]:
    """
    Rounds of: a bare client that binds itself, kube-scheduler, and Tessera by adoption.

    The kubelets, which are machines of their own in any cluster, begin once the last pod is bound: else whoever is
    slower shares the cores with more of them, which makes it slower still. All rows count their CPU.
    """
    rates: dict[str, list[float]] = {"bare": [], "kube-scheduler": [], "tessera": []}
    spent: dict[str, list[dict[str, float]]] = {name: [] for name in rates}
    asked: dict[str, list[dict[str, float]]] = {name: [] for name in rates}
    async with _client(plane) as client, platform_on(plane, folder / "up") as platform:
        for number in range(rounds):
            for name in rates:
                round_name = f"{name}-{number}"
                async with standing_still(_not_of(name, plane, platform)):
                    before, asked_before = Spending.now(plane, platforms_pids(platform)), ApiCalls.now(plane)
                    with stopped([_pid(plane, "kwok")]):
                        seconds = await _bound(client, plane, name, round_name, pods)
                    await _until_running(client, round_name)  # else the slowest row alone would pay for its kubelets
                    spent[name].append(Spending.now(plane, platforms_pids(platform)).since(before, 1000 / pods))
                    asked[name].append(ApiCalls.now(plane).since(asked_before, 1 / pods))
                    rates[name].append(pods / seconds)
                    await _clear(client, round_name)
        paced: dict[str, list[offered.Paced]] = {"kube-scheduler": [], "tessera": []}
        for number in range(offered_rounds):
            for name, seen in paced.items():
                round_name = f"paced-{name}-{number}"
                async with standing_still(_not_of(name, plane, platform)):
                    seen.append(await offered.paced(client, round_name, SCHEDULERS[name]))
                    await _clear(client, round_name)  # or on a few hundred nodes the next finds no room
    bare, peer, ours = (tuple(rates[name]) for name in rates)
    notes = {f"CPU ms per pod, {name}": _medians(spent[name]) for name in rates}
    notes |= {f"API calls per pod, {name}": _medians(asked[name]) for name in rates}
    floor = "a bare client's creates and binds, pods/s"
    return [
        ReportRow("kube-scheduler, create to bound", "pods/s", "-", peer, floor, bare),
        ReportRow(
            "Tessera, create to bound", "pods/s", ">= kube-scheduler, >= 50 % of the floor", ours, floor, bare, notes
        ),
        ReportRow("Tessera beside kube-scheduler", "pods/s", ">= 1", ours, "kube-scheduler, pods/s", peer),
        *([offered.row(paced["tessera"], paced["kube-scheduler"])] if paced["tessera"] else ()),
    ]


def _not_of(name: str, plane: ControlPlane, platform: Platform) -> list[int]:
    """The processes that have no part in a row."""
    services = [pid for part, pid in platforms_pids(platform).items() if part not in (NATS, REDIS)]
    peer = [_pid(plane, "kube-scheduler")]
    return [*([] if name == "tessera" else services), *([] if name == "kube-scheduler" else peer)]


def _pid(plane: ControlPlane, part: str) -> int:
    process = plane.parts[part].process
    assert process is not None
    return process.pid


async def _bound(client: HttpCluster, plane: ControlPlane, how: str, round_name: str, pods: int) -> float:
    """Seconds from the first create until the last pod has its node."""
    loop = asyncio.get_running_loop()
    nodes = [node["metadata"]["name"] for node in plane.api().items("/api/v1/nodes")] if how == "bare" else []
    scheduler = SCHEDULERS[how]

    def one(number: int) -> Callable[[], Awaitable[None]]:
        async def create() -> None:
            name = f"{round_name}-{number}"
            made = await client.create_pod(TENANT, one_gpu_pod(name, round_name, scheduler))
            if nodes:
                await client.bind_pod(TENANT, name, made["metadata"]["uid"], nodes[number % len(nodes)], {})

        return create

    async with Bound(client, f"{ROUND_LABEL}={round_name}") as bound:
        began = loop.time()
        await pipelined([one(number) for number in range(pods)])
        return await bound.until(pods) - began


async def _until_running(client: HttpCluster, round_name: str) -> None:
    async with asyncio.timeout(GONE_SECONDS):
        while (await client.list("pods", f"{ROUND_LABEL}={round_name}", "status.phase!=Running"))[0]:
            await asyncio.sleep(0.25)


async def _clear(client: HttpCluster, round_name: str) -> None:
    """Every pod of a round is gone; what scheduled them has nothing left to do."""
    selector = f"{ROUND_LABEL}={round_name}"
    found, _ = await client.list("pods", selector)

    def one(name: str, uid: str) -> Callable[[], Awaitable[None]]:
        async def delete() -> None:
            try:
                await client.delete_pod(TENANT, name, uid, 0)
            except ApiError as error:
                if error.status != 404:
                    raise

        return delete

    await pipelined([one(pod["metadata"]["name"], pod["metadata"]["uid"]) for pod in found], 16)
    async with asyncio.timeout(GONE_SECONDS):
        while (await client.list("pods", selector))[0]:
            await asyncio.sleep(0.5)
    await asyncio.sleep(3.0)


@asynccontextmanager
async def _client(plane: ControlPlane) -> AsyncIterator[HttpCluster]:
    client = plane.cluster(in_flight=64)
    try:
        yield client
    finally:
        await client.close()


def _medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for one in rounds for name in one)
    found = {name: median(one.get(name, 0.0) for one in rounds) for name in names}
    ranked = dict(sorted(((n, v) for n, v in found.items() if v >= 0.01), key=lambda item: -item[1]))
    return ranked | {"all": sum(ranked.values())}


def _print(rows: list[ReportRow], output: str) -> None:
    if output == "json":
        print(json.dumps({"rows": [row.as_json() for row in rows]}, indent=2))
        return
    for row in rows:
        print("\n".join(row.lines()), flush=True)


def _quiet(_: str) -> None:
    """Its servers come up within seconds."""


if __name__ == "__main__":
    uvloop.run(main())
