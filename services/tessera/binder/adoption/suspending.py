"""
Owners that can be suspended: their controllers take their pods away, and make all of them again once they are resumed.

So a Job is stopped for others' sake without a failure that its controller counts and waits for, and may queue without
pods. A mark on it tells what we suspended from what its user did: that one stays as it is. Pure.
"""

from tessera.binder.adoption.groups import OwnerRef, controller_of
from tessera.binder.adoption.mark_table import KUEUE_QUEUE
from tessera.binder.adoption.reading import Json, at, mapping, text
from tessera.domain.entities import Job
from tessera_schemas.adopted import Adopted
from tessera_schemas.labels import SUSPENDED_ANNOTATION

OURS, LET_GO = "true", "false"
_AT_SPEC, _AT_POLICY = ("spec", "suspend"), ("spec", "runPolicy", "suspend")
_KINDS = {("batch", "Job"): _AT_SPEC, ("jobset.x-k8s.io", "JobSet"): _AT_SPEC, ("ray.io", "RayCluster"): _AT_SPEC}


def can_be_suspended(adopted: Adopted) -> bool:
    """Whether the kind has it, and its pods are exactly the group: a gang that pods name may be of several owners."""
    owner = OwnerRef(adopted.api_version, adopted.owner_kind, "", adopted.owner_name, adopted.owner_uid)
    whole = adopted.group.startswith(f"{owner.group}/{owner.kind}/") and adopted.group.endswith(f"/{owner.uid}")
    return bool(owner.uid) and whole and _where(owner.group, owner.kind) is not None


def is_ours_to_suspend(owner: Json) -> bool:
    """Whether nothing else looks after its suspension: neither who made it, nor Kueue, nor a controller of its own."""
    maker = controller_of(owner)
    by_hand = maker is None or (maker.group, maker.kind) == ("batch", "CronJob")
    meta, managed = mapping(owner, "metadata"), text(owner, "spec", "managedBy")
    elsewhere = managed not in ("", "kubernetes.io/job-controller", "jobset.sigs.k8s.io/jobset-controller")
    return (
        by_hand and not elsewhere and KUEUE_QUEUE not in mapping(meta, "labels") and not meta.get("deletionTimestamp")
    )


def is_suspended(owner: Json) -> bool:
    place = _where_of(owner)
    return place is not None and at(owner, *place) is True


def is_left_alone(owner: Json, job: Job) -> bool:
    """
    Whether the owner is suspended by its user, who resumes it again.

    Not what was submitted suspended and was never resumed: that is how one says that it may wait for its room.
    """
    mark = text(owner, "metadata", "annotations", SUSPENDED_ANNOTATION)
    began_suspended = job.adopted is not None and job.adopted.suspended
    return is_suspended(owner) and mark != OURS and (mark == LET_GO or not began_suspended)


def suspension(owner: Json, suspend: bool) -> Json:
    """The merge patch of exactly this version of the owner."""
    meta = mapping(owner, "metadata")
    wanted: Json = {"suspend": suspend}
    for name in reversed((_where_of(owner) or _AT_SPEC)[:-1]):
        wanted = {name: wanted}
    marked = {SUSPENDED_ANNOTATION: OURS if suspend else LET_GO}
    held = {"uid": text(meta, "uid"), "resourceVersion": text(meta, "resourceVersion")}
    return {"metadata": held | {"annotations": marked}, **wanted}


def _where_of(owner: Json) -> tuple[str, ...] | None:
    return _where(text(owner, "apiVersion").partition("/")[0], text(owner, "kind"))


def _where(group: str, kind: str) -> tuple[str, ...] | None:
    is_training_job = group == "kubeflow.org" and kind.endswith("Job")
    return _AT_POLICY if is_training_job else _KINDS.get((group, kind))
