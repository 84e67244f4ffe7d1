"""
Watch over an event loop: who holds it, and for how long.

A handler that computes for seconds holds up every service of its process, and none of them can say so. A thread looks
whether the loop still ticks; where it does not, it takes a look at the stack of the loop and names the code in it.
"""

import asyncio
import sys
import threading
from contextvars import Context, copy_context
from types import FrameType
from typing import Self

import structlog

from tessera.kernel.ports import Clock
from tessera_schemas.shard.services import SERVICES

TICK_SECONDS, BLOCKED_SECONDS = 0.5, 2.0

log = structlog.get_logger()


class LoopWatch:
    """
    Made and entered inside the event loop; one log line for each time the loop is held for two seconds or more.

    It is that of the service to blame, whose metrics count it. Where the stack names none, all services say it.
    """

    def __init__(self, clock: Clock) -> None:
        self._loop, self._thread_of_loop = asyncio.get_running_loop(), threading.get_ident()
        self._clock, self._ticked, self._went_on = clock, clock.monotonic(), float("-inf")
        self._over, self._contexts = threading.Event(), dict[str, Context]()

    def __enter__(self) -> Self:
        self._tick()
        threading.Thread(target=self._watch, name="loop-watch", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._next.cancel()

    def knows(self, service: str) -> None:
        """The caller is the service: lines about what blocks in its code are its own."""
        self._contexts[service] = copy_context()

    def stood_still_since(self, moment: float) -> bool:
        """Whether the loop was held or the process stopped, since then: who waited meanwhile has waited for nobody."""
        return self._went_on >= moment

    def _tick(self) -> None:
        now = self._clock.monotonic()
        if now - self._ticked >= BLOCKED_SECONDS + TICK_SECONDS:
            self._went_on = now
        self._ticked = now
        self._next = self._loop.call_later(TICK_SECONDS, self._tick)

    def _watch(self) -> None:
        told = 0.0
        while not self._over.wait(TICK_SECONDS):
            ticked = self._ticked
            silent = self._clock.monotonic() - ticked
            if silent >= BLOCKED_SECONDS + TICK_SECONDS and told != ticked:
                told = ticked
                service, where = blamed(sys._current_frames().get(self._thread_of_loop))
                known = [self._contexts[service]] if service in self._contexts else list(self._contexts.values())
                for context in known or [copy_context()]:
                    context.run(log.error, "loop_blocked", seconds=round(silent, 1), where=where)


def blamed(frame: FrameType | None) -> tuple[str, str]:
    """The service whose code is outermost on a stack ("" for none), and the innermost line of ours."""
    service, where = "", ""
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        package, _, rest = module.partition(".")
        if package == "tessera":
            where = where or f"{module}.{frame.f_code.co_name}, line {frame.f_lineno}"
            service = name if (name := rest.partition(".")[0]) in SERVICES else service
        frame = frame.f_back
    return service, where
