"""CPU and memory of pods that say none: their share of a node, by their GPUs, or by the CPU that they say. Pure."""

from collections.abc import Iterable, Iterator

from tessera.domain.devices.resources import WHOLE_GPU, Node
from tessera.domain.queues import QueueTree
from tessera_schemas.job import JobSpec, Resources, Role
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.text.units import format_memory, format_milli
from tessera_schemas.work.arrays import SERVICE_TASKS, JobArray
from tessera_schemas.work.tenant_shares import Limits

CORE, GIB = 1000, 1 << 30
NO_LIMITS = Limits()
WITHOUT_GPUS = {"cpu_milli": CORE, "memory_bytes": GIB}
UNKNOWN_NODE = {"cpu_milli": 4 * CORE, "memory_bytes": 16 * GIB}
"""By GPU, while no node is known that could hold the pod."""
KEPT_EIGHTHS = 7
"""Of a node's share, in eighths: the rest is left to what runs on every node, and whoever asks for it by number."""
OTHERS = "; say cpu and memory for others"
UNIT = {"cpu_milli": CORE, "memory_bytes": GIB}


def fill_amounts(
    spec: JobSpec, tree: QueueTree | None, nodes: Iterable[Node], limits: Limits = NO_LIMITS, as_made: bool = False
) -> tuple[JobSpec, tuple[str, ...]]:
    """
    The spec with CPU and memory for each role that does not say them, and what was decided, in words.

    The default of its tenant's `limits` goes first; else it is a share of a node within the least and most of a pod.
    Pods that have a node to themselves ask for no less than its share of a node, whatever they say, so that quotas
    count it; of pods that are `as_made` already nothing changes.
    """
    raised = [role.exclusive and not as_made for role in spec.roles]
    if not any(raised) and all(role.resources.cpu_milli and role.resources.memory_bytes for role in spec.roles):
        return spec, ()
    pool = None if tree is None else tree.pool(spec.queue)
    there = [node for node in nodes if pool is not None and node.pool == pool and not node.gone]
    roles, notes = list[Role](), list[str]()
    for role, is_raised in zip(spec.roles, raised, strict=True):
        more, of = _share_of_whole(role, there) if is_raised else _within_limits(_share(role, there), role, limits)
        said = {field: getattr(role.resources, field) for field in more}
        missing = {
            field: amount for field, amount in more.items() if not said[field] or (is_raised and said[field] < amount)
        }
        roles.append(role.model_copy(update={"resources": role.resources.model_copy(update=missing)}))
        if missing:
            notes.append(f"{role.name}: {_words(missing)}, {of}{'' if is_raised else OTHERS}")
    return spec.model_copy(update={"roles": tuple(roles)}), tuple(notes)


def fill_replicas(spec: JobSpec) -> JobSpec:
    """The spec of a service with its replicas, which are tasks of an array that has always another one."""
    return spec if spec.service is None else spec.model_copy(update={"array": JobArray(tasks=SERVICE_TASKS)})


def _share(role: Role, nodes: Iterable[Node]) -> tuple[dict[str, int], str]:
    """Amounts of one pod by field, and words for where they come from: the smallest share of all nodes that fit."""
    asked = role.resources
    milli = asked.total_gpu_milli
    if not milli:
        shares = [node.memory_bytes * asked.cpu_milli // node.cpu_milli for node in nodes if _holds_cpu(node, asked)]
        if not shares:
            return _within(WITHOUT_GPUS, asked), "as for each pod without GPUs"
        memory = min(shares) * KEPT_EIGHTHS // 8
        whole = max(memory - memory % GIB, min(memory, GIB), 1)
        return _within({"memory_bytes": whole}, asked), "its share of a node by its CPU"
    models = set(role.gpu_models)
    fit = [node for node in nodes if node.gpus and node.gpus >= asked.gpus and (not models or node.gpu_model in models)]
    fit = [node for node in fit if node.offers_gpus_of(asked.gpu_resource, role.gpu_models)]
    if not fit:
        unknown = {field: max(UNIT[field], amount * milli // WHOLE_GPU) for field, amount in UNKNOWN_NODE.items()}
        return _within(unknown, asked), "as long as no node is known that could hold it"
    least: dict[str, int] = {}
    for field, unit in UNIT.items():
        share = min(getattr(node, field) * milli * KEPT_EIGHTHS // (8 * WHOLE_GPU * node.gpus) for node in fit)
        least[field] = max(share - share % unit, min(share, unit), 1)
    return _within(least, asked), f"its share of a node with {min(node.gpus for node in fit)} GPUs"


def _within_limits(share: tuple[dict[str, int], str], role: Role, limits: Limits) -> tuple[dict[str, int], str]:
    """The share of a pod within what its tenant's limits say of pods, or their default in its place."""
    found, of = share
    amounts, defaults = dict(found), 0
    for field, amount in found.items():
        least, default, most = (getattr(part, field) for part in (limits.pod_min, limits.pod_default, limits.pod_max))
        amounts[field] = default or min(max(amount, least or amount), most or amount)
        defaults += default is not None and not getattr(role.resources, field)
    return _within(amounts, role.resources), "by default for pods of the tenant" if defaults else of


def find_pod_faults(spec: JobSpec, limits: Limits) -> Iterator[Reason]:
    """A refusal for each amount of a pod that is below the least, or above the most, of its tenant."""
    least, most = limits.pod_min, limits.pod_max
    for index, role in enumerate(spec.roles):
        for field in UNIT:
            asked, low, high = getattr(role, field), getattr(least, field), getattr(most, field)
            if low is not None and asked < low:
                yield _beyond(index, field, asked, low, "pod_min")
            if high is not None and asked > high:
                yield _beyond(index, field, asked, high, "pod_max")
        gpu_milli = role.resources.total_gpu_milli
        if most.gpus is not None and gpu_milli > most.gpus * WHOLE_GPU:
            yield _beyond(index, "gpu_milli", gpu_milli, most.gpus * WHOLE_GPU, "pod_max")


def _beyond(index: int, field: str, asked: int, bound: int, which: str) -> Reason:
    where = f"roles[{index}].resources.{'gpus' if field == 'gpu_milli' else field}"
    numbers = {field: asked, f"{which}_{field}": bound}
    return Reason(code=Code.EXCEEDS_JOB_LIMIT, field=where, numbers=numbers, detail=f"limits.{which} of the tenant")


def _share_of_whole(role: Role, nodes: Iterable[Node]) -> tuple[dict[str, int], str]:
    """The same of a pod that has a node to itself: of the smallest of those with exactly its number of GPUs."""
    asked, models = role.resources, set(role.gpu_models)
    fit = [node for node in nodes if node.gpus == asked.gpus and (not models or node.gpu_model in models)]
    fit = [node for node in fit if not node.gpus or node.offers_gpus_of(asked.gpu_resource, role.gpu_models)]
    if not fit:
        return _share(role, ())
    least: dict[str, int] = {}
    for field, unit in UNIT.items():
        share = min(getattr(node, field) for node in fit) * KEPT_EIGHTHS // 8
        least[field] = max(share - share % unit, min(share, unit), 1)
    return _within(least, asked), f"its share of a node that it has to itself, of {asked.gpus} GPUs"


def _holds_cpu(node: Node, asked: Resources) -> bool:
    return 0 < asked.cpu_milli <= node.cpu_milli


def _within(amounts: dict[str, int], asked: Resources) -> dict[str, int]:
    """Amounts no larger than the limits that the pod says."""
    most = {"cpu_milli": asked.cpu_limit_milli, "memory_bytes": asked.memory_limit_bytes}
    return {field: min(amount, most[field] or amount) for field, amount in amounts.items()}


def _words(amounts: dict[str, int]) -> str:
    cpu, memory = amounts.get("cpu_milli"), amounts.get("memory_bytes")
    parts = [f"{format_milli(cpu)} CPU" if cpu else "", format_memory(memory) if memory else ""]
    return " and ".join(filter(None, parts))
