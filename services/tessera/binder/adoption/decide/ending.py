"""Whether the owner of users' pods has ended, by its conditions, or a pod that is its own owner by its phase. Pure."""

from tessera.binder.workloads.reading import Json, items, mapping, text

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
