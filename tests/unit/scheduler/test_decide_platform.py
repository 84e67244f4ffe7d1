"""What the committer makes of holds, priorities, drains, stopped queues, flavors, lost and idle runs, and plans."""

from typing import Any

import pytest

from tessera.domain.work.checkpoints import AGAIN_MS
from tessera.scheduler.decide import jobs
from tessera_schemas.base import job_id
from tessera_schemas.config import Flavor, Policy, Queue, Quota
from tessera_schemas.facts import (
    CheckpointReported,
    CheckpointSaved,
    HoldRequested,
    PriorityRequested,
    RequeueRequested,
    RunEnded,
    RunIdle,
    RunLost,
)
from tessera_schemas.job import JobArray, Retry
from tessera_schemas.ledger import FORMAT, Revoked
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.placement import Placement
from tessera_schemas.work.templates import FromTemplate
from tests.builders import SHARD, admitted, config_body, config_proposed, job_spec, node_seen, queue, role, run_absent
from tests.unit.scheduler.committer_world import (
    DELETED,
    K1,
    RUN,
    World,
    cancel,
    ended,
    kinds,
    made,
    reasons,
    started,
)
from tests.unit.scheduler.contested_world import K2, contested, drain, plan, refusal

FAIR = Policy(preset="fair", min_runtime_seconds=0)


def hold(job: str = K1, undo: bool = False, tenant: str = "lab") -> HoldRequested:
    return HoldRequested(kind="hold_requested", job_id=job, tenant=tenant, undo=undo)


def lost(**more: Any) -> RunLost:
    return RunLost(kind="run_lost", run_id=RUN, reason=Reason(code=Code.NODE_LOST), **more)


def idle(seconds: int) -> RunIdle:
    return RunIdle(kind="run_idle", run_id=RUN, idle_seconds=seconds)


def reconfigured(world: World, *queues: Queue, **more: Any) -> list[str]:
    return world.say(config_proposed(config_body(*queues, **more), world.state.config.version))


# -- holds, priorities ----------------------------------------------------------------------------------------------


def test_a_held_job_leaves_the_line_and_says_so() -> None:
    world = World().queued()
    held = world.commit(hold())
    assert (kinds(held), reasons(held)) == (["held", "waiting"], [Code.ON_HOLD])
    assert world.line().jobs == ()
    assert kinds(world.place()) == []


def test_a_released_job_stands_where_it_stood() -> None:
    world = World().queued()
    world.commit(hold())
    world.commit(admitted("k2"))
    assert reasons(world.commit(hold(undo=True))) == [Code.WAITING_FOR_TURN]
    assert world.line().jobs == (K1, K2)


def test_an_order_made_before_the_hold_does_not_start_the_job() -> None:
    world = World().queued()
    before = world.line()
    world.commit(hold())
    assert kinds(world.commit(orders=(before,))) == []


def test_a_hold_of_somebody_elses_job_or_of_a_held_job_is_nothing() -> None:
    world = World().queued()
    assert world.say(hold(tenant="other")) == []
    assert world.say(hold(), hold()) == ["held", "waiting"]
    assert world.say(hold(job=K2)) == []


def test_a_hold_lets_a_run_go_on_and_keeps_the_job_from_its_next_attempt() -> None:
    world = World().running(retry=Retry(max_attempts=3))
    assert world.say(hold(tenant="")) == ["held"]
    assert world.say(ended(reason=DELETED)) == ["revoked"]
    requeued = world.commit(run_absent(RUN))
    assert kinds(requeued) == ["released", "requeued", "waiting"]
    assert kinds(world.place(ms=60_000)) == []


def requeue(tenant: str = "lab", job: str = K1) -> RequeueRequested:
    return RequeueRequested(kind="requeue_requested", job_id=job, tenant=tenant)


@pytest.mark.parametrize("tenant", ["lab", ""])
def test_a_run_that_is_put_back_in_line_spends_no_attempt(tenant: str) -> None:
    world = World().running(retry=Retry(max_attempts=1))
    stopped = world.commit(requeue(tenant), requeue(tenant))
    (revoked,) = stopped.records
    assert isinstance(revoked, Revoked)
    assert (revoked.reason.code, revoked.then, revoked.by, revoked.now) == (
        Code.REQUEUE_ASKED,
        "requeue",
        tenant or "operator",
        False,
    )
    assert kinds(world.commit(run_absent(RUN))) == ["released", "requeued", "allocated"]
    job = world.state.jobs.get(K1)
    assert (job.attempt, job.strikes, job.evictions) == (2, 0, 0)


def test_a_job_that_waits_is_not_put_back_in_line() -> None:
    assert World().queued().say(requeue()) == []


def test_no_run_is_stopped_by_strangers_nor_twice_nor_on_its_way_to_its_end() -> None:
    world = World().running()
    assert world.say(requeue("other"), requeue(job=K2)) == []
    assert world.say(cancel(), requeue()) == ["revoked"]
    assert world.state.runs.get(RUN).then == "cancelled"


def test_below_its_format_a_ledger_has_no_runs_that_are_put_back_in_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "REQUEUES_FROM", FORMAT + 1)
    assert World().running().say(requeue()) == []


def test_all_tasks_of_an_array_that_run_are_put_back_in_line() -> None:
    world = World().queued(role(gpus=1), array=JobArray(tasks="0-2"))
    world.commit()
    world.place()
    runs = len(world.state.runs)
    assert runs > 1
    assert world.say(requeue()) == ["revoked"] * runs


def test_an_operators_hold_is_let_go_by_operators_alone() -> None:
    world = World().queued()
    held = world.commit(hold(tenant=""))
    assert (kinds(held), reasons(held)) == (["held", "waiting"], [Code.HELD_BY_OPERATOR])
    assert world.say(hold(undo=True), hold()) == []
    assert world.state.jobs.get(K1).operator_hold
    assert reasons(world.commit(hold(undo=True, tenant=""))) == [Code.WAITING_FOR_TURN]
    job = world.state.jobs.get(K1)
    assert (job.held, job.operator_hold) == (False, False)


def test_an_operators_hold_takes_the_place_of_a_tenants_and_lasts_over_a_run() -> None:
    world = World().running(retry=Retry(max_attempts=3))
    assert world.say(hold()) == ["held"]
    assert world.say(hold(tenant=""), hold(tenant="")) == ["held"]
    world.commit(ended(reason=DELETED))
    assert reasons(world.commit(run_absent(RUN)))[-1] is Code.HELD_BY_OPERATOR
    assert world.say(hold(undo=True)) == []
    assert world.say(hold(undo=True, tenant=""))[:2] == ["held", "waiting"]


def test_holds_of_a_ledger_from_before_are_everybodys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "OPERATOR_HOLDS_FROM", FORMAT + 1)
    world = World().queued()
    held = world.commit(hold(tenant=""))
    assert b'operator":true' not in held.to_bytes()
    assert world.say(hold(undo=True)) == ["held", "waiting"]


def test_another_priority_class_moves_a_waiting_job() -> None:
    world = World().queued()
    world.commit(admitted("k2"))
    wanted = PriorityRequested(kind="priority_requested", job_id=K2, tenant="lab", priority_class="high")
    assert world.say(wanted) == ["priority_set"]
    assert world.line().jobs == (K2, K1)
    assert world.say(wanted.model_copy(update={"priority_class": "golden"})) == []


# -- nodes ----------------------------------------------------------------------------------------------------------


def test_nothing_starts_on_a_drained_node_and_what_runs_goes_on() -> None:
    world = World().running()
    assert world.say(drain(why="new memory")) == ["node_drained"]
    world.commit(admitted("k2"))
    refused = world.place()
    assert reasons(refused) == [Code.NO_NODES]
    assert world.say(drain(undo=True)) == ["node_drained", "allocated"]


def test_a_drain_that_evicts_sends_the_runs_back_without_a_strike() -> None:
    world = World().running(retry=Retry(max_attempts=1))
    assert world.say(drain(evict=True)) == ["node_drained", "revoked"]
    back = world.commit(run_absent(RUN))
    assert (kinds(back), reasons(back)) == (["released", "requeued", "waiting"], [Code.NO_NODES])
    assert (world.job.strikes, world.job.not_before) == (0, 0)


def test_draining_a_node_that_is_not_there_is_nothing() -> None:
    assert World().say(drain("node-z")) == []


def test_a_lost_run_is_tried_again_elsewhere_while_there_is_room_elsewhere() -> None:
    world = World(node_seen("node-a"), node_seen("node-b")).running()
    assert world.run.placements[0].node == "node-a"
    world.commit(lost(nodes=("node-a",)), ms=0)
    *_, again = world.commit(run_absent(RUN)).records
    assert (world.job.avoid, world.job.strikes) == (("node-a",), 0)
    assert again.placements[0].node == "node-b"  # type: ignore[union-attr]


def test_nodes_that_refused_or_failed_a_pod_are_avoided_and_one_that_lost_it_is_not() -> None:
    refused = Reason(code=Code.POD_REFUSED_BY_NODE, detail="OutOfephemeral-storage")
    failed, deleted = Reason(code=Code.POD_FAILED), Reason(code=Code.POD_DELETED)
    elsewhere, there = (("node-a",), "node-b"), ((), "node-a")
    for reason, (avoid, then) in ((refused, elsewhere), (failed, elsewhere), (deleted, there)):
        world = World(node_seen("node-a"), node_seen("node-b")).running(retry=Retry(max_attempts=3, on_failure=True))
        world.commit(ended(reason=reason))
        world.commit(run_absent(RUN))
        world.place(ms=60_000)
        assert world.job.avoid == avoid
        assert world.run.placements[0].node == then


def test_a_gang_avoids_the_node_of_its_failed_pod_unless_there_is_no_other() -> None:
    world = World(node_seen("node-a", 1), node_seen("node-b", 1), node_seen("node-c", 1))
    world.queued(role(replicas=2), retry=Retry(on_failure=True)).place()
    world.commit(made(pods=2))
    world.commit(started())
    second = world.run.placements[1].node
    for _ in range(2):
        run = world.run.run_id
        world.commit(RunEnded(kind="run_ended", run_id=run, reason=Reason(code=Code.POD_FAILED), own=True, rank=1))
        world.commit(run_absent(run))
        world.place(ms=60_000)
        if world.job.attempt == 2:
            assert second not in {place.node for place in world.run.placements}
            world.commit(made(world.run.run_id, pods=2))
            world.commit(started(world.run.run_id))
    assert len(world.job.avoid) == 2
    assert world.job.phase == "allocated"


def test_an_avoided_node_is_better_than_none() -> None:
    world = World().running()
    world.commit(lost(nodes=("node-a",)))
    assert world.say(run_absent(RUN))[-1] == "allocated"


def test_the_time_in_which_a_failing_program_is_tried_again_is_finite() -> None:
    world = World().running(retry=Retry(give_up_seconds=100, on_failure=True))
    world.commit(ended(), ms=100_000)
    assert world.run.then == "failed"
    final = world.commit(run_absent(RUN)).records[-1]
    assert final.reason is not None  # type: ignore[union-attr]
    assert final.reason.code is Code.RETRY_TIME_EXHAUSTED  # type: ignore[union-attr]


# -- queues ---------------------------------------------------------------------------------------------------------


def test_a_stopped_queue_starts_nothing_and_its_jobs_hear_it() -> None:
    world = World().queued()
    before = world.line()
    assert reconfigured(world, Queue(name="research", stop_policy="hold")) == ["config_set", "waiting"]
    assert world.line().jobs == ()
    assert kinds(world.commit(orders=(before,))) == []
    assert reasons(world.commit(admitted("k2"))) == [Code.QUEUE_STOPPED]
    assert reconfigured(world, Queue(name="research")) == ["config_set", "waiting", "waiting", "allocated"]
    assert kinds(world.place()) == ["allocated"]


def test_a_queue_below_a_stopped_one_is_stopped() -> None:
    world = World().queued()
    reconfigured(world, Queue(name="top", stop_policy="hold"), Queue(name="research", parent="top"))
    assert world.line().jobs == ()


def test_hold_and_drain_sends_what_runs_back_to_the_queue() -> None:
    world = World().running(retry=Retry(max_attempts=1))
    assert reconfigured(world, Queue(name="research", stop_policy="hold_and_drain")) == ["config_set", "revoked"]
    back = world.commit(run_absent(RUN))
    assert kinds(back) == ["released", "requeued", "waiting"]
    assert world.job.strikes == 0


def test_a_strict_queue_lets_nobody_pass_its_first_job_and_others_go_on() -> None:
    queues = (Queue(name="research", queueing_strategy="strict_fifo"), Queue(name="batch"))
    world = World(body=config_body(*queues))
    world.say(admitted("k1", job_spec(role(gpus=9))), admitted("k2", job_spec(role(gpus=1))))
    world.say(admitted("k3", job_spec(role(gpus=1), queue="batch")))
    placed = world.place()
    assert [r.job_id for r in placed.records if r.kind == "allocated"] == [job_id(SHARD, "lab", "k3")]
    assert reasons(placed) == [Code.NO_FIT, Code.BEHIND_QUEUE_HEAD]


# -- flavors and borrowing ------------------------------------------------------------------------------------------


def flavored(*quotas: Quota, **more: Any) -> World:
    flavors = (Flavor(name="new", gpu_models=("h100",)), Flavor(name="old", gpu_models=("a100",)))
    nodes = (node_seen("node-a", gpu_model="h100", gpus=2), node_seen("node-b", gpu_model="a100", gpus=8))
    return World(*nodes, body=config_body(Queue(name="research", quotas=quotas), flavors=flavors, **more))


def test_flavors_are_tried_in_the_order_of_the_queues_quotas() -> None:
    world = flavored(
        Quota(resource="gpu_milli", flavor="old", nominal=1000), Quota(resource="gpu_milli", flavor="new", nominal=2000)
    )
    world.say(*(admitted(f"k{n}") for n in range(4)))
    placed = world.place()
    taken = [(r.flavor, r.placements[0].node) for r in placed.records if r.kind == "allocated"]
    assert taken == [("old", "node-b"), ("new", "node-a"), ("new", "node-a")]
    assert reasons(placed) == [Code.WAITING_FOR_QUOTA]


def test_what_a_flavor_counts_comes_back_to_it() -> None:
    world = flavored(Quota(resource="gpu_milli", flavor="new", nominal=1000)).running()
    world.say(ended(reason=None))
    world.say(run_absent(RUN))
    assert world.state.queue_use.get("research/new").amount.gpu_milli == 0
    world.say(admitted("k2"))
    assert kinds(world.place()) == ["allocated"]


def family(**policy: Any) -> World:
    """Two queues with four GPUs each that lend to each other, on one node of eight."""
    quotas = (Quota(resource="gpu_milli", nominal=4000),)
    queues = (
        Queue(name="top"),
        Queue(name="research", parent="top", quotas=quotas),
        Queue(name="batch", parent="top", quotas=quotas),
    )
    return World(body=config_body(*queues, policy=Policy(min_runtime_seconds=0, **policy)))


def test_a_queue_borrows_what_its_sibling_does_not_use() -> None:
    world = family()
    world.say(*(admitted(f"k{n}", job_spec(role(gpus=2))) for n in range(5)))
    placed = world.place()
    assert kinds(placed) == ["allocated"] * 4 + ["waiting"]
    assert reasons(placed) == [Code.WAITING_FOR_QUOTA]


# -- idle, checkpoints ----------------------------------------------------------------------------------------------


def test_an_idle_run_is_warned_then_stopped_if_the_policy_says_so() -> None:
    policy = Policy(idle="requeue", idle_warn_seconds=60, idle_reclaim_seconds=120)
    world = World(body=config_body(policy=policy)).running()
    assert world.say(idle(59)) == []
    assert world.say(idle(60)) == ["warned"]
    assert world.say(idle(119), ms=59_000) == []
    assert world.say(idle(181), ms=61_000) == ["revoked"]
    assert world.run.revoked.code is Code.IDLE  # type: ignore[union-attr]


def test_a_run_that_works_again_is_warned_anew_before_it_is_stopped() -> None:
    policy = Policy(idle="fail", idle_warn_seconds=60, idle_reclaim_seconds=120)
    world = World(body=config_body(policy=policy)).running()
    assert world.say(idle(60)) == ["warned"]
    assert world.say(idle(0)) == ["warned"]
    assert world.run.idle_ts == 0
    assert world.say(idle(500), ms=500_000) == ["warned"]


def test_without_a_policy_idle_runs_are_left_alone() -> None:
    assert World().running().say(idle(10**6)) == []


def test_a_checkpoint_is_remembered_for_the_next_attempt() -> None:
    world = World().running()
    saved = CheckpointSaved(kind="checkpoint_saved", run_id=RUN, path="/data/step-7")
    assert world.say(saved) == ["saved"]
    assert (world.run.saved_ts, world.job.saved_path) == (world.ts, "/data/step-7")


# -- plans ----------------------------------------------------------------------------------------------------------


def test_a_plan_is_one_decision_victims_and_earmark_together() -> None:
    world = contested()
    assert world.say(plan()) == ["revoked", "earmark_set", "waiting"]
    assert world.job.reason.code is Code.PREEMPTED  # type: ignore[union-attr]
    assert world.state.jobs.get(K2).reason.code is Code.WAITING_FOR_PREEMPTED


def test_the_preemptor_starts_with_the_release_and_the_victim_waits_again() -> None:
    world = contested()
    world.commit(plan())
    assert world.say(run_absent(RUN)) == ["released", "requeued", "earmark_ended", "allocated"]
    assert (world.job.evictions, world.job.strikes, world.job.attempt) == (1, 0, 1)
    assert kinds(world.place()) == ["waiting"]


def test_nobody_takes_the_room_that_was_made() -> None:
    world = contested()
    world.commit(plan())
    world.commit(admitted("k3", job_spec(role(gpus=1), priority_class="urgent")))
    world.place()
    assert world.state.jobs.get(job_id(SHARD, "lab", "k3")).phase.value == "queued"
    assert world.say(run_absent(RUN))[-1] == "allocated"
    assert world.state.jobs.get(K2).phase.value == "allocated"


def test_a_plan_is_refused_when_its_victim_does_not_run_any_more() -> None:
    world = contested()
    world.commit(ended(reason=None))
    assert refusal(world.commit(plan())) is Code.VICTIM_GONE


def test_a_plan_that_names_a_victim_twice_is_refused() -> None:
    assert refusal(contested().commit(plan(victims=(RUN, RUN)))) is Code.VICTIM_GONE


def test_a_plan_is_refused_when_its_victims_quota_is_not_enough_for_the_job() -> None:
    policy = Policy(preset="priority", min_runtime_seconds=0)
    world = World(node_seen(), node_seen("node-b"), body=config_body(queue(gpu_milli=8000), policy=policy))
    world.queued(role(gpus=4)).place()
    world.commit(made(), started())
    world.commit(drain(world.run.placements[0].node))
    world.commit(admitted("beside", job_spec(role(gpus=4), priority_class="urgent")))
    world.place()
    world.commit(drain(world.run.placements[0].node, undo=True))
    world.commit(admitted("k2", job_spec(role(gpus=8), priority_class="urgent")))
    place = Placement(0, "worker", world.run.placements[0].node, tuple(range(8)), 1000)
    assert refusal(world.commit(plan(placements=(place,)))) is Code.WAITING_FOR_QUOTA


def test_a_plan_is_refused_under_a_preset_that_does_not_allow_it() -> None:
    assert refusal(contested(preset="off").commit(plan())) is Code.NOT_ALLOWED_BY_PRESET
    assert refusal(contested(preset="off").commit(plan(cause="reclaim"))) is Code.NOT_ALLOWED_BY_PRESET


def test_a_plan_is_refused_when_a_budget_is_spent() -> None:
    assert refusal(contested(evictions_max=0).commit(plan())) is Code.EVICTION_BUDGET_SPENT
    assert refusal(contested(min_runtime_seconds=3600).commit(plan())) is Code.EVICTION_BUDGET_SPENT


def test_a_plan_is_refused_when_it_would_not_fit() -> None:
    assert refusal(contested().commit(plan(gpus=7))) is Code.PLAN_DOES_NOT_FIT


def test_a_plan_for_a_job_that_does_not_wait_is_refused() -> None:
    world = contested()
    world.commit(hold(K2))
    assert refusal(world.commit(plan())) is Code.NOT_WAITING


def test_no_plan_evicts_an_equal() -> None:
    world = contested()
    lower = PriorityRequested(kind="priority_requested", job_id=K2, priority_class="normal")
    world.commit(lower)
    assert refusal(world.commit(plan())) is Code.NOT_ALLOWED_BY_PRESET


def test_room_made_on_a_node_that_is_lost_is_given_up() -> None:
    world = contested()
    world.commit(plan())
    assert world.say(node_seen(ready=False))[:2] == ["node_changed", "earmark_ended"]


def test_a_held_or_cancelled_owner_gives_its_room_up() -> None:
    world = contested()
    world.commit(plan())
    assert world.say(hold(K2))[0] == "earmark_ended"


def test_lent_quota_is_taken_back_whatever_the_class_of_the_borrower_is_not_higher() -> None:
    world = family(preset="fair")
    world.say(*(admitted(f"k{n}", job_spec(role(gpus=2))) for n in range(1, 5)))
    world.place()
    for n in range(1, 5):
        run = f"{job_id(SHARD, 'lab', f'k{n}')}-1"
        world.commit(made(run))
        world.commit(started(run))
    owner = admitted("o", job_spec(role(gpus=2), queue="batch"))
    world.commit(owner)
    assert reasons(world.place()) == [Code.WAITING_FOR_QUOTA]
    victim = world.state.runs.get(f"{job_id(SHARD, 'lab', 'k4')}-1")
    place = Placement(0, "worker", "node-a", victim.placements[0].devices, 1000)
    reclaim = plan((victim.run_id,), job=owner.job_id, cause="reclaim").model_copy(update={"placements": (place,)})
    assert world.say(reclaim)[:2] == ["revoked", "earmark_set"]
    assert world.state.jobs.get(victim.job_id).reason.code is Code.RECLAIMED
    assert world.say(run_absent(victim.run_id))[-2:] == ["earmark_ended", "allocated"]


# -- submitted held, and checkpoints that programs report themselves ---------------------------------------------------


def test_a_job_that_was_submitted_held_is_never_in_line_before_it_is_released() -> None:
    world = World()
    taken = world.commit(admitted().model_copy(update={"held": True}))
    assert kinds(taken) == ["job_queued", "held", "waiting"]
    assert world.line().jobs == ()
    world.commit(hold(undo=True))
    assert world.line().jobs == (K1,)


def test_the_same_submit_again_without_the_hold_changes_nothing() -> None:
    world = World()
    world.commit(admitted().model_copy(update={"held": True}))
    assert world.say(admitted()) == []
    assert world.job.held


def reported(path: str = "/data/7", attempt: int = 0, tenant: str = "lab", job: str = K1) -> CheckpointReported:
    return CheckpointReported(kind="checkpoint_reported", job_id=job, tenant=tenant, path=path, attempt=attempt)


def test_a_checkpoint_that_is_reported_is_one_that_its_pod_shows() -> None:
    by_pod, by_owner = World().running(), World().running()
    by_pod.commit(CheckpointSaved(kind="checkpoint_saved", run_id=RUN, path="/data/7"))
    message = by_owner.commit(reported())
    assert kinds(message) == ["saved"]
    assert by_owner.job.saved_path == by_pod.job.saved_path == "/data/7"
    assert by_owner.state.runs.get(RUN).saved_ts == by_pod.state.runs.get(RUN).saved_ts == message.ts


def test_a_report_for_the_run_there_is_counts_and_one_for_another_does_not() -> None:
    world = World().running()
    assert world.say(reported(attempt=1)) == ["saved"]
    assert world.say(reported(attempt=2)) == []


def test_a_path_that_is_used_again_counts_with_its_new_time() -> None:
    world = World().running()
    assert world.say(reported("/a"), reported("/a")) == ["saved"]
    assert world.say(reported("/b"), reported("/a")) == ["saved"]  # of a pod that is slower than another
    assert (world.say(reported("/a"), ms=AGAIN_MS), world.job.saved_path) == (["saved"], "/a")
    assert world.run.saved_ts == world.ts
    assert world.say(reported("/b")) == []
    shown = CheckpointSaved(kind="checkpoint_saved", run_id=RUN, path="/b")
    assert world.say(shown, ms=AGAIN_MS) == []


def test_a_report_of_a_strangers_job_of_one_that_waits_or_of_none_is_nothing() -> None:
    world = World().running()
    assert world.say(reported(tenant="other"), reported(job=K2)) == []
    world.commit(admitted("k2", job_spec(role(gpus=8, replicas=9))))
    assert "saved" not in world.say(reported(job=K2))


def test_a_template_that_changed_meanwhile_makes_a_retry_no_conflict() -> None:
    source = FromTemplate(name="tune", config_version=1, asked="ab" * 32)
    first = admitted("k1", job_spec(name="one")).model_copy(update={"template": source})
    later = source.model_copy(update={"config_version": 2})
    again = admitted("k1", job_spec(name="two")).model_copy(update={"template": later})
    other = again.model_copy(update={"template": later.model_copy(update={"asked": "cd" * 32})})
    world = World()
    assert world.say(first) == ["job_queued"]
    assert world.say(again) == []
    assert world.say(other) == ["job_turned_away"]
