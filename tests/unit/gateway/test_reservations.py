"""`GET /v1/reservations`: who sees what of whose windows; and what is said of one before it is asked for."""

from typing import Any

from tessera.client.commands.nodes.reservations import lines_of
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


def test_a_row_tells_which_node_was_replaced_by_which() -> None:
    ledger = Committed().begin(node_seen("node-a"), node_seen("node-b"))
    ledger.commit(asked(ledger.ts, nodes=(), node_count=1))
    ledger.commit(node_seen("node-a", ready=False))
    (row,) = reservation_rows(ledger.state, ledger.ts, None, ("default",))
    assert (row.nodes, row.missing) == (("node-b",), ())
    assert [(each.at_ts, each.lost, each.found) for each in row.replaced] == [(ledger.ts, ("node-a",), ("node-b",))]
    assert any(line.endswith("node-a by node-b") for line in lines_of(row))


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


async def test_an_operator_makes_and_ends_a_reservation_by_http(world: World) -> None:
    await world.commit(ms=SystemClock().now_ms() - world.committed.ts)
    node, begin = next(iter(world.committed.state.nodes.values())), SystemClock().now_ms() + HOUR
    window = {"start_ts": begin, "end_ts": begin + HOUR}
    body = {"name": "demo", "pool": node.pool, "nodes": [node.name], "windows": [window], "who": ["lab"]}
    lab, operator = world.token("lab"), world.token(None)
    async with world.gateway():
        tenants = await world.ask("POST", "/v1/reservations", lab, body)
        wrong = await world.ask("POST", "/v1/reservations", operator, {**body, "nodes": ["gone"]})
        none = await world.ask("DELETE", "/v1/reservations/demo", operator)
        kept = await world.ask("POST", "/v1/reservations", operator, {**body, "why": "board"})
        twice = await world.ask("POST", "/v1/reservations", operator, body)
        meets = await world.ask("POST", "/v1/reservations", operator, {**body, "name": "other"})
        by = world.committed.state.bookings.get("demo").by
        ended = await world.ask("DELETE", "/v1/reservations/demo", operator)
    assert [each.status for each in (tenants, wrong, none, kept)] == [403, 422, 404, 201]
    assert (wrong.body["field"], kept.body["reservation"]["why"]) == ("nodes[0]", "board")
    assert (twice.body["field"], meets.status, meets.body["code"]) == ("name", 409, "NotFreeThen")
    assert by.startswith("token ")
    assert (ended.status, ended.body["state"], len(world.committed.state.bookings)) == (200, "ended", 0)


async def test_what_is_not_known_to_be_kept_is_told_as_stored(world: World) -> None:
    node, begin = next(iter(world.committed.state.nodes.values())), SystemClock().now_ms() + HOUR
    window = {"start_ts": begin, "end_ts": begin + HOUR}
    operator, world.answers = world.token(None), False
    async with world.gateway(answer_seconds=0.1):
        body = {"name": "demo", "pool": node.pool, "nodes": [node.name], "windows": [window]}
        stored = await world.ask("POST", "/v1/reservations", operator, body)
    assert (stored.status, stored.body["state"], world.subjects) == (202, "stored", ["control.main.reservations"])


async def test_slots_ahead_are_those_that_ends_and_windows_leave(world: World) -> None:
    now = SystemClock().now_ms()
    await world.commit(ms=now - world.committed.ts)
    await world.commit(admitted("k1", job_spec(role(gpus=8), time_limit_seconds=3600)))
    await world.commit(orders=(world.committed.line(),), ms=0)
    nodes = [node for node in world.committed.state.nodes.values() if node.gpus]
    pool, gpus = nodes[0].pool, sum(node.gpus for node in nodes)
    await world.commit(asked(world.committed.ts, "all", 2, nodes=(), pool=pool, who=()))
    token, free = world.token("lab"), list[int]()
    async with world.gateway():
        for hours in (0.5, 1.5, 2.5, 3.5):
            said = await world.ask("GET", f"/v1/slots?at={now + int(hours * HOUR)}", token)
            (found,) = [each for each in said.body["items"] if each["pool"] == pool]
            free.append(sum(size["slots"] for size in found["sizes"] if size["gpus"] == 1))
        late = await world.ask("GET", f"/v1/slots?at={now + 400 * 24 * HOUR}", token)
    assert free == [gpus - 8, gpus, 0, gpus]
    assert (late.status, late.body["field"]) == (422, "at")
