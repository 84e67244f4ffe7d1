"""Nodes whose driver publishes eight GPUs with every legal MIG instance, as facts, and claims on them."""

from collections.abc import Iterator, Sequence

from tessera_lab.bench.together.platform import GIB
from tessera_schemas.cluster.device_claims import DeviceChoice, DeviceClaim, DeviceRequest
from tessera_schemas.cluster.device_facts import ClassSeen, DevicesSelected, LayoutSeen
from tessera_schemas.cluster.device_layouts import DeviceLayout, DevicePool, NodeOffer, OfferedDevice
from tessera_schemas.cluster.mig import GEOMETRIES
from tessera_schemas.facts import AnyFact, NodeSeen

DRIVER, MIG_CLASS = "gpu.nvidia.com", "mig.nvidia.com"
GPUS, SLICES = 8, 8
GEOMETRY = GEOMETRIES["80gb"]
PROFILES = tuple(GEOMETRY.profiles)
WHOLE = "whole"
ENGINES = {"1g": (1, 1), "2g": (2, 2), "3g": (3, 3), "4g": (4, 4), "7g": (7, 7)}
"""Compute slices and copy engines of an instance, of seven each."""


def mig_layout(descending: bool = False) -> tuple[DeviceLayout, dict[str, int]]:
    """
    The layout of a node, and the devices of each profile as bits; `WHOLE` are the GPUs that are not cut.

    Args: `descending`: instances of a profile from their last position on, else from their first.
    """
    devices, bits = list[OfferedDevice](), dict[str, int]()

    def add(profile: str, name: str, gpu: int, slices: range, engines: tuple[int, int], milli: int) -> None:
        first = gpu * (SLICES + 2)
        uses = [(first + at, 1000) for at in slices]
        uses += [(first + SLICES + at, amount * 1000) for at, amount in enumerate(engines)]
        bits[profile] = bits.get(profile, 0) | 1 << len(devices)
        devices.append(OfferedDevice(pool=0, name=name, uses=tuple(uses), gpu=gpu, gpu_milli=milli))

    for gpu in range(GPUS):
        add(WHOLE, f"gpu-{gpu}", gpu, range(SLICES), (7, 7), 1000)
        for profile, shape in GEOMETRY.profiles.items():
            milli = shape.size * GEOMETRY.milli_per_slice
            for start in sorted(shape.starts, reverse=descending):
                name = f"gpu-{gpu}-mig-{profile.replace('.', '-')}-{start}"
                add(profile, name, gpu, range(start, start + shape.size), ENGINES[profile[:2]], milli)
    counters = ((1000,) * SLICES + (7000, 7000)) * GPUS
    pools = (DevicePool(driver=DRIVER),)
    return DeviceLayout(pools=pools, counters=counters, devices=tuple(devices), kinds="00" * 32), bits


def selector(profile: str) -> str:
    """The condition by which claims ask for a profile."""
    return f"device.attributes['{DRIVER}'].profile == '{profile}'"


def claim_on(profile: str, name: str = "instance", count: int = 1) -> DeviceClaim:
    """A claim of instances of a profile, or of whole GPUs."""
    wanted = DeviceChoice(device_class=MIG_CLASS, count=count, selectors=(selector(profile),))
    return DeviceClaim(name=name, requests=(DeviceRequest(name="devices", choices=(wanted,)),))


def device_facts(layout: DeviceLayout, bits: dict[str, int]) -> list[AnyFact]:
    """The layout, the class, and what each profile's condition takes."""
    taken = (
        DevicesSelected(
            kind="devices_selected", layout=layout.digest(), selectors=(selector(profile),), devices=f"{mask:x}"
        )
        for profile, mask in bits.items()
    )
    return [LayoutSeen(kind="layout_seen", layout=layout), ClassSeen(kind="class_seen", name=MIG_CLASS), *taken]


def park_facts(nodes: int) -> Iterator[Sequence[AnyFact]]:
    """Facts of a park of equal nodes, as they come in message by message."""
    layout, bits = mig_layout()
    yield device_facts(layout, bits)
    offer = NodeOffer(layout=layout.digest())
    size = {"cpu_milli": 192_000, "memory_bytes": 2048 * GIB, "pods": 110, "gpus": GPUS, "gpu_model": "H100"}
    for first in range(0, nodes, 256):
        numbers = range(first, min(first + 256, nodes))
        yield [
            NodeSeen(kind="node_seen", name=f"gpu-{at:05}", device_profile="dra", offer=offer, **size) for at in numbers
        ]
