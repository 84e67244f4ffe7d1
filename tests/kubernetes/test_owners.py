"""
What a Job says of itself in its own status, on a real API server beside its Job controller, which writes there too.
"""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.e2e.live import configuration
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.live import KubernetesLive, live_on
from tests.kubernetes.users import Users, condition
from tests.kubernetes.users_objects import batch_job

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]

Json = dict[str, Any]
SETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/lab/jobsets"
JOB_SETS: Json = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "jobsets.jobset.x-k8s.io", "annotations": {"api-approved.kubernetes.io": "unapproved"}},
    "spec": {
        "group": "jobset.x-k8s.io",
        "scope": "Namespaced",
        "names": {"plural": "jobsets", "singular": "jobset", "kind": "JobSet"},
        "versions": [
            {
                "name": "v1alpha2",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(own_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[KubernetesLive]:
    own_plane.add_nodes(1, "gpu", gpus=8, cpu="16")
    own_plane.api().create(JOB_SETS)
    async with live_on(own_plane, tmp_path_factory.mktemp("platform"), configuration()) as live:
        yield live


@pytest.fixture
def users(live: KubernetesLive) -> Users:
    return Users(live)


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
