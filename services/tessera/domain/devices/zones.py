"""
NUMA zones of a node whose kubelet keeps each pod within one of them (topology manager, `single-numa-node`).

Only what a kubelet hands out by the piece counts: GPUs, other devices of plugins, and whole CPUs of Guaranteed pods.
Nobody says which pieces a pod has: pods of Tessera are taken to be where such a kubelet puts them, which is the first
zone that has all that they ask for.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache

ZoneAmounts = tuple[tuple[str, int], ...]
"""Amount by Kubernetes' name of the resource, in the order of names; CPU in thousandths."""


def counted_in_zones(asked: Iterable[tuple[str, int]], zones: tuple[ZoneAmounts, ...]) -> ZoneAmounts:
    """The part of what a pod asks for that some zone has: of anything else the kubelet knows no place."""
    there = {name for zone in zones for name, _ in zone}
    return tuple(sorted((name, count) for name, count in asked if count and name in there))


def held_in_zones(
    zones: tuple[ZoneAmounts, ...], held: tuple[ZoneAmounts, ...], asked: Iterable[tuple[str, int]], sign: int
) -> tuple[ZoneAmounts, ...]:
    """Amounts of pods after one more came (`sign` 1), or one went (-1); a pod without any of zones counts for none."""
    pod = counted_in_zones(asked, zones)
    change, had = Counter((pod,) if pod else ()), Counter(held)
    return tuple(sorted((had + change if sign > 0 else had - change).elements()))


@lru_cache(maxsize=16_384)
def free_in_zones(zones: tuple[ZoneAmounts, ...], held: tuple[ZoneAmounts, ...]) -> tuple[Mapping[str, int], ...]:
    """
    What is left of each zone beside pods that hold these amounts.

    In which order the pods came is not known; the largest go first. A pod that fits no zone takes what is left of each,
    in order.
    """
    free = [dict(zone) for zone in zones]
    for pod in sorted(held, reverse=True):
        whole = next((zone for zone in free if holds(zone, pod)), None)
        for name, count in pod:
            for zone in free if whole is None else (whole,):
                taken = min(count, zone.get(name, 0))
                zone[name] = zone.get(name, 0) - taken
                count -= taken
    return tuple(free)


def holds(zone: Mapping[str, int], pod: ZoneAmounts) -> bool:
    """Whether the zone has all that the pod asks for."""
    return all(zone.get(name, 0) >= count for name, count in pod)
