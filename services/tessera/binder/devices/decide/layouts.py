"""
A node's pools as one layout, which nodes of the same make share, beside the taints of its own devices. Pure.

What selectors may look at enters the layout by a digest (`kinds`), so that a selector takes the same devices of every
node that has it. What names one device alone enters as a number: equal on equal values of this node.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from pydantic import ValidationError

from tessera.binder.devices.decide.gpus import PublishedGpus, read_gpus
from tessera.binder.devices.decide.pools import PublishedPool
from tessera.binder.devices.decide.reach import UnreadableSlice
from tessera.binder.devices.decide.slices import Attribute, DeviceShape, SliceDevice
from tessera_schemas.cluster.device_layouts import (
    DEVICES_MAX,
    LAYOUT_BYTES_MAX,
    DeviceLayout,
    DevicePool,
    DeviceTaint,
    OfferedDevice,
)

_NUMBERS = re.compile(r"[0-9]+")
MISSING_MAX = 64
NO_LABELS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class OfferedLayout:
    """A layout with what selectors look at, device by device: driver and shape. `hidden`: attributes they must not."""

    layout: DeviceLayout
    digest: str
    seen: tuple[tuple[str, DeviceShape], ...]
    hidden: frozenset[str]
    gpus: PublishedGpus


@dataclass(frozen=True, slots=True)
class NodeDevices:
    """
    Devices of one node's pools: `offered` is None without a device.

    `missing` are pools that are not offered (`driver/name`), each with its reason.
    """

    offered: OfferedLayout | None = None
    tainted: tuple[DeviceTaint, ...] = ()
    missing: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class TaintRule:
    """A taint that an administrator put on devices; None stands for any."""

    driver: str | None
    pool: str | None
    device: str | None
    taint: tuple[str, str, str]

    def covers(self, driver: str, pool: str, device: str) -> bool:
        """Whether the taint is on this device."""
        wanted = (self.driver, driver), (self.pool, pool), (self.device, device)
        return all(rule in (None, value) for rule, value in wanted)


def lay_out(
    node: str,
    pools: Iterable[PublishedPool],
    taints: Sequence[TaintRule] = (),
    labels: Mapping[str, str] = NO_LABELS,
) -> NodeDevices:
    """
    The devices of a node with these labels, of these pools in any order.

    Where they exceed a bound all of them are missing, or those of network pools alone where the rest does not.
    """
    known = sorted(pools, key=lambda pool: (pool.driver, pool.name != node, pool.name))
    missing = {_name(pool): why for pool in known if (why := pool.why or _against(pool, node))}
    usable = [_PoolHere(pool, node, labels) for pool in known if _name(pool) not in missing]
    usable = [each for each in usable if each.devices]
    offered, against = _try_offer(node, usable)
    if against:
        # Whatever a network has, it takes no node's own devices from it.
        missing |= {_name(each.pool): against for each in usable if each.pool.is_network}
        usable = [each for each in usable if not each.pool.is_network]
        offered, against = _try_offer(node, usable)
    if against:
        missing |= {_name(each.pool): against for each in usable}
        usable = []
    return NodeDevices(offered, tuple(_list_taints(usable, taints)), tuple(sorted(missing.items()))[:MISSING_MAX])


class _PoolHere:
    """A pool as one node sees it: what its pods can have, and what only draws on the same counters (`beyond`)."""

    def __init__(self, pool: PublishedPool, node: str, labels: Mapping[str, str]) -> None:
        self.pool = pool
        self.devices = sorted(pool.devices_of(node, labels), key=_in_order)
        self.beyond = sorted(pool.devices_beyond(node, labels), key=_in_order) if self.devices else []


def _against(pool: PublishedPool, node: str) -> str:
    # A pool that is called as its node is told by no name in a layout, since it is taken for the node's own.
    return "it is of several nodes and called as this one" if pool.is_network and pool.name == node else ""


def _try_offer(node: str, here: Sequence["_PoolHere"]) -> tuple[OfferedLayout | None, str]:
    """The layout of these pools, or what is against it; neither of no pool."""
    try:
        return _offer(node, here) if here else None, ""
    except (UnreadableSlice, ValidationError) as error:
        return None, str(error)[:300]


def _offer(node: str, here: Sequence["_PoolHere"]) -> OfferedLayout:
    pools = [each.pool for each in here]
    devices = [(at, device) for at, each in enumerate(here) for device in (*each.devices, *each.beyond)]
    if len(devices) > DEVICES_MAX:
        raise UnreadableSlice(f"{len(devices)} devices are more than the {DEVICES_MAX} of a node")
    beyond = {(at, device.shape.name) for at, each in enumerate(here) for device in each.beyond}
    places, totals = _place_counters(pools)
    numbers: dict[str, dict[Attribute, int]] = {}
    # GPUs of several nodes are no GPUs of any node: each would count them, and they be counted many times.
    own = [(pools[at].driver, pools[at].name, each) for at, each in devices if not pools[at].is_network]
    gpus = read_gpus(own, pools)
    parts = iter(gpus.parts)
    seen = tuple((pools[at].driver, each.shape) for at, each in devices)
    layout = DeviceLayout(
        pools=tuple(
            DevicePool(driver=each.driver, name="" if each.name == node else each.name, network=each.is_network)
            for each in pools
        ),
        counters=totals,
        devices=tuple(
            OfferedDevice(
                pool=at,
                name=each.shape.name,
                same={name: _number(numbers, name, value) for name, value in (*each.shape.attributes, *each.identity)},
                uses=tuple(
                    (places[at, name, counter], amount)
                    for name, amounts in each.shape.uses
                    for counter, amount in amounts
                    if amount
                ),
                capacity=dict(each.shape.capacity),
                is_shared=each.shape.is_shared,
                gpu=gpu,
                gpu_milli=milli,
                beyond=(at, each.shape.name) in beyond,
            )
            for at, each in devices
            for gpu, milli in [(None, 0) if pools[at].is_network else next(parts)]
        ),
        kinds=hashlib.sha256(json.dumps([_kind(*each) for each in seen]).encode()).hexdigest(),
    )
    if (size := len(layout.to_bytes())) > LAYOUT_BYTES_MAX:
        raise UnreadableSlice(f"its devices take {size} bytes, which is more than {LAYOUT_BYTES_MAX}")
    hidden = frozenset(name for _, each in devices for name, _ in each.identity)
    return OfferedLayout(layout, layout.digest(), seen, hidden, gpus)


def _place_counters(pools: Sequence[PublishedPool]) -> tuple[dict[tuple[int, str, str], int], tuple[int, ...]]:
    """Places of all counters of the pools in the layout, and how much there is of each."""
    named = [
        ((at, name, counter), amount)
        for at, pool in enumerate(pools)
        for name, amounts in pool.counters
        for counter, amount in amounts
    ]
    return {key: place for place, (key, _) in enumerate(named)}, tuple(amount for _, amount in named)


def _number(numbers: dict[str, dict[Attribute, int]], name: str, value: Attribute) -> int:
    of_name = numbers.setdefault(name, {})
    return of_name.setdefault(value, len(of_name))


def _kind(driver: str, shape: DeviceShape) -> list[object]:
    """The parts of a device that a selector can see."""
    return [driver, shape.attributes, [(name, one.value) for name, one in shape.capacity], shape.is_shared]


def _in_order(device: SliceDevice) -> list[tuple[bool, int, str]]:
    """By name, numbers in it as numbers: gpu-2 comes before gpu-10."""
    parts = re.split(r"([0-9]+)", device.shape.name)
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts]


def _list_taints(here: Sequence[_PoolHere], rules: Sequence[TaintRule]) -> Iterator[DeviceTaint]:
    for pool, each in ((one.pool, device) for one in here for device in one.devices):
        name = each.shape.name
        more = [rule.taint for rule in rules if rule.covers(pool.driver, pool.name, name)]
        for key, value, effect in dict.fromkeys((*each.taints, *more)):
            device = f"{pool.driver}/{pool.name}/{name}"
            yield DeviceTaint.model_validate({"device": device, "key": key, "value": value, "effect": effect})


def _name(pool: PublishedPool) -> str:
    return f"{pool.driver}/{pool.name}"
