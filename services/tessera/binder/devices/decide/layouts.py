"""
A node's pools as one layout, which nodes of the same make share, beside the taints of its own devices. Pure.

What selectors may look at enters the layout by a digest (`kinds`), so that a selector takes the same devices of every
node that has it. What names one device alone enters as a number: equal on equal values of this node.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from tessera.binder.devices.decide.gpus import PublishedGpus, read_gpus
from tessera.binder.devices.decide.pools import PublishedPool
from tessera.binder.devices.decide.slices import Attribute, DeviceShape, SliceDevice, UnreadableSlice
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


def lay_out(node: str, pools: Iterable[PublishedPool], taints: Sequence[TaintRule] = ()) -> NodeDevices:
    """The node's devices, of these pools in any order. Where they exceed a bound all of them are missing."""
    known = sorted(pools, key=lambda pool: (pool.driver, pool.name != node, pool.name))
    missing = {_name(pool): pool.why for pool in known if pool.why}
    usable = [pool for pool in known if not pool.why and pool.devices.get(node)]
    count = sum(len(pool.devices[node]) for pool in usable)
    try:
        if count > DEVICES_MAX:
            raise UnreadableSlice(f"{count} devices are more than the {DEVICES_MAX} of a node")
        offered = _offer(node, usable) if usable else None
    except (UnreadableSlice, ValidationError) as error:
        missing |= {_name(pool): str(error)[:300] for pool in usable}
        offered, usable = None, []
    return NodeDevices(offered, tuple(_list_taints(node, usable, taints)), tuple(sorted(missing.items()))[:MISSING_MAX])


def _offer(node: str, pools: Sequence[PublishedPool]) -> OfferedLayout:
    places, totals = _place_counters(pools)
    devices = [(at, each) for at, pool in enumerate(pools) for each in sorted(pool.devices[node], key=_in_order)]
    numbers: dict[str, dict[Attribute, int]] = {}
    gpus = read_gpus([(pools[at].driver, pools[at].name, each) for at, each in devices], pools)
    seen = tuple((pools[at].driver, each.shape) for at, each in devices)
    layout = DeviceLayout(
        pools=tuple(DevicePool(driver=each.driver, name="" if each.name == node else each.name) for each in pools),
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
            )
            for (at, each), (gpu, milli) in zip(devices, gpus.parts, strict=True)
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


def _list_taints(node: str, pools: Sequence[PublishedPool], rules: Sequence[TaintRule]) -> Iterator[DeviceTaint]:
    for pool in pools:
        for each in sorted(pool.devices[node], key=_in_order):
            name = each.shape.name
            more = [rule.taint for rule in rules if rule.covers(pool.driver, pool.name, name)]
            for key, value, effect in dict.fromkeys((*each.taints, *more)):
                device = f"{pool.driver}/{pool.name}/{name}"
                yield DeviceTaint.model_validate({"device": device, "key": key, "value": value, "effect": effect})


def _name(pool: PublishedPool) -> str:
    return f"{pool.driver}/{pool.name}"
