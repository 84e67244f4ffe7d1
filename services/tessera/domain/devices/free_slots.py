"""Free slots of a pool as a value: slots by size, and idle GPUs by what keeps them from use."""

from dataclasses import dataclass
from enum import StrEnum

from tessera.domain.devices.held_back import HeldBack
from tessera.domain.devices.offers import ClassUse


class Stranded(StrEnum):
    """Causes that keep an idle GPU, or a part of one, from use; the first that applies, in this order."""

    OTHERS = "others"  # pods that Tessera does not manage hold it
    FAULT = "fault"  # its node is not ready, or drained
    BOOKED = "booked"  # kept within the window of a reservation
    RESERVED = "reserved"  # kept for a job that will start there, or as a spare
    NOBODY = "nobody"  # no live job may use the node: model, memory, labels, taints
    SHAPE = "shape"  # a part of a GPU, or a GPU that is cut, and nobody asks for such a part
    PODS = "pods"  # the node takes no more pods
    CPU = "cpu"  # no CPU is left beside it
    MEMORY = "memory"  # no memory is left beside it
    NONE = "none"  # it can be had


class Unclaimed(StrEnum):
    """Reasons why the GPUs of a pool that can be had are not taken, by the jobs that wait there."""

    NOTHING_WAITS = "nothing_waits"
    QUOTA = "quota"  # every job that was looked at waits for its queue's quota
    ABANDONED = "abandoned"  # all that waits has a queue or tenant that the configuration no longer has
    JOBS_WAIT = "jobs_wait"  # some job waits for another reason: for more at once, for its turn


@dataclass(frozen=True, slots=True)
class Size:
    """Number of free slots of one size in a pool, and the most of them in one domain of each topology level."""

    gpus: int
    slots: int
    largest: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Unused:
    """Held, but idle: by how many runs, and how many thousandths of GPUs."""

    runs: int = 0
    gpu_milli: int = 0


@dataclass(frozen=True, slots=True)
class Slots:
    """
    One pool. `stranded` has every cause, and its sum is `idle_gpu_milli`.

    `unused` is what else is idle: GPUs that runs hold which were warned that they use none of theirs. `unclaimed` says
    why nobody takes what can be had, and `held_back`, where it was asked for, by which rules, in sum all of it.
    `device_classes` are devices that drivers publish, of all nodes that are there.
    """

    pool: str
    gpus: int
    idle_gpu_milli: int
    stranded: tuple[tuple[Stranded, int], ...]
    sizes: tuple[Size, ...]
    unused: Unused = Unused()
    unclaimed: Unclaimed = Unclaimed.NOTHING_WAITS
    held_back: tuple[HeldBack, ...] = ()
    device_classes: tuple[ClassUse, ...] = ()

    @property
    def can_be_had(self) -> int:
        """Thousandths of GPUs that can be had."""
        return dict(self.stranded).get(Stranded.NONE, 0)


@dataclass(frozen=True, slots=True)
class NodeCauses:
    """A node's idle thousandths of GPUs by cause, in the order of `Stranded`; none is 0."""

    node: str
    pool: str
    stranded: tuple[tuple[Stranded, int], ...]
