"""
A trace through all services in one process on virtual time: submitted, admitted, ordered, placed, bound, running.

What `pack` replays through the engine alone, this replays through the platform: the same arrivals in the same order,
each a job of one pod that goes on, and each decided before the next is sent. What finds no room is cancelled, as the
protocol drops it. In the end the ledger is replayed and recomputed.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from tessera.domain.state import State
from tessera.domain.work.phases import Phase
from tessera.reclamation.prices.decide import FROM_ARRIVALS
from tessera.testkit.end_to_end.services import FOR_EVER_SECONDS, TraceServices, run_end_to_end
from tessera.testkit.sim.services import SHARD
from tessera_lab.pack.learning import DEFAULT
from tessera_lab.pack.protocol import arrivals, node_order
from tessera_lab.traces.alibaba import Trace, TracePod
from tessera_lab.traces.as_jobs import TENANT, config, named, spec
from tessera_schemas.base import job_id
from tessera_schemas.commands import CancelJob, SubmitJob

ReportProgress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class PackThroughServices:
    """
    One run. `allocated_percent` is of the cluster's GPUs, when the last has arrived. `recomputed` of `messages` ledger
    messages were decided again by the replay, with the same result. `priced` is the settlement of the mix whose prices
    were in force in the end.
    """

    trace: str
    policy: str
    seed: int
    arrivals: int
    dropped: int
    allocated_percent: float
    messages: int
    recomputed: int
    priced: int


def through_services(
    trace: Trace,
    policy: str,
    seed: int,
    most: int | None = None,
    report_progress: ReportProgress = lambda done, of: None,
) -> PackThroughServices:
    """`most` ends it after so many arrivals. Raises Failure for a policy that the platform does not have, Undecided."""
    body, places = config(policy), node_order(len(trace.nodes), seed).tolist()
    order = arrivals([pod.total_gpu_milli for pod in trace.pods], seed, trace.gpu_milli)[:most].tolist()

    async def run(services: TraceServices) -> PackThroughServices:
        await services.start([named(node, place) for node, place in zip(trace.nodes, places, strict=True)], body)
        dropped = 0
        for number, at in enumerate(order):
            dropped += not await _placed(services, str(number), trace.pods[at])
            if policy == DEFAULT and trace.gpu_milli:
                await services.until(_is_priced)
            report_progress(number + 1, len(order))
        state = services.state()
        held = sum(run.amount.gpu_milli for run in state.runs.values())
        replay = await services.close()
        return PackThroughServices(
            trace=trace.name,
            policy=policy,
            seed=seed,
            arrivals=len(order),
            dropped=dropped,
            allocated_percent=100 * held / trace.gpu_milli,
            messages=replay.messages,
            recomputed=replay.recomputed,
            priced=max((mix.priced for mix in state.mixes.values()), default=0),
        )

    return run_end_to_end(seed, run)


async def _placed(services: TraceServices, key: str, pod: TracePod) -> bool:
    """Submit one, wait for what becomes of it, and take it back if it found no room."""
    job = job_id(SHARD, TENANT, key)
    await services.send(TENANT, SubmitJob(kind="submit_job", v=1, key=key, spec=spec(pod, FOR_EVER_SECONDS)))

    def decided(state: State) -> bool:
        found = state.jobs.get(job)
        return found is not None and (found.phase is not Phase.QUEUED or found.reason is not None)

    found = (await services.until(decided)).jobs.get(job)
    if found is not None and found.phase is not Phase.QUEUED:
        return True
    await services.send(TENANT, CancelJob(kind="cancel_job", v=1, job_id=job))
    await services.until(lambda state: state.jobs.get(job) is None)
    return False


def _is_priced(state: State) -> bool:
    """Virtual time hardly passes between two arrivals: as in the lab, the next one comes when all is learnt."""
    return all(mix.priced == mix.settled or mix.arrivals < FROM_ARRIVALS for mix in state.mixes.values())


def lines_of(runs: Sequence[PackThroughServices], separator: str = "") -> list[str]:
    """A table, or with a separator a file of such values."""
    head = ("trace", "policy", "seed", "arrivals", "dropped", "allocated %", "messages", "recomputed", "priced")
    rows = [
        (*row[:5], f"{run.allocated_percent:.2f}", *row[6:]) for run in runs for row in [tuple(asdict(run).values())]
    ]
    if separator:
        return [separator.join(str(value) for value in row) for row in (head, *rows)]
    return ["".join(f"{value:>12}" for value in row) for row in (head, *rows)]
