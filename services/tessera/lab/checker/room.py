"""The checker's own book of nodes: what each has, what is held on it, and whether a pod may be there at all."""

from collections import Counter
from collections.abc import Iterable, Sequence

from tessera_schemas.config import Queue
from tessera_schemas.facts import NodeSeen
from tessera_schemas.job import AffinityTerm, Role, Topology
from tessera_schemas.placement import Placement

NO_NODE = NodeSeen(kind="node_seen", name="none", gone=True)
Amounts = Counter[tuple[str, str]]
"""(node, what) to amount; `what` is cpu_milli, memory_bytes, pods, gpu/<slot> in thousandths, or device/<name>."""


def amounts(gang: Iterable[Role], placements: Iterable[Placement]) -> Amounts:
    """What these pods hold, node by node and device by device."""
    total = Amounts()
    for role, place in zip(gang, placements, strict=True):
        held = {"cpu_milli": role.resources.cpu_milli, "memory_bytes": role.resources.memory_bytes, "pods": 1}
        held |= {f"gpu/{device}": place.gpu_milli for device in place.devices}
        held |= {f"device/{name}": count for name, count in role.resources.devices.items()}
        total.update({(place.node, what): amount for what, amount in held.items()})
    return total


class Room:
    """
    Two sums: `held` by runs that are not released, and `kept` for runs that go on and for earmarks.

    An earmark may lie on devices that a stopping run still holds; a run may not. So a run must fit into both sums
    and an earmark only into `kept`. A node that shrinks breaks nothing: only what is added to it is judged.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, NodeSeen] = {}
        self.held, self.kept = Amounts(), Amounts()

    def take(self, book: Amounts, added: Amounts) -> list[tuple[str, str]]:
        """Add, and return what of the places added to is used above its size."""
        book.update(added)
        return [place for place in added if book[place] > self._size(*place)]

    def _size(self, node: str, what: str) -> int:
        seen = self.nodes.get(node, NO_NODE)
        if what.startswith("gpu/"):
            return 1000 if 0 <= int(what[4:]) < seen.gpus else 0
        return seen.devices.get(what[7:], 0) if what.startswith("device/") else int(getattr(seen, what))

    def misplaced(self, role: Role, place: Placement, queue: Queue | None) -> str:
        """Why this pod may not be on its node, whatever room there is; "" if it may."""
        node, asked = self.nodes.get(place.node, NO_NODE), role.resources
        count, milli = (asked.gpus, 1000) if asked.gpus else (1, asked.gpu_milli) if asked.gpu_milli else (0, 0)
        lets = {(t.key, t.value, t.effect) for t in role.tolerations}
        taints = [t for t in node.taints if t.effect != "PreferNoSchedule"]
        suffers = [t for t in taints if not lets & {(t.key, v, e) for v in ("", t.value) for e in ("", t.effect)}]
        devices_right = len(place.devices) == len(set(place.devices)) == count and place.gpu_milli == milli
        served = not count or {"whole": milli == 1000, "shares": milli < 1000}.get(node.device_profile, True)
        wrong = {
            "the node is not ready": node.gone or not node.ready,
            f"the node is in pool {node.pool}": queue is None or node.pool != queue.pool,
            "the devices are not what its role asks for": not devices_right,
            f"the node has {node.gpu_model}": bool(role.gpu_models) and node.gpu_model not in role.gpu_models,
            "its GPUs have less memory": asked.gpu_memory_bytes * 1000 > node.gpu_memory_bytes * milli,
            "the node's labels do not match": not role.node_selector.items() <= node.labels.items(),
            "its affinity does not hold": not all(_holds(term, node.labels) for term in role.affinity),
            f"the node serves {node.device_profile}": not served,
            f"it does not tolerate {suffers}": bool(suffers),
        }
        return "; ".join(text for text, holds in wrong.items() if holds)

    def apart(self, gang: Iterable[Role], places: Sequence[Placement]) -> str:
        """What roles ask of how their pods lie to each other, and do not get; "" if nothing."""
        roles, wrong = {role.name: role for role in gang}, []
        at = {name: [self.nodes.get(p.node, NO_NODE) for p in places if p.role == name] for name in roles}
        for name, role in roles.items():
            if (topology := role.topology) is not None and topology.required:
                grouped = [other for other, r in roles.items() if topology.group and r.topology == topology] or [name]
                levels = [{n.labels.get(level) for other in grouped for n in at[other]} for level in _levels(topology)]
                wrong += [] if any(len(v) == 1 and None not in v for v in levels) else [f"{name} is in no one domain"]
            if role.same_node_as and at[name] != at[role.same_node_as][: len(at[name])]:
                wrong.append(f"{name} is not where {role.same_node_as} is")
            if role.spread:
                pods = Counter(n.labels.get(role.spread) for n in at[name])
                uneven = None in pods or max(pods.values()) - min(pods.values()) > 1
                wrong += [f"{name} is not evenly spread over {role.spread}"] if uneven else []
        return "; ".join(wrong)


def _levels(topology: Topology) -> tuple[str, ...]:
    return topology.level, *topology.wider


def _holds(term: AffinityTerm, labels: dict[str, str]) -> bool:
    there = labels.get(term.key)
    by = {"In": there in term.values, "NotIn": there not in term.values, "Exists": there is not None}
    return by.get(term.operator, there is None)
