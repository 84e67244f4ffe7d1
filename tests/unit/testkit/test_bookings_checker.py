"""The checker's rules of bookings: ledgers of the committer pass, and each break of a rule is found."""

from typing import Any

import pytest

from tessera.testkit.bookings_checker import check_bookings
from tessera.testkit.checker.report import Report
from tessera_schemas import ledger as m
from tessera_schemas.facts import BookingAsked
from tessera_schemas.job import JobSpec
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.bookings import BookedWindow, BookingShort, BookingWish, Rebooked
from tests.builders import job_spec, node_seen, placement
from tests.unit.testkit.stored_ledgers import Shard, first_run

HOUR = 3_600_000
NODE = placement().node


def kept(shard: Shard, *, begins_ms: int = HOUR, asks: bool = True, **more: Any) -> BookedWindow:
    """Books the node for an hour from then on."""
    window = BookedWindow(start_ts=shard.ts + begins_ms, end_ts=shard.ts + begins_ms + HOUR)
    said = {"name": "demo", "pool": "default", "nodes": (NODE,), "windows": (window,), **more}
    wish = BookingWish.model_validate(said)
    facts = [BookingAsked(kind="booking_asked", wish=wish), node_seen(NODE)] if asks else [node_seen(NODE)]
    shard.add(
        m.Booked(
            kind="booked",
            name="demo",
            pool="default",
            nodes=(NODE,),
            windows=(window,),
            who=wish.who,
            node_count=wish.node_count,
        ),
        facts=facts,
    )
    return window


def spec(**more: Any) -> JobSpec:
    return job_spec(**{"preemptible": False, "time_limit_seconds": 600, **more})


def found(shard: Shard) -> list[str]:
    report = Report()
    check_bookings(report, shard.stored)
    return [each.text for each in report.violations]


def start(shard: Shard, at: int, **more: Any) -> None:
    shard.queued(spec=spec(**more))
    shard.ts = at - 1000
    shard.allocated(placement())


def stop(shard: Shard, at: int, code: Code) -> None:
    shard.ts = at - 1000
    reason = Reason(code=code, field="reservations.demo")
    shard.add(m.Revoked(kind="revoked", run_id=first_run(), reason=reason, then="requeue", by="operator"))


@pytest.mark.parametrize(("early_ms", "right"), [(600_000, True), (599_999, False)])
def test_a_start_has_left_by_the_window(early_ms: int, right: bool) -> None:
    shard = Shard()
    window = kept(shard)
    start(shard, window.start_ts - early_ms)
    assert (found(shard) == []) is right


@pytest.mark.parametrize(("late_ms", "right"), [(-1, True), (0, False), (HOUR - 1, False), (HOUR, True)])
def test_no_start_of_others_is_within_a_window(late_ms: int, right: bool) -> None:
    shard = Shard()
    window = kept(shard)
    start(shard, window.start_ts + late_ms, preemptible=True)
    assert (found(shard)[:1] == []) is right


@pytest.mark.parametrize(
    ("late_ms", "more", "right"),
    [
        (0, {}, True),
        (-1, {}, False),
        (HOUR - 600_000, {}, True),
        (HOUR - 599_999, {}, False),
        (0, {"reservation": "other"}, False),
    ],
)
def test_a_job_of_a_reservation_starts_within_its_window(late_ms: int, more: dict[str, Any], right: bool) -> None:
    shard = Shard()
    window = kept(shard, who=("lab",))
    start(shard, window.start_ts + late_ms, **{"reservation": "demo", **more})
    assert (found(shard) == []) is right


def test_it_may_not_name_what_is_kept_for_others() -> None:
    shard = Shard()
    window = kept(shard, who=("other",))
    start(shard, window.start_ts, reservation="demo")
    assert len(found(shard)) == 1


def test_who_stands_in_a_window_is_told_to_stop() -> None:
    shard = Shard()
    start(shard, shard.ts + 1000, time_limit_seconds=None)
    window = kept(shard)
    shard.ts = window.start_ts - 1000
    shard.add()
    assert found(shard) == []
    shard.add()
    assert found(shard) == [f"{first_run()} stands within the window of demo, and is not told to stop"]


@pytest.mark.parametrize(("early_ms", "right"), [(30_000, True), (HOUR // 2, False)])
def test_a_stop_for_a_window_is_when_it_is_near(early_ms: int, right: bool) -> None:
    shard = Shard()
    start(shard, shard.ts + 1000, time_limit_seconds=None)
    window = kept(shard)
    stop(shard, window.start_ts - early_ms, Code.RESERVATION_BEGINS)
    shard.ts = window.start_ts
    shard.add()
    shard.add()
    assert (found(shard) == []) is right


def test_a_booking_is_what_was_asked_for_and_ends_when_it_is_over() -> None:
    shard = Shard()
    kept(shard, asks=False)
    assert found(shard) == ["nobody asked for demo"]
    shard = Shard()
    window = kept(shard)
    shard.ts = window.end_ts - 1001
    shard.add(m.BookingEnded(kind="booking_ended", name="demo", why="over"))
    assert found(shard) == ["demo ends, and is not over"]


def test_two_bookings_share_no_node_at_one_time() -> None:
    shard = Shard()
    kept(shard)
    kept(shard, begins_ms=HOUR + 1000)
    assert found(shard) == ["demo and demo have one node at one time"]


def lost(shard: Shard, *nodes: str, **how: Any) -> None:
    """The first node is lost, and the others are seen well."""
    facts = [node_seen(NODE, **(how or {"ready": False})), *(node_seen(name) for name in nodes)]
    shard.add(*(m.NodeChanged(kind="node_changed", fact=at) for at in range(len(facts))), facts=facts)


@pytest.mark.parametrize(
    ("how", "gives", "gets", "late_ms", "text"),
    [
        ({}, NODE, "node-b", 0, ""),
        ({"gone": True}, NODE, "node-b", 0, ""),
        ({"ready": True}, NODE, "node-b", 0, "demo gives up nodes that it has not lost"),
        ({}, "node-b", "node-c", 0, "demo gives up nodes that it has not lost"),
        ({}, NODE, "node-c", 0, "demo gets nodes that are not there"),
        ({}, NODE, "", 0, "demo has another number of nodes"),
        ({}, NODE, "node-b", HOUR, "demo has nodes replaced that are not chosen, or in its window"),
    ],
)
def test_a_node_is_replaced_that_is_lost_and_by_one_that_is_there(
    how: dict[str, Any], gives: str, gets: str, late_ms: int, text: str
) -> None:
    shard = Shard()
    kept(shard, nodes=(), node_count=1)
    lost(shard, "node-b", **how)
    shard.ts += late_ms
    shard.add(Rebooked(kind="rebooked", name="demo", lost=(gives,), found=(gets,) if gets else ()))
    assert found(shard)[:1] == ([text] if text else [])


def test_what_is_told_as_missing_is_missing() -> None:
    shard = Shard()
    kept(shard, who=("lab",))
    lost(shard)
    shard.add(BookingShort(kind="booking_short", name="demo", missing=(NODE,)))
    lost(shard, ready=True)
    shard.add(BookingShort(kind="booking_short", name="demo", missing=(NODE,)))
    assert found(shard) == [f"demo does not lack {(NODE,)}"]
