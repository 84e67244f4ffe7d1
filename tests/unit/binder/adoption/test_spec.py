"""The job of a group: the same pods give the same job and key, in whatever order, attempt and process."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.binder.adoption.decide.spec import Adoption, spec_of
from tessera_schemas.base import job_id
from tessera_schemas.cluster.labels import GANG_LABEL, GANG_SIZE_ANNOTATION, POD_GROUP_LABEL, PROJECT_LABEL, QUEUE_LABEL
from tessera_schemas.commands import AdoptJob
from tessera_schemas.reasons import Code, Reason
from tests.unit.binder.adoption.adoption_builders import an_object, batch_job, group, pod, ref

Json = dict[str, Any]
INDEX = "batch.kubernetes.io/job-completion-index"


def adoption(pods: list[Json], *objects: Json, size: int = 0) -> Adoption:
    found = answer(pods, *objects, size=size)
    assert isinstance(found, Adoption), found
    return found


def answer(pods: list[Json], *objects: Json, size: int = 0) -> Adoption | Reason:
    its = group(pods[0], *objects)
    owner = next((thing for thing in objects if its.owner == ref(thing)), None)
    return spec_of(its, pods, size or len(pods), owner)


def of_job(count: int, job: Json, attempt: int = 1, **more: Any) -> list[Json]:
    return [pod(f"train-{n}", owner=job, uid=f"{attempt}-{n}", **more) for n in range(count)]


def gang(*names: str, **more: Any) -> list[Json]:
    size = str(len(names))
    return [pod(n, labels={GANG_LABEL: "g"}, annotations={GANG_SIZE_ANNOTATION: size}, **more) for n in names]


# -- the job ----------------------------------------------------------------------------------------------------------


def test_a_batch_job_is_a_gang_of_equal_pods_in_the_default_queue() -> None:
    job = batch_job("Train.v2"[0:5].lower() + ".v2", parallelism=3, completions=3)
    found = adoption(of_job(3, job, asks={"cpu": "2", "nvidia.com/gpu": "1"}), job)
    (role,) = found.spec.roles
    assert (found.spec.name, found.spec.queue, role.replicas, role.resources.gpus) == ("train-v2", "default", 3, 1)
    assert (found.adopted.owner, found.adopted.owner_uid) == ("Job/train.v2", job["metadata"]["uid"])


def test_what_is_adopted_can_be_submitted() -> None:
    job = batch_job(parallelism=2, completions=2)
    found = adoption(of_job(2, job), job)
    sent = AdoptJob(kind="adopt_job", v=1, key=found.key, spec=found.spec, adopted=found.adopted)
    assert AdoptJob.model_validate_json(sent.to_bytes(), strict=True) == sent


def test_the_project_is_the_label_of_the_pods_or_else_of_their_owner_or_slurms_mark() -> None:
    assert adoption([pod()]).spec.project == ""
    job = batch_job() | {"metadata": batch_job()["metadata"] | {"labels": {PROJECT_LABEL: "owners"}}}
    assert adoption(of_job(2, job), job).spec.project == "owners"
    wckey = {"slurmjob.slinky.slurm.net/wckey": "vlm"}
    assert adoption([pod(annotations=wckey)]).spec.project == "vlm"
    assert adoption([pod(annotations=wckey, labels={PROJECT_LABEL: "own"})]).spec.project == "own"
    found = answer([pod(annotations={"slurmjob.slinky.slurm.net/wckey": "a b"})])
    assert isinstance(found, Reason)
    assert (found.code, found.field) == (Code.INVALID_FIELD, "metadata.annotations[slurmjob.slinky.slurm.net/wckey]")


def test_the_queue_is_the_label_of_the_pods() -> None:
    assert adoption([pod(labels={QUEUE_LABEL: "research"})]).spec.queue == "research"
    found = answer([pod(labels={QUEUE_LABEL: "No.Queue"})])
    assert isinstance(found, Reason)
    assert (found.code, found.field) == (Code.INVALID_FIELD, "metadata.labels[tessera.io/queue]")


def test_replicas_that_ask_for_different_things_are_roles_under_their_owners_names() -> None:
    names = {"training.kubeflow.org/job-name": "train"}
    kind = "training.kubeflow.org/replica-type"
    training = an_object("kubeflow.org/v1", "PyTorchJob", pytorchReplicaSpecs={"Master": {}, "Worker": {"replicas": 2}})
    workers = [pod(f"w{n}", owner=training, labels={**names, kind: "worker"}, asks={"cpu": "8"}) for n in (0, 1)]
    master = pod("m", owner=training, labels={**names, kind: "master"})
    found = adoption([*workers, master], training)
    assert [(role.name, role.replicas, role.resources.cpu_milli) for role in found.spec.roles] == [
        ("master", 1, 1000),
        ("worker", 2, 8000),
    ]
    assert found.uids == ("uid-m", "uid-w0", "uid-w1")


def test_pods_without_names_for_their_parts_are_roles_by_what_they_ask_for() -> None:
    pods = gang("a", "b", asks={"cpu": "2"})
    pods[1]["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "1"
    found = adoption(pods)
    assert [(role.name, role.resources.cpu_milli) for role in found.spec.roles] == [("pods", 1000), ("pods-2", 2000)]
    assert found.uids == ("uid-b", "uid-a")


def test_the_least_priority_of_a_gang_is_the_gangs() -> None:
    low, high = gang("a", "b")
    low["spec"] |= {"priority": -5, "priorityClassName": "low"}
    high["spec"] |= {"priority": 1_000_000, "priorityClassName": "high"}
    found = adoption([high, low]).adopted
    assert (found.priority, found.priority_class) == (-5, "low")


def test_a_time_limit_and_a_grace_are_known_when_they_hold_for_all_pods() -> None:
    limited = [pod("a", activeDeadlineSeconds=60, terminationGracePeriodSeconds=9999), pod("b")]
    for each in limited:
        each["metadata"] |= gang(each["metadata"]["name"])[0]["metadata"] | {"annotations": {GANG_SIZE_ANNOTATION: "2"}}
    assert adoption(limited).spec.time_limit_seconds is None
    assert adoption(limited).spec.termination_grace_seconds == 3600
    limited[1]["spec"]["activeDeadlineSeconds"] = 90
    assert adoption(limited).spec.time_limit_seconds == 90


def test_an_owner_limits_how_often_its_pods_come_back_and_bare_pods_never_do() -> None:
    job = batch_job()
    assert adoption(of_job(1, job), job).spec.retry.on_failure
    assert not adoption([pod()]).spec.retry.on_failure
    assert adoption([pod()]).adopted.owner == "Pod/train-0"


# -- who is counted ---------------------------------------------------------------------------------------------------


def test_a_gang_that_is_not_whole_waits_and_says_how_many_are_missing() -> None:
    found = answer(gang("a", "b"), size=3)
    assert isinstance(found, Reason)
    assert (found.code, found.numbers) == (Code.GANG_INCOMPLETE, {"pods": 2, "pods_wanted": 3})


def test_of_more_pods_than_the_gang_has_the_oldest_are_taken() -> None:
    job = batch_job(parallelism=2, completions=2)
    pods = of_job(3, job)
    pods[0]["metadata"]["creationTimestamp"] = "2026-01-02T00:00:00Z"
    assert adoption(pods, job, size=2).uids == ("1-1", "1-2")


def test_two_pods_of_one_index_are_counted_once() -> None:
    job = batch_job(parallelism=2, completions=2)
    pods = [pod(name, owner=job, labels={INDEX: index}) for name, index in (("a", "0"), ("b", "0"), ("c", "1"))]
    assert adoption(pods, job, size=2).uids == ("uid-a", "uid-c")
    assert isinstance(answer(pods[:2], job, size=2), Reason)


def test_equal_indices_of_two_jobs_of_one_gang_are_two_pods() -> None:
    jobs = batch_job("x"), batch_job("y")
    labels = {GANG_LABEL: "g", INDEX: "0"}
    pods = [pod(j["metadata"]["name"], owner=j, labels=labels, annotations={GANG_SIZE_ANNOTATION: "2"}) for j in jobs]
    assert adoption(pods).uids == ("uid-x", "uid-y")


def test_ranks_follow_the_completion_index_and_not_the_name() -> None:
    job = batch_job(parallelism=11, completions=11)
    pods = [pod(f"t-{n}", owner=job, labels={INDEX: str(n)}) for n in range(11)]
    assert adoption(pods, job).uids == tuple(f"uid-t-{n}" for n in range(11))


def test_without_an_index_ranks_follow_the_number_at_the_end_of_the_name_and_else_the_name() -> None:
    names = ("master", "w-0", "w-2", "w-10", "w-11", "x-b2z", "x-c")
    assert adoption(gang(*names[::-1])).uids == tuple(f"uid-{name}" for name in names)


@pytest.mark.parametrize(
    ("what", "field"),
    [
        ({"annotations": {GANG_SIZE_ANNOTATION: "3"}}, f"metadata.annotations[{GANG_SIZE_ANNOTATION}]"),
        ({"labels": {GANG_LABEL: "g", QUEUE_LABEL: "other"}}, f"metadata.labels[{QUEUE_LABEL}]"),
        ({"labels": {GANG_LABEL: "g", PROJECT_LABEL: "vlm"}}, f"metadata.labels[{PROJECT_LABEL}]"),
    ],
    ids=["two sizes", "two queues", "two projects"],
)
def test_pods_of_one_gang_that_contradict_each_other_are_refused(what: Json, field: str) -> None:
    pods = gang("a", "b")
    pods[1]["metadata"] |= what
    found = answer(pods)
    assert isinstance(found, Reason)
    assert (found.code, found.field) == (Code.GANG_DISAGREES, field)


def test_a_refusal_of_one_pod_of_several_names_the_pod() -> None:
    pods = gang("a", "b")
    pods[1]["spec"]["preemptionPolicy"] = "Never"
    found = answer(pods)
    assert isinstance(found, Reason)
    assert (found.code, "pod b" in found.detail) == (Code.NOT_SUPPORTED_YET, True)


# -- the key ----------------------------------------------------------------------------------------------------------


def test_the_next_attempts_pods_of_an_owner_give_the_same_key() -> None:
    job = batch_job(parallelism=2, completions=2)
    assert adoption(of_job(2, job, 1), job).key == adoption(of_job(2, job, 2), job).key


def test_pods_that_ask_for_something_else_or_are_more_urgent_give_another_key() -> None:
    job = batch_job(parallelism=2, completions=2)
    keys = {
        adoption(of_job(2, job), job).key,
        adoption(of_job(2, job, asks={"cpu": "2"}), job).key,
        adoption(of_job(2, job, priority=7), job).key,
        adoption(of_job(2, job)[:1], job).key,
    }
    assert len(keys) == 4


def test_what_their_owner_still_survives_is_no_part_of_the_key() -> None:
    fresh = batch_job(backoffLimit=1, managedBy="another.io/controller")
    used_up = fresh | {"status": {"failed": 1}}
    before, after = adoption(of_job(1, fresh), fresh), adoption(of_job(1, used_up), used_up)
    assert (before.spec.preemptible, after.spec.preemptible) == (True, False)
    assert before.key == after.key


def test_a_job_made_anew_under_its_name_and_a_bare_pod_made_again_give_other_keys() -> None:
    one, anew = batch_job(), batch_job(uid="another")
    assert adoption(of_job(1, one), one).key != adoption(of_job(1, anew), anew).key
    assert adoption([pod(uid="1")]).key != adoption([pod(uid="2")]).key


def test_a_named_gang_keeps_its_key_while_owners_replace_its_pods_but_bare_pods_do_not() -> None:
    owner = an_object("apps/v1", "StatefulSet")
    assert adoption(gang("a", "b", owner=owner)).key == adoption(gang("a", "b", owner=owner, uid="new")).key
    assert adoption(gang("a", "b")).key != adoption(gang("a", "c")).key


def test_a_pod_group_gives_other_pods_another_key() -> None:
    whole = an_object("scheduling.x-k8s.io/v1alpha1", "PodGroup", "pg", uid="", minMember=1)
    first, second = (pod(name, labels={POD_GROUP_LABEL: "pg"}) for name in ("a", "b"))
    assert group(first, whole).id == group(second, whole).id
    assert adoption([first], whole).key != adoption([second], whole).key


@given(st.integers(1, 6), st.integers(0, 3), st.randoms(use_true_random=False))
def test_the_order_in_which_pods_are_seen_changes_nothing(count: int, more: int, chance: random.Random) -> None:
    job = batch_job(parallelism=count, completions=count)
    pods = of_job(count + more, job)
    for each in pods:
        each["spec"]["containers"][0]["resources"]["requests"]["cpu"] = str(chance.randint(1, 3))
    turned = list(pods)
    chance.shuffle(turned)
    one, other = adoption(pods, job, size=count), adoption(turned, job, size=count)
    assert (one, one.spec.pods()) == (other, count)
    names = [role.name for role in one.spec.roles for _ in range(role.replicas)]
    by_uid = {each["metadata"]["uid"]: each for each in pods}
    asked = {role.name: role.resources.cpu_milli for role in one.spec.roles}
    for name, uid in zip(names, one.uids, strict=True):
        said = by_uid[uid]["spec"]["containers"][0]["resources"]["requests"]["cpu"]
        assert asked[name] == int(said) * 1000
    assert job_id("main", "lab", one.key)


# -- anything at all --------------------------------------------------------------------------------------------------

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.text(max_size=6) | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
PARTS = st.sampled_from(
    [
        "containers",
        "initContainers",
        "overhead",
        "resources",
        "nodeSelector",
        "affinity",
        "tolerations",
        "priority",
        "priorityClassName",
        "terminationGracePeriodSeconds",
        "activeDeadlineSeconds",
        "topologySpreadConstraints",
        "volumes",
    ]
)
META = st.sampled_from(["labels", "annotations", "ownerReferences", "creationTimestamp"])
REFERENCES = st.lists(
    st.fixed_dictionaries(
        {"apiVersion": st.text(max_size=300), "kind": st.text(max_size=80), "name": st.text(max_size=300)},
        optional={"uid": st.text(max_size=80), "controller": st.booleans()},
    ),
    max_size=2,
)


@given(st.dictionaries(PARTS, ANYTHING), st.dictionaries(META, ANYTHING), REFERENCES)
def test_no_pod_whatever_its_shape_makes_the_question_fail(spec: Json, meta: Json, references: list[Json]) -> None:
    hostile = pod()
    hostile["spec"] |= spec
    hostile["metadata"] |= {"ownerReferences": references} | meta
    its = group(pod())
    found = spec_of(its, [hostile], 1)
    assert isinstance(found, Adoption | Reason)
    gang_of = group(gang("a")[0])
    assert isinstance(spec_of(gang_of, [hostile], 1), Adoption | Reason)


def test_pods_may_say_that_they_may_be_on_several_gpu_models() -> None:
    job = batch_job(parallelism=2, completions=2)
    plain, mixed = (
        adoption(of_job(2, job, annotations=says), job) for says in ({}, {"tessera.io/mixed-models": "true"})
    )
    assert [role.mixed_models for role in (*plain.spec.roles, *mixed.spec.roles)] == [False, True]
    assert adoption(of_job(2, job, annotations={"tessera.io/mixed-models": "false"}), job).key == plain.key
    refused = answer(of_job(2, job, annotations={"tessera.io/mixed-models": "maybe"}), job)
    assert isinstance(refused, Reason)
    assert refused.field == "metadata.annotations[tessera.io/mixed-models]"


def test_pods_with_gpus_may_have_their_nodes_to_themselves() -> None:
    whole = {"cpu": "1", "nvidia.com/gpu": "8"}
    says, job = {"tessera.io/exclusive": "true"}, batch_job(parallelism=2, completions=2)
    assert [role.exclusive for role in adoption(of_job(2, job, annotations=says, asks=whole), job).spec.roles] == [True]
    for annotations, asked in (({"tessera.io/exclusive": "yes"}, whole), (says, {"cpu": "1"})):
        refused = answer(of_job(2, job, annotations=annotations, asks=asked), job)
        assert isinstance(refused, Reason)
        assert refused.field == "metadata.annotations[tessera.io/exclusive]"


def test_pods_may_say_which_data_sets_they_read() -> None:
    job = batch_job(parallelism=2, completions=2)
    says = {"tessera.io/datasets": "corpus=500Gi, photos=20G"}
    read = adoption(of_job(2, job, annotations=says), job).spec.datasets
    assert [(each.name, each.size_bytes) for each in read] == [("corpus", 500 * 2**30), ("photos", 20 * 10**9)]
    for words in ("corpus", "corpus=much", "Corpus=1Gi", "corpus=0", "corpus=1Gi,corpus=2Gi"):
        refused = answer(of_job(2, job, annotations={"tessera.io/datasets": words}), job)
        assert isinstance(refused, Reason)
        assert refused.field.startswith("metadata.annotations[tessera.io/datasets]")


def test_pods_that_all_say_so_may_hold_gpus_and_use_none() -> None:
    says = {"tessera.io/allow-idle": "true"}
    job = batch_job(parallelism=2, completions=2)
    idle = adoption(of_job(2, job, annotations=says), job).spec.idle
    assert idle is not None
    assert idle.allow_idle
    one_of_two = [pod("train-0", owner=job, annotations=says), pod("train-1", owner=job)]
    assert adoption(one_of_two, job).spec.idle is None
    assert adoption(of_job(2, job, annotations={"tessera.io/allow-idle": "maybe"}), job).spec.idle is None
