"""
Pods of one role of a run that get other CPU and memory in place: what the request comes to, and all that is against it.

A resize moves and preempts nothing: what the pods grow by has to be free on their own nodes, and within quota, at once.
Pure.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tessera.domain.devices.resources import Amount
from tessera.domain.entities import Job, Run
from tessera.domain.state import State
from tessera.domain.work.gang import larger, size_of
from tessera.engine.queueing.readiness import quota_reason
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.spec_changes import PodSize, RoleAmounts

FIELDS = ("cpu_milli", "memory_bytes")


@dataclass(frozen=True, slots=True)
class ResizePlan:
    """Size of the pods that a request comes to; None where they have it, or are about to get it."""

    to: RoleAmounts | None


def plan_resize(state: State, job: Job, size: PodSize) -> ResizePlan | list[Reason]:
    """The resize that a request comes to, or all reasons against it."""
    run = state.runs.get(job.run_id)
    if (against := _never(state, job, run)) is not None or run is None:
        return [against or Reason(code=Code.NOT_RUNNING, field="job_id", detail=job.phase.value)]
    named = _named_role(run, size)
    if isinstance(named, Reason):
        return [named]
    # What the job asks for, and not what its run holds: while it is resized, that is the larger of two sizes.
    now = size_of(job.roles, named) or _held(run, named)
    given = {field: amount for field in FIELDS if (amount := getattr(size, field)) is not None}
    to = now.model_copy(update=given)
    # A request that is repeated, as after a lost answer, begins nothing.
    if to == now:
        return ResizePlan(None)
    # Two roles at once would need two sizes to go back to, and one request says which.
    if run.resize is not None and run.resize.to.role != named:
        return [Reason(code=Code.RESIZE_UNDER_WAY, field="role", detail=run.resize.to.role)]
    against_size = [*_beyond_limits(state, job, to), *lacking(state, run, to)]
    return against_size or ResizePlan(to)


def _never(state: State, job: Job, run: Run | None) -> Reason | None:
    """Why no pod of the job may be resized, whatever the size."""
    if job.array is not None:
        return Reason(code=Code.ARRAY_TASKS, field="job_id")
    if run is None or run.stopping or not run.started:
        return Reason(code=Code.NOT_RUNNING, field="job_id", detail=job.phase.value)
    # Who made the pods may make them again, as its template has them.
    if job.adopted is not None:
        detail = f"{job.adopted.owner} makes its pods; resize them in Kubernetes"
        return Reason(code=Code.INVALID_FIELD, field="job_id", detail=detail)
    # Its next start, and a scale-up, would be of the size that all replicas of the service have.
    if job.is_replica:
        detail = f"a replica of {job.service_name}; submit the service with another size"
        return Reason(code=Code.INVALID_FIELD, field="job_id", detail=detail)
    # Where room is kept for it elsewhere, that is for pods of the size that they have.
    if state.earmarks.get(job.job_id) is not None:
        return Reason(code=Code.NOT_RUNNING, field="job_id", detail="it is about to move to other nodes")
    return None


def _named_role(run: Run, size: PodSize) -> str | Reason:
    """The role that a request means."""
    names = [role.name for role in run.roles]
    name = size.role or (names[0] if len(names) == 1 else "")
    role = next((each for each in run.roles if each.name == name), None)
    if role is None:
        detail = f"there are {', '.join(names)}; say one of them"
        return Reason(code=Code.INVALID_FIELD, field="role", detail=detail[:512])
    if role.need.single_numa:
        detail = "its pods are kept within one NUMA zone, and their CPUs and memory with them; submit the job anew"
        return Reason(code=Code.INVALID_FIELD, field="role", detail=detail)
    if all(place.role != name for place in run.places):
        return Reason(code=Code.NOT_RUNNING, field="role", detail="no pod of the role runs any more")
    return name


def _held(run: Run, role: str) -> RoleAmounts:
    """Size that each pod of the role holds: of the present one and the one that it is to have, the larger."""
    held = size_of(run.roles, role)
    if held is None:
        raise KeyError(role)
    return held


def _beyond_limits(state: State, job: Job, to: RoleAmounts) -> Iterator[Reason]:
    """Reasons by what the tenant's limits say of each pod."""
    # Else a resize would be a way around what pods may ask for when they are submitted.
    limits = state.tree.limits_of(job.tenant)
    for field in FIELDS:
        asked, low, high = (getattr(each, field) for each in (to, limits.pod_min, limits.pod_max))
        is_below, is_above = low is not None and asked < low, high is not None and asked > high
        if is_below or is_above:
            which, bound = ("pod_min", low) if is_below else ("pod_max", high)
            numbers, detail = {field: asked, f"{which}_{field}": bound}, f"limits.{which} of the tenant"
            yield Reason(code=Code.EXCEEDS_JOB_LIMIT, field=field, numbers=numbers, detail=detail)


def lacking(state: State, run: Run, to: RoleAmounts) -> Iterator[Reason]:
    """Reasons why the nodes of a run, or the quota of its queue, do not hold what its pods of a role would grow by."""
    held = _held(run, to.role)
    # Both sizes are held until the nodes have taken one: only what the larger adds has to be free.
    most = larger(held, to)
    more = {field: getattr(most, field) - getattr(held, field) for field in FIELDS}
    if not any(more.values()):
        return
    # Pods of one node grow together, so that each alone might fit where all of them do not.
    # Several pods of the role may stand on one node, and grow together.
    pods = Counter(place.node for place in run.places if place.role == to.role)
    uses_gpus = any(role.need.total_gpu_milli for role in run.roles)
    for node in state.nodes.found(sorted(pods)):
        # What is kept beside free GPUs is no room of jobs without GPUs.
        free = (node.cpu_free, node.memory_free) if uses_gpus else node.open[:2]
        for field, left in zip(FIELDS, free, strict=True):
            wanted = more[field] * pods[node.name]
            if wanted > max(0, left):
                numbers = {f"more_{field}": wanted, f"free_{field}": max(0, left)}
                yield Reason(code=Code.RESIZE_DOES_NOT_FIT, field=f"nodes.{node.name}", numbers=numbers)
    count = pods.total()
    amount = Amount(cpu_milli=more["cpu_milli"] * count, memory_bytes=more["memory_bytes"] * count)
    job = state.jobs.get(run.job_id)
    # What may not be evicted borrows nothing, since its lender could not have it back.
    firm = job is not None and not state.tree.revocable(job)
    over = state.quota_book().over(run.queue, run.flavor, amount, firm)
    if over is not None:
        yield quota_reason(over)
    elif run.flavor not in state.tree.flavors_for(run.queue, run.amount.plus(amount)):
        detail = f"no quota of its queue counts flavor {run.flavor or 'any'}"
        yield Reason(code=Code.WAITING_FOR_QUOTA, field=f"queues.{run.queue}"[:300], detail=detail)
