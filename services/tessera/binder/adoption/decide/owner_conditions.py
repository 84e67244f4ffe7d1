"""
Conditions of the object that owns users' pods: whether it has ended, and the one that says if its pods have places.
"""

from tessera.binder.adoption.decide.verdicts import Verdict, condition_set, find_condition
from tessera.binder.workloads.port import Workload
from tessera.binder.workloads.reading import at, items, mapping, text
from tessera_schemas.base import Json

COMPLETE = ("Complete", "Completed", "Succeeded", "SuccessCriteriaMet")
FAILED = ("Failed", "FailureTarget")
BY_PHASE = {"Succeeded": "complete", "Failed": "failed"}


def ending_of(owner: Json) -> str:
    """`complete`, `failed`, or "" while the owner goes on: all but pods say it by a condition of these names."""
    if text(owner, "kind") == "Pod":
        return BY_PHASE.get(text(owner, "status", "phase"), "")
    conditions = {text(one, "type") for one in items(owner, "status", "conditions") if text(one, "status") == "True"}
    if conditions.intersection(COMPLETE):
        return "complete"
    return "failed" if conditions.intersection(FAILED) else ""


def why_failed(owner: Json) -> str:
    """The owner's own account of its failure, for people."""
    if text(owner, "kind") == "Pod":
        return _account(mapping(owner, "status"))
    for one in items(owner, "status", "conditions"):
        if text(one, "type") in FAILED and text(one, "status") == "True":
            return _account(one)
    return ""


def _account(said: Json) -> str:
    return ": ".join(part for part in (text(said, "reason"), text(said, "message")) if part)[:400]


SCHEDULED = "Scheduled"
PLACED = Verdict(SCHEDULED, "its pods have their nodes", warning=False)


def placed_condition(thing: Json, kind: Workload) -> Json:
    """The condition as the object has it; {} without one."""
    return find_condition(thing, kind.condition_of(thing)[0])


def placed_patch(thing: Json, kind: Workload, verdict: Verdict, now: str) -> Json | None:
    """
    The merge patch that says why the pods are not placed, or (`PLACED`) that they are; None when it says so already.

    It is held to the version that was looked at. `now` is RFC 3339.
    """
    before, (condition, stays) = placed_condition(thing, kind), kind.condition_of(thing)
    if stays and before.get("status") == "True":
        return None
    status = "True" if verdict is PLACED else "False"
    reason, message = verdict.code, verdict.message
    if kind.reason and verdict is not PLACED:
        reason, message = kind.reason, f"{verdict.code}: {verdict.message}"
    if (before.get("status"), before.get("reason"), before.get("message")) == (status, reason, message):
        return None
    patch = condition_set(thing, condition, status, reason, message, now)
    if kind.observes:
        patch["status"]["conditions"][-1]["observedGeneration"] = at(thing, "metadata", "generation") or 0
    return patch | {"metadata": {name: text(thing, "metadata", name) for name in ("uid", "resourceVersion")}}
