"""Devices as drivers publish them (DRA), and claims on them, for tests that are not about reading them."""

from typing import Any

from tessera.domain.devices.offers import DeviceClass, Offer, Selection
from tessera_schemas.cluster.device_claims import DeviceChoice, DeviceClaim, DeviceRequest
from tessera_schemas.cluster.device_facts import ClassSeen, DevicesSelected, LayoutSeen
from tessera_schemas.cluster.device_layouts import (
    DeviceCapacity,
    DeviceLayout,
    DevicePool,
    NodeOffer,
    OfferedDevice,
    selectors_digest,
)
from tessera_schemas.cluster.mig import GEOMETRIES
from tessera_schemas.facts import NodeSeen
from tessera_schemas.job import Role
from tests.builders import node_seen, role

DRIVER = "gpu.example.com"
NIC_DRIVER = "nic.example.com"
PCIE_ROOT, NUMA_NODE = "resource.kubernetes.io/pcieRoot", "resource.kubernetes.io/numaNode"
SMALL = ("1g", "1g", "2g")
"""Instances into which each GPU of `cut_gpus` may be cut, by their size in quarters of its memory."""


def whole_gpus(count: int) -> DeviceLayout:
    """GPUs of one driver, each a device."""
    devices = tuple(OfferedDevice(pool=0, name=f"gpu-{at}", gpu=at, gpu_milli=1000) for at in range(count))
    return DeviceLayout(pools=(DevicePool(driver=DRIVER),), devices=devices, kinds="00" * 32)


def shared_gpus(count: int, driver: str = DRIVER) -> DeviceLayout:
    """GPUs of which several claims may have tenths at a time."""
    memory = {"memory": DeviceCapacity(value=10_000, default=1_000, least=1_000, step=1_000)}
    at_once = tuple(
        OfferedDevice(pool=0, name=f"gpu-{at}", gpu=at, gpu_milli=1000, is_shared=True, capacity=memory)
        for at in range(count)
    )
    return DeviceLayout(pools=(DevicePool(driver=driver),), devices=at_once, kinds="33" * 32)


def cut_gpus(count: int) -> DeviceLayout:
    """GPUs of four quarters of memory, each whole, in two halves, or in quarters, whatever is claimed."""
    devices = []
    for gpu in range(count):
        for name, quarters in [("whole", 4), ("half-0", 2), ("half-1", 2), *((f"quarter-{at}", 1) for at in range(4))]:
            uses, milli = ((gpu, quarters * 1000),), quarters * 250
            devices.append(OfferedDevice(pool=0, name=f"gpu-{gpu}-{name}", uses=uses, gpu=gpu, gpu_milli=milli))
    pools = (DevicePool(driver=DRIVER),)
    return DeviceLayout(pools=pools, counters=(4000,) * count, devices=tuple(devices), kinds="11" * 32)


def gpus_with_nics(
    roots: int = 8, numa_nodes: int = 2, drivers: tuple[str, str] = (DRIVER, NIC_DRIVER)
) -> DeviceLayout:
    """A GPU and a NIC of two drivers on each PCIe root; the roots are spread over the NUMA nodes, half by half."""
    devices = tuple(
        OfferedDevice(
            pool=pool,
            name=f"{('gpu', 'nic')[pool]}-{root}",
            same={PCIE_ROOT: root, NUMA_NODE: roots + root * numa_nodes // roots},
            **({} if pool else {"gpu": root, "gpu_milli": 1000}),
        )
        for pool in (0, 1)
        for root in range(roots)
    )
    pools = tuple(DevicePool(driver=driver) for driver in drivers)
    return DeviceLayout(pools=pools, devices=devices, kinds="22" * 32)


def with_network(own: DeviceLayout, links: int, beyond: int = 0, counters: int = 0) -> DeviceLayout:
    """
    These devices of a node, and a pool of links that several nodes reach, of which the last `beyond` are of others.

    With `counters` each link takes one of so many.
    """
    uses = ((len(own.counters), 1000),) if counters else ()
    more = tuple(
        OfferedDevice(pool=len(own.pools), name=f"link-{at}", uses=uses, beyond=at >= links - beyond)
        for at in range(links)
    )
    return DeviceLayout(
        pools=(*own.pools, DevicePool(driver=NIC_DRIVER, name="fabric", network=True)),
        counters=(*own.counters, *([counters * 1000] if counters else [])),
        devices=(*own.devices, *more),
        kinds="33" * 32,
    )


def layout_seen(layout: DeviceLayout) -> LayoutSeen:
    return LayoutSeen(kind="layout_seen", layout=layout)


def class_seen(name: str = DRIVER, *selectors: str, **more: Any) -> ClassSeen:
    return ClassSeen(kind="class_seen", name=name, selectors=selectors, **more)


def selected(layout: DeviceLayout, devices: int, *selectors: str, error: str = "") -> DevicesSelected:
    """What selectors take: one bit for each device of the layout."""
    return DevicesSelected(
        kind="devices_selected", layout=layout.digest(), selectors=selectors, devices=f"{devices:x}", error=error
    )


def offering(name: str, layout: DeviceLayout, gpus: int, **offer: Any) -> NodeSeen:
    """A node whose GPUs are published by a driver."""
    return node_seen(name, gpus, device_profile="dra", offer=NodeOffer(layout=layout.digest(), **offer))


def claim(name: str = "gpu", count: int = 1, device_class: str = DRIVER, **choice: Any) -> DeviceClaim:
    """A claim of one request."""
    wanted = DeviceChoice(device_class=device_class, count=count, **choice)
    return DeviceClaim(name=name, requests=(DeviceRequest(name="devices", choices=(wanted,)),))


def claiming(*claims: DeviceClaim, **more: Any) -> Role:
    """A role whose pods have these claims and no other devices."""
    made = role(gpus=0, **more)
    return made.model_copy(update={"resources": made.resources.model_copy(update={"claims": claims})})


def mig_gpus(count: int) -> DeviceLayout:
    """GPUs of 80 GB, each whole and with all its legal MIG instances; each consumes slices of memory and of compute."""
    return DeviceLayout(
        pools=(DevicePool(driver=DRIVER),),
        counters=(*(1,) * 8, 7) * count,
        devices=tuple(
            OfferedDevice(
                pool=0,
                name=f"gpu-{gpu}-{profile.replace('.', '-')}-{start}",
                uses=(*((9 * gpu + at, 1) for at in range(start, start + size)), (9 * gpu + 8, compute)),
                gpu=gpu,
                gpu_milli=125 * size,
            )
            for gpu in range(count)
            for profile, start, size, compute in _instances()
        ),
        kinds="66" * 32,
    )


def _instances() -> list[tuple[str, int, int, int]]:
    legal = GEOMETRIES["80gb"].profiles.items()
    return [
        ("whole", 0, 8, 7),
        *((name, start, profile.size, int(name[0])) for name, profile in legal for start in profile.starts),
    ]


def profile_selector(profile: str) -> str:
    return f'device.attributes["{DRIVER}"].profile == "{profile}"'


def profile_facts(layout: DeviceLayout, gpus: int) -> list[ClassSeen | DevicesSelected]:
    """A class for each profile of `mig_gpus`, and one called whole; and the devices that each takes."""
    named, found = [name for _ in range(gpus) for name, *_ in _instances()], list[ClassSeen | DevicesSelected]()
    for profile in dict.fromkeys(named):
        bits = sum(1 << at for at, name in enumerate(named) if name == profile)
        found += [class_seen(profile, profile_selector(profile))]
        found += [selected(layout, bits, profile_selector(profile))]
    return found


def selected_profiles(*profiles: str) -> tuple[str, ...]:
    """The digests by which the devices of these profiles are known."""
    return tuple(sorted(selectors_digest((profile_selector(profile),)) for profile in profiles))


def mig_offer(gpus: int) -> Offer:
    """An offer of `mig_gpus` of which everything is known."""
    layout, known = mig_gpus(gpus), profile_facts(mig_gpus(gpus), gpus)
    classes = {fact.name: DeviceClass(fact.name, fact.selectors) for fact in known if isinstance(fact, ClassSeen)}
    selections = {
        selectors_digest(fact.selectors): Selection(int(fact.devices, 16))
        for fact in known
        if isinstance(fact, DevicesSelected)
    }
    return Offer(layout.digest(), layout, classes, selections)
