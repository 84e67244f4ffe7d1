"""How many pods an owner keeps at once, as it says it now."""

from typing import Any

import pytest

from tessera.binder.workloads.batch_jobs import comes_in_waves, job_pods
from tessera.binder.workloads.port import bounded_size
from tessera.binder.workloads.references import ref_of
from tessera.binder.workloads.registry import kind_of
from tessera_schemas.reasons import Code, Reason
from tests.unit.binder.adoption.adoption_builders import an_object, batch_job

Json = dict[str, Any]


def pods_said(owner: Json) -> int | Reason:
    kind = kind_of(ref_of(owner))
    assert kind is not None
    return bounded_size(kind.size(owner))


@pytest.mark.parametrize(
    ("spec", "status", "pods"),
    [
        ({}, {}, 1),
        ({"parallelism": 4}, {}, 4),
        ({"parallelism": 4, "completions": 2}, {}, 2),
        ({"parallelism": 4, "completions": 4}, {"succeeded": 1}, 3),
        ({"parallelism": 4, "completions": 4}, {"uncountedTerminatedPods": {"succeeded": ["a", "b"]}}, 2),
        ({"parallelism": 4}, {"succeeded": 1}, 0),
        ({"parallelism": 4, "completions": 2}, {"succeeded": 9}, 0),
        ({"parallelism": 0}, {}, 0),
        ({"parallelism": None, "completions": None}, {}, 1),
        ({"parallelism": True, "completions": "5"}, {}, 1),
    ],
    ids=[
        "one by default",
        "all at once",
        "never more than are wanted",
        "not those that are done",
        "nor those that were not added yet",
        "an empty queue of work",
        "more done than wanted",
        "stopped",
        "nulls",
        "nonsense",
    ],
)
def test_a_job_keeps_what_its_controller_would_keep(spec: Json, status: Json, pods: int) -> None:
    assert job_pods(batch_job(**spec) | {"status": status}) == pods


def test_a_job_comes_in_waves_when_more_are_wanted_than_may_run_at_once() -> None:
    assert comes_in_waves(batch_job(parallelism=2, completions=3))
    assert comes_in_waves(batch_job(completions=2))
    assert not comes_in_waves(batch_job(parallelism=2, completions=2))
    assert not comes_in_waves(batch_job(parallelism=2))


def job_set(*parts: Json, **status: Any) -> Json:
    return an_object("jobset.x-k8s.io/v1alpha2", "JobSet", replicatedJobs=list(parts)) | {"status": status}


def part(name: str, replicas: int | None = None, **spec: Any) -> Json:
    return {"name": name, "template": {"spec": spec}} | ({} if replicas is None else {"replicas": replicas})


def test_a_job_set_is_the_sum_of_its_jobs_without_those_that_are_done() -> None:
    parts = part("driver"), part("workers", 3, parallelism=2, completions=2)
    assert pods_said(job_set(*parts)) == 7
    assert pods_said(job_set(*parts, replicatedJobsStatus=[{"name": "workers", "succeeded": 2}])) == 3


def test_a_job_set_with_waves_cannot_start_as_one_and_the_field_is_named() -> None:
    found = pods_said(job_set(part("a"), part("b", 1, parallelism=1, completions=5)))
    assert isinstance(found, Reason)
    assert (found.code, found.field) == (Code.NOT_SUPPORTED_YET, "spec.replicatedJobs[1].template.spec.completions")


def test_a_training_job_is_the_sum_of_its_replicas_without_those_that_are_done() -> None:
    replicas = {"Master": {"replicas": 1}, "Worker": {"replicas": 3}, "Other": {}}
    training = an_object("kubeflow.org/v1", "PyTorchJob", pytorchReplicaSpecs=replicas, elasticPolicy={"x": 1})
    assert pods_said(training) == 5
    status = {"replicaStatuses": {"Worker": {"succeeded": 1}}}
    assert pods_said(training | {"status": status}) == 4


APIS = {
    "PodGroup": "scheduling.x-k8s.io/v1alpha1",
    "Job": "batch/v1",
    "JobSet": "jobset.x-k8s.io/v1alpha2",
    "PyTorchJob": "kubeflow.org/v1",
}


@pytest.mark.parametrize(
    ("kind", "spec", "code"),
    [
        ("PodGroup", {}, Code.MISSING_FIELD),
        ("PodGroup", {"minMember": 0}, Code.MISSING_FIELD),
        ("PodGroup", {"minMember": 10**30}, Code.INVALID_FIELD),
        ("Job", {"parallelism": 2**31 - 1}, Code.INVALID_FIELD),
        ("Job", {"parallelism": 0}, Code.GANG_INCOMPLETE),
        ("JobSet", {}, Code.GANG_INCOMPLETE),
        ("PyTorchJob", {}, Code.MISSING_FIELD),
        ("PyTorchJob", {"pytorchReplicaSpecs": {"Worker": {"replicas": 10**18}}}, Code.INVALID_FIELD),
        ("PyTorchJob", {"pytorchReplicaSpecs": "many"}, Code.MISSING_FIELD),
    ],
)
def test_what_says_no_number_that_a_job_may_have_is_a_typed_no(kind: str, spec: Json, code: Code) -> None:
    found = pods_said(an_object(APIS[kind], kind, **spec))
    assert isinstance(found, Reason)
    assert found.code is code
