"""
Knowledge of drivers that publish devices (DRA): which of these are GPUs, and which attributes name one thing alone.

A driver that is not in the table publishes devices like any other; none of them counts as a GPU.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GpuDriver:
    """
    Attributes and capacities, without the driver's domain, by which its GPUs are read; "" is one that it has not.

    `kind` says what a device is: one of `whole` is a GPU, one of `part` a part of one, and any other is none. Without
    `kind` each device is a GPU. Devices are of one GPU where the `parent` of a part is the `name` of a GPU, where they
    have an equal value of one of `card`, or where they use one set of counters. `profile` names MIG's profile of a
    part, for a GPU of which only parts are published.
    """

    kind: str = ""
    whole: frozenset[str] = frozenset()
    part: frozenset[str] = frozenset()
    name: str = "uuid"
    parent: str = ""
    card: tuple[str, ...] = ()
    model: str = "model"
    memory: str = "memory"
    profile: str = ""


PCI_BUS_ID = "resource.kubernetes.io/pciBusID"

GPU_DRIVERS: dict[str, GpuDriver] = {
    "gpu.nvidia.com": GpuDriver(
        kind="type",
        whole=frozenset({"gpu", "vfio"}),
        part=frozenset({"mig"}),
        parent="parentUUID",
        card=(PCI_BUS_ID,),
        model="productName",
        profile="profile",
    ),
    "gpu.amd.com": GpuDriver(
        kind="type",
        whole=frozenset({"amdgpu", "vfio"}),
        part=frozenset({"amdgpu-partition"}),
        card=("pciAddr", PCI_BUS_ID),
        model="productName",
    ),
    "gpu.intel.com": GpuDriver(card=(PCI_BUS_ID,)),
    "gpu.example.com": GpuDriver(),
}
"""By the name of the driver."""

_NAMES_ONE = ("uuid", "guid", "serial", "serialnumber", "pcibusid", "pciaddr", "pciaddress", "mac", "macaddress")
_ADDRESSES = frozenset({"ip", "ipv4", "ipv6", "address", "hostname", "nodename"})


def is_identity(attribute: str) -> bool:
    """
    Whether an attribute, by its name, tells a device from each other one of its make: a UUID, a serial number, an
    address.

    Selectors cannot look at it; `matchAttribute` and `distinctAttribute` can, since the same value is the same number.
    """
    name = attribute.rpartition("/")[2].lower().replace("_", "").replace("-", "")
    return name.endswith(_NAMES_ONE) or name in _ADDRESSES
