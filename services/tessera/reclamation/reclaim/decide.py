"""Plans for a waiting job: lent quota taken back from other queues, else runs relocated out of its way. Pure."""

from tessera.domain.devices.resources import NOTHING
from tessera.domain.entities import Job
from tessera.domain.state import State
from tessera.engine.defragmentation.search import defragmentation
from tessera.engine.preemption.plans import Plan, plan
from tessera.engine.preemption.rules import not_allowed
from tessera.engine.queueing.ordering import stuck_heads
from tessera_schemas.reasons import Code, Reason


def reclamation_plan(state: State, job: Job, ts: int) -> Plan | Reason:
    """Reclaim where the job has a right to evict; else relocate runs, where that gains enough."""
    found = reclaim_plan(state, job, ts)
    if isinstance(found, Plan) or not state.tree.policy.defragment:
        return found
    moves = defragmentation(state, job, ts)
    return moves if isinstance(moves, Plan) else found


def reclamation_heads(state: State, ts: int, heads: int) -> list[Job]:
    """The jobs to plan for, at most `heads` of each pool; nobody, and no look at the lines, where no plan can exist."""
    return stuck_heads(state, ts, heads) if _may_give_back(state) else []


def _may_give_back(state: State) -> bool:
    """Whether runs may move, or a queue beside one in whose line somebody stands holds anything."""
    # Necessary and not enough, as of preemption's heads: a queue that is alone in its tree has nobody to reclaim from.
    tree = state.tree
    if tree.policy.defragment or tree.policy.kept_beside_gpus_percent or tree.loose:
        return len(state.runs) > 0
    holders = dict[str, set[str]]()
    for queue in tree.queues:
        if state.held_by_queue(queue) != NOTHING:
            holders.setdefault(tree.roots[queue], set()).add(queue)
    return any(
        line and tree.queues[queue].reclaim != "never" and holders.get(tree.roots[queue], {queue}) - {queue}
        for queue, line in state.index.waiting.items()
    )


def reclaim_plan(state: State, job: Job, ts: int) -> Plan | Reason:
    """Runs of other queues to evict for `job`; what its own queue alone could give is preemption's to propose."""
    against = not_allowed(state, job, "reclaim")
    if against is not None:
        return against
    if not _others_hold_something(state, job):
        return Reason(code=Code.NOT_ALLOWED_BY_PRESET, field=f"queues.{job.queue}", detail="nobody to take back from")
    found = plan(state, job, ts, "reclaim")
    if isinstance(found, Plan) and not found.takes_back:
        return Reason(code=Code.NOT_ALLOWED_BY_PRESET, field=f"queues.{job.queue}", detail="nothing lent is in its way")
    return found


def _others_hold_something(state: State, job: Job) -> bool:
    """Whether another queue beside it, or beside its GPUs, holds anything: else there is no need to search."""
    tree = state.tree
    kept = tree.policy.kept_beside_gpus_percent > 0 and job.amount.gpu_milli > 0
    return any(
        (tree.is_beside(queue, job.queue) or (kept and tree.pool(queue) == tree.pool(job.queue)))
        and queue != job.queue
        and state.held_by_queue(queue) != NOTHING
        for queue in tree.queues
    )
