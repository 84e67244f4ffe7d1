"""Which pods are one group: what an object says counts, and a name or a reference alone joins nothing."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.binder.workloads.port import Group, GroupKind
from tessera.binder.workloads.references import OwnerRef
from tessera.binder.workloads.registry import group_of, size_of, survives_eviction, waits
from tessera_schemas.cluster.labels import FINALIZER, GANG_LABEL, GANG_SIZE_ANNOTATION, POD_GROUP_LABEL
from tessera_schemas.reasons import Code, Reason
from tests.unit.binder.adoption.adoption_builders import an_object, batch_job, group, known, pod, ref

TRAINING = {"training.kubeflow.org/job-name": "train"}
REPLICAS = {"pytorchReplicaSpecs": {"Master": {"replicas": 1}, "Worker": {"replicas": 3}}}


def refused(found: object, code: Code, field: str = "") -> None:
    assert isinstance(found, Reason)
    assert (found.code, field in found.field) == (code, True), found


def in_gang(name: str = "g", size: str = "2", pod_name: str = "a", **more: Any) -> dict[str, Any]:
    return pod(pod_name, labels={GANG_LABEL: name}, annotations={GANG_SIZE_ANNOTATION: size}, **more)


# -- named gangs ------------------------------------------------------------------------------------------------------


def test_pods_with_one_gang_name_in_one_namespace_are_one_group_whoever_owns_them() -> None:
    one, other = group(in_gang(pod_name="a")), group(in_gang(pod_name="b", owner=batch_job()))
    assert one.id == other.id
    assert (one.kind, one.name, size_of(one, None)) == (GroupKind.GANG, "g", 2)


def test_a_gang_name_means_nothing_in_another_namespace() -> None:
    assert group(in_gang()).id != group(in_gang(namespace="other")).id


@pytest.mark.parametrize("size", ["", "0", "-1", "2.0", "9" * 12, "2049", "two", "²", " 2"])
def test_a_gang_of_an_impossible_size_is_refused_by_the_name_of_the_annotation(size: str) -> None:
    code = Code.INVALID_FIELD if size else Code.MISSING_FIELD
    refused(group_of(in_gang(size=size), {}), code, GANG_SIZE_ANNOTATION)


def test_a_gang_without_a_name_is_refused() -> None:
    refused(group_of(in_gang(name=""), {}), Code.INVALID_FIELD, GANG_LABEL)


# -- PodGroups --------------------------------------------------------------------------------------------------------


def test_a_pod_group_is_asked_for_by_its_name_and_says_the_size() -> None:
    member = pod(labels={POD_GROUP_LABEL: "pg"})
    asked = group_of(member, {})
    assert isinstance(asked, OwnerRef)
    assert (asked.kind, asked.namespace, asked.name, asked.uid) == ("PodGroup", "lab", "pg", "")
    it = an_object("scheduling.x-k8s.io/v1alpha1", "PodGroup", "pg", minMember=3)
    found = group_of(member, {asked: it})
    assert isinstance(found, Group)
    assert size_of(found, it) == 3


def test_a_pod_whose_pod_group_is_not_there_waits_for_it() -> None:
    asked = group_of(pod(labels={POD_GROUP_LABEL: "pg"}), {})
    assert isinstance(asked, OwnerRef)
    refused(group_of(pod(labels={POD_GROUP_LABEL: "pg"}), {asked: None}), Code.OWNER_NOT_FOUND, "PodGroup lab/pg")


# -- owners -----------------------------------------------------------------------------------------------------------


def test_a_pod_of_a_batch_job_is_of_its_group_and_the_job_is_looked_at_first() -> None:
    job = batch_job(parallelism=4, completions=4)
    member = pod(owner=job)
    assert group_of(member, {}) == ref(job)
    found = group(member, job)
    assert (found.kind, found.name, found.owner) == (GroupKind.JOB, "train", ref(job))
    assert size_of(found, job) == 4


def test_pods_of_a_job_with_more_completions_than_parallelism_are_jobs_of_their_own() -> None:
    job = batch_job(parallelism=2, completions=10)
    found = group(pod("a", owner=job), job)
    assert (found.kind, found.owner, size_of(found, job)) == (GroupKind.POD, ref(job), 1)
    assert found.id != group(pod("b", owner=job), job).id


def test_pods_of_a_job_that_works_off_a_queue_are_jobs_of_their_own() -> None:
    job = batch_job(parallelism=6)
    found = group(pod("a", owner=job), job)
    assert (found.kind, found.owner, size_of(found, job)) == (GroupKind.POD, ref(job), 1)
    assert survives_eviction(found, [pod("a", owner=job)], job)
    one_done = job | {"status": {"succeeded": 1}}
    assert not survives_eviction(found, [pod("a", owner=job)], one_done)


def test_a_job_that_works_off_a_queue_and_says_its_least_number_begins_with_that() -> None:
    job = batch_job(parallelism=6)
    job["metadata"]["annotations"] = {"kueue.x-k8s.io/job-min-parallelism": "2"}
    found = group(pod("a", owner=job), job)
    assert (found.kind, size_of(found, job)) == (GroupKind.JOB, 2)


def test_a_job_of_a_job_set_is_part_of_the_set() -> None:
    whole = an_object("jobset.x-k8s.io/v1alpha2", "JobSet", "set", replicatedJobs=[{"name": "w", "replicas": 2}])
    job = batch_job("set-w-0", owner=whole)
    member = pod(owner=job)
    assert group_of(member, known(job)) == ref(whole)
    found = group(member, job, whole)
    assert (found.kind, found.owner) == (GroupKind.JOB_SET, ref(whole))


@pytest.mark.parametrize(
    "spec",
    [
        {"startupPolicy": {"startupPolicyOrder": "InOrder"}},
        {"replicatedJobs": [{"name": "a"}, {"name": "b", "dependsOn": [{"name": "a", "status": "Complete"}]}]},
    ],
    ids=["in order", "one depends on another"],
)
def test_jobs_of_a_set_that_start_one_after_the_other_are_groups_of_their_own(spec: dict[str, Any]) -> None:
    whole = an_object("jobset.x-k8s.io/v1alpha2", "JobSet", "set", **spec)
    job = batch_job("set-a-0", owner=whole)
    assert group(pod(owner=job), job, whole).kind is GroupKind.JOB


def test_pods_of_a_training_job_are_one_group_the_launchers_own_job_included() -> None:
    training = an_object("kubeflow.org/v2beta1", "MPIJob", mpiReplicaSpecs={"Launcher": {}, "Worker": {"replicas": 2}})
    launcher = batch_job("train-launcher", owner=training)
    worker = group(pod("w", owner=training, labels=TRAINING), training)
    assert worker == group(pod("l", owner=launcher, labels=TRAINING), launcher, training)
    assert size_of(worker, training) == 3


def test_a_launcher_that_comes_after_its_workers_is_not_waited_for() -> None:
    training = an_object(
        "kubeflow.org/v2beta1",
        "MPIJob",
        mpiReplicaSpecs={"Launcher": {}, "Worker": {"replicas": 2}},
        launcherCreationPolicy="WaitForWorkersReady",
    )
    launcher = batch_job("train-launcher", owner=training)
    assert group(pod("l", owner=launcher), launcher, training).kind is GroupKind.JOB
    assert size_of(group(pod("w", owner=training, labels=TRAINING), training), training) == 2


@pytest.mark.parametrize("kind", ["ReplicaSet", "StatefulSet", "DaemonSet", "Notebook"])
def test_a_pod_of_any_other_owner_stands_alone(kind: str) -> None:
    owner = an_object("apps/v1", kind)
    found = group(pod(owner=owner))
    assert (found.kind, found.owner, size_of(found, None)) == (GroupKind.POD, None, 1)


def test_a_bare_pod_made_again_under_its_name_is_another_one() -> None:
    assert group(pod(uid="1")).id != group(pod(uid="2")).id


# -- what imitates ----------------------------------------------------------------------------------------------------


def test_a_pod_that_only_claims_to_be_of_a_job_is_not_counted_by_it_and_stands_alone() -> None:
    job = batch_job(parallelism=2)
    imitation = pod(owner=job)
    imitation["metadata"]["labels"] = {}
    assert group(imitation, job).kind is GroupKind.POD


def test_a_label_of_a_training_job_without_its_ownership_joins_nothing() -> None:
    assert group(pod(labels=TRAINING)).kind is GroupKind.POD


def test_an_ownership_without_the_training_jobs_label_joins_nothing() -> None:
    training = an_object("kubeflow.org/v1", "PyTorchJob", **REPLICAS)
    assert group(pod(owner=training), training).kind is GroupKind.POD


@pytest.mark.parametrize("api_version", ["example.com/v1", "v1", "batch.example.com/v1", ""])
def test_a_kind_of_another_api_group_is_not_the_one_it_is_called_like(api_version: str) -> None:
    assert group(pod(owner=an_object(api_version, "Job"))).kind is GroupKind.POD


def test_an_owner_made_anew_under_the_same_name_is_not_the_pods_owner() -> None:
    job = batch_job()
    anew = batch_job(uid="another")
    refused(group_of(pod(owner=job), {ref(job): anew}), Code.OWNER_NOT_FOUND, "Job lab/train")
    found = group(pod(owner=job), job)
    refused(size_of(found, anew), Code.OWNER_NOT_FOUND)
    refused(size_of(found, None), Code.OWNER_NOT_FOUND)


def test_owners_that_own_each_other_end_the_search_after_two() -> None:
    job = batch_job()
    above = an_object("jobset.x-k8s.io/v1alpha2", "JobSet", owner=job, replicatedJobs=[])
    loop = batch_job(owner=above)
    asked, have = group_of(pod(owner=job), {}), {}
    seen = 0
    while isinstance(asked, OwnerRef):
        have[asked] = loop if asked.kind == "Job" else above
        asked, seen = group_of(pod(owner=job), have), seen + 1
    assert isinstance(asked, Group)
    assert (asked.kind, seen) == (GroupKind.JOB_SET, 2)


# -- which pods wait --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, True),
        ({"schedulerName": "default-scheduler"}, False),
        ({"schedulerName": None}, False),
        ({"nodeName": "node-a"}, False),
        ({"schedulingGates": [{"name": "quota"}]}, False),
    ],
    ids=["ours", "another's", "nobody's", "bound", "gated"],
)
def test_only_pods_that_name_us_and_could_be_bound_wait(change: dict[str, Any], expected: bool) -> None:
    assert waits(pod(**change)) is expected


def test_pods_that_end_or_that_we_made_ourselves_do_not_wait() -> None:
    ended, leaving, made = pod(), pod(), pod()
    ended["status"]["phase"] = "Failed"
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    made["metadata"]["finalizers"] = [FINALIZER]
    assert not any(waits(each) for each in (ended, leaving, made))


# -- anything at all --------------------------------------------------------------------------------------------------

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(["metadata", "spec", "status"])
PARTS = st.dictionaries(
    st.sampled_from(["labels", "annotations", "ownerReferences", "finalizers", "selector", "replicatedJobs", "uid"]),
    ANYTHING,
)


@given(st.dictionaries(FIELDS, ANYTHING | PARTS), st.dictionaries(FIELDS, ANYTHING | PARTS))
def test_no_object_whatever_its_shape_makes_the_question_fail(thing: dict[str, Any], owner: dict[str, Any]) -> None:
    waits(thing)
    found = group_of(thing, {})
    if isinstance(found, OwnerRef):
        found = group_of(thing, {found: owner})
    if isinstance(found, Group):
        size_of(found, owner)
    job = batch_job()
    answer = group_of(pod(owner=job), {ref(job): owner | {"metadata": {"uid": job["metadata"]["uid"]}}})
    assert isinstance(answer, Group | Reason | OwnerRef)
