"""
The trace header that travels with messages.

The W3C `traceparent` travels in message headers; the next hop's span id is derived from the last one, so that a
repeated publish carries the same bytes.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

import structlog

TRACEPARENT = "traceparent"
COMMAND = "command"
"""The step of whoever sends a command: below its span is what the command leads to."""
_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_current_trace: ContextVar[str] = ContextVar("traceparent", default="")


@contextmanager
def bind(headers: Mapping[str, str] | None = None, **fields: object) -> Iterator[None]:
    """
    Binds `fields` to every log line inside, and the trace that `headers` bring.

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
    return {TRACEPARENT: derive(current, step)} if current else {}


def derive(parent: str, step: str) -> str:
    """The trace header of a step below `parent`: the same whoever derives it, and however often."""
    version, trace, _span, flags = parent.split("-")
    span = hashlib.sha256(f"{parent}/{step}".encode()).hexdigest()[:16]
    return f"{version}-{trace}-{span}-{flags}"


def trace_of_job(job_id: str, header: str) -> str:
    """The trace header of a job: below the one that its submit came with, else of a trace named by the job's id."""
    if header:
        return derive(header, "job")
    digest = hashlib.sha256(job_id.encode()).hexdigest()
    return f"00-{digest[:32]}-{digest[32:48]}-01"
