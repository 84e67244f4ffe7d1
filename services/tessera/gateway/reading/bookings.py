"""Reservations as people see them: when, which nodes, which of these are missing, and who has to leave."""

from collections.abc import Collection

from tessera.domain.quota.bookings import Booking
from tessera.domain.state import State
from tessera.engine.ahead.booked_nodes import BookedNodes, missing_nodes
from tessera.engine.ahead.choosing import choose_booking
from tessera.gateway.operations.slot_models import ReplacedNodes, ReservationRow
from tessera_schemas.reasons import Reason
from tessera_schemas.shard.bookings import BookedWindow, BookingWish


def reservation_rows(state: State, now_ms: int, tenant: str | None, pools: Collection[str]) -> list[ReservationRow]:
    """
    Reservations in these pools, the next to begin first; for a tenant with whose they are only where they are its own.
    """
    known = [each for each in state.bookings.values() if each.pool in pools and each.ends_ts > now_ms]
    booked = {pool: BookedNodes(state, pool) for pool in {each.pool for each in known}}
    rows = [_row(state, max(now_ms, state.ts), tenant, each, booked[each.pool]) for each in known]
    return sorted(rows, key=lambda row: (row.windows[0].start_ts, row.name))


def _row(state: State, ts: int, tenant: str | None, each: Booking, booked: BookedNodes) -> ReservationRow:
    names = sorted(each.nodes or booked.nodes_of(each))
    there = {node.name: node for node in state.nodes.found(names)}
    runs = {run.run_id: run for name in names for run in state.runs_on(name)}
    jobs = [job for job in state.jobs.found(state.index.holders) if job.booking == each.name]
    mine = tenant is None or any(who.partition("/")[0] == tenant for who in each.who)
    windows = tuple(BookedWindow(start_ts=start, end_ts=end) for start, end in each.windows if end > ts)
    return ReservationRow(
        name=each.name,
        pool=each.pool,
        nodes=tuple(names),
        gpus=sum(node.gpus for node in there.values()),
        windows=windows or (BookedWindow(start_ts=each.windows[-1][0], end_ts=each.windows[-1][1]),),
        is_maintenance=not each.who,
        is_now=each.window_at(ts) is not None,
        who=each.who if tenant is None else tuple(who for who in each.who if who.partition("/")[0] == tenant),
        why=each.why if mine or not each.who else "",
        by=each.by if tenant is None else "",
        booked_ts=each.booked_ts,
        missing=missing_nodes(state, each),
        replaced=tuple(ReplacedNodes(at_ts=at, lost=lost, found=found) for at, lost, found in each.replaced),
        runs=sum(_is_other(state, run.job_id, each) for run in runs.values()),
        job=each.job if mine else "",
        jobs=sum(tenant in (None, job.tenant) for job in jobs),
    )


def _is_other(state: State, job_id: str, booking: Booking) -> bool:
    job = state.jobs.get(job_id)
    return job is None or (job.booking != booking.name and booking.job != job_id)


def booking_fault(state: State, wish: BookingWish, now_ms: int) -> Reason | None:
    """Reason that the committer would have against the reservation by now."""
    now = state.overlay()
    now.ts = max(state.ts, now_ms)
    made = choose_booking(now, wish)
    return made if isinstance(made, Reason) else None
