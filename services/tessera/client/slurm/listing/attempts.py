"""
`sacct -D`: the runs of a job one by one, each as a row of its own, made of the job's public events. Pure.

The rows before the last are runs after which the job was queued again. What all rows held sums to what the job's does,
and so do their costs: each is what the job's, rounded down to a millionth, grew by.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tessera.client.views.rendering import local_of
from tessera_schemas.events import (
    CloudEvent,
    JobAllocatedV1,
    JobGrownV1,
    JobReleasedV1,
    JobRequeuedV1,
    short_type,
)
from tessera_schemas.reasons import PublicReason
from tessera_schemas.views import JobView
from tessera_schemas.work.measured_use import PublicMeasuredUse
from tessera_schemas.work.placement import Placement
from tessera_schemas.work.run_ends import RUN_ENDS, UNFORESEEN, Whose


@dataclass(slots=True)
class _Held:
    """What a run has held up to `since_ts`: thousandths of a GPU times milliseconds; `ranks` is what it holds then."""

    since_ts: int
    nodes: dict[str, None] = field(default_factory=dict)
    ranks: dict[int, int] = field(default_factory=dict)
    gpu_milli_ms: int = 0
    started_ts: int = 0
    gpu_use: PublicMeasuredUse | None = None

    def count(self, ts: int) -> None:
        self.gpu_milli_ms += sum(self.ranks.values()) * (ts - self.since_ts)
        self.since_ts = ts

    def take(self, places: Sequence[Placement], gpu_milli: int) -> None:
        """Take the places. GPUs that were drawn for claims count as parts of the `gpu_milli` that the gang asks for."""
        left = gpu_milli - sum(len(place.devices) * place.gpu_milli for place in places)
        claiming = sum(bool(place.drawn) for place in places)
        for place in places:
            self.nodes[place.node] = None
            drawn = max(0, left) // claiming if place.drawn else 0
            self.ranks[place.rank] = len(place.devices) * place.gpu_milli + drawn

    def give(self, ranks: Iterable[int]) -> None:
        for rank in list(ranks) or list(self.ranks):
            self.ranks.pop(rank, None)


def runs_of(job: JobView, events: Iterable[CloudEvent]) -> list[JobView]:
    """
    A row for each run of the job, as far as its `events`, in their order, tell of them, and the job's own as the last.

    A row's `submitted_ts` is when the job was queued for that run. Events of other jobs are passed over.
    """
    rows, held, queued_ts = list[JobView](), _Held(0), job.submitted_ts
    costs: dict[int, int | None] = {0: 0}
    for event in events:
        kind, ts = short_type(event.type), round(1000 * local_of(event.time).timestamp())
        if event.data.get("job_id") != job.job_id:
            continue
        if kind == "job.allocated.v1":
            held = _Held(ts)
        held.count(ts)
        if kind == "job.allocated.v1":
            held.take(JobAllocatedV1.model_validate(event.data).placements, job.gpu_milli)
        elif kind == "job.grown.v1":
            held.take(JobGrownV1.model_validate(event.data).placements, 0)
        elif kind == "job.running.v1":
            held.started_ts = ts
        elif kind == "job.released.v1":
            released = JobReleasedV1.model_validate(event.data)
            held.give(released.ranks)
            held.gpu_use = released.gpu_use
        elif kind == "job.requeued.v1":
            requeued = JobRequeuedV1.model_validate(event.data)
            own = _own_cost(costs, requeued.attempt, requeued.cost_micros, requeued.currency)
            costs[requeued.attempt] = requeued.cost_micros
            rows.append(_ended(job, held, requeued, queued_ts, ts).model_copy(update=own))
            held, queued_ts = _Held(ts), ts
    # Its cost, and use of GPUs, are those of all its runs.
    last: dict[str, object] = {"submitted_ts": queued_ts}
    if rows:
        attempt = max(job.attempt, rows[-1].attempt + 1)  # one that waits again counts as the run that it waits for
        last |= {"gpu_use": held.gpu_use} | _own_cost(costs, attempt, job.cost_micros, job.currency)
    left = job.gpu_milli_ms - sum(row.gpu_milli_ms for row in rows)
    return [*rows, job.model_copy(update=last | {"gpu_milli_ms": max(0, left)})]


def _own_cost(costs: Mapping[int, int | None], attempt: int, upto: int | None, currency: str) -> dict[str, object]:
    """
    Fields with what an attempt cost by itself, of what all had cost `upto` its end; none where that is not known.

    `costs` are those of all runs by the attempt before them.
    """
    before = costs.get(attempt - 1)
    if upto is None or before is None:
        return {"currency": "", "cost_micros": 0}
    return {"currency": currency, "cost_micros": upto - before}


def _ended(job: JobView, held: _Held, requeued: JobRequeuedV1, queued_ts: int, ts: int) -> JobView:
    """The row of a run that ended at `ts` and was not the last."""
    reason = requeued.reason
    no_more = {"placements": (), "held_pods": 0, "held_gpu_milli": 0, "gpu_counted_ts": 0}
    return job.model_copy(
        update=no_more
        | {
            "phase": _phase_after(reason),
            "attempt": requeued.attempt,
            "submitted_ts": queued_ts,
            "started_ts": held.started_ts,
            "ended_ts": ts,
            "reason": reason,
            "exit_code": reason.numbers.get("exit_code"),
            "nodes": tuple(held.nodes),
            "gpu_milli_ms": held.gpu_milli_ms,
            "gpu_use": held.gpu_use,
            "cost_rest": 0,
            "cost_rates": (),
        }
    )


def _phase_after(reason: PublicReason) -> str:
    """Slurm's word, in small letters, for how a run ended after which the job was queued again."""
    end = {str(code): end for code, end in RUN_ENDS.items()}.get(reason.code, UNFORESEEN)
    if end.spends:
        return "failed"
    return {Whose.SCHEDULER: "preempted", Whose.NODE: "node_fail"}.get(end.whose, "requeued")
