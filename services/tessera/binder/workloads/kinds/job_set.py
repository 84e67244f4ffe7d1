"""
A JobSet: all pods of all its Jobs start together, unless its Jobs are made one after the other. Pure.

That of a TrainJob of Kubeflow's Trainer is suspended by the TrainJob, whose controller writes its own value back.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from tessera.binder.workloads.batch_jobs import INDEX, comes_in_waves, job_pods, job_survives
from tessera.binder.workloads.port import PLACED, GangMark, GroupKind, KindRights, OwnedWorkload, PodSet, Workload
from tessera.binder.workloads.reading import items, mapping, no, text, whole
from tessera.binder.workloads.references import OwnerRef, ref_of
from tessera_schemas.base import Json
from tessera_schemas.job import REPLICAS_MAX
from tessera_schemas.reasons import Code, Reason

SET_API = "jobset.x-k8s.io/v1alpha2"
PART_LABEL, NUMBER_LABEL = "jobset.sigs.k8s.io/replicatedjob-name", "jobset.sigs.k8s.io/job-index"


class JobSet(OwnedWorkload):
    kind: ClassVar[GroupKind | None] = GroupKind.JOB_SET
    api_group: ClassVar[str] = "jobset.x-k8s.io"
    kinds: ClassVar[tuple[str, ...]] = ("JobSet",)
    watched: ClassVar[tuple[tuple[str, str], ...]] = ((SET_API, "JobSet"),)
    role_labels: ClassVar[tuple[str, ...]] = (PART_LABEL,)
    index_labels: ClassVar[tuple[str, ...]] = (NUMBER_LABEL,)
    suspend_at: ClassVar[tuple[str, ...]] = ("spec", "suspend")
    controllers: ClassVar[tuple[str, ...]] = ("jobset.sigs.k8s.io/jobset-controller",)
    condition: ClassVar[str] = PLACED
    rights: ClassVar[tuple[KindRights, ...]] = (
        KindRights("jobset.x-k8s.io", ("jobsets",), ("get", "list", "watch"), ("patch",), ("patch",)),
    )

    def gathers(self, owner: Json) -> bool:
        """Unless its parts start one after the other."""
        in_order = text(owner, "spec", "startupPolicy", "startupPolicyOrder") == "InOrder"
        return not in_order and not any(part.get("dependsOn") for part in items(owner, "spec", "replicatedJobs"))

    def size(self, owner: Json) -> int | Reason:
        """Number of pods that the JobSet keeps at once."""
        done = {text(part, "name"): whole(part, "succeeded") or 0 for part in _statuses(owner)}
        total = 0
        for index, part in enumerate(items(owner, "spec", "replicatedJobs")):
            template = mapping(part, "template")
            if comes_in_waves(template):
                field = f"spec.replicatedJobs[{index}].template.spec.completions"
                return no(Code.NOT_SUPPORTED_YET, field, "more than parallelism: its pods would not start together")
            total += max(0, _replicas(part) - done.get(text(part, "name"), 0)) * job_pods(template)
        return total

    def parts(self, mark: GangMark | None, owner: Json | None, pods: Sequence[Json]) -> Mapping[str, int] | Reason:
        """Number of pods of each replicated Job that are left to do."""
        done = {text(part, "name"): whole(part, "succeeded") or 0 for part in _statuses(owner or {})}
        parts = {text(part, "name"): part for part in items(owner, "spec", "replicatedJobs")}
        jobs = {name: _replicas(part) - done.get(name, 0) for name, part in parts.items()}
        return {name: n * job_pods(mapping(parts[name], "template")) for name, n in jobs.items() if n > 0}

    def survives_eviction(self, pods: Sequence[Json], owner: Json | None) -> bool:
        """One restart of the whole set is left, or none of its Jobs fails by the eviction of all its pods."""
        if owner is None:
            return False
        allowed = whole(owner, "spec", "failurePolicy", "maxRestarts") or 0
        if allowed > (whole(owner, "status", "restarts") or 0):
            return True
        templates = [mapping(part, "template") for part in items(owner, "spec", "replicatedJobs")]
        return all(job_survives(template, (), job_pods(template)) for template in templates)

    def never_whole(self, owner: Json) -> Reason | None:
        """One whose Jobs are made one after the other, or have more completions than pods at once, is not."""
        if not self.gathers(owner):
            detail = "its Jobs are made one after the other: resume it, they queue one by one"
            return no(Code.NOT_SUPPORTED_YET, "spec.startupPolicy", detail)
        size = self.size(owner)
        return size if isinstance(size, Reason) else None

    def pod_sets(self, owner: Json) -> Sequence[PodSet]:
        """One set for each Job that is not done."""
        done = {text(part, "name"): whole(part, "succeeded") or 0 for part in _statuses(owner)}
        return [
            _set_of(ref_of(owner), part, number)
            for part in items(owner, "spec", "replicatedJobs")
            for number in range(min(REPLICAS_MAX, _replicas(part)) - done.get(text(part, "name"), 0))
        ]


class TrainJob(Workload):
    """The pods are those of the JobSet that its controller makes; the TrainJob says whether they are to be there."""

    api_group: ClassVar[str] = "trainer.kubeflow.org"
    kinds: ClassVar[tuple[str, ...]] = ("TrainJob",)
    watched: ClassVar[tuple[tuple[str, str], ...]] = (("trainer.kubeflow.org/v1alpha1", "TrainJob"),)
    suspend_at: ClassVar[tuple[str, ...]] = ("spec", "suspend")
    controllers: ClassVar[tuple[str, ...]] = ("trainer.kubeflow.org/trainjob-controller",)
    makes: ClassVar[tuple[str, str]] = (SET_API, "JobSet")
    rights: ClassVar[tuple[KindRights, ...]] = (
        KindRights("trainer.kubeflow.org", ("trainjobs",), ("get", "list", "watch"), ("patch",)),
    )


def _set_of(job_set: OwnerRef, part: Json, number: int) -> PodSet:
    """Pods of one Job below; its webhook makes Jobs indexed that say nothing else."""
    name, template = text(part, "name"), mapping(part, "template")
    job = OwnerRef("batch/v1", "Job", job_set.namespace, f"{job_set.name}-{name}-{number}", f"{name}-{number}")
    labels = {PART_LABEL: name, NUMBER_LABEL: str(number)}
    index = "" if text(template, "spec", "completionMode") == "NonIndexed" else INDEX
    return PodSet(mapping(template, "spec", "template"), job_pods(template), job, labels, index)


def _replicas(part: Json) -> int:
    value = whole(part, "replicas")
    return 1 if value is None else value


def _statuses(job_set: Json) -> list[Json]:
    return items(job_set, "status", "replicatedJobsStatus")
