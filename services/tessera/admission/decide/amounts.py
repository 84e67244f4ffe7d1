"""CPU and memory of pods that say none: their share of a node, by their GPUs, or by the CPU that they say. Pure."""

from collections.abc import Iterable

from tessera.domain.devices.resources import WHOLE_GPU, Node
from tessera.domain.queues import QueueTree
from tessera_schemas.job import JobSpec, Resources, Role
from tessera_schemas.text.units import format_memory, format_milli

CORE, GIB = 1000, 1 << 30
WITHOUT_GPUS = {"cpu_milli": CORE, "memory_bytes": GIB}
UNKNOWN_NODE = {"cpu_milli": 4 * CORE, "memory_bytes": 16 * GIB}
"""By GPU, while no node is known that could hold the pod."""
KEPT_EIGHTHS = 7
"""Of a node's share, in eighths: the rest is left to what runs on every node, and whoever asks for it by number."""
UNIT = {"cpu_milli": CORE, "memory_bytes": GIB}


def fill_amounts(spec: JobSpec, tree: QueueTree | None, nodes: Iterable[Node]) -> tuple[JobSpec, tuple[str, ...]]:
    """The spec with CPU and memory for each role that does not say them, and what was decided, in words."""
    if all(role.resources.cpu_milli and role.resources.memory_bytes for role in spec.roles):
        return spec, ()
    pool = None if tree is None else tree.pool(spec.queue)
    there = [node for node in nodes if pool is not None and node.pool == pool and not node.gone]
    roles, notes = list[Role](), list[str]()
    for role in spec.roles:
        more, of = _share(role, there)
        missing = {field: amount for field, amount in more.items() if not getattr(role.resources, field)}
        roles.append(role.model_copy(update={"resources": role.resources.model_copy(update=missing)}))
        if missing:
            notes.append(f"{role.name}: {_words(missing)}, {of}; say cpu and memory for others")
    return spec.model_copy(update={"roles": tuple(roles)}), tuple(notes)


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
