"""Logs: one JSON object per line on stderr, named in snake_case, with what `trace.bind` put into the context."""

import logging
import sys
from typing import BinaryIO

import orjson
import structlog
from structlog.exceptions import DropEvent
from structlog.typing import EventDict, WrappedLogger

from tessera.kernel.ports import Clock
from tessera.kernel.service.metrics import Metrics


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
