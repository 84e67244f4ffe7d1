"""Demands of a launcher on a job's roles and on the installation. Pure."""

import posixpath
from collections.abc import Iterable, Iterator

from tessera.domain.devices.resources import Node
from tessera.domain.queues import QueueTree
from tessera_schemas.job import JobSpec
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.text.reading import refusal
from tessera_schemas.work.pod_template import STEPS_CONTAINER, STEPS_LAUNCHERS, STEPS_PATHS

NO_IMAGE = "this installation has no image of the step runner; an operator names one in the setting steps_image"


def not_launched(spec: JobSpec, has_steps: bool) -> list[Reason]:
    """
    Why the launcher cannot start this job.

    By steps one command runs, in the first pod: it has to be known, and no other role may have another.
    """
    needs_image = spec.launcher in STEPS_LAUNCHERS and not has_steps
    against = [refusal(Code.NOT_SUPPORTED_YET, "launcher", NO_IMAGE)] if needs_image else []
    return against + [refusal(Code.INVALID_FIELD, path, why) for path, why in _faults(spec)]


def advise(spec: JobSpec, tree: QueueTree | None, nodes: Iterable[Node]) -> Iterator[str]:
    """A sentence about what processes in pods of one GPU would gain in pods of several, where nodes have several."""
    pool, pods = tree and tree.pool(spec.queue), spec.pods()
    most = max((node.gpus for node in nodes if node.pool == pool and not node.gone), default=0)
    fit = max((gpus for gpus in range(2, min(pods, most) + 1) if pods % gpus == 0), default=0)
    single = spec.launcher in ("torchrun", "accelerate", "jax") and all(role.resources.gpus == 1 for role in spec.roles)
    if fit and single:
        way = f"{pods // fit} of {fit} GPUs would use NVLink and CUDA IPC where they share a node"
        yield f"{pods} pods of one GPU reach each other's GPUs by sockets alone: {way}"


def _faults(spec: JobSpec) -> Iterator[tuple[str, str]]:
    first, ours, by_steps = spec.roles[0].template, f"launcher: {spec.launcher}", spec.launcher in STEPS_LAUNCHERS
    if by_steps and not first.command:
        yield "roles[0].template.command", f"{ours} runs the command, and the image's own is not known; say it"
    for index, role in enumerate(spec.roles):
        at, template = f"roles[{index}]", role.template
        if (by_steps or spec.launcher == "jax") and role.gang < role.most:
            yield f"{at}.max_replicas", f"{ours} is for as many pods as the job starts with"
        if not by_steps:
            continue
        if (template.command, template.args) not in (((), ()), (first.command, first.args)):
            yield f"{at}.template.command", f"{ours} runs the first role's alone; start this one by a step"
        if template.host_network:
            yield f"{at}.template.host_network", f"{ours} has a port in each pod, which would be the node's"
        if STEPS_CONTAINER in (role.name, *(each.name for each in template.init_containers)):
            yield at, f"{ours} has a container {STEPS_CONTAINER}; take another name"
        for number, volume in enumerate(template.volumes):
            path = "/" + posixpath.normpath(volume.mount_path).lstrip("/")
            if f"{path}/".startswith(tuple(f"{each}/" for each in STEPS_PATHS)):
                where = f"{at}.template.volumes[{number}].mount_path"
                yield where, f"{ours} has its files there; take another path"
