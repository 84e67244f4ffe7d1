"""The job of a batch Job that was made suspended: adopted by its template, before it has any pod. Pure."""

from collections.abc import Sequence
from dataclasses import replace

from tessera.binder.adoption.groups import Group, Kind, OwnerRef, controller_of, group_of, size_of
from tessera.binder.adoption.mark_table import KUEUE_QUEUE
from tessera.binder.adoption.reading import Json, items, mapping, no, text
from tessera.binder.adoption.sizes import comes_in_waves
from tessera.binder.adoption.spec import Adoption, spec_of
from tessera_schemas.labels import SCHEDULER_NAME
from tessera_schemas.reasons import Code, Reason

SUSPENDS_ITSELF = ("jobset.x-k8s.io", "kubeflow.org", "kueue.x-k8s.io")
JOB_CONTROLLER = "kubernetes.io/job-controller"


def spec_of_suspended(job: Json, priority: int) -> Adoption | Reason | None:
    """
    The job of a suspended batch Job, from its template; `priority` is the value of the template's PriorityClass.

    None: nothing to let go (another scheduler, not suspended, ended, part of a JobSet or training job). A Reason where
    something else looks after it, or where it cannot be one job.
    Its pods give the same key once it is let go, unless something on the way changed them.
    """
    if not _waits_for_us(job):
        return None
    other = _whose_to_let_go(job)
    if other is not None:
        return other
    if comes_in_waves(job):
        way_out = "more than parallelism: resume it, its pods queue one by one"
        return no(Code.NOT_SUPPORTED_YET, "spec.completions", way_out)
    meta = mapping(job, "metadata")
    ref = OwnerRef("batch/v1", "Job", text(meta, "namespace"), text(meta, "name"), text(meta, "uid"))
    pod = _pod_of_template(job, ref, priority)
    group = group_of(pod, {ref: job})
    if not isinstance(group, Group) or group.kind is not Kind.JOB:
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


def _whose_to_let_go(job: Json) -> Reason | None:
    """What else looks after the suspended Job, by the field that says so: then it resumes the Job, and we do not."""
    managed_by = mapping(job, "spec").get("managedBy")
    if managed_by not in (None, "", JOB_CONTROLLER):
        return no(Code.ON_HOLD, "spec.managedBy", f"{managed_by} resumes it; its pods queue then")
    if KUEUE_QUEUE in mapping(job, "metadata", "labels"):
        detail = "Kueue resumes it, and its pods queue then; without this label Tessera resumes it"
        return no(Code.ON_HOLD, f"metadata.labels[{KUEUE_QUEUE}]", detail)
    return None


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
