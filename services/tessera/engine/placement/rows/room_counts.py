"""
Room for each kind of pod that was asked about: the number of bundles that all nodes take, and those of each domain.

One rule keeps it true: where rows of the table changed, what all kinds gained or lost there is counted at once, before
the next answer.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from tessera.domain.devices.resources import WHOLE_GPU, Node
from tessera.engine.claims.extended import devices_free
from tessera.engine.claims.numa_zones import count_in_zones
from tessera.engine.placement.feasible_nodes import FeasibleNodes
from tessera.engine.placement.fits import BundleKind, count_bundles
from tessera.engine.placement.placement_groups import BundleCounts
from tessera.engine.placement.rows.table import WHOLE, Bools, Ints, NodeTable

KINDS_MAX = 8_192
"""Number of kinds that are kept; beyond, all are counted anew when they are asked for."""

CELLS_ONE_BY_ONE = 16
"""So few kinds on so few rows are counted one by one, which columns take longer for."""

UNLIMITED = 1 << 60
NEVER, TOTAL, GAIN = 4, 5, 6


class RoomTable(NodeTable):
    """The nodes with their room for each kind, in all of them and in each domain of a level."""

    def __init__(self, nodes: Mapping[str, Node], places: FeasibleNodes) -> None:
        super().__init__(nodes, places)
        self._domains: dict[str, tuple[list[str], Ints]] = {}
        self.keeps = any(node.kept_percent for node in self.at)
        """Whether anything is kept beside GPUs."""
        self._forget()

    def domains(self, level: str) -> tuple[list[str], Ints]:
        """The domains of a level, and the number of each row's domain among them; -1: it is in none."""
        found = self._domains.get(level)
        if found is None:
            values, numbers = self.places.values(level), dict[str, int]()
            rows = [numbers.setdefault(values[name], len(numbers)) if name in values else -1 for name in self.names]
            found = self._domains[level] = list(numbers), np.array(rows, np.int64)
        return found

    def total(self, kind: BundleKind) -> int:
        """Number of bundles that all nodes take now."""
        at = self._number(kind)
        return self._totals[at]

    def last_gain(self, kind: BundleKind) -> int:
        """Number of changes of rows after which the kind may have gained room on a node for the last time."""
        at = self._number(kind)
        return self._gains[at]

    @property
    def latest_gain(self) -> int:
        """Number of changes of rows after which any kind may have gained room for the last time."""
        if self._stale or self.replaced:
            self._catch_up()
        return self._latest_gain

    def most_in_a_domain(self, kind: BundleKind, level: str) -> int:
        """Number of bundles that the roomiest domain of the level takes now."""
        at = self._number(kind)
        found = self._most.get((level, at))
        if found is None:
            found = self._most[level, at] = int(self.room_of_domains(kind, level).max(initial=0))
        return found

    def by_domain(self, kind: BundleKind, level: str) -> BundleCounts:
        """Number of bundles that each domain of the level takes; domains without room are left out."""
        of_kind, names = self.room_of_domains(kind, level), self.domains(level)[0]
        return {names[at]: int(of_kind[at]) for at in np.flatnonzero(of_kind).tolist()}

    def room_of_domains(self, kind: BundleKind, level: str) -> Ints:
        """Number of bundles that each domain of the level takes, in the order of `domains`."""
        at, (names, numbers) = self._number(kind), self.domains(level)
        of_level = self._by_level.setdefault(level, {})
        found = of_level.get(at)
        if found is None:  # one more than there are domains, for the rows that are in none
            found = of_level[at] = np.zeros(len(names) + 1, np.int64)
            rows, counts = self._count_all(at)
            np.add.at(found, numbers[rows], counts)
        return found[:-1]

    def _number(self, kind: BundleKind) -> int:
        """The kind's number; its room is brought up to date."""
        if self._stale or self.replaced:
            self._catch_up()
        at = self._kinds.get(kind)
        return self._add(kind) if at is None else at

    def _catch_up(self) -> None:
        self.refresh()
        if self.replaced:
            self._count_changed()

    def _forget(self) -> None:
        """Begin without any kind."""
        self._kinds: dict[BundleKind, int] = {}
        self._special: dict[int, BundleKind] = {}
        """Kinds that ask for a share, devices, an instance or claims, or leave what is kept beside GPUs."""
        self._nevers: dict[object, int] = {}
        self._suiting: list[Bools] = []
        """The rows that suit kinds, by the number that their `never` has."""
        self._columns: Ints = np.zeros((KINDS_MAX, 7), np.int64)
        """By kind: what a bundle asks for of each column of `free`, number of its `never`, total and last gain."""
        self._by_level: dict[str, dict[int, Ints]] = {}
        self._most: dict[tuple[str, int], int] = {}
        self._latest_gain = self.changes + 1
        self._totals: list[int] = []
        self._gains: list[int] = []
        """Columns as plain integers, which are read faster."""

    def _add(self, kind: BundleKind) -> int:
        if len(self._kinds) == KINDS_MAX:
            self._forget()
        at, need = len(self._kinds), kind.whole
        never = self._nevers.setdefault(kind.never, len(self._nevers))
        self._suiting += [self.suits(kind)] if never == len(self._suiting) else []
        self._kinds[kind] = at
        self._columns[at, :NEVER] = len(kind.needs), need.cpu_milli, need.memory_bytes, need.gpus
        drawn = need.claims or self.any_zoned or (need.gpus and self.any_offering)
        if need.gpu_milli or need.devices or need.mig_profile or drawn or (kind.spares and self.keeps):
            self._special[at] = kind
        self._columns[at, NEVER] = never
        total = int(self._count_all(at)[1].sum())
        self._columns[at, TOTAL:] = total, self.changes + 1  # nobody has looked whether it gained any
        self._totals.append(total)
        self._gains.append(self.changes + 1)
        return at

    def _count_all(self, at: int) -> tuple[Ints, Ints]:
        """The rows that may have room for a kind, and how many bundles they take."""
        rows = np.flatnonzero(self._suiting[self._columns[at, NEVER]] & (self.free[WHOLE] >= self._columns[at, WHOLE]))
        return rows, self._count(np.array([at]), _Now(self, rows))[0]

    def _count_changed(self) -> None:
        """Count what all kinds gained and lost on the rows that changed."""
        changed, many = sorted(self.replaced.items()), len(self._kinds)
        rows, nodes = np.array([row for row, _ in changed], np.int64), [node for _, node in changed]
        self.replaced.clear()
        if many * len(nodes) <= CELLS_ONE_BY_ONE:
            more = np.array([self._moves(kind, changed) for kind in self._kinds], np.int64).reshape(many, len(nodes))
        else:
            numbers = np.arange(many)
            more = self._count(numbers, _Now(self, rows)) - self._count(numbers, _Then(self, rows, nodes))
        moved = np.flatnonzero(more.any(axis=1)).tolist()
        if not moved:
            return
        self._columns[:many, TOTAL] += more.sum(axis=1)
        gained = (more > 0).any(axis=1)
        self._columns[:many, GAIN][gained] = self.changes
        self._latest_gain = self.changes if gained.any() else self._latest_gain
        self._totals, self._gains = self._columns[:many, TOTAL].tolist(), self._columns[:many, GAIN].tolist()
        for level, of_level in self._by_level.items():
            for at in moved:
                if at in of_level:
                    np.add.at(of_level[at], self.domains(level)[1][rows], more[at])
        self._most.clear()

    def _moves(self, kind: BundleKind, changed: Sequence[tuple[int, Node]]) -> list[int]:
        """What a kind gained or lost on each row that had another node before."""
        suits, count = self._suiting[self._nevers[kind.never]], count_bundles
        return [count(kind, self.at[row]) - count(kind, before) if suits[row] else 0 for row, before in changed]

    def _count(self, at: Ints, part: "_Now") -> Ints:
        """Number of bundles of each of the kinds numbered `at` that each of the rows takes: as `count_bundles`."""
        columns, rows = self._columns[at], part.rows
        suits = np.array([suits[rows] for suits in self._suiting], np.bool_).reshape(len(self._suiting), len(rows))
        found: Ints = suits[columns[:, NEVER]] * UNLIMITED
        for free, asked in zip(part.free, columns.T[:NEVER, :, None], strict=True):
            np.minimum(found, free // np.maximum(asked, 1) + (asked == 0) * UNLIMITED, out=found)
        np.maximum(found, 0, out=found)
        shares = dict[tuple[int, bool, int], Ints]()
        special = ((one, self._special[number]) for one, number in enumerate(at.tolist()) if number in self._special)
        for one, kind in special:
            room, asked_shares = found[one], (kind.whole.gpu_milli, kind.whole.apart, kind.whole.gpu_parts)
            if kind.whole.gpu_milli and not kind.whole.gpus:
                if asked_shares not in shares:
                    shares[asked_shares] = count_sharing_by_row(part.gpu_free(), *asked_shares)
                np.minimum(room, shares[asked_shares], out=room)
            for name, count in kind.whole.devices:
                np.minimum(room, np.maximum(part.devices(name), 0) // count, out=room)
            if kind.spares and self.keeps:
                each = kind.whole.cpu_milli, kind.whole.memory_bytes, len(kind.needs)
                for free, asked in zip(part.open(), each, strict=True):
                    np.minimum(room, np.maximum(free, 0) // asked if asked else UNLIMITED, out=room)
            self._search(kind, part, room)
        return found

    def _search(self, kind: BundleKind, part: "_Now", room: Ints) -> None:
        """Bring the room of rows that no columns tell down to what their nodes take: instances, zones, claims."""
        # Zones first: a count by columns bounds them, and a search for claims is the dearest.
        if self.any_zoned:
            for cell in np.flatnonzero(room * self.zoned[part.rows]).tolist():
                room[cell] = count_in_zones(kind.needs, part.node(cell), int(room[cell]))
        if kind.whole.mig_profile or kind.whole.claims or self.any_offering:
            searched = room if kind.whole.mig_profile else room * self.offering[part.rows]
            for cell in np.flatnonzero(searched).tolist():
                room[cell] = count_bundles(kind, part.node(cell))


def count_sharing_by_row(gpu_free: Ints, milli: int, apart: bool, parts: int) -> Ints:
    """Number of pods of so many shares each that the GPUs of each row hold: as `count_sharing`."""
    of_devices = np.maximum(gpu_free, 0) // milli
    of_devices = np.minimum(of_devices, 1) if apart else of_devices
    most: Ints = of_devices.sum(axis=1) // parts
    # Rows that fit already stay as they are; the loop ends with the one that comes down the longest, after a few
    # halvings, and pods of one share need none.
    while parts > 1:
        fitting = np.minimum(of_devices, most[:, None]).sum(axis=1) // parts
        if (fitting >= most).all():
            break
        most = np.minimum(fitting, most)
    return most


class _Now:
    """Some rows of a table, as they are."""

    def __init__(self, table: NodeTable, rows: Ints) -> None:
        self._table, self.rows = table, rows
        self.free = table.free[:, rows] if len(rows) < len(table.names) else table.free

    def gpu_free(self) -> Ints:
        """Thousandths free on each device."""
        return self._table.gpu_free[self.rows]

    def open(self) -> Ints:
        """CPU, memory and places free to jobs without GPUs."""
        return self._table.open[:, self.rows]

    def devices(self, name: str) -> Ints:
        """Devices of that name that are free."""
        return self._table.devices_free(name)[self.rows]

    def node(self, at: int) -> Node:
        """The node of one of these rows."""
        node: Node = self._table.at[self.rows[at]]
        return node


class _Then(_Now):
    """The same rows, as they were when they had these nodes."""

    def __init__(self, table: NodeTable, rows: Ints, nodes: Sequence[Node]) -> None:
        super().__init__(table, rows)
        self._nodes = nodes
        amounts = [(n.pods_free, n.cpu_free, n.memory_free, n.gpu_free.count(WHOLE_GPU)) for n in nodes]
        self.free = np.array(amounts, np.int64).T

    def gpu_free(self) -> Ints:
        """Thousandths free on each device."""
        most = self._table.gpu_free.shape[1]
        return np.array([node.gpu_free + (0,) * (most - len(node.gpu_free)) for node in self._nodes], np.int64)

    def open(self) -> Ints:
        """CPU, memory and places free to jobs without GPUs."""
        return np.array([node.open for node in self._nodes], np.int64).T

    def devices(self, name: str) -> Ints:
        """Devices of that name that are free."""
        return np.array([devices_free(node, name) for node in self._nodes], np.int64)

    def node(self, at: int) -> Node:
        """The node of one of these rows."""
        return self._nodes[at]
