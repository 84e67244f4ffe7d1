"""
GPUs among published devices, and the part of one that each is, by the table of vendors. Pure.

A part counts by its share of its GPU's memory, rounded up, so that the parts of one GPU never seem less than it is.

As long as no watch has shown what the cluster has, the devices of a node stand as the ledger has them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tessera.binder.devices.decide.pools import PublishedPool
from tessera.binder.devices.decide.slices import SliceDevice
from tessera.domain.devices.resources import Node
from tessera_schemas.base import GPU_MILLI
from tessera_schemas.cluster.device_layouts import DeviceTaint, NodeOffer, TakenDevice
from tessera_schemas.cluster.device_vendors import GPU_DRIVERS, GpuDriver
from tessera_schemas.cluster.mig import PROFILES

_Key = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class PublishedGpus:
    """`parts`: for each device the number of its GPU, or None, and thousandths of it. `memory_bytes` is the least."""

    count: int = 0
    model: str = ""
    memory_bytes: int = 0
    parts: tuple[tuple[int | None, int], ...] = ()


@dataclass(frozen=True, slots=True)
class _Device:
    """`keys` hold devices of one GPU together; `counters` is the set of them that it uses, if it does."""

    vendor: GpuDriver
    attributes: dict[str, object]
    is_part: bool
    keys: tuple[_Key, ...]
    counters: _Key | None
    memory: int


def read_gpus(devices: Sequence[tuple[str, str, SliceDevice]], pools: Sequence[PublishedPool]) -> PublishedGpus:
    """GPUs among devices, each with its driver and the name of its pool."""
    read = [_read(*each) for each in devices]
    groups = _number([one.keys if one else () for one in read])
    counters: dict[_Key, dict[str, int]] = {
        (pool.driver, pool.name, name): dict(amounts) for pool in pools for name, amounts in pool.counters
    }
    memories: dict[int, int] = {}
    for one, group in zip(read, groups, strict=True):
        if one is not None and group is not None:
            of_set = counters.get(one.counters, {}).get(one.vendor.memory, 0) if one.counters else 0
            memories[group] = max(memories.get(group, 0), 0 if one.is_part else one.memory, of_set)
    parts = tuple(
        (group, 0 if one is None or group is None else _share(one, memories[group]))
        for one, group in zip(read, groups, strict=True)
    )
    models = [str(one.attributes[one.vendor.model]) for one in read if one and one.vendor.model in one.attributes]
    known = [memory // 1000 for memory in memories.values() if memory]
    return PublishedGpus(len(memories), models[0][:63] if models else "", min(known, default=0), parts)


def _read(driver: str, pool: str, device: SliceDevice) -> _Device | None:
    vendor = GPU_DRIVERS.get(driver)
    if vendor is None:
        return None
    shape, own = device.shape, f"{driver}/"
    named: dict[str, object] = {
        name.removeprefix(own): value for name, (_, value) in (*shape.attributes, *device.identity)
    }
    kind = named.get(vendor.kind) if vendor.kind else None
    if vendor.kind and kind not in vendor.whole | vendor.part:
        return None
    is_part = kind in vendor.part
    keys: list[_Key] = [(driver, name, named[name]) for name in vendor.card if named.get(name)]
    if name := named.get(vendor.parent if is_part else vendor.name):
        keys.append((driver, vendor.name, name))
    counters: _Key | None = (driver, pool, shape.uses[0][0]) if shape.uses else None
    keys += [counters] if counters else []
    memory = {name.removeprefix(own): one.value for name, one in shape.capacity}.get(vendor.memory, 0)
    return _Device(vendor, named, is_part, tuple(keys) or ((driver, pool, "", shape.name),), counters, memory)


def _number(keys: Sequence[tuple[_Key, ...]]) -> list[int | None]:
    """A number for each set of devices that keys hold together, in order of the first device; None without a key."""
    leader: dict[_Key, _Key] = {}

    def find(key: _Key) -> _Key:
        while leader.setdefault(key, key) != key:
            leader[key] = key = leader[leader[key]]
        return key

    for of_device in keys:
        for key in of_device[1:]:
            leader[find(key)] = find(of_device[0])
    numbers: dict[_Key, int] = {}
    return [numbers.setdefault(find(each[0]), len(numbers)) if each else None for each in keys]


def _share(one: _Device, memory: int) -> int:
    """Thousandths of its GPU; all of it where nothing says how much."""
    if not one.is_part:
        return GPU_MILLI
    if memory and one.memory:
        return min(GPU_MILLI, -(-one.memory * GPU_MILLI // memory))
    return PROFILES.get(str(one.attributes.get(one.vendor.profile, "")), GPU_MILLI)


NO_OFFER, NO_GPUS = NodeOffer(), PublishedGpus()


def known_offer(node: Node | None) -> NodeOffer:
    """Offer of the node by the ledger; the same object for all that offer nothing."""
    if node is None or not (node.offer or node.tainted or node.drawn_by_others or node.missing):
        return NO_OFFER
    return NodeOffer(
        layout="" if node.offer is None else node.offer.digest,
        tainted=tuple(
            DeviceTaint.model_validate({"device": device, "key": key, "value": value, "effect": effect})
            for device, key, value, effect in node.tainted
        ),
        taken=tuple(TakenDevice(device=device, capacity=dict(capacity)) for device, capacity in node.drawn_by_others),
        missing=node.missing,
    )


def known_gpus(node: Node | None) -> PublishedGpus:
    """GPUs that a driver published, by the ledger."""
    if node is None or node.device_profile != "dra":
        return NO_GPUS
    return PublishedGpus(node.gpus, node.gpu_model, node.gpu_memory_bytes)
