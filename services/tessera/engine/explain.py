"""
Why a job stands where it stands, recomputed from the fold with the functions that decide. Pure.

The ledger records a reason when its code changes; the numbers here are those of the state, so they are never stale.
"""

from dataclasses import dataclass

from tessera.domain.entities import EndedJob, Job
from tessera.domain.phases import Phase
from tessera.domain.queues import QuotaBook
from tessera.domain.state import State
from tessera.engine.gangs import inadmissible, place_gang
from tessera.engine.ordering import line as in_line
from tessera.engine.plans import nodes_for, quota_reason
from tessera_schemas.orders import HEADS_MAX
from tessera_schemas.reasons import Code, Reason

HOLDERS_MAX = 3


@dataclass(frozen=True, slots=True)
class Explanation:
    """`position` counts from 1 among the jobs in line for the pool; 0 when the job is not in line."""

    job: Job | EndedJob
    as_of: int
    reason: Reason | None = None
    position: int = 0
    in_line: int = 0
    notes: tuple[str, ...] = ()

    def sentence(self) -> str:
        """The answer in one line."""
        job = self.job
        why = f": {self.reason.sentence()}" if self.reason is not None else ""
        return f"{job.name} ({job.job_id}) {job.phase.value}{why}"


def explain(state: State, job_id: str, now_ms: int) -> Explanation | None:
    """None when the state knows no such job: it was never taken in, or it is forgotten."""
    job = state.jobs.get(job_id)
    if job is None:
        ended = state.ended.get(job_id)
        return None if ended is None else Explanation(ended, state.n, ended.reason)
    if job.phase is not Phase.QUEUED:
        return Explanation(job, state.n, job.reason, notes=_on_its_way(state, job))
    return _queued(state, job, max(state.ts, now_ms))


def _queued(state: State, job: Job, now: int) -> Explanation:
    pool = state.tree.pool(job.queue)
    if pool is None:
        return Explanation(job, state.n, Reason(code=Code.NO_SUCH_QUEUE, field="queue", detail=job.queue))
    line = list(in_line(state, pool, now))
    position = line.index(job.job_id) + 1 if job.job_id in line else 0
    reason, notes = _why(state, job, pool, position, now)
    return Explanation(job, state.n, reason, position, len(line), notes)


def _why(state: State, job: Job, pool: str, position: int, now: int) -> tuple[Reason, tuple[str, ...]]:
    """The first of: back-off, quota, room, turn; with what stands behind it."""
    if job.not_before > now:
        seconds = (job.not_before - now + 999) // 1000
        detail = f"after: {job.reason.sentence()}" if job.reason is not None else ""
        return Reason(code=Code.BACKOFF, numbers={"seconds_left": seconds}, detail=detail[:1024]), ()
    if job.held:
        return Reason(code=Code.ON_HOLD), ()
    stopped = state.tree.stopped(job.queue)
    if stopped is not None:
        return Reason(code=Code.QUEUE_STOPPED, field=f"queues.{stopped}"), ()
    flavors = state.tree.flavors_for(job.queue, job.amount)
    book = state.quota_book(besides=job.job_id)
    overs = [book.over(job.queue, flavor, job.amount) for flavor in flavors]
    if overs[0] is not None and all(overs):
        alone = ("It asks for more than the whole quota: it never starts until the quota is raised.",)
        never_fits = all(QuotaBook(state.tree, {}).over(job.queue, flavor, job.amount) for flavor in flavors)
        return quota_reason(overs[0]), (alone if never_fits else _holders(state, queue=job.queue))
    flavor = next(f for f, over in zip(flavors, overs, strict=True) if over is None)
    nodes = {node.name: node for node in nodes_for(state, pool, flavor)}
    verdict = place_gang(job.roles, nodes)
    if isinstance(verdict, Reason):
        never = inadmissible(job.roles, nodes.values())
        hopeless = () if never is None else (f"Even empty, the pool could not hold it: {never.sentence()}",)
        return verdict, hopeless or _holders(state, pool=pool)
    numbers = {"position": position}
    beyond = f"only the first {HEADS_MAX} are looked at" if position > HEADS_MAX else "it fits and starts at its turn"
    return Reason(code=Code.WAITING_FOR_TURN, numbers=numbers, detail=beyond), ()


def _holders(state: State, queue: str = "", pool: str = "") -> tuple[str, ...]:
    """The runs that hold most GPUs where the job waits, oldest first among equals."""
    runs = [
        run
        for run in state.runs.values()
        if run.amount.gpu_milli and (run.queue == queue or (pool and state.tree.pool(run.queue) == pool))
    ]
    runs.sort(key=lambda run: (-run.amount.gpu_milli, run.allocated_ts, run.run_id))
    held = [f"{run.amount.gpu_milli / 1000:g} GPUs are held by {run.run_id} (queue {run.queue})" for run in runs]
    more = [f"and {len(held) - HOLDERS_MAX} more runs"] if len(held) > HOLDERS_MAX else []
    return tuple(held[:HOLDERS_MAX] + more)


def _on_its_way(state: State, job: Job) -> tuple[str, ...]:
    run = state.runs.get(job.run_id)
    if run is None:
        return ()
    nodes = sorted({placement.node for placement in run.placements})
    where = ", ".join(nodes[:4]) + (f" and {len(nodes) - 4} more" if len(nodes) > 4 else "")
    return (f"Attempt {job.attempt} holds {len(run.placements)} places on {where}.",)
