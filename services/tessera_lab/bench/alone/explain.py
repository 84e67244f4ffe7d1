"""Time of an explanation on a full cluster, all tries included; the floor is one placement of the gang."""

from collections.abc import Callable

from tessera.domain.entities import Job
from tessera.engine.explain.explanation import explain
from tessera.engine.placement.capacity import nodes_for
from tessera.engine.placement.gangs import place_gang
from tessera.kernel.clock import SystemClock
from tessera_lab.bench.alone.ledgers import POOL, SHARD, BareCommitter, admitted, started
from tessera_lab.bench.report import ReportRow, percentile
from tessera_lab.bench.together.platform import GPUS_PER_NODE, TENANT, job
from tessera_schemas.base import job_id
from tessera_schemas.config import ConfigBody, Limits, Policy, Queue, Tenant
from tessera_schemas.facts import ConfigProposed
from tessera_schemas.job import JobSpec

GPUS = (1, 1, 1, 1, 1, 2, 1, 1, 4, 1, 1, 1, 2, 1, 1, 1, 8, 1, 1, 1)  # 1.6 on the average: 5,000 runs fill 1,000 nodes
GANGS = ((8, 1), (8, 2), (8, 4), (4, 3), (8, 8), (2, 16), (8, 16), (8, 64), (1, 200), (8, 200))
"""GPUs per pod and pods of the jobs that are explained, each in two priority classes."""

AT_ONCE = 200


def busy(nodes: int, runs: int) -> BareCommitter:
    """Nodes filled by runs of a low class until as many run as there are to be, or nothing fits any more."""
    books = BareCommitter(nodes)
    policy = Policy(preset="fair", min_runtime_seconds=0)
    tenants = (Tenant(name=TENANT, limits=Limits(jobs=None)),)
    body = ConfigBody(tenants=tenants, queues=(Queue(name="load"),), policy=policy)
    books.commit([ConfigProposed(kind="config_proposed", expected_version=1, body=body)])
    for first in range(0, runs, AT_ONCE):
        keys = [f"r{i}" for i in range(first, min(first + AT_ONCE, runs))]
        books.commit([admitted(key, _spec(GPUS[i % len(GPUS)], 1, "low")) for i, key in enumerate(keys)])
        started(books, books.commit(line=True))
    return books


async def explaining(nodes: int, runs: int, rounds: int) -> list[ReportRow]:
    """p95 over jobs from one pod to 200, each waiting at the head of its line."""
    clock, books = SystemClock(), busy(nodes, runs)
    state = books.shard.state
    specs = [_spec(gpus, pods, name) for gpus, pods in GANGS for name in ("low", "urgent")]
    keys = [f"w{i}" for i in range(len(specs))]
    books.commit([admitted(key, spec) for key, spec in zip(keys, specs, strict=True)])
    books.commit(line=True)
    waiting = [found for key in keys if (found := state.jobs.get(job_id(SHARD, TENANT, key))) and not found.attempt]

    def ms(work: Callable[[], object]) -> float:
        began = clock.monotonic()
        work()
        return (clock.monotonic() - began) * 1000

    def one_placement(one: Job) -> float:
        free = {node.name: node for node in nodes_for(state, POOL, "")}
        return ms(lambda: place_gang(one.roles, free))

    def one_explanation(one: Job) -> float:
        return ms(lambda: explain(state, one.job_id, state.ts))

    pairs = [
        (percentile([one_explanation(one) for one in waiting], 95), percentile(list(map(one_placement, waiting)), 95))
        for _ in range(rounds)
    ]
    measured, floors = zip(*pairs, strict=True)
    tried = [told.tried for one in waiting if (told := explain(state, one.job_id, state.ts)) is not None]
    notes = {"nodes": len(state.nodes), "runs": len(state.runs), "jobs explained": len(waiting), "tries": max(tried)}
    notes["GPUs in use"] = nodes * GPUS_PER_NODE - sum(sum(node.gpu_free) for node in state.nodes.values()) // 1000
    floor = "placing the same gang once, p95"
    return [ReportRow("explain, p95", "ms", "<= 500 ms", measured, floor, floors, notes)]


def _spec(gpus: int, pods: int, priority_class: str) -> JobSpec:
    return job(1.0, gpus=gpus, replicas=pods).model_copy(update={"priority_class": priority_class})
