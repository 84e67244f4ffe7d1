"""Placement of one pod of a gang: node and device slots. Shared by records, events and the domain."""

from dataclasses import dataclass
from typing import ClassVar

from pydantic import ConfigDict


@dataclass(frozen=True, slots=True)
class Placement:
    """
    One pod. `gpu_milli` is taken of each of `devices` (slot numbers of the node): 1000 for whole GPUs, less for a
    share of a single one, 0 with no devices.

    `mig` is the place of a MIG instance inside its device: the first memory slice and how many. Then `gpu_milli` is
    what these slices are of the device.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    rank: int
    role: str
    node: str
    devices: tuple[int, ...] = ()
    gpu_milli: int = 0
    mig: tuple[int, int] | None = None
