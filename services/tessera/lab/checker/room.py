"""The checker's own book of nodes: what each has, what is held on it, and whether a pod may be there at all."""

from collections import Counter
from collections.abc import Iterable

from tessera_schemas.config import Queue
from tessera_schemas.facts import NodeSeen
from tessera_schemas.job import Role
from tessera_schemas.placement import Placement

NO_NODE = NodeSeen(kind="node_seen", name="none", gone=True)
Amounts = Counter[tuple[str, str]]
"""(node, what) to amount; `what` is cpu_milli, memory_bytes, pods, or gpu/<slot> in thousandths."""


def amounts(gang: Iterable[Role], placements: Iterable[Placement]) -> Amounts:
    """What these pods hold, node by node and device by device."""
    total = Amounts()
    for role, place in zip(gang, placements, strict=True):
        held = {"cpu_milli": role.resources.cpu_milli, "memory_bytes": role.resources.memory_bytes, "pods": 1}
        held |= {f"gpu/{device}": place.gpu_milli for device in place.devices}
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
        return int(getattr(seen, what))

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
            "the node's labels do not match": not role.node_selector.items() <= node.labels.items(),
            f"the node serves {node.device_profile}": not served,
            f"it does not tolerate {suffers}": bool(suffers),
        }
        return "; ".join(text for text, holds in wrong.items() if holds)
