"""
Amounts of what quotas count: CPU, memory, GPUs, and devices that drivers publish, by their class; and the seats of
anti-affinity groups, which count among the devices of a node; and by what a quota is too small. Integers.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile

from tessera.domain.storing.fast import fast_init
from tessera.domain.storing.later import later
from tessera_schemas.cluster.device_claims import OF_CLASS

RESOURCES = ("cpu_milli", "memory_bytes", "gpu_milli")
"""What quotas count beside devices of classes."""
DeviceCounts = tuple[tuple[str, int], ...]
"""Numbers of devices by class, in order of the classes."""
DevicesFree = tuple[tuple[str, int], ...]
"""
Number of devices that are free, by Kubernetes' name, in order; and before them the seats of anti-affinity groups that
are taken: one that is not among them is free.
"""


@fast_init
@dataclass(frozen=True, slots=True)
class Amount:
    """A quantity of everything that quotas count; `device_classes` are devices that drivers publish, by their class."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    gpu_milli: int = 0
    device_classes: DeviceCounts = later(())

    @classmethod
    def by(cls, counts: Mapping[str, int]) -> "Amount":
        """The amount of these resources, in the words of quotas."""
        of_classes = ((name.removeprefix(OF_CLASS), n) for name, n in counts.items() if name.startswith(OF_CLASS) and n)
        cpu, memory, gpu = (counts.get(name, 0) for name in RESOURCES)
        return cls(cpu, memory, gpu, tuple(sorted(of_classes)))

    def of(self, resource: str) -> int:
        """How much it is of a resource, in the words of quotas; 0 of one that is not there."""
        if resource.startswith(OF_CLASS):
            return dict(self.device_classes).get(resource.removeprefix(OF_CLASS), 0)
        return int(getattr(self, resource))

    @property
    def resources(self) -> tuple[str, ...]:
        """Everything that quotas of it may count, in the words of quotas."""
        return (*RESOURCES, *(OF_CLASS + name for name, _ in self.device_classes)) if self.device_classes else RESOURCES

    def plus(self, other: "Amount", sign: int = 1) -> "Amount":
        """Sum with another amount, or with `sign` -1 the difference, which may be negative."""
        return Amount(
            self.cpu_milli + sign * other.cpu_milli,
            self.memory_bytes + sign * other.memory_bytes,
            self.gpu_milli + sign * other.gpu_milli,
            _sum(self.device_classes, other.device_classes, sign) if other.device_classes else self.device_classes,
        )

    def most(self, other: "Amount") -> "Amount":
        """The larger of both amounts of each resource."""
        return Amount(
            max(self.cpu_milli, other.cpu_milli),
            max(self.memory_bytes, other.memory_bytes),
            max(self.gpu_milli, other.gpu_milli),
            tuple(sorted((Counter(dict(self.device_classes)) | Counter(dict(other.device_classes))).items())),
        )

    def least(self, other: "Amount") -> "Amount":
        """The smaller of both amounts of each resource."""
        return Amount(
            min(self.cpu_milli, other.cpu_milli),
            min(self.memory_bytes, other.memory_bytes),
            min(self.gpu_milli, other.gpu_milli),
            tuple(sorted((Counter(dict(self.device_classes)) & Counter(dict(other.device_classes))).items())),
        )


def _sum(one: DeviceCounts, other: DeviceCounts, sign: int) -> DeviceCounts:
    sums = dict(one)
    for name, count in other:
        sums[name] = sums.get(name, 0) + sign * count
    return tuple(sorted((name, count) for name, count in sums.items() if count))


NOTHING = Amount()


def seat_name(group: str | None, tenant: str, job_id: str) -> str:
    """
    Name of the seat for pods of an anti-affinity group, which counts among devices: each node has one, for one pod.

    No other device begins so, and no tenant's or job's group is another's.
    """
    return f"/{tenant}/{group}" if group else f"/{tenant}/{job_id}/"


def is_seat(name: str) -> bool:
    """Whether a name among a need's or a node's devices is the seat of an anti-affinity group."""
    return name.startswith("/")


def seats_of(free: DevicesFree) -> Iterator[tuple[str, int]]:
    """The seats among a node's free devices that are taken, and how many are left of each, 0 or less."""
    return takewhile(lambda each: is_seat(each[0]), free)


def least_devices(one: DevicesFree, other: DevicesFree) -> DevicesFree:
    """Devices, and seats, that are free on a node in both of two states."""
    there, here = dict(other), dict(one)
    found = [(name, min(free, there.get(name, int(is_seat(name))))) for name, free in one]
    more = [(name, free) for name, free in other if is_seat(name) and name not in here]
    return tuple(sorted([*more, *found])) if more else tuple(found)


@dataclass(frozen=True, slots=True)
class Over:
    """
    A quota that a job does not fit into: what it wants of `cell`, (flavor, resource), and what is left to borrow.

    `firm`: what may be borrowed does not count, since the job may not be evicted; `used` is then by such jobs.
    `percent`: the part of its pool that the quota is, None where it is an amount. `until`: what has to change before it
    may be evicted (`Job.kept_until`), "" where its owner says that it may not.
    """

    queue: str
    cell: tuple[str, str]
    wanted: int
    available: int
    used: int
    nominal: int
    firm: bool = False
    percent: int | None = None
    until: str = ""
