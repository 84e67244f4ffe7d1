"""The pod of one rank, built from the typed template: nothing that the contract does not name can get in."""

from typing import Any

from tessera.binder import launching
from tessera.binder.devices import Given, given
from tessera.domain.entities import Job, Run
from tessera.domain.resources import Node
from tessera_schemas.devices import STEERING_DOMAINS, steers_devices
from tessera_schemas.job import JobSpec, Role, Template, Volume
from tessera_schemas.labels import (
    ALLOCATED_N_ANNOTATION,
    EVICT_AT_ANNOTATION,
    FINALIZER,
    GPU_MILLI_ANNOTATION,
    JOB_LABEL,
    MANAGED_BY_LABEL,
    NAME_ANNOTATION,
    NOTICE_ANNOTATION,
    QUEUE_LABEL,
    RANK_LABEL,
    RESERVED_PREFIX,
    ROLE_LABEL,
    RUN_LABEL,
    SCHEDULER_NAME,
    SHARD_LABEL,
    SIMULATE_PREFIX,
    SPEC_LABEL,
    TENANT_LABEL,
    TTL_ANNOTATION,
    pod_name,
)
from tessera_schemas.placement import Placement

Json = dict[str, Any]
SPEC_LABEL_CHARACTERS = 16
NOTICE_DIRECTORY, NOTICE_FILE = "/etc/tessera", "evict-at"
RESTRICTED: Json = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


def pod_of(job: Job, run: Run, rank: int, spec: JobSpec, allocated_n: int, node: Node | None) -> Json:
    """
    The unbound pod of `rank`; the same run, rank and devices of its node give the same pod.

    Raises NoDevice when its node, as the ledger has it, does not say what it gives.
    """
    placement = placement_of(run, rank)
    role = next(role for role in spec.roles if role.name == placement.role)
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
        "spec": _spec(job, run, rank, spec, role, given(role.resources, placement, node)),
    }


def in_shard(pod: Json, shard: str) -> Json:
    """The pod as one of this shard, whose binder and reclamation alone will see it."""
    meta = pod["metadata"]
    return pod | {"metadata": meta | {"labels": meta["labels"] | {SHARD_LABEL: shard}}}


def placement_of(run: Run, rank: int) -> Placement:
    """A gang's placements are in rank order and may be thousands; what it grew by has ranks with gaps."""
    if rank < len(run.placements):
        return run.placements[rank]
    return next(extra.placement for extra in run.extra if extra.placement.rank == rank)


def labels(job: Job, run: Run, rank: int, role: Role) -> dict[str, str]:
    return {
        MANAGED_BY_LABEL: SCHEDULER_NAME,
        JOB_LABEL: job.job_id,
        RUN_LABEL: run.run_id,
        RANK_LABEL: str(rank),
        ROLE_LABEL: role.name,
        QUEUE_LABEL: job.queue,
        TENANT_LABEL: job.tenant,
        SPEC_LABEL: spec_label(job),
    }


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


def _spec(job: Job, run: Run, rank: int, spec: JobSpec, role: Role, devices: Given) -> Json:
    tolerations = [
        {"key": t.key, "operator": "Exists" if t.every_value else "Equal"}
        | ({"value": t.value} if t.value else {})
        | ({"effect": t.effect} if t.effect else {})
        for t in role.tolerations
    ]
    body: Json = {
        "schedulerName": SCHEDULER_NAME,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": spec.termination_grace_seconds,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "nodeSelector": role.node_selector,
        "tolerations": tolerations,
        "volumes": [_volume(index, volume) for index, volume in enumerate(role.template.volumes)],
        "containers": [_container(job, run, rank, spec, role, devices)],
        **launching.name_in_dns(run, rank, spec),
    }
    if role.affinity:
        body["affinity"] = _affinity(role)
    if spec.time_limit_seconds is not None:
        body["activeDeadlineSeconds"] = spec.time_limit_seconds
    if spec.checkpoint is not None:
        _show_notice(body)
    return body


def _show_notice(body: Json) -> None:
    """The notice as a file, since the pod has no token with which to read its own annotations."""
    path = f"metadata.annotations['{EVICT_AT_ANNOTATION}']"
    item = {"path": NOTICE_FILE, "fieldRef": {"fieldPath": path}}
    body["volumes"].append({"name": "tessera", "downwardAPI": {"items": [item]}})
    for container in body["containers"]:
        container["volumeMounts"].append({"name": "tessera", "mountPath": NOTICE_DIRECTORY, "readOnly": True})


def _affinity(role: Role) -> Json:
    """The role's conditions on its node, so that the kubelet checks them once more. All of one term must hold."""
    conditions = [
        {"key": term.key, "operator": term.operator.value} | ({"values": list(term.values)} if term.values else {})
        for term in role.affinity
    ]
    needed = {"nodeSelectorTerms": [{"matchExpressions": conditions}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": needed}}


def _container(job: Job, run: Run, rank: int, spec: JobSpec, role: Role, devices: Given) -> Json:
    template, asked = role.template, role.resources
    # What a job says itself of its launcher stays; what it is and what it was given is ours to say.
    own = {name: value for name, value in template.env.items() if not steers_devices(name)}
    env = launching.variables(run, rank, spec, role) | own | _own_env(job, run, rank, role) | devices.env
    amounts = {"cpu": f"{asked.cpu_milli}m", "memory": str(asked.memory_bytes)}
    amounts |= {name: str(count) for name, count in devices.amounts.items()}
    container: Json = {
        "name": role.name,
        "image": template.image,
        "command": list(template.command),
        "args": list(template.args),
        "env": [{"name": name, "value": value} for name, value in env.items()],
        "resources": {"requests": amounts, "limits": amounts},
        "securityContext": _security(template),
        "volumeMounts": [
            {"name": f"volume-{index}", "mountPath": volume.mount_path, "readOnly": volume.read_only}
            for index, volume in enumerate(template.volumes)
        ],
    }
    if template.working_dir is not None:
        container["workingDir"] = template.working_dir
    return container


def _security(template: Template) -> Json:
    """Without a user of its own a container runs as its image says, which may be root of that container."""
    user = template.run_as_user
    return RESTRICTED if user is None else RESTRICTED | {"runAsUser": user, "runAsNonRoot": True}


def _own_env(job: Job, run: Run, rank: int, role: Role) -> dict[str, str]:
    saved = {"TESSERA_CHECKPOINT_PATH": job.saved_path} if job.saved_path else {}
    elastic = {"TESSERA_MIN_REPLICAS": str(role.gang), "TESSERA_MAX_REPLICAS": str(role.most)}
    return (
        saved
        | (elastic if role.gang < role.most else {})
        | {
            "TESSERA_JOB_ID": job.job_id,
            "TESSERA_JOB_NAME": job.name,
            "TESSERA_ATTEMPT": str(run.attempt),
            "TESSERA_ROLE": role.name,
            "TESSERA_RANK": str(rank),
            # Of an elastic run: as it is now. Whoever was there before is not told; its program sees who joins.
            "TESSERA_WORLD_SIZE": str(len(run.placements) + sum(not extra.leaving for extra in run.extra)),
        }
    )


def _volume(index: int, volume: Volume) -> Json:
    sources: dict[str, Json] = {
        "empty": {"emptyDir": {}},
        "claim": {"persistentVolumeClaim": {"claimName": volume.name}},
        "config_map": {"configMap": {"name": volume.name}},
        "secret": {"secret": {"secretName": volume.name}},
    }
    return {"name": f"volume-{index}", **sources[volume.kind]}
