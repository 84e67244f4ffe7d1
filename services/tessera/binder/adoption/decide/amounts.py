"""
Resources that one pod takes of a node, by the rule of Kubernetes' own scheduler. Pure.

Containers run together, init containers one after the other before them, and sidecars (init containers that restart)
go on beside all that come later; then the overhead of the runtime. Pod-level requests stand in place of the sum.
While a pod is resized in place it takes the most of what it asks for and what its node has allocated to it.
"""

from collections.abc import Container, Iterator
from fractions import Fraction
from functools import lru_cache
from math import ceil

from tessera.binder.workloads.reading import at, items, mapping, no, text
from tessera_schemas.base import INT_MAX, Json
from tessera_schemas.cluster.device_vendors import NVIDIA_SHARED, known_gpu_resources
from tessera_schemas.cluster.devices import ISOLATIONS
from tessera_schemas.cluster.labels import (
    GPU_MEMORY_ANNOTATION,
    GPU_MILLI_ANNOTATION,
    GPU_RESOURCE,
    GPU_RESOURCE_ANNOTATION,
    ISOLATION_ANNOTATION,
    MIG_RESOURCE_PREFIX,
)
from tessera_schemas.cluster.resource_kinds import FIELDS, KINDS, is_device
from tessera_schemas.job import GPU_PARTS_MAX
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.text.quantities import QuantityError, quantity

Amounts = dict[str, Fraction]
NONE = Fraction(0)
FRACTION_DEVICES = "gpu-fraction-num-devices"
NOT_COUNTED = "ephemeral-storage"
"""Of a node's own disk there is no book: its kubelet refuses the pod that does not fit, and the job goes elsewhere."""


class Unreadable(ValueError):
    """A quantity that is none, or more than can be counted."""

    def __init__(self, field: str, detail: str) -> None:
        super().__init__(f"{field}: {detail}")
        self.field, self.detail = field, detail


def resources_of(spec: Json, annotations: Json) -> Json | Reason:
    """The fields of the contract's `Resources`; a pod that asks for nothing takes the least that can be asked for."""
    try:
        asked = {name: amount for name, amount in pod_amounts(spec).items() if amount}
        wanted: Json = {"cpu_milli": 1, "memory_bytes": 1, "devices": {}}
        of_gpus = {*known_gpu_resources(), text(annotations, GPU_RESOURCE_ANNOTATION)}
        # How much of a GPU one replica is, its node says; the pod has to say how much it counts on.
        of_gpus |= {NVIDIA_SHARED.resource} if _says_share(annotations) else set()
        for name, amount in sorted(asked.items()):
            against = _put(wanted, name, amount, of_gpus)
            if against is not None:
                return against
        if isolation := text(annotations, ISOLATION_ANNOTATION):
            if isolation not in ISOLATIONS:
                detail = f"{isolation!r}: one of {', '.join(ISOLATIONS)}"
                return no(Code.INVALID_FIELD, f"metadata.annotations[{ISOLATION_ANNOTATION}]", detail)
            wanted["isolation"] = isolation
        return _with_share(wanted, annotations)
    except Unreadable as error:
        return no(Code.INVALID_FIELD, error.field, error.detail)


def pod_amounts(spec: Json, status: Json | None = None) -> Amounts:
    """
    Resources that the pod takes; with the `status` of a bound pod, as resizes in place have it. Raises Unreadable.
    """
    resized = _Resized(status or {})
    sidecars: Amounts = {}
    highest: Amounts = {}
    for index, container in enumerate(items(spec, "initContainers")):
        own = _requests(container, f"spec.initContainers[{index}].resources")
        # A sidecar counts in all that comes after it, and an init container beside those sidecars alone that were
        # started before it: hence one pass in the order of the list, with the highest point kept.
        if container.get("restartPolicy") == "Always":
            own = resized.container(container, own)
            sidecars = _sum(sidecars, own)
            highest = _most(highest, sidecars)
        else:
            highest = _most(highest, _sum(sidecars, own))
    total = sidecars
    for index, container in enumerate(items(spec, "containers")):
        own = _requests(container, f"spec.containers[{index}].resources")
        total = _sum(total, resized.container(container, own))
    whole_pod = resized.whole_pod(_requests(spec, "spec.resources"))
    overhead = dict(_amounts(mapping(spec, "overhead"), "spec.overhead"))
    # The pod takes the higher of its start and its work, since they never overlap. Requests of the whole pod replace
    # that, resource by resource; the overhead of its runtime comes on top of either.
    return _sum(_most(total, highest) | whole_pod, overhead)


class _Resized:
    """Resources allocated to a pod by its status. A resize that its node can never carry out is not counted."""

    def __init__(self, status: Json) -> None:
        self._status = status
        statuses = (*items(status, "initContainerStatuses"), *items(status, "containerStatuses"))
        self._containers = {text(each, "name"): each for each in statuses if "resources" in each}
        self._is_infeasible = bool(self._containers or "resources" in status) and any(
            text(condition, "type") == "PodResizePending" and text(condition, "reason") == "Infeasible"
            for condition in items(status, "conditions")
        )

    def container(self, container: Json, asked: Amounts) -> Amounts:
        """
        Resources of the container; equal to its request in nearly all cases, which is seen without reading numbers.
        """
        name = text(container, "name")
        reported, requests = self._containers.get(name), at(container, "resources", "requests")
        if reported is None or requests == at(reported, "resources", "requests") == reported.get(
            "allocatedResources", requests
        ):
            return asked
        # Neither number alone is safe while a resize is under way: the kubelet may already have given what is asked
        # for, or still hold what was.
        return self._most(asked, reported, f"status.containerStatuses[{name}]")

    def whole_pod(self, asked: Amounts) -> Amounts:
        return self._most(asked, self._status, "status") if asked and "resources" in self._status else asked

    def _most(self, asked: Amounts, reported: Json, field: str) -> Amounts:
        actual = dict(_amounts(mapping(reported, "resources", "requests"), f"{field}.resources.requests"))
        allocated = dict(_amounts(mapping(reported, "allocatedResources"), f"{field}.allocatedResources"))
        return _most({} if self._is_infeasible else asked, _most(actual, allocated))


def _requests(of: Json, field: str) -> Amounts:
    """A limit is a request where none is made."""
    resources = mapping(of, "resources")
    return {
        **dict(_amounts(mapping(resources, "limits"), f"{field}.limits")),
        **dict(_amounts(mapping(resources, "requests"), f"{field}.requests")),
    }


def _amounts(reported: Json, field: str) -> Iterator[tuple[str, Fraction]]:
    for name, amount in reported.items():
        try:
            exact = _exact(amount if isinstance(amount, str | int) else str(amount))
        except QuantityError as error:
            raise Unreadable(f"{field}[{name}]", str(error)) from error
        if exact is None:
            raise Unreadable(f"{field}[{name}]", f"{amount} is more than can be counted")
        yield name, exact


@lru_cache(maxsize=4096)
def _exact(amount: str | int) -> Fraction | None:
    """Most pods ask for what others asked for before them, and reading it costs the most; None: beyond counting."""
    exact = quantity(amount)
    # Compared as integers by cross-multiplication; a quantity may have more digits than any other type would hold.
    return None if exact.numerator > INT_MAX * exact.denominator else exact


def _sum(one: Amounts, other: Amounts) -> Amounts:
    if not (one and other):  # nearly always: one container, nothing beside it
        return one or other
    return {name: one.get(name, NONE) + other.get(name, NONE) for name in {**one, **other}}


def _most(one: Amounts, other: Amounts) -> Amounts:
    if not (one and other):
        return one or other
    return {name: max(one.get(name, NONE), other.get(name, NONE)) for name in {**one, **other}}


def _put(wanted: Json, name: str, amount: Fraction, of_gpus: Container[str]) -> Reason | None:
    """Write one resource where the contract has it; the rest of a division is rounded up."""
    field = f"spec.containers.resources.requests[{name}]"
    if name == NOT_COUNTED:
        return None
    if name in FIELDS:
        wanted[FIELDS[name]] = ceil(amount * KINDS[FIELDS[name]].scale)
        return None
    if amount.denominator != 1:
        return no(Code.INVALID_FIELD, field, "a device is whole; a share of a GPU is an annotation")
    count = int(amount)
    if name in of_gpus:
        if "gpus" in wanted:
            other = wanted.get("gpu_resource") or GPU_RESOURCE
            return no(Code.NOT_SUPPORTED_YET, field, f"a pod has GPUs of one resource, and it asks for {other} as well")
        wanted |= {"gpus": count} | ({} if name == GPU_RESOURCE else {"gpu_resource": name})
    elif name.startswith(MIG_RESOURCE_PREFIX):
        if "mig_profile" in wanted:
            detail = f"a pod has instances of one profile, and it asks for {wanted['mig_profile']} as well"
            return no(Code.NOT_SUPPORTED_YET, field, detail)
        wanted |= {"mig_profile": name.removeprefix(MIG_RESOURCE_PREFIX)} | ({"gpu_parts": count} if count > 1 else {})
    elif is_device(name):
        wanted["devices"][name] = count
    elif name == NVIDIA_SHARED.resource:
        detail = f"say by {GPU_MILLI_ANNOTATION} how many thousandths of a GPU it is"
        return no(Code.NOT_SUPPORTED_YET, field, detail)
    else:
        return no(Code.NOT_SUPPORTED_YET, field, "Tessera keeps no book of this resource; ask for none of it")
    return None


def _with_share(wanted: Json, annotations: Json) -> Json | Reason:
    """Ours counts before the mark of another system."""
    share, memory = text(annotations, GPU_MILLI_ANNOTATION), text(annotations, GPU_MEMORY_ANNOTATION)
    if not share:
        fraction = _fraction(annotations)
        if isinstance(fraction, Reason):
            return fraction
        share, parts = fraction
        wanted |= {"gpu_parts": parts} if parts > 1 else {}
    if share:
        if not (share.isascii() and share.isdecimal() and len(share) <= 3 and int(share)):
            field = f"metadata.annotations[{GPU_MILLI_ANNOTATION}]"
            return no(Code.INVALID_FIELD, field, f"{share!r}: thousandths of one GPU, 1 to 999")
        wanted["gpu_milli"] = int(share)
        if wanted.get("gpus") == 1 and "gpu_parts" in wanted:
            field = f"metadata.annotations[{FRACTION_DEVICES}]"
            return no(Code.NOT_SUPPORTED_YET, field, "replicas of a plugin may be of one GPU; ask for no GPU besides")
        if wanted.get("gpus") == 1:  # its container takes one of a node's replicas, and none of a plugin of one's own
            wanted |= {"gpus": 0, "gpu_resource": wanted.get("gpu_resource") or GPU_RESOURCE}
    if memory:
        reported = dict(_amounts({GPU_MEMORY_ANNOTATION: memory}, "metadata.annotations"))
        wanted["gpu_memory_bytes"] = ceil(reported[GPU_MEMORY_ANNOTATION])
    return wanted


def _says_share(annotations: Json) -> bool:
    return any(text(annotations, name) for name in (GPU_MILLI_ANNOTATION, "gpu-fraction"))


def _fraction(annotations: Json) -> tuple[str, int] | Reason:
    """KAI's share of a GPU in thousandths, "" for none; and of how many GPUs the pod has one each."""
    if text(annotations, "gpu-memory"):
        detail = f"a share is said as gpu-fraction or {GPU_MILLI_ANNOTATION}, its memory as {GPU_MEMORY_ANNOTATION}"
        return no(Code.NOT_SUPPORTED_YET, "metadata.annotations[gpu-memory]", detail)
    words, devices = text(annotations, "gpu-fraction"), text(annotations, FRACTION_DEVICES) or "1"
    parts = int(devices) if devices.isascii() and devices.isdecimal() and len(devices) <= 2 else 0
    if not 1 <= parts <= GPU_PARTS_MAX or (parts > 1 and not words):
        detail = f"{devices!r}: 1 to {GPU_PARTS_MAX} GPUs, beside gpu-fraction"
        return no(Code.INVALID_FIELD, f"metadata.annotations[{FRACTION_DEVICES}]", detail)
    if not words:
        return "", 1
    try:
        share = ceil(quantity(words) * 1000)
    except QuantityError:
        share = 0
    if not 0 < share < 1000:
        return no(Code.INVALID_FIELD, "metadata.annotations[gpu-fraction]", f"{words!r}: more than 0 and less than 1")
    return str(share), parts
