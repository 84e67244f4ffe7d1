"""
Knowledge of vendors: which counted resources of nodes are GPUs, and which devices of drivers (DRA) are.

A resource or a driver that is in no table is of devices like any other; none of them counts as a GPU. The
configuration adds resources (`gpu_resources`).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, StringConstraints

from tessera_schemas.base import Strict
from tessera_schemas.cluster.devices import Isolation
from tessera_schemas.cluster.labels import (
    GPU_COUNT_LABEL,
    GPU_MEMORY_LABEL,
    GPU_PRODUCT_LABEL,
    GPU_REPLICAS_LABEL,
    GPU_RESOURCE,
)

AMD_RESOURCE = "amd.com/gpu"
_PART = "[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
DOMAIN_KEY = rf"^[a-z0-9]([a-z0-9.-]{{0,251}}[a-z0-9])?/{_PART}$"
ResourceName = Annotated[str, StringConstraints(pattern=DOMAIN_KEY)]
ResourceNameOrNone = Annotated[str, StringConstraints(pattern=rf"({DOMAIN_KEY})|(^$)")]
OfferedResource = Annotated[
    ResourceNameOrNone, Field(description="Resource by which a node offers its GPUs; empty: nvidia.com/gpu")
]
IsDefault = Annotated[
    bool, Field(description="Whether jobs that name neither a GPU resource nor a model may use its GPUs")
]
Label = Annotated[str, StringConstraints(pattern=rf"({DOMAIN_KEY})|(^({_PART})?$)")]


class GpuResource(Strict):
    """
    A counted resource of nodes whose every device is a whole GPU, or another accelerator that counts as one.

    A label is "" where the vendor's plugin sets none: then the model is what `tessera.io/gpu-model` says. Without the
    label of the memory jobs that ask for memory of GPUs go elsewhere.
    """

    resource: Annotated[ResourceName, Field(description="Kubernetes' name of the resource, such as amd.com/gpu")]
    model_label: Annotated[Label, Field(description="Node label with the model; empty: none")] = ""
    memory_label: Annotated[
        Label, Field(description="Node label with the memory of each GPU: MiB, or as 192G; empty: none")
    ] = ""
    count_label: Annotated[Label, Field(description="Node label with the number of cards; empty: none")] = ""
    replicas_label: Annotated[
        Label, Field(description="Node label with how often each card is offered; empty: none")
    ] = ""


GPU_RESOURCES: tuple[GpuResource, ...] = (
    GpuResource(
        resource=GPU_RESOURCE,
        model_label=GPU_PRODUCT_LABEL,
        memory_label=GPU_MEMORY_LABEL,
        count_label=GPU_COUNT_LABEL,
        replicas_label=GPU_REPLICAS_LABEL,
    ),
    GpuResource(resource=AMD_RESOURCE, model_label="amd.com/gpu.product-name", memory_label="amd.com/gpu.vram"),
    GpuResource(
        resource="gpu.intel.com/i915", model_label="gpu.intel.com/product", count_label="gpu.intel.com/device.count"
    ),
    GpuResource(
        resource="gpu.intel.com/xe", model_label="gpu.intel.com/product", count_label="gpu.intel.com/device.count"
    ),
    GpuResource(resource="habana.ai/gaudi"),
    GpuResource(resource="google.com/tpu", model_label="cloud.google.com/gke-tpu-accelerator"),
    GpuResource(resource="huawei.com/Ascend910", model_label="accelerator-type"),
    GpuResource(resource="huawei.com/Ascend310P", model_label="accelerator-type"),
    GpuResource(resource="huawei.com/Ascend310", model_label="accelerator-type"),
    GpuResource(resource="cambricon.com/mlu"),
    GpuResource(resource="metax-tech.com/gpu"),
)
"""
Names and labels as the vendors' plugins set them.

Sources: NVIDIA, GPU feature discovery; AMD, instinct.docs.amd.com, device plugin and node labeller (ROCm
k8s-device-plugin); Intel, intel-device-plugins-for-kubernetes, gpu_plugin and its labels; Google, GKE, "About TPUs in
GKE"; Huawei, ascend-for-volcano (`huawei.com/Ascend910`, `accelerator-type`); Habana, Cambricon and MetaX: the names
that their device plugins register.
"""

NVIDIA_SHARED = GPU_RESOURCES[0].model_copy(update={"resource": f"{GPU_RESOURCE}.shared"})
"""Replicas of NVIDIA's GPUs, where the device plugin renames what it offers several times (`renameByDefault`)."""

AMD_PARTITION_LABEL = "amd.com/compute-memory-partition"
"""AMD's node labeller: how all GPUs of the node are cut, such as `spx_nps1` (not at all) and `cpx_nps4`."""
AMD_UNCUT = "spx"


def known_gpu_resources(more: Iterable[GpuResource] = ()) -> dict[str, GpuResource]:
    """Every resource of GPUs by its name; what the configuration says (`more`) counts before the table."""
    return {each.resource: each for each in (*GPU_RESOURCES, *more)}


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

SHARED_BY_DRIVER: dict[str, Isolation] = {"hami-core-gpu.project-hami.io": "compute"}
"""
What drivers enforce between the claims that share one of their GPUs (consumable capacity); of GPUs of any other driver
nothing is known to be. HAMi's driver puts its library before each program, which limits memory and cores.
"""

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
