"""The job of an owner that was made suspended: adopted by its templates, before it has any pod. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from tessera.binder.adoption.decide.owner_conditions import ending_of
from tessera.binder.adoption.decide.spec import Adoption, queue_of, spec_of
from tessera.binder.adoption.decide.spreading import JOB_NAME_LABEL
from tessera.binder.adoption.decide.suspending import explain_other_suspender, is_suspended, wish_of
from tessera.binder.workloads.port import PodSet, Workload
from tessera.binder.workloads.reading import mapping, no, text
from tessera.binder.workloads.references import OwnerRef, controller_of
from tessera.binder.workloads.registry import gang_mark, kind_of_object, size_of, unnamed_gang
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import SCHEDULER_NAME, SUSPEND_WAITING_ANNOTATION
from tessera_schemas.reasons import Code, Reason

SUSPENDS_ITSELF = ("jobset.x-k8s.io", "kubeflow.org", "kueue.x-k8s.io")
"""API groups whose objects suspend and resume the Jobs below them, and are looked at instead."""


def sets_of_suspended(
    owner: Json, by_queue: Callable[[str], bool | None] = lambda _: None, above: Json | None = None
) -> Sequence[PodSet] | Reason | None:
    """
    The pods that a suspended owner will have; `by_queue` is what a queue says about owners that wait suspended, and
    `above` the object that hands its own suspension down to it, if there is one.

    None: nothing to let go (another scheduler, not suspended, ended, part of a JobSet or training job). A Reason where
    something else looks after it, or where its pods cannot start together.
    """
    kind = kind_of_object(owner)
    resumed = owner if above is None else above
    if kind is None or not (is_suspended(owner) and is_suspended(resumed)) or _is_over(owner) or _is_over(resumed):
        return None
    sets = kind.pod_sets(owner)
    ours = [each for each in sets if text(each.template, "spec", "schedulerName") == SCHEDULER_NAME]
    if not ours:
        return None
    if len(ours) < len(sets):
        detail = "all of its templates name tessera, or none: pods of another scheduler cannot start with ours"
        return no(Code.NOT_SUPPORTED_YET, "schedulerName", detail)
    return _whose_to_resume(resumed, by_queue(queue_of(ours[0].template, owner)[0])) or kind.never_whole(owner) or sets


def spec_of_suspended(owner: Json, sets: Sequence[PodSet], classes: Sequence[Json]) -> Adoption | Reason:
    """
    The job that pods of these templates amount to; `classes` are all PriorityClass objects.

    Its pods give the same key once the owner is let go, unless something on the way changed them.
    """
    kind = kind_of_object(owner)
    assert kind is not None, "there are sets of pods only of a kind that is known"
    group = kind.group(owner)
    if isinstance(group, Reason):
        return group
    size = size_of(group, owner)
    if isinstance(size, Reason):
        return size
    pods: list[Json] = []
    for each in sets:
        priority = priority_of(each.template, classes)
        if isinstance(priority, Reason):
            return priority
        pods += [_pod_of(each, number, len(pods) + number, priority) for number in range(min(each.count, size))]
    if any(_is_of_another_gang(kind, pod) for pod in pods):
        detail = "a Job that is part of a larger gang is not resumed by itself"
        return no(Code.NOT_SUPPORTED_YET, "spec.suspend", detail)
    unnamed = next((why for pod in pods if gang_mark(pod) is None and (why := unnamed_gang(pod))), None)
    if unnamed is not None:
        return unnamed
    found = spec_of(group, pods, size, owner)
    if isinstance(found, Reason):
        return found
    return replace(found, uids=(), adopted=found.adopted.model_copy(update={"suspended": True}))


def priority_of(template: Json, classes: Sequence[Json]) -> int | Reason:
    """The number that pods of this template will get, from all PriorityClass objects."""
    name = text(template, "spec", "priorityClassName")
    if not name:
        return min((_value(each) for each in classes if each.get("globalDefault") is True), default=0)
    found = [_value(each) for each in classes if text(each, "metadata", "name") == name]
    if not found:
        return no(Code.NO_SUCH_PRIORITY_CLASS, "spec.template.spec.priorityClassName", name)
    return found[0]


def _value(priority_class: Json) -> int:
    value = priority_class.get("value")
    return value if type(value) is int else 0


def _is_over(owner: Json) -> bool:
    controller = controller_of(owner)
    part_of_another = controller is not None and controller.group in SUSPENDS_ITSELF
    return bool(ending_of(owner)) or part_of_another or bool(mapping(owner, "metadata").get("deletionTimestamp"))


def _whose_to_resume(owner: Json, by_queue: bool | None) -> Reason | None:
    """Another controller that resumes the suspended owner, by the field that says so; then we do not."""
    wished = wish_of(owner)
    if wished is False:
        field = f"metadata.annotations[{SUSPEND_WAITING_ANNOTATION}]"
        return no(Code.ON_HOLD, field, "its user resumes it, and its pods queue then")
    return explain_other_suspender(owner, by_queue if wished is None else wished)


def _is_of_another_gang(kind: Workload, pod: Json) -> bool:
    marked = gang_mark(pod)
    return bool(mapping(pod, "spec", "schedulingGroup")) or (marked is not None and marked[0] not in kind.marks)


def _pod_of(its: PodSet, number: int, rank: int, priority: int) -> Json:
    """A pod as its controller would make it, as far as it matters here; named so that each is counted once."""
    made = mapping(its.template, "metadata")
    indexed = {its.index: str(number)} if its.index else {}
    return {
        "metadata": {
            "namespace": its.controller.namespace,
            "name": f"{rank:05}",
            "uid": str(rank),
            "labels": {**mapping(made, "labels"), **its.labels, **indexed, **_labels_of_job(its.controller)},
            "annotations": mapping(made, "annotations"),
            "ownerReferences": [_reference(its.controller)],
        },
        "spec": {**mapping(its.template, "spec"), "priority": priority},
    }


def _labels_of_job(controller: OwnerRef) -> Json:
    """The label with its name that the Job controller puts on pods, by which a selector may tell them from others."""
    return {JOB_NAME_LABEL: controller.name} if controller.kind == "Job" else {}


def _reference(ref: OwnerRef) -> Json:
    return {"apiVersion": ref.api_version, "kind": ref.kind, "name": ref.name, "uid": ref.uid, "controller": True}
