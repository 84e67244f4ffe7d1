"""
Owners of a node's GPUs, CPU and memory at one moment: a division of all there is, in which nothing is left over. Pure.

What is divided is what the cluster says that the node has; one that is gone has nothing.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from tessera.domain.devices.amounts import DeviceCounts
from tessera.domain.devices.claims import drawn_by_class
from tessera.domain.devices.resources import WHOLE_GPU, Need, Node, RoleNeed
from tessera.domain.entities import Earmark, Run
from tessera.domain.state import State
from tessera_schemas.cluster.device_claims import OF_CLASS
from tessera_schemas.work.placement import Placement


class GpuCause(StrEnum):
    """Way in which a GPU is had, or why nobody has it; of causes that hold at once the first in this order."""

    USED = "used"  # by a run
    UNUSED = "unused"  # held by a run that was warned that it uses none of its GPUs
    STARTING = "starting"  # held by a run whose pods are not all up
    STOPPING = "stopping"  # held by a run that ended or is to stop, until its pods are known to be gone
    OTHERS = "others"  # held by pods that Tessera does not manage
    OUT = "out"  # held by nobody, on a node that is not ready, cordoned, drained, silent or backed off
    BOOKED = (
        "booked"  # free in a window of a reservation, or each job in line waits for one, or would not leave in time
    )
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


OwnedAmounts = tuple[int, int, int]
"""
Thousandths of a GPU, thousandths of a CPU, bytes of memory; of an owner of a class, its devices and nothing else. In
books each times milliseconds.
"""
NO_AMOUNTS: OwnedAmounts = (0, 0, 0)


class Resource(StrEnum):
    """Resource whose owners an account names."""

    GPU = "gpu"
    CPU = "cpu"
    MEMORY = "memory"

    @property
    def place(self) -> int:
        """Place in `OwnedAmounts`."""
        return PLACES[self]


PLACES = {resource: place for place, resource in enumerate(Resource)}
AnyResource = str
"""A `Resource`, or devices of a class in the words of quotas, `class:NAME`."""


class GpuOwner(NamedTuple):
    """
    One line of the account: names are "" where the cause has none.

    `device_class`: the line is about devices that somebody claims by this class, counted as quotas count them, and
    about nothing else. Devices may be of several classes, and parts of one GPU overlap, so that such lines have no
    capacity to which they sum.
    """

    pool: str
    flavor: str
    cause: GpuCause
    tenant: str = ""
    queue: str = ""
    user: str = ""
    job: str = ""
    project: str = ""
    device_class: str = ""

    def part(self, amounts: OwnedAmounts, resource: AnyResource) -> int:
        """The amount of a resource in a line of this owner."""
        if self.device_class or resource.startswith(OF_CLASS):
            return amounts[0] if resource == OF_CLASS + self.device_class else 0
        return amounts[Resource(resource).place]


@dataclass(frozen=True, slots=True)
class HeldPod:
    """Resources that one pod holds, or that are kept for it, and for whom."""

    cause: GpuCause
    tenant: str
    queue: str
    user: str
    job: str
    project: str
    placement: Placement
    cpu_milli: int
    memory_bytes: int
    device_classes: DeviceCounts = ()


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
    """Pods of the run: a surplus pod may be on its way in or out beside others that work."""
    whole, needs = _cause_of(run), _needs(run.roles)
    extra = {each.placement.rank: each for each in run.extra if whole in RUNNING}
    found = []
    for place in run.places:
        surplus, cause = extra.get(place.rank), whole
        if surplus is not None and (surplus.leaving or not surplus.uid):
            cause = GpuCause.STOPPING if surplus.leaving else GpuCause.STARTING
        owner = run.tenant, run.queue, run.user, run.job_id, run.project
        found.append(HeldPod(cause, *owner, place, *_sizes(needs[place.role], place)))
    return found


def pods_of_mark(state: State, mark: Earmark) -> list[HeldPod]:
    """Pods for which an earmark keeps room; runs that are being stopped may still hold it."""
    cause = GpuCause.RESERVED if mark.cause in ("head", "reservation") else GpuCause.EARMARKED
    job = state.jobs.get(mark.owner)
    names = ("", "", "") if job is None else (job.tenant, job.queue, job.user)
    project, needs = "" if job is None else job.project, _needs(mark.roles)
    return [
        HeldPod(cause, *names, mark.owner, project, place, *_sizes(needs[place.role], place))
        for place in mark.placements
    ]


def _needs(roles: Sequence[RoleNeed]) -> dict[str, Need]:
    """Need of a pod by the name of its role."""
    return {role.name: role.need for role in roles}


def _sizes(need: Need, place: Placement) -> tuple[int, int, DeviceCounts]:
    """CPU, memory, and devices by class of a pod that was placed so."""
    return need.cpu_milli, need.memory_bytes, drawn_by_class(need.claims, place.drawn) if need.claims else ()


PodsByOwner = Sequence[tuple[GpuOwner, HeldPod]]
Division = tuple[Mapping[GpuOwner, OwnedAmounts], FreeGpus | None]


def divided(node: Node, flavor: str, held: Sequence[HeldPod], shut: GpuCause | None) -> Division:
    """
    Owners of what the node has, and its free GPUs, which are in no line; with these all lines sum to the capacity's.

    `held` are pods of runs, then of earmarks. `shut` is why it takes nothing new, however well it is.
    """
    if node.gone:
        return {}, None
    pool, shut = node.pool, shut if node.ready else GpuCause.OUT
    out = GpuOwner(pool, flavor, GpuCause.OUT)
    pods = [
        (
            out
            # In the window of a reservation its own jobs have earmarks.
            if shut is GpuCause.OUT and pod.cause in KEPT
            else GpuOwner(pool, flavor, pod.cause, pod.tenant, pod.queue, pod.user, pod.job, pod.project),
            pod,
        )
        for pod in held
    ]
    gpus, free = _gpus(node, flavor, pods, shut)
    cpu, memory = _cpu_and_memory(node, flavor, pods, shut)
    found = {GpuOwner(pool, flavor, GpuCause.CAPACITY): (node.gpus * WHOLE_GPU, node.cpu_milli, node.memory_bytes)}
    for owner in gpus | cpu:
        found[owner] = gpus.get(owner, 0), cpu.get(owner, 0), memory.get(owner, 0)
    lines = {owner: amounts for owner, amounts in found.items() if amounts != NO_AMOUNTS}
    return lines | _claimed(pods), free


def _claimed(pods: PodsByOwner) -> dict[GpuOwner, OwnedAmounts]:
    """Devices by class of owners whom the ledger names; most pods claim none."""
    found = dict[GpuOwner, OwnedAmounts]()
    for owner, pod in pods:
        for name, count in pod.device_classes if owner.cause in NAMED else ():
            of_class = owner._replace(device_class=name)
            found[of_class] = found.get(of_class, NO_AMOUNTS)[0] + count, 0, 0
    return found


def _gpus(
    node: Node, flavor: str, pods: PodsByOwner, shut: GpuCause | None
) -> tuple[dict[GpuOwner, int], FreeGpus | None]:
    found = defaultdict[GpuOwner, int](int)
    if not node.gpus:
        return found, None
    left, beyond = [WHOLE_GPU] * node.gpus, list[GpuOwner]()
    for owner, pod in pods:
        place = pod.placement
        parts = [(device, place.gpu_milli) for device in place.devices]
        parts += (
            node.gpu_parts((each.id, each.capacity) for each in place.drawn if not each.admin) if place.drawn else []
        )
        for device, milli in parts:
            if device < node.gpus:
                # At most what is left: an earmark lies on what the runs before it still hold.
                took = min(left[device], milli)
                left[device] -= took
                found[owner] += took
            elif node.gpu_beyond is not None:
                beyond.append(owner)  # the node lost the slot, and its holder has another GPU of those that are there
    for slot in node.gpu_others:
        owner = beyond.pop(0) if beyond else GpuOwner(node.pool, flavor, GpuCause.OTHERS)
        found[owner] += left[slot]
        left[slot] = 0
    for slot, milli in node.gpu_parts(node.drawn_by_others):
        took = min(left[slot], milli)
        found[GpuOwner(node.pool, flavor, GpuCause.OTHERS)] += took
        left[slot] -= took
    free = sum(left)
    if shut is not None or not free:
        found[GpuOwner(node.pool, flavor, shut or GpuCause.OUT)] += free
        return found, None
    largest = left.count(WHOLE_GPU) * WHOLE_GPU or max(left)
    room = node.cpu_free, node.memory_free, node.pods_free
    return found, FreeGpus(node.pool, flavor, node.gpu_model, free, largest, *room)


def _cpu_and_memory(
    node: Node, flavor: str, pods: PodsByOwner, shut: GpuCause | None
) -> tuple[dict[GpuOwner, int], dict[GpuOwner, int]]:
    """CPU and memory by the same owners. What is free has no reason: what waits is compared with free GPUs alone."""
    cpu, memory = defaultdict[GpuOwner, int](int), defaultdict[GpuOwner, int](int)
    cpu_left, memory_left = node.cpu_milli, node.memory_bytes
    # Claims go down in how sure they are: containers that run, containers of which only the sum is known, then room
    # that nobody has entered yet: earmarks lie on what runs that stop still have. The last claim is for all there is,
    # so that whatever the others leave has an owner and the sum is the capacity.
    claims = [(owner, pod.cpu_milli, pod.memory_bytes) for owner, pod in pods if pod.cause not in KEPT]
    claims.append((GpuOwner(node.pool, flavor, GpuCause.OTHERS), node.others.cpu_milli, node.others.memory_bytes))
    if len(claims) <= len(pods):
        claims += [(owner, pod.cpu_milli, pod.memory_bytes) for owner, pod in pods if pod.cause in KEPT]
    claims.append((GpuOwner(node.pool, flavor, shut or GpuCause.FREE), cpu_left, memory_left))
    for owner, cpu_milli, memory_bytes in claims:
        # At most what is left: a pod goes on on a node that shrank, and the kubelet gives it what there is.
        took, took_memory = min(cpu_left, cpu_milli), min(memory_left, memory_bytes)
        cpu_left -= took
        memory_left -= took_memory
        cpu[owner] += took
        memory[owner] += took_memory
    return cpu, memory
