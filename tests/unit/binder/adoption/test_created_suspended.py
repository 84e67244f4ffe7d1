"""Owners that were created suspended wait in line without pods, and are resumed once they are placed."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tessera.binder.adoption.decide.from_template import sets_of_suspended, spec_of_suspended
from tessera.binder.adoption.decide.spec import Adoption, spec_of
from tessera.binder.workloads.port import Group
from tessera.binder.workloads.references import OwnerRef
from tessera.binder.workloads.registry import group_of, size_of
from tessera_schemas.reasons import Code, Reason
from tests.unit.binder.adoption.adoption_builders import an_object, batch_job, known, pod
from tests.unit.binder.adoption.adoption_world import NS, AdoptionWorld, user_pod
from tests.unit.binder.adoption.adoption_world import batch_job as job_of_world

Json = dict[str, Any]
OURS = {"spec": {"schedulerName": "tessera", "containers": [{"resources": {"requests": {"cpu": "2"}}}]}}
THEIRS = {"spec": OURS["spec"] | {"schedulerName": "default-scheduler"}}


def job_set(**more: Any) -> Json:
    jobs = {"parallelism": 2, "completions": 2, "template": OURS}
    parts = [{"name": "workers", "replicas": 2, "template": {"spec": jobs}}]
    return an_object("jobset.x-k8s.io/v1alpha2", "JobSet", **({"suspend": True, "replicatedJobs": parts} | more))


def ray_cluster(**more: Any) -> Json:
    workers = {"groupName": "small", "replicas": 2, "minReplicas": 1, "maxReplicas": 4, "template": OURS}
    spec = {"headGroupSpec": {"template": OURS}, "workerGroupSpecs": [workers], "suspend": True}
    return an_object("ray.io/v1", "RayCluster", **(spec | more))


def ray_job(**more: Any) -> Json:
    spec = {"rayClusterSpec": ray_cluster(suspend=False)["spec"], "suspend": True, "shutdownAfterJobFinishes": True}
    return an_object("ray.io/v1", "RayJob", **(spec | more))


def pytorch_job(**more: Any) -> Json:
    replicas = {"Master": {"template": OURS}, "Worker": {"replicas": 2, "template": OURS}}
    return an_object("kubeflow.org/v1", "PyTorchJob", pytorchReplicaSpecs=replicas, runPolicy={"suspend": True}, **more)


def pods_of_job_set(owner: Json) -> tuple[list[Json], list[Json]]:
    jobs = [batch_job(f"train-workers-{n}", owner=owner, parallelism=2, completions=2) for n in range(2)]
    labels = {"jobset.sigs.k8s.io/replicatedjob-name": "workers"}
    made = [
        pod(
            f"train-workers-{n}-{i}",
            owner=jobs[n],
            asks={"cpu": "2"},
            labels=labels
            | {"jobset.sigs.k8s.io/job-index": str(n), "batch.kubernetes.io/job-completion-index": str(i)},
        )
        for n in range(2)
        for i in range(2)
    ]
    return made, jobs


def pods_of_ray(owner: Json) -> tuple[list[Json], list[Json]]:
    groups = ("headgroup", "small", "small")
    labels = {"ray.io/cluster": "train"}
    made = [
        pod(f"train-{n}", owner=owner, asks={"cpu": "2"}, labels=labels | {"ray.io/group": name})
        for n, name in enumerate(groups)
    ]
    return made, [owner | {"metadata": owner["metadata"]}]


def pods_of_ray_job(owner: Json) -> tuple[list[Json], list[Json]]:
    """Of the cluster that its operator makes of it, under another name with each resumption."""
    cluster = an_object(
        "ray.io/v1", "RayCluster", "train-x7f2q", owner=owner, **owner["spec"].get("rayClusterSpec", {})
    )
    made, _ = pods_of_ray(cluster)
    for one in made:
        one["metadata"]["labels"]["ray.io/cluster"] = "train-x7f2q"
    return made, [cluster]


def pods_of_training(owner: Json) -> tuple[list[Json], list[Json]]:
    labels = {"training.kubeflow.org/job-name": "train"}
    made = [
        pod(
            f"train-{kind}-{n}",
            owner=owner,
            asks={"cpu": "2"},
            labels=labels | {"training.kubeflow.org/replica-type": kind, "training.kubeflow.org/replica-index": str(n)},
        )
        for kind, n in (("master", 0), ("worker", 0), ("worker", 1))
    ]
    return made, []


KINDS = {
    "JobSet": (job_set, pods_of_job_set, 4),
    "RayCluster": (ray_cluster, pods_of_ray, 3),
    "RayJob": (ray_job, pods_of_ray_job, 3),
    "PyTorchJob": (pytorch_job, pods_of_training, 3),
}


def found_of(owner: Json) -> Adoption | Reason | None:
    sets = sets_of_suspended(owner)
    return sets if sets is None or isinstance(sets, Reason) else spec_of_suspended(owner, sets, ())


@pytest.mark.parametrize("kind", KINDS)
def test_a_suspended_owner_is_the_job_that_its_pods_will_be(kind: str) -> None:
    make, pods_of, count = KINDS[kind]
    owner = make()
    found = found_of(owner)
    assert isinstance(found, Adoption), found
    pods, between = pods_of(owner)
    its = group_of(pods[0], {**known(owner, *between), **clusters_by_name(between)})
    assert isinstance(its, Group), its
    size = size_of(its, owner, pods)
    assert size == count
    later = spec_of(its, pods, count, owner)
    assert isinstance(later, Adoption), later
    assert (found.key, found.spec, found.group.id) == (later.key, later.spec, later.group.id)
    assert (found.uids, found.adopted.suspended) == ((), True)
    assert found.adopted.owner_uid == later.adopted.owner_uid


def clusters_by_name(between: list[Json]) -> dict[OwnerRef, Json]:
    """RayClusters, which pods name by a label alone."""
    found = [one for one in between if one["kind"] == "RayCluster"]
    return {OwnerRef("ray.io/v1", "RayCluster", "lab", one["metadata"]["name"]): one for one in found}


@pytest.mark.parametrize(
    "spec",
    [
        {"shutdownAfterJobFinishes": False},
        {"clusterSelector": {"ray.io/cluster": "train-x7f2q"}},
        {"submissionMode": "InteractiveMode"},
    ],
    ids=["keeps its cluster", "of another's cluster", "waits for its user's job"],
)
def test_the_cluster_of_a_ray_job_that_its_operator_does_not_suspend_is_a_gang_of_its_own(spec: Json) -> None:
    owner = ray_job(suspend=False, **spec)
    pods, between = pods_of_ray_job(owner)
    its = group_of(pods[0], {**known(owner, *between), **clusters_by_name(between)})
    assert isinstance(its, Group), its
    assert its.id.startswith("ray.io/RayCluster/")


@pytest.mark.parametrize(
    ("owner", "field"),
    [
        (job_set(startupPolicy={"startupPolicyOrder": "InOrder"}), "spec.startupPolicy"),
        (ray_cluster(enableInTreeAutoscaling=True), "spec.enableInTreeAutoscaling"),
        (ray_cluster(headGroupSpec={"template": THEIRS}), "schedulerName"),
        (pytorch_job(launcherCreationPolicy="WaitForWorkersReady"), "spec.launcherCreationPolicy"),
        (ray_job(submissionMode="SidecarMode"), "spec.submissionMode"),
        (ray_job(shutdownAfterJobFinishes=False), "spec.shutdownAfterJobFinishes"),
    ],
    ids=[
        "Jobs one after the other",
        "an autoscaler's container",
        "two schedulers",
        "a launcher that comes last",
        "a submitter in the head",
        "a cluster that is kept",
    ],
)
def test_what_its_templates_do_not_say_is_refused_by_the_field(owner: Json, field: str) -> None:
    found = found_of(owner)
    assert isinstance(found, Reason)
    assert (found.code, found.field) == (Code.NOT_SUPPORTED_YET, field)


def test_owners_of_other_schedulers_and_those_that_go_on_are_not_taken() -> None:
    assert found_of(ray_cluster(headGroupSpec={"template": THEIRS}, workerGroupSpecs=[])) is None
    assert found_of(job_set(suspend=False)) is None


@pytest_asyncio.fixture
async def world() -> AsyncIterator[AdoptionWorld]:
    async with AdoptionWorld() as world:
        yield world


def make_suspended_set(world: AdoptionWorld) -> None:
    template = job_of_world(pods=2, gpus=2)["spec"]
    parts = [{"name": "workers", "replicas": 2, "template": {"spec": template}}]
    world.core.create(
        "jobsets", NS, {"metadata": {"name": "train"}, "spec": {"suspend": True, "replicatedJobs": parts}}
    )


def set_of(world: AdoptionWorld) -> Json:
    return world.core.get("jobsets", NS, "train").object


def make_its_jobs(world: AdoptionWorld, gpus: int = 2) -> None:
    """As the JobSet's controller does once it is resumed, whatever a webhook makes of the pods meanwhile."""
    meta = set_of(world)["metadata"]
    owner = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "train", "controller": True}
    for number in range(2):
        job = job_of_world(f"train-workers-{number}", pods=2, gpus=gpus)
        job["metadata"]["ownerReferences"] = [owner | {"uid": meta["uid"]}]
        labels = {"replicatedjob-name": "workers", "job-index": str(number)}
        job["spec"]["template"]["metadata"]["labels"] |= {
            f"jobset.sigs.k8s.io/{key}": value for key, value in labels.items()
        }
        job["spec"]["completionMode"] = "Indexed"
        world.core.create("jobs", NS, job)


async def test_a_job_set_created_suspended_waits_without_pods_and_is_resumed_once_placed(world: AdoptionWorld) -> None:
    world.core.create("pods", NS, user_pod("holds", gpus=8, seconds=20))
    await world.run(5)
    make_suspended_set(world)
    await world.run(5)
    assert (world.only().phase, world.only().pods, world.owned("train")) == ("queued", 4, [])
    assert set_of(world)["spec"]["suspend"] is True
    said = next(one for one in set_of(world)["status"]["conditions"] if one["type"] == "tessera.io/Placed")
    assert (said["status"], said["reason"]) == ("False", "NoFit")
    await world.run(20)
    assert set_of(world)["spec"]["suspend"] is False
    make_its_jobs(world)
    await world.run(10)
    assert world.only().phase == "running"
    assert len([one for one in world.owned("train") if one["spec"].get("nodeName")]) == 4


async def test_pods_that_ask_for_something_else_than_was_placed_are_not_bound_for_it(world: AdoptionWorld) -> None:
    make_suspended_set(world)
    await world.run(5)
    assert set_of(world)["spec"]["suspend"] is False
    make_its_jobs(world, gpus=1)
    await world.run(10)
    assert world.only().phase == "running"
    assert [run.amount.gpu_milli for run in world.state.runs.values()] == [4000]  # placed anew, for what they ask


async def test_a_job_set_that_is_deleted_while_it_waits_leaves_the_line(world: AdoptionWorld) -> None:
    world.core.create("pods", NS, user_pod("holds", gpus=8, seconds=600))
    make_suspended_set(world)
    await world.run(10)
    assert world.only().phase == "queued"
    world.core.delete("jobsets", NS, "train")
    await world.run(40)
    assert world.adopted() == []


async def test_a_binder_that_finds_a_suspended_job_in_its_first_list_resumes_it(world: AdoptionWorld) -> None:
    world.core.create("pods", NS, user_pod("holds", gpus=8, seconds=20))
    await world.run(5)
    world.make_job(gpus=8, suspend=True, seconds=600)
    await world.run(5)
    await world.stop("binder")
    world.start_binder()
    await world.run(40)
    assert world.job_object()["spec"]["suspend"] is False
    assert world.only().phase == "running"


async def test_what_a_waiting_owner_amounts_to_is_read_once_however_often_it_is_looked_at(
    world: AdoptionWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Json] = []

    def counted(owner: Json, sets: Any, classes: Any) -> Any:
        read.append(owner)
        return spec_of_suspended(owner, sets, classes)

    monkeypatch.setattr("tessera.binder.adoption.owners.suspended.spec_of_suspended", counted)
    world.core.create("pods", NS, user_pod("holds", gpus=8, seconds=3600))
    await world.run(5)
    world.make_job(gpus=8, suspend=True)
    await world.run(10)
    before = len(read)
    await world.run(300, turn=2.0)
    assert world.only().phase == "queued"
    written = world.job_object()["metadata"]["resourceVersion"]
    assert written != read[-1]["metadata"]["resourceVersion"], "its condition was renewed"
    assert len(read) == before
    world.core.patch("jobs", NS, "train", {"metadata": {"annotations": {"tessera.io/checkpoint-seconds": "600"}}})
    await world.run(10)
    assert len(read) == before + 1, "what it asks for has changed"


async def test_a_suspended_owner_is_told_which_of_its_wishes_are_not_honoured(world: AdoptionWorld) -> None:
    spread = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
    world.core.create("jobs", NS, job_of_world(suspend=True, topologySpreadConstraints=[spread]))
    await world.run(20)
    (event,) = [event for event in world.events() if event["reason"] == "NotHonoured"]
    assert "spec.topologySpreadConstraints[0]" in event["message"]
    assert event["involvedObject"]["kind"] == "Job"
