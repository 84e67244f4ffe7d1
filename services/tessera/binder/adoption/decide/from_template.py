"""The job of a batch Job that was made suspended: adopted by its template, before it has any pod. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from tessera.binder.adoption.decide.groups import Group, GroupKind, OwnerRef, controller_of, group_of, size_of
from tessera.binder.adoption.decide.reading import Json, items, mapping, no, text
from tessera.binder.adoption.decide.sizes import comes_in_waves
from tessera.binder.adoption.decide.spec import Adoption, queue_of, spec_of
from tessera.binder.adoption.decide.suspending import whose_else, wish_of
from tessera_schemas.labels import SCHEDULER_NAME, SUSPEND_WAITING_ANNOTATION
from tessera_schemas.reasons import Code, Reason

SUSPENDS_ITSELF = ("jobset.x-k8s.io", "kubeflow.org", "kueue.x-k8s.io")


def spec_of_suspended(
    job: Json, priority: int, by_queue: Callable[[str], bool | None] = lambda _: None
) -> Adoption | Reason | None:
    """
    The job of a suspended batch Job, from its template; `priority` is the value of the template's PriorityClass, and
    `by_queue` what a queue says about owners that wait suspended.

    None: nothing to let go (another scheduler, not suspended, ended, part of a JobSet or training job). A Reason where
    something else looks after it, or where it cannot be one job.
    Its pods give the same key once it is let go, unless something on the way changed them.
    """
    if not _waits_for_us(job):
        return None
    meta = mapping(job, "metadata")
    ref = OwnerRef("batch/v1", "Job", text(meta, "namespace"), text(meta, "name"), text(meta, "uid"))
    pod = _pod_of_template(job, ref, priority)
    other = _whose_to_resume(job, by_queue(queue_of(pod, job)[0]))
    if other is not None:
        return other
    if comes_in_waves(job):
        way_out = "more than parallelism: resume it, its pods queue one by one"
        return no(Code.NOT_SUPPORTED_YET, "spec.completions", way_out)
    group = group_of(pod, {ref: job})
    if not isinstance(group, Group) or group.kind is not GroupKind.JOB:
        return no(
            Code.NOT_SUPPORTED_YET, "spec.suspend", "a Job that is part of a larger gang is not resumed by itself"
        )
    size = size_of(group, job)
    if isinstance(size, Reason):
        return size
    found = spec_of(group, [_numbered(pod, rank) for rank in range(size)], size, job)
    if isinstance(found, Reason):
        return found
    return replace(found, uids=(), adopted=found.adopted.model_copy(update={"suspended": True}))


def priority_of(job: Json, classes: Sequence[Json]) -> int | Reason:
    """The number that the pods of this Job will get, from all PriorityClass objects."""
    name = text(job, "spec", "template", "spec", "priorityClassName")
    if not name:
        return min((_value(each) for each in classes if each.get("globalDefault") is True), default=0)
    found = [_value(each) for each in classes if text(each, "metadata", "name") == name]
    if not found:
        return no(Code.NO_SUCH_PRIORITY_CLASS, "spec.template.spec.priorityClassName", name)
    return found[0]


def _value(priority_class: Json) -> int:
    said = priority_class.get("value")
    return said if type(said) is int else 0


def _waits_for_us(job: Json) -> bool:
    spec = mapping(job, "spec")
    ended = any(
        text(condition, "type") in ("Complete", "Failed") and condition.get("status") == "True"
        for condition in items(job, "status", "conditions")
    )
    controller = controller_of(job)
    part_of_another = controller is not None and controller.group in SUSPENDS_ITSELF  # which is looked at instead
    names_us = text(spec, "template", "spec", "schedulerName") == SCHEDULER_NAME
    over = ended or part_of_another or mapping(job, "metadata").get("deletionTimestamp")
    return spec.get("suspend") is True and names_us and not over


def _whose_to_resume(job: Json, by_queue: bool | None) -> Reason | None:
    """Who else resumes the suspended Job, by the field that says so: then we do not."""
    wished = wish_of(job)
    if wished is False:
        field = f"metadata.annotations[{SUSPEND_WAITING_ANNOTATION}]"
        return no(Code.ON_HOLD, field, "its user resumes it, and its pods queue then")
    return whose_else(job, by_queue if wished is None else wished)


def _pod_of_template(job: Json, ref: OwnerRef, priority: int) -> Json:
    """A pod as the Job controller would make it, as far as it matters here."""
    template = mapping(job, "spec", "template")
    owner = {"apiVersion": ref.api_version, "kind": ref.kind, "name": ref.name, "uid": ref.uid, "controller": True}
    selected = mapping(job, "spec", "selector", "matchLabels")
    return {
        "metadata": {
            "namespace": ref.namespace,
            "labels": {**mapping(template, "metadata", "labels"), **selected},
            "annotations": mapping(template, "metadata", "annotations"),
            "ownerReferences": [owner],
        },
        "spec": {**mapping(template, "spec"), "priority": priority},
    }


def _numbered(pod: Json, rank: int) -> Json:
    """Names so that as many pods are counted as there will be."""
    return {**pod, "metadata": {**pod["metadata"], "name": f"{rank:05}", "uid": str(rank)}}
