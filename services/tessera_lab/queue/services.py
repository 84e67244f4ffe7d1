"""
The queueing replay through all services: each job a gang that comes at its time and runs for its duration.

A policy here is a configuration of the platform (`configured`), as in the replay through the live engine alone. What
differs is time: between two runs in one place lie what services and kubelets take, and whoever comes meanwhile may be
first. Nothing is learnt before the first job, and of jobs of one second the shorter goes first under every policy.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tessera.kernel.errors import StartupError
from tessera.testkit.end_to_end.following import Arrival, ReportArrivals, follow
from tessera.testkit.end_to_end.services import TraceServices, run_end_to_end
from tessera_lab.queue.configured import CPU_MILLI_PER_GPU, TENANT, THROUGH, by_arrival, config_of, spec_of
from tessera_lab.traces.philly import TraceJob
from tessera_local.cluster.machines.nodes import NodeRow

GPUS_PER_POD_MAX = 64
WITHOUT = {"sjf-oracle": "it knows durations, which nobody tells the platform"}


@dataclass(frozen=True, slots=True)
class QueueThroughServices:
    """Seconds waited, in the order of the jobs; and how much of the ledger was decided again."""

    waits: list[int]
    messages: int
    recomputed: int


def through_services(
    jobs: Sequence[TraceJob], sizes: Sequence[int], policy: str, report_progress: ReportArrivals = lambda arrived: None
) -> QueueThroughServices:
    """`sizes` are the nodes' GPUs. Raises StartupError for a policy the platform does not have, and Undecided."""
    refuse(policy, sizes)
    begin_s = min(one.submit_s for one in jobs)
    arrivals = {
        one.line: Arrival((one.submit_s - begin_s) * 1000, TENANT, str(one.line), spec)
        for one in sorted(jobs, key=lambda one: (*by_arrival(one), one.line))
        for spec in [spec_of(one, sizes[0], policy)]
    }

    async def run(services: TraceServices) -> QueueThroughServices:
        await services.start(_nodes(sizes), config_of(policy))
        timeline = await follow(services, list(arrivals.values()), report_progress)
        replay = await services.close()
        mine = [arrivals[one.line] for one in jobs]
        waits = [_seconds(timeline.started[one.job_id] - one.at_ms) for one in mine]
        return QueueThroughServices(waits, replay.messages, replay.recomputed)

    return run_end_to_end(1, run)


def refuse(policy: str, sizes: Sequence[int]) -> None:
    if policy not in THROUGH:
        why = f"; {WITHOUT[policy]}" if policy in WITHOUT else ""
        raise StartupError(f"--policy: through the services there are {', '.join(THROUGH)}, not {policy}{why}")
    if max(sizes) > GPUS_PER_POD_MAX:
        raise StartupError(f"--node-gpus: a pod has at most {GPUS_PER_POD_MAX} GPUs, not {max(sizes)}")


def _nodes(sizes: Sequence[int]) -> list[NodeRow]:
    """Nodes in the order of their numbers, with exactly the CPU and memory that their GPUs' jobs ask for."""
    return [NodeRow.sized(f"node-{at:05d}", CPU_MILLI_PER_GPU * gpus, gpus, gpus) for at, gpus in enumerate(sizes)]


def _seconds(milliseconds: int) -> int:
    return (milliseconds + 500) // 1000
