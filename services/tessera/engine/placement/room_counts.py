"""
Room for each kind of pod that was asked about: kinds x rows of the table, the number of bundles that each node takes.

One rule keeps it true: the rows that changed are counted again, for all kinds at once, before the next answer.
"""

from collections.abc import Mapping

import numpy as np

from tessera.domain.resources import Node
from tessera.engine.placement.feasible_nodes import FeasibleNodes
from tessera.engine.placement.fits import BundleKind, count_bundles
from tessera.engine.placement.placement_groups import BundleCounts
from tessera.engine.placement.table import WHOLE, Bools, Ints, NodeTable

CELLS_MAX, KINDS_MAX = 1 << 24, 8_192
"""Kinds times rows, and kinds, that are kept; beyond, all kinds are counted anew when they are asked for."""

UNLIMITED = 1 << 60
NEVER, TOTAL = 4, 5


class RoomTable(NodeTable):
    """The nodes with their room for each kind, in all of them and in each domain of a level."""

    def __init__(self, nodes: Mapping[str, Node], places: FeasibleNodes) -> None:
        super().__init__(nodes, places)
        self._domains: dict[str, tuple[list[str], Ints]] = {}
        self._last_gain = 0
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
        at = self._row_of_kind(kind)
        return self._totals[at]

    def most_in_a_domain(self, kind: BundleKind, level: str) -> int:
        """Number of bundles that the roomiest domain of the level takes now."""
        at = self._row_of_kind(kind)
        found = self._most.get(level)
        if found is None:
            self.room_of_domains(kind, level)
            sums = self._by_level[level][: len(self._kinds), :-1]
            found = self._most[level] = sums.max(axis=1, initial=0).tolist()
        return found[at]

    def by_domain(self, kind: BundleKind, level: str) -> BundleCounts:
        """Number of bundles that each domain of the level takes; domains without room are left out."""
        of_kind, names = self.room_of_domains(kind, level), self.domains(level)[0]
        return {names[at]: int(of_kind[at]) for at in np.flatnonzero(of_kind).tolist()}

    def room_of_domains(self, kind: BundleKind, level: str) -> Ints:
        """Number of bundles that each domain of the level takes, in the order of `domains`."""
        at = self._row_of_kind(kind)
        found = self._by_level.get(level)
        if found is None:  # one more than there are domains, for the rows that are in none
            found = self._by_level[level] = np.zeros((len(self._room), len(self.domains(level)[0]) + 1), np.int64)
            for one in range(len(self._kinds)):
                self._sum_domains(level, one)
        of_kind: Ints = found[at, :-1]
        return of_kind

    def _sum_domains(self, level: str, at: int) -> None:
        sums = self._by_level[level][at]
        sums[:] = 0
        np.add.at(sums, self.domains(level)[1], self._room[at])

    def _row_of_kind(self, kind: BundleKind) -> int:
        """The kind's row of the room, which is brought up to date."""
        if self._stale or self._counted != self.changes:
            self._catch_up()
        at = self._kinds.get(kind)
        return self._add(kind) if at is None else at

    @property
    def last_gain(self) -> int:
        """Number of changes after which some kind last gained room on some node."""
        if self._stale or self._counted != self.changes:
            self._catch_up()
        return self._last_gain

    def _catch_up(self) -> None:
        self.refresh()
        if self._counted != self.changes:
            self._count_changed()

    def _forget(self) -> None:
        """Begin without any kind."""
        self._kinds: dict[BundleKind, int] = {}
        self._counted = self.changes
        self._special: dict[int, BundleKind] = {}
        """Kinds that ask for a share, for devices or for a MIG instance, by number."""
        self._nevers: dict[object, int] = {}
        self._suiting: list[Bools] = []
        """The rows that suit kinds, by the number that their `never` has."""
        many = min(KINDS_MAX, max(1, CELLS_MAX // max(1, len(self.names))))
        self._columns: Ints = np.zeros((many, 6), np.int64)
        """What a bundle asks for of each column of `free`, the number of its `never`, and the total, by kind."""
        self._room: Ints = np.zeros((many, len(self.names)), np.int64)  # no memory is taken before it is written
        self._by_level: dict[str, Ints] = {}
        self._totals: list[int] = []
        self._most: dict[str, list[int]] = {}
        """Most of one domain by level; like the totals as plain integers, which are read faster."""

    def _add(self, kind: BundleKind) -> int:
        if len(self._kinds) == len(self._room):
            self._forget()
            self._last_gain = self.changes + 1  # nobody has looked whether these kinds gained any
        at = len(self._kinds)
        never, need = self._nevers.setdefault(kind.never, len(self._nevers)), kind.whole
        self._suiting += [self.suits(kind)] if never == len(self._suiting) else []
        self._kinds[kind] = at
        self._columns[at, :NEVER] = len(kind.needs), need.cpu_milli, need.memory_bytes, need.gpus
        self._columns[at, NEVER] = never
        if need.gpu_milli or need.devices or need.mig_profile:
            self._special[at] = kind
        rows = np.flatnonzero(self._suiting[never] & (self.free[WHOLE] >= need.gpus))
        self._room[at, rows] = self._count(np.array([at]), rows)[0]
        total = self._columns[at, TOTAL] = self._room[at].sum()
        self._totals.append(int(total))
        for level in self._by_level:
            self._sum_domains(level, at)
        for level, most in self._most.items():
            most.append(int(self._by_level[level][at, :-1].max(initial=0)))
        return at

    def _count_changed(self) -> None:
        """Count the rows that changed for all kinds at once."""
        rows, many = self.rows_since(self._counted), len(self._kinds)
        self._counted = self.changes
        if not many:
            return
        if rows is None:
            rows = list(range(len(self.names)))
        now = self._count(np.arange(many), rows)
        more = now - self._room[:many, rows]
        if not more.any():
            return
        self._last_gain = self.changes if more.max() > 0 else self._last_gain
        self._room[:many, rows] = now
        self._columns[:many, TOTAL] += more.sum(axis=1)
        self._totals = self._columns[:many, TOTAL].tolist()
        self._most.clear()
        for level, sums in self._by_level.items():
            np.add.at(sums, (np.arange(many)[:, None], self.domains(level)[1][rows][None, :]), more)

    def _count(self, at: Ints, rows: list[int] | Ints) -> Ints:
        """Number of bundles of each of the kinds numbered `at` that each of the rows takes: as `count_bundles`."""
        columns = self._columns[at]
        found: Ints = np.array([suits[rows] for suits in self._suiting])[columns[:, NEVER]] * UNLIMITED
        for free, asked in zip(self.free, columns.T[:NEVER, :, None], strict=True):
            np.minimum(found, free[rows] // np.maximum(asked, 1) + (asked == 0) * UNLIMITED, out=found)
        np.maximum(found, 0, out=found)
        shares = dict[int, Ints]()
        for one, kind in ((one, self._special[number]) for one, number in enumerate(at) if number in self._special):
            milli, room = kind.whole.gpu_milli, found[one]
            if milli and not kind.whole.gpus:
                if milli not in shares:
                    shares[milli] = (np.maximum(self.gpu_free[rows], 0) // milli).sum(axis=1)
                np.minimum(room, shares[milli], out=room)
            for name, count in kind.whole.devices:
                np.minimum(room, np.maximum(self.devices_free(name)[rows], 0) // count, out=room)
            if kind.whole.mig_profile:
                for cell in np.flatnonzero(room).tolist():
                    room[cell] = count_bundles(kind, self.at[rows[cell]])
        return found
