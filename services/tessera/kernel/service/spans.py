"""
Spans of jobs: each service reports its part of a job's way from submit to running, once that part is over.

Ids are derived from the job's trace and the step (`trace`), so that services agree on them without a word, and a part
that is reported again after a restart is the same span. Without a collector nothing is made and nothing is kept.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tessera.kernel.service.trace import COMMAND, derive, trace_of_job


@dataclass(frozen=True, slots=True)
class TraceSpan:
    """A part of a trace; `header` names the trace and the span itself, `parent` the span above it, "" for none."""

    name: str
    header: str
    parent: str
    start_ms: int
    end_ms: int
    attributes: Mapping[str, str | int] = field(default_factory=dict)


class Spans(Protocol):
    """Destination of spans. `on` tells whether anybody wants them."""

    on: bool

    def report(self, span: TraceSpan) -> None:
        """Hand over one span; never waits and never fails."""

    def close(self) -> None:
        """Send what is queued."""


class NoSpans:
    """Destination of spans that drops them: no collector is set."""

    on = False

    def report(self, span: TraceSpan) -> None:
        """Drops the span."""

    def close(self) -> None:
        """Has nothing to flush."""


NO_SPANS = NoSpans()


def job_span(job_id: str, header: str, start_ms: int, end_ms: int, **attributes: str | int) -> TraceSpan:
    """The whole way of a job; `header` is the one that its submit came with, "" for none."""
    parent = header.split("-")[2] if header else ""
    return TraceSpan(
        "job", trace_of_job(job_id, header), parent, start_ms, end_ms, {"tessera.job": job_id, **attributes}
    )


def step_span(
    name: str, job_id: str, header: str, start_ms: int, end_ms: int, attempt: int = 0, **attributes: str | int
) -> TraceSpan:
    """One step on a job's way, below the span of the job; `attempt` is 0 for steps before the first."""
    job, more = trace_of_job(job_id, header), {"tessera.attempt": attempt} if attempt else {}
    own = derive(job, f"{name}/{attempt}")
    return TraceSpan(name, own, job.split("-")[2], start_ms, end_ms, {"tessera.job": job_id, **more, **attributes})


def request_span(name: str, header: str, status: int, start_ms: int, end_ms: int) -> TraceSpan:
    """A request that came with a trace header; what its command leads to is below it."""
    attributes = {"http.response.status_code": status}
    return TraceSpan(name, derive(header, COMMAND), header.split("-")[2], start_ms, end_ms, attributes)
