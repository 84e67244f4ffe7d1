"""
Device profiles: who hands out the GPUs of a node, and so what may be asked of it.

With the stock device plugin the kubelet picks the card: slots are then interchangeable, and a node serves whole GPUs or
shares, never both. Only a profile that owns all devices of its node may serve both.
"""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

DeviceProfile = Literal["whole", "shares", "plugin", "visible-devices", "hami", "mig", "dra", "time-slicing", "mps"]
Kind = Literal["whole", "share", "instance"]

SERVES: dict[str, frozenset[Kind]] = {
    "whole": frozenset({"whole"}),
    "shares": frozenset({"share"}),
    "plugin": frozenset({"whole", "share"}),
    "visible-devices": frozenset({"whole", "share"}),
    "hami": frozenset({"whole", "share"}),
    "mig": frozenset({"instance"}),
    "dra": frozenset(),
    "time-slicing": frozenset({"share"}),
    "mps": frozenset({"share"}),
}
"""
`whole`: the stock device plugin. `shares`, `plugin`: a plugin of one's own that reads the annotations about devices.
`visible-devices`: no plugin; the container runtime is told the cards. `hami`: HAMi's device plugin. `mig`: the stock
plugin with the instances that an operator made. `dra`: drivers publish the GPUs, and pods claim them. `time-slicing`,
`mps`: the stock plugin offers each GPU several times, and a share is one of these replicas.
"""
OF_REPLICAS = frozenset({"time-slicing", "mps"})
"""Profiles under which every share has one size, and the kubelet picks the GPU that it is of."""
NAMES_ITS_CARDS = frozenset({"visible-devices", "hami"})
"""Profiles under which a slot is one certain card, so that the node must say its UUIDs."""
NAMES_NO_CARDS = frozenset({"whole", "shares", "plugin", *OF_REPLICAS})
"""Profiles under which nobody says which card a slot is: when there are fewer, only sums compare."""

Isolation = Literal["none", "memory", "compute", "hardware"]
"""What keeps a pod's part of a GPU from the others on it; `compute` limits memory as well."""
SHARE_ISOLATION: dict[str, Isolation] = {"hami": "compute", "mps": "compute"}
"""
Of shares by device profile: HAMi's library and NVIDIA's MPS daemon limit memory and cores; under any other nothing is
known to be enforced. An instance has hardware of its own.
"""
ISOLATIONS: tuple[Isolation, ...] = "none", "memory", "compute", "hardware"
"""From the least to the most."""

GpuUuid = Annotated[str, StringConstraints(pattern=r"^GPU-[0-9A-Za-z-]{1,60}$")]
GpuUuids = Annotated[
    tuple[GpuUuid, ...],
    Field(max_length=64, description="GPU UUIDs by slot, where a slot stands for one certain card"),
]
ShareSize = Annotated[
    int,
    Field(ge=0, lt=1000, description="Thousandths of a GPU that every share there is; 0: shares are of any size"),
]

EVERY_TENANT = "*"
"""In a node's words about data sets: every tenant's of that name."""
ToldDataset = Annotated[str, StringConstraints(max_length=127, pattern=r"^(\*|[a-z0-9-]+)/[a-z0-9-]+$")]
ToldDatasets = Annotated[
    tuple[ToldDataset, ...],
    Field(max_length=256, description="Data sets that the node says it has, each `TENANT/NAME`; `*`: of every tenant"),
]

STEERING = frozenset(
    {
        "AMD_VISIBLE_DEVICES",
        "ASCEND_VISIBLE_DEVICES",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE",
        "CUDA_DEVICE_SM_LIMIT",
        "CUDA_DISABLE_CONTROL",
        "CUDA_OVERSUBSCRIBE",
        "GPU_CORE_UTILIZATION_POLICY",
        "HABANA_VISIBLE_DEVICES",
        "NVIDIA_MIG_CONFIG_DEVICES",
        "NVIDIA_MIG_MONITOR_DEVICES",
        "NVIDIA_VISIBLE_DEVICES",
    }
)
STEERING_PREFIXES = ("CUDA_DEVICE_MEMORY_LIMIT",)
STEERING_DOMAINS = ("hami.io/", "nvidia.com/")
"""Below them a pod's annotations tell a plugin which devices it is to have."""


def steers_devices(name: str) -> bool:
    """
    Whether a variable would show a container other devices than it was given, or more of them.

    What a pod's own environment says wins over what a device plugin sets.
    """
    upper = name.upper()
    return upper in STEERING or upper.startswith(STEERING_PREFIXES)


def isolates(given: str, least: str) -> bool:
    """Whether an isolation is at least the one that is asked for."""
    return least == "none" or ISOLATIONS.index(given) >= ISOLATIONS.index(least)


def isolation_of(profile: str, kind: Kind) -> Isolation:
    """Isolation of devices of this kind on a node of this profile; a whole GPU has nobody else on it."""
    return SHARE_ISOLATION.get(profile, "none") if kind == "share" else "hardware"


def serves(profile: str, kind: Kind) -> bool:
    """A profile that this build does not know serves nothing."""
    return kind in SERVES.get(profile, frozenset())
