"""
Pools of devices: whether the slices of the newest generation are all there, and what each node has of them. Pure.

Pools are told apart by driver and name together: two drivers may call theirs the same.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Set
from dataclasses import dataclass

from tessera.binder.devices.decide.reach import NodeReach, UnreadableSlice
from tessera.binder.devices.decide.slices import Counters, Slice, SliceDevice

PoolKey = tuple[str, str]
"""Driver and name."""


@dataclass(frozen=True, slots=True)
class PublishedPool:
    """
    A pool as its slices say it now: its devices by where they can be had, or the reason `why` it is offered nowhere.

    `nodes` are those that any slice of it names, and `wide` what slices say of several nodes, older ones too: these
    nodes hear that it is missing.
    """

    driver: str
    name: str
    nodes: frozenset[str]
    devices: Mapping[NodeReach, tuple[SliceDevice, ...]]
    counters: tuple[tuple[str, Counters], ...] = ()
    why: str = ""
    wide: tuple[NodeReach, ...] = ()

    @property
    def is_network(self) -> bool:
        """Whether a device, or a counter that devices draw on, is of several nodes."""
        return any(not reach.node for reach in self.devices) or (bool(self.counters) and len(self.devices) > 1)

    def reaches(self, node: str, labels: Mapping[str, str]) -> bool:
        """Whether a slice of it, even one that cannot be used, is for a node of that name and labels."""
        return node in self.nodes or any(reach.includes(node, labels) for reach in self.wide)

    def devices_of(self, node: str, labels: Mapping[str, str]) -> list[SliceDevice]:
        """The devices that pods on the node can have."""
        here = (reach for reach in (NodeReach(node), *self.wide) if reach.includes(node, labels))
        return [device for reach in here for device in self.devices.get(reach, ())]

    def devices_beyond(self, node: str, labels: Mapping[str, str]) -> list[SliceDevice]:
        """The devices that other pods alone can have, and that draw on counters of the pool."""
        there = [reach for reach in self.devices if self.is_network and not reach.includes(node, labels)]
        return [device for reach in there for device in self.devices[reach] if device.shape.uses]


def judge_pool(slices: Collection[Slice]) -> PublishedPool:
    """
    The pool of these slices, at least one and all of one driver and name, in any order.

    The newest generation alone counts, even after a driver began to count anew: then its older slices go, and until
    they have gone nobody can tell which ones are meant.
    """
    some = next(iter(slices))
    said = frozenset[NodeReach]().union(*(each.reaches for each in slices))
    nodes, wide = frozenset(each.node for each in said if each.node), tuple(each for each in said if not each.node)
    try:
        devices, counters = _read(slices)
    except UnreadableSlice as error:
        return PublishedPool(some.driver, some.pool, nodes, {}, (), str(error), wide)
    return PublishedPool(some.driver, some.pool, nodes, devices, counters, "", wide)


def short_counters(pool: PublishedPool, drawn: Collection[str], held: Set[str]) -> Iterator[tuple[str, str]]:
    """
    Each counter of which the drawn devices leave less than nothing beside the held ones, and a held one that uses it.

    `drawn` and `held` are names of devices; a device of both counts once.
    """
    uses = {each.shape.name: each.shape.uses for devices in pool.devices.values() for each in devices}
    left = Counter({(name, counter): have for name, amounts in pool.counters for counter, have in amounts})
    holders: dict[tuple[str, str], str] = {}
    for device in sorted({*drawn, *held}):
        for name, amounts in uses.get(device, ()):
            for counter, amount in amounts:
                left[name, counter] -= amount
                if device in held and amount:
                    holders.setdefault((name, counter), device)
    wanted = {(name, counter) for device in drawn for name, amounts in uses.get(device, ()) for counter, _ in amounts}
    for key in sorted(wanted):
        if left[key] < 0 and key in holders:
            yield f"{key[1]} of {key[0]}", holders[key]


def _read(
    slices: Collection[Slice],
) -> tuple[dict[NodeReach, tuple[SliceDevice, ...]], tuple[tuple[str, Counters], ...]]:
    newest = max(each.generation for each in slices)
    current = [each for each in slices if each.generation == newest]
    if unusable := sorted(each.unusable for each in current if each.unusable):
        raise UnreadableSlice(unusable[0])
    counts = {each.count for each in current}
    if counts != {len(current)}:
        raise UnreadableSlice(f"{len(current)} of {min(counts)} slices of generation {newest} are there")
    counters = sorted(counters for each in current for counters in each.counters)
    _check_no_repeat("counter set", [name for name, _ in counters])
    _check_no_repeat("device", [each.shape.name for one in current for each in one.devices])
    _check_uses(current, {name: dict(amounts) for name, amounts in counters})
    devices: dict[NodeReach, list[SliceDevice]] = {}
    for one in current:
        for each in one.devices:
            if (reach := each.shape.reach or one.reach) is not None:
                devices.setdefault(reach, []).append(each)
    return {reach: tuple(there) for reach, there in devices.items()}, tuple(counters)


def _check_no_repeat(what: str, names: list[str]) -> None:
    name, times = Counter(names).most_common(1)[0] if names else ("", 0)
    if times > 1:
        raise UnreadableSlice(f"{what} {name} is there {times} times")


def _check_uses(slices: Collection[Slice], counters: Mapping[str, Mapping[str, int]]) -> None:
    for one in slices:
        for device in one.devices:
            for name, amounts in device.shape.uses:
                if strange := [counter for counter, _ in amounts if counter not in counters.get(name, ())]:
                    raise UnreadableSlice(
                        f"device {device.shape.name} uses {strange[0]} of {name}, which the pool has not"
                    )
