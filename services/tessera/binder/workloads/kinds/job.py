"""A batch Job of Kubernetes: its pods start together, unless it wants more of them than it runs at once. Pure."""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from tessera.binder.workloads.batch_jobs import INDEX, comes_in_waves, job_pods, least_pods, works_off_a_queue
from tessera.binder.workloads.port import (
    PLACED,
    Group,
    GroupKind,
    GroupPolicy,
    KindRights,
    OwnedWorkload,
    PodSet,
    Workload,
    alone,
    group_of_owner,
)
from tessera.binder.workloads.reading import mapping, no
from tessera.binder.workloads.references import OwnerRef, OwnersByRef, controller_of, ref_of
from tessera_schemas.base import Json
from tessera_schemas.reasons import Code, Reason


class BatchJob(OwnedWorkload):
    """`above` are the kinds whose objects make batch Jobs that start together."""

    kind: ClassVar[GroupKind | None] = GroupKind.JOB
    api_group: ClassVar[str] = "batch"
    kinds: ClassVar[tuple[str, ...]] = ("Job",)
    watched: ClassVar[tuple[tuple[str, str], ...]] = (("batch/v1", "Job"),)
    index_labels: ClassVar[tuple[str, ...]] = (INDEX,)
    suspend_at: ClassVar[tuple[str, ...]] = ("spec", "suspend")
    controllers: ClassVar[tuple[str, ...]] = ("kubernetes.io/job-controller",)
    condition: ClassVar[str] = PLACED
    rights: ClassVar[tuple[KindRights, ...]] = (
        KindRights("batch", ("jobs",), ("get", "list", "watch"), ("patch",), ("patch",)),
    )

    def __init__(self, above: Sequence[Workload]) -> None:
        self._above = above

    def group_of(self, pod: Json, controller: OwnerRef, known: OwnersByRef) -> Group | OwnerRef | Reason:
        """
        The Job's own group, or that of the set of Jobs that it is part of; or the pod's alone.

        A pod joins a Job only where the Job's own controller would count it.
        """
        itself = group_of_owner(GroupKind.JOB, controller, known)
        job = known.get(controller)
        if not isinstance(itself, Group) or job is None:
            return itself
        wanted, labels = mapping(job, "spec", "selector", "matchLabels"), mapping(pod, "metadata", "labels")
        if not wanted.items() <= labels.items():
            return alone(pod)
        whole = self._whole(job, known)
        if whole is not None:
            return whole
        if comes_in_waves(job) or works_off_a_queue(job):
            return alone(pod, controller)
        return self._with_least(itself, job)

    def _whole(self, job: Json, known: OwnersByRef) -> Group | OwnerRef | Reason | None:
        """Group of the object above; None where the Jobs below it start one after the other, or nothing is above."""
        above = controller_of(job)
        kind = None if above is None else next((kind for kind in self._above if kind.owns(above)), None)
        if above is None or kind is None or kind.kind is None:
            return None
        whole, owner = group_of_owner(kind.kind, above, known), known.get(above)
        return None if isinstance(whole, Group) and owner is not None and not kind.gathers(owner) else whole

    def group(self, owner: Json) -> Group | Reason:
        """The Job's own, with the least number that its mark says."""
        found = super().group(owner)
        return found if isinstance(found, Reason) else self._with_least(found, owner)

    def _with_least(self, group: Group, job: Json) -> Group | Reason:
        """Size of a Job that may begin with fewer pods by Kueue's mark."""
        least = least_pods(job)
        if isinstance(least, Reason):
            return least
        return replace(group, policy=GroupPolicy(least)) if least else group

    def size(self, owner: Json) -> int | Reason:
        """Number of pods that the Job keeps at once."""
        return job_pods(owner)

    def never_whole(self, owner: Json) -> Reason | None:
        """A Job of more completions than pods at once is not, nor one that works off a queue."""
        if not (comes_in_waves(owner) or works_off_a_queue(owner)):
            return None
        said = "none is said" if works_off_a_queue(owner) else "more than parallelism"
        return no(Code.NOT_SUPPORTED_YET, "spec.completions", f"{said}: resume it, its pods queue one by one")

    def pod_sets(self, owner: Json) -> Sequence[PodSet]:
        """One set, of its template."""
        selected = mapping(owner, "spec", "selector", "matchLabels")
        return (PodSet(mapping(owner, "spec", "template"), job_pods(owner), ref_of(owner), selected),)
