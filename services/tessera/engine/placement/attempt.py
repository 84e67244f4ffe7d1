"""One try to place a gang: the nodes as they would be, and the pods placed so far. What it does not touch is shared."""

from collections.abc import Collection, Iterable, Mapping
from heapq import heapify, heappop
from operator import attrgetter

from tessera.domain.gang import Gang
from tessera.domain.resources import Node
from tessera.engine.placement.feasible_nodes import FeasibleNodes
from tessera.engine.placement.fits import placed_on, short_of
from tessera.engine.placement.node_order import Entry, Ranks, entry, policy_for
from tessera.engine.placement.placement_groups import Part
from tessera.engine.scoring.protocol import ScoringPolicy
from tessera_schemas.placement import Placement

_rank = attrgetter("rank")
Mark = tuple[dict[str, Node], int]


class Attempt:
    """`nodes` is only read; what changes is kept apart, so that a try costs what it touches."""

    def __init__(
        self, gang: Gang, nodes: Mapping[str, Node], places: FeasibleNodes, ranks: Ranks | None = None
    ) -> None:
        self._first_rank = gang.first_rank
        self._nodes = nodes
        self.changed: dict[str, Node] = {}
        """The nodes that have pods of this try, as with them."""
        self._ranks = ranks
        self.places = places
        self.placed: list[Placement] = []

    @property
    def placements(self) -> tuple[Placement, ...]:
        """All pods placed so far, in rank order."""
        return tuple(sorted(self.placed, key=_rank)) if len(self.placed) > 1 else tuple(self.placed)

    def node(self, name: str) -> Node:
        """Node as the pods placed so far would leave it."""
        return self.changed.get(name) or self._nodes[name]

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
        return dict(self.changed), len(self.placed)

    def back_to(self, mark: Mark) -> None:
        """Undo what was placed since."""
        self.changed, count = dict(mark[0]), mark[1]
        del self.placed[count:]

    def fill(self, part: Part, names: Collection[str] | None, first: int, count: int) -> bool:
        """
        Place the bundles number `first` to `first + count - 1` on `names`, or on any node, as far as there is room.

        The best node by score takes them until it is full, then the next best: the pods of a gang talk to each other,
        so that they stay together where the score alone would part them.
        """
        others = self._ranks.of(part.kind) if names is None and self._ranks is not None else None
        scoring, last = policy_for(part.kind, self.places.scoring), first + count
        among = self.changed if others else names
        heap = self._entries(part, among, scoring) if among is None or among else []
        while first < last:
            other = others.best(self.changed) if others else None
            if not heap and other is None:
                break
            name = other[1] if other is not None and (not heap or other < heap[0]) else heappop(heap)[1]
            while True:  # it has room for one
                self._put(part, name, first, scoring)
                first += 1
                if first == last or short_of(part.kind, self.node(name)) is not None:
                    break
        if others:
            others.restore()
        return first == last

    def _entries(self, part: Part, names: Collection[str] | None, scoring: ScoringPolicy) -> list[Entry]:
        """A heap of those of `names`, or of all nodes, that have room."""
        suited = self.places.suited(part)
        among = suited if names is None else [name for name in names if name in suited]
        heap = [each for name in among if (each := entry(part.kind, self.node(name), scoring)) is not None]
        heapify(heap)
        return heap

    def _put(self, part: Part, name: str, index: int, scoring: ScoringPolicy) -> None:
        """One bundle onto a node that it fits."""
        node = self.node(name)
        for role in part.roles:
            rank = self._first_rank[role.name] + index
            placement = placed_on(node, role.need, rank, role.name, scoring.device(role.need, node))
            node = node.taking(role.need, placement, 1)
            self.placed.append(placement)
        self.changed[name] = node
