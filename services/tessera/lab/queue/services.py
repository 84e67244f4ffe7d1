"""
The queueing replay through all services: each job a gang that comes at its time and runs for its duration.

A policy here is a configuration of the platform: `fifo` is a strict queue, `skip` lets everybody start who fits,
`reserve` keeps room for the first that finds none (`backfill: reserve`), and `expected` orders by expected GPU time and
keeps room for those that have waited long (`order: expected`). Unlike in the replay through the engine alone
nothing is learnt before the first job, the rest of a gang above whole nodes goes wherever it fits, and of jobs of one
second the shorter goes first under every policy. All virtual clusters are one tenant: the policies go by age, and
between tenants the platform would share.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tessera.engine.queueing.expected_order import ExpectedOrderPolicy
from tessera.kernel.errors import StartupError
from tessera.lab.queue.policies import by_arrival
from tessera.lab.traces.philly import TraceJob
from tessera.local.cluster.nodes import NodeRow
from tessera.testkit.end_to_end.following import Arrival, Tell, follow
from tessera.testkit.end_to_end.services import MIB, TraceServices, job, run_end_to_end
from tessera_schemas.config import ConfigBody, Limits, Policy, Queue, Tenant
from tessera_schemas.job import Resources

QUEUE, TENANT = "default", "trace"
GPUS_PER_POD_MAX = 64
CPU_MILLI_PER_GPU = 1000
AS_THE_ENGINE = ExpectedOrderPolicy()
"""The lab's order: its patience, and for how many due jobs room is kept."""
POLICIES: Mapping[str, tuple[dict[str, str], Policy]] = {
    "fifo": ({"queueing_strategy": "strict_fifo"}, Policy(placement="bestfit")),
    "skip": ({}, Policy(placement="bestfit")),
    "reserve": ({}, Policy(placement="bestfit", backfill="reserve")),
    "expected": (
        {"order": "expected"},
        Policy(
            placement="bestfit",
            order_patience_seconds=AS_THE_ENGINE.patience_ms // 1000,
            backfill="reserve",
            backfill_patience_seconds=AS_THE_ENGINE.patience_ms // 1000,
            backfill_closing_seconds=AS_THE_ENGINE.closing_ms // 1000,
            backfill_depth=AS_THE_ENGINE.depth,
        ),
    ),
}
WITHOUT = {"sjf-oracle": "it knows durations, which nobody tells the platform"}


@dataclass(frozen=True, slots=True)
class QueueThroughServices:
    """Seconds waited, in the order of the jobs; and how much of the ledger was decided again."""

    waits: list[int]
    messages: int
    recomputed: int


def through_services(
    jobs: Sequence[TraceJob], sizes: Sequence[int], policy: str, tell: Tell = lambda arrived: None
) -> QueueThroughServices:
    """`sizes` are the nodes' GPUs. Raises StartupError for a policy the platform does not have, and Undecided."""
    refuse(policy, sizes)
    begin_s = min(one.submit_s for one in jobs)
    arrivals = {
        one.line: Arrival((one.submit_s - begin_s) * 1000, TENANT, str(one.line), spec)
        for one in sorted(jobs, key=lambda one: (*by_arrival(one), one.line))
        for spec in [job("job", QUEUE, pods_of(one.gpus, sizes[0]), one.duration_s)]
    }

    async def run(services: TraceServices) -> QueueThroughServices:
        await services.start(_nodes(sizes), _config(policy))
        timeline = await follow(services, list(arrivals.values()), tell)
        replay = await services.close()
        mine = [arrivals[one.line] for one in jobs]
        waits = [_seconds(timeline.started[one.job_id] - one.at_ms) for one in mine]
        return QueueThroughServices(waits, replay.messages, replay.recomputed)

    return run_end_to_end(1, run)


def refuse(policy: str, sizes: Sequence[int]) -> None:
    if policy not in POLICIES:
        why = f"; {WITHOUT[policy]}" if policy in WITHOUT else ""
        raise StartupError(f"--policy: through the services there are {', '.join(POLICIES)}, not {policy}{why}")
    if max(sizes) > GPUS_PER_POD_MAX:
        raise StartupError(f"--node-gpus: a pod has at most {GPUS_PER_POD_MAX} GPUs, not {max(sizes)}")


def pods_of(gpus: int, node_gpus: int) -> list[tuple[int, Resources, tuple[str, ...]]]:
    """One pod up to a node's GPUs; else one per whole node, and one for the rest."""
    whole, rest = divmod(gpus, node_gpus)
    return [(many, _resources(each), ()) for many, each in ((whole, node_gpus), (1, rest)) if many and each]


def _resources(gpus: int) -> Resources:
    return Resources(cpu_milli=CPU_MILLI_PER_GPU * gpus, memory_bytes=MIB * gpus, gpus=gpus)


def _nodes(sizes: Sequence[int]) -> list[NodeRow]:
    """In the order of their numbers, with exactly the CPU and memory that their GPUs' jobs ask for."""
    return [NodeRow.sized(f"node-{at:05d}", CPU_MILLI_PER_GPU * gpus, gpus, gpus) for at, gpus in enumerate(sizes)]


def _config(policy: str) -> ConfigBody:
    order, rules = POLICIES[policy]
    queue = Queue.model_validate({"name": QUEUE, **order})
    unlimited = Tenant(name=TENANT, limits=Limits(jobs=None, submits_per_second=None, bytes_per_second=None))
    return ConfigBody(tenants=(unlimited,), queues=(queue,), policy=rules)


def _seconds(milliseconds: int) -> int:
    return (milliseconds + 500) // 1000
