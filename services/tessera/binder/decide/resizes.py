"""
Sizes of a run's pods that are resized in place: what each is to ask for, and how far its node is with it. Pure.

A node has taken a resize once it says of the container that just this is allocated, and in force, and that nothing is
pending. Until then the pod may have either size.
"""

from dataclasses import dataclass
from fractions import Fraction

from pydantic import ValidationError

from tessera_schemas.base import Json
from tessera_schemas.cluster.resource_kinds import requests
from tessera_schemas.job import Role
from tessera_schemas.text.quantities import QuantityError, quantity
from tessera_schemas.work.spec_changes import RoleAmounts

RESIZED = ("cpu", "memory")
PENDING = ("PodResizePending", "PodResizeInProgress")


@dataclass(frozen=True, slots=True)
class ResizeOfPod:
    """`patch` is what the pod is to be given, None where it has that; `taken`: its node has it; `why` it never will."""

    patch: Json | None
    taken: bool = False
    why: str = ""


def wanted_resources(role: Role) -> Json:
    """Requests and limits of CPU and memory that the container of each pod of the role is to have."""
    asked = role.resources
    higher = {
        "cpu_milli": asked.cpu_limit_milli or asked.cpu_milli,
        "memory_bytes": asked.memory_limit_bytes or asked.memory_bytes,
    }
    least, most = requests(asked), requests(asked.model_copy(update=higher))
    return {part: {name: of[name] for name in RESIZED} for part, of in (("requests", least), ("limits", most))}


def unfit(role: Role, size: RoleAmounts) -> str:
    """Why the pods of a role, as it is to be, would not be of this size, or would break its contract; "" if neither."""
    for field in ("cpu_milli", "memory_bytes"):
        if getattr(role.resources, field) < 1 or getattr(role, field) > getattr(size, field):
            return f"{field}: its sidecars and init containers need more than the new size leaves"
    try:
        Role.model_validate_json(role.model_dump_json())
    except ValidationError as error:
        return str(error.errors()[0]["msg"])
    return ""


def resize_of(pod: Json, role: Role, as_it_was: bool) -> ResizeOfPod:
    """
    How far a pod that is at work is with the size of its role. `as_it_was`: the size is the one that its node had taken
    before, so that a node which says nothing of sizes has never left it.
    """
    wanted = wanted_resources(role)
    if not _has(_container(pod["spec"].get("containers"), role.name).get("resources"), wanted):
        return ResizeOfPod(wanted)
    status = pod.get("status") or {}
    pending = {one.get("type"): one for one in status.get("conditions") or () if one.get("type") in PENDING}
    waits = pending.get("PodResizePending")
    # A condition of before the last change says nothing about it.
    is_old = waits is not None and 0 < waits.get("observedGeneration", 0) < pod["metadata"].get("generation", 0)
    if waits is not None and waits.get("reason") == "Infeasible" and not is_old:
        return ResizeOfPod(None, why=str(waits.get("message") or "the node can never hold it")[:512])
    told = _container(status.get("containerStatuses"), role.name)
    if told.get("resources") is None:
        return ResizeOfPod(None, taken=as_it_was and not pending)
    allocated = told.get("allocatedResources", told["resources"].get("requests"))
    is_allocated = _has({"requests": allocated}, {"requests": wanted["requests"]})
    return ResizeOfPod(None, taken=is_allocated and not pending and _has(told["resources"], wanted))


def _container(there: object, name: str) -> Json:
    found = (one for one in there if one.get("name") == name) if isinstance(there, list | tuple) else iter(())
    container: Json = next(found, {})
    return container


def _has(resources: Json | None, wanted: Json) -> bool:
    """Whether requests and limits are, as numbers, what is wanted of them."""
    return all(
        _number(((resources or {}).get(part) or {}).get(name)) == quantity(amount)
        for part, amounts in wanted.items()
        for name, amount in amounts.items()
    )


def _number(text: str | int | None) -> Fraction | None:
    try:
        return None if text is None else quantity(text)
    except QuantityError:
        return None
