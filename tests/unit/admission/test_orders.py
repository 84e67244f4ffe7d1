"""Orders about jobs: what is said to whoever names a job that is not there, or not there yet."""

from typing import Any

import pytest

from tessera.kernel.errors import Transient
from tessera_schemas.base import job_id
from tessera_schemas.commands import REPLY_HEADER, Answer
from tessera_schemas.facts import CancelRequested, HoldRequested, JobAdmitted, JobRefused
from tests.builders import SHARD
from tests.unit.admission.admission_world import World, submit

K1 = job_id(SHARD, "lab", "k1")


def order(kind: str = "cancel_job", job: str = K1, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "v": 1, "job_id": job, **more}


async def shard() -> World:
    """Its views hold all that is in the ledger, and no job."""
    world = await World.with_policy()
    world.ledger.n = world.n
    return world


async def give(world: World, *commands: dict[str, Any], times: int = 1, tenant: str = "lab", first: int = 1) -> Any:
    inbox = {REPLY_HEADER: f"_INBOX.{tenant}.a1"}
    return await world.batch(*((tenant, command) for command in commands), headers=inbox, times=times, first=first)


def answers(world: World) -> list[Answer]:
    return [answer for _, answer in world.answers]


def codes(world: World) -> list[list[str]]:
    return [[reason.code for reason in answer.reasons] for answer in answers(world)]


async def test_a_job_that_the_views_show_is_ordered_about_at_once() -> None:
    world = await shard()
    await world.job_seen(K1)
    await give(world, order())
    assert [answer.accepted for answer in answers(world)] == [True]
    assert [type(fact) for fact in world.facts] == [CancelRequested]


async def test_a_command_about_an_unseen_job_goes_on_and_its_repeat_is_answered() -> None:
    world = await shard()
    (result,) = await give(world, order())
    assert isinstance(result, Transient)
    assert [type(fact) for fact in world.facts] == [CancelRequested]
    assert answers(world) == []


async def test_while_the_views_are_lost_nobody_is_told_that_there_is_no_such_job() -> None:
    world = await shard()
    world.faults.wipes_at = "get"
    await give(world, order(), times=2)
    assert [answer.accepted for answer in answers(world)] == [True]
    assert [type(fact) for fact in world.facts] == [CancelRequested]


async def test_when_it_comes_again_and_there_is_still_no_job_it_is_refused() -> None:
    world = await shard()
    await give(world, order(), times=2)
    assert codes(world) == [["NoSuchJob"]]
    (fact,) = world.facts
    assert isinstance(fact, JobRefused)
    assert K1 not in fact.model_dump_json()  # it may be another tenant's, and the sender's events tell of it
    assert answers(world)[0].job_id == K1


async def test_a_cancel_that_overtook_its_submit_is_sent_on_once_more() -> None:
    world = await shard()
    await give(world, order())
    await world.job_seen(K1)
    await give(world, order(), times=2)
    assert [type(fact) for fact in world.facts] == [CancelRequested, CancelRequested]
    assert [answer.accepted for answer in answers(world)] == [True]


async def test_a_hold_that_came_again_is_the_same_fact_since_a_release_may_lie_between() -> None:
    """The committer passes over what has the same cause and says the same."""
    world = await shard()
    await give(world, order("hold_job"))
    await world.job_seen(K1)
    await give(world, order("hold_job"), times=2)
    assert [type(fact) for fact in world.facts] == [HoldRequested] * 2
    assert len({message.data for message in world.stored}) == 1
    assert [answer.accepted for answer in answers(world)] == [True]


async def test_an_order_right_behind_its_submit_is_answered_at_once() -> None:
    world = await shard()
    await give(world, submit("k1"), order())
    await give(world, order("hold_job"), first=3)
    assert [type(fact) for fact in world.facts] == [JobAdmitted, CancelRequested, HoldRequested]
    assert [answer.accepted for answer in answers(world)] == [True] * 3


@pytest.mark.parametrize(
    "kind",
    [
        "cancel_job",
        "hold_job",
        "release_job",
        "set_priority",
        "move_job",
        "update_job",
        "requeue_job",
        "report_checkpoint",
        "answer_move",
    ],
)
async def test_somebody_elses_job_is_one_that_does_not_exist(kind: str) -> None:
    world = await shard()
    await world.job_seen(K1, tenant="other")
    fields = {"set_priority": {"priority_class": "high"}, "report_checkpoint": {"path": "/data/1"}}
    fields["answer_move"] = {"accept": True}
    more = (fields | {"move_job": {"queue": "research"}, "update_job": {"name": "new"}}).get(kind, {})
    await give(world, order(kind, **more))
    assert codes(world) == [["NoSuchJob"]]
    assert [type(fact) for fact in world.facts] == [JobRefused]


async def test_while_the_views_are_behind_the_ledger_nobody_is_told_that_there_is_no_job() -> None:
    world = await shard()
    world.ledger.n = world.n + 1
    clock = world.clock

    async def passes(seconds: float) -> None:
        clock.now += seconds

    clock.sleep = passes  # type: ignore[method-assign]
    await give(world, order(), times=2)
    assert [answer.accepted for answer in answers(world)] == [True]
    assert [type(fact) for fact in world.facts] == [CancelRequested]


@pytest.mark.parametrize("away", ["views", "ledger"])
async def test_without_views_or_ledger_every_order_goes_on(away: str) -> None:
    world = await shard()
    if away == "views":
        world.faults.away = True
    else:
        world.ledger.n = None
    await give(world, order(), times=2)
    assert [answer.accepted for answer in answers(world)] == [True]


async def test_an_order_that_nobody_waits_for_is_passed_on_as_it_is() -> None:
    world = await shard()
    (result,) = await world.submits(order())
    assert not isinstance(result, Transient)
    assert [type(fact) for fact in world.facts] == [CancelRequested]


async def test_an_operator_is_told_at_once_and_may_order_about_anybodys_job() -> None:
    world = await shard()
    await world.job_seen(K1, tenant="other")
    world.ledger.n = world.n
    nobody = "a" * 20
    inbox = {REPLY_HEADER: "_INBOX.operator.a1"}
    await world.controls(order(), order(job=nobody), headers=inbox)
    assert [answer.accepted for answer in answers(world)] == [True, False]
    assert codes(world)[1] == ["NoSuchJob"]


async def test_a_job_that_the_views_bring_while_they_catch_up_is_there() -> None:
    world = await shard()
    world.ledger.n = world.n + 1

    async def projection_goes_on(seconds: float) -> None:
        world.clock.now += seconds
        if world.n < (world.ledger.n or 0):
            await world.job_seen(K1)

    world.clock.sleep = projection_goes_on  # type: ignore[method-assign]
    await give(world, order())
    assert [answer.accepted for answer in answers(world)] == [True]


async def test_a_tenants_release_of_an_operators_hold_is_refused_by_its_name() -> None:
    world = await shard()
    await world.job_seen(K1, held=True, operator_hold=True)
    world.ledger.n = world.n
    await give(world, order("release_job"))
    assert codes(world) == [["HeldByOperator"]]
    assert [type(fact) for fact in world.facts] == [JobRefused]


async def test_what_an_operator_orders_through_the_gateway_is_an_operators() -> None:
    world = await shard()
    await world.job_seen(K1, held=True, operator_hold=True)
    world.ledger.n = world.n
    inbox = {REPLY_HEADER: "_INBOX.lab.gateway.a1"}
    await world.batch(*(("lab.operator", order(kind)) for kind in ("release_job", "hold_job")), headers=inbox)
    assert [(fact.tenant, fact.undo) for fact in world.facts] == [("", True), ("", False)]
    assert [answer.accepted for answer in answers(world)] == [True, True]


@pytest.mark.parametrize(
    ("phase", "attempt", "field"), [("running", 1, ""), ("running", 2, "attempt"), ("queued", 1, "job_id")]
)
async def test_a_checkpoint_that_would_not_count_is_refused_by_name(phase: str, attempt: int, field: str) -> None:
    world = await shard()
    await world.job_seen(K1, phase=phase)
    world.ledger.n = world.n
    await give(world, order("report_checkpoint", path="/data/a", attempt=attempt))
    (answer,) = answers(world)
    assert [(reason.code, reason.field) for reason in answer.reasons] == ([("NotRunning", field)] if field else [])


@pytest.mark.parametrize(
    ("seen", "asked", "why"),
    [
        ({"phase": "queued"}, {"time_limit_seconds": 0, "name": "new"}, []),
        ({"phase": "running"}, {"time_limit_seconds": 30, "name": "train"}, []),
        ({"phase": "running"}, {"time_limit_seconds": 60}, []),
        ({"phase": "running"}, {"time_limit_seconds": 90}, [("NotWaiting", "time_limit_seconds")]),
        ({"phase": "running"}, {"name": "new"}, [("NotWaiting", "name")]),
        ({"phase": "succeeded"}, {"name": "new"}, [("AlreadyEnded", "job_id")]),
    ],
    ids=["waits", "lower", "as it is", "higher", "another name", "ended"],
)
async def test_an_update_that_no_run_gets_is_refused_by_name(
    seen: dict[str, Any], asked: dict[str, Any], why: list[tuple[str, str]]
) -> None:
    world = await shard()
    await world.job_seen(K1, time_limit_seconds=60, **seen)
    world.ledger.n = world.n
    await give(world, order("update_job", **asked))
    (answer,) = answers(world)
    assert [(reason.code, reason.field) for reason in answer.reasons] == why
