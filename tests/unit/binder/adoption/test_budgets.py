"""A gang of users' pods is evicted whole or not at all: disruption budgets are asked before its first pod goes."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tessera.binder.adoption.owners.budgets import find_exhausted_budget
from tessera.engine.preemption.plans import Plan, plan, proposal
from tessera_local.cluster.in_memory import MemoryCluster
from tessera_schemas.config import Policy
from tessera_schemas.facts import PlanProposed
from tests.builders import config_body, config_proposed
from tests.unit.binder.adoption.adoption_world import NS, AdoptionWorld, batch_job
from tests.unit.binder.cluster_world import train

GANG: dict[str, Any] = {"labels": {"app": "gang"}}
NOTICED: dict[str, Any] = {"labels": {"app": "gang"}, "notes": {"tessera.io/checkpoint-notice-seconds": "20"}}


def budget(allowed: int, name: str = "keep", **labels: str) -> dict[str, Any]:
    spec = {"selector": {"matchLabels": labels or {"app": "gang"}}, "maxUnavailable": 1}
    return {"metadata": {"name": name}, "spec": spec, "status": {"disruptionsAllowed": allowed}}


@pytest.fixture
async def world() -> AsyncIterator[AdoptionWorld]:
    async with AdoptionWorld() as world:
        policy = Policy(preset="priority", min_runtime_seconds=0, earmark_seconds=60)
        await world.commit(config_proposed(config_body(policy=policy), world.state.config.version))
        world.core.create("priorityclasses", "", {"metadata": {"name": "urgent"}, "value": 1000})
        yield world


async def preempt(world: AdoptionWorld, gpus: int = 8) -> str:
    """An urgent pod comes, and a plan for it is carried out; the id of its job."""
    world.make_pod("urgent", gpus=gpus, seconds=10, priority=1000)
    await world.run(5)
    made = planned(world)
    assert isinstance(made, PlanProposed), made
    await world.commit(made)
    return made.job_id


def planned(world: AdoptionWorld) -> Any:
    made = plan(world.state, world.only("urgent"), world.state.ts, "preemption")
    return proposal(world.state, made, world.state.ts) if isinstance(made, Plan) else made


async def test_a_gang_that_a_budget_would_let_go_only_in_part_goes_on_whole(world: AdoptionWorld) -> None:
    world.core.create("poddisruptionbudgets", NS, budget(1))
    world.make_job(pods=4, gpus=2, seconds=60, **GANG)
    await world.run(10)
    run, before = world.only().run_id, {pod["metadata"]["uid"] for pod in world.owned()}
    await preempt(world)
    await world.run(2)
    assert world.kinds()[-20:].count("spared") == 1
    assert (world.only().phase, world.only().run_id) == ("running", run)
    assert {pod["metadata"]["uid"] for pod in world.owned()} == before
    assert not [pod for pod in world.owned() if "deletionTimestamp" in pod["metadata"]]
    assert len(world.state.earmarks) == 0
    assert {e["reason"] for e in world.events() if e["involvedObject"]["uid"] in before} == {
        "BlockedByDisruptionBudget"
    }
    (spared,) = [record for record in world.records if record.kind == "spared"]
    assert spared.reason.numbers == {"pods": 4, "disruptions_allowed": 1}
    assert "runs_kept_by_BlockedByDisruptionBudget" in planned(world).numbers, "not the same plan again at once"
    await world.run(80)
    assert [job.phase for job in world.ended()] == ["succeeded"], "nobody lost anything"
    assert [job.phase for job in world.ended("urgent")] == ["succeeded"]


async def test_a_dry_run_that_is_refused_is_enough_where_budgets_cannot_be_read(world: AdoptionWorld) -> None:
    world.make_job(pods=4, gpus=2, **GANG)
    await world.run(10)
    world.core.faults.answer("list", 403, count=1)
    world.core.create("poddisruptionbudgets", NS, budget(0))
    await preempt(world)
    await world.run(2)
    assert world.only().phase == "running"
    assert len(world.owned()) == 4


def work_queue(pods: int, **more: Any) -> dict[str, Any]:
    job = batch_job(pods=pods, **more)
    del job["spec"]["completions"]
    return job


async def test_of_a_job_that_works_off_a_queue_as_many_pods_run_as_find_room(world: AdoptionWorld) -> None:
    world.core.create("jobs", NS, work_queue(6, gpus=2))
    await world.run(10)
    assert len([pod for pod in world.owned() if pod["spec"].get("nodeName")]) == 4


async def test_nothing_is_stopped_of_a_job_that_works_off_a_queue_once_one_pod_has_found_it_empty(
    world: AdoptionWorld,
) -> None:
    """Kubernetes makes no pod again from then on: what is evicted is lost, and the Job says that it is complete."""
    world.core.create("jobs", NS, work_queue(4, gpus=2, seconds=60))
    await world.run(10)
    first, *others = world.owned()
    world.core.patch("pods", NS, first["metadata"]["name"], {"status": {"phase": "Succeeded"}}, "status")
    await world.run(5)
    await preempt(world)
    await world.run(3)
    there = {pod["metadata"]["uid"]: pod for pod in world.owned()}
    assert all("deletionTimestamp" not in there[pod["metadata"]["uid"]]["metadata"] for pod in others)
    told = [event["message"] for event in world.events() if event["reason"] == "BlockedByDisruptionBudget"]
    assert told
    assert all("makes no pod again once one has succeeded" in message for message in told)
    await world.run(80)
    assert [job.phase for job in world.ended()] == ["succeeded"] * 4
    assert [job.phase for job in world.ended("urgent")] == ["succeeded"]


async def test_a_lost_pod_of_a_job_that_works_off_a_queue_stops_no_other(world: AdoptionWorld) -> None:
    world.core.create("jobs", NS, work_queue(4, gpus=2))
    await world.run(10)
    before = {pod["metadata"]["uid"] for pod in world.owned()}
    world.core.delete("pods", NS, world.owned()[0]["metadata"]["name"])
    await world.run(20)
    kept = {pod["metadata"]["uid"] for pod in world.owned() if "deletionTimestamp" not in pod["metadata"]}
    assert len(before & kept) == 3


async def test_a_gang_that_may_go_goes_whole(world: AdoptionWorld) -> None:
    world.core.create("poddisruptionbudgets", NS, budget(4))
    world.make_job(pods=4, gpus=2, **GANG)
    await world.run(10)
    await preempt(world)
    await world.run(40)
    assert "spared" not in world.kinds()
    assert (world.kinds().count("requeued"), world.only().attempt) == (1, 2)
    told = [event for event in world.events() if event["reason"] == "Preempted"]
    assert len(told) == 4, "once for each pod"
    assert "gives way to job urgent" in told[0]["message"]


async def test_pods_of_our_making_say_for_whom_they_stop_and_no_eviction_waits_for_the_event() -> None:
    async with AdoptionWorld(scheduled_events_per_second=0.1) as world:
        policy = Policy(preset="priority", min_runtime_seconds=0, earmark_seconds=60)
        await world.commit(config_proposed(config_body(policy=policy), world.state.config.version))
        victim = await world.submit("k9", train(replicas=2, gpus=4))
        await world.run(10)
        await preempt(world)
        await world.run(5)
        assert world.owned("urgent")[0]["spec"]["nodeName"] == "node-a"
        assert len(preempted(world)) < 2, "they are made later"
        await world.run(60)
        said = preempted(world)
        assert len(said) == 2, "once for each pod"
        assert f"job {victim} gives way to job urgent" in said[0]


def preempted(world: AdoptionWorld) -> list[str]:
    return [event["message"] for event in world.events() if event["reason"] == "Preempted"]


async def test_what_stops_for_the_same_job_goes_on_with_it_unless_it_was_touched(world: AdoptionWorld) -> None:
    """Of two victims a budget keeps one: the other, that is ours, is not stopped for nothing."""
    world.core.create("poddisruptionbudgets", NS, budget(1))
    world.make_job(pods=2, gpus=2, seconds=600, **GANG)
    await world.run(10)
    native = await world.submit("k9", train(gpus=4, notice=30))
    await preempt(world)
    await world.run(3)
    assert world.kinds().count("spared") == 2
    gang = next(job for job in world.adopted() if job.adopted is not None)
    assert (gang.phase, world.job(native).phase) == ("running", "running")
    kept = {run.job_id for run in world.state.runs.values() if run.kept_ts}
    assert kept == {gang.job_id}, "only the one that the budget keeps is passed over for a while"


async def test_a_notice_that_was_given_is_taken_back(world: AdoptionWorld) -> None:
    world.make_job(pods=2, gpus=4, **NOTICED)
    await world.run(10)
    await preempt(world)
    await world.run(5)
    assert all("tessera.io/evict-at" in pod["metadata"]["annotations"] for pod in world.owned())
    world.core.create("poddisruptionbudgets", NS, budget(1))
    await world.run(30)
    assert world.only().phase == "running"
    assert not [pod for pod in world.owned() if "tessera.io/evict-at" in pod["metadata"]["annotations"]]


async def test_a_drain_waits_whole_until_the_budget_lets_the_gang_go(world: AdoptionWorld) -> None:
    world.core.create("poddisruptionbudgets", NS, budget(1))
    world.make_job(pods=4, gpus=2, **GANG)
    await world.run(10)
    await world.drain("node-a")
    await world.run(10)
    assert len([pod for pod in world.owned() if "deletionTimestamp" not in pod["metadata"]]) == 4
    reason = world.only().reason
    assert reason is not None
    assert (world.only().phase, reason.code) == ("evicting", "BlockedByDisruptionBudget")
    world.core.patch("poddisruptionbudgets", NS, "keep", {"status": {"disruptionsAllowed": 4}}, "status")
    await world.run(40)
    assert world.only().phase == "queued"


def test_a_budget_counts_the_ready_pods_that_it_selects() -> None:
    def pod(name: str, ready: bool = True, **labels: str) -> dict[str, Any]:
        conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
        status = {"phase": "Running", "conditions": conditions}
        return {"metadata": {"name": name, "uid": name, "labels": labels}, "status": status}

    pods = [pod("a", app="gang"), pod("b", ready=False, app="gang"), pod("c", app="other")]
    assert find_exhausted_budget([budget(1)], pods) is None
    found = find_exhausted_budget([budget(0)], pods)
    assert found is not None
    assert found.uids == {"a"}
    assert find_exhausted_budget([budget(0) | {"spec": {}}], pods) is None, "no selector selects nothing"
    both = find_exhausted_budget([budget(5), budget(5, "other")], pods)
    assert both is not None
    assert "budgets keep and other" in both.reason.detail, "the API server evicts no pod of two budgets"


# -- a budget that shrinks between the look and the evictions ---------------------------------------------------------


@pytest.fixture
def shrinking(world: AdoptionWorld, monkeypatch: pytest.MonkeyPatch) -> AdoptionWorld:
    """The first pod that is evicted takes all that the budget `keep` allows with it."""
    evict = MemoryCluster.evict_pod

    async def evict_and_shrink(self: MemoryCluster, *args: Any, **more: Any) -> None:
        await evict(self, *args, **more)
        if not more.get("dry_run"):
            world.core.patch("poddisruptionbudgets", NS, "keep", {"status": {"disruptionsAllowed": 0}}, "status")

    monkeypatch.setattr(MemoryCluster, "evict_pod", evict_and_shrink)
    return world


def make_gang(world: AdoptionWorld, pods: int = 4) -> None:
    """Pods that nobody can suspend, so that they are evicted."""
    notes = {"tessera.io/gang-size": str(pods), "tessera.io/preemptible": "true"}
    for number in range(pods):
        labels = {"app": "gang", "tessera.io/gang": "train"}
        world.make_pod(f"train-{number}", gpus=8 // pods, labels=labels, notes=notes)


async def test_the_rest_of_a_gang_goes_within_the_plans_deadline_though_its_budget_has_shrunk(
    shrinking: AdoptionWorld,
) -> None:
    world = shrinking
    world.core.create("poddisruptionbudgets", NS, budget(4))
    make_gang(world)
    await world.run(10)
    run = world.only().run_id
    await preempt(world)
    await world.run(20)
    assert len(world.owned()) == 3, "what the budget keeps is asked for again, politely"
    reason = world.only().reason
    assert reason is not None
    assert (world.only().phase, reason.code) == ("evicting", "BlockedByDisruptionBudget")
    await world.run(35)
    assert world.owned() == []
    assert world.state.runs.get(run) is None
    assert [job.phase for job in (*world.adopted("urgent"), *world.ended("urgent"))] in (["running"], ["succeeded"])
    told = [event for event in world.events() if event["reason"] == "DisruptionBudgetOverridden"]
    assert len(told) == 3
    assert "another pod of its gang is gone" in told[0]["message"]


async def test_the_rest_of_a_gang_that_lost_a_pod_by_itself_is_not_kept_for_ever_either(world: AdoptionWorld) -> None:
    world.core.create("poddisruptionbudgets", NS, budget(0))
    make_gang(world)
    await world.run(10)
    world.core.delete("pods", NS, "train-0")
    await world.run(20)
    assert len(world.owned()) == 3
    await world.run(60)
    assert world.owned() == []
    assert len(world.state.runs) == 0


async def test_a_gang_of_which_nothing_is_gone_is_kept_for_as_long_as_its_budget_says(world: AdoptionWorld) -> None:
    world.core.create("poddisruptionbudgets", NS, budget(0))
    make_gang(world)
    await world.run(10)
    await world.drain("node-a")
    await world.run(200)
    assert len(world.owned()) == 4


async def test_users_work_that_ends_in_its_notice_has_ended(world: AdoptionWorld) -> None:
    world.make_job(pods=2, gpus=4, seconds=20, **NOTICED)
    await world.run(10)
    await preempt(world)
    await world.run(30)
    (job,) = world.ended()
    assert (job.phase, job.attempt, job.evictions) == ("succeeded", 1, 0)
    assert "requeued" not in world.kinds()
