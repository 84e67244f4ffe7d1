"""The controllers of claims, as far as anything relies on them here: what a pod that is over leaves of its claims."""

from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import DELETE_PROTECTION


def without_user(claim: Json, pod_uid: str) -> Json | None:
    """The claim without that pod, and without devices when no other pod uses it; None when the pod does not use it."""
    status = claim.get("status") or {}
    users = status.get("reservedFor") or []
    others = [user for user in users if user["uid"] != pod_uid]
    if len(others) == len(users):
        return None
    meta = dict(claim["metadata"])
    if others:
        return {**claim, "metadata": meta, "status": {**status, "reservedFor": others}}
    meta["finalizers"] = [one for one in meta.get("finalizers") or () if one != DELETE_PROTECTION]
    return {**claim, "metadata": meta, "status": {}}


def is_owned_by(claim: Json, pod_uid: str) -> bool:
    """Whether the claim is a pod's own, and goes with it."""
    return any(owner["uid"] == pod_uid for owner in claim["metadata"].get("ownerReferences") or ())
