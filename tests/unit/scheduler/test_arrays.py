"""Arrays and jobs that wait for others, by the real committer, and judged by the three checkers."""

from typing import Any

import pytest

from tessera.domain.storing.snapshot import dump, load
from tessera.domain.storing.statehash import StateHash
from tessera.engine.explain.explanation import explain
from tessera.scheduler import decide
from tessera.testkit.checker import check
from tessera.testkit.relations_checker import check_relations
from tessera.testkit.rules_checker import check_rules
from tessera_schemas.base import job_id
from tessera_schemas.config import Limits, Tenant
from tessera_schemas.facts import CancelRequested, HoldRequested, PriorityRequested, RunEnded
from tessera_schemas.job import CheckpointPolicy, Retry
from tessera_schemas.ledger import LEDGER_MESSAGE
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.ledger_form import ARRAY_SLOTS_FROM
from tessera_schemas.work.arrays import Dependency, JobArray, task_id
from tests.builders import SHARD, admitted, config_proposed, job_spec, node_seen, role, run_absent
from tests.rounds import Rounds

FAILED = Reason(code=Code.POD_FAILED, numbers={"exit_code": 3})


def shard(gpus: int = 8, **more: Any) -> Rounds:
    return Rounds(nodes={"node-a": gpus}, **more)


def submit(rounds: Rounds, key: str, tasks: str = "", limit: int | None = None, **more: Any) -> str:
    array = JobArray(tasks=tasks, limit=limit) if tasks else None
    once = {"retry": Retry(max_attempts=1), "name": key} | more
    return rounds.commit(admitted(key, job_spec(role(gpus=1), array=array, **once))) and job_id(SHARD, "lab", key)


def ends(rounds: Rounds, job: str, well: bool = True) -> None:
    """The run of a job ends and is absent."""
    run = rounds.state.jobs.get(job).run_id
    rounds.commit(RunEnded(kind="run_ended", run_id=run, reason=None if well else FAILED, own=not well))
    rounds.commit(run_absent(run))


def phase(rounds: Rounds, job: str) -> str:
    return (rounds.state.jobs.get(job) or rounds.state.ended.get(job)).phase.value


def running(rounds: Rounds, array: str) -> list[int]:
    return sorted(job.task for job in rounds.state.jobs.values() if job.task_of == array and job.started_ts)


def records(rounds: Rounds, kind: str) -> list[Any]:
    read = [LEDGER_MESSAGE.validate_json(stored) for stored in rounds.stored]
    return [record for message in read for record in message.records if record.kind == kind]


def codes(rounds: Rounds, job: str) -> list[Code]:
    """The reasons that explain gives, in its order."""
    said = explain(rounds.state, job, rounds.ts)
    assert said is not None
    assert said.reason is not None
    return [said.reason.code, *(reason.code for reason in said.others)]


@pytest.fixture
def rounds() -> Any:
    made = shard()
    yield made
    report = check(made.stored)
    check_rules(report, made.stored)
    check_relations(report, made.stored)
    assert report.violations == []
    hasher = StateHash()
    assert hasher.of(load(dump(made.state))) == made.shard.hasher.of(made.state)
    restored = load(dump(made.state)).relations
    kept = made.state.relations
    assert (restored.tasks, restored.families, restored.open) == (kept.tasks, kept.families, kept.open)


def test_an_array_is_one_record_and_its_tasks_are_jobs_that_know_their_index(rounds: Rounds) -> None:
    array = submit(rounds, "sweep", "0-9:3")
    rounds.settle()
    expected = [(task_id(array, index), index) for index in (0, 3, 6, 9)]
    assert [(record.job_id, record.task) for record in records(rounds, "task_queued")] == expected
    assert len(records(rounds, "job_queued")) == 1
    assert running(rounds, array) == [0, 3, 6, 9]
    assert rounds.state.jobs.get(array).reason.code is Code.ARRAY_TASKS


def test_no_more_tasks_are_on_their_way_than_the_limit_says(rounds: Rounds) -> None:
    array = submit(rounds, "sweep", "0-9", limit=3)
    rounds.settle()
    assert running(rounds, array) == [0, 1, 2]
    ends(rounds, task_id(array, 1))
    rounds.settle()
    assert running(rounds, array) == [0, 2, 3]


def test_tasks_that_follow_an_array_which_ended_before_it_queued_any_do_not_wait_for_ever(rounds: Rounds) -> None:
    first = submit(rounds, "first")
    never = submit(rounds, "never", "0-2", after=(Dependency(condition="afternotok", job=first),))
    rounds.settle()
    ends(rounds, first)
    rounds.settle()
    assert phase(rounds, never) == "cancelled"
    follows = submit(rounds, "follows", "0-2", after=(Dependency(condition="aftercorr", job=never),))
    rounds.settle()
    rounds.settle()
    assert phase(rounds, follows) == "failed"
    assert phase(rounds, task_id(follows, 0)) == "cancelled"


def test_an_array_succeeds_when_all_its_tasks_have(rounds: Rounds) -> None:
    array = submit(rounds, "sweep", "0-2")
    rounds.settle()
    for index in range(3):
        ends(rounds, task_id(array, index))
    rounds.settle()
    assert phase(rounds, array) == "succeeded"
    assert rounds.state.ended.get(task_id(array, 1)).task_of == array


def test_an_array_fails_with_counts_when_a_task_has_failed(rounds: Rounds) -> None:
    array = submit(rounds, "sweep", "0-2")
    rounds.settle()
    for index in range(3):
        ends(rounds, task_id(array, index), well=index != 1)
    rounds.settle()
    ended = rounds.state.ended.get(array)
    assert (ended.phase.value, ended.reason.code) == ("failed", Code.TASKS_FAILED)
    assert ended.reason.numbers == {"succeeded": 2, "failed": 1, "cancelled": 0}


def test_ten_thousand_tasks_are_one_record_and_a_window_of_live_jobs(rounds: Rounds) -> None:
    array = submit(rounds, "sweep", "0-9999")
    rounds.settle()
    job = rounds.state.jobs.get(array)
    assert (job.array.count, job.array.waiting, job.array.live) == (10_000, 256, 264)
    assert len(rounds.state.jobs) == 265
    assert len(records(rounds, "job_queued")) == 1
    queued = [record.to_bytes() for record in records(rounds, "task_queued")]
    assert max(map(len, queued)) < 128


def test_cancelling_an_array_ends_its_tasks_first_and_then_the_array(rounds: Rounds) -> None:
    array = submit(rounds, "sweep", "0-99")
    rounds.settle()
    rounds.commit(CancelRequested(kind="cancel_requested", job_id=array, tenant="lab", why="enough"))
    rounds.settle()
    assert phase(rounds, array) == "cancelled"
    assert not len(rounds.state.jobs)
    assert phase(rounds, task_id(array, 5)) == "cancelled"
    assert rounds.state.tenant_use.get("lab").jobs == 0


@pytest.mark.parametrize("first", [False, True])
def test_a_cancel_now_of_an_array_is_one_for_each_of_its_tasks(rounds: Rounds, first: bool) -> None:
    array = submit(rounds, "sweep", "0-3", checkpoint=CheckpointPolicy(interval_seconds=9, notice_seconds=600))
    rounds.settle()
    cancel = CancelRequested(kind="cancel_requested", job_id=array, tenant="lab")
    if first:
        rounds.commit(cancel)
        rounds.commit()
        assert not any(run.hurried for run in rounds.state.runs.values())
    for _ in range(2):
        rounds.commit(cancel.model_copy(update={"now": True}))
    rounds.commit()
    runs = list(rounds.state.runs.values())
    assert [(run.then, run.hurried) for run in runs] == [("cancelled", True)] * 4
    assert len(records(rounds, "array_closed")) == 1 + first


def test_cancelling_a_task_leaves_the_others(rounds: Rounds) -> None:
    array = submit(rounds, "sweep", "0-2")
    rounds.settle()
    rounds.commit(CancelRequested(kind="cancel_requested", job_id=task_id(array, 1), tenant="lab"))
    rounds.settle()
    assert running(rounds, array) == [0, 2]


def test_a_held_array_starts_nothing_until_it_is_let_go(rounds: Rounds) -> None:
    array = submit(rounds, "sweep", "0-99")
    rounds.commit(HoldRequested(kind="hold_requested", job_id=array, tenant="lab"))
    rounds.settle()
    assert running(rounds, array) == []
    rounds.commit(HoldRequested(kind="hold_requested", job_id=array, tenant="lab", undo=True))
    rounds.settle()
    assert len(running(rounds, array)) == 8


def test_another_priority_class_of_an_array_is_that_of_its_waiting_tasks(rounds: Rounds) -> None:
    array = submit(rounds, "sweep", "0-19")
    rounds.settle()
    rounds.commit(PriorityRequested(kind="priority_requested", job_id=array, tenant="lab", priority_class="high"))
    assert rounds.state.jobs.get(task_id(array, 15)).priority_class == "high"
    assert rounds.state.jobs.get(task_id(array, 0)).priority_class == "normal"


@pytest.mark.parametrize("limits", [Limits(jobs=4), Limits(pods=3)], ids=["jobs", "pods"])
def test_tasks_count_against_the_limits_of_their_tenant_as_they_are_queued(limits: Limits) -> None:
    rounds = shard()
    tenants = (Tenant(name="lab", limits=limits),)
    body = rounds.state.config.body.model_copy(update={"tenants": tenants})
    rounds.commit(config_proposed(body, rounds.state.config.version))
    array = submit(rounds, "sweep", "0-9")
    rounds.settle()
    assert running(rounds, array) == [0, 1, 2]
    assert codes(rounds, array) == [Code.LIMIT_EXCEEDED, Code.ARRAY_TASKS]
    ends(rounds, task_id(array, 0))
    rounds.settle()
    assert running(rounds, array) == [1, 2, 3]


def test_an_array_of_a_stopped_queue_queues_nothing_until_it_is_open() -> None:
    rounds = shard()
    body = rounds.state.config.body
    for policy, queued in (("hold", 0), ("none", 8)):
        queues = tuple(queue.model_copy(update={"stop_policy": policy}) for queue in body.queues)
        rounds.commit(config_proposed(body.model_copy(update={"queues": queues}), rounds.state.config.version))
        array = job_id(SHARD, "lab", "sweep") if queued else submit(rounds, "sweep", "0-9")
        rounds.settle()
        assert len(running(rounds, array)) == queued
        assert codes(rounds, array)[0] is (Code.ARRAY_TASKS if queued else Code.QUEUE_STOPPED)


def test_a_task_that_fails_is_tried_again_as_any_job(rounds: Rounds) -> None:
    array = submit(rounds, "sweep", "0-1", retry=Retry(max_attempts=3, on_failure=True, backoff_seconds=0))
    rounds.settle()
    ends(rounds, task_id(array, 0), well=False)
    rounds.settle()
    assert rounds.state.jobs.get(task_id(array, 0)).attempt == 2


# -- the limit bounds what runs


def hold(rounds: Rounds, job: str, undo: bool = False) -> None:
    rounds.commit(HoldRequested(kind="hold_requested", job_id=job, tenant="lab", undo=undo))


def test_tasks_in_back_off_and_held_ones_keep_no_slots_and_start_only_in_a_free_one(rounds: Rounds) -> None:
    retry = Retry(max_attempts=3, on_failure=True, backoff_seconds=60)
    array = submit(rounds, "sweep", "0-9", limit=2, retry=retry)
    rounds.settle()
    ends(rounds, task_id(array, 0), well=False)
    rounds.settle()
    assert running(rounds, array) == [1, 2]
    ends(rounds, task_id(array, 1))
    rounds.settle()
    assert running(rounds, array) == [2, 3]
    rounds.ts += 61_000
    rounds.settle()
    assert running(rounds, array) == [2, 3]  # its back-off is over, and both slots are taken
    assert codes(rounds, task_id(array, 0))[0] is Code.ARRAY_LIMIT
    assert rounds.state.jobs.get(task_id(array, 0)).reason.code is Code.ARRAY_LIMIT
    ends(rounds, task_id(array, 2))
    rounds.settle()
    assert running(rounds, array) == [0, 3]
    assert rounds.state.jobs.get(array).array.aside == 0


def test_a_held_task_keeps_no_slot(rounds: Rounds) -> None:
    blocker = submit(rounds, "blocker", name="other")
    rounds.commit(node_seen("node-a", 1))
    rounds.settle()
    array = submit(rounds, "sweep", "0-3", limit=1)
    rounds.settle()
    hold(rounds, task_id(array, 0))
    ends(rounds, blocker)
    rounds.settle()
    assert running(rounds, array) == [1]
    hold(rounds, task_id(array, 0), undo=True)
    rounds.settle()
    assert (running(rounds, array), codes(rounds, task_id(array, 0))[0]) == ([1], Code.ARRAY_LIMIT)
    ends(rounds, task_id(array, 1))
    rounds.settle()
    assert running(rounds, array) == [0]


def test_held_tasks_do_not_fill_the_window_for_the_others_up_to_a_bound(rounds: Rounds) -> None:
    array = submit(rounds, "sweep", "0-4999")
    rounds.settle()
    for _ in range(5):
        waiting = [job.job_id for job in rounds.state.jobs.values() if job.task_of == array and not job.attempt]
        for each in sorted(waiting):
            if not rounds.state.jobs.get(each).held:
                hold(rounds, each)
        rounds.settle()
    found = rounds.state.jobs.get(array).array
    assert (found.waiting, found.aside, found.running) == (1024, 1024, 8)
    rounds.commit(CancelRequested(kind="cancel_requested", job_id=array, tenant="lab"))
    rounds.settle()
    assert not len(rounds.state.jobs)


def test_an_older_ledger_counts_what_waits_in_back_off_until_its_format_rises(monkeypatch: pytest.MonkeyPatch) -> None:
    retry = Retry(max_attempts=3, on_failure=True, backoff_seconds=600)
    with monkeypatch.context() as older:
        older.setattr(decide, "FORMAT", ARRAY_SLOTS_FROM - 1)
        rounds = shard()
        array = submit(rounds, "sweep", "0-9", limit=2, retry=retry)
        rounds.settle()
        ends(rounds, task_id(array, 0), well=False)
        rounds.settle()
        assert (running(rounds, array), rounds.state.jobs.get(array).array.aside) == ([1], 0)
    rounds.settle()
    assert (running(rounds, array), rounds.state.jobs.get(array).array.aside) == ([1, 2], 1)


# -- jobs that wait for others


def after(condition: Any, job: str | None = None) -> tuple[Dependency, ...]:
    return (Dependency(condition=condition, job=job),)


@pytest.mark.parametrize(
    ("condition", "well", "then"),
    [
        ("afterok", True, "running"),
        ("afterok", False, "cancelled"),
        ("afternotok", True, "cancelled"),
        ("afternotok", False, "running"),
        ("afterany", True, "running"),
        ("afterany", False, "running"),
    ],
)
def test_a_job_waits_for_the_end_of_another(rounds: Rounds, condition: str, well: bool, then: str) -> None:
    first = submit(rounds, "first")
    second = submit(rounds, "second", after=after(condition, first))
    rounds.settle()
    assert phase(rounds, second) == "queued"
    assert rounds.state.jobs.get(second).reason.code is Code.DEPENDENCY_NOT_MET
    ends(rounds, first, well)
    rounds.settle()
    assert phase(rounds, second) == then
    if then == "cancelled":
        assert rounds.state.ended.get(second).reason.code is Code.DEPENDENCY_NEVER_SATISFIED


def test_after_waits_for_the_start(rounds: Rounds) -> None:
    blocker = submit(rounds, "first")
    held = submit(rounds, "held")
    second = submit(rounds, "second", after=after("after", held))
    rounds.commit(HoldRequested(kind="hold_requested", job_id=held, tenant="lab"))
    rounds.settle()
    assert (phase(rounds, blocker), phase(rounds, second)) == ("running", "queued")
    rounds.commit(HoldRequested(kind="hold_requested", job_id=held, tenant="lab", undo=True))
    rounds.settle()
    assert phase(rounds, second) == "running"


def test_what_can_never_come_true_ends_a_whole_chain(rounds: Rounds) -> None:
    first = submit(rounds, "first")
    second = submit(rounds, "second", after=after("afterok", first))
    third = submit(rounds, "third", after=after("afterok", second))
    rounds.settle()
    rounds.commit(CancelRequested(kind="cancel_requested", job_id=first, tenant="lab"))
    rounds.settle()
    assert (phase(rounds, second), phase(rounds, third)) == ("cancelled", "cancelled")


def test_a_dependency_on_a_job_that_has_ended_is_settled_at_once(rounds: Rounds) -> None:
    first = submit(rounds, "first")
    rounds.settle()
    ends(rounds, first)
    second = submit(rounds, "second", after=after("afterok", first))
    rounds.settle()
    assert phase(rounds, second) == "running"


def test_a_job_that_nobody_knows_or_another_tenant_has_cannot_be_waited_for(rounds: Rounds) -> None:
    other = rounds.commit(admitted("theirs", job_spec(role()), tenant="other")) and job_id(SHARD, "other", "theirs")
    for key, named in (("own", job_id(SHARD, "lab", "own")), ("nobody", "a" * 20), ("theirs", other)):
        submit(rounds, f"x-{key}", after=after("afterany", named))
    reasons = [r.reasons[0] for r in records(rounds, "job_turned_away")]
    assert [(reason.code, reason.field) for reason in reasons] == [(Code.NO_SUCH_JOB, "after[0].job")] * 3


def test_a_job_may_wait_for_an_array_as_a_whole(rounds: Rounds) -> None:
    array = submit(rounds, "sweep", "0-9", limit=2)
    reduce = submit(rounds, "reduce", after=after("afterok", array))
    for index in range(10):
        rounds.settle()
        assert phase(rounds, reduce) == "queued"
        ends(rounds, task_id(array, index))
    rounds.settle()
    assert phase(rounds, reduce) == "running"


def test_a_job_may_wait_for_a_task_that_is_not_queued_yet(rounds: Rounds) -> None:
    array = submit(rounds, "sweep", "0-9:3", limit=1)
    third, last = task_id(array, 3), task_id(array, 9)
    use = submit(rounds, "use", after=(*after("afterok", third), *after("after", last)))
    rounds.settle()
    assert rounds.state.jobs.get(third) is None
    assert phase(rounds, use) == "queued"
    for index in (0, 3, 6):
        ends(rounds, task_id(array, index))
        rounds.settle()
    assert [each.job for record in records(rounds, "dependency_met") for each in record.left] == [last]
    assert running(rounds, array) == [9]
    ends(rounds, last)
    rounds.settle()
    assert phase(rounds, use) == "running"


def test_a_job_and_the_array_of_whose_task_it_waits_may_come_in_one_message(rounds: Rounds) -> None:
    array, once = job_id(SHARD, "lab", "sweep"), {"retry": Retry(max_attempts=1)}
    sweep = job_spec(role(gpus=1), array=JobArray(tasks="0-1", limit=1), name="sweep", **once)
    use = job_spec(role(gpus=1), name="use", after=after("afterok", task_id(array, 1)), **once)
    rounds.commit(admitted("sweep", sweep), admitted("use", use))
    assert records(rounds, "job_turned_away") == []
    for index in (0, 1):
        rounds.settle()
        ends(rounds, task_id(array, index))
    rounds.settle()
    assert phase(rounds, job_id(SHARD, "lab", "use")) == "running"


@pytest.mark.parametrize(
    ("condition", "then"),
    [("afterok", "cancelled"), ("afternotok", "running"), ("afterany", "running"), ("after", "running")],
)
@pytest.mark.parametrize("submitted", ["before its first task", "while a task runs", "after its end"])
def test_a_task_that_its_array_never_queued_was_cancelled_with_it(
    rounds: Rounds, condition: str, then: str, submitted: str
) -> None:
    array = submit(rounds, "sweep", "0-2", limit=1)
    if submitted != "before its first task":
        rounds.settle()
    use = job_id(SHARD, "lab", "use")
    if submitted != "after its end":
        submit(rounds, "use", after=after(condition, task_id(array, 2)))
    rounds.commit(CancelRequested(kind="cancel_requested", job_id=array, tenant="lab"))
    rounds.settle()
    for task in [job for job in rounds.state.jobs.values() if job.task_of == array]:
        rounds.commit(run_absent(task.run_id))
    rounds.settle()
    assert phase(rounds, array) == "cancelled"
    if submitted == "after its end":
        assert load(dump(rounds.state)).remembered.cut_short(array) == array
        submit(rounds, "use", after=after(condition, task_id(array, 2)))
        rounds.settle()
    assert phase(rounds, use) == then
    if then == "cancelled":
        assert rounds.state.ended.get(use).reason.code is Code.DEPENDENCY_NEVER_SATISFIED


@pytest.mark.parametrize("has_ended", [False, True])
def test_a_task_outside_of_the_array_or_of_another_tenant_is_refused_by_its_name(
    rounds: Rounds, has_ended: bool
) -> None:
    array = submit(rounds, "sweep", "0-9:3", limit=1)
    if has_ended:
        rounds.commit(CancelRequested(kind="cancel_requested", job_id=array, tenant="lab"))
        rounds.settle()
    assert (rounds.state.jobs.get(array) is None) is has_ended
    submit(rounds, "outside", after=after("afterany", task_id(array, 4)))
    use = job_spec(role(), after=after("afterany", task_id(array, 9)))
    rounds.commit(admitted("theirs", use, tenant="other"))
    outside, theirs = (record.reasons[0] for record in records(rounds, "job_turned_away"))
    assert (outside.code, outside.field) == (Code.NO_SUCH_JOB, "after[0].job")
    assert outside.detail == f"{array}_4: the array has the tasks 0-9:3"
    assert (theirs.code, theirs.detail) == (Code.NO_SUCH_JOB, task_id(array, 9))


def test_a_task_whose_end_is_forgotten_is_refused_and_what_waits_for_it_ends(rounds: Rounds) -> None:
    array = submit(rounds, "sweep", "0-1", limit=1)
    rounds.settle()
    ends(rounds, task_id(array, 0))
    rounds.commit(HoldRequested(kind="hold_requested", job_id=array, tenant="lab"))
    rounds.commit(ms=1000 * rounds.state.tree.policy.key_memory_seconds + 60_000)
    rounds.commit()
    assert rounds.state.ended.get(task_id(array, 0)) is None
    submit(rounds, "late", after=after("afterany", task_id(array, 0)))
    (reason,) = records(rounds, "job_turned_away")[-1].reasons
    assert (reason.code, reason.detail) == (Code.NO_SUCH_JOB, f"{array}_0: has ended, and how is forgotten")


def test_corresponding_tasks_wait_for_each_other(rounds: Rounds) -> None:
    array = submit(rounds, "make", "0-2")
    second = submit(rounds, "use", "0-2", after=after("aftercorr", array))
    rounds.settle()
    assert running(rounds, second) == []
    ends(rounds, task_id(array, 1))
    ends(rounds, task_id(array, 2), well=False)
    rounds.settle()
    assert running(rounds, second) == [1]
    assert phase(rounds, task_id(second, 2)) == "cancelled"


def test_arrays_that_do_not_correspond_are_turned_away(rounds: Rounds) -> None:
    array = submit(rounds, "make", "0-2")
    submit(rounds, "use", "0-3", after=after("aftercorr", array))
    assert records(rounds, "job_turned_away")[0].reasons[0].code is Code.INVALID_FIELD


def test_aftercorr_of_a_plain_job_is_afterok(rounds: Rounds) -> None:
    first = submit(rounds, "first")
    array = submit(rounds, "use", "0-1", after=after("aftercorr", first))
    rounds.settle()
    assert running(rounds, array) == []
    ends(rounds, first)
    rounds.settle()
    assert running(rounds, array) == [0, 1]


def test_of_singletons_one_runs_at_a_time(rounds: Rounds) -> None:
    jobs = [submit(rounds, f"k{i}", name="nightly", after=after("singleton")) for i in range(3)]
    other = submit(rounds, "other", name="daily", after=after("singleton"))
    rounds.settle()
    assert [phase(rounds, job) for job in jobs] == ["running", "queued", "queued"]
    assert phase(rounds, other) == "running"
    ends(rounds, jobs[0])
    rounds.settle()
    assert [phase(rounds, job) for job in jobs[1:]] == ["running", "queued"]


def test_a_job_with_a_time_to_begin_waits_for_it(rounds: Rounds) -> None:
    job = submit(rounds, "later", begin_ts=rounds.ts + 3_600_000)
    rounds.settle()
    assert rounds.state.jobs.get(job).reason.code is Code.BEGIN_TIME
    rounds.commit(ms=3_700_000)
    rounds.settle()
    assert phase(rounds, job) == "running"


def test_what_is_due_is_looked_at_once_and_not_in_every_message(rounds: Rounds) -> None:
    first = submit(rounds, "first")
    submit(rounds, "second", after=after("afterok", first))
    rounds.settle()
    assert rounds.state.relations.due == {}


@pytest.mark.parametrize("at_once", [False, True], ids=["later", "in the same message"])
@pytest.mark.parametrize("tasks", ["", "0-4"], ids=["job", "array"])
def test_an_id_that_begins_as_those_of_an_array_is_not_taken_in_beside_it(tasks: str, at_once: bool) -> None:
    rounds = shard()
    array = admitted("sweep", job_spec(role(gpus=1), array=JobArray(tasks="0-9")))
    spec = job_spec(role(), array=JobArray(tasks=tasks) if tasks else None)
    fact = admitted("collides", spec).model_copy(update={"job_id": array.job_id[:16] + "aaaa"})
    for facts in [(array, fact)] if at_once else [(array,), (fact,)]:
        rounds.commit(*facts)
    assert records(rounds, "job_turned_away")[0].reasons[0].code is Code.IDEMPOTENCY_CONFLICT


# -- why they wait


def test_explain_says_how_far_an_array_is(rounds: Rounds) -> None:
    array = submit(rounds, "sweep", "0-9", limit=4)
    rounds.settle()
    ends(rounds, task_id(array, 0))
    said = explain(rounds.state, array, rounds.ts)
    assert said is not None
    assert said.reason is not None
    assert said.reason.code is Code.ARRAY_TASKS
    numbers = {"tasks": 10, "not_queued": 5, "running": 3, "succeeded": 1}
    assert numbers.items() <= said.reason.numbers.items()


def test_explain_names_what_a_job_waits_for_and_when_it_begins(rounds: Rounds) -> None:
    first = submit(rounds, "first")
    second = submit(rounds, "second", after=after("afterok", first))
    later = submit(rounds, "later", begin_ts=rounds.ts + 3_600_000)
    rounds.settle()
    for job, code, detail in ((second, Code.DEPENDENCY_NOT_MET, f"afterok of {first}"), (later, Code.BEGIN_TIME, "")):
        said = explain(rounds.state, job, rounds.ts)
        assert said is not None
        assert said.reason is not None
        assert (said.reason.code, said.reason.detail) == (code, detail)
