"""Whether a gang lacks room: by the counts of the table, without a search."""

from bisect import bisect_left
from collections.abc import Iterable
from functools import lru_cache

import numpy as np

from tessera.domain.work.gang import Gang
from tessera.engine.placement.fits import BundleKind
from tessera.engine.placement.placement_groups import BundleCounts, BundleSet, PlacementGroup, placement_groups
from tessera.engine.placement.rows.room_counts import RoomTable

TRIES_MAX = 64
"""How many domains of a level are tried: a lone role is held by the first that has the room, others may not be."""
COMPARED_MAX, LOOKS_COMPARED = 8, 1_024
"""
How many domains are compared by cost where nobody asked for one, and the looks at a node or a pod that it may take:
large gangs go to the tightest.
"""


def is_short(gang: Gang, table: RoomTable) -> bool:
    """
    Whether some pods of the gang have no place even without its others: then no search finds one.

    For a gang of equal pods that may lie anywhere, or are bound to a domain, that is exact.
    """
    return any(_has_no_place(group, table) for group in placement_groups(gang))


def _has_no_place(group: PlacementGroup, table: RoomTable) -> bool:
    # A copy that fits nowhere alone fits nowhere within another group.
    return _has_none(group, table) or any(_has_none(each, table) for each in group.kinds_of_groups)


def _has_none(group: PlacementGroup, table: RoomTable) -> bool:
    if not group.bound and not any(bundles.role.spread for bundles in group.bundle_sets):
        return any(table.total(bundles.kind) < bundles.count for bundles in group.bundle_sets)
    sets = group.bundle_sets
    if group.bound and all(
        any(table.most_in_a_domain(bundles.kind, level) < bundles.count for bundles in sets) for level in group.levels
    ):
        return True
    if any(able_domains(group.bundle_sets, level, table) for level in group.levels):
        return False
    return group.bound or any(_is_not_even(bundles, table) for bundles in group.bundle_sets)


@lru_cache(maxsize=16_384)
def lone_kind(gang: Gang) -> BundleKind | None:
    """The kind of the pods of a gang that are equal and may lie on any nodes: its total alone says if there is room."""
    role, group = gang[0], placement_groups(gang)[0]
    models = role.one_model and (role.replicas > 1 or role.model_order)
    bundles = group.bundle_sets[0]
    apart = role.spread or role.groups or bundles.undivided
    return None if len(gang) > 1 or group.bound or models or apart else bundles.kind


def able_domains(bundle_sets: Iterable[BundleSet], level: str, table: RoomTable) -> list[str]:
    """The domains of the level with room for each of the sets on its own."""
    able = np.ones(len(table.domains(level)[0]), np.bool_)
    for bundles in bundle_sets:
        able &= table.room_of_domains(bundles.kind, level) >= bundles.count
    return [table.domains(level)[0][at] for at in np.flatnonzero(able)]


def _is_not_even(bundles: BundleSet, table: RoomTable) -> bool:
    label = bundles.role.spread
    if not label:
        return table.total(bundles.kind) < bundles.count
    there = dict.fromkeys(table.places.holding(bundles.kind, label), 0) | table.by_domain(bundles.kind, label)
    return even_shares(bundles.count, there, bundles.role.max_skew) is None


def lacks_gpus(gang: Gang, table: RoomTable) -> bool:
    """Whether the roles together ask for more GPUs than are free, where they may use the same nodes."""
    sets = (bundles for group in placement_groups(gang) for bundles in group.bundle_sets)
    using = [bundles.kind for bundles in sets if bundles.whole.total_gpu_milli]
    if len(gang) < 2 or len({kind.never for kind in using}) != 1 or using[0].whole.mig_profile or using[0].whole.claims:
        return False
    table.refresh()
    return gang.amount.gpu_milli > int(np.maximum(table.gpu_free[table.suits(using[0])], 0).sum())


def even_shares(count: int, by_value: BundleCounts, max_skew: int) -> BundleCounts | None:
    """
    Number for each value, as even as their room permits; None where the numbers differ by more than `max_skew`.

    The value with the least room may keep its number low. Others rise above it level by level, each as far as it has
    room; on the last level, which not all of them reach, the tightest go first.
    """
    if not by_value:
        return None
    # No number is below this one, and none can be above it by more than the skew.
    least = min(count // len(by_value), *by_value.values())
    above = bisect_left(range(max_skew + 1), count, key=lambda most: _most_up_to(least + most, by_value))
    if above > max_skew:
        return None
    level = least + max(above, 1)
    shares = {value: min(room, level - 1) for value, room in by_value.items()}
    roomy = sorted((value for value, room in by_value.items() if room >= level), key=lambda v: (by_value[v], v))
    return shares | dict.fromkeys(roomy[: count - sum(shares.values())], level)


def _most_up_to(level: int, by_value: BundleCounts) -> int:
    """Most bundles of which no value takes more than so many."""
    return sum(min(room, level) for room in by_value.values())
