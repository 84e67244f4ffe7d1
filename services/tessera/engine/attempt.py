"""One try to place a gang: the nodes as they would be, and the pods placed so far. What it does not touch is shared."""

from collections.abc import Iterable, Mapping
from heapq import heapify, heappop
from itertools import accumulate

from tessera.domain.resources import Node, RoleNeed
from tessera.engine.fits import placed_on
from tessera.engine.places import Places
from tessera.engine.units import Part, short_of
from tessera_schemas.placement import Placement

Mark = tuple[dict[str, Node], int]


class Attempt:
    """`nodes` is only read; what changes is kept apart, so that a try costs what it touches."""

    def __init__(self, roles: tuple[RoleNeed, ...], nodes: Mapping[str, Node], places: Places) -> None:
        ranks = accumulate((role.replicas for role in roles), initial=0)
        self._first_rank = {role.name: rank for role, rank in zip(roles, ranks, strict=False)}
        self._nodes = nodes
        self._changed: dict[str, Node] = {}
        self.places = places
        self.placed: list[Placement] = []

    def node(self, name: str) -> Node:
        return self._changed.get(name) or self._nodes[name]

    def nodes(self) -> Iterable[Node]:
        return (self.node(name) for name in self._nodes)

    def suited(self, part: Part) -> dict[str, None]:
        return self.places.suited(part)

    def gpu_free(self, names: Iterable[str]) -> int:
        """Thousandths of all their GPUs."""
        return sum(sum(self.node(name).gpu_free) for name in names)

    def mark(self) -> Mark:
        return dict(self._changed), len(self.placed)

    def back_to(self, mark: Mark) -> None:
        """Undo what was placed since."""
        self._changed, count = dict(mark[0]), mark[1]
        del self.placed[count:]

    def fill(self, part: Part, names: Iterable[str], first: int, count: int) -> bool:
        """
        Place the bundles number `first` to `first + count - 1` on `names`, as far as there is room.

        It means: each bundle in turn goes to the best node that holds it. The bundles are equal, and a node that took
        one comes even sooner in the tie rule, so that it stays the best until it is full; then the next best node of
        those ranked before is the best of all, since nobody else has changed. So the nodes are ranked once and filled
        one after the other, with the same result.
        """
        ranked = [fullest_first(node) for name in names if short_of(part, node := self.node(name)) is None]
        heapify(ranked)
        last = first + count
        while first < last and ranked:
            name = heappop(ranked)[-1]
            while first < last and self._put(part, name, first):
                first += 1
        return first == last

    def _put(self, part: Part, name: str, index: int) -> bool:
        """One bundle onto a node, if it fits."""
        node = self.node(name)
        if short_of(part, node) is not None:
            return False
        for role in part.roles:
            placement = placed_on(node, role.need, self._first_rank[role.name] + index, role.name)
            node = node.taking(role.need, placement, 1)
            self.placed.append(placement)
        self._changed[name] = node
        return True


def fullest_first(node: Node) -> tuple[int, int, int, str]:
    """The tie rule: equal pods leave every node less full by the same, so it ranks nodes as they are before."""
    return sum(node.gpu_free), node.cpu_free, node.memory_free, node.name
