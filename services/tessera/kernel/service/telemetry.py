"""
Logs, metrics and the trace header.

Logs are one JSON object per line on stderr, the event's name in snake_case, with what `bind` put into the context.
Metric labels come from enums, the fixed list of services or the names of pools, never from ids. The W3C `traceparent`
travels in message headers; the next hop's span id is derived from the last one, so that a repeated publish carries the
same bytes.
"""

import hashlib
import logging
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from enum import StrEnum
from typing import BinaryIO

import orjson
import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from structlog.exceptions import DropEvent
from structlog.typing import EventDict, WrappedLogger

from tessera.domain.free_slots import Slots
from tessera.kernel.ports import Clock
from tessera_schemas.subjects import SERVICES

TRACEPARENT = "traceparent"
_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_current_trace: ContextVar[str] = ContextVar("traceparent", default="")

HOP_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
WAIT_BUCKETS = (1.0, 10.0, 60.0, 300.0, 1800.0, 3600.0, 14_400.0, 43_200.0, 86_400.0, 259_200.0)
COUNTED_EVENTS = ("orphan_pod", "orphan_pod_deleted", "run_lost", "outage", "outage_over", "utilisation_not_read")
"""Log lines on which an alarm stands (deploy/alerts.yaml): counted, so that no alarm has to read logs."""
STEP_BUCKETS = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)


def configure_logs(
    service: str,
    instance: str,
    level: str,
    clock: Clock,
    stream: BinaryIO | None = None,
    metrics: "Metrics | None" = None,
) -> None:
    """
    Send our logs, and those of libraries from warnings up, to `stream` (stderr) as JSON lines.

    `metrics` counts the lines on which alarms stand, also those of warnings that `level` leaves unsaid.
    """
    threshold = logging.getLevelNamesMapping()[level.upper()]

    def count(_logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
        if metrics is not None:
            metrics.logged(event.get("event", ""))
        if logging.getLevelNamesMapping().get(method.upper(), logging.CRITICAL) < threshold:
            raise DropEvent
        return event

    def stamp(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        return {"ts_ms": clock.now_ms(), "service": service, "instance": instance, **event}

    structlog.configure(
        processors=[
            count,
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
            stamp,
            structlog.processors.JSONRenderer(serializer=_json),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(min(threshold, logging.WARNING)),
        logger_factory=structlog.BytesLoggerFactory(stream or sys.stderr.buffer),
        cache_logger_on_first_use=False,  # tests configure it more than once
    )
    logging.basicConfig(level=max(threshold, logging.WARNING), handlers=[_LibraryLogs()], force=True)


def _json(event: EventDict, **_options: object) -> bytes:
    return orjson.dumps(event, default=str)


class _LibraryLogs(logging.Handler):
    """Libraries log through `logging`; their lines come out like ours."""

    def emit(self, record: logging.LogRecord) -> None:
        structlog.get_logger().log(
            record.levelno, "library_log", library=record.name, text=record.getMessage(), exc_info=record.exc_info
        )


class Metrics:
    """
    What every service measures, in a registry of its own.

    Names follow OpenMetrics: `tessera_<noun>_<unit>`, counters ending in `_total`.
    """

    def __init__(self, service: str) -> None:
        if service not in SERVICES:
            raise ValueError(f"{service!r} is no service; labels come from the fixed list")
        self.registry = CollectorRegistry()
        self._service = service
        r = self.registry
        self._hop = Histogram(
            "tessera_event_hop_seconds",
            "From a message's storing to its handling",
            ["service"],
            buckets=HOP_BUCKETS,
            registry=r,
        )
        self._step = Histogram(
            "tessera_cycle_step_seconds", "One numbered step of a cycle", ["step"], buckets=STEP_BUCKETS, registry=r
        )
        self._reasons = Counter("tessera_reasons_total", "Every no, by its typed reason", ["reason"], registry=r)
        self.redeliveries = Counter("tessera_redeliveries_total", "Commands handed out again", registry=r)
        self.dead_letters = Counter("tessera_dlq_total", "Input that can never be handled", registry=r)
        self.conflicts = Counter("tessera_conflicts_total", "Compare-and-swaps that were lost", registry=r)
        self.prices_not_learnt = Counter(
            "tessera_prices_not_learnt_total", "Learning of a pool's prices that came to nothing", registry=r
        )
        self.queue_depth = Gauge("tessera_queue_depth", "Messages or jobs that wait", registry=r)
        self.leading = Gauge("tessera_leading", "1 while this replica leads its shard", registry=r)
        self._slots = Gauge(
            "tessera_slots",
            "Pods of so many GPUs that could start now: in the pool, and the most in one domain of a level",
            ["pool", "gpus", "level"],
            registry=r,
        )
        self._idle = Gauge(
            "tessera_idle_gpus", "GPUs that no run holds, by what keeps them", ["pool", "cause"], registry=r
        )
        self._unused = Gauge(
            "tessera_held_idle_gpus", "GPUs of runs that were warned that they use none", ["pool"], registry=r
        )
        self.ledger_bytes = Gauge("tessera_ledger_bytes", "What the ledger holds", registry=r)
        self.ledger_bytes_max = Gauge(
            "tessera_ledger_bytes_max", "What it may hold; 0: nothing bounds it, or not seen yet", registry=r
        )
        self._pool = Gauge("tessera_pool_gpus", "GPUs of the nodes of a pool", ["pool"], registry=r)
        self.sharing = Sharing(r)
        self.ledger_n = Gauge("tessera_ledger_n", "The newest ledger record this process has folded", registry=r)
        self._ready = Gauge("tessera_ready", "1 while a check of /readyz is well", ["check"], registry=r)
        self._events = Counter(
            "tessera_log_events_total", "Log lines on which an alarm stands, by their event", ["event"], registry=r
        )
        for event in COUNTED_EVENTS:  # from 0, or the first one would be no increase
            self._events.labels(event)
        self.redis_bytes = Gauge("tessera_redis_bytes", "What Redis holds, as projection sees it", registry=r)
        self.redis_bytes_max = Gauge("tessera_redis_bytes_max", "The most that it may; 0 without a bound", registry=r)
        ProcessCollector(registry=r)  # CPU, memory, and since when it runs

    def hop(self, seconds: float) -> None:
        """Clocks of two machines differ, so that a hop may seem negative; it counts as zero."""
        self._hop.labels(self._service).observe(max(seconds, 0.0))

    def step(self, step: StrEnum, seconds: float) -> None:
        self._step.labels(step.value).observe(seconds)

    def reason(self, reason: StrEnum, count: int = 1) -> None:
        self._reasons.labels(reason.value).inc(count)

    def readiness(self, texts: Mapping[str, str]) -> None:
        """Every check of /readyz with its text, `ok` when well."""
        for name, text in texts.items():
            self._ready.labels(name).set(text == "ok")

    def logged(self, event: str) -> None:
        if event in COUNTED_EVENTS:
            self._events.labels(event).inc()

    def left_of_pools(self, pools: Iterable[Slots]) -> None:
        """The labels are bounded by the configuration and by the largest node; a pool that went is not shown."""
        self._slots.clear()
        self._idle.clear()
        self._unused.clear()
        self._pool.clear()
        for left in pools:
            self._pool.labels(left.pool).set(left.gpus)
            self._unused.labels(left.pool).set(left.unused.gpu_milli / 1000)
            for size in left.sizes:
                self._slots.labels(left.pool, str(size.gpus), "pool").set(size.slots)
                for level, most in size.largest:
                    self._slots.labels(left.pool, str(size.gpus), level).set(most)
            for cause, milli in left.stranded:
                self._idle.labels(left.pool, cause.value).set(milli / 1000)


class Sharing:
    """Who holds what of what is theirs; labels are queues and tenants, which the configuration bounds."""

    def __init__(self, r: CollectorRegistry) -> None:
        self._waited = Histogram(
            "tessera_queue_wait_seconds",
            "From a job's submit to its first allocation",
            ["queue"],
            buckets=WAIT_BUCKETS,
            registry=r,
        )
        self._gauges = {
            name: Gauge(f"tessera_{name}", text, labels, registry=r)
            for name, text, labels in (
                ("queue_nominal_gpus", "Nominal quota of a queue itself, over its flavors", ["queue"]),
                ("queue_waiting_jobs", "Jobs that are in line; not those on hold or in back-off", ["queue"]),
                ("queue_head_submitted_timestamp_seconds", "When the first in line was submitted", ["queue"]),
                ("tenant_held_gpus", "GPUs that a tenant's runs hold in a queue", ["tenant", "queue"]),
                ("tenant_asked_gpus", "GPUs that a tenant's live jobs ask for or grew by", ["tenant"]),
                ("tenant_gpus_max", "A tenant's limit of those, where it has one", ["tenant"]),
                ("tenant_jobs", "Live jobs of a tenant", ["tenant"]),
                ("tenant_weight", "A tenant's part of a queue that others use, too", ["tenant"]),
            )
        }

    def waited(self, queue: str, seconds: float) -> None:
        self._waited.labels(queue).observe(max(seconds, 0.0))

    def show(self, values: Iterable[tuple[str, tuple[str, ...], float]]) -> None:
        """All of them as (metric, labels, value); who is not named any more is not shown."""
        for gauge in self._gauges.values():
            gauge.clear()
        for name, labels, value in values:
            self._gauges[name].labels(*labels).set(value)


@contextmanager
def bind(headers: Mapping[str, str] | None = None, **fields: object) -> Iterator[None]:
    """
    While inside, every log line carries `fields`, and the trace is the one that `headers` bring.

    A malformed trace header is dropped: it never decides anything.
    """
    trace = take_trace(headers or {})
    token = _current_trace.set(trace or _current_trace.get())
    names = {**fields, "trace_id": trace.split("-")[1]} if trace else fields
    try:
        with structlog.contextvars.bound_contextvars(**names):
            yield
    finally:
        _current_trace.reset(token)


def take_trace(headers: Mapping[str, str]) -> str:
    """The `traceparent` of a message, or "" when there is none or it is malformed."""
    value = headers.get(TRACEPARENT, "")
    return value if _TRACEPARENT.fullmatch(value) else ""


def pass_trace(step: str) -> dict[str, str]:
    """The header for a message published now: the same trace, a span derived from (span before, `step`)."""
    current = _current_trace.get()
    if not current:
        return {}
    version, trace, _span, flags = current.split("-")
    span = hashlib.sha256(f"{current}/{step}".encode()).hexdigest()[:16]
    return {TRACEPARENT: f"{version}-{trace}-{span}-{flags}"}


def new_trace(trace_id: str) -> dict[str, str]:
    """The header that begins a trace; `trace_id` is 32 hexadecimal digits from the caller."""
    return {TRACEPARENT: f"00-{trace_id}-{trace_id[:16]}-01"}
