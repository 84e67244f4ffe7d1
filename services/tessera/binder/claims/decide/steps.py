"""
The next write on a claim: towards its pod, and back. Pure.

Finalizer and mark come before the allocation, since a claim that may be in use must not go; allocation and user are one
write, so that no claim has devices for nobody. On the way back the order is turned round.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tessera.binder.adoption.decide.volumes import reaches
from tessera.binder.claims.decide.allocation import (
    ClaimReservation,
    allocation_of,
    conflict,
    has_these,
    id_of,
    results_of,
)
from tessera.binder.workloads.reading import at, items, mapping, no, text
from tessera.domain.devices.resources import Node
from tessera_schemas.base import Json
from tessera_schemas.cluster.device_claims import SHARERS_MAX
from tessera_schemas.cluster.labels import DELETE_PROTECTION, RUN_ANNOTATION, RUN_LABEL
from tessera_schemas.reasons import Code, Reason

TOLD_MAX = 4


@dataclass(frozen=True, slots=True)
class Write:
    """A merge patch of a claim, or of its status; held to the version that it was decided on."""

    what: Literal["metadata", "status"]
    patch: Json


def next_write(claim: Json, wanted: ClaimReservation, now: str) -> Write | Reason | None:
    """Write that brings the claim nearer to its pod, or why it cannot be the pod's; None once the pod may be bound."""
    if "deletionTimestamp" in mapping(claim, "metadata"):
        return conflict(claim, "it is being deleted")
    if at(claim, "status", "allocation"):
        if _is_left_over(claim, wanted):
            return Write("status", _held(claim, status={"reservedFor": None, "allocation": None}))
        if not has_these(claim, wanted.drawn):
            there = ", ".join(sorted(map(id_of, results_of(claim)))[:TOLD_MAX])
            return conflict(claim, f"it was allocated meanwhile and has {there}")
        return _join(claim, wanted)
    if DELETE_PROTECTION not in _finalizers(claim) or run_of(claim) != wanted.run_id:
        return _protect(claim, wanted.run_id)
    allocation = allocation_of(claim, wanted, now)
    if isinstance(allocation, Reason):
        return allocation
    user = {"resource": "pods", "name": wanted.pod, "uid": wanted.uid}
    return Write("status", _held(claim, status={"allocation": allocation, "reservedFor": [user]}))


def next_joining(claim: Json, wanted: ClaimReservation, node: Node) -> Write | Reason | None:
    """As `next_write`, of a claim that has its devices already, whoever allocated them, and where they can be had."""
    if "deletionTimestamp" in mapping(claim, "metadata"):
        return conflict(claim, "it is being deleted")
    if not at(claim, "status", "allocation"):
        return conflict(claim, "no device was chosen for it, and it has none any more")
    if not _reaches(items(claim, "status", "allocation", "nodeSelector", "nodeSelectorTerms"), node):
        return conflict(claim, f"its devices cannot be had on node {node.name}")
    return _join(claim, wanted)


def _reaches(terms: Sequence[Json], node: Node) -> bool:
    """Whether one of the terms holds on the node; an allocation without any is good everywhere."""
    return not terms or any(
        all(text(field, "key") == "metadata.name" and _names(field, node) for field in items(term, "matchFields"))
        and reaches(items(term, "matchExpressions"), node)
        for term in terms
    )


def _names(field: Json, node: Node) -> bool:
    return (node.name in (field.get("values") or ())) == (text(field, "operator") == "In")


def _join(claim: Json, wanted: ClaimReservation) -> Write | Reason | None:
    users = items(claim, "status", "reservedFor")
    if any(text(user, "uid") == wanted.uid for user in users):
        return None
    if len(users) >= SHARERS_MAX:
        return conflict(claim, f"{len(users)} pods use it already")
    users = [*users, {"resource": "pods", "name": wanted.pod, "uid": wanted.uid}]
    return Write("status", _held(claim, status={"reservedFor": users}))


def _is_left_over(claim: Json, wanted: ClaimReservation) -> bool:
    """
    Whether an earlier attempt left its devices there for the same pods, which were never bound by it.

    A binder that was behind may write them after that attempt was let go of.
    """
    users = {text(user, "uid") for user in items(claim, "status", "reservedFor")}
    return is_other_attempt(run_of(claim), wanted.run_id) and users <= {wanted.uid, *wanted.peers}


def _protect(claim: Json, run_id: str) -> Write:
    """A claim that Tessera made is labelled; on any other stands for which run it is allocated."""
    finalizers = [*(one for one in _finalizers(claim) if one != DELETE_PROTECTION), DELETE_PROTECTION]
    mark = {} if run_of(claim) == run_id else {"annotations": {RUN_ANNOTATION: run_id}}
    return Write("metadata", _held(claim, finalizers=finalizers, **mark))


def next_undo(claim: Json, uid: str, run_id: str) -> Write | None:
    """
    Write that takes a pod that can no longer be bound off its claim; None when nothing of it is left there.

    The claim keeps its devices while others use it. One that another attempt of the job has by now is not touched.
    """
    run = run_of(claim)
    if is_other_attempt(run, run_id):
        return None
    users = items(claim, "status", "reservedFor")
    others = [user for user in users if text(user, "uid") != uid]
    if others and len(others) < len(users):
        return Write("status", _held(claim, status={"reservedFor": others}))
    if others:
        return None
    if users:
        # What somebody else allocated stays so, whoever used it last.
        given_back = {"allocation": None} if run == run_id else {}
        return Write("status", _held(claim, status={"reservedFor": None} | given_back))
    if at(claim, "status", "allocation") or run != run_id:
        return None  # allocated for nobody, or for nobody of ours: another scheduler's
    finalizers = _finalizers(claim)
    mark = {"annotations": {RUN_ANNOTATION: None}} if text(claim, "metadata", "annotations", RUN_ANNOTATION) else {}
    if DELETE_PROTECTION not in finalizers and not mark:
        return None
    rest = [one for one in finalizers if one != DELETE_PROTECTION]
    return Write("metadata", _held(claim, finalizers=rest or None, **mark))


def is_left_to_group(claim: Json) -> bool:
    """
    Tells whether a claim for which we chose devices has only PodGroups left as users.

    We reserve a group's claim for its pods; of one that ended before the others Kubernetes' controller makes the group.
    """
    users = items(claim, "status", "reservedFor")
    by_groups = bool(users) and all(text(user, "resource") == "podgroups" for user in users)
    return by_groups and bool(run_of(claim)) and bool(at(claim, "status", "allocation"))


def next_freeing(claim: Json, run_id: str) -> Write | None:
    """Write that gives back a claim which is only kept for its PodGroup, once no pod that has it is at work."""
    if run_of(claim) != run_id or not is_left_to_group(claim):
        return None
    return Write("status", _held(claim, status={"reservedFor": None, "allocation": None}))


def find_unready(claim: Json) -> Reason | str:
    """
    Binding conditions: the first device that is still to be made ready, "" when all are; a reason where one failed.

    The driver says them in the claim's status.
    """
    said = {(id_of(one), text(one, "shareID")): _true(one) for one in items(claim, "status", "devices")}
    waits = ""
    for result in results_of(claim):
        true = said.get((id_of(result), text(result, "shareID")), set())
        failed = true.intersection(at(result, "bindingFailureConditions") or ())
        if failed:
            name = text(claim, "metadata", "name")
            return no(Code.DEVICE_NOT_READY, "", f"claim {name}: device {id_of(result)}: {min(failed)}")
        if not true.issuperset(at(result, "bindingConditions") or ()):
            waits = waits or id_of(result)
    return waits


def uses_conditions(claim: Json) -> bool:
    """Tells whether a device of the claim has to be made ready before its pod is bound."""
    return any(at(result, "bindingConditions") for result in results_of(claim))


def is_other_attempt(run_id: str, another: str) -> bool:
    """Tells whether both are runs of one job, and not the same."""
    return run_id != another and run_id.rpartition("-")[0] == another.rpartition("-")[0]


def run_of(claim: Json) -> str:
    """The run that the claim was made, or is allocated, for by Tessera; "" for none."""
    return text(claim, "metadata", "annotations", RUN_ANNOTATION) or text(claim, "metadata", "labels", RUN_LABEL)


def _finalizers(claim: Json) -> list[str]:
    found: list[str] = mapping(claim, "metadata").get("finalizers") or []
    return found


def _true(device: Json) -> set[str]:
    return {text(one, "type") for one in items(device, "conditions") if text(one, "status") == "True"}


def _held(claim: Json, status: Json | None = None, **meta: object) -> Json:
    version = {"uid": text(claim, "metadata", "uid"), "resourceVersion": text(claim, "metadata", "resourceVersion")}
    return {"metadata": version | meta} | ({} if status is None else {"status": status})
