"""
Tries to place a gang: the nodes as they would be, and the pods placed so far. What they do not touch is shared.

`Attempt` places pods one after the other, each as is best for itself. `place_by_trying` tries places for a small gang
with claims on devices until all of its pods have some together.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop
from operator import attrgetter

from tessera.domain.devices.networks import pools_drawn, reached, spreading
from tessera.domain.devices.resources import Node
from tessera.domain.storing.fast import replace
from tessera.domain.work.gang import Gang
from tessera.engine.claims.drawing import Drawn, draw_together, free_devices, named
from tessera.engine.claims.shortages import Shortage
from tessera.engine.placement.feasible_nodes import FeasibleNodes
from tessera.engine.placement.fits import closed, count_bundles, drawn_for, kind_of, placed_on, short_of
from tessera.engine.placement.placement_groups import BundleCounts, BundleSet
from tessera.engine.placement.rows.room_counts import RoomTable
from tessera.engine.placement.rows.table import Entry, NodeTable, cost_on, entry, policy_for
from tessera.engine.scoring.protocol import ScoringPolicy
from tessera_schemas.work.placement import Placement

_rank = attrgetter("rank")
Savepoint = tuple[dict[str, Node], int]
TriedPod = tuple[BundleSet, int]
"""A bundle set of one role, and the number of the pod within the role."""
PODS_TRIED_MAX, NODES_TRIED_MAX, TRIES_MAX = 8, 16, 100
"""Pods of a gang and nodes for each that `place_by_trying` looks at, and how often it tries a pod on a node."""


class Attempt:
    """`nodes` is only read; what changes is kept apart, so that a try costs what it touches."""

    def __init__(
        self, gang: Gang, nodes: Mapping[str, Node], places: FeasibleNodes, table: RoomTable | None = None
    ) -> None:
        self._first_rank = gang.first_rank
        self._nodes = nodes
        self.changed: dict[str, Node] = {}
        """The nodes that have pods of this try, or have heard of devices of networks; as with all they heard of."""
        self.untold: list[Placement] = []
        """Pods with devices of networks, of which a node hears when it is looked at, and all by `tell_all`."""
        self._received: dict[str, int] = {}
        """Number of these of which a node has heard."""
        self._table = table
        self.places = places
        self.placed: list[Placement] = []
        self.cost: int | None = None
        """Sum of what the pods cost where they were put, by the scoring that chose the nodes; None: nobody asks."""

    @property
    def placements(self) -> tuple[Placement, ...]:
        """All pods placed so far, in rank order."""
        return tuple(sorted(self.placed, key=_rank)) if len(self.placed) > 1 else tuple(self.placed)

    def node(self, name: str) -> Node:
        """Node as the pods placed so far would leave it."""
        node = self.changed.get(name) or self._nodes[name]
        return self._receive(node) if self.untold else node

    def tell_all(self) -> None:
        """Let all nodes hear what the pods placed so far have of networks, so that `changed` has them all."""
        if not self.untold:
            return
        there = reached(self._nodes.values(), pools_drawn(self.untold))
        new = [self.changed.get(node.name, node) for node in there if node.name not in self._received]
        self.changed |= {node.name: node for node in spreading(new, self.untold, 1)}
        for name in list(self._received):
            self._receive(self.changed.get(name) or self._nodes[name])
        self._forget_untold()

    def _forget_untold(self) -> None:
        self.untold.clear()
        self._received.clear()

    def _receive(self, node: Node) -> Node:
        """The node as it is with all pods that have devices of its networks."""
        rest = self.untold[self._received.get(node.name, 0) :]
        if rest:
            self._received[node.name] = len(self.untold)
            for other in spreading((node,), rest, 1):
                node = self.changed[node.name] = other
        return node

    def before(self, name: str) -> Node:
        """The node without the pods of this try."""
        return self._nodes[name]

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
        self.tell_all()
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
        self.tell_all()
        return dict(self.changed), len(self.placed)

    def back_to(self, mark: Savepoint) -> None:
        """Undo what was placed since."""
        self.changed, count = dict(mark[0]), mark[1]
        del self.placed[count:]
        self._forget_untold()

    def fill(self, bundles: BundleSet, names: Collection[str] | None, first: int, count: int) -> bool:
        """
        Place the bundles number `first` to `first + count - 1` on `names`, or on any node, as far as there is room.

        The best node by score takes them until it is full, then the next best: the pods of a gang talk to each other,
        so that they stay together where the score alone would part them.
        """
        others = self._table.ranking(bundles.kind) if names is None and self._table is not None else None
        is_spread = False
        if self.untold:
            self.tell_all()
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
            # Of nodes that share a network one may have taken what another was to have.
            if is_spread and short_of(bundles.kind, self.node(name)) is not None:
                if others is not None:
                    others.leave_out(name)
                continue
            has_room = True
            while has_room:
                is_spread = self._put(bundles, name, first, scoring) or is_spread
                first += 1
                has_room = first < last and short_of(bundles.kind, self.node(name)) is None
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

    def best(self, bundles: BundleSet, most: int) -> list[str]:
        """Nodes with room for one before this try, the best of them first."""
        if self._table is None:
            scoring, kind = self._scoring(bundles), bundles.kind
            found_at = (entry(kind, self._nodes[name], scoring) for name in self.suited(bundles))
            return [name for _, name in sorted(each for each in found_at if each is not None)[:most]]
        ranking, found = self._table.ranking(bundles.kind), list[str]()
        while len(found) < most and (other := ranking.best()) is not None:
            found.append(other[1])
            ranking.leave_out(other[1])
        ranking.restore()
        return found

    def put_drawn(self, pod: TriedPod, name: str, drawn: tuple[Drawn, ...]) -> None:
        """A pod onto a node with devices that were drawn for it."""
        (bundles, index), node = pod, self.node(name)
        role, rank = bundles.role, self._first_rank[bundles.role.name] + index
        devices = () if node.offer is None else named(drawn, node.offer, name)
        placement = Placement(rank, role.name, name, drawn=devices)
        self.placed.append(placement)
        self.changed[name] = node.taking(role.need, placement, 1)
        self._spread(placement)

    def _scoring(self, bundles: BundleSet) -> ScoringPolicy:
        return policy_for(bundles.kind, self.places.scoring)

    def _put(self, bundles: BundleSet, name: str, index: int, scoring: ScoringPolicy) -> bool:
        """One bundle onto a node that it fits; tells whether other nodes have less free by it."""
        node, is_spread = self.node(name), False
        if self.cost is not None:
            self.cost += cost_on(bundles.kind, node, scoring)
        # A pod that is alone draws its own devices, as do nearly all: this is walked for each pod of each gang.
        drawn = drawn_for(bundles.kind, node) if len(bundles.pods) > 1 else (None,)
        for (role, beyond), need, devices in zip(bundles.pods, bundles.kind.needs, drawn, strict=True):
            rank = self._first_rank[role.name] + index + beyond
            placement = placed_on(node, need, rank, role.name, scoring.device(need, node), devices)
            node = node.taking(need, placement, 1)
            node = closed(node, placement.devices) if need.apart else node
            self.placed.append(placement)
            is_spread = (bool(placement.drawn) and self._spread(placement)) or is_spread
        self.changed[name] = node
        return is_spread

    def _spread(self, placement: Placement) -> bool:
        """Let other nodes hear what the pod has of networks that reach them; tells whether there is anything."""
        if not pools_drawn((placement,)):
            return False
        self.untold.append(placement)
        return True


def place_by_trying(attempt: Attempt, bundle_sets: Sequence[BundleSet]) -> bool:
    """
    Place pods whose claims have devices together, though not where each takes what is best for itself.

    Nothing is placed where there is no such place among the best nodes, or none was found in time. Pods with GPUs
    besides their claims, or with claims that they share, are not tried.
    """
    pods = [(each, each.first + number) for each in bundle_sets for number in range(each.count)]
    # The number of ways grows with each pod; a large gang is left to the places that are best pod by pod.
    if len(pods) > PODS_TRIED_MAX or not all(map(_has_only_claims, bundle_sets)):
        return False
    return _Trials(attempt, pods).place(0)


class _Trials:
    """Places tried for pods in their order, depth first."""

    def __init__(self, attempt: Attempt, pods: Sequence[TriedPod]) -> None:
        self._attempt, self._pods, self._tries = attempt, pods, 0
        self._best = {bundles: attempt.best(bundles, NODES_TRIED_MAX) for bundles, _ in pods}
        self._there: dict[str, tuple[TriedPod, ...]] = {}

    def place(self, at: int, first: int = 0) -> bool:
        """
        Place all pods, those before `at` where they are; False where there is no place for all. `first` is the place
        among the best nodes where the last pod of the same set is: equal pods are not exchanged.
        """
        if at == len(self._pods):
            return self._put_all()
        pod, best = self._pods[at], self._best[self._pods[at][0]]
        # Of equal pods each tries only what comes after the one before it: two of them exchanged are no other way.
        is_last = at + 1 == len(self._pods) or self._pods[at + 1][0] is not pod[0]
        tried = set[object]()
        for place in range(first, len(best)):
            name, before = best[place], self._there.get(best[place], ())
            node = self._attempt.before(name)
            # Of nodes in equal states with the same pods one stands for all.
            state = free_devices(node), node.open, node.cpu_free, node.memory_free, node.pods_free, node.devices_free
            key = state, tuple(bundles.kind for bundles, _ in before)
            if key in tried:
                continue
            tried.add(key)
            self._tries += 1
            # Counted and never timed, so that a replay gives up at the same place.
            if self._tries > TRIES_MAX:
                return False
            self._there[name] = (*before, pod)
            if _hold(node, self._there[name]) and self.place(at + 1, 0 if is_last else place):
                return True
            self._there[name] = before
        return False

    def _put_all(self) -> bool:
        mark = self._attempt.mark()
        for name, pods in self._there.items():
            # Of the node as it is by now: what pods elsewhere have of a network is gone here. Without one the answers
            # are remembered, since they are of the same states.
            drawn = _drawn_for(self._attempt.node(name), pods)
            if isinstance(drawn, Shortage):
                self._attempt.back_to(mark)
                return False
            for pod, devices in zip(pods, drawn, strict=True):
                self._attempt.put_drawn(pod, name, devices)
        return True


def _has_only_claims(bundles: BundleSet) -> bool:
    need = bundles.role.need
    # Slots of GPUs are taken lowest first, whatever the claims draw: tried together they would be another search.
    return not (len(bundles.needs) > 1 or need.gpus or need.gpu_milli or need.mig_profile)


def _hold(node: Node, pods: Sequence[TriedPod]) -> bool:
    """Whether a node has room and devices for all of these pods."""
    left = node
    # Room is taken pod by pod, and devices for all at once: there the order of the pods would matter.
    for bundles, index in pods:
        need = replace(bundles.role.need, claims=())
        if short_of(kind_of((need,), not bundles.kind.spares), left) is not None:
            return False
        left = left.taking(need, Placement(index, bundles.role.name, node.name), 1)
    return not isinstance(_drawn_for(node, pods), Shortage)


def _drawn_for(node: Node, pods: Sequence[TriedPod]) -> tuple[tuple[Drawn, ...], ...] | Shortage:
    return draw_together(free_devices(node), tuple(bundles.role.need.claims for bundles, _ in pods))
