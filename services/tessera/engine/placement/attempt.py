"""
One try to place a gang: the nodes as they would be, and the pods placed so far. What it does not touch is shared.

`Ranks` is what one try leaves to the next: what is known of the nodes, whatever gang asks.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop
from operator import attrgetter

from tessera.domain.gang import Gang
from tessera.domain.resources import Node
from tessera.engine.placement.feasible_nodes import FeasibleNodes
from tessera.engine.placement.fits import BundleKind, placed_on, short_of
from tessera.engine.placement.node_order import (
    Entry,
    Family,
    Ranking,
    StateRow,
    StateRows,
    SuitedRows,
    entry,
    policy_for,
)
from tessera.engine.placement.placement_groups import BundleCounts, BundleSet, count_bundles
from tessera.engine.placement.room_counts import RoomCounts
from tessera.engine.scoring.protocol import ScoringPolicy
from tessera_schemas.placement import Placement

KINDS_MAX = 4096
_rank = attrgetter("rank")
Mark = tuple[dict[str, Node], int]


class Ranks:
    """
    The rankings of one pass over `nodes`, and the room that they have for each kind.

    Nodes may change in what is free as long as `changed` is told of it; `places` is what is known of them besides.
    """

    def __init__(self, nodes: Mapping[str, Node], places: FeasibleNodes) -> None:
        self.scoring = places.scoring
        self._rows = StateRows(nodes, places.scoring)
        self._rankings: dict[BundleKind, Ranking] = {}
        self._families: dict[tuple[object, ...], Family] = {}
        self._counts = RoomCounts(self._rows, places)
        self.changed = self._rows.changed

    def of(self, kind: BundleKind) -> Ranking:
        """The ranking for a kind, as the nodes are now."""
        if self._rows.renewed(kind.labels) or len(self._rankings) >= KINDS_MAX:
            self._forget()
        found = self._rankings.get(kind)
        if found is None:
            found = self._rankings[kind] = self._family(kind).ranking(kind)
        found.catch_up()
        return found

    def _family(self, kind: BundleKind) -> Family:
        whole = kind.whole
        key = kind.never, whole.gpus, whole.gpu_milli, whole.mig_profile
        found = self._families.get(key)
        if found is None:
            found = self._families[key] = Family(self._rows, self.scoring)
        return found

    def _forget(self) -> None:
        self._rankings.clear()
        self._families.clear()

    def counts(self, *kinds: BundleKind) -> RoomCounts:
        """The room that the nodes have now, which tell apart what these kinds ask for."""
        for kind in kinds:
            self._renew(kind)
        return self._counts

    def suited(self, kind: BundleKind) -> SuitedRows:
        """The nodes that suit the kind, by their states."""
        self._renew(kind)
        return self._rows.suited(kind)

    @property
    def moved(self) -> int:
        """Number of changes of nodes so far, those that were looked at."""
        return self._rows.moved

    def touched(self, kinds: Sequence[BundleKind], moved: int) -> bool:
        """Whether a node that suits one of the kinds may have changed since there were so many changes."""
        moves, suits = self._rows.moves_since(moved), self._rows.suits
        return moves is None or any(suits(kind, row) for _, _, row in moves for kind in kinds)

    def drop_roomier(self, gangs: dict[Gang, list[BundleKind]], moved: int) -> int:
        """Drop those gangs for one of whose kinds a node may have gained room since; returns the changes so far."""
        self._rows.renewed(frozenset())
        moves = self._rows.moves_since(moved)
        if moves is None:
            gangs.clear()
        elif gangs:
            for row in {after for _, before, after in moves if before is None or after.is_roomier(before)}:
                for gang in [gang for gang, kinds in gangs.items() if any(row.may_hold(kind) for kind in kinds)]:
                    del gangs[gang]
        return self._rows.moved

    def _renew(self, kind: BundleKind) -> None:
        if self._rows.renewed(kind.labels):
            self._forget()


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

    def suited(self, bundles: BundleSet) -> dict[str, None]:
        """Names of the nodes that suit every pod of a bundle, whatever room is left there."""
        return self.places.suited(bundles)

    def counted(self, bundles: BundleSet, level: str) -> BundleCounts | None:
        """Number of bundles that each domain takes, those without room left out; None where nobody counts."""
        if self._ranks is None:
            return None
        before = self._ranks.counts(bundles.kind).by_domain(bundles.kind, level)
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
        if self._ranks is None:
            return None
        taken = sum(fewer for _, fewer in self._taken(bundles)) if self.changed else 0
        return self._ranks.counts(bundles.kind).total(bundles.kind) - taken

    def _taken(self, bundles: BundleSet) -> Iterator[tuple[str, int]]:
        """The nodes that take fewer bundles with the pods of this try, and how many fewer."""
        kind, suited = bundles.kind, self.places.suited(bundles)
        for name, node in self.changed.items():
            fewer = count_bundles(kind, self._nodes[name]) - count_bundles(kind, node) if name in suited else 0
            if fewer:
                yield name, fewer

    def rows(self, bundles: BundleSet) -> SuitedRows:
        """The nodes that suit the bundles, without the pods of this try, by their states."""
        if self._ranks is None:
            return SuitedRows(StateRow((), self._nodes[name]) for name in self.suited(bundles))
        return self._ranks.suited(bundles.kind)

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

    def fill(self, bundles: BundleSet, names: Collection[str] | None, first: int, count: int) -> bool:
        """
        Place the bundles number `first` to `first + count - 1` on `names`, or on any node, as far as there is room.

        The best node by score takes them until it is full, then the next best: the pods of a gang talk to each other,
        so that they stay together where the score alone would part them.
        """
        others = self._ranks.of(bundles.kind) if names is None and self._ranks is not None else None
        scoring, last = policy_for(bundles.kind, self.places.scoring), first + count
        among = self.changed if others else names
        heap = self._entries(bundles, among, scoring) if among is None or among else []
        while first < last:
            other = others.best(self.changed) if others else None
            if not heap and other is None:
                break
            name = other[1] if other is not None and (not heap or other < heap[0]) else heappop(heap)[1]
            while True:  # it has room for one
                self._put(bundles, name, first, scoring)
                first += 1
                if first == last or short_of(bundles.kind, self.node(name)) is not None:
                    break
        if others:
            others.restore()
        return first == last

    def _entries(self, bundles: BundleSet, names: Collection[str] | None, scoring: ScoringPolicy) -> list[Entry]:
        """A heap of those of `names`, or of all nodes, that have room."""
        suited = self.places.suited(bundles)
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
            self.placed.append(placement)
        self.changed[name] = node
