"""
Place a whole gang or none of it.

Best fit: each pod goes to the node that it leaves fullest, so that empty nodes stay whole for large gangs. The tie
rule, in order: least GPU left free on the node after the pod, least CPU left, least memory left, node name. A pod
without a GPU thus prefers nodes without a free GPU.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop

from tessera.domain.resources import WHOLE_GPU, Node, RoleNeed, gang_amount
from tessera.engine.fits import Miss, devices_for, fits, lacks_room, never_fits
from tessera_schemas.base import INT_MAX
from tessera_schemas.placement import Placement
from tessera_schemas.reasons import Code, Reason


class Room:
    """
    What is free in one pool during one pass over the line. Allocations only take from it.

    Since room only shrinks within a pass, a gang that found no place finds none later in the same pass either, and the
    first verdict stands for all equal gangs. It is kept by value: by identity, a restored committer would give other
    numbers than one that folded the whole ledger.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.nodes = {node.name: node for node in nodes}
        self._refused: dict[tuple[RoleNeed, ...], Reason] = {}

    def place(self, roles: tuple[RoleNeed, ...]) -> tuple[Placement, ...] | Reason:
        """A placement for every pod in rank order, taken from the room; or the reason, and nothing is taken."""
        known = self._refused.get(roles)
        if known is not None:
            return known
        verdict = place_gang(roles, self.nodes)
        if isinstance(verdict, Reason):
            self._refused[roles] = verdict
        else:
            self._take(roles, verdict)
        return verdict

    def _take(self, roles: tuple[RoleNeed, ...], placements: tuple[Placement, ...]) -> None:
        needs = {role.name: role.need for role in roles}
        for placement in placements:
            node = self.nodes[placement.node]
            self.nodes[node.name] = node.taking(needs[placement.role], placement, 1)


def place_gang(roles: tuple[RoleNeed, ...], nodes: dict[str, Node]) -> tuple[Placement, ...] | Reason:
    """
    Choose node and devices for every pod, or say why not; `nodes` is not changed.

    It means: each pod in turn goes to the best node that holds it. The pods of a role are equal, and a node that took
    one comes even sooner in the tie rule, so that it stays the best until it is full; then the next best node of those
    ranked before is the best of all, since nobody else has changed. So a role ranks the nodes once and fills them one
    after the other, with the same result.
    """
    if not any(node.ready for node in nodes.values()):
        return Reason(code=Code.NO_NODES)
    trial = dict(nodes)
    placed: list[Placement] = []
    wanted = 0
    for role in roles:
        wanted += role.replicas
        placed += _fill(role, trial, len(placed))
        if len(placed) < wanted:
            return _no_fit(role, len(placed), roles, trial)
    return tuple(placed)


def _fill(role: RoleNeed, nodes: dict[str, Node], rank: int) -> Iterator[Placement]:
    """Place the pods of a role, from `rank` on, as far as there is room; `nodes` is what they leave."""
    need, last = role.need, rank + role.replicas
    ranked = [
        _fullest_first(node)
        for node in nodes.values()
        if lacks_room(need, node) is None and never_fits(need, node) is None
    ]
    heapify(ranked)
    while rank < last and ranked:
        node = nodes[heappop(ranked)[-1]]
        while rank < last and lacks_room(need, node) is None:
            devices, milli = devices_for(need, node)
            placement = Placement(rank, role.name, node.name, devices, milli)
            node = nodes[node.name] = node.taking(need, placement, 1)
            rank += 1
            yield placement


def _fullest_first(node: Node) -> tuple[int, int, int, str]:
    """The tie rule: equal pods leave every node less full by the same, so it ranks nodes as they are before."""
    return sum(node.gpu_free), node.cpu_free, node.memory_free, node.name


def _no_fit(role: RoleNeed, placed: int, roles: tuple[RoleNeed, ...], nodes: dict[str, Node]) -> Reason:
    """How many nodes failed which test, and how near the nearest came."""
    misses = Counter(fits(role.need, node) for node in nodes.values())
    numbers = {miss.value: misses[miss] for miss in Miss if misses[miss]}  # in an order that no table's order changes
    numbers |= {"nodes": len(nodes), "pods_placed": placed, "pods": sum(r.replicas for r in roles)}
    suitable = [node for node in nodes.values() if never_fits(role.need, node) is None]
    if role.need.gpus:
        numbers["gpus_wanted"] = role.need.gpus
        numbers["most_gpus_free_on_a_node"] = max((n.gpu_free.count(WHOLE_GPU) for n in suitable), default=0)
    if role.need.gpu_milli:
        numbers["gpu_milli_wanted"] = role.need.gpu_milli
        numbers["most_gpu_milli_free_on_a_device"] = max((max(n.gpu_free, default=0) for n in suitable), default=0)
    return Reason(code=Code.NO_FIT, field=f"roles.{role.name}", numbers=numbers)


def inadmissible(roles: tuple[RoleNeed, ...], nodes: Iterable[Node]) -> Reason | None:
    """
    Why no state of these nodes could ever hold the gang, naming the largest that would fit; None when one might.

    Nodes count as empty and ready. Without any nodes nothing is known and nothing is refused. Each role is tried alone,
    where best fit is exact since its pods are equal; of several roles only the sums are compared, since best fit may
    miss a way to place them together that some other state of the nodes would lead it to.
    """
    empty = {node.name: _emptied(node) for node in nodes if not node.gone}
    if not empty:
        return None
    for role in roles:
        verdict = place_gang((role,), empty)
        if isinstance(verdict, Reason):
            return _role_inadmissible(role, verdict, empty)
    return _too_much_together(roles, empty)


def _role_inadmissible(role: RoleNeed, verdict: Reason, nodes: dict[str, Node]) -> Reason:
    allowed = [n for n in nodes.values() if never_fits(role.need, n) is None]
    numbers = dict(verdict.numbers)
    numbers["largest_cpu_milli"] = max((n.cpu_milli for n in allowed), default=0)
    numbers["largest_memory_bytes"] = max((n.memory_bytes for n in allowed), default=0)
    numbers["largest_gpus"] = max((n.gpus for n in allowed), default=0)
    return Reason(code=Code.INADMISSIBLE, field=verdict.field, numbers=numbers, detail=_largest(numbers))


def _largest(numbers: dict[str, int]) -> str:
    if not numbers["largest_cpu_milli"]:
        return "no node satisfies its GPU model, node selector and tolerations"
    if numbers["pods_placed"]:
        return f"at most {numbers['pods_placed']} of its {numbers['pods']} pods fit into the empty pool"
    return (
        f"the largest suitable node has {numbers['largest_gpus']} GPUs, "
        f"{numbers['largest_cpu_milli']} thousandths of a CPU and "
        f"{numbers['largest_memory_bytes']} bytes of memory"
    )


def _too_much_together(roles: tuple[RoleNeed, ...], nodes: dict[str, Node]) -> Reason | None:
    suitable = [n for n in nodes.values() if any(never_fits(role.need, n) is None for role in roles)]
    wanted = gang_amount(roles)
    for name, want, have in (
        ("gpu_milli", wanted.gpu_milli, sum(n.gpus for n in suitable) * WHOLE_GPU),
        ("cpu_milli", wanted.cpu_milli, sum(n.cpu_milli for n in suitable)),
        ("memory_bytes", wanted.memory_bytes, sum(n.memory_bytes for n in suitable)),
        ("pods", sum(role.replicas for role in roles), sum(n.pods for n in suitable)),
    ):
        if want > have:
            numbers = {f"wanted_{name}": min(want, INT_MAX), f"{name}_of_all_nodes": have}
            detail = "its roles together need more than all suitable nodes have"
            return Reason(code=Code.INADMISSIBLE, field="roles", numbers=numbers, detail=detail)
    return None


def _emptied(node: Node) -> Node:
    return Node(
        node.name,
        node.pool,
        True,
        node.cpu_milli,
        node.memory_bytes,
        node.pods,
        node.gpus,
        node.gpu_model,
        node.device_profile,
        node.labels,
        node.taints,
        node.cpu_milli,
        node.memory_bytes,
        node.pods,
        (WHOLE_GPU,) * node.gpus,
    )
