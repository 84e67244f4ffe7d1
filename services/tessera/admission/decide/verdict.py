"""
Whether a submitted job may enter, by policy and by the nodes there are. Pure; always all reasons, never the first.

Limits that count (jobs, GPUs of a tenant) are not here: replicas of admission race, the committer does not.
"""

from typing import Any

from tessera.admission.decide.amounts import find_pod_faults
from tessera.admission.decide.gres import unknown_gres
from tessera.admission.decide.launching import not_launched
from tessera.admission.decide.mounts import crowded_out, unmapped
from tessera.admission.decide.pods import not_granted, not_the_clients, too_large_together
from tessera.admission.decide.policy import AdmissionPolicy
from tessera.domain.devices.levels import in_short, unknown_levels
from tessera.domain.devices.resources import Amount
from tessera.domain.queues import QueueTree, QuotaBook
from tessera.domain.quota.idle import jobs_choose
from tessera.domain.quota.queue_settings import longest_time_limit, time_limit_fault
from tessera_schemas.base import Json
from tessera_schemas.commands import AdoptJob, SubmitJob
from tessera_schemas.job import GPU_MILLI, JobSpec
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.text.reading import refusal
from tessera_schemas.text.units import format_age

NO_INGRESS = "no session has one here; an operator says in defaults.sessions.ingress of the configuration what they get"


def find_job_faults(command: SubmitJob | AdoptJob, tenant: str, policy: AdmissionPolicy) -> list[Reason]:
    """
    All reasons against a well-formed job; empty if there are none.

    An adopted job has its priority from Kubernetes, so its priority class is not checked.
    """
    spec, tree = command.spec, policy.tree
    submitted = command if isinstance(command, SubmitJob) else None
    against = mismatch(submitted.tenant, tenant) if submitted else []
    against += not_launched(spec, policy.has_steps)
    against += not_the_clients(spec)
    against += [*too_large_together(spec), *_claims_by_name(spec)] if submitted else []
    if tree is None:
        return [*against, refusal(Code.NOT_CONFIGURED)]
    against += _by_name(spec.queue, spec.priority_class if submitted else None, tenant, tree)
    owner = tree.tenants.get(tenant)
    against += crowded_out(spec, tenant, tree) if submitted else []
    against += not_granted(spec, owner.pod_grants) if owner is not None else []
    against += unmapped(spec, tenant, tree)
    against += unknown_gres(spec, tree)
    against += _over_job_limit(spec, tenant, tree)
    too_long = time_limit_fault(tree, spec.queue, tenant, spec.time_limit_seconds or 0)
    against += [too_long] if too_long is not None else []
    if spec.idle is not None and not jobs_choose(tree, spec.queue):
        detail = f"queue {spec.queue} does not let jobs set `idle`; leave the field out"
        against.append(refusal(Code.INVALID_FIELD, "idle", detail))
    against += [*_no_session(spec), *_no_ingress(spec, tenant, tree)]
    unknown = unknown_levels(spec, tree.levels)
    against += unknown
    pool = tree.pool(spec.queue)
    if pool is not None:
        gang = tree.gang_of(spec, tenant, as_made=submitted is None)
        flavors, over = _within_quota(spec.queue, gang.amount, tree, spec.preemptible)
        against += over
        verdict = None if unknown else policy.pools.inadmissible(tree, spec.queue, flavors, gang)
        against += [in_short(verdict, tree.levels)] if verdict is not None else []
    return against


def _no_session(spec: JobSpec) -> list[Reason]:
    """A refusal for a session of several pods, for an array of them, and for idleness of which nobody could tell."""
    session = spec.session
    if session is None:
        return []
    against = []
    if spec.array is not None or sum(role.most for role in spec.roles) != 1:
        against.append(refusal(Code.INVALID_FIELD, "session", "a session is one pod, and no array"))
    if session.idle_seconds and session.kind != "notebook":
        detail = f"of a {session.kind} nobody can be asked; say `idle`, the rule for idle GPUs"
        against.append(refusal(Code.INVALID_FIELD, "session.idle_seconds", detail))
    if session.idle_seconds and session.warning_seconds >= session.idle_seconds:
        detail = f"{session.warning_seconds} is not less than idle_seconds, of which it is a part"
        against.append(refusal(Code.INVALID_FIELD, "session.warning_seconds", detail))
    return against


def _no_ingress(spec: JobSpec, tenant: str, tree: QueueTree) -> list[Reason]:
    """A refusal for a session that nobody could reach, or may not reach, by an Ingress that it asks for."""
    if spec.session is None or not spec.session.ingress:
        return []
    field, owner, against = "session.ingress", tree.tenants.get(tenant), []
    if spec.session.kind == "terminal" or not spec.roles[0].template.ports:
        against.append(refusal(Code.INVALID_FIELD, field, "an Ingress leads to the first of template.ports: say one"))
    if spec.launcher not in (None, "plain"):
        against.append(refusal(Code.INVALID_FIELD, field, f"no session with launcher: {spec.launcher} has one"))
    if owner is not None and not owner.pod_grants.session_ingress:
        against.append(refusal(Code.NOT_GRANTED, field, "pod_grants.session_ingress"))
    if tree.defaults.sessions.ingress is None:
        against.append(refusal(Code.NOT_SUPPORTED_YET, field, NO_INGRESS))
    return against


def _claims_by_name(spec: JobSpec) -> list[Reason]:
    """A refusal for each claim that stands in the cluster: of users' pods the binder has looked at it, here nobody."""
    return [
        refusal(Code.INVALID_FIELD, f"roles[{at}].resources.claims[{index}].object_name", "of users' pods alone")
        for at, role in enumerate(spec.roles)
        for index, claim in enumerate(role.resources.claims)
        if claim.object_name
    ]


def _within_quota(
    queue: str, amount: Amount, tree: QueueTree, preemptible: bool
) -> tuple[tuple[str, ...], list[Reason]]:
    """
    The flavors whose quotas could hold the job, everything that may be borrowed for it included.

    Where none could, all of them, and why not.
    """
    book, against = QuotaBook(tree, {}), []
    flavors, within = tree.flavors_for(queue, amount), list[str]()
    for flavor in flavors:
        over = book.over(queue, flavor, amount, firm=not preemptible)
        if over is None:
            within.append(flavor)
            continue
        numbers = {"wanted": over.wanted, "most": over.available, "nominal_quota": over.nominal}
        where = f"queues.{queue}.{over.cell[1]}" + (f" of {over.cell[0]}" if over.cell[0] else "")
        why = "it may not be evicted, and only what may be evicted borrows" if over.firm else ""
        against.append(refusal(Code.EXCEEDS_MAX_QUOTA, where[:300], why, numbers=numbers))
    return (tuple(within), []) if within else (flavors, [r for at, r in enumerate(against) if r not in against[:at]])


def find_priority_faults(name: str, tenant: str, policy: AdmissionPolicy) -> list[Reason]:
    """All reasons against giving a job of the tenant this priority class."""
    if policy.tree is None:
        return [refusal(Code.NOT_CONFIGURED)]
    return _by_name(None, name, tenant, policy.tree)


def find_queue_faults(name: str, tenant: str, policy: AdmissionPolicy) -> list[Reason]:
    """All reasons against giving a job of the tenant to this queue."""
    if policy.tree is None:
        return [refusal(Code.NOT_CONFIGURED)]
    return _by_name(name, None, tenant, policy.tree)


def find_submit_faults(raw: Json, tenant: str, policy: AdmissionPolicy) -> list[Reason]:
    """Further reasons, besides its syntax, against a submit that cannot be read."""
    against = mismatch(raw.get("tenant"), tenant)
    spec = raw.get("spec")
    if policy.tree is None:
        return [*against, refusal(Code.NOT_CONFIGURED)]
    named: dict[str, Any] = spec if isinstance(spec, dict) else {}
    return [*against, *_by_name(named.get("queue"), named.get("priority_class"), tenant, policy.tree)]


def mismatch(given: object, tenant: str) -> list[Reason]:
    """The subject's tenant is the one that counts, since the server enforces it; the payload may only agree."""
    if isinstance(given, str) and given != tenant:
        return [refusal(Code.TENANT_MISMATCH, "tenant", given)]
    return []


def _by_name(queue: object, priority_class: object, tenant: str, tree: QueueTree) -> list[Reason]:
    against = []
    owner = tree.tenants.get(tenant)
    if owner is None:
        against.append(refusal(Code.NO_SUCH_TENANT, "tenant", tenant))
    if isinstance(queue, str):
        found = tree.queues.get(queue)
        if found is None:
            against.append(refusal(Code.NO_SUCH_QUEUE, "queue", queue))
        elif queue in tree.children:
            against.append(refusal(Code.QUEUE_NOT_ALLOWED, "queue", f"{queue}: jobs go to one of the queues below it"))
        elif found.tenants and tenant not in found.tenants:
            against.append(refusal(Code.QUEUE_NOT_ALLOWED, "queue", queue))
    if isinstance(priority_class, str):
        if priority_class not in tree.priorities:
            against.append(refusal(Code.NO_SUCH_PRIORITY_CLASS, "priority_class", priority_class))
        elif owner is not None and owner.priority_classes and priority_class not in owner.priority_classes:
            against.append(refusal(Code.PRIORITY_NOT_ALLOWED, "priority_class", priority_class))
    return against


def _over_job_limit(spec: JobSpec, tenant: str, tree: QueueTree) -> list[Reason]:
    owner = tree.tenants.get(tenant)
    if owner is None:
        return []
    against = []
    # An elastic job at its largest: what it grows by is not counted anywhere else.
    pods = sum(role.most for role in spec.roles)
    gpu_milli = sum(role.most * role.resources.total_gpu_milli for role in spec.roles)
    pods_max, gpus_max = owner.limits.pods_per_job, owner.limits.gpus_per_job
    if pods_max is not None and pods > pods_max:
        numbers = {"pods": pods, "pods_per_job": pods_max}
        against.append(refusal(Code.EXCEEDS_JOB_LIMIT, "limits.pods_per_job", numbers=numbers))
    if gpus_max is not None and gpu_milli > gpus_max * GPU_MILLI:
        numbers = {"gpu_milli": gpu_milli, "gpu_milli_per_job": gpus_max * GPU_MILLI}
        against.append(refusal(Code.EXCEEDS_JOB_LIMIT, "limits.gpus_per_job", numbers=numbers))
    return [*against, *find_pod_faults(spec, owner.limits)]


def fill_session(spec: JobSpec, tree: QueueTree | None) -> tuple[JobSpec, tuple[str, ...]]:
    """The spec of a notebook with the idleness that the configuration has for those that say none, and a note."""
    session, default = spec.session, None if tree is None else tree.defaults.sessions
    if session is None or session.kind != "notebook" or session.idle_seconds is not None:
        return spec, ()
    if default is None or not default.idle_seconds:
        return spec, ()
    said = session.model_copy(
        update=default.model_dump(exclude={"resume_class", "ingress"}) | session.model_dump(exclude_defaults=True)
    )
    note = f"{said.on_idle}s after {format_age(default.idle_seconds * 1000)} without use, by defaults.sessions of"
    note += " the configuration; say session.idle_seconds for another time"
    return spec.model_copy(update={"session": said}), (note,)


def fill_time_limit(spec: JobSpec, tenant: str, tree: QueueTree | None) -> tuple[JobSpec, tuple[str, ...]]:
    """The spec with a time limit where the configuration has one for it, and what was decided, in words."""
    if spec.time_limit_seconds is not None or tree is None:
        return spec, ()
    default, of = tree.defaults.time_limit_seconds or 0, "defaults.time_limit_seconds"
    longest, field = longest_time_limit(tree, spec.queue, tenant)
    if longest and not 0 < default <= longest:
        default, of = longest, field
    if not default:
        return spec, ()
    note = f"time limit {format_age(default * 1000)}, by {of} of the configuration; say time_limit for another"
    return spec.model_copy(update={"time_limit_seconds": default}), (note,)
