"""A JobSet: all pods of all its Jobs start together, unless its Jobs are made one after the other. Pure."""

from collections.abc import Sequence
from typing import ClassVar

from tessera.binder.workloads.batch_jobs import comes_in_waves, job_pods, job_survives
from tessera.binder.workloads.port import PLACED, GroupKind, KindRights, OwnedWorkload
from tessera.binder.workloads.reading import Json, items, mapping, no, text, whole
from tessera_schemas.reasons import Code, Reason


class JobSet(OwnedWorkload):
    kind: ClassVar[GroupKind | None] = GroupKind.JOB_SET
    api_group: ClassVar[str] = "jobset.x-k8s.io"
    kinds: ClassVar[tuple[str, ...]] = ("JobSet",)
    role_labels: ClassVar[tuple[str, ...]] = ("jobset.sigs.k8s.io/replicatedjob-name",)
    index_labels: ClassVar[tuple[str, ...]] = ("jobset.sigs.k8s.io/job-index",)
    suspend_at: ClassVar[tuple[str, ...]] = ("spec", "suspend")
    controllers: ClassVar[tuple[str, ...]] = ("jobset.sigs.k8s.io/jobset-controller",)
    condition: ClassVar[str] = PLACED
    rights: ClassVar[tuple[KindRights, ...]] = (
        KindRights("jobset.x-k8s.io", ("jobsets",), ("get",), ("patch",), ("patch",)),
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

    def survives_eviction(self, pods: Sequence[Json], owner: Json | None) -> bool:
        """One restart of the whole set is left, or none of its Jobs fails by the eviction of all its pods."""
        if owner is None:
            return False
        allowed = whole(owner, "spec", "failurePolicy", "maxRestarts") or 0
        if allowed > (whole(owner, "status", "restarts") or 0):
            return True
        templates = [mapping(part, "template") for part in items(owner, "spec", "replicatedJobs")]
        return all(job_survives(template, (), job_pods(template)) for template in templates)


def _replicas(part: Json) -> int:
    said = whole(part, "replicas")
    return 1 if said is None else said


def _statuses(job_set: Json) -> list[Json]:
    return items(job_set, "status", "replicatedJobsStatus")
