"""What a tenant may hand in, and what a ledger without room keeps out; both sides of each limit."""

from dataclasses import replace
from typing import Any

import pytest

from tessera_schemas import subjects
from tessera_schemas.base import job_id
from tessera_schemas.commands import REPLY_HEADER, Answer
from tessera_schemas.config import ConfigBody, Limits, Tenant
from tessera_schemas.facts import JobRefused
from tests.builders import SHARD, config_body
from tests.unit.admission.admission_world import World, encoded, submit

LEDGER = subjects.stream("LEDGER", SHARD)
MIB = 2**20
JOB = job_id(SHARD, "lab", "known")
CANCEL = {"kind": "cancel_job", "v": 1, "job_id": JOB}
HEARD = {REPLY_HEADER: "_INBOX.lab.1"}


def limited(**lab: Any) -> ConfigBody:
    tenants = (Tenant(name="lab", limits=Limits(**lab)), Tenant(name="other"))
    return config_body().model_copy(update={"tenants": tenants})


async def world_with(**lab: Any) -> World:
    world = await World.with_policy(limited(**lab))
    await world.job_seen(JOB)
    return world


async def answer(world: World, command: Any, tenant: str = "lab", **more: Any) -> Answer:
    headers = {name: inbox.replace(".lab.", f".{tenant}.") for name, inbox in HEARD.items()}
    await world.batch((tenant, command), headers=headers, **more)
    return world.answers[-1][1]


async def codes(world: World, *commands: Any, tenant: str = "lab") -> list[str]:
    """What each is answered: `accepted`, or the first reason's code."""
    said = [await answer(world, command, tenant) for command in commands]
    return ["accepted" if each.accepted else each.reasons[0].code for each in said]


async def test_so_many_jobs_at_once_then_so_many_a_second() -> None:
    world = await world_with(submits_per_second=2, submits_burst=3)
    jobs = [submit(f"k{number}") for number in range(8)]
    assert await codes(world, *jobs[:4]) == ["accepted"] * 3 + ["TenantBudgetExceeded"]
    reason = world.answers[-1][1].reasons[0]
    assert (reason.field, reason.numbers) == ("limits.submits_per_second", {"retry_after_seconds": 1})
    assert "granted: 2 a second, 3 at once; retry after 1s" in reason.sentence()
    world.clock.now += 1
    assert await codes(world, *jobs[4:8]) == ["accepted"] * 2 + ["TenantBudgetExceeded"] * 2


async def test_so_many_bytes_at_once_then_so_many_a_second() -> None:
    size = len(encoded(submit("k1")))
    world = await world_with(bytes_per_second=size, bytes_burst=2 * size)
    jobs = [submit(f"k{number}") for number in range(1, 5)]
    assert await codes(world, *jobs[:3]) == ["accepted"] * 2 + ["TenantBudgetExceeded"]
    assert world.answers[-1][1].reasons[0].field == "limits.bytes_per_second"
    world.clock.now += 0.9
    assert await codes(world, jobs[2]) == ["TenantBudgetExceeded"]
    world.clock.now += 0.1
    assert await codes(world, jobs[2]) == ["accepted"]


async def test_a_job_that_was_refused_for_now_is_taken_later_under_the_same_key() -> None:
    world = await world_with(submits_per_second=1, submits_burst=1)
    assert await codes(world, submit("a"), submit("b")) == ["accepted", "TenantBudgetExceeded"]
    world.clock.now += 1
    assert await codes(world, submit("b")) == ["accepted"]
    assert [fact.kind for fact in world.facts] == ["job_admitted", "job_admitted"]


async def test_a_dry_run_is_charged_like_a_submit_and_takes_no_room_in_the_ledger() -> None:
    world = await world_with(submits_per_second=1, submits_burst=1)
    before = world.room._let_in
    assert await codes(world, submit("a", dry_run=True), submit("a", dry_run=True)) == [
        "accepted",
        "TenantBudgetExceeded",
    ]
    assert (world.room._let_in, world.facts) == (before, [])


async def test_a_job_larger_than_the_whole_budget_is_not_kept_out_for_ever() -> None:
    world = await world_with(bytes_per_second=100, bytes_burst=10)
    assert await codes(world, submit("a"), submit("b")) == ["accepted", "TenantBudgetExceeded"]


async def test_no_limit_where_none_is_wanted() -> None:
    world = await world_with(submits_per_second=None, submits_burst=1, bytes_per_second=None, bytes_burst=1)
    assert await codes(world, *(submit(f"k{number}") for number in range(50))) == ["accepted"] * 50


async def test_one_tenants_flood_takes_nothing_of_anothers_budget() -> None:
    world = await world_with(submits_per_second=1, submits_burst=1)
    assert await codes(world, submit("a"), submit("b")) == ["accepted", "TenantBudgetExceeded"]
    await world.batch(("other", submit("c")))
    assert world.facts[-1].kind == "job_admitted"


async def test_who_hands_in_too_many_jobs_can_still_cancel_them_and_not_without_end() -> None:
    world = await world_with(submits_per_second=1, submits_burst=2)
    assert (await codes(world, *(submit(f"k{n}") for n in range(3))))[-1] == "TenantBudgetExceeded"
    assert await codes(world, CANCEL, CANCEL, CANCEL) == ["accepted", "accepted", "TenantBudgetExceeded"]


async def test_a_command_that_is_handed_out_again_was_charged_before() -> None:
    world = await world_with(submits_per_second=1, submits_burst=1)
    await world.batch(("lab", submit("a")))
    assert (await answer(world, submit("a"), times=2)).accepted


async def test_replicas_share_a_budget() -> None:
    world = await world_with(submits_per_second=2, submits_burst=4)
    world.replicas = 2
    assert await codes(world, *(submit(f"k{number}") for number in range(3))) == [
        "accepted",
        "accepted",
        "TenantBudgetExceeded",
    ]
    world.clock.now += 1
    assert await codes(world, submit("later"), submit("last")) == ["accepted", "TenantBudgetExceeded"]


async def test_refusals_for_now_are_counted_in_one_record_and_not_recorded_each() -> None:
    world = await world_with(submits_per_second=1, submits_burst=1)
    await world.submits(*(submit(f"k{number}") for number in range(12)))
    assert [fact.kind for fact in world.facts] == ["job_admitted"]
    await world.handlers.flush_counted()
    counted = world.facts[-1]
    assert isinstance(counted, JobRefused)
    assert (counted.repeats, counted.reasons[0].code) == (10, "TenantBudgetExceeded")


async def test_long_refusals_are_recorded_only_as_far_as_the_bytes_allow() -> None:
    """20 a second of 64 reasons each would fill a ledger of 2 GiB within hours."""
    bad = submit("bad", spec={"name": "x", "queue": "y" * 300, **{f"unknown-{n}-{'z' * 200}": 1 for n in range(70)}})
    world = await world_with(bytes_per_second=1, bytes_burst=50_000)
    await world.submits(*[bad] * 20)
    assert 1 <= len(world.facts) <= 3
    await world.handlers.flush_counted()
    counted = world.facts[-1]
    assert isinstance(counted, JobRefused)
    assert len(world.facts) - 1 + counted.repeats + 1 == 20
    assert len(world.stored[-1].data) < 3000


# -- a ledger without room


def fill(world: World, used: int, bytes_max: int = 64 * MIB) -> None:
    stream = world.broker.stream(LEDGER)
    stream.config, stream.bytes = replace(stream.config, bytes_max=bytes_max), used


@pytest.mark.parametrize(
    ("left", "job", "cancel"),
    [
        (16 * MIB + 4096, "accepted", "accepted"),
        (16 * MIB - 1, "LedgerFull", "accepted"),
        (MIB // 2 + 4096, "LedgerFull", "accepted"),
        (MIB // 2 - 1, "LedgerFull", "LedgerFull"),
    ],
    ids=["the reserve is whole", "it is touched", "one message fits", "nothing fits"],
)
async def test_new_work_is_refused_first_and_orders_last(left: int, job: str, cancel: str) -> None:
    world = await world_with()
    fill(world, 64 * MIB - left)
    await world.room.look()
    assert await codes(world, submit("a"), CANCEL) == [job, cancel]
    assert (world.room.problem() is None) == (job == "accepted")
    await world.controls({"kind": "drain_node", "v": 1, "node": "node-a"})
    assert ("drain_requested" in [fact.kind for fact in world.facts]) == (cancel == "accepted")


async def test_a_flood_between_two_looks_does_not_run_through_the_reserve_nor_through_others_shares() -> None:
    size = len(encoded(submit("k0")))
    world = await world_with()
    fill(world, 48 * MIB - 5 * size)
    await world.room.look()
    jobs = [submit(f"k{number}") for number in range(7)]
    for tenant in ("lab", "other"):  # the reserve is whole before the sixth of both together
        assert await codes(world, *jobs[:4], tenant=tenant) == ["accepted"] * 3 + ["LedgerFull"]
    await world.room.look()
    assert await codes(world, jobs[6]) == ["LedgerFull"], "it lies in FACTS"


async def test_a_full_ledger_is_told_with_numbers_and_for_every_tenant() -> None:
    world = await world_with()
    fill(world, 60 * MIB)
    await world.room.look()
    said = await answer(world, submit("a"))
    assert (said.accepted, said.reasons[0].numbers) == (False, {"retry_after_seconds": 60})
    assert "60Mi of 64Mi are used" in said.reasons[0].sentence()
    fill(world, 60 * MIB, bytes_max=640 * MIB)
    await world.room.look()
    assert await codes(world, submit("a")) == ["accepted"]


async def test_a_ledger_without_bound_is_never_full() -> None:
    world = await world_with()
    fill(world, 2**50, bytes_max=0)
    await world.room.look()
    assert await codes(world, submit("a"), CANCEL) == ["accepted", "accepted"]
