"""Logs: one JSON object per line on stderr, named in snake_case, with what `trace.bind` put into the context."""

import logging
import sys
from contextvars import ContextVar
from typing import BinaryIO

import orjson
import structlog
from structlog.contextvars import get_contextvars
from structlog.exceptions import DropEvent
from structlog.processors import format_exc_info
from structlog.typing import EventDict, WrappedLogger

from tessera.kernel.ports import Clock
from tessera.kernel.service.metrics import Metrics

_LEVELS = {"warn": "warning", "exception": "error"}  # methods that are called otherwise than their level
_counting: ContextVar[Metrics | None] = ContextVar("counting", default=None)


def speak_as(service: str, instance: str, metrics: Metrics) -> None:
    """Lines of the running task, and of those that it starts, are this service's; its metrics count them."""
    structlog.contextvars.bind_contextvars(service=service, instance=instance)
    _counting.set(metrics)


def configure_logs(service: str, instance: str, level: str, clock: Clock, stream: BinaryIO | None = None) -> None:
    """
    Send our logs, and those of libraries from warnings up, to `stream` (stderr) as JSON lines.

    The metrics of whoever speaks (`speak_as`) count each line on which an alarm stands, also a warning below `level`.
    """
    levels = logging.getLevelNamesMapping()
    threshold, whose = levels[level.upper()], {"service": service, "instance": instance}
    written = structlog.BytesLogger(stream or sys.stderr.buffer)

    def line(_logger: WrappedLogger, method: str, event: EventDict) -> bytes:
        """One step and no chain of them: services say several lines of each job."""
        if (metrics := _counting.get()) is not None:
            metrics.logged(event.get("event", ""))
        if levels.get(method.upper(), logging.CRITICAL) < threshold:
            raise DropEvent
        said = {"ts_ms": clock.now_ms(), **whose, **get_contextvars(), **event, "level": _LEVELS.get(method, method)}
        return orjson.dumps(format_exc_info(_logger, method, said) if "exc_info" in said else said, default=str)

    structlog.configure(
        processors=[line],
        wrapper_class=structlog.make_filtering_bound_logger(min(threshold, logging.WARNING)),
        logger_factory=lambda *_: written,
        cache_logger_on_first_use=False,  # tests configure it more than once
    )
    logging.basicConfig(level=max(threshold, logging.WARNING), handlers=[_LibraryLogs()], force=True)


class _LibraryLogs(logging.Handler):
    """Libraries log through `logging`; their lines come out like ours."""

    def emit(self, record: logging.LogRecord) -> None:
        structlog.get_logger().log(
            record.levelno, "library_log", library=record.name, text=record.getMessage(), exc_info=record.exc_info
        )
