"""A start that is promised: nodes are empty in time, and what becomes of the promise is said and paid for."""

from typing import Any

import pytest

from tessera.client.ledger.replay import verify
from tessera.domain.folding.spending import counted
from tessera.domain.quota.bookings import PROMISE_LEAD_MS
from tessera.domain.storing.snapshot import dump, load
from tessera.kernel.ledger.shard import Shard, decode_entry
from tessera.kernel.ports import Message
from tessera.projection.events import events_of
from tessera.testkit.bookings_checker import check_bookings
from tessera.testkit.checker.report import Report
from tessera.testkit.rules_checker import check_rules
from tessera_schemas.base import job_id
from tessera_schemas.config import ConfigBody, Flavor, Policy, Queue, Quota, Tenant
from tessera_schemas.events import CloudEvent
from tessera_schemas.facts import BookingEndAsked, HoldRequested
from tessera_schemas.job import JobSpec
from tessera_schemas.ledger import Allocated, Booked, BookingEnded, BudgetReached, JobTurnedAway, Revoked
from tessera_schemas.reasons import Code
from tessera_schemas.work.budgets import MICROS, Budget
from tessera_schemas.work.money import FlavorPrice, Money
from tests.builders import SHARD, admitted, job_spec, node_seen, role, run_absent
from tests.unit.scheduler.committer_world import World, cancel, made, started

HOUR, MINUTE = 3_600_000, 60_000
STOPS_MS = (30 + Policy().stop_patience_seconds) * 1000
GANG = job_id(SHARD, "lab", "gang")


def body(queues: tuple[Queue, ...] = (Queue(name="research"),), promises: bool = True, **more: Any) -> ConfigBody:
    given = {
        "flavors": (Flavor(name="any"),),
        "money": Money(currency="EUR", prices=(FlavorPrice(flavor="any", gpu_hour_micros=2 * MICROS),)),
        "budgets": (Budget(tenant="lab", amount=1000), Budget(queue="research", gpu_hours=1000)),
        "policy": Policy(fragmentation_event_seconds=0),
        **more,
    }
    tenants = (Tenant(name="lab", promises=promises), Tenant(name="other"))
    return ConfigBody.model_validate(ConfigBody(tenants=tenants, queues=queues, **given).model_dump())


def world(nodes: int = 2, **more: Any) -> World:
    return World(*(node_seen(name=f"gpu-{name}") for name in "abcd"[:nodes]), body=body(**more))


def gang(at: World, in_ms: int, pods: int = 2, **more: Any) -> JobSpec:
    given = {"time_limit_seconds": 3600, "start_by_ts": at.ts + in_ms, "preemptible": False, **more}
    return job_spec(role(replicas=pods, gpus=8), **given)


def fill(at: World, nodes: int = 2) -> None:
    """Jobs that may be stopped hold all nodes, and go on for as long as they are let."""
    for index in range(nodes):
        key = f"low-{index}"
        at.commit(admitted(key, job_spec(role(gpus=8))))
        at.place()
        run = f"{job_id(SHARD, 'lab', key)}-1"
        at.commit(made(run))
        at.commit(started(run))


def until(at: World, ts: int, step_ms: int = 5_000) -> list[Any]:
    """All records until that time, a message every few seconds, as the committer has one each second."""
    found = list[Any]()
    while at.ts < ts:
        message = at.commit(orders=(at.line(),), ms=min(step_ms, ts - at.ts))
        found += message.records
        for record in message.records:
            if isinstance(record, Revoked):
                found += at.commit(run_absent(record.run_id)).records
    return found


def of(records: Any, kind: type[Any]) -> Any:
    (found,) = [record for record in records if isinstance(record, kind)]
    return found


def spent(at: World) -> tuple[int, int]:
    """Spent in money and in GPU-hours, in millionths."""
    rows = {name: counted(at.state, row, at.state.ts).micros for name, row in at.state.spending.items()}
    return rows["tenant/lab"], rows["queue/research"]


def checked(at: World) -> Report:
    report = Report()
    check_bookings(report, at.stored)
    check_rules(report, at.stored)
    assert verify(at.stored).findings == []
    return report


def test_a_promised_gang_has_its_devices_in_time_though_every_node_was_full() -> None:
    at = world()
    fill(at)
    asked = gang(at, HOUR)
    promised = of(at.commit(admitted("gang", asked)).records, Booked)
    assert (promised.nodes, promised.job, promised.who) == (("gpu-a", "gpu-b"), GANG, ("lab",))
    records = until(at, asked.start_by_ts + MINUTE)
    start, end = of(records, Allocated), of(records, BookingEnded)
    assert (start.job_id, end.why) == (GANG, "kept")
    run = at.state.runs.get(f"{GANG}-1")
    assert asked.start_by_ts - PROMISE_LEAD_MS - STOPS_MS <= run.allocated_ts <= asked.start_by_ts
    assert not len(at.state.bookings)
    assert checked(at).violations == []
    assert [*load(dump(at.state)).runs.values()]


def test_the_nodes_are_lent_until_then_and_a_start_before_it_keeps_the_promise_too() -> None:
    at = world()
    at.commit(admitted("gang", gang(at, HOUR)))
    records = until(at, at.ts + MINUTE)
    assert of(records, Allocated).job_id == GANG
    assert of(records, BookingEnded).why == "kept"


def test_who_would_not_have_left_by_then_does_not_start_there() -> None:
    at = world()
    fill(at, 1)
    at.commit(admitted("gang", gang(at, HOUR)))
    at.commit(admitted("long", job_spec(role(gpus=8), time_limit_seconds=7200, preemptible=False)))
    at.commit(admitted("short", job_spec(role(gpus=8), time_limit_seconds=600, preemptible=False)))
    records = until(at, at.ts + MINUTE)
    assert of(records, Allocated).job_id == job_id(SHARD, "lab", "short")


def test_its_price_counts_against_its_budgets_and_a_broken_promise_gives_it_back() -> None:
    at = world()
    fill(at)
    before = spent(at)
    asked = gang(at, HOUR)
    at.commit(admitted("gang", asked), ms=0)
    # A quarter of 16 GPU-hours, at 2 EUR.
    assert tuple(now - was for now, was in zip(spent(at), before, strict=True)) == (8 * MICROS, 4 * MICROS)
    for name in ("gpu-a", "gpu-b"):
        at.commit(node_seen(name=name, ready=False), ms=0)
    until(at, asked.start_by_ts, 60_000)
    before = spent(at)
    ended = of(at.commit(ms=1).records, BookingEnded)
    given_back = [was - now for now, was in zip(spent(at), before, strict=True)]
    # What its other runs hold goes on meanwhile, for a millisecond.
    assert given_back == pytest.approx([8 * MICROS, 4 * MICROS], abs=20)
    assert (ended.why, ended.reason.code, ended.reason.numbers) == ("broken", Code.NODE_LOST, {"nodes": 2})
    assert checked(at).violations == []


def test_nothing_starts_in_the_message_whose_promise_spends_its_budget() -> None:
    at = world(3, budgets=(Budget(tenant="lab", amount=8),))
    at.commit(admitted("small", job_spec(role(gpus=1))))
    records = at.commit(admitted("gang", gang(at, HOUR)), orders=(at.line(),)).records
    assert of(records, BudgetReached).percent == 100
    assert not [record for record in records if isinstance(record, Allocated)]
    assert checked(at).violations == []


def test_a_node_that_is_lost_before_is_replaced_and_the_promise_kept() -> None:
    at = world(3)
    fill(at, 3)
    asked = gang(at, HOUR)
    at.commit(admitted("gang", asked))
    at.commit(node_seen(name="gpu-a", ready=False), run_absent(f"{job_id(SHARD, 'lab', 'low-0')}-1"))
    records = until(at, asked.start_by_ts + 1)
    assert of(records, BookingEnded).why == "kept"
    assert {place.node for place in of(records, Allocated).placements} == {"gpu-b", "gpu-c"}
    assert checked(at).violations == []


def test_who_is_on_hold_when_its_time_comes_was_promised_nothing() -> None:
    at = world()
    fill(at)
    asked = gang(at, HOUR)
    at.commit(admitted("gang", asked))
    at.commit(HoldRequested(kind="hold_requested", job_id=GANG, tenant="lab", undo=False))
    records = until(at, asked.start_by_ts + MINUTE)
    assert of(records, BookingEnded).why == "dropped"


def test_who_is_cancelled_keeps_no_node() -> None:
    at = world()
    fill(at)
    at.commit(admitted("gang", gang(at, HOUR)))
    message = at.commit(cancel(GANG))
    assert of(message.records, BookingEnded).why == "dropped"
    assert checked(at).violations == []


def test_an_operator_who_takes_a_promise_back_breaks_it() -> None:
    at = world()
    fill(at)
    at.commit(admitted("gang", gang(at, HOUR)))
    ended = of(at.commit(BookingEndAsked(kind="booking_end_asked", name="promise-3")).records, BookingEnded)
    assert (ended.why, ended.reason.code) == ("broken", Code.CANCELLED)


@pytest.mark.parametrize(
    ("config", "spec", "code"),
    [
        ({"promises": False}, {}, Code.NOT_GRANTED),
        ({}, {"start_by_ts": 1}, Code.INVALID_FIELD),
        ({}, {"pods": 3}, Code.NOT_FREE_THEN),
        (
            {"queues": (Queue(name="research", quotas=(Quota(resource="gpu_milli", nominal=8000),)),)},
            {},
            Code.EXCEEDS_MAX_QUOTA,
        ),
    ],
)
def test_what_cannot_be_promised_is_refused_by_its_field(
    config: dict[str, Any], spec: dict[str, Any], code: Code
) -> None:
    at = world(**config)
    turned = of(at.commit(admitted("gang", gang(at, HOUR, **spec))).records, JobTurnedAway)
    assert [(reason.code, reason.field) for reason in turned.reasons][-1][0] == code
    assert not len(at.state.bookings)


def test_no_other_job_of_the_tenant_may_name_the_promise() -> None:
    at = world()
    fill(at)
    at.commit(admitted("gang", gang(at, HOUR)))
    turned = of(at.commit(admitted("thief", job_spec(role(gpus=8), reservation="promise-3"))).records, JobTurnedAway)
    assert turned.reasons[0].code is Code.NO_SUCH_RESERVATION


def test_two_promises_never_have_one_node() -> None:
    at = world()
    fill(at)
    at.commit(admitted("gang", gang(at, HOUR, pods=1)))
    at.commit(admitted("second", gang(at, HOUR, pods=1)))
    assert len({each.nodes for each in at.state.bookings.values()}) == 2
    assert of(at.commit(admitted("third", gang(at, HOUR, pods=1))).records, JobTurnedAway)


def test_a_later_promise_has_no_node_that_an_earlier_one_needs_by_then() -> None:
    at = world()
    fill(at)
    asked = gang(at, HOUR, pods=2)
    at.commit(admitted("gang", asked))
    # Its window would begin while the first one may still run, on the only nodes that there are.
    turned = of(at.commit(admitted("second", gang(at, HOUR + 30 * MINUTE, pods=1))).records, JobTurnedAway)
    assert turned.reasons[0].code is Code.NOT_FREE_THEN
    assert of(at.commit(admitted("third", gang(at, 3 * HOUR, pods=1))).records, Booked)
    records = until(at, asked.start_by_ts + MINUTE)
    assert of(records, BookingEnded).why == "kept"


def test_its_tenant_is_told_of_the_promise_and_of_its_end() -> None:
    at = world()
    fill(at)
    asked = gang(at, HOUR)
    state = Shard()
    at.commit(admitted("gang", asked), ms=0)
    at.commit(cancel(GANG))
    told = list[CloudEvent]()
    for seq, data in enumerate(at.stored, start=1):
        entry = decode_entry(Message("", seq, data))
        told += [CloudEvent.model_validate_json(event.data) for event in events_of("main", entry.message, state.state)]
        state.fold(entry)
    mine = [event for event in told if event.type.startswith("io.tessera.reservation.")]
    assert [(event.type.split(".")[3], event.tenant, event.data["job"]) for event in mine] == [
        ("made", "lab", GANG),
        ("ended", "lab", GANG),
    ]
    assert (mine[0].data["price_gpu_ms"], mine[1].data["why"]) == (4 * 1000 * HOUR, "dropped")
