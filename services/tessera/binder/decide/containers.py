"""
The containers of a rank's pod, with their environment, resources and volumes, built from the typed template. Pure.

Init containers and sidecars see the volumes of the role's container and never its devices.
"""

from tessera.binder.decide.devices import NONE_OF_THEM, VISIBLE, Given
from tessera.binder.launchers.port import RESTRICTED
from tessera.binder.launchers.registry import launcher_of
from tessera.binder.launchers.session_address import address_variables
from tessera.domain.entities import Job, Run
from tessera_schemas.base import Json, number_or_id
from tessera_schemas.cluster.devices import steers_devices
from tessera_schemas.cluster.gang_groups import find_growing, groups_of_role
from tessera_schemas.cluster.labels import EVICT_AT_ANNOTATION
from tessera_schemas.cluster.resource_kinds import requests
from tessera_schemas.job import JobSpec, Role, Session, Template, Volume
from tessera_schemas.work.measured_use import SessionIngress
from tessera_schemas.work.pod_template import (
    IDLE_WARNING_FILE,
    NOTICE_DIRECTORY,
    NOTICE_FILE,
    SHARED_MEMORY_PATH,
    EnvSource,
    InitContainer,
    literally,
)

NOTICE, SHARED_MEMORY = "tessera", "shared-memory"
OURS, GROUP = "TESSERA_", "TESSERA_GROUP_"
"""The beginning of variables that no job may say otherwise."""


def containers(
    job: Job, run: Run, rank: int, spec: JobSpec, role: Role, devices: Given, form: SessionIngress | None = None
) -> Json:
    """The fields of the pod's spec that hold containers; `form` is that of the addresses of sessions."""
    before = [_init_container(role, spec, each) for each in role.template.init_containers]
    return {
        "containers": [_container(job, run, rank, spec, role, devices, address_variables(job, form))],
        **({"initContainers": before} if before else {}),
    }


def _container(
    job: Job, run: Run, rank: int, spec: JobSpec, role: Role, devices: Given, address: dict[str, str]
) -> Json:
    template = role.template
    # What a job says itself of its launcher stays; what it is and what it was given is ours to say.
    by_launcher = launcher_of(spec).variables(run, rank, spec, role)
    launched = {name: value for name, value in by_launcher.items() if name not in template.env_from}
    ours = {name: value for name, value in by_launcher.items() if name.startswith(OURS)}
    own = _identity(job, run, rank, role) | address | _copies(spec, rank, role) | ours
    # First, so that a value of the job's own may refer to them, as `$(TESSERA_JOB_ID)`; last, since they win.
    env = own | launched | _own(template.env) | own | devices.env
    container = _common(role.name, template, role, spec) | {
        "env": _environment(env, template.env_from),
        "resources": _resources(role, devices),
        "securityContext": _security(template, with_capabilities=True),
    }
    ports = [
        {"containerPort": port.port, "protocol": port.protocol} | ({"name": port.name} if port.name else {})
        for port in template.ports
    ]
    return container | ({"ports": ports} if ports else {}) | _readiness(job.session)


def _init_container(role: Role, spec: JobSpec, given: InitContainer) -> Json:
    amounts = requests(given.resources)
    container = _common(given.name, given, role, spec) | {
        # An image for GPUs asks the runtime for all of them.
        "env": _environment(_own(given.env) | {VISIBLE: NONE_OF_THEM}, given.env_from),
        "resources": {"requests": amounts, "limits": amounts},
        "securityContext": _security(role.template, with_capabilities=False),
    }
    return container | ({"restartPolicy": "Always"} if given.sidecar else {})


def _common(name: str, given: Template | InitContainer, role: Role, spec: JobSpec) -> Json:
    container: Json = {
        "name": name,
        "image": given.image,
        "command": list(given.command),
        "args": list(given.args),
        "volumeMounts": _mounts(role, spec),
    }
    return container | ({"workingDir": given.working_dir} if given.working_dir is not None else {})


def _resources(role: Role, devices: Given) -> Json:
    """Limits are requests unless the job says higher ones, of CPU and memory; of all else both are the same."""
    asked = role.resources
    further = {name: str(count) for name, count in devices.amounts.items()}
    least = requests(asked)
    higher = {
        "cpu_milli": asked.cpu_limit_milli or asked.cpu_milli,
        "memory_bytes": asked.memory_limit_bytes or asked.memory_bytes,
    }
    most = least | requests(asked.model_copy(update=higher))
    claims = [{"name": claim.name} for claim in asked.claims]
    return {"requests": least | further, "limits": most | further} | ({"claims": claims} if claims else {})


def _security(template: Template, with_capabilities: bool) -> Json:
    """Security context; a container without a user of its own runs as its image says, which may be root inside it."""
    user = template.run_as_user
    security = RESTRICTED if user is None else RESTRICTED | {"runAsUser": user, "runAsNonRoot": True}
    if not (template.ipc_lock and with_capabilities):
        return security
    return security | {"capabilities": RESTRICTED["capabilities"] | {"add": ["IPC_LOCK"]}}


# -- environment ------------------------------------------------------------------------------------------------------


def _own(env: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if not steers_devices(name)}


def _environment(env: dict[str, str], sources: dict[str, EnvSource]) -> list[Json]:
    """A name that is in both has the value, not the source: what a pod is told of itself cannot be overruled."""
    further = [
        {"name": name, "valueFrom": _value_from(source)}
        for name, source in sources.items()
        if name not in env and not steers_devices(name)
    ]
    return [{"name": name, "value": value} for name, value in env.items()] + further


def _value_from(source: EnvSource) -> Json:
    field = "secretKeyRef" if source.kind == "secret" else "configMapKeyRef"
    return {field: {"name": source.name, "key": source.key, "optional": source.optional}}


def _identity(job: Job, run: Run, rank: int, role: Role) -> dict[str, str]:
    saved = {"TESSERA_CHECKPOINT_PATH": literally(job.saved_path)} if job.saved_path else {}
    array = {"TESSERA_ARRAY_ID": job.task_of, "TESSERA_ARRAY_NUMBER": number_or_id(job.array_number, job.task_of)}
    task = array | {"TESSERA_ARRAY_TASK": str(job.task)} if job.task_of else {}
    elastic = {"TESSERA_MIN_REPLICAS": str(role.gang), "TESSERA_MAX_REPLICAS": str(role.most)}
    return (
        saved
        | task
        | (_idleness(job.session) if job.session is not None and job.session.idle_seconds else {})
        | (elastic if role.gang < role.most else {})
        | {
            "TESSERA_JOB_ID": job.job_id,
            "TESSERA_JOB_NUMBER": number_or_id(job.number, job.job_id),
            "TESSERA_JOB_NAME": literally(job.name),
            "TESSERA_ATTEMPT": str(run.attempt),
            "TESSERA_ROLE": role.name,
            "TESSERA_RANK": str(rank),
            # Of an elastic run: as it is now. Whoever was there before is not told; its program sees who joins.
            "TESSERA_WORLD_SIZE": str(len(run.placements) + sum(not extra.leaving for extra in run.extra)),
        }
    )


def _readiness(session: Session | None) -> Json:
    """
    A probe by which a notebook's kubelet tells its warning: a pod that can say nothing to the API server needs no right
    for it. Three in a row, since one may be late on a node under load.
    """
    if session is None or session.kind != "notebook" or not session.idle_seconds:
        return {}
    words = ["/bin/sh", "-c", f"! test -s {IDLE_WARNING_FILE}"]
    often = {"periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 3}
    return {"readinessProbe": {"exec": {"command": words}} | often}


def _idleness(session: Session) -> dict[str, str]:
    """The rule by which the first process of a notebook's pod stops it."""
    return {
        "TESSERA_SESSION_IDLE_SECONDS": str(session.idle_seconds),
        "TESSERA_SESSION_WARNING_SECONDS": str(session.warning_seconds),
        "TESSERA_SESSION_ON_IDLE": session.on_idle,
    }


def _copies(spec: JobSpec, rank: int, role: Role) -> dict[str, str]:
    """Number of the pod's copy of each group that it is in, from 0, by which programs find their neighbours."""
    if not spec.groups:
        return {}
    at = _number_in_role(spec, rank, role)
    groups = groups_of_role(spec.groups, role.name)
    sizes = {group.name: group.pods.get(role.name, role.gang) for group in groups}
    return {f"{GROUP}{name.upper().replace('-', '_')}": str(at // size) for name, size in sizes.items()}


def _number_in_role(spec: JobSpec, rank: int, role: Role) -> int:
    """Number of the pod of a rank among those of its role; copies that a run grew by go on where its gang ends."""
    first = {each.name: sum(other.gang for other in spec.roles[:at]) for at, each in enumerate(spec.roles)}
    beyond, growing = rank - sum(each.gang for each in spec.roles), find_growing(spec.groups, spec.roles)
    if beyond < 0 or growing is None:
        return rank - first[role.name]
    copy, within = divmod(beyond, sum(growing.pods.values()))
    before = sum(
        growing.pods[each.name]
        for each in spec.roles
        if each.name in growing.pods and first[each.name] < first[role.name]
    )
    return role.gang + copy * growing.pods[role.name] + within - before


# -- volumes ----------------------------------------------------------------------------------------------------------


def volumes(role: Role, spec: JobSpec) -> list[Json]:
    """The role's own, shared memory for a pod with a GPU, and the notice for a job that declares checkpoints."""
    found = [_volume(index, volume) for index, volume in enumerate(role.template.volumes)]
    if _needs_shared_memory(role):
        found.append({"name": SHARED_MEMORY, "emptyDir": _in_memory(_shared_memory_bytes(role))})
    if spec.checkpoint is not None:
        # As a file, since the pod has no token with which to read its own annotations.
        item = {"path": NOTICE_FILE, "fieldRef": {"fieldPath": f"metadata.annotations['{EVICT_AT_ANNOTATION}']"}}
        found.append({"name": NOTICE, "downwardAPI": {"items": [item]}})
    return found


def _mounts(role: Role, spec: JobSpec) -> list[Json]:
    found = [
        {"name": f"volume-{index}", "mountPath": volume.mount_path, "readOnly": volume.read_only}
        | ({"subPath": volume.sub_path} if volume.sub_path else {})
        for index, volume in enumerate(role.template.volumes)
    ]
    if _needs_shared_memory(role):
        found.append({"name": SHARED_MEMORY, "mountPath": SHARED_MEMORY_PATH, "readOnly": False})
    if spec.checkpoint is not None:
        found.append({"name": NOTICE, "mountPath": NOTICE_DIRECTORY, "readOnly": True})
    return found


def _needs_shared_memory(role: Role) -> bool:
    """
    The container runtime's 64 MB are too few for NCCL and data loaders, so a pod with a GPU has more unless it says
    itself what is there.
    """
    uses_gpus = role.resources.kind is not None or bool(role.resources.claims)
    return uses_gpus and not role.template.has_shared_memory


def _shared_memory_bytes(role: Role) -> int:
    """Half of the memory, as any Linux machine has it. Nothing is taken before it is written to."""
    return max(1, (role.resources.memory_limit_bytes or role.resources.memory_bytes) // 2)


def _in_memory(size_bytes: int) -> Json:
    return {"medium": "Memory", "sizeLimit": str(size_bytes)}


def _volume(index: int, volume: Volume) -> Json:
    sources: dict[str, Json] = {
        "empty": {"emptyDir": {}},
        "memory": {"emptyDir": _in_memory(volume.size_bytes or 0)},
        "claim": {"persistentVolumeClaim": {"claimName": volume.name}},
        "config_map": {"configMap": {"name": volume.name}},
        "secret": {"secret": {"secretName": volume.name}},
    }
    return {"name": f"volume-{index}", **sources[volume.kind]}
