"""Users' own pods from their creation to their end: what the binder submits, claims, binds, evicts and tells."""

from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from tessera_local.cluster.in_memory import MemoryCluster
from tessera_schemas.commands import AdoptJob
from tessera_schemas.config import Queue
from tests.builders import SHARD
from tests.unit.binder.adoption.adoption_world import NS, AdoptionWorld, batch_job, run_of, user_pod


@pytest.fixture
async def world() -> AsyncIterator[AdoptionWorld]:
    async with AdoptionWorld() as world:
        yield world


async def test_a_batch_job_that_names_our_scheduler_runs_to_its_end(world: AdoptionWorld) -> None:
    world.make_job(pods=2, seconds=30)
    await world.run(10)
    job = world.only()
    assert (job.phase, job.adopted.owner if job.adopted else "") == ("running", "Job/train")
    assert [run_of(pod) for pod in world.owned()] == [f"{job.job_id}-1"] * 2
    await world.run(40)
    (ended,) = world.ended()
    assert ended.phase == "succeeded"
    assert world.job_object()["status"]["conditions"][0]["type"] == "Complete"
    assert len(world.state.runs) == 0
    assert len(world.owned()) == 2  # the pods are their owner's to tidy up


async def test_a_bare_pod_is_a_job_of_its_own_that_nobody_preempts(world: AdoptionWorld) -> None:
    world.make_pod("alone", seconds=20)
    await world.run(10)
    job = world.only("alone")
    assert (job.phase, job.preemptible) == ("running", False)
    await world.run(30)
    assert [job.phase for job in world.ended("alone")] == ["succeeded"]


async def test_each_group_is_submitted_once(world: AdoptionWorld) -> None:
    world.make_job(pods=3)
    await world.run(60)
    assert len([command for command in world.commands if isinstance(command, AdoptJob)]) == 1


# -- waiting


async def test_pods_that_wait_are_told_why_once_for_each_code(world: AdoptionWorld) -> None:
    world.make_pod("first", gpus=8, seconds=40)
    await world.run(10)
    world.make_job("second", gpus=4)
    await world.run(20)
    (pod,) = world.owned("second")
    condition = world.condition(pod)
    assert (condition["status"], condition["reason"]) == ("False", "NoFit")
    events = [event for event in world.events() if event["involvedObject"]["name"] == pod["metadata"]["name"]]
    assert [event["reason"] for event in events] == ["NoFit"]
    await world.run(30)
    assert world.only("second").phase == "running"
    assert world.condition(world.owned("second")[0])["status"] == "True"


async def test_a_refused_group_says_why_and_is_adopted_once_the_reason_is_gone(world: AdoptionWorld) -> None:
    world.make_pod("train", labels={"tessera.io/queue": "later"})
    await world.run(5)
    assert world.condition(world.owned()[0])["reason"] == "NoSuchQueue"
    assert world.adopted() == []
    await world.configure(Queue(name="research"), Queue(name="later"))
    await world.run(30)
    assert world.only().phase == "running"


async def test_a_refused_job_says_so_itself_beside_its_pods(world: AdoptionWorld) -> None:
    """Its own status says no more than that none of its pods runs."""
    world.make_job(labels={"tessera.io/queue": "nowhere"})
    await world.run(10)
    about = [event for event in world.events() if event["involvedObject"]["kind"] == "Job"]
    assert [(event["reason"], event["type"]) for event in about] == [("NoSuchQueue", "Warning")]
    assert "To go on: " in about[0]["message"]


async def test_a_gang_waits_for_its_last_pod_and_says_so(world: AdoptionWorld) -> None:
    gang = {"labels": {"tessera.io/gang": "pair"}, "notes": {"tessera.io/gang-size": "2"}}
    world.make_pod("pair-a", **gang)
    await world.run(10)
    assert world.condition(world.owned("pair-a")[0])["reason"] == "GangIncomplete"
    assert world.commands == []
    world.make_pod("pair-b", **gang)
    await world.run(10)
    job = world.only("pair")
    assert (job.phase, job.pods) == ("running", 2)
    assert [pod["metadata"]["annotations"]["tessera.io/rank"] for pod in world.owned("pair")] == ["0", "1"]


async def test_a_pod_that_cannot_be_in_any_group_is_told_so(world: AdoptionWorld) -> None:
    world.make_pod("lost", labels={"tessera.io/gang": "no-size"})
    await world.run(10)
    assert world.condition(world.owned("lost")[0])["reason"] == "MissingField"
    assert world.commands == []


async def test_the_priority_of_the_pods_class_decides_who_is_first(world: AdoptionWorld) -> None:
    world.core.create("priorityclasses", "", {"metadata": {"name": "urgent"}, "value": 1_000_000})
    world.make_pod("first", gpus=8, seconds=30)
    await world.run(10)
    world.make_job("early", gpus=8, seconds=5)
    await world.run(5)
    world.make_job("urgent", gpus=8, seconds=5, priorityClassName="urgent")
    await world.run(5)
    assert (world.only("early").phase, world.only("urgent").phase) == ("queued", "queued")
    await world.run(25)
    assert [job.name for job in world.ended() + world.ended("urgent")][:1] == ["urgent"]
    await world.run(20)
    assert {job.phase for job in world.ended("urgent") + world.ended("early")} == {"succeeded"}


# -- the end of a group that waits


async def test_a_job_whose_owner_is_gone_is_cancelled_with_that_reason(world: AdoptionWorld) -> None:
    world.make_pod("first", gpus=8)
    await world.run(10)
    world.make_job("second", gpus=8)
    await world.run(10)
    world.core.delete("jobs", NS, "second")
    await world.run(10)
    (ended,) = world.ended("second")
    assert ended.phase == "cancelled"
    assert ended.reason is not None
    assert ended.reason.detail == "Job/second is gone"


async def test_a_bare_pod_that_is_deleted_while_it_waits_cancels_its_job(world: AdoptionWorld) -> None:
    world.make_pod("first", gpus=8)
    world.make_pod("second", gpus=8)
    await world.run(10)
    world.core.delete("pods", NS, "second")
    await world.run(10)
    assert [job.phase for job in world.ended("second")] == ["cancelled"]


async def test_a_bare_pod_that_its_node_refused_ends_its_job_at_once(world: AdoptionWorld) -> None:
    """Nobody makes it again, and its object stays until somebody tidies up."""
    world.make_pod("train", gpus=8)
    while not len(world.state.runs):
        await world.run(0.02, turn=0.02)
    world.core.set_gpus("node-a", 7)  # one was lost since it was allocated
    await world.run(30)
    (pod,) = world.owned()
    assert pod["status"]["reason"] == "UnexpectedAdmissionError"
    assert world.adopted() == []
    (ended,) = world.ended()
    assert ended.phase == "failed"
    assert ended.reason is not None
    assert ended.reason.detail.startswith("Pod/train: UnexpectedAdmissionError: Pod was rejected")


async def test_a_bare_pod_that_failed_by_itself_ends_its_job_at_once(world: AdoptionWorld) -> None:
    world.make_pod("train", seconds=1, notes={"tessera.io/simulate-exit-code": "1"})
    await world.run(30)
    assert world.adopted() == []
    assert [job.phase for job in world.ended()] != ["succeeded"]


async def test_a_job_that_has_failed_for_good_is_not_tried_again(world: AdoptionWorld) -> None:
    world.make_job(seconds=2, notes={"tessera.io/simulate-exit-code": "1"}, backoffLimit=1)
    await world.run(120)
    assert world.job_object()["status"]["failed"] == 2
    assert world.adopted() == []
    last = max(world.ended(), key=lambda job: job.ended_ts)
    assert last.phase == "failed"
    assert last.reason is not None
    assert "Job/train: BackoffLimitExceeded" in last.reason.detail


async def test_the_pods_of_a_job_that_failed_go_to_another_node_each_time() -> None:
    async with AdoptionWorld(nodes=("node-a", "node-b", "node-c")) as world:
        world.make_job(seconds=2, notes={"tessera.io/simulate-exit-code": "1"}, backoffLimit=2)
        nodes: dict[str, str] = {}
        for _ in range(120):
            await world.run(1)
            nodes |= {run.run_id: place.node for run in world.state.runs.values() for place in run.placements}
        assert world.job_object()["status"]["failed"] == len(nodes) == 3
        assert len(set(nodes.values())) == 3


async def test_the_next_pod_of_an_owner_goes_to_another_node_than_those_of_it_that_failed() -> None:
    """Its pods start one by one, each as a job of its own; a binder that starts anew knows of the failures as well."""
    async with AdoptionWorld(nodes=("node-a", "node-b", "node-c", "node-d")) as world:
        failing = {"tessera.io/simulate-exit-code": "1"}
        world.make_job(seconds=2, completions=2, notes=failing, backoffLimit=3)
        for second in range(240):
            await world.run(1)
            if second == 60:
                await world.stop("binder")
                world.start_binder()
        nodes = [pod["spec"]["nodeName"] for pod in world.owned()]
        assert world.job_object()["status"]["failed"] == len(nodes) == 4
        assert len(set(nodes)) == 4


async def test_pods_that_ask_for_something_else_than_before_make_another_job(world: AdoptionWorld) -> None:
    world.make_pod("first", gpus=8)
    await world.run(10)
    gang = {"labels": {"tessera.io/gang": "pair"}, "notes": {"tessera.io/gang-size": "1"}}
    world.make_pod("pair-a", gpus=4, **gang)
    await world.run(10)
    before = world.only("pair")
    world.core.delete("pods", NS, "pair-a")
    world.make_pod("pair-b", gpus=6, **gang)
    await world.run(20)
    assert [job.phase for job in world.ended("pair")] == ["cancelled"]
    assert world.only("pair").job_id != before.job_id


# -- eviction and the next attempt


async def test_a_run_that_must_go_is_evicted_and_its_owners_new_pods_are_its_next_attempt(world: AdoptionWorld) -> None:
    world.make_job(pods=2)
    await world.run(10)
    before = {pod["metadata"]["uid"] for pod in world.owned()}
    await world.drain("node-a")
    await world.run(60)
    job = world.only()
    assert (job.phase, job.attempt) == ("queued", 1)
    assert {pod["metadata"]["uid"] for pod in world.owned() if not pod["spec"].get("nodeName")}.isdisjoint(before)
    await world.drain("node-a", undo=True)
    await world.run(30)
    job = world.only()
    assert (job.phase, job.attempt) == ("running", 2)
    assert {run_of(pod) for pod in world.owned() if pod["status"]["phase"] == "Running"} == {f"{job.job_id}-2"}


async def test_a_job_whose_owner_survives_no_eviction_keeps_its_place_and_is_not_preempted(
    world: AdoptionWorld,
) -> None:
    """As where another controller suspends it."""
    job = batch_job(backoffLimit=1)
    job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "team"}
    world.core.create("jobs", NS, job)
    await world.run(10)
    before = world.only()
    await world.drain("node-a")
    await world.run(20)
    waiting = world.only()
    await world.drain("node-a", undo=True)
    await world.run(30)
    after = world.only()
    assert (waiting.job_id, waiting.taken_n) == (before.job_id, before.taken_n)
    assert (after.job_id, after.phase, after.attempt) == (before.job_id, "running", 2)
    assert (before.preemptible, after.preemptible) == (True, False)


async def test_an_eviction_says_that_it_is_one(world: AdoptionWorld) -> None:
    world.make_job()
    await world.run(10)
    watch = world.core.open_watch("pods", world.core.resource_version)
    world.core.faults.answer("patch", 403, count=1)  # else its Job is suspended
    await world.drain("node-a")
    await world.run(40)
    assert any(b"EvictionByEvictionAPI" in json for _, json in watch.take())


async def test_a_disruption_budget_is_respected_for_as_long_as_it_forbids(world: AdoptionWorld) -> None:
    world.make_job()
    await world.run(10)
    world.core.faults.answer("evict", 429, count=4)
    (pod,) = world.owned()
    await world.drain("node-a")
    await world.run(1)
    assert "deletionTimestamp" not in world.owned()[0]["metadata"]
    reasons = [e["reason"] for e in world.events() if e["involvedObject"]["uid"] == pod["metadata"]["uid"]]
    assert reasons.count("BlockedByDisruptionBudget") == 1
    job = world.only()
    assert (job.phase, job.reason.code if job.reason else "") == ("evicting", "BlockedByDisruptionBudget")
    await world.run(60)
    assert world.only().phase == "queued"


async def test_a_pod_whose_run_is_over_before_it_was_bound_is_given_back_and_not_evicted(world: AdoptionWorld) -> None:
    world.core.faults.answer("bind", 422, count=1)
    world.make_pod("alone", seconds=20)
    await world.run(60)
    (ended,) = world.ended("alone")
    assert (ended.phase, ended.attempt) == ("succeeded", 2)
    assert "bind_failed" in [fact.kind for fact in world.facts]


# -- the end of a run


async def test_a_pod_that_was_seen_to_succeed_has_succeeded_though_it_is_gone(world: AdoptionWorld) -> None:
    gang = {"labels": {"tessera.io/gang": "pair"}, "notes": {"tessera.io/gang-size": "2"}}
    world.make_pod("pair-a", seconds=10, **gang)
    world.make_pod("pair-b", seconds=60, **gang)
    await world.run(20)
    world.core.delete("pods", NS, "pair-a")
    await world.run(20)
    assert world.only("pair").phase == "running"
    await world.run(40)
    assert [(job.phase, job.attempt) for job in world.ended("pair")] == [("succeeded", 1)]


async def test_pods_that_a_complete_owner_takes_away_have_not_failed(world: AdoptionWorld) -> None:
    """As an operator does whose master is done: it says that it is complete and deletes the workers."""
    world.make_job(pods=2)
    await world.run(10)
    done = {"conditions": [{"type": "Complete", "status": "True"}]}
    world.core.patch("jobs", NS, "train", {"status": done}, "status")
    for pod in world.owned():
        world.core.delete("pods", NS, pod["metadata"]["name"])
    await world.run(60)
    assert [(job.phase, job.attempt) for job in world.ended()] == [("succeeded", 1)]
    assert len(world.state.runs) == 0


async def test_a_deleted_pod_ends_its_gang_and_the_job_goes_on_with_the_next(world: AdoptionWorld) -> None:
    world.make_job(pods=2, seconds=300)
    await world.run(10)
    world.core.delete("pods", NS, world.owned()[0]["metadata"]["name"])
    await world.run(90)
    job = world.only()
    assert (job.phase, job.attempt) == ("running", 2)


async def test_a_pod_that_is_ours_no_more_is_never_deleted_by_us(world: AdoptionWorld) -> None:
    unknown = {"tessera.io/run": f"{'a' * 20}-1", "tessera.io/shard": SHARD, "tessera.io/rank": "0"}
    world.make_pod("claimed-once", labels=unknown, seconds=10_000, gpus=0, nodeName="node-a")
    world.make_pod("waits", labels=unknown, seconds=10_000)
    await world.run(300)
    assert {pod["metadata"]["name"] for pod in world.pods() if "deletionTimestamp" not in pod["metadata"]} == {
        "claimed-once",
        "waits",
    }
    assert world.only("waits").phase == "running"


# -- binders that die


@pytest.mark.parametrize("seconds", [0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0])
async def test_a_binder_that_dies_at_any_moment_is_followed_by_one_that_goes_on(
    world: AdoptionWorld, seconds: float
) -> None:
    world.make_job(pods=3, seconds=15)
    await world.run(seconds)
    await world.stop("binder")
    await world.run(2)
    world.start_binder()
    await world.run(60)
    (ended,) = world.ended()
    assert (ended.phase, ended.attempt) == ("succeeded", 1)
    assert len(world.owned()) == 3


# -- suspended Jobs


async def test_a_suspended_job_is_let_go_once_it_is_allocated_and_not_before(world: AdoptionWorld) -> None:
    world.make_pod("first", gpus=8, seconds=30)
    await world.run(10)
    world.make_job("second", pods=2, gpus=4, seconds=10, suspend=True)
    await world.run(10)
    assert (world.only("second").phase, world.owned("second")) == ("queued", [])
    await world.run(20)
    assert world.job_object("second")["spec"]["suspend"] is False
    assert world.only("second").phase == "running"
    await world.run(30)
    assert [(job.phase, job.attempt) for job in world.ended("second")] == [("succeeded", 1)]


async def test_a_job_suspended_by_its_user_keeps_its_place_until_the_user_resumes_it(
    world: AdoptionWorld,
) -> None:
    world.make_job(seconds=60, suspend=True)
    await world.run(10)
    assert world.only().phase == "running"
    world.core.patch("jobs", NS, "train", {"spec": {"suspend": True}})
    await world.run(60)
    assert (world.only().phase, world.job_object()["spec"]["suspend"]) == ("queued", True)
    world.core.patch("jobs", NS, "train", {"spec": {"suspend": False}})
    await world.run(10)
    assert world.only().phase == "running"
    assert world.only().attempt == 2


# -- users who interfere


async def test_a_pod_that_runs_on_without_our_annotations_keeps_what_it_holds(world: AdoptionWorld) -> None:
    world.make_job(pods=1, notes={"tessera.io/simulate-term-ms": "20000"}, terminationGracePeriodSeconds=30)
    await world.run(10)
    (pod,) = world.owned()
    none = {"tessera.io/run": None, "tessera.io/rank": None, "tessera.io/permit": None}
    world.core.patch("pods", NS, pod["metadata"]["name"], {"metadata": {"annotations": none}})
    await world.drain("node-a")
    await world.run(12)
    assert "deletionTimestamp" in world.owned()[0]["metadata"]
    assert "released" not in world.kinds()
    await world.run(30)
    assert "released" in world.kinds()


async def test_a_pod_of_another_namespace_with_a_runs_label_does_not_keep_what_that_run_held(
    world: AdoptionWorld,
) -> None:
    world.make_job(seconds=10_000)
    await world.run(10)
    job = world.only()
    forged = user_pod("forged", labels={"tessera.io/run": f"{job.job_id}-1", "tessera.io/shard": SHARD}, gpus=0)
    forged["spec"]["schedulerName"] = "default-scheduler"
    world.core.create("pods", "other", forged)
    await world.drain("node-a")
    await world.run(60)
    assert world.only().phase == "queued"


# -- pods that end before the others


def free_gpus(world: AdoptionWorld) -> int:
    return sum(world.state.nodes.get("node-a").gpu_free) // 1000


def one_after_the_other(**more: str) -> dict[str, object]:
    return {"pods": 4, "gpus": 2, "seconds": 10, "notes": {"tessera.io/simulate-rank-seconds": "20", **more}}


async def test_pods_of_a_job_that_succeeded_give_their_gpus_back_while_the_others_run(world: AdoptionWorld) -> None:
    world.make_job(**one_after_the_other())
    await world.run(15)
    assert world.only().phase == "running"
    assert free_gpus(world) == 2
    world.make_pod("other", gpus=2)
    await world.run(5)
    assert world.only("other").phase == "running"
    await world.run(90)
    assert [job.phase for job in world.ended()] == ["succeeded"]


async def test_a_pod_may_say_that_its_gpus_go_with_the_whole_gang(world: AdoptionWorld) -> None:
    world.make_job(**one_after_the_other(**{"tessera.io/release": "together"}))
    await world.run(60)
    assert (world.only().phase, free_gpus(world)) == ("running", 0)
    await world.run(40)
    assert (world.ended()[0].phase, free_gpus(world)) == ("succeeded", 8)


async def test_what_a_pod_says_of_its_release_has_two_values(world: AdoptionWorld) -> None:
    world.make_job(**one_after_the_other(**{"tessera.io/release": "later"}))
    await world.run(5)
    condition = world.condition(world.owned()[0])
    assert (condition["reason"], "tessera.io/release" in condition["message"]) == ("InvalidField", True)


async def test_what_is_evicted_of_a_job_comes_back_without_the_pods_that_are_done(world: AdoptionWorld) -> None:
    world.make_job(**one_after_the_other(), backoffLimit=6)
    await world.run(35)
    assert free_gpus(world) == 4
    await world.drain("node-a")
    await world.run(30)
    await world.drain("node-a", undo=True)
    await world.run(5)
    (job,) = world.adopted()
    assert (job.phase, job.pods) == ("running", 2)
    assert free_gpus(world) == 4


@pytest.mark.parametrize("times", [1, 2])
async def test_pods_that_change_right_before_their_bind_do_not_leave_their_gang_in_part(
    world: AdoptionWorld, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """What they are told while they wait moves their version on: no other run has them for that."""
    bind, changed = MemoryCluster.bind_pod, Counter[str]()

    async def change_and_bind(self: MemoryCluster, namespace: str, name: str, uid: str, *args: Any) -> None:
        if name != "train-0" and changed[name] < times:
            changed[name] += 1
            world.core.patch("pods", NS, name, {"status": {"message": f"told {changed[name]} times"}}, "status")
        await bind(self, namespace, name, uid, *args)

    monkeypatch.setattr(MemoryCluster, "bind_pod", change_and_bind)
    with capture_logs() as logs:
        for number in range(4):
            notes = {"tessera.io/gang-size": "4"}
            world.make_pod(f"train-{number}", labels={"tessera.io/gang": "train"}, notes=notes)
        await world.run(10)
    assert world.only().phase == "running"
    assert changed.total() == 3 * times
    assert [line["event"] for line in logs if line["event"] == "work_retries"] == []


async def test_pods_that_are_deleted_between_their_bind_and_their_start_hold_nothing(world: AdoptionWorld) -> None:
    await world.stop("cluster")  # no kubelet starts them
    notes = {"tessera.io/gang-size": "2"}
    for number in range(2):
        world.make_pod(f"train-{number}", labels={"tessera.io/gang": "train"}, notes=notes)
    await world.run(10)
    assert world.only().phase == "binding"
    for number in range(2):
        world.core.delete("pods", NS, f"train-{number}", {"gracePeriodSeconds": 0})
    await world.run(20)
    assert len(world.state.runs) == 0
