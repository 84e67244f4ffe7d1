"""
Copies of slices, classes and claims of the cluster, as far as an allocation is written from them.

They are followed from the first run with a claim on: a cluster without such devices is asked for nothing.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from tessera.binder.claims.decide.allocation import AllocatedDevice, id_of, results_of
from tessera.binder.claims.decide.steps import is_left_to_group, run_of
from tessera.binder.devices.decide.pools import PublishedPool, judge_pool, short_counters
from tessera.binder.devices.decide.slices import SliceReader
from tessera.binder.workloads.reading import at, items, mapping, text, whole
from tessera.kernel.errors import Transient
from tessera.kernel.kubernetes.informer import Delta, Informer
from tessera.kernel.ports import Clock, Cluster
from tessera.kernel.tasks.task_group import gather_all
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import CLAIMS_API
from tessera_schemas.work.placement import DrawnDevice

NO_POOL = PublishedPool("", "", frozenset(), {})
KINDS = ("ResourceSlice", "DeviceClass", "ResourceClaim")


class PublishedDevices:
    """Devices by `driver/pool/device`, and the claims that have them."""

    def __init__(self, cluster: Cluster, clock: Clock, who: str = "") -> None:
        self._slices, self._classes, self._claims = (
            Informer(cluster, f"{CLAIMS_API}/{kind}", clock, who=who) for kind in KINDS
        )
        self._slices_of: defaultdict[str, dict[str, None]] = defaultdict(dict)
        self._holders: defaultdict[str, dict[str, None]] = defaultdict(dict)
        self._holders_in: defaultdict[str, dict[str, None]] = defaultdict(dict)
        self._pools: dict[str, PublishedPool] = {}
        """Read when a counter is asked for, and forgotten when a slice of it changes."""
        self._needed = asyncio.Event()
        self.on_left: Callable[[str], None] = lambda run_id: None
        """Called with the run of each claim of ours that has only PodGroups left as users."""

    async def follow(self) -> None:
        """Follows all three for ever, once there is need."""
        await self._needed.wait()
        followed = ((self._slices, self._take_slices), (self._classes, None), (self._claims, self._take_claims))
        await gather_all(*(self._follow(informer, take) for informer, take in followed))

    async def _follow(self, informer: Informer, take: Callable[[list[Delta]], None] | None) -> None:
        while True:
            deltas = await informer.next()
            if take is not None:
                take(deltas)

    async def close(self) -> None:
        """Ends the watches."""
        await asyncio.gather(*(one.close() for one in (self._slices, self._classes, self._claims)))

    def check_synced(self) -> None:
        """Begins to follow, if nothing was needed yet. Raises Transient until all has been listed."""
        self._needed.set()
        if not all(one.synced for one in (self._slices, self._classes, self._claims)):
            raise Transient("devices, their classes and claims have not been listed yet")

    def devices(self, drawn: Iterable[DrawnDevice]) -> dict[str, AllocatedDevice]:
        """Drawn devices that are published, by id; each from the newest generation of its pool."""
        found = {one.id: self._device(one) for one in drawn}
        return {device_id: device for device_id, device in found.items() if device is not None}

    def classes(self) -> Mapping[str, Json]:
        """All classes by name."""
        return {text(one, "metadata", "name"): one for one in self._classes.objects.values()}

    def holders(self, device_id: str) -> list[Json]:
        """The claims that have the device, and do more than look after it."""
        return [self._claims.objects[uid] for uid in self._holders.get(device_id, ())]

    def holders_beside(self, drawn: Sequence[DrawnDevice], uid: str) -> Iterator[tuple[str, Json]]:
        """
        Counters of which these devices leave less than nothing, and for each a claim that has some of it.

        `uid` is the claim that they are drawn for. A pool of which slices are missing has no counters to go by.
        """
        for driver, name in sorted({(one.driver, one.pool) for one in drawn}):
            key = f"{driver}/{name}"
            pool = self._pools.get(key) or self._pools.setdefault(key, self._read(key))
            if not pool.counters:
                continue
            others = [self._claims.objects[each] for each in self._holders_in.get(key, ()) if each != uid]
            held = {text(one, "device"): claim for claim in others for one in _held(claim) if _pool_of(one) == key}
            ours = [one.device for one in drawn if (one.driver, one.pool) == (driver, name) and not one.admin]
            for what, device in short_counters(pool, ours, held.keys()):
                yield what, held[device]

    def _read(self, key: str) -> PublishedPool:
        read = map(SliceReader().read, (self._slices.objects[uid] for uid in self._slices_of.get(key, ())))
        there = [one for one in read if one is not None]
        return judge_pool(there) if there else NO_POOL

    def _device(self, drawn: DrawnDevice) -> AllocatedDevice | None:
        slices = [self._slices.objects[uid] for uid in self._slices_of.get(f"{drawn.driver}/{drawn.pool}", ())]
        for one in sorted(slices, key=_generation, reverse=True):
            for device in items(one, "spec", "devices"):
                if text(device, "name") == drawn.device:
                    return _published(mapping(one, "spec"), device)
        return None

    def _take_slices(self, deltas: list[Delta]) -> None:
        for delta in deltas:
            _index(self._slices_of, delta, _pool)
            for key in (*_pool(delta.object), *(_pool(delta.old) if delta.old is not None else ())):
                self._pools.pop(key, None)

    def _take_claims(self, deltas: list[Delta]) -> None:
        for delta in deltas:
            _index(self._holders, delta, _held_devices)
            _index(self._holders_in, delta, _pools_of_held)
            if delta.type != "DELETED" and is_left_to_group(delta.object):
                self.on_left(run_of(delta.object))


def _index(index: defaultdict[str, dict[str, None]], delta: Delta, keys_of: Callable[[Json], list[str]]) -> None:
    uid = delta.object["metadata"]["uid"]
    for key in keys_of(delta.old) if delta.old is not None else ():
        index[key].pop(uid, None)
        if not index[key]:
            del index[key]
    if delta.type != "DELETED":
        for key in keys_of(delta.object):
            index[key][uid] = None


def _pool(one: Json) -> list[str]:
    return [f"{text(one, 'spec', 'driver')}/{text(one, 'spec', 'pool', 'name')}"]


def _held_devices(claim: Json) -> list[str]:
    return list(dict.fromkeys(map(id_of, _held(claim))))


def _pools_of_held(claim: Json) -> list[str]:
    return list(dict.fromkeys(map(_pool_of, _held(claim))))


def _pool_of(result: Json) -> str:
    return f"{text(result, 'driver')}/{text(result, 'pool')}"


def _held(claim: Json) -> list[Json]:
    return [result for result in results_of(claim) if at(result, "adminAccess") is not True]


def _generation(one: Json) -> int:
    return whole(one, "spec", "pool", "generation") or 0


def _published(spec: Json, device: Json) -> AllocatedDevice:
    where = device if at(spec, "perDeviceNodeSelection") is True else spec
    node_bound = bool(text(where, "nodeName")) or at(device, "bindsToNode") is True
    return AllocatedDevice(device, node_bound, mapping(where, "nodeSelector") or None)
