"""
Loops and calls that run together, and end together in bounded time.

One cancellation is not enough: `asyncio.wait_for` of Python 3.11 loses one that comes in the tick in which the awaited
call completes, and redis-py and nats-py wait with it. Whatever has not ended is therefore cancelled again.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import structlog

from tessera.kernel.errors import InvariantViolation

AGAIN_SECONDS = 2.0  # a clean-up under way, such as giving deliveries back, has this long before it is cut short
END_SECONDS = 10.0

T = TypeVar("T")

log = structlog.get_logger()


async def run_loops(stop: asyncio.Event, *loops: Coroutine[Any, Any, None]) -> None:
    """
    Run the loops until `stop` is set or one of them ends, then cancel the others.

    Raises a violated invariant if any loop found one, else what the first failed loop raised. Nothing delays that by
    more than `END_SECONDS`: a loop that has not ended by then is logged and left behind.
    """
    tasks: list[asyncio.Task[Any]] = [asyncio.ensure_future(loop) for loop in loops]
    stopping: asyncio.Task[Any] = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait([*tasks, stopping], return_when=asyncio.FIRST_COMPLETED)
        first = [task for task in tasks if task.done()]
    finally:
        await cancel_all(*tasks, stopping)
    _raise_failure(first, tasks)


async def gather_all(*calls: Coroutine[Any, Any, T]) -> list[T]:
    """Run all of the calls and return their results in order; the first failure cancels the others and is raised."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    if not tasks:
        return []
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        await cancel_all(*tasks)
    _raise_failure([task for task in tasks if task in done], tasks)
    return [task.result() for task in tasks]


@asynccontextmanager
async def run_beside(loop: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Runs the loop as long as the body runs; what the loop raises is left to the body's own ways."""
    task = asyncio.ensure_future(loop)
    try:
        yield
    finally:
        await cancel_all(task)


async def cancel_all(*tasks: "asyncio.Future[Any]") -> set["asyncio.Future[Any]"]:
    """
    Cancel the tasks, again and again, until all have ended or `END_SECONDS` are over; returns those that have not.

    A cancellation of the caller is passed on and takes effect when this is over: nothing is left running behind it.
    """
    running = {task for task in tasks if not task.done()}
    loop, cancelled = asyncio.get_running_loop(), False
    give_up_at = loop.time() + END_SECONDS
    while running and loop.time() < give_up_at:
        for task in running:
            task.cancel()
        try:
            _, running = await asyncio.wait(running, timeout=AGAIN_SECONDS)
        except asyncio.CancelledError:
            cancelled = True
            running = {task for task in running if not task.done()}
    for task in tasks:
        if task.done() and not task.cancelled():
            task.exception()  # taken note of; whoever cancels has its own reason to raise
    if running:
        names = sorted(_name(task) for task in running)
        log.critical("loops_do_not_end", loops=names, seconds=END_SECONDS)
    if cancelled:
        raise asyncio.CancelledError
    return running


def _raise_failure(first: list["asyncio.Task[T]"], tasks: list["asyncio.Task[T]"]) -> None:
    """
    Raise what went wrong: a violated invariant of anybody, else the failure of one that ended by itself.

    The one that ended first has the cause; what others find while they are cancelled follows from it.
    """
    errors = [task.exception() for task in (*first, *tasks) if task.done() and not task.cancelled()]
    for error in errors:
        if isinstance(error, InvariantViolation):
            raise error
    for task in first:
        task.result()


def _name(task: "asyncio.Future[Any]") -> str:
    coro = task.get_coro() if isinstance(task, asyncio.Task) else task
    return str(getattr(coro, "__qualname__", coro))
