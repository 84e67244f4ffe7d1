"""
The taint manager: pods that do not tolerate a NoExecute taint of their node are marked and deleted, at once or after
the seconds for which they tolerate it. Pods that have ended stay.
"""

from collections.abc import Iterable

from tessera_local.cluster.machines.pod_statuses import disrupted
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import ENDED_PHASES

EVICTED_BY = "DeletionByTaintManager"
MESSAGE = "Taint manager: deleting due to NoExecute taint"
TIMER = "taint/"
"""Begins the keys of its timers; a pod's UID follows."""


def stays_ms(pod: Json, taints: Iterable[Json]) -> int | None:
    """Time for which a pod stays on a node with these taints, in milliseconds; None for as long as it likes."""
    tolerations = pod["spec"].get("tolerations") or ()
    stays: list[int] = []
    for taint in taints:
        if taint["effect"] != "NoExecute":
            continue
        seconds = [one.get("tolerationSeconds") for one in tolerations if _tolerates(one, taint)]
        if not seconds:
            return 0
        stays += [max(int(each), 0) * 1000 for each in seconds if each is not None]
    return min(stays, default=None)


def is_to_go(pod: Json) -> bool:
    """Whether the manager looks at the pod at all."""
    return "deletionTimestamp" not in pod["metadata"] and pod["status"].get("phase") not in ENDED_PHASES


def marked(status: Json, now_ms: int) -> Json:
    """The status of a pod that it deletes next."""
    return disrupted(status, now_ms, EVICTED_BY, MESSAGE)


def _tolerates(one: Json, taint: Json) -> bool:
    if one.get("effect") not in (None, "", taint["effect"]):
        return False
    if one.get("operator") == "Exists":
        return not one.get("key") or one["key"] == taint["key"]
    return bool(one.get("key") == taint["key"] and one.get("value", "") == taint.get("value", ""))
