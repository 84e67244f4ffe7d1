"""
Promised starts: jobs for which nodes are kept from shortly before a time on, by when they have their devices.

A promise is kept by the first start of its job in time, on whatever nodes: until its window begins the job waits in
line like any other. It is broken for a typed reason, and its price given back, when the time has come and the job has
not started though it could; it is dropped where its job is gone, on hold, or waits for something else than nodes.
"""

from operator import attrgetter

from tessera.domain.entities import Job
from tessera.domain.quota.bookings import Booking
from tessera.domain.state import State
from tessera.domain.work.phases import Phase
from tessera.engine.ahead.booked_nodes import missing_nodes
from tessera.engine.queueing.allocation_size import longest_of, most_bytes
from tessera.engine.queueing.readiness import startable
from tessera.engine.queueing.scheduling_pass import CapacityCache
from tessera.scheduler.decide.draft import Draft, give_up_earmark
from tessera.scheduler.decide.machines.bookings import end_booking
from tessera.scheduler.decide.starts import allocate, choose_without
from tessera_schemas.reasons import Code, Reason


def start_promised(draft: Draft, known: CapacityCache) -> None:
    """
    Start the jobs whose window has begun, before any line is walked: their nodes are shut to all others. Then end the
    promises whose job has started or is gone, or whose time is over.
    """
    state = draft.state
    for booking in sorted((each for each in state.bookings.values() if each.job), key=attrgetter("name")):
        if draft.full:
            return
        # By name, and so by age: of two that meet at one quota the older promise is kept.
        against = None
        job = state.jobs.get(booking.job)
        if job is not None and booking.windows[0][0] <= state.ts and _may_start(state, job):
            against = _start(draft, job, known)
        _settle(draft, booking, against)


def _may_start(state: State, job: Job) -> bool:
    # As where a line is walked: a queue that is stopped keeps its promised jobs, too.
    open_ = state.tree.takes(job) and state.tree.stopped(job.queue) is None
    return job.phase is Phase.QUEUED and open_ and startable(state, job)


def _start(draft: Draft, job: Job, known: CapacityCache) -> Reason | None:
    """Start the job on nodes that are open to it, its own among them; the reason why not."""
    verdict = choose_without(draft.state, job, (), known)
    # The line says why it waits: two who tell it in turn would never come to an end.
    if isinstance(verdict, Reason):
        return verdict
    # A message that is full is followed by the next one at once.
    if most_bytes(draft.state, job, longest_of(verdict[1])) <= draft.bytes_left:
        give_up_earmark(draft, job.job_id)
        allocate(draft, job, *verdict)
    return None


def _settle(draft: Draft, booking: Booking, against: Reason | None) -> None:
    state = draft.state
    job = state.jobs.get(booking.job)
    if job is None:
        end_booking(draft, booking, "dropped")
    elif (run := state.runs.get(job.run_id)) is not None and job.phase is not Phase.QUEUED:
        late = run.allocated_ts > booking.promised_ts
        end_booking(draft, booking, "broken" if late else "kept", against or job.reason if late else None)
    elif state.ts > booking.promised_ts:
        # Who is on hold, or waits for a time or another job of its own, was promised nothing of that.
        why, lost = against or job.reason, missing_nodes(state, booking)
        if lost:
            why = Reason(code=Code.NODE_LOST, numbers={"nodes": len(lost)}, detail=", ".join(lost[:8]))
        end_booking(draft, booking, "broken" if _may_start(state, job) else "dropped", why)
