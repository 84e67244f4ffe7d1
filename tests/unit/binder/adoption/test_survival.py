"""A job may be preempted while its owner brings the pods back; an eviction counts as a failure for most owners."""

from typing import Any

import pytest

from tessera.binder.workloads.batch_jobs import job_survives
from tessera.binder.workloads.registry import survives_eviction
from tessera_schemas.cluster.labels import GANG_LABEL, GANG_SIZE_ANNOTATION, PREEMPTIBLE_ANNOTATION
from tests.unit.binder.adoption.adoption_builders import an_object, batch_job, group, pod

Json = dict[str, Any]
EVICTIONS = {"onPodConditions": [{"type": "DisruptionTarget"}]}


def survives(pods: list[Json], owner: Json | None = None) -> bool:
    objects = [owner] if owner is not None else []
    return survives_eviction(group(pods[0], *objects), pods, owner)


def failed(job: Json, count: int, uncounted: int = 0) -> Json:
    status = {"failed": count, "uncountedTerminatedPods": {"failed": ["x"] * uncounted}}
    return job | {"status": status}


# -- who brings pods back ---------------------------------------------------------------------------------------------


def test_a_bare_pod_is_preempted_only_if_its_annotation_allows_it() -> None:
    assert not survives([pod()])
    assert survives([pod(annotations={PREEMPTIBLE_ANNOTATION: "true"})])
    assert not survives([pod(annotations={PREEMPTIBLE_ANNOTATION: "yes"})])


def test_an_annotation_may_also_keep_pods_that_would_come_back() -> None:
    job = batch_job()
    assert survives([pod(owner=job)], job)
    assert not survives([pod(owner=job, annotations={PREEMPTIBLE_ANNOTATION: "false"})], job)


def test_an_annotation_is_heard_when_all_pods_of_the_gang_have_it() -> None:
    size = {GANG_SIZE_ANNOTATION: "2"}
    marked = pod("a", labels={GANG_LABEL: "g"}, annotations=size | {PREEMPTIBLE_ANNOTATION: "true"})
    plain = pod("b", labels={GANG_LABEL: "g"}, annotations=size)
    assert not survives([marked, plain])
    assert survives([marked, marked])


@pytest.mark.parametrize("kind", ["ReplicaSet", "StatefulSet"])
def test_what_keeps_a_number_of_pods_alive_brings_them_back(kind: str) -> None:
    assert survives([pod(owner=an_object("apps/v1", kind))])


def test_pods_of_a_gang_come_back_if_one_job_or_controllers_of_a_number_made_them_all() -> None:
    more: Json = {"labels": {GANG_LABEL: "g"}, "annotations": {GANG_SIZE_ANNOTATION: "2"}}
    job, other, keeper = batch_job("a"), batch_job("b"), an_object("apps/v1", "ReplicaSet")
    of_job, of_other, kept = (pod(name, owner=its, **more) for name, its in (("a", job), ("b", other), ("c", keeper)))
    assert survives([of_job, of_job], job)
    assert survives([kept, kept])
    assert not survives([of_job, pod("d", **more)], job), "a bare pod"
    for gang in ([of_job, of_other], [of_job, kept]):
        assert not survives(gang, job), "only one Job is looked at, and which one must not matter"
        assert not survives(gang[::-1], other if of_other in gang else None)


# -- batch Jobs -------------------------------------------------------------------------------------------------------


def test_a_job_survives_while_its_back_off_limit_has_room_for_all_its_pods() -> None:
    job = batch_job(backoffLimit=8)
    assert job_survives(failed(job, 4), (), 4)
    assert not job_survives(failed(job, 5), (), 4)
    assert not job_survives(failed(job, 4, uncounted=1), (), 4), "failures that the number does not have yet"


def test_a_job_that_says_no_limit_has_the_apis_default_of_six() -> None:
    assert job_survives(batch_job(), (), 6)
    assert not job_survives(batch_job(), (), 7)
    assert not job_survives(batch_job(backoffLimit=0), (), 1)


def test_a_job_that_counts_failures_by_index_survives_while_each_index_may_fail_once_more() -> None:
    job = batch_job(backoffLimitPerIndex=2)
    fresh, worn = ({"metadata": {"annotations": {"batch.kubernetes.io/job-index-failure-count": n}}} for n in "12")
    assert job_survives(job, [fresh, {}], 2)
    assert not job_survives(job, [fresh, worn], 2)
    assert not job_survives(batch_job(backoffLimitPerIndex=0), (), 1)


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ([EVICTIONS | {"action": "Ignore"}, {"action": "FailJob"}], True),
        ([{"action": "FailJob"}, EVICTIONS | {"action": "Ignore"}], False),
        ([EVICTIONS | {"action": "FailJob"}], False),
        ([EVICTIONS | {"action": "Count"}], False),
        ([{"onPodConditions": [{"type": "DisruptionTarget", "status": "False"}], "action": "Ignore"}], False),
        ([{"onExitCodes": {"operator": "In", "values": [42]}, "action": "Ignore"}], False),
    ],
    ids=["ignored first", "may fail before", "fails", "counts", "the contrary is ignored", "something else is ignored"],
)
def test_evictions_cost_nothing_where_the_first_rule_ignores_them(rules: list[Json], expected: bool) -> None:
    assert job_survives(batch_job(backoffLimit=0, podFailurePolicy={"rules": rules}), (), 1) is expected


# -- sets and training jobs -------------------------------------------------------------------------------------------


def job_set(max_restarts: int, limit: int, **status: Any) -> Json:
    parts = [{"name": "w", "template": {"spec": {"parallelism": 2, "completions": 2, "backoffLimit": limit}}}]
    policy = {"maxRestarts": max_restarts}
    whole = an_object("jobset.x-k8s.io/v1alpha2", "JobSet", "s", replicatedJobs=parts, failurePolicy=policy)
    return whole | {"status": status}


@pytest.mark.parametrize(
    ("whole", "expected"),
    [(job_set(1, 0), True), (job_set(1, 0, restarts=1), False), (job_set(0, 2), True), (job_set(0, 1), False)],
    ids=["one restart is left", "none is left", "its Jobs survive", "they do not"],
)
def test_a_job_set_survives_by_a_restart_or_because_its_jobs_do(whole: Json, expected: bool) -> None:
    job = batch_job("s-w-0", owner=whole)
    member = pod(owner=job)
    objects = (job, whole)
    assert survives_eviction(group(member, *objects), [member], whole) is expected


@pytest.mark.parametrize(
    ("policy", "expected"), [("OnFailure", True), ("ExitCode", True), ("Never", False), ("", False)]
)
def test_a_training_job_survives_unless_a_replicas_end_is_its_end(policy: str, expected: bool) -> None:
    replicas = {"Master": {"restartPolicy": "OnFailure"}, "Worker": {"restartPolicy": policy}}
    training = an_object("kubeflow.org/v1", "PyTorchJob", pytorchReplicaSpecs=replicas)
    member = pod(owner=training, labels={"training.kubeflow.org/job-name": "train"})
    assert survives([member], training) is expected
