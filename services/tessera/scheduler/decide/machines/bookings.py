"""
Bookings: nodes that are kept in windows of time, and that others leave before.

Whoever is on such nodes is told to stop early enough to be gone when the window begins, with the notice and the grace
that it asked for. Jobs that name the booking leave in the same way before its window ends.
"""

from operator import attrgetter
from typing import Literal

from tessera.domain.entities import Run
from tessera.domain.quota.bookings import Booking
from tessera.domain.state import State
from tessera.domain.work.phases import Phase
from tessera.engine.ahead.booked_nodes import BookedNodes, leave_ms
from tessera.engine.ahead.choosing import choose_booking
from tessera.engine.ahead.replacing import LostNodes
from tessera.scheduler.decide.draft import Draft, give_up_earmark, judges
from tessera.scheduler.decide.elastic import go_on_without
from tessera_schemas.facts import BookingAsked, BookingEndAsked
from tessera_schemas.ledger import (
    Booked,
    BookingEnded,
    BookingRefused,
    ConfigSet,
    Finished,
    NodeChanged,
    NodeDrained,
    Revoked,
)
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.bookings import NODES_MAX, BookingShort
from tessera_schemas.shard.ledger_form import BOOKINGS_FROM

CHANGES = frozenset({NodeChanged, NodeDrained, ConfigSet, Booked, BookingEnded})
"""Records by which another node may be lost, or free for a window."""
LOOK_MS = 60_000
NEAR_MS = 86_400_000
"""No run asks for as long a time to stop: who is on nodes of later windows is not looked at yet."""


@judges(BookingAsked)
def on_booking_asked(draft: Draft, index: int, fact: BookingAsked) -> None:
    """Keeps nodes in windows of time, or says why not."""
    if draft.state.format < BOOKINGS_FROM:
        return
    made = choose_booking(draft.state, fact.wish, fact.why, fact.by)
    if isinstance(made, Reason):
        draft.add(BookingRefused(kind="booking_refused", name=fact.wish.name, pool=fact.wish.pool, reason=made))
    else:
        draft.add(made)


@judges(BookingEndAsked)
def on_booking_end_asked(draft: Draft, index: int, fact: BookingEndAsked) -> None:
    """Keeps them no longer; who runs in the window goes on."""
    if (booking := draft.state.bookings.get(fact.name)) is not None:
        # A promise that an operator takes back is broken, and its price given back.
        asked = Reason(code=Code.CANCELLED, detail="an operator took the promise back")
        end_booking(draft, booking, "broken" if booking.job else "asked", asked if booking.job else None)


def end_booking(
    draft: Draft,
    booking: Booking,
    why: Literal["over", "asked", "kept", "broken", "dropped"],
    reason: Reason | None = None,
) -> None:
    """Nodes are kept no longer, and why."""
    whose = {"name": booking.name, "pool": booking.pool, "who": booking.who, "job": booking.job}
    draft.add(BookingEnded(kind="booking_ended", why=why, reason=reason, **whose))


def settle_bookings(draft: Draft) -> None:
    """Ends bookings that are over and jobs that have none any more, and empties nodes whose window is near."""
    state = draft.state
    for booking in sorted(state.bookings.values(), key=attrgetter("name")):
        if booking.ends_ts <= state.ts and not booking.job and not draft.full:
            end_booking(draft, booking, "over")
    # After those that are over: a window that has ended empties nothing.
    for pool in sorted({booking.pool for booking in state.bookings.values()}):
        _empty_nodes(draft, pool)
    # Last, with the bookings that this very message ended: whoever names one of them waits for nothing any more.
    for job in sorted(state.holding_jobs(), key=attrgetter("job_id")):
        if state.bookings.get(job.booking) is None and job.phase is Phase.QUEUED and job.array is None:
            if draft.full:
                return
            give_up_earmark(draft, job.job_id)
            reason = Reason(code=Code.RESERVATION_OVER, field="reservation", detail=job.booking)
            draft.add(Finished(kind="finished", job_id=job.job_id, phase="cancelled", reason=reason))


def mend_bookings(draft: Draft, before_ts: int) -> None:
    """
    Replaces lost nodes of bookings whose nodes were chosen, and tells which are missing of those for somebody.

    Last in a message, when nodes or bookings have changed in it, and each minute: what is free by then changes with
    runs, too, and a window that has ended is followed by the next one.
    """
    state = draft.state
    if not len(state.bookings):
        return
    changed = any(type(record) in CHANGES for record in draft.records)
    if not (changed or state.ts // LOOK_MS != before_ts // LOOK_MS):
        return
    # What is asked of all nodes is asked once for each pool, and only in messages that may change it: most touch
    # neither nodes nor bookings, and pay for a look at their records.
    known = {pool: LostNodes(state, pool) for pool in sorted({each.pool for each in state.bookings.values()})}
    for name in sorted(each.name for each in state.bookings.values()):
        if draft.full:
            return
        (booking,) = state.bookings.found((name,))
        lost = known[booking.pool]
        if (record := lost.replace(booking)) is not None:
            lost.note(record)
            draft.add(record)
            (booking,) = state.bookings.found((name,))
        # Maintenance is of nodes that may well be out already.
        missing = lost.missing(booking)[:NODES_MAX] if booking.who else ()
        if missing != booking.missing:
            short = BookingShort(kind="booking_short", name=name, pool=booking.pool, who=booking.who, missing=missing)
            draft.add(short)


def _empty_nodes(draft: Draft, pool: str) -> None:
    state = draft.state
    booked = BookedNodes(state, pool)
    near = booked.begun_by(state.ts + NEAR_MS)
    runs = {run.run_id: run for run in state.runs_among(near) if not run.stopping}
    for _, run in sorted(runs.items()):
        if draft.full:
            return
        reason = _leaves_now(state, booked, run, {place.node for place in run.gang_places})
        if reason is not None:
            draft.add(Revoked(kind="revoked", run_id=run.run_id, reason=reason, then="requeue", by="operator"))
            continue
        # Its gang stands elsewhere: only what it grew by leaves, node by node.
        nodes = {extra.placement.node for extra in run.surplus}
        for name in sorted(nodes):
            if (reason := _leaves_now(state, booked, run, {name})) is not None:
                there = [extra.placement.rank for extra in run.surplus if extra.placement.node == name]
                go_on_without(draft, run, there, reason, "operator")


def _leaves_now(state: State, booked: BookedNodes, run: Run, nodes: set[str]) -> Reason | None:
    """Why the run has to begin to leave these nodes now; None while it need not."""
    found = booked.leaves_by(run, nodes)
    if found is None or state.ts < found[0] - leave_ms(state, run):
        return None
    at, booking = found
    job = state.jobs.get(run.job_id)
    # Both ends of a window are handled alike: the one that others leave before, and the one that its own jobs do.
    own = job is not None and job.booking == booking.name
    if job is not None and run.started_ts and job.time_limit_seconds:
        # Its limit stops it early enough; in its own window, as that ends.
        stops = run.started_ts + job.time_limit_seconds * 1000
        if stops + (0 if own else leave_ms(state, run)) <= at:
            return None
    code, numbers = (Code.RESERVATION_OVER, {"to_ts": at}) if own else (Code.RESERVATION_BEGINS, {"from_ts": at})
    return Reason(code=code, field=f"reservations.{booking.name}", numbers=numbers, detail=booking.why)
