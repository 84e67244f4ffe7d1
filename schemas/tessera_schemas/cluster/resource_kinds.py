"""
The built-in kinds of resources of which a node has a sum and each container takes a part, each declared once.

A kind is a field of `CountedResources` with its `ResourceKind` beside it. From this follow the field of job specs and
init containers, the quantity in people's files, sums over a pod's containers, the reading of nodes and of other
systems' pods, the requests of our own pods, fits, the words of a refusal, and the views.

CPU and memory, which every decision looks at, have fields of their own in needs and nodes. A further kind counts among
a node's devices there, under Kubernetes' name, and costs nothing where no pod asks for it.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from tessera_schemas.base import Count, Positive, Strict, later


@dataclass(frozen=True, slots=True)
class ResourceKind:
    """Kubernetes' name of a resource, its name in people's files, and the unit of its integers."""

    resource: str
    word: str
    unit: Literal["thousandths", "bytes"]

    def written(self, amount: int) -> str:
        """An amount as a quantity of Kubernetes."""
        return f"{amount}m" if self.unit == "thousandths" else str(amount)

    @property
    def scale(self) -> int:
        """Number of our units in one of Kubernetes'."""
        return 1000 if self.unit == "thousandths" else 1


class CountedResources(Strict):
    """Amounts of the built-in kinds that one container takes."""

    cpu_milli: Annotated[
        Positive, ResourceKind("cpu", "cpu", "thousandths"), Field(description="Thousandths of a CPU core")
    ]
    memory_bytes: Annotated[Positive, ResourceKind("memory", "memory", "bytes"), Field(description="Bytes of memory")]
    hugepages_2mi_bytes: Annotated[
        Count,
        ResourceKind("hugepages-2Mi", "hugepages_2mi", "bytes"),
        Field(multiple_of=2**21, description="Memory in huge pages of 2 MiB, besides `memory_bytes`"),
    ] = later(0)


KINDS: dict[str, ResourceKind] = {
    field: kind
    for field, info in CountedResources.model_fields.items()
    for kind in info.metadata
    if isinstance(kind, ResourceKind)
}
"""Every kind by its field."""

FIELDS: dict[str, str] = {kind.resource: field for field, kind in KINDS.items()}
"""The field of every kind by Kubernetes' name."""

FURTHER: dict[str, ResourceKind] = {
    field: kind for field, kind in KINDS.items() if field not in ("cpu_milli", "memory_bytes")
}
"""The kinds that count among a node's devices."""

_FURTHER_NAMES = frozenset(kind.resource for kind in FURTHER.values())


def requests(asked: CountedResources) -> dict[str, str]:
    """A container's requests of the built-in kinds, as Kubernetes has them; of what is not asked for there is none."""
    amounts = ((kind, getattr(asked, field)) for field, kind in KINDS.items())
    return {kind.resource: kind.written(amount) for kind, amount in amounts if amount}


WHOLE_NODE = "whole_node"
"""Of which each node has one, free while nothing of ours is on it: a pod that has it has the node to itself."""

CLASS_PREFIX = "deviceclass.resource.kubernetes.io/"
"""Before the name of a DeviceClass: the counted resource that each class answers, whatever else it says."""


def is_device(name: str) -> bool:
    """Whether a resource of a node may be asked for as a further device: not Kubernetes' own, and no kind of GPU."""
    domain, slash, kind = name.partition("/")
    own = f".{domain}".endswith(".kubernetes.io") or domain.startswith("requests.")
    own = own and not name.startswith(CLASS_PREFIX)
    return bool(slash) and not own and not (domain == "nvidia.com" and kind.startswith(("gpu", "mig-")))


def is_counted_by_name(name: str) -> bool:
    """Whether a resource counts among a node's devices: a further device, or a built-in kind but CPU and memory."""
    return name in _FURTHER_NAMES or is_device(name)


def number_name(name: str) -> str:
    """Name of a counted resource in a reason's numbers: with its unit, so that people read it in that unit."""
    return f"{name}_bytes" if name in _FURTHER_NAMES else name
