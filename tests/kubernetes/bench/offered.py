"""How long a pod waits for its node while pods come at a steady pace, far below what can be done at most."""

import asyncio
from statistics import median

from tessera.kernel.kubernetes.cluster import HttpCluster
from tessera.lab.bench.report import ReportRow, percentile
from tests.kubernetes.bench.creating import ROUND_LABEL, Bound, one_gpu_pod
from tests.kubernetes.bench.staging import TENANT

PER_SECOND, SECONDS = 100, 15


async def waits(client: HttpCluster, round_name: str, scheduler: str) -> list[float]:
    """Seconds from the API server's answer to the create until the pod is seen bound, of each pod."""
    loop = asyncio.get_running_loop()
    created: dict[str, float] = {}
    began, pods = loop.time(), PER_SECOND * SECONDS

    async def create(number: int) -> None:
        await asyncio.sleep(began + number / PER_SECOND - loop.time())
        made = await client.create_pod(TENANT, one_gpu_pod(f"{round_name}-{number}", round_name, scheduler))
        created[made["metadata"]["uid"]] = loop.time()

    async with Bound(client, f"{ROUND_LABEL}={round_name}") as bound:
        await asyncio.gather(*(create(number) for number in range(pods)))
        await bound.until(pods)
        return [max(0.0, bound.at[uid] - at) for uid, at in created.items()]


def row(ours: list[list[float]], peers: list[list[float]]) -> ReportRow:
    """The waits of each round, ours and kube-scheduler's."""
    what = f"create to bound at {PER_SECOND} pods/s offered, p99"
    (p50, p50_of_peer), (p99, p99_of_peer) = (
        [tuple(percentile(one, share) for one in rounds) for rounds in (ours, peers)] for share in (50, 99)
    )
    notes = {"p50, s": median(p50), "kube-scheduler's p50, s": median(p50_of_peer)}
    return ReportRow(what, "s", "<= 2", p99, "kube-scheduler's p99, s", p99_of_peer, notes)
