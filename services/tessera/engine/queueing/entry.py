"""
What only the ledger can have against a new job: what a tenant has already, its keys, and what it waits for.

In: the state and the job as admission took it in. Out: all reasons against it. The committer turns a job away for them;
the gateway tells them of a dry run. Admission cannot, nor count what a tenant has: its replicas race. Pure.
"""

from collections.abc import Mapping, Sequence

from tessera.domain.devices.levels import unknown_levels
from tessera.domain.devices.neighbours import own_pods_meant
from tessera.domain.devices.resources import NOTHING, Amount
from tessera.domain.entities import EndedJob, Job, Use
from tessera.domain.state import State
from tessera.domain.work.dependencies import array_of_task, unqueued_task
from tessera.engine.queueing.readiness import spent_reason
from tessera_schemas.facts import JobAdmitted
from tessera_schemas.job import Role
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.arrays import FAMILY, Dependency, has_task, index_of

NO_ARRAYS: Mapping[str, str] = {}
COUNTABLE = 2**62  # sums of a tenant's jobs; the canonical form of the state holds no integer above 64 bits


def entry_faults(state: State, fact: JobAdmitted, new_arrays: Mapping[str, str] = NO_ARRAYS) -> list[Reason]:
    """
    Reasons against a job that the ledger does not have; `new_arrays` are those that the same message takes in, by the
    beginning of their tasks' ids: they are not in the index yet, whose base is the state before the message.

    Levels were admission's to judge, which saw an older configuration, perhaps.
    """
    # All reasons are gathered in place of the first, since a sender who mends one fault should not meet the next one
    # only then.
    over = _over_limit(state, fact)
    spec, kinds = fact.spec, ("refuse",)
    spent = spent_reason(state, spec.queue, fact.tenant, spec.project, kinds) if spec.gpu_milli() else None
    found = [each for each in (over, spent) if each is not None]
    against = [*found, *unknown_levels(fact.spec, state.tree.levels), *_own_pods_meant(fact.spec.roles)]
    tasks = None if fact.spec.array is None else fact.spec.array.tasks
    against += dependency_faults(state, fact.tenant, tasks, fact.spec.after, new_arrays)
    against += _attachment_faults(state, fact)
    against += _booking_faults(state, fact)
    return against + _collisions(state, fact, new_arrays)


def _own_pods_meant(roles: Sequence[Role]) -> list[Reason]:
    detail = "means pods of its own job; say anti_affinity, spread or topology of these"
    fields = own_pods_meant([(role.neighbours, role.most) for role in roles])
    return [Reason(code=Code.NOT_SUPPORTED_YET, field=field, detail=detail) for field in fields]


def dependency_faults(
    state: State, tenant: str, tasks: str | None, after: Sequence[Dependency], new_arrays: Mapping[str, str] = NO_ARRAYS
) -> list[Reason]:
    """Reasons against what a job of the tenant, or an array of these tasks, is to wait for."""
    # A dependency may name only jobs that are in the ledger already. So edges point back in time, and no submit can
    # close a circle.
    found = (_dependency_fault(state, tenant, tasks, index, each, new_arrays) for index, each in enumerate(after))
    return [fault for fault in found if fault is not None]


def _attachment_faults(state: State, fact: JobAdmitted) -> list[Reason]:
    """Reasons against what a job is attached to: a live job of the tenant that has a run, or will have one."""
    attached = fact.spec.attach_to
    if attached is None:
        return []
    target, ended = state.jobs.get(attached.job), state.ended.get(attached.job)
    # As for dependencies: another tenant's job is as good as none.
    if target is None or target.tenant != fact.tenant:
        if ended is not None and ended.tenant == fact.tenant:
            return [Reason(code=Code.ALREADY_ENDED, field="attach_to.job", detail=f"{ended.name}: {ended.phase}")]
        return [Reason(code=Code.NO_SUCH_JOB, field="attach_to.job", detail=attached.job)]
    if target.array is not None:
        detail = "an array has no run of its own; name one of its tasks"
        return [Reason(code=Code.INVALID_FIELD, field="attach_to.job", detail=detail)]
    if attached.near == "required" and not state.tree.levels:
        detail = "the configuration has no topology levels, so that nothing is near; leave out `near`"
        return [Reason(code=Code.NO_SUCH_TOPOLOGY_LEVEL, field="attach_to.near", detail=detail)]
    return []


def _booking_faults(state: State, fact: JobAdmitted) -> list[Reason]:
    """Reasons against the reservation that a job names."""
    spec = fact.spec
    if spec.reservation is None:
        return []
    # As for jobs: one that is another's is as good as none.
    booking = state.bookings.get(spec.reservation)
    if booking is None or booking.job or not booking.is_for(fact.tenant, spec.user):
        return [Reason(code=Code.NO_SUCH_RESERVATION, field="reservation", detail=spec.reservation)]
    if state.tree.pool(spec.queue) != booking.pool:
        detail = f"{booking.name} is of pool {booking.pool}, and queue {spec.queue} of another"
        return [Reason(code=Code.INVALID_FIELD, field="reservation", detail=detail)]
    longest = max((end - max(start, state.ts) for start, end in booking.ahead(state.ts)), default=0) // 1000
    if (spec.time_limit_seconds or 0) > longest:
        numbers = {"time_limit_seconds": spec.time_limit_seconds or 0, "longest_seconds": longest}
        detail = "no window of its reservation is as long"
        return [Reason(code=Code.INVALID_FIELD, field="time_limit_seconds", numbers=numbers, detail=detail)]
    return []


def key_conflict(key: str) -> Reason:
    """Reason against another spec under a key that a job has."""
    return Reason(code=Code.IDEMPOTENCY_CONFLICT, field="key", detail=key)


def _collisions(state: State, fact: JobAdmitted, new_arrays: Mapping[str, str]) -> list[Reason]:
    """Keys can be sought until ids begin as those of an array's tasks do: such a job is not taken in beside it."""
    family = fact.job_id[:FAMILY]
    return [key_conflict(fact.key)] if family in state.relations.families or family in new_arrays else []


def _over_limit(state: State, fact: JobAdmitted) -> Reason | None:
    """An array asks for nothing itself; that each of its tasks could be had at all is judged as for a job."""
    roles = fact.spec.roles
    cpu, memory = (sum(role.gang * getattr(role, name) for role in roles) for name in ("cpu_milli", "memory_bytes"))
    wanted, pods = Amount(cpu, memory, fact.spec.gpu_milli()), sum(role.most for role in roles)
    if fact.spec.array is None:
        return over_limit(state, fact.tenant, wanted, pods) or _over_sessions(state, fact)
    over = over_limit(state, fact.tenant, NOTHING, 0) or over_limit_alone(state, fact.tenant, wanted, pods)
    return over or _over_services(state, fact)


def _over_services(state: State, fact: JobAdmitted) -> Reason | None:
    """Why the tenant may not have one more service."""
    limit = state.tree.limits_of(fact.tenant).services
    if limit is None or fact.spec.service is None:
        return None
    services = (state.tenant_use.get(fact.tenant) or Use(fact.tenant)).services
    if services < limit:
        return None
    numbers = {"services": services, "limit": limit}
    return Reason(code=Code.LIMIT_EXCEEDED, field="limits.services", numbers=numbers)


def _over_sessions(state: State, fact: JobAdmitted) -> Reason | None:
    """Why the user, or the tenant, may not have one more session."""
    limits = state.tree.limits_of(fact.tenant)
    if fact.spec.session is None:
        return None
    use = state.tenant_use.get(fact.tenant) or Use(fact.tenant)
    if limits.sessions is not None and use.sessions_of(None) >= limits.sessions:
        numbers = {"sessions": use.sessions_of(None), "limit": limits.sessions}
        return Reason(code=Code.LIMIT_EXCEEDED, field="limits.sessions", numbers=numbers)
    limit = limits.sessions_per_user
    if limit is None:
        return None
    # Those that name no user share one number, so that leaving the name out is no way around the limit.
    sessions = use.sessions_of(fact.spec.user)
    if sessions < limit:
        return None
    whose = f"of {fact.spec.user}" if fact.spec.user else "of jobs that name no user"
    numbers = {"sessions": sessions, "limit": limit}
    return Reason(code=Code.LIMIT_EXCEEDED, field="limits.sessions_per_user", numbers=numbers, detail=whose)


def _dependency_fault(
    state: State, tenant: str, own: str | None, index: int, dependency: Dependency, new_arrays: Mapping[str, str]
) -> Reason | None:
    """A refusal for a dependency on a job that is not the tenant's or is unknown: so a submit makes no cycles."""
    field = f"after[{index}].job"
    if dependency.job is None:
        return None
    other = state.jobs.get(dependency.job) or state.ended.get(dependency.job)
    array = None if other is not None else _array_of_task(state, dependency.job, new_arrays)
    # Another tenant's job is `NoSuchJob` in the same words as one that never was: a different answer would tell who has
    # what.
    if array is not None and array.tenant == tenant:
        wrong = _against_task(array, dependency.job)
        return Reason(code=Code.NO_SUCH_JOB, field=field, detail=wrong) if wrong else None
    if other is None or other.tenant != tenant:
        return Reason(code=Code.NO_SUCH_JOB, field=field, detail=dependency.job)
    if dependency.condition != "aftercorr" or other.array is None or own is None or own == other.array.tasks:
        return None
    detail = f"tasks {own} do not correspond to tasks {other.array.tasks}; give both arrays the same"
    return Reason(code=Code.INVALID_FIELD, field=f"after[{index}]", detail=detail[:1024])


def _array_of_task(state: State, job_id: str, new_arrays: Mapping[str, str]) -> Job | EndedJob | None:
    """The array of which this could be a task's id, one that the same message takes in included."""
    return array_of_task(state, job_id) or state.jobs.get(new_arrays.get(job_id[:FAMILY], ""))


def _against_task(array: Job | EndedJob, job_id: str) -> str:
    """Why nothing can wait for this task, which is neither live nor remembered; "" for one that is not queued yet."""
    named, tasks = f"{array.job_id}_{index_of(job_id)}", array.array.tasks if array.array is not None else ""
    if not has_task(tasks, index_of(job_id)):
        return f"{named}: the array has the tasks {tasks}"[:1024]
    return "" if unqueued_task(array, job_id) is not None else f"{named}: has ended, and how is forgotten"


def over_limit_of_task(state: State, array: Job) -> Reason | None:
    """Why the array may not queue one more task; None if it may."""
    return over_limit(state, array.tenant, array.gang.amount, sum(role.replicas + role.more for role in array.roles))


def over_limit(state: State, tenant_name: str, wanted: Amount, pods: int) -> Reason | None:
    """Why the tenant may not have one more job of this amount and so many pods; None if it may."""
    use = state.tenant_use.get(tenant_name) or Use(tenant_name)
    # Each job alone is bounded by the contract, but a sum of many is not: beyond 64 bits the state would have no
    # canonical form, and its hash none.
    for name in ("cpu_milli", "memory_bytes"):
        if getattr(use.amount, name) + getattr(wanted, name) > COUNTABLE:
            return Reason(code=Code.LIMIT_EXCEEDED, field=name, detail="more than can be counted")
    tenant = state.tree.tenants.get(tenant_name)
    if tenant is None:
        return None
    limits, jobs, gpu_milli = tenant.limits, use.jobs, use.amount.gpu_milli
    if limits.jobs is not None and jobs + 1 > limits.jobs:
        return Reason(code=Code.LIMIT_EXCEEDED, field="limits.jobs", numbers={"jobs": jobs, "limit": limits.jobs})
    if limits.gpus is not None and wanted.gpu_milli and gpu_milli + wanted.gpu_milli > limits.gpus * 1000:
        numbers = {"gpu_milli": gpu_milli, "wanted_gpu_milli": wanted.gpu_milli, "limit_gpu_milli": limits.gpus * 1000}
        return Reason(code=Code.LIMIT_EXCEEDED, field="limits.gpus", numbers=numbers)
    if limits.pods is not None and pods and use.pods + pods > limits.pods:
        return _over_pods({"pods": use.pods, "wanted_pods": pods, "limit_pods": limits.pods})
    return None


def over_limit_alone(state: State, tenant_name: str, wanted: Amount, pods: int) -> Reason | None:
    """Why the tenant could not have a job of this amount and so many pods even without any other."""
    limits = state.tree.limits_of(tenant_name)
    if limits.gpus is not None and wanted.gpu_milli > limits.gpus * 1000:
        numbers = {"wanted_gpu_milli": wanted.gpu_milli, "limit_gpu_milli": limits.gpus * 1000}
        return Reason(code=Code.LIMIT_EXCEEDED, field="limits.gpus", numbers=numbers)
    if limits.pods is not None and pods > limits.pods:
        return _over_pods({"wanted_pods": pods, "limit_pods": limits.pods})
    return None


def _over_pods(numbers: dict[str, int]) -> Reason:
    return Reason(code=Code.LIMIT_EXCEEDED, field="limits.pods", numbers=numbers)
