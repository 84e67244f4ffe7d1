"""
Take over pods that Tessera's run did not make: those that work for a job and for no run of this ledger, as after a
restore to an older end, and users' pods of a waiting job that come and go.

Of the former the job was sent again under its key, and its pods never stopped: they go on as its next run, where they
stand. Until then they count as others', so that nothing else was placed on what they take.
"""

from collections.abc import Sequence

from tessera.domain.devices.resources import WHOLE_GPU, Need, Node
from tessera.domain.entities import Job
from tessera.domain.state import State
from tessera.domain.work.phases import Phase
from tessera.engine.queueing.readiness import explain_missing_pods
from tessera.scheduler.decide.draft import Draft, give_up_earmark, judges, record_waiting
from tessera.scheduler.decide.jobs import record_closed
from tessera.scheduler.decide.starts import allocate
from tessera_schemas.base import run_id
from tessera_schemas.cluster.devices import NAMES_NO_CARDS, OF_REPLICAS
from tessera_schemas.facts import PodsBack, PodsFound, PodsGone
from tessera_schemas.ledger import BackInLine, OutOfLine, Permitted, PodsTakenOver
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.placement import Placement


@judges(PodsFound)
def on_pods_found(draft: Draft, index: int, fact: PodsFound) -> None:
    """Allocates and permits a waiting job's pods where they stand, if its quota has room; else the job waits on."""
    state, job = draft.state, draft.state.jobs.get(fact.job_id)
    if job is None or not _may_go_on(state, job, fact):
        return
    placements, flavor = _placed(state, job, fact.nodes), _flavor(state, job, fact.nodes)
    if placements is None or flavor is None:
        return
    # The job stands where its pods are. What was kept for it elsewhere is free again.
    give_up_earmark(draft, job.job_id)
    # In this order: others' use becomes less by these pods, then the allocation takes the same room. The other way
    # round the node would hold both for one record, and be overfull.
    draft.add(PodsTakenOver(kind="pods_taken_over", fact=index, job_id=job.job_id))
    allocate(draft, job, flavor, placements)
    draft.add(Permitted(kind="permitted", run_id=run_id(job.job_id, job.attempt + 1), uids=fact.uids))


def _may_go_on(state: State, job: Job, fact: PodsFound) -> bool:
    """Back-off is for new tries: what works already waits for none."""
    waits = job.phase is Phase.QUEUED and job.adopted is None and not job.kept_out
    # A part of a gang is not taken over: a gang is all or nothing, and nobody could say what became of the rest.
    whole = len(fact.nodes) == len(fact.uids) == job.pods
    return waits and whole and state.tree.takes(job) and state.tree.stopped(job.queue) is None


def _flavor(state: State, job: Job, names: Sequence[str]) -> str | None:
    """The flavor of all these nodes with quota for the job; None without one."""
    tree, nodes, book = state.tree, state.nodes.found(names), state.quota_book(besides=job.job_id)
    for flavor in tree.flavors_for(job.queue, job.amount):
        fits = all(node.pool == tree.pool(job.queue) and tree.is_on(node, flavor) for node in nodes)
        if fits and book.lacks(job, flavor) is None:
            return flavor
    return None


def _placed(state: State, job: Job, names: Sequence[str]) -> tuple[Placement, ...] | None:
    """
    Placements where the pods stand, with slots of GPUs that are free once others' use is less by theirs; else None.

    Nobody says which cards a pod has where slots are interchangeable; where they are not, no pod is taken over.
    """
    nodes = {node.name: node for node in state.nodes.found(names)}
    if len(nodes) != len(set(names)):
        return None
    for need, name in zip(job.gang.needs, names, strict=True):
        # All of others' use is given back before the first pod takes slots: two pods of one node would else be in each
        # other's way.
        nodes[name] = nodes[name].taking_over(need)
    placements = list[Placement]()
    roles = (role.name for role in job.roles for _ in range(role.replicas))
    for rank, (role, need, name) in enumerate(zip(roles, job.gang.needs, names, strict=True)):
        slots = _free_slots(nodes[name], need)
        if slots is None:
            return None
        milli = WHOLE_GPU if need.gpus else 0
        placement = Placement(rank=rank, role=role, node=name, devices=slots, gpu_milli=milli)
        placements.append(placement)
        nodes[name] = nodes[name].taking(need, placement, 1)
    # A restored ledger may have placed others there meanwhile. Then the pods stay others' use, and the job waits for
    # them to end.
    return None if any(node.overfull for node in nodes.values()) else tuple(placements)


def _free_slots(node: Node, need: Need) -> tuple[int, ...] | None:
    certain = node.device_profile not in NAMES_NO_CARDS or node.device_profile in OF_REPLICAS
    if need.gpu_milli or need.mig_profile or (need.gpus and certain):
        return None
    free = tuple(slot for slot, left in enumerate(node.gpu_free) if left == WHOLE_GPU)[: need.gpus]
    return free if len(free) == need.gpus else None


@judges(PodsBack)
def on_pods_back(draft: Draft, index: int, fact: PodsBack) -> None:
    """The pods of an adopted job are there again, are others, or are of an owner that survives another eviction."""
    job = draft.state.jobs.get(fact.job_id)
    if job is None or job.adopted is None or job.phase is not Phase.QUEUED:
        return
    news = None if fact.preemptible == job.preemptible else fact.preemptible
    budget, service = job.adopted.news_of(fact.budget, fact.service)
    # The binder repeats what it sees: a record only where something is another.
    if not job.away and news is None and budget is None and service is None and fact.uids == job.adopted.uids:
        return
    said = {"preemptible": news, "uids": fact.uids, "budget": budget, "service": service}
    draft.add(BackInLine.model_validate({"kind": "back_in_line", "job_id": job.job_id} | said))
    if job.away and not job.held:
        record_waiting(draft, job.job_id, Reason(code=Code.WAITING_FOR_TURN))
        record_closed(draft, job.job_id, job.queue)


@judges(PodsGone)
def on_pods_gone(draft: Draft, index: int, fact: PodsGone) -> None:
    """No devices wait for pods that are not there; the job keeps its place."""
    job = draft.state.jobs.get(fact.job_id)
    if job is None or job.adopted is None or job.away or job.phase is not Phase.QUEUED:
        return
    draft.add(OutOfLine(kind="out_of_line", job_id=job.job_id))
    if not job.held:
        record_waiting(draft, job.job_id, explain_missing_pods(job))
