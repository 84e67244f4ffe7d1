"""
Training jobs of Kubeflow, PyTorchJob, TFJob, MPIJob and their kin: all replicas start together. Pure.

A TrainJob owns a JobSet, which is looked at instead.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from tessera.binder.workloads.marks import not_honoured_fields
from tessera.binder.workloads.port import (
    GangMark,
    Group,
    GroupKind,
    KindRights,
    OwnedWorkload,
    PodSet,
    alone,
    group_of_owner,
)
from tessera.binder.workloads.reading import mapping, no, text, whole
from tessera.binder.workloads.references import OwnerRef, OwnersByRef, ref_of
from tessera_schemas.base import Json
from tessera_schemas.reasons import Code, Reason

NAME_LABEL = "training.kubeflow.org/job-name"
TYPE_LABEL, INDEX_LABEL = "training.kubeflow.org/replica-type", "training.kubeflow.org/replica-index"
LAUNCHER, WORKER = "Launcher", "Worker"
MPI_API = "kubeflow.org/v2beta1"
POLICY = ("spec", "runPolicy", "schedulingPolicy")
RESOURCES = ("pytorchjobs", "tfjobs", "mpijobs", "xgboostjobs", "jaxjobs", "paddlejobs", "mxjobs")


class TrainingJob(OwnedWorkload):
    kind: ClassVar[GroupKind | None] = GroupKind.TRAINING_JOB
    api_group: ClassVar[str] = "kubeflow.org"
    watched: ClassVar[tuple[tuple[str, str], ...]] = (
        *(("kubeflow.org/v1", kind) for kind in ("PyTorchJob", "TFJob", "MPIJob", "XGBoostJob", "JAXJob", "PaddleJob")),
        (MPI_API, "MPIJob"),
    )
    role_labels: ClassVar[tuple[str, ...]] = (TYPE_LABEL, "training.kubeflow.org/job-role")
    index_labels: ClassVar[tuple[str, ...]] = (INDEX_LABEL,)
    suspend_at: ClassVar[tuple[str, ...]] = ("spec", "runPolicy", "suspend")
    controllers: ClassVar[tuple[str, ...]] = ("kubeflow.org/training-operator",)
    rights: ClassVar[tuple[KindRights, ...]] = (
        KindRights("kubeflow.org", RESOURCES, ("get", "list", "watch"), ("patch",)),
    )

    def owns(self, ref: OwnerRef) -> bool:
        """Any kind of the group whose name ends in Job."""
        return ref.group == self.api_group and ref.kind.endswith("Job")

    def group_of(self, pod: Json, controller: OwnerRef, known: OwnersByRef) -> Group | OwnerRef | Reason:
        """The training job's, where its operator counts the pod."""
        counted = text(pod, "metadata", "labels", NAME_LABEL) == controller.name
        return group_of_owner(GroupKind.TRAINING_JOB, controller, known) if counted else alone(pod)

    def gathers(self, owner: Json) -> bool:
        """Unless its parts start one after the other."""
        return not _launcher_comes_last(owner)

    def size(self, owner: Json) -> int | Reason:
        """The sum over `spec.pytorchReplicaSpecs`, `spec.mpiReplicaSpecs` and the like."""
        parts = _parts(owner)
        if not parts:
            return no(Code.MISSING_FIELD, "spec.*ReplicaSpecs", f"{text(owner, 'kind')} names no replicas")
        return sum(_left(owner, name, part) for name, part in parts.items())

    def parts(self, mark: GangMark | None, owner: Json | None, pods: Sequence[Json]) -> Mapping[str, int] | Reason:
        """Number of replicas of each type that are left to do."""
        left = {name: _left(owner or {}, name, part) for name, part in _parts(owner or {}).items()}
        return {name: number for name, number in left.items() if number}

    def survives_eviction(self, pods: Sequence[Json], owner: Json | None) -> bool:
        """No replica is one of which the operator says that its end ends the job."""
        if owner is None:
            return False
        types = [found for name, found in mapping(owner, "spec").items() if name.endswith("ReplicaSpecs")]
        parts = [part for found in types if isinstance(found, dict) for part in found.values()]
        return all(text(part, "restartPolicy") in ("Always", "OnFailure", "ExitCode") for part in parts)

    def never_whole(self, owner: Json) -> Reason | None:
        """One whose launcher comes after its workers is not."""
        if not _launcher_comes_last(owner):
            return None
        detail = "its launcher is made once its workers run: resume it, its pods queue then"
        return no(Code.NOT_SUPPORTED_YET, "spec.launcherCreationPolicy", detail)

    def keeps_failed(self, owner: Json) -> bool:
        """The MPI operator's, which takes away those that run alone where it is told to clean up no others."""
        return _is_of_mpi_operator(owner) and text(owner, "spec", "runPolicy", "cleanPodPolicy") == "Running"

    def wishes(self, owner: Json) -> list[str]:
        """A sentence about each field of its policy for its scheduler that is not honoured."""
        policy = mapping(owner, *POLICY)
        all_together = {"minAvailable"} if policy.get("minAvailable") == self.size(owner) else set()
        return not_honoured_fields(policy, f"{text(owner, 'kind')}.{'.'.join(POLICY)}", all_together | {"queue"})

    def pod_sets(self, owner: Json) -> Sequence[PodSet]:
        """One set for each type of replicas."""
        ref = ref_of(owner)
        return [
            PodSet(mapping(part, "template"), _left(owner, name, part), ref, _labels(ref, name), INDEX_LABEL)
            for name, part in _parts(owner).items()
        ]


def _labels(ref: OwnerRef, name: str) -> Json:
    return {NAME_LABEL: ref.name, TYPE_LABEL: name.lower()}


def _parts(owner: Json) -> Json:
    """Replica specs that are there from the start, by the name of their type."""
    types = [found for name, found in sorted(mapping(owner, "spec").items()) if name.endswith("ReplicaSpecs")]
    parts = {kind: part for found in types if isinstance(found, dict) for kind, part in sorted(found.items())}
    return {kind: part for kind, part in parts.items() if not (kind == LAUNCHER and _launcher_comes_last(owner))}


def _left(owner: Json, name: str, part: Json) -> int:
    """Replicas of a type that have not succeeded; a type has 1 by default, workers of the MPI operator none."""
    value, done = whole(part, "replicas"), whole(owner, "status", "replicaStatuses", name, "succeeded") or 0
    default = 0 if name == WORKER and _is_of_mpi_operator(owner) else 1
    return max(0, (default if value is None else value) - done)


def _is_of_mpi_operator(owner: Json) -> bool:
    """The operator of its own, and not the one that looks after all kinds of training jobs."""
    return (text(owner, "apiVersion"), text(owner, "kind")) == (MPI_API, "MPIJob")


def _launcher_comes_last(owner: Json) -> bool:
    """Whether the launcher is made only once the workers run."""
    return text(owner, "spec", "launcherCreationPolicy") == "WaitForWorkersReady"
