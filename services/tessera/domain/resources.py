"""
What a pod needs and what a node has, in integers: CPU in thousandths, memory in bytes, GPUs in thousandths per device.

Capacity is checked per device, never on a sum: two halves on two GPUs are not one GPU.
"""

from dataclasses import dataclass
from functools import lru_cache

from tessera_schemas.facts import NodeSeen
from tessera_schemas.job import GPU_MILLI, Role
from tessera_schemas.placement import Placement

WHOLE_GPU = GPU_MILLI


@dataclass(frozen=True, slots=True)
class Need:
    """What each of `replicas` equal pods needs. Equal needs compare and hash equal, so verdicts can be shared."""

    cpu_milli: int
    memory_bytes: int
    gpus: int = 0
    gpu_milli: int = 0
    gpu_models: tuple[str, ...] = ()
    node_selector: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[tuple[str, str, str], ...] = ()

    @property
    def total_gpu_milli(self) -> int:
        return self.gpus * WHOLE_GPU + self.gpu_milli


@dataclass(frozen=True, slots=True)
class RoleNeed:
    """One role of a gang: how many pods, and what each needs."""

    name: str
    replicas: int
    need: Need


def role_need(role: Role) -> RoleNeed:
    """The part of a role that decisions look at; the template stays in the ledger."""
    asked = role.resources
    return RoleNeed(
        role.name,
        role.replicas,
        Need(
            asked.cpu_milli,
            asked.memory_bytes,
            asked.gpus,
            asked.gpu_milli,
            tuple(sorted(set(role.gpu_models))),
            tuple(sorted(role.node_selector.items())),
            tuple(sorted((t.key, t.value, t.effect) for t in role.tolerations)),
        ),
    )


@dataclass(frozen=True, slots=True)
class Amount:
    """A quantity of everything that quotas count."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    gpu_milli: int = 0

    def plus(self, other: "Amount", sign: int = 1) -> "Amount":
        return Amount(
            self.cpu_milli + sign * other.cpu_milli,
            self.memory_bytes + sign * other.memory_bytes,
            self.gpu_milli + sign * other.gpu_milli,
        )


NOTHING = Amount()


@lru_cache(maxsize=65_536)
def shared(roles: tuple[RoleNeed, ...]) -> tuple[RoleNeed, ...]:
    """The same object for equal gangs: less memory, and finding one again in a dictionary compares no fields."""
    return roles


def gang_amount(roles: tuple[RoleNeed, ...]) -> Amount:
    """What the whole gang holds while it has a run."""
    return Amount(
        sum(r.replicas * r.need.cpu_milli for r in roles),
        sum(r.replicas * r.need.memory_bytes for r in roles),
        sum(r.replicas * r.need.total_gpu_milli for r in roles),
    )


@dataclass(frozen=True, slots=True)
class Node:
    """A node with its size and what is free on it. Free may be negative while a node has shrunk under its runs."""

    name: str
    pool: str
    ready: bool
    cpu_milli: int
    memory_bytes: int
    pods: int
    gpus: int
    gpu_model: str
    device_profile: str
    labels: tuple[tuple[str, str], ...]
    taints: tuple[tuple[str, str, str], ...]
    cpu_free: int
    memory_free: int
    pods_free: int
    gpu_free: tuple[int, ...]
    gone: bool = False

    def taking(self, need: Need, placement: Placement, sign: int) -> "Node":
        """The node after a pod took (`sign` 1) or gave back (-1) its share."""
        gpu = list(self.gpu_free)
        for device in placement.devices:
            # A slot beyond the node's devices can only be given back: the node shrank meanwhile.
            if device < len(gpu):
                gpu[device] -= sign * placement.gpu_milli
        return Node(
            self.name,
            self.pool,
            self.ready,
            self.cpu_milli,
            self.memory_bytes,
            self.pods,
            self.gpus,
            self.gpu_model,
            self.device_profile,
            self.labels,
            self.taints,
            self.cpu_free - sign * need.cpu_milli,
            self.memory_free - sign * need.memory_bytes,
            self.pods_free - sign,
            tuple(gpu),
            self.gone,
        )


def empty_node(seen: NodeSeen) -> Node:
    """The node as the cluster describes it, with nothing on it."""
    return Node(
        seen.name,
        seen.pool,
        seen.ready and not seen.gone,
        seen.cpu_milli,
        seen.memory_bytes,
        seen.pods,
        seen.gpus,
        seen.gpu_model,
        seen.device_profile,
        tuple(sorted(seen.labels.items())),
        tuple(sorted((t.key, t.value, t.effect) for t in seen.taints)),
        seen.cpu_milli,
        seen.memory_bytes,
        seen.pods,
        (WHOLE_GPU,) * seen.gpus,
        seen.gone,
    )


SHAPE = (
    "pool",
    "ready",
    "cpu_milli",
    "memory_bytes",
    "pods",
    "gpus",
    "gpu_model",
    "device_profile",
    "labels",
    "taints",
    "gone",
)


def is_as_seen(node: Node | None, seen: NodeSeen) -> bool:
    """Whether the ledger's node is the one that was seen, whatever runs hold on it. No node equals a gone one."""
    if node is None:
        return seen.gone
    fresh = empty_node(seen)
    return all(getattr(node, name) == getattr(fresh, name) for name in SHAPE)
