"""The pod of one rank, built from the typed template: nothing that the contract does not name can get in."""

from collections.abc import Iterable, Sequence

from tessera.binder.claims.decide.objects import claims_in_pod
from tessera.binder.decide import containers
from tessera.binder.decide.devices import given
from tessera.binder.launchers.naming import name_in_dns, run_labels
from tessera.binder.launchers.port import NOTHING_AROUND, Surroundings
from tessera.binder.launchers.registry import launcher_of
from tessera.domain.devices.resources import NO_VALUE, Node, role_need
from tessera.domain.entities import Job, Run
from tessera_schemas.base import Json
from tessera_schemas.cluster.devices import STEERING_DOMAINS
from tessera_schemas.cluster.labels import (
    ALLOCATED_N_ANNOTATION,
    FINALIZER,
    GPU_MILLI_ANNOTATION,
    LEDGER_LABEL,
    NAME_ANNOTATION,
    NOTICE_ANNOTATION,
    QUEUE_LABEL,
    RANK_LABEL,
    RESERVED_PREFIX,
    ROLE_LABEL,
    SCHEDULER_NAME,
    SESSION_LABEL,
    SHARD_LABEL,
    SIMULATE_PREFIX,
    SPEC_LABEL,
    TTL_ANNOTATION,
    pod_name,
)
from tessera_schemas.cluster.node_terms import AffinityTerm
from tessera_schemas.job import JobSpec, Role, Template
from tessera_schemas.work.placement import Placement

SPEC_LABEL_CHARACTERS = 16


def pod_of(
    job: Job,
    run: Run,
    rank: int,
    spec: JobSpec,
    allocated_n: int,
    node: Node | None,
    around: Surroundings = NOTHING_AROUND,
) -> Json:
    """
    The unbound pod of `rank`; the same run, rank and devices of its node give the same pod.

    Raises NoDevice when its node, as the ledger has it, does not say what it gives.
    """
    placement = placement_of(run, rank)
    role = next(role for role in spec.roles if role.name == placement.role)
    tolerated = tolerations(role, node, job.gang.need_of[role.name].tolerated)
    devices = given(role.resources, placement, node)
    body = _spec(run, rank, spec, role, tolerated)
    body |= containers.containers(job, run, rank, spec, role, devices, around.session_form)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(run.run_id, rank),
            "namespace": job.tenant,
            "labels": _not_reserved(spec.labels) | labels(job, run, rank, role),
            "annotations": _annotations(role.template, spec, placement, allocated_n),
            "finalizers": [FINALIZER],
        },
        "spec": launcher_of(spec).dressed(body, run, spec, role, around),
    }


def in_shard(pod: Json, shard: str, ledger_id: str) -> Json:
    """The pod as one of this shard, whose binder and reclamation alone will see it, and of this ledger."""
    meta, whose = pod["metadata"], {SHARD_LABEL: shard} | ({LEDGER_LABEL: ledger_id} if ledger_id else {})
    return pod | {"metadata": meta | {"labels": meta["labels"] | whose}}


def placement_of(run: Run, rank: int) -> Placement:
    """A gang's placements are in rank order and may be thousands; what it grew by has ranks with gaps."""
    if rank < len(run.placements):
        return run.placements[rank]
    return next(extra.placement for extra in run.extra if extra.placement.rank == rank)


def labels(job: Job, run: Run, rank: int, role: Role) -> dict[str, str]:
    """Labels of the pod of one rank, by which the run's pods are found again."""
    place = {RANK_LABEL: str(rank), ROLE_LABEL: role.name, QUEUE_LABEL: job.queue}
    session = {SESSION_LABEL: job.session.kind} if job.session is not None else {}
    return run_labels(job, run.run_id) | place | {SPEC_LABEL: spec_label(job)} | session


def spec_label(job: Job) -> str:
    """
    Tells this job's pods from those of another spec, and from those of the same submit of long ago.

    A forgotten key may be used again, and then gives the same job, run and pod names.
    """
    return f"{job.spec_hash[:SPEC_LABEL_CHARACTERS]}-{job.taken_n}"


def _annotations(template: Template, spec: JobSpec, placement: Placement, allocated_n: int) -> dict[str, str]:
    """The owner's annotations below ours: what we say about devices cannot be said by a job."""
    notice = {NOTICE_ANNOTATION: str(spec.checkpoint.notice_seconds)} if spec.checkpoint else {}
    return (
        _not_reserved(template.annotations)
        | notice
        | {
            NAME_ANNOTATION: spec.name,
            ALLOCATED_N_ANNOTATION: str(allocated_n),
            TTL_ANNOTATION: str(spec.ttl_seconds_after_finished),
            GPU_MILLI_ANNOTATION: str(placement.gpu_milli),
        }
    )


def _not_reserved(own: dict[str, str]) -> dict[str, str]:
    return {
        key: value
        for key, value in own.items()
        if not key.startswith((RESERVED_PREFIX, *STEERING_DOMAINS)) or key.startswith(SIMULATE_PREFIX)
    }


def _spec(run: Run, rank: int, spec: JobSpec, role: Role, tolerated: list[Json]) -> Json:
    body: Json = {
        "schedulerName": SCHEDULER_NAME,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": spec.termination_grace_seconds,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "nodeSelector": role.node_selector,
        "tolerations": tolerated,
        "volumes": containers.volumes(role, spec),
        **(name_in_dns(run, rank) if launcher_of(spec).has_names else {}),
        **_by_grant(role.template),
        **claims_in_pod(pod_name(run.run_id, rank), role),
    }
    if role.affinity or role.affinity_any or role.affinity_preferred:
        body["affinity"] = _affinity(role)
    if spec.time_limit_seconds is not None:
        body["activeDeadlineSeconds"] = max(1, spec.time_limit_seconds - _seconds_before(run, rank))
    return body


def _seconds_before(run: Run, rank: int) -> int:
    """Time that the run had gone on for when the pod's group was to start again; 0 for a pod of its beginning."""
    starts = [copy.not_before for copy in run.restarts if rank in copy.ranks]
    return max(0, max(starts) - run.started_ts) // 1000 if starts else 0


def tolerations(role: Role, node: Node | None, by_tenant: Sequence[tuple[str, str, str]] = ()) -> list[Json]:
    """
    The role's own, then those that `fits` presumes: of devices that it asks for, of its tenant, and of the node's pool.

    The kubelet, and all that evicts by taints, read the pod and not the ledger.
    """
    found = [_toleration(t.key, t.value, t.effect, t.every_value) for t in role.tolerations]
    found += [_toleration(name, "", "NoSchedule", True) for name in role_need(role).need.device_names]
    for key, value, effect in (*by_tenant, *(() if node is None else node.tolerated)):
        found.append(_toleration(key, "" if value == NO_VALUE else value, effect, not value))
    return [each for at, each in enumerate(found) if each not in found[:at]]


def _toleration(key: str, value: str, effect: str, every_value: bool) -> Json:
    said = {"key": key, "operator": "Exists" if every_value else "Equal"}
    return said | ({"value": value} if value else {}) | ({"effect": effect} if effect else {})


def _by_grant(template: Template) -> Json:
    """Pod settings that admission lets through only for tenants with the grant."""
    network = {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"} if template.host_network else {}
    return network | ({"runtimeClassName": template.runtime_class} if template.runtime_class else {})


def _conditions(terms: Iterable[AffinityTerm]) -> list[Json]:
    return [
        {"key": term.key, "operator": term.operator.value} | ({"values": list(term.values)} if term.values else {})
        for term in terms
    ]


def _affinity(role: Role) -> Json:
    """The role's conditions on its node, so that the kubelet checks them once more, and what it prefers."""
    of_nodes: Json = {}
    if role.affinity or role.affinity_any:
        # All of one term must hold, as of the role all conditions and those of one list.
        terms = [{"matchExpressions": _conditions((*role.affinity, *terms))} for terms in role.affinity_any or ((),)]
        of_nodes["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": terms}
    if role.affinity_preferred:
        of_nodes["preferredDuringSchedulingIgnoredDuringExecution"] = [
            {"weight": each.weight, "preference": {"matchExpressions": _conditions(each.terms)}}
            for each in role.affinity_preferred
        ]
    return {"nodeAffinity": of_nodes}
