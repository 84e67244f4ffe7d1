"""
Jobs that come at the times of a trace and end by themselves, and what the ledger says became of each.

Times are milliseconds since the trace began. A job starts when it is allocated: from then on it holds its GPUs, and
until the last of its run was seen to be gone. Between two runs in one place lie the services' own times, some
hundredths of a second each.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tessera.testkit.end_to_end.services import TraceServices, Undecided
from tessera.testkit.sim.services import SHARD
from tessera_schemas.base import job_id
from tessera_schemas.commands import SubmitJob
from tessera_schemas.job import JobSpec
from tessera_schemas.ledger import LEDGER_MESSAGE, Allocated, Finished, JobQueued, Released

LOOK_MS = 600_000  # of virtual time, while all have arrived and some wait
STUCK_SECONDS = 3600.0
ReportArrivals = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Arrival:
    """`key` is the job's own among those of its tenant."""

    at_ms: int
    tenant: str
    key: str
    spec: JobSpec

    @property
    def job_id(self) -> str:
        """Id that the job has in the ledger, which follows from its tenant and key."""
        return job_id(SHARD, self.tenant, self.key)


@dataclass(slots=True)
class Timeline:
    """
    Times of events by job id. A job in no list was refused; a job in `queued` alone still waits.

    Raises Undecided for a job that did not end well at its first attempt: nothing is preempted, and nothing fails.
    """

    begin_ms: int
    read: int = 0
    queued: set[str] = field(default_factory=set)
    started: dict[str, int] = field(default_factory=dict)
    freed: dict[str, int] = field(default_factory=dict)

    def read_on(self, stored: Sequence[bytes]) -> None:
        """Take in the ledger messages behind the first `read`."""
        for data in stored:
            message = LEDGER_MESSAGE.validate_json(data)
            self.read += 1
            for record in message.records:
                self._note(record, message.ts - self.begin_ms)

    def _note(self, record: object, at_ms: int) -> None:
        if isinstance(record, JobQueued):
            self.queued.add(record.job_id)
        elif isinstance(record, Allocated):
            if record.attempt > 1:
                raise Undecided(f"job {record.job_id} was started again")
            self.started[record.job_id] = at_ms
        elif isinstance(record, Released):
            self.freed[record.run_id.rpartition("-")[0]] = at_ms
        elif isinstance(record, Finished) and record.phase != "succeeded":
            raise Undecided(f"job {record.job_id} ended as {record.phase}: {record.reason}")


async def follow(
    services: TraceServices,
    arrivals: Sequence[Arrival],
    report_progress: ReportArrivals = lambda arrived: None,
    end_ms: int | None = None,
) -> Timeline:
    """
    Submit each at its time, in the order given; then wait for `end_ms`, or for all to have started.

    Ends are not awaited: runs of weeks would make weeks pass. `report_progress` gets the arrivals. Raises Undecided
    when jobs wait for ever although nothing runs.
    """
    timeline = Timeline(services.clock.now_ms(), read=len(services.stored()))
    for number, arrival in enumerate(arrivals, start=1):
        await services.sleep_until(timeline.begin_ms + arrival.at_ms)
        await services.send(arrival.tenant, SubmitJob(kind="submit_job", v=1, key=arrival.key, spec=arrival.spec))
        report_progress(number)
    if end_ms is None:
        await _until_all_started(services, timeline, arrivals)
    else:
        await services.sleep_until(timeline.begin_ms + end_ms)
        timeline.read_on(services.stored(timeline.read))
    return timeline


async def _until_all_started(services: TraceServices, timeline: Timeline, arrivals: Sequence[Arrival]) -> None:
    since = services.clock.monotonic()
    while True:
        new = services.stored(timeline.read)
        timeline.read_on(new)
        if len(timeline.started) == len(arrivals):
            return
        if new or len(timeline.freed) < len(timeline.started):
            since = services.clock.monotonic()
        elif services.clock.monotonic() - since > STUCK_SECONDS:
            late = len(arrivals) - len(timeline.started)
            raise Undecided(f"{late} jobs never start; {_first_reason(services, timeline, arrivals)}")
        await services.sleep_until(services.clock.now_ms() + LOOK_MS)


def _first_reason(services: TraceServices, timeline: Timeline, arrivals: Sequence[Arrival]) -> str:
    first = next(arrival for arrival in arrivals if arrival.job_id not in timeline.started)
    job = services.state().jobs.get(first.job_id)
    return f"{first.key}: {'refused' if job is None else job.reason.code if job.reason else 'no reason'}"
