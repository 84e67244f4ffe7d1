"""
Spans to an OpenTelemetry collector over OTLP/HTTP. The extra `otel` brings the libraries that this module imports.

A thread of the SDK sends them in batches. When the collector is away or slow, spans are dropped, and no service waits.
"""

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags

from tessera.kernel.service.spans import TraceSpan

EXPORT_SECONDS = 5


class OtlpSpans:
    """`url` is the collector's, without the path; headers and certificates come from OTEL_EXPORTER_OTLP_ variables."""

    on = True

    def __init__(self, url: str, service: str, instance: str, shard: str) -> None:
        names = {"service.name": f"tessera-{service}", "service.instance.id": instance, "tessera.shard": shard}
        self._resource = Resource.create(names)
        exporter = OTLPSpanExporter(endpoint=f"{url.rstrip('/')}/v1/traces", timeout=EXPORT_SECONDS)
        self._processor = BatchSpanProcessor(exporter)

    def report(self, span: TraceSpan) -> None:
        """Queue the span for the thread that sends; a full queue drops it."""
        own = _context(span.header)
        self._processor.on_end(
            ReadableSpan(
                name=span.name,
                context=own,
                parent=_parent(own, span.parent),
                resource=self._resource,
                attributes=dict(span.attributes),
                kind=SpanKind.INTERNAL,
                start_time=span.start_ms * 1_000_000,
                end_time=max(span.start_ms, span.end_ms) * 1_000_000,
            )
        )

    def close(self) -> None:
        """Send what is queued; blocks for at most a few seconds."""
        self._processor.shutdown()  # type: ignore[no-untyped-call]


def _context(header: str) -> SpanContext:
    _version, trace, span, flags = header.split("-")
    return SpanContext(int(trace, 16), int(span, 16), is_remote=False, trace_flags=TraceFlags(int(flags, 16)))


def _parent(own: SpanContext, span_id: str) -> SpanContext | None:
    return SpanContext(own.trace_id, int(span_id, 16), is_remote=True, trace_flags=own.trace_flags) if span_id else None
