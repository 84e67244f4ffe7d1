"""Nodes and needs of the engine's own kind, with what does not matter left small or roomy."""

from dataclasses import replace
from typing import Any

from tessera.domain.devices.empty_nodes import empty_node
from tessera.domain.devices.resources import Need, Node, RoleNeed
from tessera_schemas.facts import NodeSeen, Taint

GIB = 2**30


def node(name: str = "a", gpus: int = 8, **more: Any) -> Node:
    """An empty node; `free` says what is left of each device, `cpu_free` and the like what is left of the rest."""
    size = {"cpu_milli": 64_000, "memory_bytes": 512 * GIB, "pods": 110, "gpu_model": "h100"}
    left = {key: more.pop(key) for key in ("cpu_free", "memory_free", "pods_free") if key in more}
    free = more.pop("free", None)
    seen = NodeSeen.model_validate({"kind": "node_seen", "name": name, "gpus": gpus, **size, **more})
    made = empty_node(seen)
    fields = {field: getattr(made, field) for field in Node.__dataclass_fields__}
    return Node(**{**fields, **left, **({} if free is None else {"gpu_free": tuple(free)})})


def cut(name: str = "a", gpus: int = 1, geometry: str = "40gb", **more: Any) -> Node:
    """A node whose GPUs are cut into MIG instances; `taken` names the slices of each that are: `["11000000"]`."""
    taken = more.pop("taken", None)
    made = node(name, gpus, device_profile="mig", mig_geometry=geometry, **more)
    if taken is None:
        return made
    slices = tuple(tuple(int(n) for n in gpu) for gpu in taken)
    return replace(made, mig_taken=slices, gpu_free=tuple(1000 - 1000 // len(gpu) * sum(gpu) for gpu in slices))


def need(gpus: int = 0, gpu_milli: int = 0, **more: Any) -> Need:
    return Need(more.pop("cpu_milli", 1000), more.pop("memory_bytes", GIB), gpus, gpu_milli, **more)


def roles(*each: tuple[int, Need]) -> tuple[RoleNeed, ...]:
    """Pairs of replicas and need; named role-0, role-1 and so on."""
    return tuple(RoleNeed(f"role-{index}", replicas, wanted) for index, (replicas, wanted) in enumerate(each))


def lying(replicas: int, wanted: Need | None = None, name: str = "worker", **how: Any) -> RoleNeed:
    """A role that says how its pods lie to each other: levels, bound, group, beside, spread."""
    return RoleNeed(name, replicas, wanted or need(gpus=1), **how)


def cluster(*nodes: Node) -> dict[str, Node]:
    return {one.name: one for one in nodes}


def taint(key: str, value: str = "", effect: str = "NoSchedule") -> Taint:
    return Taint.model_validate({"key": key, "value": value, "effect": effect})
