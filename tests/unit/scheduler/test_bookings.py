"""Nodes are kept in windows of time: others are gone by then, who names the reservation runs there and nowhere else."""

import json
from typing import Any

import pytest

from tessera.domain.storing.snapshot import dump, load
from tessera.engine.ahead.booked_nodes import count_unserved, missing_nodes
from tessera_schemas.base import job_id
from tessera_schemas.config import Policy
from tessera_schemas.facts import AnyFact, BookingAsked, BookingEndAsked, DrainRequested
from tessera_schemas.job import JobSpec
from tessera_schemas.ledger import Allocated, Booked, BookingEnded, BookingRefused, Finished, JobTurnedAway, Revoked
from tessera_schemas.reasons import Code
from tessera_schemas.shard.bookings import BookingShort, BookingWish, Rebooked
from tests.builders import SHARD, admitted, config_body, job_spec, node_seen, role, run_absent
from tests.unit.scheduler.committer_world import K1, RUN, World, ended, kinds, made, started

HOUR = 3_600_000
STOPS_MS = (30 + Policy().stop_patience_seconds) * 1000  # grace, and patience
A, B = "gpu-a", "gpu-b"


def two_nodes() -> World:
    return World(node_seen(name=A), node_seen(name=B))


def pool_of(world: World) -> str:
    return world.state.nodes.get(A).pool


def asked(world: World, hours: float = 2, length: float = 1, name: str = "demo", **more: Any) -> BookingAsked:
    """A booking of node A, unless it says another choice, `hours` from now on."""
    begin = world.ts + int(hours * HOUR)
    windows = more.pop("windows", [{"start_ts": begin, "end_ts": begin + int(length * HOUR)}])
    if not {"nodes", "node_count", "gpus", "whole"} & more.keys():
        more["nodes"] = (A,)
    more.pop("whole", None)
    wish = {"name": name, "pool": pool_of(world), "windows": windows, **more}
    return BookingAsked(kind="booking_asked", wish=BookingWish.model_validate_json(json.dumps(wish)), why="a demo")


def spec(**more: Any) -> JobSpec:
    return job_spec(role(gpus=8), **{"preemptible": False, **more})


def said(message: Any, kind: type[Any]) -> Any:
    (found,) = [record for record in message.records if isinstance(record, kind)]
    return found


def refused(world: World, fact: AnyFact) -> tuple[str, str]:
    reason = said(world.commit(fact), BookingRefused).reason
    return reason.code, reason.field


def place_of(world: World, key: str, **more: Any) -> str:
    """The node on which the job starts now, "" for none."""
    world.commit(admitted(key, spec(**more)))
    message = world.place()
    found = [record for record in message.records if isinstance(record, Allocated)]
    return found[0].placements[0].node if found else ""


def run_all(world: World, run: str) -> None:
    world.commit(made(run))
    world.commit(started(run))


def test_a_booking_is_kept_and_stored() -> None:
    world = two_nodes()
    record = said(world.commit(asked(world, who=("lab",))), Booked)
    assert (record.nodes, record.who, record.why) == ((A,), ("lab",), "a demo")
    assert [*load(dump(world.state)).bookings.values()] == [*world.state.bookings.values()]


@pytest.mark.parametrize(("started_late_ms", "told"), [(0, False), (1, True)])
def test_who_ends_by_its_limit_is_told_to_leave_only_where_it_started_late(started_late_ms: int, told: bool) -> None:
    world = two_nodes()
    fact = asked(world, nodes=(A, B))
    world.commit(fact)
    begins = fact.wish.windows[0].start_ts
    world.ts = begins - HOUR - STOPS_MS - 10_000
    assert place_of(world, "k1", time_limit_seconds=3600)
    world.commit(made(RUN))
    world.commit(started(RUN), ms=begins - HOUR - STOPS_MS + started_late_ms - world.ts)
    message = world.commit(ms=begins - STOPS_MS - world.ts)
    assert ("revoked" in kinds(message)) is told


@pytest.mark.parametrize(("limit", "nodes"), [(3600, {A, B}), (3 * 3600, {B})])
def test_who_would_not_have_left_starts_on_other_nodes(limit: int, nodes: set[str]) -> None:
    world = two_nodes()
    world.commit(asked(world))
    assert {place_of(world, f"k{at}", time_limit_seconds=limit) for at in (1, 2)} - {""} == nodes


def test_it_starts_up_to_the_second_by_which_it_has_left() -> None:
    world = two_nodes()
    fact = asked(world, nodes=(A, B))
    world.commit(fact)
    begins = fact.wish.windows[0].start_ts
    world.ts = begins - 3_600_000 - STOPS_MS - 2000
    assert place_of(world, "k1", time_limit_seconds=3600)
    assert place_of(world, "k2", time_limit_seconds=3600) == ""
    reason = world.state.jobs.get(job_id(SHARD, "lab", "k2")).reason
    assert (reason.code, reason.detail, reason.numbers["from_ts"]) == (Code.NODES_BOOKED, "demo", begins)


def test_nothing_of_others_starts_within_a_window_and_all_does_after_it() -> None:
    world = two_nodes()
    world.commit(asked(world, nodes=(A, B)))
    world.ts += 2 * HOUR
    assert place_of(world, "k1", time_limit_seconds=1) == ""
    world.ts += HOUR
    message = world.place()
    assert kinds(message)[:2] == ["booking_ended", "allocated"]
    assert said(message, BookingEnded).why == "over"


def test_without_a_limit_the_length_of_such_jobs_counts() -> None:
    world = two_nodes()
    world.commit(asked(world, hours=200, length=1, nodes=(A, B)))
    assert place_of(world, "k1")
    world.commit(asked(world, hours=1, name="soon", nodes=(B,)))
    assert place_of(world, "k2") == ""


def test_a_preemptible_job_starts_there_and_has_left_when_the_window_begins() -> None:
    world = two_nodes()
    fact = asked(world, nodes=(A, B))
    world.commit(fact)
    assert place_of(world, "k1", preemptible=True)
    run_all(world, RUN)
    begins = fact.wish.windows[0].start_ts
    leaves = begins - STOPS_MS
    assert world.say(ms=leaves - 1 - world.ts) == []
    revoked = said(world.commit(ms=1), Revoked)
    assert (revoked.reason.code, revoked.then) == (Code.RESERVATION_BEGINS, "requeue")
    world.commit(run_absent(RUN), ms=1000)
    assert (world.job.strikes, world.job.phase.value) == (0, "queued")
    assert kinds(world.place()) in (["waiting"], [])


def test_what_runs_already_leaves_a_named_node_in_time() -> None:
    world = two_nodes()
    first = place_of(world, "k1")
    run_all(world, RUN)
    fact = asked(world, nodes=(first,))
    world.commit(fact)
    begins = fact.wish.windows[0].start_ts
    message = world.commit(ms=begins - world.ts)
    assert said(message, Revoked).reason.field == "reservations.demo"


def test_chosen_nodes_are_those_that_are_free_by_then() -> None:
    world = two_nodes()
    busy = place_of(world, "k1", time_limit_seconds=24 * 3600)
    run_all(world, RUN)
    record = said(world.commit(asked(world, node_count=1)), Booked)
    assert set(record.nodes) == {A, B} - {busy}
    assert refused(world, asked(world, name="two", gpus=9)) == (Code.NOT_FREE_THEN, "gpus")


def test_the_first_window_begins_once_enough_nodes_are_free() -> None:
    world = two_nodes()
    place_of(world, "k1", time_limit_seconds=5 * 3600)
    run_all(world, RUN)
    record = said(world.commit(asked(world, hours=0, gpus=16, first=True)), Booked)
    assert record.nodes == (A, B)
    assert record.windows[0].start_ts == world.run.started_ts + 5 * HOUR + STOPS_MS
    assert record.windows[0].end_ts - record.windows[0].start_ts == HOUR
    again = said(world.commit(asked(world, hours=0, gpus=16, first=True, name="next")), Booked)
    assert again.windows[0].start_ts == record.windows[0].end_ts


@pytest.mark.parametrize(
    ("more", "code", "field"),
    [
        ({"hours": -1}, Code.INVALID_FIELD, "windows[0].start_ts"),
        ({"hours": 367 * 24}, Code.INVALID_FIELD, "windows[0].end_ts"),
        ({"nodes": ("gone",)}, Code.INVALID_FIELD, "nodes[0]"),
        ({"pool": "none"}, Code.INVALID_FIELD, "pool"),
        ({"who": ("nobody",)}, Code.INVALID_FIELD, "who"),
        ({"name": "taken"}, Code.INVALID_FIELD, "name"),
        ({"hours": 2.5}, Code.NOT_FREE_THEN, "nodes[0]"),
        ({"hours": 2.5, "whole": True}, Code.NOT_FREE_THEN, "nodes"),
        ({"hours": 2.5, "node_count": 2}, Code.NOT_FREE_THEN, "node_count"),
    ],
)
def test_a_booking_that_cannot_be_is_refused_by_field(more: dict[str, Any], code: Code, field: str) -> None:
    world = two_nodes()
    world.commit(asked(world, name="taken"))
    assert refused(world, asked(world, **more)) == (code, field)


def test_windows_that_touch_may_follow_each_other() -> None:
    world = two_nodes()
    world.commit(asked(world, hours=2, length=1))
    fact = asked(world, hours=3, length=1, name="after")
    window = {"start_ts": fact.wish.windows[0].start_ts - 1000, "end_ts": fact.wish.windows[0].end_ts}
    assert said(world.commit(asked(world, name="after", windows=[window])), Booked).name == "after"


def test_jobs_of_a_reservation_run_in_its_window_and_on_its_nodes_alone() -> None:
    world = two_nodes()
    world.commit(asked(world, who=("lab",)))
    assert place_of(world, "k1", reservation="demo", time_limit_seconds=1800) == ""
    assert world.job.reason.code is Code.WAITING_FOR_WINDOW
    world.ts += 2 * HOUR
    (record,) = [each for each in world.place().records if isinstance(each, Allocated)]
    assert record.placements[0].node == A
    assert place_of(world, "k2", reservation="demo", time_limit_seconds=1800) == ""
    assert world.state.jobs.get(job_id(SHARD, "lab", "k2")).reason.code is Code.NO_FIT


def test_one_that_would_outlast_the_window_waits_for_a_longer_one() -> None:
    world = two_nodes()
    world.commit(asked(world, hours=1, length=2, who=("lab",)))
    world.ts += HOUR + HOUR // 2
    world.commit(admitted("k1", spec(reservation="demo", time_limit_seconds=5400)))
    assert not [each for each in world.place(ms=2000).records if isinstance(each, Allocated)]


def test_one_without_a_limit_leaves_with_its_window_and_ends_with_the_last() -> None:
    world = two_nodes()
    fact = asked(world, hours=1, who=("lab",))
    world.commit(fact)
    world.ts += HOUR
    assert place_of(world, "k1", reservation="demo") == A
    run_all(world, RUN)
    message = world.commit(ms=fact.wish.windows[0].end_ts - world.ts - 1000)
    assert said(message, Revoked).reason.code is Code.RESERVATION_OVER
    world.commit(run_absent(RUN), ms=500)
    message = world.commit(ms=1000)
    assert said(message, BookingEnded).why == "over"
    assert said(message, Finished).reason.code is Code.RESERVATION_OVER
    assert not world.state.index.holders


@pytest.mark.parametrize(
    ("who", "name", "limit", "field"),
    [
        (("lab",), "other", 60, "reservation"),
        (("other",), "demo", 60, "reservation"),
        (("lab/ben",), "demo", 60, "reservation"),
        (("lab",), "demo", 7200, "time_limit_seconds"),
    ],
)
def test_a_job_of_a_reservation_that_is_not_open_to_it_is_turned_away(
    who: tuple[str, ...], name: str, limit: int, field: str
) -> None:
    world = two_nodes()
    world.commit(asked(world, who=("lab",)))
    if who != ("lab",):
        world.commit(BookingEndAsked(kind="booking_end_asked", name="demo"))
        world.state.bookings.put("demo", _of(world, who))
    message = world.commit(admitted("k1", spec(reservation=name, time_limit_seconds=limit)))
    assert said(message, JobTurnedAway).reasons[0].field == field
    assert world.state.jobs.get(K1) is None


def _of(world: World, who: tuple[str, ...]) -> Any:
    from tessera.domain.quota.bookings import Booking

    return Booking("demo", pool_of(world), (A,), ((world.ts + HOUR, world.ts + 2 * HOUR),), who, "", "", world.ts)


def test_a_booking_that_is_ended_keeps_nothing() -> None:
    world = two_nodes()
    world.commit(asked(world, hours=0, nodes=(A, B)))
    assert place_of(world, "k1") == ""
    message = world.commit(BookingEndAsked(kind="booking_end_asked", name="demo"))
    assert said(message, BookingEnded).why == "asked"
    assert "allocated" in kinds(message)


def test_a_head_that_no_window_lets_start_is_told_when_it_can() -> None:
    rules = Policy(backfill="reserve", backfill_patience_seconds=0)
    world = World(node_seen(name=A), node_seen(name=B), body=config_body(policy=rules))
    fact = asked(world, nodes=(A, B))
    world.commit(fact)
    begins, ends = fact.wish.windows[0].start_ts, fact.wish.windows[0].end_ts
    place_of(world, "k1", time_limit_seconds=3 * 3600)
    world.ts = begins - HOUR
    assert place_of(world, "small", time_limit_seconds=600)
    reason = world.job.reason
    assert (reason.code, reason.numbers["from_ts"]) == (Code.RESERVED, ends)


def test_a_whole_pool_is_kept_with_nodes_that_come_later() -> None:
    world = two_nodes()
    world.commit(asked(world, hours=0, whole=True))
    world.commit(node_seen(name="gpu-c"))
    assert place_of(world, "k1") == ""


def test_what_lacks_nodes_is_counted_from_a_day_before_and_maintenance_is_not() -> None:
    world = two_nodes()
    world.commit(asked(world, who=("lab",)))
    world.commit(asked(world, hours=30, name="later", nodes=(B,), who=("lab",)))
    world.commit(asked(world, name="fans", nodes=(B,)))
    assert count_unserved(world.state) == 0
    for name in (A, B):
        world.commit(DrainRequested(kind="drain_requested", node=name))
    assert count_unserved(world.state) == 1
    assert missing_nodes(world.state, world.state.bookings.get("later")) == (B,)
    world.ts += 8 * HOUR
    world.commit()
    assert count_unserved(world.state) == 1, "the first is over, and the later one is near"


def lose(world: World, name: str, **how: Any) -> Any:
    return world.commit(node_seen(name=name, **(how or {"ready": False})))


@pytest.mark.parametrize("wish", [{"node_count": 1}, {"gpus": 5}])
@pytest.mark.parametrize("how", [{"ready": False}, {"gone": True}, {}])
def test_a_chosen_node_that_is_lost_before_its_window_is_replaced(wish: dict[str, Any], how: dict[str, Any]) -> None:
    world = two_nodes()
    assert said(world.commit(asked(world, **wish, who=("lab",))), Booked).nodes == (A,)
    drained = DrainRequested(kind="drain_requested", node=A)
    record = said(world.commit(node_seen(name=A, **how) if how else drained), Rebooked)
    assert (record.lost, record.found) == ((A,), (B,))
    (booking,) = world.state.bookings.values()
    assert (booking.nodes, booking.replaced, booking.missing) == ((B,), ((world.state.ts, (A,), (B,)),), ())
    assert [*load(dump(world.state)).bookings.values()] == [booking]
    # What comes back is not taken again.
    assert "rebooked" not in kinds(world.commit(node_seen(name=A), DrainRequested(kind="drain_requested", node=A)))


def test_nodes_that_people_named_are_never_replaced_and_told_as_missing() -> None:
    world = two_nodes()
    world.commit(asked(world, who=("lab",)))
    message = lose(world, A)
    assert said(message, BookingShort).missing == (A,)
    assert "rebooked" not in kinds(message)
    assert kinds(world.commit()) == [], "told once"
    assert said(world.commit(node_seen(name=A)), BookingShort).missing == ()


def test_of_maintenance_nothing_is_told_and_what_was_chosen_is_replaced() -> None:
    world = World(*(node_seen(name=name) for name in (A, B, "gpu-c")))
    world.commit(asked(world))
    assert kinds(lose(world, A)) == ["node_changed"]
    world.commit(asked(world, name="fans", node_count=1))
    assert said(lose(world, B), Rebooked).found == ("gpu-c",)


def test_a_node_that_another_window_has_then_takes_nobodys_place() -> None:
    world = two_nodes()
    world.commit(asked(world, node_count=1, who=("lab",)))
    world.commit(asked(world, name="other", nodes=(B,)))
    assert said(lose(world, A), BookingShort).missing == (A,)
    message = world.commit(BookingEndAsked(kind="booking_end_asked", name="other"))
    assert said(message, Rebooked).found == (B,)
    assert world.state.bookings.get("demo").missing == ()


def test_two_bookings_that_lose_a_node_do_not_get_the_same_one() -> None:
    world = World(*(node_seen(name=name) for name in (A, B, "gpu-c")))
    for name in ("one", "two"):
        world.commit(asked(world, name=name, node_count=1, who=("lab",)))
    facts = [node_seen(name=name, ready=False) for name in (A, B)]
    message = world.commit(*facts)
    assert (said(message, Rebooked).name, said(message, BookingShort).name) == ("one", "two")


def test_within_a_window_nothing_is_replaced_and_before_the_next_one_it_is() -> None:
    world = two_nodes()
    begin = world.ts + HOUR
    windows = [{"start_ts": begin + at * HOUR, "end_ts": begin + at * HOUR + HOUR // 2} for at in (0, 1)]
    world.commit(asked(world, windows=windows, node_count=1, who=("lab",)))
    world.ts = begin
    assert "rebooked" not in kinds(lose(world, A))
    assert "rebooked" not in kinds(world.commit(ms=HOUR // 2 - 2000))
    assert said(world.commit(ms=60_000), Rebooked).found == (B,)


def test_a_node_whose_runs_stay_too_long_takes_nobodys_place_until_they_have_ended() -> None:
    world = two_nodes()
    busy = place_of(world, "k1", time_limit_seconds=24 * 3600)
    run_all(world, RUN)
    (kept,) = {A, B} - {busy}
    assert said(world.commit(asked(world, node_count=1, who=("lab",))), Booked).nodes == (kept,)
    assert said(lose(world, kept), BookingShort).missing == (kept,)
    world.commit(ended(RUN), run_absent(RUN), ms=1000)
    assert said(world.commit(ms=60_000), Rebooked).found == (busy,)


@pytest.mark.parametrize(
    ("gpus", "lost", "found", "left"),
    [
        # As many GPUs as are wished for, on as few others as that takes.
        (16, ("gpu-a",), ("gpu-c",), ()),
        (16, ("gpu-a", "gpu-b"), ("gpu-c", "gpu-d"), ()),
        (24, ("gpu-a", "gpu-b"), ("gpu-d",), ("gpu-b",)),
    ],
)
def test_as_many_are_replaced_as_there_are_others(
    gpus: int, lost: tuple[str, ...], found: tuple[str, ...], left: tuple[str, ...]
) -> None:
    world = World(*(node_seen(name=f"gpu-{at}") for at in "abcd"))
    world.commit(asked(world, gpus=gpus, who=("lab",)))
    record = said(world.commit(*(node_seen(name=name, ready=False) for name in lost)), Rebooked)
    assert (record.found, world.state.bookings.get("demo").missing) == (found, left)
