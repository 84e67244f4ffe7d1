"""Owners that can be suspended are stopped so, and resumed: no failure is counted, nobody waits for a back-off."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tessera.binder.adoption.decide.suspending import Suspender, can_be_suspended, is_suspended, look_at, suspension
from tessera.domain.queues import queue_tree
from tessera.domain.quota.queue_settings import suspends_waiting
from tessera_schemas.cluster.labels import SUSPEND_WAITING_ANNOTATION, SUSPENDED_ANNOTATION
from tessera_schemas.config import Config, Queue
from tessera_schemas.work.adopted import Adopted
from tests.builders import config_body
from tests.unit.binder.adoption.adoption_world import NS, AdoptionWorld, batch_job, user_pod


@pytest.fixture
async def world() -> AsyncIterator[AdoptionWorld]:
    async with AdoptionWorld() as world:
        yield world


def mark(world: AdoptionWorld) -> str:
    return str((world.job_object()["metadata"].get("annotations") or {}).get(SUSPENDED_ANNOTATION, ""))


async def drained(world: AdoptionWorld) -> None:
    """A gang of four runs, and its node is emptied."""
    world.make_job(pods=4, gpus=2, seconds=60, backoffLimit=4)
    await world.run(10)
    await world.drain("node-a")


async def until(world: AdoptionWorld, phase: str) -> None:
    for _ in range(40):
        await world.run(0.25)
        if world.adopted() and world.only().phase == phase:
            return
    raise AssertionError(world.adopted())


async def test_a_job_is_stopped_by_suspending_it_and_comes_back_without_a_failure(world: AdoptionWorld) -> None:
    await drained(world)
    await world.run(40)
    assert (world.job_object()["spec"]["suspend"], mark(world)) == (True, "true")
    assert world.owned() == []
    job = world.only()
    assert (job.phase, job.away, job.strikes) == ("queued", False, 0), "it is in line without a pod"
    await world.drain("node-a", undo=True)
    await world.run(10)
    assert (world.job_object()["spec"]["suspend"], mark(world)) == (False, "false")
    assert (world.only().phase, world.only().attempt) == ("running", 2)
    assert world.job_object()["status"]["failed"] == 0
    await world.run(70)
    assert [job.phase for job in world.ended()] == ["succeeded"]


async def test_a_job_that_its_user_suspends_stays_suspended(world: AdoptionWorld) -> None:
    world.make_job(pods=2)
    await world.run(10)
    world.core.patch("jobs", NS, "train", {"spec": {"suspend": True}})
    await world.run(1200, turn=2.0)
    assert (world.job_object()["spec"]["suspend"], mark(world)) == (True, "")
    assert (world.only().phase, world.only().away) == ("queued", True)
    assert "SuspendedByUser" in {event["reason"] for event in world.events()}
    world.core.patch("jobs", NS, "train", {"spec": {"suspend": False}})
    await world.run(10)
    assert (world.only().phase, world.only().attempt) == ("running", 2)


async def test_a_job_that_we_resumed_and_its_user_suspends_stays_suspended(world: AdoptionWorld) -> None:
    await drained(world)
    await world.run(40)
    await world.drain("node-a", undo=True)
    await world.run(10)
    world.core.patch("jobs", NS, "train", {"spec": {"suspend": True}})
    await world.run(60)
    assert world.job_object()["spec"]["suspend"] is True
    assert world.only().away


async def test_without_the_right_to_suspend_pods_are_evicted(world: AdoptionWorld) -> None:
    world.make_job(pods=1)
    await world.run(10)
    watch = world.core.open_watch("pods", world.core.resource_version)
    world.core.faults.answer("patch", 403, count=1)
    await world.drain("node-a")
    await world.run(40)
    assert any(b"EvictionByEvictionAPI" in json for _, json in watch.take())
    assert "suspend" not in world.job_object()["spec"]


async def test_a_job_that_kueue_looks_after_is_not_suspended(world: AdoptionWorld) -> None:
    world.make_job(pods=1)
    world.core.patch("jobs", NS, "train", {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "team"}}})
    await world.run(10)
    await world.drain("node-a")
    await world.run(40)
    assert "suspend" not in world.job_object()["spec"]


async def test_a_binder_that_dies_after_the_suspension_is_followed_by_one_that_knows_it(world: AdoptionWorld) -> None:
    await drained(world)
    await world.run(2)
    assert world.job_object()["spec"]["suspend"] is True
    await world.stop("binder")
    await world.run(40)
    world.start_binder()
    await world.drain("node-a", undo=True)
    await world.run(30)
    assert (world.only().phase, world.only().attempt) == ("running", 2)


@pytest.mark.parametrize(
    ("api_version", "kind", "path"),
    [
        ("batch/v1", "Job", ("spec",)),
        ("jobset.x-k8s.io/v1alpha2", "JobSet", ("spec",)),
        ("ray.io/v1", "RayCluster", ("spec",)),
        ("kubeflow.org/v1", "PyTorchJob", ("spec", "runPolicy")),
    ],
)
def test_where_each_kind_says_that_it_is_suspended(api_version: str, kind: str, path: tuple[str, ...]) -> None:
    meta = {"name": "a", "uid": "u", "resourceVersion": "7"}
    owner: dict[str, Any] = {"apiVersion": api_version, "kind": kind, "metadata": meta}
    patch = suspension(owner, True)
    assert patch["metadata"] == {"uid": "u", "resourceVersion": "7", "annotations": {SUSPENDED_ANNOTATION: "true"}}
    inner = patch
    for name in path:
        inner = inner[name]
    assert inner == {"suspend": True}
    assert is_suspended(owner | {"spec": patch["spec"]})
    assert not is_suspended(owner)
    group = f"{api_version.partition('/')[0]}/{kind}/lab/u"
    adopted = Adopted(api_version=api_version, owner_kind=kind, owner_name="a", owner_uid="u", group=group)
    assert can_be_suspended(adopted)
    assert not can_be_suspended(adopted.model_copy(update={"group": "gang/lab/pair"})), "others' pods may be in it"


def job_object(suspend: bool = False, **meta: Any) -> dict[str, Any]:
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": {"suspend": suspend}}


def made_by(api_version: str, kind: str) -> dict[str, Any]:
    ref = {"apiVersion": api_version, "kind": kind, "name": "a", "uid": "u", "controller": True}
    return job_object(ownerReferences=[ref])


def notes(suspended: str = "", waiting: str = "") -> dict[str, str]:
    said = {SUSPENDED_ANNOTATION: suspended, SUSPEND_WAITING_ANNOTATION: waiting}
    return {name: value for name, value in said.items() if value}


KUEUES = {"kueue.x-k8s.io/queue-name": "team"}


@pytest.mark.parametrize(
    ("owner", "whose"),
    [
        (job_object(), Suspender.TESSERA),
        (made_by("batch/v1", "CronJob"), Suspender.TESSERA),
        (made_by("jobset.x-k8s.io/v1alpha2", "JobSet"), Suspender.ANOTHER),
        (job_object() | {"spec": {"managedBy": "kueue.x-k8s.io/multikueue"}}, Suspender.ANOTHER),
        (job_object(labels=KUEUES), Suspender.ANOTHER),
        (job_object(labels=KUEUES, annotations=notes(waiting="true")), Suspender.TESSERA),
        (job_object(deletionTimestamp="now"), Suspender.ANOTHER),
        (job_object() | {"status": {"conditions": [{"type": "Failed", "status": "True"}]}}, Suspender.ANOTHER),
    ],
    ids=["by hand", "by a CronJob", "by a JobSet", "managed", "Kueue's", "Kueue's and it says so", "deleted", "over"],
)
def test_what_something_else_looks_after_is_not_ours_to_suspend(owner: dict[str, Any], whose: Suspender) -> None:
    assert look_at(owner, began_suspended=False, by_queue=None).suspender is whose


@pytest.mark.parametrize(
    ("mark", "wish", "began_suspended", "whose"),
    [
        ("", "", True, Suspender.TESSERA),
        ("", "", False, Suspender.USER),
        ("true", "", False, Suspender.TESSERA),
        ("false", "", True, Suspender.USER),
        ("", "false", True, Suspender.USER),
        ("true", "false", False, Suspender.TESSERA),
    ],
    ids=["submitted so", "suspended later", "we did", "we resumed it before", "its user resumes it", "preempted"],
)
def test_one_look_at_a_suspended_owner_says_who_resumes_it(
    mark: str, wish: str, began_suspended: bool, whose: Suspender
) -> None:
    look = look_at(job_object(True, annotations=notes(mark, wish)), began_suspended, by_queue=True)
    assert look.suspender is whose
    assert (look.waits_for_us, look.is_left_alone) == (whose is Suspender.TESSERA, whose is not Suspender.TESSERA)
    assert not look.waits_suspended


@pytest.mark.parametrize("by_queue", [None, False, True])
@pytest.mark.parametrize("wish", ["", "true", "false", "what?"])
@pytest.mark.parametrize("mark", ["", "true", "false"])
def test_an_owner_waits_suspended_by_its_annotation_or_queue_unless_a_user_resumed_it(
    by_queue: bool | None, wish: str, mark: str
) -> None:
    look = look_at(job_object(annotations=notes(mark, wish)), False, by_queue)
    said = by_queue if wish not in ("true", "false") else wish == "true"
    assert look.waits_suspended == (bool(said) and mark != "true")


RESUMED = [("false", None, True), ("", None, False), ("false", False, False)]


@pytest.mark.parametrize(("mark", "by_queue", "waits"), RESUMED)
def test_owners_submitted_suspended_wait_so_again_unless_user_or_queue_wants_pods(
    mark: str, by_queue: bool | None, waits: bool
) -> None:
    assert look_at(job_object(annotations=notes(mark)), True, by_queue).waits_suspended is waits


def test_the_lowest_queue_that_says_whether_owners_wait_suspended_counts() -> None:
    queues = (
        Queue(name="top", suspend_waiting=True),
        Queue(name="left", parent="top"),
        Queue(name="right", parent="top", suspend_waiting=False),
    )
    tree = queue_tree(Config(version=1, body=config_body(*queues)))
    assert [suspends_waiting(tree, name) for name in ("left", "right", "gone")] == [True, False, None]


# -- waiting without pods, by policy ----------------------------------------------------------------------------------


async def full_cluster(world: AdoptionWorld) -> None:
    """Owners of the queue wait suspended, and its eight GPUs are taken for a minute."""
    await world.configure(Queue(name="research", suspend_waiting=True))
    world.make_job("full", pods=1, gpus=8, seconds=60)
    await world.run(5)


async def test_what_finds_room_is_never_suspended_and_what_waits_has_no_pods_meanwhile(world: AdoptionWorld) -> None:
    await full_cluster(world)
    assert (world.only("full").phase, world.job_object("full")["metadata"].get("annotations")) == ("running", None)
    world.make_job(pods=2, gpus=4, seconds=10, backoffLimit=0)
    await world.run(20)
    assert (world.job_object()["spec"]["suspend"], mark(world), world.owned()) == (True, "true", [])
    job = world.only()
    assert (job.phase, job.away, job.adopted and job.adopted.uids) == ("queued", False, ())
    (told,) = [event for event in world.events() if event["reason"] == "WaitsSuspended"]
    assert "NoFit" in told["message"] or "no node" in told["message"], told["message"]
    await world.run(50)
    assert (world.job_object()["spec"]["suspend"], mark(world)) == (False, "false")
    await world.run(15)
    assert [(job.phase, job.attempt) for job in world.ended()] == [("succeeded", 1)]


async def test_a_job_that_its_user_resumes_while_it_waits_keeps_its_pods(world: AdoptionWorld) -> None:
    await full_cluster(world)
    world.make_job(pods=1)
    await world.run(20)
    assert world.owned() == []
    world.core.patch("jobs", NS, "train", {"spec": {"suspend": False}})
    await world.run(30)
    assert (world.job_object()["spec"]["suspend"], len(world.owned())) == (False, 1)
    assert world.only().phase == "queued"


async def test_owners_that_may_not_be_suspended_wait_with_pods_and_are_tried_only_seldom(
    world: AdoptionWorld,
) -> None:
    await full_cluster(world)
    world.core.faults.answer("patch", 403, count=1)
    world.make_job(pods=1)
    await world.run(40)
    assert (len(world.owned()), world.job_object()["spec"].get("suspend", False)) == (1, False)
    assert world.condition(world.owned()[0])["reason"] == "NoFit"


async def test_a_job_says_for_itself_that_it_waits_with_pods(world: AdoptionWorld) -> None:
    await full_cluster(world)
    made = batch_job("train")
    made["metadata"]["annotations"] = {SUSPEND_WAITING_ANNOTATION: "false"}
    world.core.create("jobs", NS, made)
    await world.run(30)
    assert len(world.owned()) == 1


async def test_one_that_is_submitted_suspended_and_whose_user_resumes_it_is_not_submitted(
    world: AdoptionWorld,
) -> None:
    made = batch_job("train", suspend=True)
    made["metadata"]["annotations"] = {SUSPEND_WAITING_ANNOTATION: "false"}
    world.core.create("jobs", NS, made)
    await world.run(30)
    assert (world.adopted(), world.job_object()["spec"]["suspend"]) == ([], True)
    assert {event["reason"] for event in world.events()} == {"SuspendedByAnother"}


async def test_a_waiting_job_that_is_deleted_leaves_the_queue(world: AdoptionWorld) -> None:
    await full_cluster(world)
    world.make_job(pods=1)
    await world.run(20)
    world.core.delete("jobs", NS, "train")
    await world.run(30)
    assert world.adopted() == []


async def test_a_template_that_is_changed_while_it_waits_is_what_is_placed(world: AdoptionWorld) -> None:
    await full_cluster(world)
    world.make_job(pods=1, gpus=1, seconds=10)
    await world.run(20)
    amounts = {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "4"}
    container = {"name": "main", "image": "train:1", "resources": {"requests": amounts, "limits": amounts}}
    world.core.patch("jobs", NS, "train", {"spec": {"template": {"spec": {"containers": [container]}}}})
    await world.run(30)
    assert [role.need.gpus for role in world.only().roles] == [4]
    await world.run(40)
    assert [job.phase for job in world.ended() if job.phase == "succeeded"] == ["succeeded"]


async def test_a_new_binder_resumes_the_owner_when_the_old_one_died_after_the_allocation(
    world: AdoptionWorld,
) -> None:
    world.make_job(pods=1, suspend=True)
    world.core.faults.answer("patch", 503, count=9)
    await until(world, "allocated")
    await world.stop("binder")
    world.core.faults.clear()
    await world.run(5)
    assert (world.only().phase, world.job_object()["spec"]["suspend"]) == ("allocated", True)
    world.start_binder()
    await world.run(15)
    assert world.only().phase == "running"
    assert world.job_object()["spec"]["suspend"] is False


async def test_an_owner_that_may_not_be_resumed_says_so_and_its_room_is_others(world: AdoptionWorld) -> None:
    world.make_job(pods=1, suspend=True)
    world.core.faults.answer("patch", 403, count=3)
    await world.run(3)
    assert world.only().phase == "queued"
    told = [event for event in world.events() if event["reason"] == "NotResumed"]
    assert [event["type"] for event in told] == ["Warning"]
    assert "`tenants` in the chart's values" in told[0]["message"]
    await world.run(120)
    assert world.only().phase == "running", "it is tried again, and the right is there by now"


async def test_missing_pods_of_a_resumed_owner_give_the_room_back_and_are_named(
    world: AdoptionWorld,
) -> None:
    await world.stop("jobs")
    world.make_job(pods=1, suspend=True)
    await world.run(10)
    world.core.patch("jobs", NS, "train", {"status": {"conditions": [{"type": "Suspended", "status": "False"}]}})
    await world.run(20)
    assert world.job_object()["spec"]["suspend"] is False
    assert world.only().phase == "allocated"
    await world.run(60)
    assert (world.only().phase, world.only().away) == ("queued", True)
    (told,) = [event for event in world.events() if event["reason"] == "PodsMissing"]
    assert "ResourceQuota" in told["message"]
    world.start_jobs()
    await world.run(90)
    assert world.only().phase == "running"


def training_job(name: str) -> dict[str, Any]:
    replicas = {"Master": {"replicas": 1, "restartPolicy": "OnFailure"}}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name},
        "spec": {"pytorchReplicaSpecs": replicas},
    }


async def test_a_training_job_waits_suspended_too_and_has_its_pods_again_once_there_is_room(
    world: AdoptionWorld,
) -> None:
    """The test stands for its controller."""
    await full_cluster(world)
    uid = world.core.create("pytorchjobs", NS, training_job("torch")).uid
    owner = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "torch", "uid": uid, "controller": True}

    def make() -> None:
        kubeflow = "training.kubeflow.org/"
        labels = {f"{kubeflow}job-name": "torch", f"{kubeflow}replica-type": "master"}
        pod = user_pod("torch-master-0", seconds=10, labels=labels)
        pod["metadata"]["ownerReferences"] = [owner]
        world.core.create("pods", NS, pod)

    def policy() -> dict[str, Any]:
        return dict(world.core.get("pytorchjobs", NS, "torch").object["spec"].get("runPolicy") or {})

    make()
    await world.run(10)
    assert policy() == {"suspend": True}
    world.core.delete("pods", NS, "torch-master-0")
    await world.run(15)
    job = world.only("torch")
    assert (job.phase, job.away, job.adopted and job.adopted.uids) == ("queued", False, ())
    for _ in range(60):
        await world.run(1)
        if policy() == {"suspend": False}:
            break
    assert world.only("torch").phase == "allocated"
    make()
    await world.run(5)
    assert (world.only("torch").phase, world.only("torch").attempt) == ("running", 1)


async def test_a_job_allocated_while_its_owner_is_being_suspended_starts_with_its_next_pods(
    world: AdoptionWorld,
) -> None:
    await world.configure(Queue(name="research", stop_policy="hold", suspend_waiting=True))
    world.make_job(pods=1)
    await until(world, "queued")
    (uid,) = world.only().adopted.uids  # type: ignore[union-attr]
    await world.clock.run(3)  # the binder acts, and what it says is not taken in yet
    assert (world.job_object()["spec"]["suspend"], world.owned()) == (True, [])
    await world.configure(Queue(name="research", suspend_waiting=True))
    await world.commit()
    permitted = [run.uids for run in world.state.runs.values()]
    assert permitted == [(uid,)], "the run is permitted to a pod that is gone"
    await world.run(40)
    assert world.only().phase == "running"
    assert world.job_object()["status"]["failed"] == 0


@pytest.mark.parametrize("status", [{}, {"conditions": [{"type": "Suspended", "status": "True"}]}])
async def test_a_controller_with_thousands_of_jobs_before_a_resumed_one_is_waited_for(
    world: AdoptionWorld, status: dict[str, Any]
) -> None:
    """Another Job would get its pods even later, and this one's would come when they have no room any more."""
    await world.stop("jobs")
    world.make_job(pods=1, suspend=True)
    world.core.patch("jobs", NS, "train", {"status": status})
    await world.run(300)
    assert world.job_object()["spec"]["suspend"] is False
    assert (world.only().phase, world.only().attempt) == ("allocated", 1)
    world.start_jobs()
    await world.run(30)
    assert (world.only().phase, world.only().attempt) == ("running", 1)


async def test_a_controller_that_never_acts_on_a_resumed_owner_is_named_and_its_room_is_others(
    world: AdoptionWorld,
) -> None:
    await world.stop("jobs")
    world.make_job(pods=1, suspend=True)
    await world.run(650)
    assert world.only().phase == "queued"
    (told,) = [event for event in world.events() if event["reason"] == "PodsMissing"]
    assert "its controller runs again" in told["message"]


@pytest.mark.parametrize("pause", [{"suspend": True}, {"parallelism": 0}], ids=["suspended", "none at once"])
async def test_what_its_user_pauses_and_resumes_waits_for_no_back_off_however_often(
    world: AdoptionWorld, pause: dict[str, Any]
) -> None:
    world.make_job(pods=2, backoffLimit=100)
    await world.run(10)
    for attempt in range(2, 9):
        world.core.patch("jobs", NS, "train", {"spec": pause})
        for pod in world.owned():
            world.core.delete("pods", NS, pod["metadata"]["name"])
        await world.run(10)
        world.core.patch("jobs", NS, "train", {"spec": {"suspend": False, "parallelism": 2}})
        await world.run(5)
        job = world.only()
        assert (job.phase, job.attempt, job.strikes, job.troubles) == ("running", attempt, 0, 0)
