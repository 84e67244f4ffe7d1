"""Use of a node by one pod, in the numbers that nodes are counted by."""

from dataclasses import dataclass
from functools import lru_cache
from math import ceil

import structlog

from tessera.binder.adoption.decide.amounts import Unreadable, pod_amounts
from tessera.binder.decide.ends import DISRUPTED, READY
from tessera.binder.decide.starting import READY_TO_START
from tessera_schemas.base import Json
from tessera_schemas.cluster.device_vendors import NVIDIA_SHARED
from tessera_schemas.cluster.labels import GPU_RESOURCE, MIG_RESOURCE_PREFIX, SESSION_LABEL, has_ended
from tessera_schemas.cluster.resource_kinds import is_counted_by_name

USES = "uses"
"""Where a reduced pod of a run has what it takes."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Uses:
    """Use of one pod besides its place among the node's pods; the rest of a division is rounded up."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    gpus: int = 0
    devices: tuple[tuple[str, int], ...] = ()


def uses_of(pod: Json) -> Uses:
    """A pod that cannot be read takes its place and nothing else: no kubelet starts what asks for what is no number."""
    try:
        asked = pod_amounts(pod.get("spec") or {}, pod.get("status") or {})
    except Unreadable as error:
        log.warning("pod_not_readable", pod=pod["metadata"]["name"], error=str(error))
        return Uses()
    further = {name: ceil(amount) for name, amount in asked.items() if amount and _is_counted(name)}
    return _shared(
        ceil(asked.get("cpu", 0) * 1000),
        ceil(asked.get("memory", 0)),
        ceil(asked.get(GPU_RESOURCE, 0)),
        tuple(sorted(further.items())),
    )


def uses_at_work(pod: Json) -> Uses | None:
    """Use of a pod that is bound and has not ended; None for any other."""
    return uses_of(pod) if (pod.get("spec") or {}).get("nodeName") and not has_ended(pod) else None


def _is_counted(name: str) -> bool:
    return is_counted_by_name(name) or name.startswith((MIG_RESOURCE_PREFIX, NVIDIA_SHARED.resource))


@lru_cache(maxsize=4096)
def _shared(cpu_milli: int, memory_bytes: int, gpus: int, devices: tuple[tuple[str, int], ...]) -> Uses:
    """One object for all equal pods, of which a DaemonSet makes thousands."""
    return Uses(cpu_milli, memory_bytes, gpus, devices)


SPEC = ("nodeName", "schedulerName", "subdomain", "activeDeadlineSeconds", "resourceClaims")
STATUS = (
    *("phase", "reason", "message", "conditions", "containerStatuses", "initContainerStatuses"),
    *("resourceClaimStatuses", "extendedResourceClaimStatus"),
)
CONDITIONS = (DISRUPTED, READY_TO_START)
NOT_OF_META = ("managedFields", "ownerReferences")


def only_what_is_read(pod: Json) -> Json:
    """A smaller pod that `read_pod` reads the same."""
    meta, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    uses = uses_at_work(pod)
    kept = (*CONDITIONS, READY) if SESSION_LABEL in (meta.get("labels") or {}) else CONDITIONS
    return ({} if uses is None else {USES: uses}) | {
        "metadata": {name: value for name, value in meta.items() if name not in NOT_OF_META},
        "spec": {name: spec[name] for name in SPEC if name in spec},
        "status": {name: status[name] for name in STATUS if name in status}
        | {"conditions": [one for one in status.get("conditions") or () if one.get("type") in kept]},
    }
