"""How much a search for a gang would look at: a function of the nodes and the gang alone, whoever remembers what."""

from collections.abc import Sequence
from operator import attrgetter

import numpy as np

from tessera.domain.work.gang import Gang
from tessera.engine.placement.placement_groups import BundleSet, PlacementGroup, placement_groups
from tessera.engine.placement.rows.room_counts import RoomTable
from tessera.engine.placement.rows.shortage import LOOKS_COMPARED, TRIES_MAX, able_domains
from tessera.engine.placement.rows.table import WHOLE, Ints, state_of

STATES_PER_ROW = 4
"""So many states are remembered for each node; beyond, all are numbered anew."""

_whatever_lasts = attrgetter(
    "ready",
    "device_profile",
    "taints",
    "tolerated",
    "kept_percent",
    "devices",
    "others.devices",
    "gpus",
    "gpu_model",
    "gpu_memory_bytes",
    "mig_geometry",
    "mig_instances",
    "gpu_resource",
    "gpu_default",
    "share_milli",
    "zones",
)


class SearchLooks:
    """Counts looks; nodes in equal states have one number, which is looked up anew for those that changed."""

    def __init__(self, table: RoomTable) -> None:
        self._table, self._changes = table, -1
        self._lasting: list[tuple[object, ...]] = []
        self._numbers: dict[object, int] = {}
        self._states: Ints = np.zeros(0, np.int64)

    def count(self, gang: Gang) -> int:
        """
        Number of looks at a pod, a node or a state of nodes that a search for the gang takes at most, by the counts.

        Of each kind as many pods are tried as have room without the others; of each domain that may hold a group all
        nodes are looked at and all pods tried; and for the numbers of a refusal all states of nodes are looked at.
        """
        groups = placement_groups(gang)
        states = sum(self._count_states(bundles) for group in groups for bundles in group.bundle_sets)
        return states + sum(self._looks_for(group) for group in groups)

    def _looks_for(self, group: PlacementGroup) -> int:
        sets, table = group.bundle_sets, self._table
        if group.inside:  # each copy looks at all nodes once, and its pods are tried once, if none is tried in vain
            return sum(map(self._looks_for, group.inside)) + len(table.names)
        pods = sum(min(bundles.count, table.total(bundles.kind)) * len(bundles.needs) for bundles in sets)
        looks = 0 if group.bound else pods
        for level in group.levels:
            able, members = able_domains(sets, level, table), table.places.domains(level)
            looks += LOOKS_COMPARED if group.unasked and len(able) > 1 else 0
            looks += min(len(able), TRIES_MAX) * (pods + max((len(members[value]) for value in able), default=0))
        return looks

    def _count_states(self, bundles: BundleSet) -> int:
        """States of the nodes that suit the bundles and have their GPUs; the labels that they ask for count, too."""
        table, kind = self._table, bundles.kind
        self._catch_up()
        rows = np.flatnonzero(table.suits(kind) & (table.free[WHOLE] >= kind.whole.gpus))
        if table.places.scoring.by_name:
            return len(rows)
        if kind.labels:
            return len({(self._states[row], *map(table.at[row].label, sorted(kind.labels))) for row in rows.tolist()})
        return int(np.count_nonzero(np.bincount(self._states[rows])))

    def _catch_up(self) -> None:
        table, numbers = self._table, self._numbers
        table.refresh()
        rows: Sequence[int] | None = table.rows_since(self._changes) if self._changes >= 0 else None
        if rows is None or len(numbers) > STATES_PER_ROW * len(self._states):
            rows, self._states = range(len(table.names)), np.zeros(len(table.names), np.int64)
            numbers.clear()
            self._lasting = list(map(_whatever_lasts, table.at))
        for row in rows:
            self._states[row] = numbers.setdefault((self._lasting[row], state_of(table.at[row])), len(numbers))
        self._changes = table.changes
