"""How long a pod waits for its node while pods come at a steady pace, far below what can be done at most."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from tessera.kernel.kubernetes.cluster import HttpCluster
from tessera_lab.bench.report import ReportRow, percentile
from tests.kubernetes.bench.creating import ROUND_LABEL, Bound, one_gpu_pod
from tests.kubernetes.bench.staging import TENANT

PER_SECOND, SECONDS = 100, 15


@dataclass(frozen=True, slots=True)
class Paced:
    """
    Of each pod of a round, seconds from the API server's answer to its create until it is seen bound (`waits`), and
    from when it was due until that answer (`creates`): whoever keeps the API server busy delays these instead.
    """

    waits: list[float]
    creates: list[float]


async def paced(client: HttpCluster, round_name: str, scheduler: str) -> Paced:
    """One round."""
    loop = asyncio.get_running_loop()
    created: dict[str, float] = {}
    creates: list[float] = []
    began, pods = loop.time(), PER_SECOND * SECONDS

    async def create(number: int) -> None:
        due = began + number / PER_SECOND
        await asyncio.sleep(due - loop.time())
        made = await client.create_pod(TENANT, one_gpu_pod(f"{round_name}-{number}", round_name, scheduler))
        created[made["metadata"]["uid"]] = loop.time()
        creates.append(loop.time() - due)

    async with Bound(client, f"{ROUND_LABEL}={round_name}") as bound:
        await asyncio.gather(*(create(number) for number in range(pods)))
        await bound.until(pods)
        return Paced([max(0.0, bound.at[uid] - at) for uid, at in created.items()], creates)


def row(ours: Sequence[Paced], peers: Sequence[Paced]) -> ReportRow:
    """The waits of each round, ours and kube-scheduler's."""
    what = f"create to bound at {PER_SECOND} pods/s offered, p99"
    (p50, p50_of_peer), (p99, p99_of_peer), (creates, creates_of_peer) = (
        [tuple(percentile(getattr(one, part), share) for one in rounds) for rounds in (ours, peers)]
        for part, share in (("waits", 50), ("waits", 99), ("creates", 99))
    )
    notes = {"p50, s": median(p50), "kube-scheduler's p50, s": median(p50_of_peer)}
    notes |= {"p99 of the creates, s": median(creates), "beside kube-scheduler, s": median(creates_of_peer)}
    return ReportRow(what, "s", "<= 2", p99, "kube-scheduler's p99, s", p99_of_peer, notes)
