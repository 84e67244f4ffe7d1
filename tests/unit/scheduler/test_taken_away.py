"""What a new configuration takes away: refused while live jobs name it, unless it says what becomes of them."""

from typing import Any

import pytest

from tessera.engine.explain.explanation import explain
from tessera.scheduler.decide.configuration import on_config_proposed
from tessera.scheduler.decide.draft import Draft
from tessera_schemas.base import job_id
from tessera_schemas.config import ConfigBody, Flavor, PriorityClass, Queue, Quota
from tessera_schemas.facts import MoveRequested
from tessera_schemas.job import JobArray
from tessera_schemas.ledger import ConfigRefused, EarmarkSet, LedgerMessage, TakenFact
from tessera_schemas.reasons import Code, Reason
from tests.builders import (
    SHARD,
    admitted,
    config_body,
    config_proposed,
    job_spec,
    node_seen,
    placement,
    queue,
    role,
    run_absent,
)
from tests.unit.scheduler.committer_world import K1, RUN, World, cancel, ended, kinds, made, reasons, started

K2 = job_id(SHARD, "lab", "k2")
THEIRS = job_id(SHARD, "other", "theirs")
LOW, NORMAL, HIGH = (
    PriorityClass(name=name, value=value) for name, value in (("low", -100), ("normal", 0), ("high", 100))
)


def apply(world: World, body: ConfigBody, abandon: bool = False) -> LedgerMessage:
    return world.commit(config_proposed(body, world.state.config.version, abandon))


def against(message: LedgerMessage) -> list[Reason]:
    refused = message.records[0]
    assert isinstance(refused, ConfigRefused), kinds(message)
    return [refused.reason, *refused.others]


def busy(**body: Any) -> World:
    """A node of 8 GPUs; k1 runs on all of them, k2 waits."""
    world = World(body=config_body(queue(), **body)) if body else World()
    runs(world)
    world.commit(admitted("k2", job_spec(role(gpus=8))))
    return world


def runs(world: World) -> None:
    """k1 runs on 8 GPUs."""
    world.queued(role(gpus=8)).place()
    world.commit(made())
    world.commit(started())


# -- refused ---------------------------------------------------------------------------------------------------------


def test_a_queue_that_live_jobs_name_is_not_taken_out_and_the_reason_counts_them_and_names_the_way_out() -> None:
    world = busy()
    (reason,) = against(apply(world, config_body(queue("else"))))
    assert (reason.code, reason.field) == (Code.STILL_IN_USE, "queues.research")
    assert reason.numbers == {"waiting": 1, "running": 1}
    assert "was: research" in reason.detail
    assert "--abandon" in reason.detail
    assert world.state.config.version == 1


def test_a_queue_with_live_jobs_gets_no_queues_below_it() -> None:
    below = config_body(queue(), Queue(name="child", parent="research"))
    (reason,) = against(apply(busy(), below))
    assert reason.field == "queues.research"
    assert "queues below it" in reason.detail


def test_tasks_of_an_array_count_also_those_that_are_not_queued_yet() -> None:
    world = World()
    world.commit(admitted("k1", job_spec(role(gpus=8), array=JobArray(tasks="0-9"))))
    (reason,) = against(apply(world, config_body(queue("else"))))
    assert reason.numbers == {"waiting": 10, "running": 0}


def test_a_tenant_with_live_jobs_is_not_taken_out() -> None:
    (reason,) = against(apply(busy(), config_body(tenants=("other",))))
    assert (reason.field, reason.numbers) == ("tenants.lab", {"waiting": 1, "running": 1})
    assert "NoSuchTenant" in reason.detail


def test_a_class_that_live_jobs_have_is_not_taken_out() -> None:
    (reason,) = against(apply(busy(), config_body(priority_classes=(LOW, HIGH))))
    assert reason.field == "priority_classes.normal"


def test_a_flavor_that_runs_are_counted_on_is_not_taken_out() -> None:
    flavored = Queue(name="research", quotas=(Quota(resource="gpu_milli", nominal=16_000, flavor="h100"),))
    world = World(body=config_body(flavored, flavors=(Flavor(name="h100", gpu_models=("h100",)),)))
    runs(world)
    assert world.run.flavor == "h100"
    (reason,) = against(apply(world, config_body()))
    assert (reason.field, reason.numbers) == ("flavors.h100", {"waiting": 0, "running": 1})


def test_each_name_has_its_reason() -> None:
    found = against(apply(busy(), config_body(queue("else"), tenants=("other",), priority_classes=(HIGH,))))
    assert [reason.field for reason in found] == ["priority_classes.normal", "queues.research", "tenants.lab"]


def test_what_no_live_job_names_is_taken_out_and_what_is_stranded_already_hinders_no_other_change() -> None:
    world = busy()
    world.commit(cancel(K2))
    world.commit(ended())
    world.commit(run_absent(RUN))
    assert not world.state.jobs.get(K1)
    assert kinds(apply(world, config_body(queue("else")))) == ["config_set"]
    world = busy()
    apply(world, config_body(queue("else")), abandon=True)
    assert kinds(apply(world, config_body(queue("third"))))[0] == "config_set"


def test_a_job_that_comes_in_the_same_message_counts() -> None:
    message = World().commit(admitted("k1"), config_proposed(config_body(queue("else")), 1))
    assert kinds(message)[-1] == "config_refused"


# -- abandoned -------------------------------------------------------------------------------------------------------


def test_with_abandon_what_waits_of_a_queue_waits_and_what_runs_goes_on() -> None:
    world = busy()
    message = apply(world, config_body(queue("else")), abandon=True)
    assert kinds(message)[0] == "config_set"
    assert "revoked" not in kinds(message)
    world.commit()
    told = world.state.jobs.get(K2)
    assert told is not None
    assert told.reason is not None
    assert told.reason.code is Code.NO_SUCH_QUEUE
    assert not world.run.stopping


def test_the_jobs_of_a_tenant_that_is_taken_out_wait_until_it_is_back_and_what_runs_goes_on() -> None:
    world = busy()
    apply(world, config_body(tenants=("other",)), abandon=True)
    assert reasons(world.commit(node_seen("node-b"))) == [Code.NO_SUCH_TENANT]
    assert world.line().jobs == ()
    assert kinds(world.place()) == []
    assert not world.run.stopping
    assert kinds(world.commit(admitted("theirs", tenant="other"))) == ["job_queued"]
    assert kinds(world.place()) == ["allocated"]
    apply(world, config_body())
    world.commit(node_seen("node-c"))
    assert kinds(world.place()) == ["allocated"]


def test_a_job_whose_tenant_was_taken_out_is_explained_so() -> None:
    world = World()
    world.queued()
    apply(world, config_body(tenants=("other",)), abandon=True)
    told = explain(world.state, K1, world.state.ts)
    assert told is not None
    assert told.reason is not None
    assert told.reason.code is Code.NO_SUCH_TENANT


def test_an_order_made_before_the_tenant_was_taken_out_starts_none_of_its_jobs() -> None:
    world = World()
    world.commit(admitted("k1"))
    before = world.line()
    apply(world, config_body(tenants=("other",)), abandon=True)
    assert "allocated" not in kinds(world.commit(orders=(before,)))


def test_the_array_of_a_tenant_that_is_taken_out_queues_no_more_tasks() -> None:
    world = World(body=config_body(tenants=("lab", "other")))
    world.commit(admitted("k1", job_spec(array=JobArray(tasks="0-9"))), config_proposed(config_body(), 1))
    apply(world, config_body(tenants=("other",)), abandon=True)
    for _ in range(3):
        assert "task_queued" not in kinds(world.commit())


def test_jobs_of_a_class_that_is_taken_out_count_as_the_lowest_there_is() -> None:
    world = World(body=config_body(priority_classes=(LOW, NORMAL, HIGH)))
    world.commit(admitted("k1", job_spec(priority_class="high")), admitted("k2", job_spec(priority_class="normal")))
    assert world.line().jobs == (K1, K2)
    apply(world, config_body(priority_classes=(LOW, NORMAL)), abandon=True)
    assert world.line().jobs == (K2, K1)


def test_room_that_is_kept_for_a_job_is_common_again_when_its_tenant_is_taken_out() -> None:
    world = World(body=config_body(policy={"backfill": "reserve"}))
    world.queued(role(gpus=4)).place()
    world.commit(admitted("k2", job_spec(role(gpus=8))))
    marked = placement(devices=(0,), node="node-a")
    mark = EarmarkSet(kind="earmark_set", owner=K2, cause="head", deadline=2**50, placements=(marked,))
    world.commit(admitted("k3", job_spec(role(gpus=1))))
    draft = Draft(world.state.overlay(), (), 100_000)
    draft.add(mark.model_copy(update={"owner": job_id(SHARD, "lab", "k3")}))
    fact = config_proposed(config_body(tenants=("other",)), world.state.config.version, abandon=True)
    on_config_proposed(Draft(draft.state, (TakenFact(seq=99, service="admission", fact=fact),), 100_000), 0, fact)
    assert not list(draft.state.earmarks.values())


# -- renamed ---------------------------------------------------------------------------------------------------------


def test_the_jobs_of_a_renamed_queue_go_with_it_what_runs_and_what_waits() -> None:
    world = busy()
    message = apply(world, config_body(Queue(name="science", was="research")))
    assert kinds(message)[:3] == ["config_set", "job_moved", "job_moved"]
    assert {job.queue for job in world.state.jobs.values()} == {"science"}
    assert world.run.queue == "science"
    assert world.state.held_by_queue("science").gpu_milli == 8000
    assert world.state.held_by_queue("research").gpu_milli == 0
    assert world.line().jobs == (K2,)
    world.commit(ended())
    world.commit(run_absent(RUN))
    assert kinds(world.place())[-1:] == ["allocated"]
    assert world.state.held_by_queue("science").gpu_milli == 8000


def test_a_queue_that_gets_queues_below_it_hands_its_jobs_to_one_of_them() -> None:
    world = busy()
    apply(world, config_body(queue(), Queue(name="rest", parent="research", was="research")))
    assert {job.queue for job in world.state.jobs.values()} == {"rest"}
    assert world.line().jobs == (K2,)


def test_jobs_of_a_renamed_class_get_the_new_one() -> None:
    world = World(body=config_body(priority_classes=(LOW, NORMAL, HIGH)))
    world.commit(admitted("k1", job_spec(priority_class="high")))
    urgent = PriorityClass(name="urgent", value=7, was="high")
    assert kinds(apply(world, config_body(priority_classes=(LOW, NORMAL, urgent))))[:2] == [
        "config_set",
        "priority_set",
    ]
    assert world.job.priority_class == "urgent"


def test_a_job_that_was_admitted_under_the_former_name_follows_and_abandoned_ones_are_found_again() -> None:
    world = busy()
    apply(world, config_body(queue("else")), abandon=True)
    world.commit()
    apply(world, config_body(queue("else"), Queue(name="science", was="research")))
    assert {job.queue for job in world.state.jobs.values()} == {"science"}
    world.commit(admitted("late", job_spec(queue="research")))
    world.commit()
    assert {job.queue for job in world.state.jobs.values()} == {"science"}
    assert len(world.line().jobs) == 2


def test_thousands_of_jobs_move_in_as_many_messages_as_it_takes() -> None:
    world = World()
    world.commit(*(admitted(f"k{n}", job_spec(role(gpus=0))) for n in range(9000)))
    apply(world, config_body(Queue(name="science", was="research")))
    assert any(job.queue == "research" for job in world.state.jobs.values())
    for _ in range(3):
        world.commit()
    assert {job.queue for job in world.state.jobs.values()} == {"science"}
    assert len(world.state.index.waiting["science"]) == 9000


@pytest.mark.parametrize(
    "body",
    [
        {"queues": [{"name": "research"}, {"name": "science", "was": "research"}]},
        {"queues": [{"name": "a", "was": "research"}, {"name": "b", "was": "research"}]},
        {"queues": [{"name": "a", "was": "research"}, {"name": "b", "parent": "a"}]},
        {"priority_classes": [{"name": "normal", "value": 0}, {"name": "low", "value": 1, "was": "normal"}]},
    ],
    ids=["the name is there itself", "two claim it", "an inner queue claims it", "the class is there itself"],
)
def test_a_former_name_that_says_nothing_certain_is_an_error_of_form(body: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="was:"):
        ConfigBody.model_validate({"tenants": [{"name": "lab"}], "queues": [{"name": "research"}], **body})


# -- moved -----------------------------------------------------------------------------------------------------------


def move(queue: str = "else", tenant: str = "lab", job: str = K1) -> MoveRequested:
    return MoveRequested(kind="move_requested", job_id=job, queue=queue, tenant=tenant)


def two_queues(**more: Any) -> World:
    world = World(
        body=config_body(queue(), Queue(name="else", **more), Queue(name="all"), Queue(name="x", parent="all"))
    )
    return world.queued(role(gpus=8))


def test_a_waiting_job_goes_to_another_queue_and_starts_there() -> None:
    world = two_queues()
    assert world.say(move()) == ["job_moved"]
    assert world.job.queue == "else"
    assert kinds(world.place()) == ["allocated"]
    assert world.run.queue == "else"


@pytest.mark.parametrize(
    ("wanted", "more"),
    [
        (move("nowhere"), {}),
        (move("all"), {}),
        (move("research"), {}),
        (move(tenant="other"), {}),
        (move(), {"tenants": ("other",)}),
        (move(tenant=""), {"tenants": ("other",)}),
    ],
    ids=["no queue", "an inner queue", "its own", "somebody else's", "a queue of others", "an operator, likewise"],
)
def test_a_job_goes_to_no_queue_that_does_not_take_it(wanted: MoveRequested, more: dict[str, Any]) -> None:
    assert two_queues(**more).say(wanted) == []


def test_no_tenant_moves_a_job_around_the_longest_time_limit_of_a_queue_and_an_operator_may() -> None:
    world = two_queues(time_limit_max_seconds=60)
    assert world.say(move()) == []
    assert world.say(move(tenant="")) == ["job_moved"]


def test_a_job_that_runs_stays_in_its_queue() -> None:
    world = two_queues()
    world.place()
    world.commit(made())
    world.commit(started())
    assert world.say(move()) == []


def test_an_array_goes_with_all_of_it_that_waits() -> None:
    world = World(body=config_body(queue(), queue("else")))
    world.commit(admitted("k1", job_spec(role(gpus=8), array=JobArray(tasks="0-3"))))
    world.commit()
    world.place()
    moved = world.say(move())
    assert moved.count("job_moved") == 4  # the array and the three tasks that wait
    assert sorted({job.queue for job in world.state.jobs.values()}) == ["else", "research"]


def test_a_job_of_a_stopped_queue_that_moves_is_told_why_it_waits_then() -> None:
    world = World(body=config_body(Queue(name="research", stop_policy="hold"), queue("else")))
    world.queued()
    assert world.job.reason is not None
    assert world.job.reason.code is Code.QUEUE_STOPPED
    moved = world.commit(move(tenant=""))
    assert (kinds(moved)[0], reasons(moved)[:1]) == ("job_moved", [Code.WAITING_FOR_TURN])
    assert kinds(world.place()) == ["allocated"]


# -- runs of an abandoned queue --------------------------------------------------------------------------------------
