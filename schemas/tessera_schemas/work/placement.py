"""Placement of one pod of a gang: node and device slots; and whom a start passed. Shared by records, events, domain."""

from dataclasses import dataclass
from typing import ClassVar, Literal

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


PASSED_MAX = 4
"""So many are named: those for which room is kept, then the first of the others."""

WhyPassed = Literal["ends_before", "beside", "unreserved"]


@dataclass(frozen=True, slots=True)
class Passed:
    """
    A job that stood before the one that starts, found no room or quota, and was passed by it.

    `why` says why that was allowed: the job that starts is expected to end before the room that is kept for the
    blocked one is needed (`ends_before`), it takes nothing that the blocked one is kept or could use (`beside`), or no
    room is kept for the blocked one (`unreserved`).
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    job_id: str
    why: WhyPassed
