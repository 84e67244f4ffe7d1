"""
A run's pods in which the command of the first starts processes in the others, by the step runner. Pure.

The image of the job needs nothing for it. An init container of ours puts the runner, one static program, into a volume
in memory; it then is the first process of every pod's container. In the first pod it runs the job's command, in the
others it waits for steps; whoever has the key of the run, a Secret that goes with the run's Service, may start one.
"""

import base64
from functools import partial

from tessera.binder.launchers.naming import service_name
from tessera.binder.launchers.port import RESTRICTED, Launcher, Surroundings
from tessera.domain.entities import Run
from tessera_schemas.base import Json
from tessera_schemas.cluster.resource_kinds import requests
from tessera_schemas.job import JobSpec, Role
from tessera_schemas.work.pod_template import STEPS_CONTAINER, STEPS_DIRECTORY, STEPS_KEY_DIRECTORY, ContainerResources

PORT = 29600
"""Where the runner of each pod listens."""
PROGRAM = f"{STEPS_DIRECTORY}/bin/tessera-steps"
RUNNER, KEY, KEY_FILE = "steps", "steps-key", "key"
OF_HOSTFILES = ("TESSERA_STEPS_HOSTS", "TESSERA_STEPS_SLOTS", "TESSERA_WORLD_SIZE", "SLURM_TASKS_PER_NODE")
# Variables by which the init container writes lists of the run's pods for launchers.
SECURITY = RESTRICTED | {"readOnlyRootFilesystem": True, "runAsNonRoot": True, "runAsUser": 65_532}


def variables(run: Run, rank: int, spec: JobSpec, role: Role) -> dict[str, str]:
    """Environment of every pod: where the runners listen, under which names, their key, and each pod's GPUs."""
    return {
        "TESSERA_STEPS_PORT": str(PORT),
        "TESSERA_STEPS_KEY": f"{STEPS_KEY_DIRECTORY}/{KEY_FILE}",
        "TESSERA_STEPS_HOSTS": f"{run.run_id}-{{rank}}.{service_name(run.run_id)}",  # `{rank}` is the reader's to fill
        "TESSERA_STEPS_SLOTS": ",".join(f"{max(1, each.resources.gpus_seen)}(x{each.gang})" for each in spec.roles),
    }


def key_of(service: Json, uid: str, key: bytes) -> Json:
    """
    The Secret with the run's key: of the name and labels of the run's Service, which is of this UID and owns it.

    So Kubernetes takes it away with the Service, and whoever makes it needs no right to read, change or delete one.
    """
    owner = {"apiVersion": service["apiVersion"], "kind": service["kind"], "name": service["metadata"]["name"]}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "immutable": True,
        "metadata": service["metadata"] | {"ownerReferences": [owner | {"uid": uid}]},
        "data": {KEY_FILE: base64.b64encode(key).decode()},
    }


def by_steps(word: str = "", hostfile: str = "") -> Launcher:
    """Launcher by steps; `word`: what our program does before the command, `hostfile`: DeepSpeed's list lies there."""
    return Launcher(has_names=True, variables=variables, has_key=True, dressed=partial(_dressed, word, hostfile))


def _dressed(word: str, file: str, body: Json, run: Run, spec: JobSpec, role: Role, around: Surroundings) -> Json:
    """The spec of a pod whose container starts the runner, with the first role's command for the first pod."""
    (main,) = body["containers"]
    template = spec.roles[0].template
    where = {RUNNER: STEPS_DIRECTORY, KEY: STEPS_KEY_DIRECTORY}
    mounts = [{"name": name, "mountPath": path, "readOnly": True} for name, path in where.items()]
    if file:
        mounts.append({"name": RUNNER, "mountPath": file, "subPath": "hosts/deepspeed", "readOnly": True})
    started = {
        "command": [PROGRAM, "pod", "--", *((PROGRAM, word) if word else ()), *template.command],
        "args": list(template.args),
        "volumeMounts": [*main["volumeMounts"], *mounts],
    }
    volumes = [
        {"name": RUNNER, "emptyDir": {"medium": "Memory", "sizeLimit": str(16 * 1024**2)}},
        {"name": KEY, "secret": {"secretName": service_name(run.run_id), "defaultMode": 0o444}},
    ]
    namespace = f"{service_name(run.run_id)}.{run.tenant}.svc.{around.cluster_domain}"
    return body | {
        "initContainers": [_installer(main["env"], role, around), *body.get("initContainers", ())],
        "containers": [main | started],
        "volumes": [*body["volumes"], *volumes],
        # By which the name that a pod has of itself is known in the others.
        "dnsConfig": {"searches": [namespace]},
    }


def _installer(environment: list[Json], role: Role, around: Surroundings) -> Json:
    cpu, memory = min(100, role.resources.cpu_milli), min(64 * 1024**2, role.resources.memory_bytes)
    # Never more than the pod has, so that it raises what no pod counts for.
    amounts = requests(ContainerResources(cpu_milli=cpu, memory_bytes=memory))
    return {
        "name": STEPS_CONTAINER,
        "image": around.steps_image,
        "imagePullPolicy": around.steps_pull_policy,
        "command": ["/tessera-steps", "install", STEPS_DIRECTORY],
        "env": [each for each in environment if each["name"] in OF_HOSTFILES],
        "volumeMounts": [{"name": RUNNER, "mountPath": STEPS_DIRECTORY}],
        "resources": {"requests": amounts, "limits": amounts},
        "securityContext": SECURITY,
    }
