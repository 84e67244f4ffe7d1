"""
Two nodes on which a large job finds room in one piece only if a small run moves, and those who answer offers of moves.

A move costs minutes of the GPUs that move, and a simulated world lasts seconds: so the job that waits is of sixty
times the GPUs of the run in its way, and gains as much after six seconds.
"""

from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

from tessera.domain.state import State
from tessera.kernel.ports import Clock
from tessera.testkit.sim.workload import CLASSES, GIB, PIECES_QUEUE, TENANTS, Command, cancel, submit_job
from tessera_local.cluster.machines.nodes import NodeRow, TaintRow
from tessera_schemas.base import job_id
from tessera_schemas.cluster.labels import SIMULATE_PREFIX
from tessera_schemas.commands import AnswerMove, ReportCheckpoint
from tessera_schemas.job import JobSpec, Resources, Role, Template, Toleration
from tessera_schemas.subjects import submit

TAINT, MEMORY = "pieces", 141 * GIB
LARGE, SMALL = 60, 2
"""GPUs of the two nodes."""
BEFORE, IN_THE_WAY, WAITING = "piece-before", "piece-in-the-way", "piece-waiting"
LONG_SECONDS = 35
Fold = Callable[[], State]
Send = Callable[[Command], Awaitable[None]]


def rows_of_pieces() -> list[NodeRow]:
    """The two nodes; no other job bears their taint, and no other node has GPUs of so much memory."""
    sized: dict[str, Any] = {"cpu": "64", "memory": "256Gi", "gpu_model": "A100", "gpu_memory": "141Gi"}
    taints = (TaintRow(key=TAINT, effect="NoSchedule"),)
    return [NodeRow(name=f"piece-{gpus}", gpus=gpus, taints=taints, **sized) for gpus in (LARGE, SMALL)]


async def submit_pieces(seed: int, shard: str, clock: Clock, state: Fold, send: Send) -> None:
    """
    Jobs of which one waits for the GPUs of another, each submitted once those before it run; given up after a while.

    The first has the small node while the second starts, so that this one gets a GPU of the large node. The third
    wants all of that; the first is cancelled then, and now and then the third, while others are asked to move for it.
    """
    random, tenant, begun = Random(f"pieces {seed}"), TENANTS[seed // 4 % 2], clock.monotonic()
    for name, gpus, node in ((BEFORE, SMALL, f"piece-{SMALL}"), (IN_THE_WAY, 1, f"piece-{LARGE}")):
        await send(submit_job(shard, 0.0, tenant, name, _job(name, gpus, LONG_SECONDS)))
        while not _runs_on(state(), job_id(shard, tenant, name), node):
            if clock.monotonic() > begun + LONG_SECONDS / 3:
                await send(cancel(shard, tenant, BEFORE))
                return
            await clock.sleep(0.3)
    await send(submit_job(shard, 0.0, tenant, WAITING, _job(WAITING, LARGE, 1)))
    await send(cancel(shard, tenant, BEFORE))
    if random.random() < 0.3:
        await clock.sleep(random.uniform(LONG_SECONDS / 5, LONG_SECONDS / 2))
        await send(cancel(shard, tenant, WAITING))


def _runs_on(state: State, job: str, node: str) -> bool:
    runs = state.index.runs_on.get(node, ())
    return any(run.job_id == job and run.started_ts > 0 for run in state.runs.found(sorted(runs)))


def _job(name: str, gpus: int, seconds: float) -> JobSpec:
    asked = Resources(cpu_milli=500, memory_bytes=GIB, gpus=gpus, gpu_memory_bytes=MEMORY)
    template = Template(
        image="train:1",
        annotations={SIMULATE_PREFIX + "seconds": f"{seconds:.2f}", SIMULATE_PREFIX + "term-ms": "100"},
    )
    bears = (Toleration(key=TAINT),)
    role = Role(name="worker", replicas=1, resources=asked, tolerations=bears, template=template)
    ends: dict[str, Any] = {"priority_class": CLASSES[-1], "ttl_seconds_after_finished": 2}
    return JobSpec(name=name, queue=PIECES_QUEUE, roles=(role,), **ends)


async def answer_offers(shard: str, random: Random, clock: Clock, state: Fold, send: Send) -> None:
    """Programs that are asked whether they move: each offer gets a word, a checkpoint, two words, or none."""
    answered = set[tuple[str, int]]()
    while True:
        await clock.sleep(0.7)
        now = state()
        for offer in [offer for offer in now.moves.values() if offer.is_open]:
            run = now.runs.get(offer.run_id)
            if run is None or (offer.run_id, offer.offered_ts) in answered:
                continue
            answered.add((offer.run_id, offer.offered_ts))
            job = now.jobs.found((run.job_id,))[0]
            of: dict[str, Any] = {"v": 1, "job_id": run.job_id, "attempt": run.attempt}
            for word in random.choice(((), (True,), (True,), (False,), (False, True), (None,))):
                said: AnswerMove | ReportCheckpoint
                if word is None:
                    said = ReportCheckpoint(kind="report_checkpoint", path="/data/asked", **of)
                else:
                    said = AnswerMove(kind="answer_move", accept=word, **of)
                await send(Command(0.0, submit(shard, job.tenant), said.to_bytes()))
