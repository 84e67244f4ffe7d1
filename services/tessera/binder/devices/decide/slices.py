"""
ResourceSlices as the API serves them (`resource.k8s.io/v1`), read into values that devices of one make share. Pure.

A slice that cannot be read keeps its pool from being offered, and says why: nothing is placed on a guess.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from tessera.binder.devices.decide.reach import NodeReach, UnreadableSlice, read_reach
from tessera_schemas.base import Json
from tessera_schemas.cluster.device_layouts import DeviceCapacity
from tessera_schemas.cluster.device_vendors import is_identity
from tessera_schemas.text.quantities import quantity

Attribute = tuple[str, str | int | bool | tuple[Any, ...]]
"""Type of the value (`int`, `bool`, `string`, `version`, and each with an `s` for a list) and the value."""
Counters = tuple[tuple[str, int], ...]
"""Names and thousandths, in order of names."""
AMOUNT_MAX = 2**62
_TYPES: dict[str, type[Any]] = {"int": int, "bool": bool, "string": str, "version": str}
_EFFECTS = ("NoSchedule", "NoExecute")


@dataclass(frozen=True, slots=True)
class DeviceShape:
    """
    A device without what names it alone; names of attributes have their domain.

    `reach` is None where the slice says it. `uses` are sets of counters with amounts in thousandths.
    """

    name: str
    reach: NodeReach | None = None
    attributes: tuple[tuple[str, Attribute], ...] = ()
    capacity: tuple[tuple[str, DeviceCapacity], ...] = ()
    uses: tuple[tuple[str, Counters], ...] = ()
    is_shared: bool = False


@dataclass(frozen=True, slots=True)
class SliceDevice:
    """A device; `identity` are the attributes that no other device has, and `taints` key, value and effect."""

    shape: DeviceShape
    identity: tuple[tuple[str, Attribute], ...] = ()
    taints: tuple[tuple[str, str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Slice:
    """
    A slice of a pool; `unusable` says what of it cannot be used.

    `reach` is None where each device says its own, or nothing can be read of it.
    """

    driver: str
    pool: str
    generation: int = 0
    count: int = 1
    reach: NodeReach | None = None
    devices: tuple[SliceDevice, ...] = ()
    counters: tuple[tuple[str, Counters], ...] = ()
    unusable: str = ""

    @property
    def reaches(self) -> frozenset[NodeReach]:
        """From where its devices can be had, as far as it says."""
        own = {each.shape.reach for each in self.devices} if self.reach is None else {self.reach}
        return frozenset(each for each in own if each is not None)


@dataclass(slots=True)
class SliceReader:
    """Reads slices, and keeps one object for all devices of an equal shape: a park has thousands of a few kinds."""

    _shapes: dict[DeviceShape, DeviceShape] = field(default_factory=dict)

    def read(self, thing: Json) -> Slice | None:
        """The slice; None for an object that names no pool."""
        spec = thing.get("spec")
        pool = spec.get("pool") if type(spec) is dict else None
        if type(spec) is not dict or type(pool) is not dict:
            return None
        driver, name = spec.get("driver"), pool.get("name")
        if type(driver) is not str or type(name) is not str or not driver or not name:
            return None
        try:
            return self._read(driver, name, spec, pool)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            why = f"{type(error).__name__}: {error}" if not isinstance(error, UnreadableSlice) else str(error)
            node = spec.get("nodeName")
            reach = NodeReach(node) if node and type(node) is str else None
            return Slice(driver, name, _integer(pool.get("generation"), 0), reach=reach, unusable=why[:300])

    def keep_only(self, slices: Iterable[Slice]) -> None:
        """Forget the shapes that none of these slices has."""
        self._shapes = {each.shape: each.shape for one in slices for each in one.devices}

    def _read(self, driver: str, name: str, spec: Json, pool: Json) -> Slice:
        per_device = bool(spec.get("perDeviceNodeSelection"))
        devices = tuple(self._device(driver, each, per_device) for each in _list(spec, "devices"))
        return Slice(
            driver,
            name,
            _integer(pool["generation"]),
            _integer(pool["resourceSliceCount"]),
            None if per_device else read_reach(spec, "the slice"),
            devices,
            tuple((str(each["name"]), _counters(each)) for each in _list(spec, "sharedCounters")),
        )

    def _device(self, driver: str, device: Json, per_device: bool) -> SliceDevice:
        if type(name := device["name"]) is not str:
            raise UnreadableSlice(f"{name!r:.50} is no name of a device")
        named = {_full(driver, key): _attribute(value) for key, value in (device.get("attributes") or {}).items()}
        shape = DeviceShape(
            name,
            read_reach(device, f"device {name}") if per_device else None,
            tuple(sorted((key, value) for key, value in named.items() if not is_identity(key))),
            tuple(sorted(((key, _capacity(one)) for key, one in (device.get("capacity") or {}).items()), key=_first)),
            tuple((str(each["counterSet"]), _counters(each)) for each in _list(device, "consumesCounters")),
            bool(device.get("allowMultipleAllocations")),
        )
        return SliceDevice(
            self._shapes.setdefault(shape, shape),
            tuple(sorted((key, value) for key, value in named.items() if is_identity(key))),
            tuple(map(read_taint, [each for each in _list(device, "taints") if each.get("effect") in _EFFECTS])),
        )


def read_taint(taint: Json) -> tuple[str, str, str]:
    """Key, value and effect."""
    return str(taint["key"]), str(taint.get("value") or ""), str(taint["effect"])


def milli(amount: Any, up: bool = False) -> int:
    """A quantity in thousandths, what is less left out, or counted as one (`up`). Raises UnreadableSlice."""
    try:
        exact = quantity(amount) * 1000
    except (ValueError, TypeError) as error:
        raise UnreadableSlice(str(error)) from error
    whole = -(-exact // 1) if up else exact // 1
    if whole > AMOUNT_MAX:
        raise UnreadableSlice(f"{amount} is too much")
    return int(whole)


def _capacity(one: Json) -> DeviceCapacity:
    policy = one.get("requestPolicy") or {}
    bounds = policy.get("validRange") or {}

    def asked(source: Json, name: str) -> int | None:
        return None if source.get(name) is None else milli(source[name], up=True)

    return DeviceCapacity(
        value=milli(one["value"]),
        default=asked(policy, "default"),
        valid=tuple(milli(value, up=True) for value in _list(policy, "validValues")),
        least=asked(bounds, "min"),
        most=asked(bounds, "max"),
        step=asked(bounds, "step"),
    )


def _counters(source: Json) -> Counters:
    return tuple(sorted((str(name), milli(each["value"], up=True)) for name, each in source["counters"].items()))


def _attribute(value: Json) -> Attribute:
    one: Any
    for kind, wanted in _TYPES.items():
        if (one := value.get(kind)) is not None:
            if type(one) is not wanted:
                raise UnreadableSlice(f"{one!r:.50} is not of type {kind}")
            return kind, one
        if many := value.get(f"{kind}s"):
            if any(type(each) is not wanted for each in many):
                raise UnreadableSlice(f"{many!r:.50} is not of type {kind}s")
            return f"{kind}s", tuple(many)
    raise UnreadableSlice("an attribute has no value of a known type")


@lru_cache(maxsize=4096)
def _full(driver: str, name: str) -> str:
    """The name with its domain, which is the driver where none is said: one text for all devices."""
    return name if "/" in name else f"{driver}/{name}"


def _list(source: Json, name: str) -> list[Any]:
    found = source.get(name) or []
    if type(found) is not list:
        raise UnreadableSlice(f"{name} is no list")
    return found


def _integer(value: Any, otherwise: int | None = None) -> int:
    if type(value) is int:
        return value
    if otherwise is None:
        raise UnreadableSlice(f"{value!r:.50} is no whole number")
    return otherwise


def _first(pair: tuple[str, Any]) -> str:
    return pair[0]
