"""
Reduction of a run's pod to what the binder keeps: the fields that `read_pod` looks at, and its use of the node. Most of
a pod is its template. Pure.
"""

from tessera.binder.decide.ends import DISRUPTED
from tessera.binder.decide.starting import READY_TO_START
from tessera.binder.nodes.uses import USES, uses_at_work
from tessera.kernel.ports import JsonObject

SPEC = ("nodeName", "schedulerName", "subdomain", "activeDeadlineSeconds")
STATUS = ("phase", "reason", "message", "conditions", "containerStatuses", "initContainerStatuses")
CONDITIONS = (DISRUPTED, READY_TO_START)
NOT_OF_META = ("managedFields", "ownerReferences")


def only_what_is_read(pod: JsonObject) -> JsonObject:
    """A smaller pod that `read_pod` reads the same."""
    meta, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    uses = uses_at_work(pod)
    return ({} if uses is None else {USES: uses}) | {
        "metadata": {name: value for name, value in meta.items() if name not in NOT_OF_META},
        "spec": {name: spec[name] for name in SPEC if name in spec},
        "status": {name: status[name] for name in STATUS if name in status} | _conditions(status),
    }


def _conditions(status: JsonObject) -> JsonObject:
    if not status.get("conditions"):
        return {}
    return {"conditions": [one for one in status["conditions"] if one.get("type") in CONDITIONS]}
