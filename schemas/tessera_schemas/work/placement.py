"""Placement of one pod of a gang: node and device slots; and whom a start passed. Shared by records, events, domain."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from pydantic import ConfigDict

EXTENDED_CLAIM = "extended resources"
"""
The claim of a pod for what it counts on and a class answers (`nvidia.com/gpu`); its requests are called as these
resources. No claim that a pod names itself can be called so.
"""


@dataclass(frozen=True, slots=True)
class DrawnDevice:
    """
    A device that a pod's claim has, by the names of its driver, and the request, or `request/choice`, that it answers.

    `capacity` is the part of it, in thousandths of each unit, where it is shared. `admin`: access beside others.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    claim: str
    request: str
    driver: str
    pool: str
    device: str
    capacity: tuple[tuple[str, int], ...] = ()
    admin: bool = False

    @property
    def id(self) -> str:
        """`driver/pool/device`."""
        return f"{self.driver}/{self.pool}/{self.device}"


@dataclass(frozen=True, slots=True)
class Placement:
    """
    One pod. `gpu_milli` is taken of each of `devices` (slot numbers of the node): 1000 for whole GPUs, less for
    shares, each of a device of its own, 0 with no devices.

    `drawn` are the devices of its claims; `devices` and `gpu_milli` are empty then.

    `mig` is the place of a MIG instance inside its device: the first memory slice and how many. Then `gpu_milli` is
    what these slices are of the device. Of a pod with several instances `devices` has the device of each, and
    `mig_starts` the first memory slice of each; `mig` is the place of the first one.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    rank: int
    role: str
    node: str
    devices: tuple[int, ...] = ()
    gpu_milli: int = 0
    mig: tuple[int, int] | None = None
    drawn: tuple[DrawnDevice, ...] = field(default=(), metadata={"later": True})  # as of `domain.storing.later`
    mig_starts: tuple[int, ...] = field(default=(), metadata={"later": True})

    @property
    def instances(self) -> tuple[tuple[int, int], ...]:
        """Device and first memory slice of each MIG instance."""
        if self.mig is None:
            return ()
        return tuple(zip(self.devices, self.mig_starts or (self.mig[0],), strict=False))


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
