"""`GET /v1/reservations`: who sees what of whose windows; and what is said of one before it is asked for."""

from typing import Any

from tessera.engine.explain.explanation import explain
from tessera.gateway.reading.bookings import booking_fault, reservation_rows
from tessera.kernel.clock import SystemClock
from tessera_schemas.base import job_id
from tessera_schemas.facts import BookingAsked, DrainRequested
from tessera_schemas.shard.bookings import BookedWindow, BookingWish
from tests.builders import SHARD, admitted, job_spec, node_seen, role
from tests.ledgers import Committed
from tests.unit.gateway.gateway_world import World

HOUR = 3_600_000


def asked(ts: int, name: str = "demo", hours: int = 2, **more: Any) -> BookingAsked:
    window = BookedWindow(start_ts=ts + hours * HOUR, end_ts=ts + (hours + 1) * HOUR)
    wish = {"name": name, "pool": "default", "windows": (window,), "who": ("lab/ana",), "nodes": ("node-a",), **more}
    return BookingAsked(kind="booking_asked", wish=BookingWish(**wish), why="for the board", by="olga")


def begun() -> Committed:
    ledger = Committed().begin(node_seen("node-a"), node_seen("node-b"))
    ledger.commit(asked(ledger.ts))
    return ledger


def test_a_row_tells_what_is_missing_and_who_is_there() -> None:
    ledger = begun()
    ledger.commit(admitted("k1", job_spec(role(gpus=8))), admitted("k2", job_spec(role(gpus=8))))
    ledger.commit(orders=(ledger.line(),), ms=0)
    (row,) = reservation_rows(ledger.state, ledger.ts, None, ("default",))
    assert (row.nodes, row.gpus, row.runs, row.jobs, row.missing) == (("node-a",), 8, 1, 0, ())
    assert (row.is_now, row.why, row.by, row.who) == (False, "for the board", "olga", ("lab/ana",))
    ledger.commit(DrainRequested(kind="drain_requested", node="node-a"))
    (row,) = reservation_rows(ledger.state, row.windows[0].start_ts, None, ("default",))
    assert (row.is_now, row.missing) == (True, ("node-a",))
    assert reservation_rows(ledger.state, ledger.ts, None, ("other",)) == []


def test_a_tenant_sees_the_window_of_another_and_not_what_it_is_for() -> None:
    ledger = begun()
    mine, theirs = (reservation_rows(ledger.state, ledger.ts, tenant, ("default",))[0] for tenant in ("lab", "other"))
    assert (mine.who, mine.why, mine.by) == (("lab/ana",), "for the board", "")
    assert (theirs.who, theirs.why, theirs.by, theirs.windows) == ((), "", "", mine.windows)


def test_the_fault_is_that_of_the_hour_in_which_it_is_asked() -> None:
    ledger = begun()
    wish = asked(ledger.ts, "other", 4).wish
    assert booking_fault(ledger.state, wish, ledger.ts) is None
    late = booking_fault(ledger.state, wish, ledger.ts + 5 * HOUR)
    assert late is not None
    assert late.field == "windows[0].start_ts"


def test_explain_says_which_window_keeps_a_job_waiting_and_what_would_help() -> None:
    ledger = begun()
    ledger.commit(asked(ledger.ts, "all", nodes=("node-b",), who=()))
    ledger.commit(admitted("k1", job_spec(role(gpus=8), preemptible=False)))
    ledger.commit(orders=(ledger.line(),), ms=0)
    found = explain(ledger.state, job_id(SHARD, "lab", "k1"), now_ms=ledger.ts)
    assert found is not None
    said = " ".join(found.notes)
    assert "2 nodes are kept from it" in said
    assert "Reservation demo keeps 1 nodes for jobs that name it" in said
    assert "for maintenance" in said
    assert "time_limit_seconds" in said


async def test_the_consequences_of_an_order_are_those_who_have_to_leave(world: World) -> None:
    pool = next(iter(world.committed.state.nodes.values())).pool
    wish = asked(SystemClock().now_ms(), "all", 2, nodes=(), pool=pool, who=()).wish
    order = {"kind": "reserve_nodes", "v": 1, **wish.model_dump(mode="json")}
    lab, operator = world.token("lab"), world.token(None)
    async with world.gateway():
        refused = await world.ask("POST", "/v1/consequences", lab, {"command": order})
        told = await world.ask("POST", "/v1/consequences", operator, {"command": order})
        wrong = await world.ask("POST", "/v1/consequences", operator, {"command": {**order, "pool": "none"}})
        listed = await world.ask("GET", "/v1/reservations", lab)
    assert (refused.status, told.status, wrong.status, listed.body["items"]) == (403, 200, 422, [])
    assert told.body["sentences"][-1].startswith("keeps ")
    assert wrong.body["field"] == "pool"
