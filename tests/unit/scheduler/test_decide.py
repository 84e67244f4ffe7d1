"""What the committer makes of each fact, at the head of the ledger and with what it decided before in view."""

from collections.abc import Callable
from typing import Any

import pytest

from tessera.domain.work.phases import Phase
from tessera.engine.queueing import readiness
from tessera.engine.queueing.allocation_size import ALLOCATION_BYTES_MAX, Longest, most_bytes
from tessera.scheduler.decide import runs
from tessera_schemas.base import job_id
from tessera_schemas.config import ConfigBody, Limits, Policy, Tenant
from tessera_schemas.facts import (
    AnyFact,
    JobRefused,
)
from tessera_schemas.job import Retry
from tessera_schemas.ledger import FORMAT
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.orders import Order
from tessera_schemas.subjects import MESSAGE_BYTES_MAX
from tests.builders import (
    SHARD,
    admitted,
    config_body,
    config_proposed,
    job_spec,
    node_seen,
    queue,
    role,
    run_absent,
)
from tests.unit.scheduler.committer_world import (
    FAILED,
    K1,
    RUN,
    World,
    bind_failed,
    bound,
    cancel,
    ended,
    kinds,
    made,
    reasons,
    started,
)

MINUTE_MS = 60_000


# -- jobs that come in ----------------------------------------------------------------------------------------------


def test_an_admitted_job_is_queued() -> None:
    assert World().say(admitted("k1")) == ["job_queued"]


def test_the_same_job_again_is_nothing_while_it_lives_and_after_it_ended() -> None:
    world = World().queued()
    assert world.say(admitted("k1")) == []
    world.say(cancel())
    assert world.say(admitted("k1")) == []


def test_the_same_job_twice_in_one_message_is_queued_once() -> None:
    assert World().say(admitted("k1"), admitted("k1")) == ["job_queued"]


@pytest.mark.parametrize("before", [World.queued, World.running, lambda w: w.queued().commit(cancel())])
def test_the_same_key_with_another_job_is_a_conflict(before: Callable[[World], Any]) -> None:
    world = World()
    before(world)
    message = world.commit(admitted("k1", job_spec(name="other")))
    assert kinds(message) == ["job_turned_away"]
    assert message.records[0].reasons[0].code is Code.IDEMPOTENCY_CONFLICT  # type: ignore[union-attr]


def test_a_refused_job_leaves_a_record_and_nothing_else() -> None:
    refused = JobRefused(kind="job_refused", tenant="lab", reasons=(Reason(code=Code.TOO_LARGE),))
    assert World().say(refused) == ["job_turned_away"]


def limited(**limits: int) -> ConfigBody:
    body = config_body()
    tenants = tuple(Tenant(name=tenant.name, limits=Limits(**limits)) for tenant in body.tenants)
    return body.model_copy(update={"tenants": tenants})


def test_jobs_above_the_tenants_limit_are_turned_away_also_within_one_message() -> None:
    world = World(body=limited(jobs=2))
    assert world.say(*(admitted(f"k{n}") for n in range(3))) == ["job_queued", "job_queued", "job_turned_away"]
    assert world.say(admitted("theirs", tenant="other")) == ["job_queued"]


def test_gpus_above_the_tenants_limit_are_turned_away_until_one_of_its_jobs_ends() -> None:
    world = World(body=limited(gpus=8))
    assert world.say(admitted("k1", job_spec(role(gpus=5))), admitted("k2", job_spec(role(gpus=4)))) == [
        "job_queued",
        "job_turned_away",
    ]
    assert world.say(admitted("k3", job_spec(role(gpus=0)))) == ["job_queued"]
    world.say(cancel())
    assert world.say(admitted("k4", job_spec(role(gpus=8)))) == ["job_queued"]


def test_a_job_of_a_queue_that_went_meanwhile_waits_and_says_so() -> None:
    message = World().commit(admitted("k1", job_spec(queue="gone")))
    assert kinds(message) == ["job_queued", "waiting"]
    assert reasons(message) == [Code.NO_SUCH_QUEUE]


# -- configuration --------------------------------------------------------------------------------------------------


def test_a_configuration_made_from_the_one_in_force_becomes_the_next() -> None:
    world = World()
    assert world.say(config_proposed(config_body(queue("new")), 1)) == ["config_set"]
    assert world.state.config.version == 2


def test_a_configuration_made_from_an_older_one_is_refused() -> None:
    world = World()
    assert world.say(config_proposed(config_body(queue("new")), 0)) == ["config_refused"]
    assert world.state.config.version == 1


def test_of_two_configurations_in_one_message_the_first_wins() -> None:
    one, two = (config_proposed(config_body(queue(name)), 1) for name in ("one", "two"))
    assert World().say(one, two) == ["config_set", "config_refused"]


def test_a_repeat_of_what_is_in_force_already_is_nothing() -> None:
    assert World().say(config_proposed(expected_version=0)) == []


def test_jobs_whose_queue_goes_are_told_once_and_start_when_it_is_back() -> None:
    world = World().queued()
    world.say(config_proposed(config_body(queue("else")), 1, abandon=True))
    assert reasons(world.commit()) == [Code.NO_SUCH_QUEUE]
    assert reasons(world.commit()) == []
    assert kinds(world.place()) == []
    world.say(config_proposed(expected_version=2))
    assert kinds(world.place()) == ["allocated"]


# -- nodes ----------------------------------------------------------------------------------------------------------


def test_a_node_is_recorded_when_it_differs_from_what_is_known() -> None:
    world = World()
    assert world.say(node_seen()) == []
    assert world.say(node_seen(ready=False)) == ["node_changed"]
    assert world.say(node_seen(ready=False)) == []
    assert world.say(node_seen(gpus=4)) == ["node_changed"]


def test_a_node_that_nobody_knew_is_not_missed_when_it_goes() -> None:
    assert World().say(node_seen("never", gone=True, ready=False)) == []


def test_a_busy_node_is_recorded_no_more_often_than_an_idle_one() -> None:
    world = World().running()
    assert world.say(node_seen()) == []


# -- a run's life ---------------------------------------------------------------------------------------------------


def test_a_normal_life_is_one_record_per_step() -> None:
    world = World().queued()
    assert kinds(world.place()) == ["allocated"]
    assert world.say(made()) == ["permitted"]
    assert world.say(bound()) == ["bound"]
    assert world.say(started()) == ["started"]
    assert world.say(ended(reason=None)) == ["finished"]
    assert world.say(run_absent(RUN)) == ["released"]
    assert world.state.ended.get(K1).phase is Phase.SUCCEEDED


def test_every_fact_said_twice_counts_once() -> None:
    world = World().allocated()
    said = [made(), bound(), started(), ended(reason=None), run_absent(RUN)]
    for fact in said:
        assert len(world.say(fact, fact)) == 1
        assert world.say(fact) == []
    assert world.say(*said) == []


def test_a_start_tells_that_the_pods_are_bound_and_a_success_tells_both() -> None:
    world = World().binding()
    assert world.say(started(), bound()) == ["bound", "started"]
    assert World().binding().say(ended(reason=None)) == ["bound", "started", "finished"]


def test_below_its_format_a_ledger_has_no_bind_that_nobody_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "STARTS_TELL_ALL_FROM", FORMAT + 1)
    assert World().binding().say(started()) == ["started"]
    assert World().binding().say(ended(reason=None)) == ["started", "finished"]


STRANGE = [made("a" * 20 + "-1"), bound("a" * 20 + "-1"), started("a" * 20 + "-1"), ended("a" * 20 + "-1")]


@pytest.mark.parametrize(
    "fact", [*STRANGE, bind_failed("a" * 20 + "-1"), run_absent("a" * 20 + "-1"), cancel("a" * 20)]
)
def test_a_fact_about_what_nobody_knows_is_nothing(fact: AnyFact) -> None:
    assert World().running().say(fact) == []


@pytest.mark.parametrize("fact", [bound(), started(), ended(reason=None), ended(), run_absent(RUN)])
def test_nothing_is_believed_of_a_run_before_its_permit(fact: AnyFact) -> None:
    assert World().allocated().say(fact) == []


def test_a_permit_needs_exactly_one_uid_per_pod() -> None:
    world = World().queued(role(replicas=2))
    world.place()
    assert world.say(made(pods=1)) == []
    assert world.say(made(pods=3)) == []
    assert world.say(made(pods=2)) == ["permitted"]


@pytest.mark.parametrize("fact", [made(), bound(), started(), ended(), ended(reason=None), bind_failed()])
def test_a_run_on_its_way_out_is_no_longer_believed(fact: AnyFact) -> None:
    assert World().evicting().say(fact) == []


def test_several_facts_of_one_run_in_one_message_each_see_the_ones_before() -> None:
    world = World().allocated()
    assert world.say(made(), bound(), started(), ended(reason=None), run_absent(RUN)) == [
        "permitted",
        "bound",
        "started",
        "finished",
        "released",
    ]


def test_what_one_job_gives_back_another_gets_in_the_same_message() -> None:
    world = World(node_seen(gpus=1)).running()
    world.say(admitted("k2"))
    line = world.line()
    assert kinds(world.commit(ended(reason=None), run_absent(RUN), orders=(line,))) == [
        "finished",
        "released",
        "allocated",
    ]


# -- ends that are no success ---------------------------------------------------------------------------------------


def test_a_program_that_fails_ends_its_job_after_its_pods_are_absent() -> None:
    world = World().running()
    assert world.say(ended()) == ["revoked", "node_backed_off"]
    assert world.job.phase is Phase.EVICTING
    message = world.commit(run_absent(RUN))
    assert kinds(message) == ["released", "finished"]
    end = world.state.ended.get(K1)
    assert (end.phase, end.reason, end.exit_code) == (Phase.FAILED, FAILED, 3)


def test_a_program_that_fails_is_tried_again_if_its_job_says_so() -> None:
    world = World().running(retry=Retry(on_failure=True))
    world.say(ended())
    assert kinds(world.commit(run_absent(RUN))) == ["released", "requeued"]


def test_a_failing_program_is_tried_again_until_the_attempts_are_used_up() -> None:
    world = World().running(retry=Retry(max_attempts=2, backoff_seconds=0, on_failure=True))
    world.say(ended())
    assert kinds(world.commit(run_absent(RUN))) == ["released", "requeued", "allocated"]
    second = f"{K1}-2"
    world.say(made(second), started(second), ended(second))
    assert kinds(world.commit(run_absent(second))) == ["released", "finished"]
    end = world.state.ended.get(K1)
    assert (end.phase, end.reason.code) == (Phase.FAILED, Code.ATTEMPTS_EXHAUSTED)
    assert end.reason.numbers == {"attempts": 2, "exit_code": 3}
    assert "boom" in end.reason.detail


def test_a_refused_bind_costs_no_attempt_and_the_job_waits_longer_each_time_up_to_a_minute() -> None:
    world, waits = World().allocated(retry=Retry(max_attempts=1)), []
    for attempt in range(1, 31):
        run = f"{K1}-{attempt}"
        assert world.say(bind_failed(run)) == ["revoked"]
        assert kinds(world.commit(run_absent(run))) == ["released", "requeued"]
        waits.append((world.job.not_before - world.ts) // 1000)
        assert "allocated" in kinds(world.place(ms=60_000))
    assert (waits[:8], set(waits[8:])) == ([1, 2, 4, 8, 16, 32, 60, 60], {60})
    assert (world.job.strikes, world.job.attempt) == (0, 31)


def test_a_bind_that_failed_after_the_start_is_an_old_story() -> None:
    assert World().running().say(bind_failed()) == []


@pytest.mark.parametrize("before", [World.allocated, World.binding])
def test_a_run_that_does_not_start_in_time_is_revoked_at_its_deadline(before: Callable[..., World]) -> None:
    world = before(World(body=config_body(policy=Policy(start_timeout_seconds=60))))
    assert world.say(ms=world.run.deadline - world.ts - 1) == []
    message = world.commit(ms=1)
    assert kinds(message) == ["revoked"]
    assert world.run.revoked == Reason(code=Code.START_TIMEOUT, numbers={"seconds": 60})


def test_a_run_that_started_in_time_is_left_alone() -> None:
    assert World().running().say(ms=10_000_000) == []


def test_a_back_off_doubles_with_every_strike_up_to_the_jobs_own_bound() -> None:
    retry = Retry(max_attempts=10, backoff_seconds=10, backoff_max_seconds=35, on_failure=True)
    world = World().queued(retry=retry)
    waits = []
    for attempt in range(1, 5):
        world.place(ms=MINUTE_MS)
        run = f"{K1}-{attempt}"
        world.say(made(run), ended(run))
        world.say(run_absent(run))
        waits.append((world.job.not_before - world.ts) // 1000)
    assert waits == [10, 20, 35, 35]


def test_a_job_in_back_off_does_not_start_although_it_is_in_line() -> None:
    world = World().queued()
    stale = world.line()
    world.commit(orders=(stale,))
    world.say(bind_failed())
    world.say(run_absent(RUN))
    assert kinds(world.commit(ms=900)) == []
    assert kinds(world.commit(ms=100)) == ["allocated"]


def test_the_absence_of_a_run_that_nobody_stopped_releases_nothing() -> None:
    world = World().running()
    assert world.say(run_absent(RUN)) == []
    assert world.run.started


# -- cancel ---------------------------------------------------------------------------------------------------------


def test_a_queued_job_is_cancelled_at_once() -> None:
    world = World().queued()
    assert world.say(cancel()) == ["finished"]
    end = world.state.ended.get(K1)
    assert (end.phase, end.reason) == (Phase.CANCELLED, Reason(code=Code.CANCELLED, detail="enough"))


@pytest.mark.parametrize("before", [World.allocated, World.binding, World.running])
def test_a_job_with_a_run_is_cancelled_once_its_pods_are_absent(before: Callable[..., World]) -> None:
    world = before(World())
    assert world.say(cancel()) == ["revoked"]
    assert world.say(cancel()) == []
    assert kinds(world.commit(run_absent(RUN))) == ["released", "finished"]
    end = world.state.ended.get(K1)
    assert (end.phase, end.reason) == (Phase.CANCELLED, Reason(code=Code.CANCELLED, detail="enough"))


def test_a_job_that_is_evicted_to_be_tried_again_becomes_cancelled_instead() -> None:
    world = World().evicting()
    assert world.run.then == "requeue"
    assert world.say(cancel()) == ["revoked"]
    assert kinds(world.commit(run_absent(RUN))) == ["released", "finished"]
    end = world.state.ended.get(K1)
    assert (end.phase, end.reason) == (Phase.CANCELLED, Reason(code=Code.CANCELLED))


def test_a_job_that_failed_for_good_is_not_made_cancelled() -> None:
    world = World().running()
    world.say(ended())
    assert world.say(cancel()) == []
    world.say(run_absent(RUN))
    assert world.state.ended.get(K1).phase is Phase.FAILED


def test_a_job_that_ended_cannot_be_cancelled() -> None:
    world = World().running()
    world.say(ended(reason=None))
    assert world.say(cancel()) == []


def test_another_tenants_cancel_is_nothing_and_an_operators_counts() -> None:
    world = World().queued()
    assert world.say(cancel(tenant="other")) == []
    assert world.say(cancel(tenant="")) == ["finished"]


# -- the line -------------------------------------------------------------------------------------------------------


def test_a_later_job_that_fits_overtakes_an_earlier_one_that_does_not() -> None:
    world = World()
    world.say(admitted("k1", job_spec(role(gpus=8, replicas=2))), admitted("k2"))
    assert kinds(world.place()) == ["waiting", "allocated"]


def test_a_reason_is_recorded_when_its_code_changes_and_not_when_its_numbers_do() -> None:
    world = World(node_seen(gpus=4), body=config_body(queue(gpu_milli=8000)))
    world.say(admitted("k1", job_spec(role(gpus=8))))
    assert reasons(world.place()) == [Code.NO_FIT]
    world.say(node_seen(gpus=2))
    assert reasons(world.place()) == []
    world.say(node_seen(gpus=2, ready=False))
    assert reasons(world.commit()) == []  # said with the record of the node
    assert world.job.reason.code is Code.NO_NODES  # type: ignore[union-attr]
    world.say(config_proposed(config_body(queue(gpu_milli=1000)), 1))
    assert world.job.reason.code is Code.WAITING_FOR_QUOTA  # type: ignore[union-attr]


def test_a_queue_never_gets_more_than_its_quota_also_within_one_message() -> None:
    world = World(body=config_body(queue(gpu_milli=3000)))
    world.say(*(admitted(f"k{n}", job_spec(role(gpus=2))) for n in range(2)), admitted("small"))
    message = world.place()
    assert kinds(message) == ["allocated", "waiting", "allocated"]
    waiting = message.records[1]
    assert waiting.reason == Reason(  # type: ignore[union-attr]
        code=Code.WAITING_FOR_QUOTA,
        field="queues.research.gpu_milli",
        numbers={"wanted": 2000, "available": 1000, "used": 2000, "nominal_quota": 3000},
    )


def test_quota_comes_back_with_the_release_and_not_before() -> None:
    world = World(body=config_body(queue(gpu_milli=1000))).running()
    world.say(admitted("k2"))
    world.place()
    world.say(ended(reason=None))
    assert kinds(world.commit()) == []
    assert world.say(run_absent(RUN)) == ["released", "allocated"]


def test_no_order_no_start() -> None:
    world = World().queued()
    assert kinds(world.commit()) == []


def test_an_order_may_name_jobs_that_are_gone_or_run_already() -> None:
    world = World().running()
    world.say(admitted("k2"))
    stale = world.line()
    world.say(cancel(job_id(SHARD, "lab", "k2")))
    assert kinds(world.commit(orders=(stale,))) == []


def test_a_job_that_an_order_names_twice_starts_once() -> None:
    world = World().queued()
    line = world.line()
    twice = Order.model_validate({**line.model_dump(), "jobs": line.jobs * 2})
    assert kinds(world.commit(orders=(twice,))) == ["allocated"]


def test_an_order_for_a_pool_that_is_not_the_queues_starts_nothing() -> None:
    world = World(body=config_body(queue(pool="blue"))).queued()
    wrong = Order.model_validate({**world.line("blue").model_dump(), "pool": "default"})
    assert kinds(world.commit(orders=(wrong,))) == []


def test_an_operators_largest_numbers_can_be_decided_with() -> None:
    body = config_body(policy=Policy(start_timeout_seconds=31_536_000, key_memory_seconds=31_536_000))
    assert World(body=body).running().say(ended(reason=None)) == ["finished"]


# -- how large a message may become ---------------------------------------------------------------------------------


def sizes(world: World, messages: int) -> list[int]:
    for _ in range(messages):
        world.commit()
    return [len(stored) for stored in world.stored]


def long_named(count: int, letters: int = 253, **more: Any) -> list[AnyFact]:
    return [node_seen(f"n{number:04d}-" + "x" * (letters - 6), **more) for number in range(count)]


def test_the_largest_gang_on_nodes_with_ordinary_long_names_is_one_message() -> None:
    world = World(*long_named(24, letters=63, gpus=8, pods=110))
    world.queued(role(name="worker", replicas=2048, gpus=0, cpu_milli=1, memory_bytes=1))
    assert kinds(world.place()) == ["allocated"]
    assert len(world.stored[-1]) <= MESSAGE_BYTES_MAX


def test_a_gang_that_one_message_cannot_name_waits_and_says_so_and_holds_nobody_up() -> None:
    world = World(*long_named(24, pods=110))
    world.queued(role(name="r" * 63, replicas=2048, gpus=0, cpu_milli=1, memory_bytes=1))
    world.say(admitted("k2"))
    message = world.place()
    assert kinds(message) == ["waiting", "allocated"]
    assert message.records[0].reason.numbers["bytes_max"] == ALLOCATION_BYTES_MAX  # type: ignore[union-attr]


def test_what_a_gangs_allocation_is_said_to_need_at_most_is_enough() -> None:
    world = World(*long_named(30, letters=200))
    world.queued(role(replicas=200, gpus=1), role(name="ps", replicas=10, gpus=0), role(name="big", replicas=3, gpus=8))
    longest = 200
    allocated = world.place().records[0]
    assert allocated.kind == "allocated"
    job = world.state.jobs.get(K1)
    assert len(allocated.to_bytes()) <= most_bytes(world.state, job, Longest(longest, 0))


def test_many_large_gangs_take_as_many_messages_as_they_need() -> None:
    world = World(*long_named(24, letters=253, pods=110, cpu_milli=10**6))
    world.say(*(admitted(f"k{n}", job_spec(role(replicas=500, gpus=0, memory_bytes=1, cpu_milli=1))) for n in range(5)))
    world.place()
    assert max(sizes(world, 4)) <= MESSAGE_BYTES_MAX
    assert len(world.state.runs) == 5


def test_many_reasons_take_as_many_messages_as_they_need() -> None:
    pools = [f"pool-{n}" for n in range(6)]
    queues = [queue(f"queue-{n}", pool=pool) for n, pool in enumerate(pools)]
    world = World(*(node_seen(f"node-{pool}", gpus=0, pool=pool) for pool in pools), body=config_body(*queues))
    for n in range(len(pools)):
        jobs = [job_spec(role("r" * 60, gpus=8, replicas=1 + k), queue=f"queue-{n}") for k in range(512)]
        world.commit(*(admitted(f"k{n}-{k}", spec) for k, spec in enumerate(jobs)))
    world.commit(orders=tuple(world.line(pool) for pool in pools))
    assert max(sizes(world, 4)[-5:]) <= MESSAGE_BYTES_MAX
    assert all(job.reason is not None for job in world.state.jobs.values())


def test_thousands_of_jobs_whose_queue_goes_are_told_in_as_many_messages_as_it_takes() -> None:
    world = World()
    world.commit(*(admitted(f"k{n}", job_spec(role(gpus=0))) for n in range(5000)))
    world.say(config_proposed(config_body(queue("else")), 1, abandon=True))
    assert max(sizes(world, 3)[-4:]) <= MESSAGE_BYTES_MAX
    assert all(job.reason is not None for job in world.state.jobs.values())


def test_many_runs_with_one_deadline_are_revoked_in_as_many_messages_as_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(readiness, "UNMADE_MAX", 4500)
    world = World(node_seen(pods=5000))
    world.commit(*(admitted(f"k{n}", job_spec(role(gpus=0, cpu_milli=1, memory_bytes=1))) for n in range(4500)))
    while len(world.state.runs) < 4500:
        world.place(ms=1)
    world.commit(ms=10_000_000)
    assert max(sizes(world, 2)[-3:]) <= MESSAGE_BYTES_MAX
    assert all(run.revoked is not None for run in world.state.runs.values())
