"""Whether a run, or a pod that it grew by, is absent, from what the cluster shows of its pods. Pure."""

from collections.abc import Iterable
from enum import Enum
from typing import Any

from tessera.domain.entities import Extra, Run
from tessera_schemas.labels import RANK_LABEL

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
    return _judge(run.permitted if run.uids else (), list(cached))


def judge_extra(extra: Extra, cached: Iterable[Pod]) -> Verdict:
    """The same of one pod by which a run had grown, and which is to leave; `cached` are all of the run."""
    return _judge((extra.uid,) if extra.uid else (), of_rank(extra, cached))


def of_rank(extra: Extra, pods: Iterable[Pod]) -> list[Pod]:
    rank = str(extra.placement.rank)
    return [pod for pod in pods if pod["metadata"]["labels"].get(RANK_LABEL) == rank]


def _judge(permitted: Iterable[str], pods: list[Pod]) -> Verdict:
    if any(not ended(pod) for pod in pods):
        return Verdict.PRESENT
    uids = set(permitted)
    return Verdict.ABSENT if uids and {pod["metadata"]["uid"] for pod in pods} >= uids else Verdict.ASK


def ended(pod: Pod) -> bool:
    """Whether the kubelet reported the pod's end."""
    return pod.get("status", {}).get("phase") in TERMINAL
