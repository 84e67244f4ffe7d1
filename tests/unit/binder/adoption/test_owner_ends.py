"""How each kind of owner says that it has ended, and why."""

from typing import Any, cast

import pytest

from tessera.binder.adoption.decide.owner_conditions import ending_of, why_failed
from tessera.binder.adoption.owners.known import Owners
from tessera.binder.adoption.owners.watches import OwnerWatches
from tessera.binder.workloads.batch_jobs import has_given_up, job_pods
from tessera.kernel.ports import ApiError, Cluster
from tessera_schemas.base import Json
from tessera_schemas.reasons import Code
from tessera_schemas.work.adopted import Adopted
from tests.virtual_time import VirtualClock

MESSAGE = "Job train has failed because it was active longer than specified deadline"


def owner(kind: str, api_version: str, status: Json, **meta: Any) -> Json:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": "train", **meta}, "status": status}


def said(*kinds: str, status: str = "True", **more: str) -> Json:
    return {"conditions": [{"type": kind, "status": status, **more} for kind in kinds]}


@pytest.mark.parametrize(
    ("thing", "ending"),
    [
        (owner("Job", "batch/v1", said("Complete")), "complete"),
        (owner("Job", "batch/v1", said("SuccessCriteriaMet")), "complete"),
        (owner("Job", "batch/v1", said("FailureTarget")), "failed"),
        (owner("Job", "batch/v1", said("Failed", status="False")), ""),
        (owner("Job", "batch/v1", said("Suspended")), ""),
        (owner("JobSet", "jobset.x-k8s.io/v1alpha2", said("Completed")), "complete"),
        (owner("PyTorchJob", "kubeflow.org/v1", said("Created", "Running", "Succeeded")), "complete"),
        (owner("MPIJob", "kubeflow.org/v2beta1", said("Failed")), "failed"),
        (owner("Job", "batch.volcano.sh/v1alpha1", {"state": {"phase": "Completed"}}), "complete"),
        (owner("Job", "batch.volcano.sh/v1alpha1", {"state": {"phase": "Terminated"}}), "failed"),
        (owner("Job", "batch.volcano.sh/v1alpha1", {"state": {"phase": "Aborted"}}), ""),
        (owner("RayJob", "ray.io/v1", {"jobDeploymentStatus": "Complete"}), "complete"),
        (owner("RayJob", "ray.io/v1", {"jobDeploymentStatus": "Running"}), ""),
        (owner("RayCluster", "ray.io/v1", {"state": "ready"}), ""),
        (owner("Deployment", "apps/v1", said("Available")), ""),
        (owner("Pod", "v1", {"phase": "Failed"}), "failed"),
        (owner("Pod", "v1", {"phase": "Failed"}, deletionTimestamp="2026-11-27T00:00:00Z"), ""),
        (owner("Pod", "v1", {"phase": "Succeeded"}, deletionTimestamp="2026-11-27T00:00:00Z"), "complete"),
        (owner("Job", "batch/v1", {"conditions": None}), ""),
        ({"apiVersion": "batch/v1", "kind": "Job"}, ""),
    ],
)
def test_an_end_is_read_from_the_owners_own_words(thing: Json, ending: str) -> None:
    assert ending_of(thing) == ending


@pytest.mark.parametrize(
    ("thing", "code", "detail"),
    [
        (
            owner("Job", "batch/v1", said("Failed", reason="BackoffLimitExceeded", message="enough")),
            Code.OWNER_FAILED,
            "Job/train: BackoffLimitExceeded: enough",
        ),
        (
            owner("Job", "batch/v1", said("FailureTarget", reason="DeadlineExceeded")),
            Code.TIME_LIMIT,
            "Job/train: DeadlineExceeded",
        ),
        (
            owner("TFJob", "kubeflow.org/v1", said("Failed", reason="TFJobFailed", message=MESSAGE)),
            Code.TIME_LIMIT,
            f"TFJob/train: TFJobFailed: {MESSAGE}",
        ),
        (
            owner("RayJob", "ray.io/v1", {"jobDeploymentStatus": "Failed", "reason": "DeadlineExceeded"}),
            Code.TIME_LIMIT,
            "RayJob/train: DeadlineExceeded",
        ),
        (
            owner("Job", "batch.volcano.sh/v1alpha1", {"state": {"phase": "Failed", "message": "task failed"}}),
            Code.OWNER_FAILED,
            "Job/train: task failed",
        ),
        (owner("Pod", "v1", {"phase": "Failed", "reason": "Evicted"}), Code.OWNER_FAILED, "Pod/train: Evicted"),
    ],
)
def test_a_failure_is_told_in_the_owners_words_and_a_deadline_is_a_time_limit(
    thing: Json, code: Code, detail: str
) -> None:
    assert (why_failed(thing).code, why_failed(thing).detail) == (code, detail)


def test_indexes_that_a_job_gives_up_are_not_waited_for() -> None:
    job: Json = {"spec": {"parallelism": 8, "completions": 8}, "status": {"succeeded": 1, "failedIndexes": "1,3-5"}}
    assert [index for index in range(8) if has_given_up(job, str(index))] == [1, 3, 4, 5]
    assert job_pods(job) == 3
    assert not has_given_up({"status": {"failedIndexes": None}}, "0")


class OneObject:
    """A cluster of one object; None: it may not be read."""

    def __init__(self, found: Json | None) -> None:
        self._found = found

    async def get_object(self, *_: str) -> Json:
        if self._found is None:
            raise ApiError(403, "Forbidden", "no")
        return self._found


RAY_JOB = owner("RayJob", "ray.io/v1", {"jobDeploymentStatus": "Failed", "reason": "AppFailed"}, uid="above")
CLUSTER = Adopted(api_version="ray.io/v1", owner_kind="RayCluster", owner_name="train-abc", owner_uid="cluster")


@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize(("found", "ending"), [(RAY_JOB, "failed"), (None, "")], ids=["read", "not allowed"])
async def test_the_end_of_a_ray_cluster_is_its_rayjobs_also_once_the_cluster_is_gone(
    found: Json | None, ending: str, is_there: bool
) -> None:
    above = {"apiVersion": "ray.io/v1", "kind": "RayJob", "name": "train", "uid": "above", "controller": True}
    cluster = owner("RayCluster", "ray.io/v1", {}, uid="cluster", namespace="lab", ownerReferences=[above])
    clock = VirtualClock()
    watches = OwnerWatches(cast(Cluster, None), clock, "binder-1")
    owners = Owners(cast(Cluster, OneObject(found)), clock, watches)
    owners.note_gone(cluster)
    assert ending_of(await owners.last_word(CLUSTER, cluster if is_there else None)) == ending
