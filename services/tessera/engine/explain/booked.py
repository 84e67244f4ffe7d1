"""Sentences about bookings: which windows a waiting job would outlast, or waits for. Pure."""

from collections.abc import Iterator, Set

from tessera.domain.entities import Job
from tessera.domain.state import State
from tessera.engine.ahead.booked_nodes import BookedNodes, missing_nodes, stay_ms
from tessera_schemas.reasons import Code
from tessera_schemas.text.units import format_age, format_moment

TOLD_MAX = 3


def describe_bookings(state: State, job: Job, pool: str, codes: Set[Code]) -> Iterator[str]:
    """Sentences on the windows that keep nodes of the pool from the job; nothing where none does."""
    if job.booking:
        yield from _own_window(state, job)
        return
    promise = next((each for each in state.bookings.values() if each.job == job.job_id), None)
    if promise is not None:
        when = f"in {format_age(promise.promised_ts - state.ts)}, at {format_moment(promise.promised_ts)}"
        lost = len(missing_nodes(state, promise))
        yield f"Its start is promised by then: {when}, on {len(promise.nodes)} nodes that are kept for it."
        if lost:
            yield f"{lost} of these nodes are missing now, and no others are free by then."
    # As decisions ask it, so that nothing is said of windows that would not keep the job from a start.
    booked = BookedNodes(state, pool)
    shut = booked.shut(job) if booked else frozenset()
    if not shut or codes.isdisjoint((Code.NODES_BOOKED, Code.NO_FIT, Code.RESERVED)):
        return
    many = f"{len(shut)} nodes are" if len(shut) > 1 else "A node is"
    stay = format_age(stay_ms(state, job))
    yield f"{many} kept from it: it may stay for {stay}, and reservations of them begin before."
    # In order of their windows: the next one is what the job meets first.
    told = 0
    for each in sorted(state.bookings.values(), key=lambda each: (each.windows, each.name)):
        if each.pool == pool and told < TOLD_MAX and (window := next(each.ahead(state.ts), None)) is not None:
            told += 1
            what = "for a promised start" if each.job else "for jobs that name it" if each.who else "for maintenance"
            nodes, times = (
                f"{len(booked.nodes_of(each))} nodes",
                f"{format_moment(window[0])} to {format_moment(window[1])}",
            )
            yield f"Reservation {each.name} keeps {nodes} {what} from {times}."
    if not job.time_limit_seconds:
        yield "With a time limit that ends before the window it could start there now (time_limit_seconds)."


def _own_window(state: State, job: Job) -> Iterator[str]:
    booking = state.bookings.get(job.booking)
    if booking is None:
        yield f"Its reservation {job.booking} is no more, so that it is cancelled (`{Code.RESERVATION_OVER}`)."
        return
    window = next(booking.ahead(state.ts), None)
    if window is None:
        return
    start, end = window
    if start > state.ts:
        yield f"Reservation {booking.name} begins in {format_age(start - state.ts)}, at {format_moment(start)}."
    else:
        left = format_age(end - state.ts)
        yield f"It runs on the nodes of reservation {booking.name} alone, whose window ends in {left}."
