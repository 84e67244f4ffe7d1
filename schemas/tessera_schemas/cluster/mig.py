"""
Legal positions of MIG instances inside a GPU.

A GPU's memory is cut into equal slices. An instance of a profile takes `size` neighbouring ones and may begin only at
certain slices, whatever else is free: so an instance that ends in the middle leaves a hole that larger profiles cannot
use. The compute slices need no book of their own: legal positions that do not overlap never need more than there are.
Source: NVIDIA, Multi-Instance GPU User Guide, "Supported MIG Profiles"; `nvidia-smi mig -lgipp` prints the positions.
"""

from dataclasses import dataclass

from tessera_schemas.base import GPU_MILLI
from tessera_schemas.cluster.labels import MIG_RESOURCE_PREFIX


@dataclass(frozen=True, slots=True)
class Profile:
    """`size` memory slices, beginning at one of `starts`."""

    size: int
    starts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Geometry:
    """The memory slices of one kind of GPU, and what may be cut from them."""

    slices: int
    profiles: dict[str, Profile]

    @property
    def milli_per_slice(self) -> int:
        """A slice as a share of its GPU."""
        return GPU_MILLI // self.slices


def _seven(one: int, two: int, half: int, whole: int) -> Geometry:
    """GPUs of seven compute and eight memory slices; the arguments are the sizes in the profiles' names, in GB."""
    return Geometry(
        8,
        {
            f"1g.{one}gb": Profile(1, (0, 1, 2, 3, 4, 5, 6)),
            f"1g.{two}gb": Profile(2, (0, 2, 4, 6)),
            f"2g.{two}gb": Profile(2, (0, 2, 4)),
            f"3g.{half}gb": Profile(4, (0, 4)),
            f"4g.{half}gb": Profile(4, (0,)),
            f"7g.{whole}gb": Profile(8, (0,)),
        },
    )


GEOMETRIES: dict[str, Geometry] = {
    "24gb": Geometry(
        4,
        {"1g.6gb": Profile(1, (0, 1, 2, 3)), "2g.12gb": Profile(2, (0, 2)), "4g.24gb": Profile(4, (0,))},
    ),
    "40gb": _seven(5, 10, 20, 40),
    "80gb": _seven(10, 20, 40, 80),
    "94gb": _seven(12, 24, 47, 94),
    "96gb": _seven(12, 24, 48, 96),
    "141gb": _seven(18, 35, 71, 141),
    "180gb": _seven(23, 45, 90, 180),
}
"""By the GPU's memory: A30; A100 40 GB; A100 and H100 80 GB; H100 NVL; GH200; H200; B200."""

PROFILES: dict[str, int] = {
    name: max(g.profiles[name].size * g.milli_per_slice for g in GEOMETRIES.values() if name in g.profiles)
    for name in sorted({name for geometry in GEOMETRIES.values() for name in geometry.profiles})
}
"""Each profile's name and what it counts against a quota, in thousandths: the most that it takes on any kind of GPU."""


def milli_at(geometry: str, profile: str, place: tuple[int, int] | None) -> int:
    """
    The thousandths of its GPU that an instance takes at `place`, its first slice and how many they are.

    -1 where a GPU of that geometry can have none.
    """
    shape = GEOMETRIES[geometry].profiles.get(profile) if geometry in GEOMETRIES else None
    if shape is None or place is None or place[0] not in shape.starts or place[1] != shape.size:
        return -1
    return shape.size * GEOMETRIES[geometry].milli_per_slice


def resource_of(profile: str) -> str:
    """The name by which the stock device plugin offers instances of the profile, and pods ask for one."""
    return MIG_RESOURCE_PREFIX + profile
