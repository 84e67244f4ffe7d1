"""
Owners that can be suspended: their controllers take their pods away, and make all of them again once they are resumed.

So a Job is stopped for others' sake without a failure that its controller counts and waits for, and may queue without
pods. A mark on it tells what we suspended from what its user did: that one stays as it is. One look (`look_at`) says
who has the next word; whoever stops, resumes, queues or leaves alone an owner asks it. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tessera.binder.adoption.decide.owner_conditions import ending_of
from tessera.binder.workloads.batch_jobs import runs_one_pod_at_a_time
from tessera.binder.workloads.mark_table import KUEUE_QUEUE
from tessera.binder.workloads.marks import said_preemptible
from tessera.binder.workloads.port import PLACED, Group, Workload
from tessera.binder.workloads.reading import at, items, mapping, no, text
from tessera.binder.workloads.references import OwnerRef, controller_of, ref_of
from tessera.binder.workloads.registry import CONTROLLERS, hands_down, kind_of, kind_of_object, survives_eviction
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import SUSPEND_WAITING_ANNOTATION, SUSPENDED_ANNOTATION
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.adopted import Adopted

OURS, LET_GO = "true", "false"


class Suspender(StrEnum):
    """Party that suspends and resumes an owner at present."""

    TESSERA = "tessera"
    USER = "user"
    ANOTHER = "another"
    """Another controller, or nobody any more: it is over."""


@dataclass(frozen=True, slots=True)
class Look:
    """`waits_suspended`: its pods are there or being made, and it is to be suspended for as long as its job waits."""

    suspended: bool
    suspender: Suspender
    waits_suspended: bool = False

    @property
    def waits_for_us(self) -> bool:
        """Whether the owner is resumed once its job has room."""
        return self.suspended and self.suspender is Suspender.TESSERA

    @property
    def is_left_alone(self) -> bool:
        """Whether the owner is suspended and only others may resume it."""
        return self.suspended and self.suspender is not Suspender.TESSERA


def look_at(owner: Json, began_suspended: bool, by_queue: bool | None) -> Look:
    """
    Find out who decides about the suspension of an owner.

    Args:
        began_suspended: its job was made of an owner that was submitted suspended: that is how one says that it may
            wait for its room. Once we have resumed it (the mark), the next suspension is its user's.
        by_queue: what the job's queue says about owners that wait; the owner's own annotation counts before it.
    """
    suspended, wished = is_suspended(owner), wish_of(owner)
    # The nearer word counts: the owner's own wish before that of its queue.
    by_policy = by_queue if wished is None else wished
    mark = text(owner, "metadata", "annotations", SUSPENDED_ANNOTATION)
    if (
        ending_of(owner)
        or mapping(owner, "metadata").get("deletionTimestamp")
        or explain_other_suspender(owner, by_policy) is not None
    ):
        return Look(suspended, Suspender.ANOTHER)
    if not suspended:  # whoever resumed it while the mark is ours wants its pods to be there
        as_before = by_policy is None and began_suspended and mark == LET_GO
        return Look(False, Suspender.TESSERA, waits_suspended=as_before or (bool(by_policy) and mark != OURS))
    ours = mark == OURS or (not mark and began_suspended and wished is not False)
    return Look(True, Suspender.TESSERA if ours else Suspender.USER)


def wish_of(owner: Json) -> bool | None:
    """Whether its user wants it to wait suspended; None where the annotation is not set, or says neither."""
    return {"true": True, "false": False}.get(text(owner, "metadata", "annotations", SUSPEND_WAITING_ANNOTATION))


def explain_other_suspender(owner: Json, by_policy: bool | None) -> Reason | None:
    """
    Another system that suspends and resumes the owner, by the field that says so. Of one whose maker hands its own
    suspension down, that maker is to be asked.

    Kueue's label also stands on objects that were written for Kueue and name us now: where queue or owner say that it
    may wait suspended (`by_policy`), Tessera looks after it.
    """
    managed_by = text(owner, "spec", "managedBy") or text(owner, "spec", "runPolicy", "managedBy")
    if managed_by not in CONTROLLERS:
        return no(Code.ON_HOLD, "spec.managedBy", f"{managed_by} resumes it; its pods queue then")
    if KUEUE_QUEUE in mapping(owner, "metadata", "labels") and not by_policy:
        detail = "Kueue resumes it, and its pods queue then; without this label, or with the annotation "
        detail += f'{SUSPEND_WAITING_ANNOTATION}: "true", Tessera resumes it'
        return no(Code.ON_HOLD, f"metadata.labels[{KUEUE_QUEUE}]", detail)
    maker = controller_of(owner)
    # A CronJob makes Jobs and lets them be; any other maker writes its own value of `suspend` back.
    if maker is not None and (maker.group, maker.kind) != ("batch", "CronJob") and not hands_down(maker):
        return explain_resumed_by(maker)
    return None


def explain_resumed_by(maker: OwnerRef) -> Reason:
    """The object above that suspends and resumes the owner."""
    detail = f"{maker.kind} {maker.name} resumes it; its pods queue then"
    return no(Code.ON_HOLD, "metadata.ownerReferences", detail)


def can_be_suspended(adopted: Adopted) -> bool:
    """Whether the kind has it, and its pods are exactly the group: a gang that pods name may be of several owners."""
    owner = OwnerRef(adopted.api_version, adopted.owner_kind, "", adopted.owner_name, adopted.owner_uid)
    # Suspension takes away all pods of one owner. A gang that is less, or is of several owners, would lose others' pods
    # with it, or stop by half.
    whole = adopted.group.startswith(f"{owner.group}/{owner.kind}/") and adopted.group.endswith(f"/{owner.uid}")
    return bool(owner.uid) and whole and bool(_suspend_at(kind_of(owner)))


def is_preemptible(group: Group, pods: Sequence[Json], owner: Json | None) -> bool:
    """
    Whether a group may be stopped for others: by suspending its owner, which costs it nothing, unless its pods say no;
    else where it survives an eviction.
    """
    if owner is not None and said_preemptible(pods, owner) is not False and _is_stopped_whole(group, owner):
        return True
    return survives_eviction(group, pods, owner)


def _is_stopped_whole(group: Group, owner: Json) -> bool:
    """Whether Tessera may suspend the owner, as far as the owner says, and its pods are exactly the group."""
    ref = ref_of(owner)
    whole = group.id == f"{ref.group}/{ref.kind}/{ref.namespace}/{ref.uid}" or runs_one_pod_at_a_time(owner)
    return whole and bool(_suspend_at(kind_of(ref))) and explain_other_suspender(owner, wish_of(owner)) is None


def is_suspended(owner: Json) -> bool:
    """Tells whether the owner is told to have no pods; False for kinds that cannot be suspended."""
    place = _suspend_at(kind_of_object(owner))
    return bool(place) and at(owner, *place) is True


def is_suspended_by_us(owner: Json) -> bool:
    """Tells whether the owner is suspended, and the mark on it says that we did it."""
    return is_suspended(owner) and text(owner, "metadata", "annotations", SUSPENDED_ANNOTATION) == OURS


def is_controller_behind(owner: Json) -> bool:
    """Tells whether a resumed owner's controller has yet to act on that: its status is empty, or says `Suspended`."""
    status = mapping(owner, "status")
    conditions = {text(one, "type"): text(one, "status") for one in items(status, "conditions")}
    conditions.pop(PLACED, None)
    return conditions.get("Suspended") == "True" or not (conditions or status.keys() - {"conditions"})


def suspension(owner: Json, suspend: bool) -> Json:
    """The merge patch of exactly this version of the owner."""
    meta = mapping(owner, "metadata")
    wanted: Json = {"suspend": suspend}
    for name in reversed(_suspend_at(kind_of_object(owner))[:-1]):
        wanted = {name: wanted}
    marked = {SUSPENDED_ANNOTATION: OURS if suspend else LET_GO}
    # The mark and the suspension are one write on one version: apart, a crash between them would make our suspension
    # look like its user's, which nobody of us resumes.
    held = {"uid": text(meta, "uid"), "resourceVersion": text(meta, "resourceVersion")}
    return {"metadata": held | {"annotations": marked}, **wanted}


def _suspend_at(kind: Workload | None) -> tuple[str, ...]:
    return () if kind is None else kind.suspend_at
