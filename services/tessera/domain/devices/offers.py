"""
Offers of nodes by DRA: the devices of its layout, and which of them each class and selector takes.

Nodes of one make share one offer. An offer is a value: it compares by what it holds, so that what was found out for one
node holds for each of the same offer.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from pydantic_core import core_schema

from tessera.domain.storing.fast import fast_init
from tessera_schemas.cluster.device_layouts import DeviceCapacity, DeviceLayout, selectors_digest
from tessera_schemas.cluster.device_vendors import SHARED_BY_DRIVER
from tessera_schemas.cluster.devices import Isolation
from tessera_schemas.cluster.resource_kinds import CLASS_PREFIX

ClassUse = tuple[str, int, int, int]
"""A class; its devices, those of them that claims have, if only in part, and those under a taint."""
Networks = frozenset[tuple[str, str]]
"""Pools of several nodes, by driver and name."""
Taken = tuple[tuple[str, tuple[tuple[str, int], ...]], ...]
"""Devices that claims have, in order: `driver/pool/device`, and the part of it that is had where it is shared."""


def sum_classes(uses: Iterable[ClassUse]) -> list[ClassUse]:
    """The sum of several nodes' uses of classes, in order of the classes."""
    found = dict[str, ClassUse]()
    for name, *numbers in uses:
        _, *before = found.get(name, (name, 0, 0, 0))
        count, taken, tainted = (more + less for more, less in zip(numbers, before, strict=True))
        found[name] = name, count, taken, tainted
    return [use for _, use in sorted(found.items())]


@dataclass(frozen=True, slots=True, eq=False)
class Device:
    """One device of an offer; fields as of `OfferedDevice`. `pool` is "" where the pool is called as its node."""

    driver: str
    pool: str
    name: str
    same: Mapping[str, int]
    uses: tuple[tuple[int, int], ...]
    capacity: Mapping[str, DeviceCapacity]
    is_shared: bool
    gpu: int | None
    gpu_milli: int
    beyond: bool = False

    @property
    def is_shared_gpu(self) -> bool:
        """Whether several claims may have shares of it, and it is a GPU."""
        return self.is_shared and (self.gpu is not None or self.driver in SHARED_BY_DRIVER)

    @property
    def isolation(self) -> Isolation:
        """Isolation of its claims from each other, where it is a GPU; shares of other devices are not judged."""
        return SHARED_BY_DRIVER.get(self.driver, "none") if self.is_shared_gpu else "hardware"

    def part(self, amounts: Mapping[str, int]) -> int:
        """
        Thousandths of the GPU that a share with these amounts is; all that the device is of it where it is not shared.

        The share's memory counts, as that of an instance does; of a device without memory the largest of its amounts. A
        share of unknown size (no amounts) is the whole device; one of a device without any capacity counts for one.
        """
        if not (self.is_shared and self.gpu_milli) or (self.capacity and not amounts):
            return self.gpu_milli
        named = [name for name in self.capacity if name.rpartition("/")[2] == "memory"] or list(self.capacity)
        # Rounded down, so that the shares of a GPU never come to more than the GPU.
        parts = (self.gpu_milli * amounts.get(name, 0) // max(1, self.capacity[name].value) for name in named)
        return max(1, max(parts, default=0))


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """A class of devices of the cluster; `extended_resource` is the counted resource that it answers, "" for none."""

    name: str
    selectors: tuple[str, ...] = ()
    extended_resource: str = ""


@dataclass(frozen=True, slots=True)
class Selection:
    """Devices of a layout that expressions take, one bit for each device; none with the `error` of an evaluation."""

    devices: int
    error: str = ""


@fast_init
@dataclass(frozen=True, slots=True)
class KnownLayout:
    """A layout that some node names, or named a while ago."""

    digest: str
    layout: DeviceLayout


@fast_init
@dataclass(frozen=True, slots=True)
class KnownSelection:
    """Devices of a layout that expressions take, as in the fact; `key` is made by `selection_key`."""

    key: str
    devices: str
    error: str = ""


def selection_key(layout: str, selectors: Sequence[str]) -> str:
    """The key of a `KnownSelection`."""
    return f"{layout} {selectors_digest(selectors)}"


class Offer:
    """
    Devices of a layout with what is known of classes and selectors.

    `devices` is empty while the ledger knows the layout by its digest alone. `networks` are its pools of several nodes.
    """

    __slots__ = ("__dict__", "classes", "counters", "devices", "digest", "networks", "selections")

    def __init__(
        self,
        digest: str,
        layout: DeviceLayout | None = None,
        classes: Mapping[str, DeviceClass] | None = None,
        selections: Mapping[str, Selection] | None = None,
    ) -> None:
        """`selections` by `selectors_digest`."""
        self.digest = digest
        self.devices: tuple[Device, ...] = () if layout is None else tuple(_devices(layout))
        self.counters: tuple[int, ...] = () if layout is None else layout.counters
        pools = () if layout is None else layout.pools
        self.networks: Networks = frozenset((each.driver, each.name) for each in pools if each.network)
        self.classes = dict(classes or {})
        self.selections = dict(selections or {})
        self._masks: dict[tuple[str, tuple[str, ...]], Selection | None] = {}

    @cached_property
    def _content(self) -> tuple[object, ...]:
        return (
            self.digest,
            bool(self.devices),
            tuple(sorted(self.classes.items())),
            tuple(sorted(self.selections.items())),
        )

    @cached_property
    def _hash(self) -> int:
        return hash(self._content)

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Offer) and self._hash == other._hash and self._content == other._content
        )

    def __hash__(self) -> int:
        return self._hash

    def selected(self, device_class: str, selectors: tuple[str, ...]) -> Selection | None:
        """
        Devices that the class and the selectors take; None while that is not known.

        A class that the cluster does not have takes none, with an error that says so.
        """
        key = device_class, selectors
        if key not in self._masks:
            self._masks[key] = self._select(device_class, selectors)
        return self._masks[key]

    def _select(self, device_class: str, selectors: tuple[str, ...]) -> Selection | None:
        known = self.classes.get(device_class)
        if known is None:
            return Selection(0, f"the cluster has no DeviceClass {device_class}")
        both = known.selectors + selectors
        found = self.selections.get(selectors_digest(both)) if both else Selection((1 << len(self.devices)) - 1)
        # What pods of other nodes alone can have is there for its counters.
        if found is None or not found.devices & self._beyond:
            return found
        return Selection(found.devices & ~self._beyond, found.error)

    @cached_property
    def _beyond(self) -> int:
        return sum(1 << at for at, device in enumerate(self.devices) if device.beyond)

    def class_for(self, resource: str) -> str:
        """The class that answers a counted resource, "" for none; of several the first by name."""
        return self._class_of.get(resource, "")

    @cached_property
    def _class_of(self) -> Mapping[str, str]:
        names = sorted(self.classes, reverse=True)
        said = {self.classes[name].extended_resource: name for name in names}
        return {CLASS_PREFIX + name: name for name in names} | {what: name for what, name in said.items() if what}

    @cached_property
    def gpu_bits(self) -> int:
        """One bit for each device that is a GPU, or a part of one."""
        return sum(1 << at for at, device in enumerate(self.devices) if device.gpu is not None)

    @cached_property
    def index_of(self) -> Mapping[tuple[str, str, str], int]:
        """The place of each device, by driver, pool ("" where it is called as its node) and name."""
        return {(device.driver, device.pool, device.name): at for at, device in enumerate(self.devices)}

    def find(self, device_id: str, node: str) -> int | None:
        """The place of `driver/pool/device` of a node of that name; None where the layout has no such device."""
        driver, _, rest = device_id.partition("/")
        pool, _, name = rest.rpartition("/")
        at = self.index_of.get((driver, "", name)) if pool == node else None
        return self.index_of.get((driver, pool, name)) if at is None else at

    def by_class(self, node: str, taken: Iterable[str], tainted: Iterable[str]) -> tuple[ClassUse, ...]:
        """Each class that takes devices here, in order, for a node of that name and devices by `driver/pool/device`."""
        held, sick = self._bits(node, taken), self._bits(node, tainted)
        found = [(name, self.selected(name, ())) for name in sorted(self.classes)]
        return tuple(
            (name, of.devices.bit_count(), (of.devices & held).bit_count(), (of.devices & sick).bit_count())
            for name, of in found
            if of is not None and of.devices
        )

    def _bits(self, node: str, devices: Iterable[str]) -> int:
        """One bit for each of these devices that there is."""
        places = {self.find(device, node) for device in devices}
        return sum(1 << place for place in places if place is not None)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> core_schema.CoreSchema:
        """Stored as the digest of its layout; what it holds stands in tables of its own."""
        return core_schema.no_info_after_validator_function(cls, core_schema.str_schema())


def _devices(layout: DeviceLayout) -> Sequence[Device]:
    pools = layout.pools
    return [
        Device(
            pools[each.pool].driver,
            pools[each.pool].name,
            each.name,
            each.same,
            each.uses,
            each.capacity,
            each.is_shared,
            each.gpu,
            each.gpu_milli,
            each.beyond,
        )
        for each in layout.devices
    ]


# -- amounts that a share takes of a device's capacities, by the request policies of Kubernetes

ShareAmounts = tuple[int, ...]
"""One for each capacity of a device, in the order of their names."""


@lru_cache(maxsize=1_024)
def amounts_asked(offer: Offer, asked: tuple[tuple[str, int], ...]) -> Mapping[int, ShareAmounts]:
    """The amounts that a request takes of each device of an offer; a device that it cannot be asked of is left out."""
    wanted, found = dict(asked), dict[int, ShareAmounts]()
    for index, device in enumerate(offer.devices):
        amounts = amounts_of(device.capacity, wanted)
        if amounts is not None:
            found[index] = amounts
    return found


def amounts_of(capacity: Mapping[str, DeviceCapacity], asked: Mapping[str, int]) -> ShareAmounts | None:
    """
    The amounts taken where `asked` is asked for; None where the device lacks one of them or its policy refuses.

    A device that is not shared is taken whole, but it must have the amounts just as well.
    """
    if asked and not asked.keys() <= capacity.keys():
        return None
    amounts = []
    for name in sorted(capacity):
        policy = capacity[name]
        amount = _rounded(policy, asked.get(name))
        if amount > policy.value or not _is_allowed(policy, amount):
            return None
        amounts.append(amount)
    return tuple(amounts)


def _rounded(policy: DeviceCapacity, asked: int | None) -> int:
    if asked is None:
        return policy.value if policy.default is None else policy.default
    # Kubernetes rounds to whole units where there is a step; thousandths are exact here.
    if policy.least is not None:
        if asked <= policy.least or not policy.step:
            return max(asked, policy.least)
        return policy.least - (policy.least - asked) // policy.step * policy.step
    return next((valid for valid in sorted(policy.valid) if valid >= asked), asked)


def _is_allowed(policy: DeviceCapacity, amount: int) -> bool:
    if amount == policy.default:
        return True  # even where it is none of the valid ones
    if policy.least is not None or policy.most is not None:
        if policy.most is not None and amount > policy.most:
            return False
        return not policy.step or (amount - (policy.least or 0)) % policy.step == 0
    return not policy.valid or amount in policy.valid
