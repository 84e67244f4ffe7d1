"""
The bounded end of a process.

An event loop ends only when its last task has ended, and a task may swallow each cancellation or block the loop itself.
So a thread of its own waits beside the end and, when that takes too long, ends the process with `STUCK`.
"""

import asyncio
import os
import threading
from typing import Any

import structlog

END_SECONDS = 15.0  # all that an end waits for has a bound of its own; with `drain_seconds` below a pod's 30 s of grace
STUCK = 70  # the exit code: sysexits' "internal software error"

log = structlog.get_logger()


class BoundedEnd:
    """Made inside the event loop. From `begin` on the process has `seconds` to end by itself; then it is ended."""

    def __init__(self, seconds: float = END_SECONDS) -> None:
        self._loop, self._seconds = asyncio.get_running_loop(), seconds
        self._timer: threading.Timer | None = None

    def begin(self) -> None:
        """The end begins; of several calls the first counts."""
        if self._timer is None:
            self._timer = threading.Timer(self._seconds, self._give_up)
            self._timer.daemon = True
            self._timer.start()

    def over(self) -> None:
        """All that was waited for has ended, and the process goes on."""
        if self._timer is not None:
            self._timer.cancel()

    def _give_up(self) -> None:
        running = sorted(_name(task) for task in asyncio.all_tasks(self._loop))
        log.critical("service_does_not_end", seconds=self._seconds, running=running, exit_code=STUCK)
        os._exit(STUCK)


def _name(task: "asyncio.Task[Any]") -> str:
    return str(getattr(task.get_coro(), "__qualname__", task.get_name()))
