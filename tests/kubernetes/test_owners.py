"""
What a Job says of itself in its own status, on a real API server beside its Job controller, which writes there too.
"""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.live import KubernetesLive
from tests.kubernetes.users import Users, condition, live_with_priorities, uids
from tests.kubernetes.users_objects import batch_job, pod

pytestmark = pytest.mark.asyncio(loop_scope="module")

Json = dict[str, Any]
SETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/lab/jobsets"


def definition(group: str, version: str, kind: str) -> Json:
    """A kind that the API server takes as it is."""
    plural = f"{kind.lower()}s"
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    served = {"name": version, "served": True, "storage": True, "subresources": {"status": {}}, "schema": schema}
    names = {"plural": plural, "singular": kind.lower(), "kind": kind}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}", "annotations": {"api-approved.kubernetes.io": "unapproved"}},
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [served]},
    }


KINDS = [
    definition("jobset.x-k8s.io", "v1alpha2", "JobSet"),
    definition("kubeflow.org", "v1", "PyTorchJob"),
    definition("ray.io", "v1", "RayCluster"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(own_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[KubernetesLive]:
    own_plane.add_nodes(1, "gpu", gpus=8, cpu="16")
    for kind in KINDS:
        own_plane.api().create(kind)
    async with live_with_priorities(own_plane, tmp_path_factory.mktemp("platform")) as live:
        yield live


def placed(users: Users, name: str) -> Json:
    return condition(users.job(name), "tessera.io/Placed", "True", "False")


async def test_a_job_that_waits_says_why_and_later_that_it_is_placed_beside_what_its_controller_says(
    users: Users,
) -> None:
    users.create(batch_job("first", gpus=8, seconds=3600))
    await users.until_running("first")
    users.create(batch_job("second", gpus=8, seconds=2))
    await users.until(lambda: placed(users, "second").get("status") == "False", "the waiting Job says why")
    said = placed(users, "second")
    assert (said["reason"], "place 1 in the line" in said["message"]) == ("NoFit", True)
    assert placed(users, "first") == {}, "what started at once was told nothing"
    users.delete("job", "first")
    await users.until_complete("second")
    assert placed(users, "second").get("status") in ("True", "False")
    await users.until(lambda: placed(users, "second").get("status") == "True", "it says that it was placed")
    assert condition(users.job("second"), "Complete")
    users.delete("job", "second")


async def test_a_refused_job_names_the_reason_and_a_suspended_one_says_why_it_waits(users: Users) -> None:
    users.create(batch_job("holds", gpus=8, seconds=3600))
    await users.until_running("holds")
    users.create(batch_job("wrong", labels={"tessera.io/queue": "nowhere"}))
    users.create(batch_job("parked", 2, gpus=4, seconds=1, suspend=True))
    await users.until(lambda: placed(users, "wrong"), "the refused Job says so")
    assert placed(users, "wrong")["reason"] == "NoSuchQueue"
    await users.until(lambda: placed(users, "parked"), "the suspended Job says why it waits")
    assert condition(users.job("parked"), "Suspended"), "what its controller says is still there"
    shown = users.kubectl("get", "job", "parked", "-n", users.namespace, "-o", "jsonpath={.status.conditions[*].type}")
    assert set(shown.split()) == {"Suspended", "tessera.io/Placed"}
    users.delete("job", "holds")
    await users.until_complete("parked")
    for name in ("wrong", "parked"):
        users.delete("job", name)


# -- a kind that the API server knows by its definition alone: the test is its controller ------------------------------


def job_set(name: str, replicas: int, **more: Any) -> Json:
    template = {"spec": batch_job(name, **more)["spec"]}
    spec = {"suspend": True, "replicatedJobs": [{"name": "workers", "replicas": replicas, "template": template}]}
    return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": name}, "spec": spec}


def make_its_jobs(users: Users, owner: Json, **more: Any) -> None:
    """As JobSet's controller does once the set is resumed."""
    meta = owner["metadata"]
    ref = {key: owner[key] for key in ("apiVersion", "kind")} | {"name": meta["name"], "uid": meta["uid"]}
    for number in range(owner["spec"]["replicatedJobs"][0]["replicas"]):
        job = batch_job(f"{meta['name']}-workers-{number}", **more)
        job["metadata"]["ownerReferences"] = [ref | {"controller": True}]
        labels = {"replicatedjob-name": "workers", "job-index": str(number)}
        made = {f"jobset.sigs.k8s.io/{key}": value for key, value in labels.items()}
        job["spec"]["template"]["metadata"]["labels"] |= made
        users.create(job)


async def test_a_job_set_created_suspended_waits_without_pods_and_is_resumed_as_a_gang(users: Users) -> None:
    users.create(batch_job("holds", gpus=8, seconds=3600))
    await users.until_running("holds")
    users.create(job_set("set", 2, gpus=4, seconds=3600))

    def found() -> Json:
        return users.api.get(f"{SETS}/set")

    def said() -> Json:
        return condition(found(), "tessera.io/Placed", "True", "False")

    await users.until(said, "the set says why it waits")
    assert (said()["reason"], found()["spec"]["suspend"]) == ("NoFit", True)
    assert "place 1 in the line" in said()["message"]
    users.delete("job", "holds")
    await users.until(lambda: found()["spec"]["suspend"] is False, "it is resumed once there is room")
    make_its_jobs(users, found(), gpus=4, seconds=3600)
    for number in range(2):
        await users.until_running(f"set-workers-{number}")
    await users.until(lambda: said()["status"] == "True", "it says that its pods are placed")
    users.api.delete(f"{SETS}/set", propagationPolicy="Background")
    for number in range(2):
        users.delete("job", f"set-workers-{number}")


TEMPLATE = {key: value for key, value in pod("", gpus=4, seconds=3600).items() if key in ("metadata", "spec")}
WORKER = {"training.kubeflow.org/replica-type": "worker"}
OWNERS: dict[str, tuple[str, tuple[str, ...], Json, list[Json]]] = {
    "PyTorchJob": (
        "/apis/kubeflow.org/v1/namespaces/lab/pytorchjobs",
        ("runPolicy", "suspend"),
        {"pytorchReplicaSpecs": {"Worker": {"replicas": 2, "restartPolicy": "OnFailure", "template": TEMPLATE}}},
        [
            {"training.kubeflow.org/job-name": "owner", **WORKER, "training.kubeflow.org/replica-index": str(number)}
            for number in range(2)
        ],
    ),
    "RayCluster": (
        "/apis/ray.io/v1/namespaces/lab/rayclusters",
        ("suspend",),
        {
            "headGroupSpec": {"template": TEMPLATE},
            "workerGroupSpecs": [{"groupName": "workers", "replicas": 1, "maxReplicas": 1, "template": TEMPLATE}],
        },
        [{"ray.io/cluster": "owner", "ray.io/group": group} for group in ("headgroup", "workers")],
    ),
}
"""By kind: where its objects are, the field that suspends one, its spec, and the labels of each of its pods."""


def make_its_pods(users: Users, owner: Json, labels: list[Json]) -> None:
    """As the kind's controller does while the object is not suspended."""
    ref = {key: owner[key] for key in ("apiVersion", "kind")} | {"name": "owner", "uid": owner["metadata"]["uid"]}
    for number, of_one in enumerate(labels):
        made = pod(f"owner-{number}", gpus=4, seconds=3600, labels=of_one)
        made["metadata"]["ownerReferences"] = [ref | {"controller": True}]
        users.create(made)


@pytest.mark.parametrize("kind", OWNERS)
async def test_an_owner_that_can_be_suspended_is_for_a_job_of_a_higher_class_and_resumed_after_it(
    users: Users, kind: str
) -> None:
    path, at, spec, labels = OWNERS[kind]
    version = "/".join(path.split("/")[2:4])
    owner = users.create({"apiVersion": version, "kind": kind, "metadata": {"name": "owner"}, "spec": spec})

    def is_suspended() -> object:
        found = users.api.get(f"{path}/owner")["spec"]
        for part in at:
            found = found.get(part, {})
        return found

    make_its_pods(users, owner, labels)
    for number in range(2):
        await users.until_phase(f"owner-{number}", "Running")
    users.create(batch_job("urgent", gpus=8, seconds=2, template={"priorityClassName": "high"}))
    await users.until(lambda: is_suspended() is True, "it is suspended")
    users.delete_pods("owner-0", "owner-1")
    await users.until_complete("urgent")
    await users.until(lambda: is_suspended() is False, "it is resumed")
    await users.until(lambda: users.pod("owner-0") is None and users.pod("owner-1") is None, "its first pods are gone")
    make_its_pods(users, owner, labels)
    for number in range(2):
        await users.until_phase(f"owner-{number}", "Running")
    users.api.delete(f"{path}/owner", propagationPolicy="Background")
    users.delete("job", "urgent")
    await users.until(lambda: users.pod("owner-0") is None and users.pod("owner-1") is None, "its pods go with it")


# -- owners that scale while their pods run ----------------------------------------------------------------------------


async def test_an_elastic_job_grows_and_shrinks_while_its_first_pods_run(users: Users) -> None:
    path = "/apis/batch/v1/namespaces/lab/jobs/elastic"
    users.create(batch_job("elastic", 4, gpus=2, seconds=3600, completionMode="Indexed"))
    await users.until(lambda: len(users.in_phase("elastic", "Running")) == 4, "all four run")
    first = uids(users.pods("elastic"))
    users.api.patch(path, {"spec": {"parallelism": 2, "completions": 2}})
    users.create(batch_job("fits", gpus=4, seconds=1))
    await users.until_complete("fits")
    staying = uids(users.in_phase("elastic", "Running"))
    assert len(staying) == 2, "those that stay go on, and the others gave their GPUs back"
    assert staying < first
    users.api.patch(path, {"spec": {"parallelism": 4, "completions": 4}})
    await users.until(lambda: len(users.in_phase("elastic", "Running")) == 4, "the new ones run beside them")
    assert staying < uids(users.in_phase("elastic", "Running"))
    users.delete("job", "elastic")
    users.delete("job", "fits")


async def test_an_idle_worker_that_rays_autoscaler_takes_away_stops_no_other(users: Users) -> None:
    path, template = "/apis/ray.io/v1/namespaces/lab/rayclusters", TEMPLATE
    group = {"groupName": "workers", "replicas": 3, "minReplicas": 1, "maxReplicas": 4, "template": template}
    spec = {"enableInTreeAutoscaling": True, "headGroupSpec": {"template": template}, "workerGroupSpecs": [group]}
    cluster = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "owner"}, "spec": spec}
    owner = users.create(cluster)
    ref = {key: owner[key] for key in ("apiVersion", "kind")} | {"name": "owner", "uid": owner["metadata"]["uid"]}
    names = [f"owner-{number}" for number in range(4)]
    for name in names:
        part = "headgroup" if name == "owner-0" else "workers"
        made = pod(name, gpus=2, seconds=3600, labels={"ray.io/cluster": "owner", "ray.io/group": part})
        made["metadata"]["ownerReferences"] = [ref | {"controller": True}]
        users.create(made)
    for name in names:
        await users.until_phase(name, "Running")
    users.api.patch(f"{path}/owner", {"spec": {"workerGroupSpecs": [group | {"replicas": 2}]}})
    users.delete_pods("owner-1")
    users.create(batch_job("fits", gpus=2, seconds=1))
    await users.until_complete("fits")
    for name in ("owner-0", "owner-2", "owner-3"):
        await users.until_phase(name, "Running")
    users.api.delete(f"{path}/owner", propagationPolicy="Background")
    users.delete("job", "fits")
