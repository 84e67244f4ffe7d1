"""Changes of a job's spec after its submit: what a waiting job gets, what a run gets, and what is refused by name."""

from typing import Any

import pytest

from tessera.engine.queueing import updates as engine
from tessera.scheduler.decide import updates
from tessera_schemas.base import job_id
from tessera_schemas.config import Queue
from tessera_schemas.facts import HoldRequested, RequeueRequested, UpdateRequested
from tessera_schemas.job import JobArray
from tessera_schemas.ledger import FORMAT, JobTurnedAway
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.arrays import Dependency, task_id
from tessera_schemas.work.spec_changes import SpecChanges
from tests.builders import SHARD, admitted, config_body, job_spec, queue, role, run_absent
from tests.unit.scheduler.committer_world import K1, RUN, World, cancel, kinds, made, reasons, started

K2 = job_id(SHARD, "lab", "k2")
THEIRS = job_id(SHARD, "other", "theirs")


def update(tenant: str = "lab", job: str = K1, **changes: Any) -> UpdateRequested:
    said = SpecChanges.model_validate(changes)
    return UpdateRequested(kind="update_requested", job_id=job, tenant=tenant, changes=said)


def on(job: str, condition: str = "afterok") -> tuple[Dependency, ...]:
    return (Dependency.model_validate({"condition": condition, "job": job}),)


def refused(world: World, fact: UpdateRequested) -> list[Reason]:
    """The reasons against the only record that the fact leads to."""
    message = world.commit(fact)
    (record,) = message.records
    assert isinstance(record, JobTurnedAway), kinds(message)
    return list(record.reasons)


def short_of(reasons: list[Reason]) -> list[tuple[str, str]]:
    return [(reason.code, reason.field) for reason in reasons]


# -- while it waits


@pytest.mark.parametrize("tenant", ["lab", ""])
def test_a_waiting_job_gets_another_time_limit_higher_or_lower(tenant: str) -> None:
    world = World().queued(time_limit_seconds=60)
    for seconds in (3600, 30, 0):
        assert world.say(update(tenant, time_limit_seconds=seconds)) == ["job_updated"]
        assert world.job.time_limit_seconds == seconds
    assert world.say(update(tenant, time_limit_seconds=0)) == []  # it has none
    assert world.job.changes == SpecChanges(time_limit_seconds=0)


def test_a_tenant_stays_below_the_longest_time_limit_and_an_operator_may_go_beyond() -> None:
    world = World(body=config_body(Queue(name="research", time_limit_max_seconds=100))).queued(time_limit_seconds=60)
    (too_long,) = refused(world, update(time_limit_seconds=101))
    assert (too_long.code, too_long.numbers["time_limit_max_seconds"]) == (Code.EXCEEDS_JOB_LIMIT, 100)
    assert [reason.code for reason in refused(world, update(time_limit_seconds=0))] == [Code.EXCEEDS_JOB_LIMIT]
    assert world.say(update(time_limit_seconds=100)) == ["job_updated"]
    assert world.say(update("", time_limit_seconds=101)) == ["job_updated"]


def test_a_job_waits_for_its_new_begin_and_starts_at_once_without_one() -> None:
    world = World().queued()
    put_off = world.commit(update(begin_ts=world.state.ts + 60_000))
    assert (kinds(put_off), reasons(put_off)) == (["job_updated", "waiting"], [Code.BEGIN_TIME])
    assert kinds(world.place()) == []
    at_once = world.commit(update(begin_ts=0))
    assert (kinds(at_once), reasons(at_once)) == (["job_updated", "waiting"], [Code.WAITING_FOR_TURN])
    assert kinds(world.place()) == ["allocated"]


def test_a_job_that_has_run_keeps_its_begin_which_is_behind_it() -> None:
    world = World().running()
    world.commit(RequeueRequested(kind="requeue_requested", job_id=K1), HoldRequested(kind="hold_requested", job_id=K1))
    world.commit(run_absent(RUN))
    assert world.job.attempt == 1
    assert short_of(refused(world, update(begin_ts=world.state.ts + 60_000))) == [(Code.INVALID_FIELD, "begin_ts")]


def test_a_job_waits_for_another_from_then_on_and_for_none_once_that_is_taken_back() -> None:
    world = World().queued()
    world.commit(admitted("k2"))
    bound = world.commit(update(job=K2, after=on(K1)))
    assert (kinds(bound), reasons(bound)) == (["job_updated", "waiting"], [Code.DEPENDENCY_NOT_MET])
    assert world.line().jobs == (K1,)
    freed = world.commit(update(job=K2, after=()))
    assert (kinds(freed), reasons(freed)) == (["job_updated", "waiting"], [Code.WAITING_FOR_TURN])
    assert world.line().jobs == (K1, K2)


def test_what_a_job_waits_for_now_is_what_its_end_brings_in_line() -> None:
    world = World().queued()
    world.commit(admitted("k2"))
    world.commit(update(job=K2, after=on(K1, "afterany")))
    assert "dependency_met" in kinds(world.commit(cancel()))


def test_another_condition_is_told_though_the_code_is_the_same() -> None:
    world = World().queued()
    world.commit(admitted("k2"))
    world.commit(update(job=K2, after=on(K1)))
    told = world.commit(update(job=K2, after=on(K1, "afterany")))
    assert kinds(told) == ["job_updated", "waiting"]
    assert world.state.jobs.get(K2).reason.detail == f"afterany of {K1}"


def test_no_job_waits_for_itself_by_way_of_others() -> None:
    world = World().queued()
    world.commit(admitted("k2", job_spec(after=on(K1))))
    world.commit(admitted("k3", job_spec(after=on(K2))))
    assert short_of(refused(world, update(after=on(K1)))) == [(Code.INVALID_FIELD, "after")]
    assert short_of(refused(world, update(after=on(job_id(SHARD, "lab", "k3"))))) == [(Code.INVALID_FIELD, "after")]


def test_no_job_waits_for_a_younger_one_that_waits_for_all_of_its_name() -> None:
    singleton = (Dependency(condition="singleton"),)
    world = World()
    world.commit(admitted("k0", job_spec(name="tune")))
    world.queued(name="train")
    world.commit(admitted("k2", job_spec(name="tune", after=singleton)))
    world.commit()
    assert world.say(update(name="tune")) == ["job_updated"]
    assert short_of(refused(world, update(after=on(K2)))) == [(Code.INVALID_FIELD, "after")]
    world.commit(update(name="other"))
    assert world.say(update(after=on(K2))) == ["job_updated", "waiting"]
    assert short_of(refused(world, update(name="tune"))) == [(Code.INVALID_FIELD, "name")]


def test_two_jobs_of_one_message_do_not_come_to_wait_for_each_other() -> None:
    world = World().queued()
    world.commit(admitted("k2"))
    records = kinds(world.commit(update(after=on(K2)), update(job=K2, after=on(K1))))
    assert (records.count("job_updated"), records.count("job_turned_away")) == (1, 1)


@pytest.mark.parametrize(
    ("after", "code", "field"),
    [
        (on(THEIRS), Code.NO_SUCH_JOB, "after[0].job"),
        (on("a" * 20), Code.NO_SUCH_JOB, "after[0].job"),
        (on(K2, "aftercorr"), Code.INVALID_FIELD, "after"),
    ],
    ids=["another tenant's", "none", "task by task"],
)
def test_a_job_comes_to_wait_for_no_job_that_it_could_not_have_named(
    after: tuple[Dependency, ...], code: Code, field: str
) -> None:
    world = World().queued()
    world.commit(admitted("k2"), admitted("theirs", tenant="other"))
    assert short_of(refused(world, update(after=after))) == [(code, field)]


def test_a_new_name_lets_those_go_that_waited_for_all_of_the_former_one() -> None:
    world = World().queued(name="train")
    world.commit(admitted("k2", job_spec(name="train", after=(Dependency(condition="singleton"),))))
    assert "dependency_met" not in kinds(world.commit())
    assert world.say(update(name="tune")) == ["job_updated"]
    assert world.job.name == "tune"
    assert "dependency_met" in kinds(world.commit())


# -- while it has a run


def test_a_run_gets_a_lower_time_limit_and_its_first_one() -> None:
    world = World().running()
    for seconds in (3600, 60):
        assert world.say(update(time_limit_seconds=seconds)) == ["job_updated"]
        assert world.job.time_limit_seconds == seconds


@pytest.mark.parametrize("tenant", ["lab", ""])
@pytest.mark.parametrize("seconds", [61, 0])
def test_nobody_raises_the_time_limit_of_a_run(tenant: str, seconds: int) -> None:
    world = World().running(time_limit_seconds=60)
    (why,) = refused(world, update(tenant, time_limit_seconds=seconds))
    assert (why.code, why.field) == (Code.NOT_WAITING, "time_limit_seconds")
    assert "Kubernetes" in why.detail


def test_a_run_gets_nothing_else_and_of_several_values_none() -> None:
    world = World().running(time_limit_seconds=60)
    against = refused(world, update(time_limit_seconds=30, name="new", begin_ts=world.state.ts + 9000, after=on(K1)))
    fields = {"name", "begin_ts", "after"}
    assert {(each.code, each.field) for each in against} == {(Code.NOT_WAITING, field) for field in fields}
    assert world.job.time_limit_seconds == 60


# -- whose


@pytest.mark.parametrize(
    ("fact", "code"),
    [
        (update("other", time_limit_seconds=5), Code.NO_SUCH_JOB),
        (update(job="a" * 20, time_limit_seconds=5), Code.NO_SUCH_JOB),
    ],
    ids=["another tenant's", "none"],
)
def test_strangers_change_nothing_and_the_refusal_is_recorded(fact: UpdateRequested, code: Code) -> None:
    assert [reason.code for reason in refused(World().queued(), fact)] == [code]


def test_what_has_ended_is_not_changed_any_more() -> None:
    world = World().queued()
    world.commit(cancel())
    assert [reason.code for reason in refused(world, update(time_limit_seconds=5))] == [Code.ALREADY_ENDED]


def test_below_its_format_a_ledger_has_no_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(updates, "UPDATES_FROM", FORMAT + 1)
    monkeypatch.setattr(engine, "UPDATES_FROM", FORMAT + 1)
    world = World().queued()
    assert world.say(update(time_limit_seconds=5)) == []
    said = SpecChanges(time_limit_seconds=5)
    assert [each.code for each in engine.update_faults(world.state, world.job, said, True)] == [Code.UNAVAILABLE]


# -- arrays


def array(world: World, tasks: str = "0-3", **spec: Any) -> World:
    world.commit(admitted("k1", job_spec(role(gpus=8), array=JobArray(tasks=tasks), **spec)))
    return world


def test_an_array_is_changed_with_all_of_it_that_waits() -> None:
    world = array(World())
    world.commit()
    world.place()  # a first task starts
    done = world.say(update(time_limit_seconds=50, name="sweep"))
    assert done.count("job_updated") == 4  # the array and the three tasks that wait
    limits = sorted((job.time_limit_seconds, job.name) for job in world.state.jobs.values())
    assert limits[0][0] == 0
    assert limits[1:] == [(50, "sweep")] * 4


def test_a_task_that_comes_later_is_as_its_array_is_then() -> None:
    world = array(World(), "0-1")
    world.commit(update(time_limit_seconds=50, begin_ts=world.state.ts + 60_000))
    world.commit()
    task = world.state.jobs.get(task_id(K1, 0))
    assert (task.time_limit_seconds, task.not_before > world.state.ts) == (50, True)
    assert task.changes == world.job.changes


def test_an_array_waits_for_others_until_its_first_task_is_queued() -> None:
    world = World()
    world.commit(admitted("k2"))
    array(world)
    assert world.say(update(after=on(K2)))[:1] == ["job_updated"]
    assert "task_queued" not in kinds(world.commit())
    world.commit(update(after=()))
    world.commit()
    assert short_of(refused(world, update(after=on(K2)))) == [(Code.INVALID_FIELD, "after")]


def test_a_task_has_its_arrays_name_and_waits_for_what_it_is_told() -> None:
    world = World()
    world.commit(admitted("k2"))
    array(world)
    world.commit()
    task = task_id(K1, 1)
    assert short_of(refused(world, update(job=task, name="alone"))) == [(Code.INVALID_FIELD, "name")]
    assert world.say(update(job=task, after=on(K2)))[:1] == ["job_updated"]
    assert short_of(refused(world, update(job=K2, after=on(K1)))) == [(Code.INVALID_FIELD, "after")]


# -- room that is kept


def test_a_run_that_is_allocated_has_a_deadline_already() -> None:
    world = World().queued(role(gpus=8), time_limit_seconds=60)
    world.place()
    assert [reason.code for reason in refused(world, update(time_limit_seconds=90))] == [Code.NOT_WAITING]
    world.commit(made())
    world.commit(started())
    assert world.say(update(time_limit_seconds=10)) == ["job_updated"]


def test_the_longest_limit_is_that_of_the_queue_it_waits_in() -> None:
    body = config_body(queue(), Queue(name="else", time_limit_max_seconds=10))
    assert World(body=body).queued().say(update(time_limit_seconds=11)) == ["job_updated"]
