"""Whether a run is absent, from what the cluster shows of its pods. Pure."""

from collections.abc import Iterable
from enum import Enum
from typing import Any

from tessera.domain.entities import Run

Pod = dict[str, Any]

TERMINAL = ("Succeeded", "Failed")


class Verdict(Enum):
    """ASK: only a fresh list can tell, since a pod that is not in the cache may be one that it has not seen yet."""

    PRESENT = "present"
    ASK = "ask"
    ABSENT = "absent"


def judge(run: Run, cached: Iterable[Pod]) -> Verdict:
    """
    What the cache says about a run that ended or was revoked.

    Terminal phases never change back, and the permit names every pod that could ever have been bound: when each of
    them is terminal here, no list can say anything else.
    """
    pods = list(cached)
    if any(not ended(pod) for pod in pods):
        return Verdict.PRESENT
    over = {pod["metadata"]["uid"] for pod in pods}
    return Verdict.ABSENT if run.uids and over >= set(run.uids) else Verdict.ASK


def ended(pod: Pod) -> bool:
    """Whether the kubelet reported the pod's end."""
    return pod.get("status", {}).get("phase") in TERMINAL
