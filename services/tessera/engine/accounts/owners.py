"""
Owners of each GPU of a node at one moment: a division of its capacity in which nothing is left over. Pure.

Amounts are thousandths of a GPU. What is divided is what the cluster says that the node has; one that is gone has
nothing.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from tessera.domain.devices.resources import WHOLE_GPU, Node, RoleNeed
from tessera.domain.entities import Earmark, Run
from tessera.domain.state import State
from tessera_schemas.work.placement import Placement


class GpuCause(StrEnum):
    """Way in which a GPU is had, or why nobody has it; of causes that hold at once the first in this order."""

    USED = "used"  # by a run
    UNUSED = "unused"  # held by a run that was warned that it uses none of its GPUs
    STARTING = "starting"  # held by a run whose pods are not all up
    STOPPING = "stopping"  # held by a run that ended or is to stop, until its pods are known to be gone
    OTHERS = "others"  # held by pods that Tessera does not manage
    OUT = "out"  # held by nobody, on a node that is not ready, cordoned, drained, silent or backed off
    RESERVED = "reserved"  # kept for a job that is to start there when more has ended
    EARMARKED = "earmarked"  # kept for a job by a plan, a cordon or a restart
    NOTHING_WAITS = "nothing_waits"  # free, and no job in line asks for a GPU of the pool
    QUOTA = "quota"  # free, and the last decision about each job in line was that its queue has no quota left
    STOPPED = "queue_stopped"  # free, and the last decision about each job in line was that its queue is stopped
    BUDGET = "budget"  # free, and the last decision about each job in line was that a budget of it is spent
    MODEL = "model"  # free, and no job in line takes this GPU model
    PODS = "pods"  # free, and the node takes no more pods
    GPU = "gpu"  # free, and each pod in line needs more of GPUs than is free on the node
    CPU = "cpu"  # free, and each pod in line needs more CPU than is free on the node
    MEMORY = "memory"  # free, and each pod in line needs more memory than is free on the node
    WORK_WAITS = "work_waits"  # free while work waits: the state alone does not prove what is missing
    FREE = "free"  # of CPU and memory alone: nobody has it, for whatever reason
    CAPACITY = "capacity"  # no cause: all there is, which the others sum to
    MEASURED = "measured"  # no cause: GPU time of runs of which their use was measured, as it was told
    WORKED = "worked"  # no cause: of that the part that worked


HELD = (GpuCause.STARTING, GpuCause.STOPPING)
KEPT = (GpuCause.RESERVED, GpuCause.EARMARKED)
RUNNING = (GpuCause.USED, GpuCause.UNUSED)
USE = (GpuCause.MEASURED, GpuCause.WORKED)
"""Told beside the causes: part of what is used, and of no sum."""
NAMED = (*RUNNING, *HELD, *KEPT)
"""Causes of what is had by somebody whom the ledger names."""


class GpuOwner(NamedTuple):
    """One line of the account: names are "" where the cause has none."""

    pool: str
    flavor: str
    cause: GpuCause
    tenant: str = ""
    queue: str = ""
    user: str = ""
    job: str = ""
    project: str = ""


@dataclass(frozen=True, slots=True)
class HeldPod:
    """GPUs that one pod holds, or that are kept for it, and for whom; `roles` says what it needs besides."""

    cause: GpuCause
    tenant: str
    queue: str
    user: str
    job: str
    project: str
    placement: Placement
    roles: tuple[RoleNeed, ...]


RunHolds = tuple[object, ...]
"""Holdings of a run, and for whom, as far as the account tells it: equal ones have equal pods."""


@dataclass(frozen=True, slots=True)
class FreeGpus:
    """
    Free GPUs of a node that takes pods: `milli` in all, `largest` for one pod, whole GPUs together or a part of one.
    """

    pool: str
    flavor: str
    model: str
    milli: int
    largest: int
    cpu_milli: int
    memory_bytes: int
    pods: int


def _cause_of(run: Run) -> GpuCause:
    """Cause of all pods of a run but surplus ones on their way in or out."""
    if run.over or run.revoked is not None:
        return GpuCause.STOPPING
    if not run.started:
        return GpuCause.STARTING
    return GpuCause.UNUSED if run.idle_ts else GpuCause.USED


def what_it_holds(run: Run) -> RunHolds:
    """All of a run that `pods_of_run` follows from."""
    return _cause_of(run), run.run_id, run.queue, run.user, run.placements, run.roles, run.extra, run.released_ranks


def pods_of_run(run: Run) -> list[HeldPod]:
    """GPUs that the run's pods hold: a surplus pod may be on its way in or out beside others that work."""
    whole = _cause_of(run)
    extra = {each.placement.rank: each for each in run.extra if whole in RUNNING}
    found = []
    for place in run.places:
        surplus, cause = extra.get(place.rank), whole
        if surplus is not None and (surplus.leaving or not surplus.uid):
            cause = GpuCause.STOPPING if surplus.leaving else GpuCause.STARTING
        found.append(HeldPod(cause, run.tenant, run.queue, run.user, run.job_id, run.project, place, run.roles))
    return found


def pods_of_mark(state: State, mark: Earmark) -> list[HeldPod]:
    """GPUs kept for the owner of an earmark; runs that are being stopped may still hold it."""
    cause = GpuCause.RESERVED if mark.cause in ("head", "reservation") else GpuCause.EARMARKED
    job = state.jobs.get(mark.owner)
    names = ("", "", "") if job is None else (job.tenant, job.queue, job.user)
    project = "" if job is None else job.project
    return [HeldPod(cause, *names, mark.owner, project, place, mark.roles) for place in mark.placements]


def divided(
    node: Node, flavor: str, held: Iterable[HeldPod], closed: bool
) -> tuple[Mapping[GpuOwner, int], FreeGpus | None]:
    """
    Owners of the node's GPUs, and what is free of them; both together, and nothing else, are its capacity, a line, too.

    `held` are pods of runs, then of earmarks. `closed`: it takes nothing new, however well it is.
    """
    if node.gone or not node.gpus:
        return {}, None
    found = Counter({GpuOwner(node.pool, flavor, GpuCause.CAPACITY): node.gpus * WHOLE_GPU})
    is_out = closed or not node.ready
    left, beyond = [WHOLE_GPU] * node.gpus, list[GpuOwner]()
    for pod in held:
        owner = GpuOwner(node.pool, flavor, pod.cause, pod.tenant, pod.queue, pod.user, pod.job, pod.project)
        if is_out and pod.cause in KEPT:
            owner = GpuOwner(node.pool, flavor, GpuCause.OUT)
        for device in pod.placement.devices:
            if device < node.gpus:
                # At most what is left: an earmark lies on what the runs before it still hold.
                took = min(left[device], pod.placement.gpu_milli)
                left[device] -= took
                found[owner] += took
            elif node.gpu_beyond is not None:
                beyond.append(owner)  # the node lost the slot, and its holder has another GPU of those that are there
    for slot in node.gpu_others:
        owner = beyond.pop(0) if beyond else GpuOwner(node.pool, flavor, GpuCause.OTHERS)
        found[owner] += left[slot]
        left[slot] = 0
    free = sum(left)
    if is_out or not free:
        found[GpuOwner(node.pool, flavor, GpuCause.OUT)] += free
        return +found, None
    largest = left.count(WHOLE_GPU) * WHOLE_GPU or max(left)
    room = node.cpu_free, node.memory_free, node.pods_free
    return +found, FreeGpus(node.pool, flavor, node.gpu_model, free, largest, *room)
