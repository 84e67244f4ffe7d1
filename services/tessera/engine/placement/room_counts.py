"""
Room for each kind of pod, counted: in all nodes and in each domain of a level, and kept up to date as nodes change.

A node that changed is looked at once for each kind that is asked for again; nothing else is looked at. From the counts
follows at once that most gangs without room have none (`is_short`), without a search.
"""

from tessera.domain.gang import Gang
from tessera.engine.placement.feasible_nodes import FeasibleNodes
from tessera.engine.placement.fits import BundleKind
from tessera.engine.placement.node_order import StateRow, StateRows
from tessera.engine.placement.placement_groups import (
    BundleCounts,
    BundleSet,
    PlacementGroup,
    count_bundles,
    placement_groups,
)

KINDS_MAX = 8_192
TRIES_MAX = 64
"""How many domains of a level are tried: a lone role is held by the first that has the room, others may not be."""


class RoomCount:
    """Number of bundles of one kind that all nodes take, and those of each domain, as of the first `moved` moves."""

    __slots__ = ("by_level", "moved", "total")

    def __init__(self) -> None:
        self.moved = -1
        self.total = 0
        self.by_level: dict[str, BundleCounts] = {}


class RoomCounts:
    """The counts of the kinds that were asked for; `rows` tell their labels apart and are up to date when asked."""

    def __init__(self, rows: StateRows, places: FeasibleNodes) -> None:
        self._rows, self._places = rows, places
        self._counts: dict[BundleKind, RoomCount] = {}
        self._lacking: dict[Gang, tuple[int, bool]] = {}

    def total(self, kind: BundleKind) -> int:
        """Number of bundles that all nodes take now."""
        return self._count(kind).total

    def by_domain(self, kind: BundleKind, level: str) -> BundleCounts:
        """Number of bundles that each domain of the level takes; domains without room are left out."""
        count = self._count(kind)
        found = count.by_level.get(level)
        if found is None:
            found = count.by_level[level] = {}
            values = self._places.values(level)
            for row, room in self._rooms(kind):
                for value, nodes in row.domains(level, values).items():
                    found[value] = found.get(value, 0) + room * nodes
        return found

    def looks(self, gang: Gang) -> int:
        """
        Number of looks at a pod, a node or a state of nodes that a search for the gang takes at most, by the counts.

        Of each kind as many pods are tried as have room without the others; of each domain that may hold a group all
        nodes are looked at and all pods tried; and for the numbers of a refusal all states of nodes are looked at.
        """
        groups = placement_groups(gang)
        kinds = (bundles.kind for group in groups for bundles in group.bundle_sets)
        states = sum(1 for kind in kinds for _ in self._rows.suited(kind).with_gpus(kind.whole.gpus))
        return states + sum(self._looks_for(group) for group in groups)

    def _looks_for(self, group: PlacementGroup) -> int:
        sets = group.bundle_sets
        pods = sum(min(bundles.count, self.total(bundles.kind)) * len(bundles.roles) for bundles in sets)
        looks = 0 if group.bound else pods
        for level in group.levels:
            first, *others = [(self.by_domain(bundles.kind, level), bundles.count) for bundles in sets]
            able = [value for value, room in first[0].items() if room >= first[1]]
            for counts, count in others:
                able = [value for value in able if counts.get(value, 0) >= count]
            members = self._places.domains(level)
            looks += min(len(able), TRIES_MAX) * (pods + max((len(members[value]) for value in able), default=0))
        return looks

    def is_short(self, gang: Gang) -> bool:
        """
        Whether some pods of the gang have no place even without its others: then no search finds one.

        For a gang of equal pods that may lie anywhere, or are bound to a domain, that is exact.
        """
        known = self._lacking.get(gang)
        if known is None or known[0] != self._rows.moved:
            if len(self._lacking) >= KINDS_MAX:
                self._lacking.clear()
            lacks = any(self._has_no_place(group) for group in placement_groups(gang))
            known = self._lacking[gang] = self._rows.moved, lacks
        return known[1]

    def _has_no_place(self, group: PlacementGroup) -> bool:
        if not group.bound and not any(bundles.role.spread for bundles in group.bundle_sets):
            return any(self.total(bundles.kind) < bundles.count for bundles in group.bundle_sets)
        for level in group.levels:
            first, *others = [(self.by_domain(bundles.kind, level), bundles.count) for bundles in group.bundle_sets]
            held = (value for value, room in first[0].items() if room >= first[1])
            if any(all(counts.get(value, 0) >= count for counts, count in others) for value in held):
                return False
        return group.bound or any(map(self._is_not_even, group.bundle_sets))

    def _is_not_even(self, bundles: BundleSet) -> bool:
        label = bundles.role.spread
        if not label:
            return self.total(bundles.kind) < bundles.count
        there = dict.fromkeys(self._places.holding(bundles, label), 0) | self.by_domain(bundles.kind, label)
        return even_shares(bundles.count, there) is None

    def _count(self, kind: BundleKind) -> RoomCount:
        found = self._counts.get(kind)
        if found is None:
            if len(self._counts) >= KINDS_MAX:
                self._counts.clear()
            found = self._counts[kind] = RoomCount()
        if found.moved != self._rows.moved:
            self._catch_up(kind, found)
        return found

    def _catch_up(self, kind: BundleKind, count: RoomCount) -> None:
        moves = None if count.moved < 0 else self._rows.moves_since(count.moved)
        count.moved = self._rows.moved
        if moves is None:
            count.total, count.by_level = sum(room * len(row.names) for row, room in self._rooms(kind)), {}
            return
        for name, before, after in moves:
            more = self._room(kind, after) - (0 if before is None else self._room(kind, before))
            if more:
                count.total += more
                for level, counts in count.by_level.items():
                    value = self._places.values(level).get(name)
                    if value is not None:
                        counts[value] = counts.get(value, 0) + more
                        if not counts[value]:
                            del counts[value]

    def _rooms(self, kind: BundleKind) -> list[tuple[StateRow, int]]:
        """The rows with room, and how many bundles one of their nodes takes."""
        found, gpus = [], kind.whole.gpus
        for row in self._rows.suited(kind).with_gpus(gpus):
            if row.may_hold(kind) and (room := count_bundles(kind, row.node)):
                found.append((row, room))
        return found

    def _room(self, kind: BundleKind, row: StateRow) -> int:
        return count_bundles(kind, row.node) if row.may_hold(kind) and self._rows.suits(kind, row) else 0


def even_shares(count: int, by_value: BundleCounts) -> BundleCounts | None:
    """Number for each value so that the numbers differ by at most one; None when that cannot be."""
    if not by_value:
        return None
    each, more = divmod(count, len(by_value))
    roomy = sorted((value for value, room in by_value.items() if room > each), key=lambda v: (by_value[v], v))
    if min(by_value.values()) < each or len(roomy) < more:
        return None
    return dict.fromkeys(by_value, each) | dict.fromkeys(roomy[:more], each + 1)
