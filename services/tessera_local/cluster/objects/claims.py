"""
The controllers of claims and of garbage, as far as anything relies on them here: what a pod that is over leaves.

It uses its claims no more, and one that no pod uses loses its devices. What a pod owns goes with it.
"""

from collections.abc import Callable

from tessera_local.cluster.api.selectors import parse_selector
from tessera_local.cluster.objects.shelf import Shelf, Version
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import DELETE_PROTECTION


def release_claims(
    claims: Shelf,
    pod_uid: str,
    replace: Callable[[Shelf, Version, Json], Version],
    delete: Callable[[Shelf, Version, int | None], Version],
) -> None:
    """Take a pod that is over off the claims that it uses, and its own claims away."""
    for one in claims.select(parse_selector("")) if len(claims) else ():
        freed = _without_user(one.object, pod_uid)
        there = one if freed is None else replace(claims, one, freed)
        if _is_owned_by(there.object, pod_uid) and claims.with_uid(there.uid) is not None:
            delete(claims, there, None)


def _without_user(claim: Json, pod_uid: str) -> Json | None:
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


def _is_owned_by(claim: Json, pod_uid: str) -> bool:
    return any(owner["uid"] == pod_uid for owner in claim["metadata"].get("ownerReferences") or ())
