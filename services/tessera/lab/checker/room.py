"""The checker's own book of nodes: what each has, what is held on it, and whether a pod may be there at all."""

from collections import Counter

from tessera_schemas.facts import NodeSeen
from tessera_schemas.job import Role
from tessera_schemas.placement import Placement

Amounts = Counter[tuple[str, str]]
"""(node, what) to amount; `what` is cpu_milli, memory_bytes, pods, or gpu/<slot> in thousandths."""


def amounts(roles: dict[str, Role], placements: tuple[Placement, ...]) -> Amounts:
    """What these pods hold, node by node and device by device."""
    total = Amounts()
    for place in placements:
        asked = roles[place.role].resources
        total[place.node, "cpu_milli"] += asked.cpu_milli
        total[place.node, "memory_bytes"] += asked.memory_bytes
        total[place.node, "pods"] += 1
        for device in place.devices:
            total[place.node, f"gpu/{device}"] += place.gpu_milli
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

    def overfull(self, book: Amounts, added: Amounts) -> str:
        """What of the places added to is used above its size; "" if nothing is."""
        return "; ".join(f"{what} of {node}" for node, what in added if book[node, what] > self._size(node, what))

    def _size(self, node: str, what: str) -> int:
        seen = self.nodes.get(node) or NodeSeen(kind="node_seen", name="none")
        if what.startswith("gpu/"):
            return 1000 if 0 <= int(what[4:]) < seen.gpus else 0
        return int(getattr(seen, what))

    def misplaced(self, role: Role, place: Placement, pool: str | None) -> str:
        """Why this pod may not be on its node, whatever room there is; "" if it may."""
        node, asked = self.nodes.get(place.node), role.resources
        count, milli = (asked.gpus, 1000) if asked.gpus else (1, asked.gpu_milli) if asked.gpu_milli else (0, 0)
        if node is None or node.gone or not node.ready:
            return "the node is not ready"
        lets = {(t.key, t.value, t.effect) for t in role.tolerations}
        taints = [t for t in node.taints if t.effect != "PreferNoSchedule"]
        suffers = [t for t in taints if not lets & {(t.key, v, e) for v in ("", t.value) for e in ("", t.effect)}]
        devices_right = len(place.devices) == len(set(place.devices)) == count and place.gpu_milli == milli
        served = not count or {"whole": milli == 1000, "shares": milli < 1000}.get(node.device_profile, True)
        wrong = {
            f"the node is in pool {node.pool}, the queue uses {pool}": node.pool != pool,
            "the devices are not what its role asks for": not devices_right,
            f"the node has {node.gpu_model}": bool(role.gpu_models) and node.gpu_model not in role.gpu_models,
            "the node's labels do not match": not role.node_selector.items() <= node.labels.items(),
            f"the node serves {node.device_profile}": not served,
            f"it does not tolerate {suffers}": bool(suffers),
        }
        return next((text for text, holds in wrong.items() if holds), "")
