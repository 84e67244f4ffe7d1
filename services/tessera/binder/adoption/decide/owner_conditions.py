"""
Conditions of the object that owns users' pods: how it has ended, and the one that says if its pods have places.
"""

from tessera.binder.adoption.decide.verdicts import Verdict, condition_set, find_condition
from tessera.binder.workloads.port import Workload
from tessera.binder.workloads.reading import at, items, mapping, no, text
from tessera_schemas.base import Json
from tessera_schemas.reasons import Code, Reason

COMPLETE = ("Complete", "Completed", "Succeeded", "SuccessCriteriaMet")
FAILED = ("Failed", "FailureTarget")
IN_WORDS = {("", "Pod"): ("phase",), ("batch.volcano.sh", "Job"): ("state", "phase"), ("ray.io", "RayJob"): (
    "jobDeploymentStatus",)}  # fmt: skip
"""The kinds that say their end by one word of their status, and the place of that word. All others have conditions."""
BY_WORD = {**dict.fromkeys(COMPLETE, "complete"), "Failed": "failed", "Terminated": "failed"}
DEADLINE = "active longer than specified deadline"
"""In the message of Kubeflow's operator, which has one reason for all failures."""


def ending_of(owner: Json) -> str:
    """`complete`, `failed`, or "" while the owner goes on."""
    place = _place_of_word(owner)
    if place:
        # A pod that is taken away fails by that: it is gone then, and whoever took it away says why.
        taken_away = text(owner, "kind") == "Pod" and "deletionTimestamp" in mapping(owner, "metadata")
        ending = BY_WORD.get(text(owner, "status", *place), "")
        return "" if taken_away and ending == "failed" else ending
    if _condition(owner, COMPLETE):
        return "complete"
    return "failed" if _condition(owner, FAILED) else ""


def why_failed(owner: Json) -> Reason:
    """The failure of an owner in its own words; at its deadline it reached its time limit."""
    place = _place_of_word(owner)
    said = mapping(owner, "status", *place[:-1]) if place else _condition(owner, FAILED)
    reason, message = text(said, "reason"), text(said, "message")
    is_late = reason == "DeadlineExceeded" or DEADLINE in message
    named = f"{text(owner, 'kind')}/{text(owner, 'metadata', 'name')}"
    words = ": ".join(filter(None, (named, reason, message[:400])))
    return no(Code.TIME_LIMIT if is_late else Code.OWNER_FAILED, detail=words)


def _place_of_word(owner: Json) -> tuple[str, ...]:
    group = text(owner, "apiVersion").rpartition("/")[0]
    return IN_WORDS.get((group, text(owner, "kind")), ())


def _condition(owner: Json, kinds: tuple[str, ...]) -> Json:
    """The first condition of these kinds that is true."""
    found = (one for one in items(owner, "status", "conditions") if text(one, "status") == "True")
    return next((one for one in found if text(one, "type") in kinds), {})


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
