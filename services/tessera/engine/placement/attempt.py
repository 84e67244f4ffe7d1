"""One try to place a gang: the nodes as they would be, and the pods placed so far. What it does not touch is shared."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from heapq import heapify, heappop
from operator import attrgetter

from tessera.domain.devices.resources import Node
from tessera.domain.work.gang import Gang
from tessera.engine.placement.feasible_nodes import FeasibleNodes
from tessera.engine.placement.fits import closed, count_bundles, placed_on, short_of
from tessera.engine.placement.placement_groups import BundleCounts, BundleSet
from tessera.engine.placement.rows.room_counts import RoomTable
from tessera.engine.placement.rows.table import Entry, NodeTable, entry, policy_for
from tessera.engine.scoring.protocol import ScoringPolicy
from tessera_schemas.work.placement import Placement

_rank = attrgetter("rank")
Savepoint = tuple[dict[str, Node], int]


class Attempt:
    """`nodes` is only read; what changes is kept apart, so that a try costs what it touches."""

    def __init__(
        self, gang: Gang, nodes: Mapping[str, Node], places: FeasibleNodes, table: RoomTable | None = None
    ) -> None:
        self._first_rank = gang.first_rank
        self._nodes = nodes
        self.changed: dict[str, Node] = {}
        """The nodes that have pods of this try, as with them."""
        self._table = table
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

    def suited(self, bundles: BundleSet) -> dict[str, None]:
        """Names of the nodes that suit every pod of a bundle, whatever room is left there."""
        return self.places.suited(bundles.kind)

    def counted(self, bundles: BundleSet, level: str) -> BundleCounts | None:
        """Number of bundles that each domain takes, those without room left out; None where nobody counts."""
        if self._table is None:
            return None
        before = self._table.by_domain(bundles.kind, level)
        if not self.changed:
            return before
        values, found = self.places.values(level), dict(before)
        for name, fewer in self._taken(bundles):
            value = values.get(name)
            if value is not None:
                found[value] -= fewer
                if not found[value]:
                    del found[value]
        return found

    def counted_in_all(self, bundles: BundleSet) -> int | None:
        """Number of bundles that all nodes take together; None as above."""
        if self._table is None:
            return None
        taken = sum(fewer for _, fewer in self._taken(bundles)) if self.changed else 0
        return self._table.total(bundles.kind) - taken

    def _taken(self, bundles: BundleSet) -> Iterator[tuple[str, int]]:
        """The nodes that take fewer bundles with the pods of this try, and how many fewer."""
        kind, suited = bundles.kind, self.places.suited(bundles.kind)
        for name, node in self.changed.items():
            fewer = count_bundles(kind, self._nodes[name]) - count_bundles(kind, node) if name in suited else 0
            if fewer:
                yield name, fewer

    def table(self) -> NodeTable:
        """The nodes without the pods of this try, as a table."""
        if self._table is None:
            return NodeTable(self._nodes, self.places)
        self._table.refresh()
        return self._table

    def gpu_free(self, names: Iterable[str]) -> int:
        """Thousandths of all their GPUs."""
        return sum(sum(self.node(name).gpu_free) for name in names)

    def mark(self) -> Savepoint:
        """Copy of what has changed so far, to go back to when a later step fails."""
        return dict(self.changed), len(self.placed)

    def back_to(self, mark: Savepoint) -> None:
        """Undo what was placed since."""
        self.changed, count = dict(mark[0]), mark[1]
        del self.placed[count:]

    def fill(self, bundles: BundleSet, names: Collection[str] | None, first: int, count: int) -> bool:
        """
        Place the bundles number `first` to `first + count - 1` on `names`, or on any node, as far as there is room.

        The best node by score takes them until it is full, then the next best: the pods of a gang talk to each other,
        so that they stay together where the score alone would part them.
        """
        others = self._table.ranking(bundles.kind) if names is None and self._table is not None else None
        scoring, last = policy_for(bundles.kind, self.places.scoring), first + count
        among = self.changed if others else names
        heap = self._entries(bundles, among, scoring) if among is None or among else []
        if others is not None and self.changed:
            others.leave_out(*self.changed)
        while first < last:
            other = others.best() if others is not None else None
            if not heap and other is None:
                break
            name = other[1] if other is not None and (not heap or other < heap[0]) else heappop(heap)[1]
            while True:  # it has room for one
                self._put(bundles, name, first, scoring)
                first += 1
                if first == last or short_of(bundles.kind, self.node(name)) is not None:
                    break
            if others is not None and first < last:
                others.leave_out(name)
        if others is not None:
            others.restore()
        return first == last

    def _entries(self, bundles: BundleSet, names: Collection[str] | None, scoring: ScoringPolicy) -> list[Entry]:
        """A heap of those of `names`, or of all nodes, that have room."""
        suited = self.places.suited(bundles.kind)
        among = suited if names is None else [name for name in names if name in suited]
        heap = [each for name in among if (each := entry(bundles.kind, self.node(name), scoring)) is not None]
        heapify(heap)
        return heap

    def _put(self, bundles: BundleSet, name: str, index: int, scoring: ScoringPolicy) -> None:
        """One bundle onto a node that it fits."""
        node = self.node(name)
        for role in bundles.roles:
            rank = self._first_rank[role.name] + index
            placement = placed_on(node, role.need, rank, role.name, scoring.device(role.need, node))
            node = node.taking(role.need, placement, 1)
            node = closed(node, placement.devices) if role.need.apart else node
            self.placed.append(placement)
        self.changed[name] = node
