"""One try to place a gang: the nodes as they would be, and the pods placed so far. What it does not touch is shared."""

from collections.abc import Iterable, Mapping
from heapq import heapify, heappop
from itertools import accumulate

from tessera.domain.resources import Node, RoleNeed
from tessera.engine.placement.feasible_nodes import FeasibleNodes
from tessera.engine.placement.fits import placed_on
from tessera.engine.placement.node_order import Ranking, Ranks, entry, taste_for
from tessera.engine.placement.placement_groups import Part, short_of
from tessera.engine.scoring.policies import Taste
from tessera_schemas.placement import Placement

Mark = tuple[dict[str, Node], int]


class Attempt:
    """`nodes` is only read; what changes is kept apart, so that a try costs what it touches."""

    def __init__(
        self, roles: tuple[RoleNeed, ...], nodes: Mapping[str, Node], places: FeasibleNodes, ranks: Ranks | None = None
    ) -> None:
        firsts = accumulate((role.replicas for role in roles), initial=0)
        self._first_rank = {role.name: rank for role, rank in zip(roles, firsts, strict=False)}
        self._nodes = nodes
        self._changed: dict[str, Node] = {}
        self._ranks = ranks
        self.places = places
        self.placed: list[Placement] = []

    def node(self, name: str) -> Node:
        """Node as the pods placed so far would leave it."""
        return self._changed.get(name) or self._nodes[name]

    def before(self, name: str) -> Node:
        """The node without the pods of this try."""
        return self._nodes[name]

    def nodes(self) -> Iterable[Node]:
        """All nodes as the pods placed so far would leave them."""
        return (self.node(name) for name in self._nodes)

    def suited(self, part: Part) -> dict[str, None]:
        """Names of the nodes that suit every pod of a bundle, whatever room is left there."""
        return self.places.suited(part)

    def gpu_free(self, names: Iterable[str]) -> int:
        """Thousandths of all their GPUs."""
        return sum(sum(self.node(name).gpu_free) for name in names)

    def mark(self) -> Mark:
        """Copy of what has changed so far, to go back to when a later step fails."""
        return dict(self._changed), len(self.placed)

    def back_to(self, mark: Mark) -> None:
        """Undo what was placed since."""
        self._changed, count = dict(mark[0]), mark[1]
        del self.placed[count:]

    def fill(self, part: Part, names: Iterable[str], first: int, count: int) -> bool:
        """
        Place the bundles number `first` to `first + count - 1` on `names`, as far as there is room.

        The best node by score takes them until it is full, then the next best: the pods of a gang talk to each other,
        so that they stay together where the score alone would part them.
        """
        suited, last = self.places.suited(part), first + count
        if names is suited and self._ranks is not None:
            others, again = self._ranks.of(part, suited), self._changed
        else:
            others, again = Ranking(()), {name: self.node(name) for name in names if name in suited}
        taste = taste_for(part, self.places.taste)
        heap = [each for name in again if name in suited and (each := entry(part, self.node(name), taste)) is not None]
        heapify(heap)
        while first < last:
            other = others.best(self._changed)
            if not heap and other is None:
                break
            name = other[1] if other is not None and (not heap or other < heap[0]) else heappop(heap)[1]
            while first < last and short_of(part, self.node(name)) is None:
                self._put(part, name, first, taste)
                first += 1
        others.restore()
        return first == last

    def _put(self, part: Part, name: str, index: int, taste: Taste) -> None:
        """One bundle onto a node that it fits."""
        node = self.node(name)
        for role in part.roles:
            rank = self._first_rank[role.name] + index
            placement = placed_on(node, role.need, rank, role.name, taste.device(role.need, node))
            node = node.taking(role.need, placement, 1)
            self.placed.append(placement)
        self._changed[name] = node
