"""Whether the owner of users' pods has ended, by its conditions. Pure."""

from tessera.binder.workloads.reading import Json, items, text

COMPLETE = ("Complete", "Completed", "Succeeded", "SuccessCriteriaMet")
FAILED = ("Failed", "FailureTarget")


def ending_of(owner: Json) -> str:
    """`complete`, `failed`, or "" while the owner goes on: all of them say it by a condition of these names."""
    conditions = {text(one, "type") for one in items(owner, "status", "conditions") if text(one, "status") == "True"}
    if conditions.intersection(COMPLETE):
        return "complete"
    return "failed" if conditions.intersection(FAILED) else ""


def why_failed(owner: Json) -> str:
    """The owner's own account of its failure, for people."""
    for one in items(owner, "status", "conditions"):
        if text(one, "type") in FAILED and text(one, "status") == "True":
            return ": ".join(part for part in (text(one, "reason"), text(one, "message")) if part)[:400]
    return ""
