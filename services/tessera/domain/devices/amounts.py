"""Amounts of what quotas count: CPU, memory, GPUs, and devices that drivers publish, by their class. Integers."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from tessera.domain.storing.fast import fast_init
from tessera.domain.storing.later import later
from tessera_schemas.cluster.device_claims import OF_CLASS

RESOURCES = ("cpu_milli", "memory_bytes", "gpu_milli")
"""What quotas count beside devices of classes."""
DeviceCounts = tuple[tuple[str, int], ...]
"""Numbers of devices by class, in order of the classes."""


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
