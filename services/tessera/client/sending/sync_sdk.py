"""
The SDK for programs that are not asynchronous: every call waits for its answer.

    with SyncTessera.connect() as tessera:
        sent = tessera.submit({"name": "train", "gpus": 8, ...})
        for line in tessera.logs(sent.job_id, follow=True):
            print(line)

Its event loop is in a thread of its own, so that it works in a notebook, where a loop runs already.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from inspect import signature
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from tessera.client.outcomes import Submitted
from tessera.client.sending.sdk import Tessera

if TYPE_CHECKING:
    from tessera_schemas.job import JobSpec

T = TypeVar("T")
P = ParamSpec("P")


def _waits(
    ask: Callable[Concatenate[Tessera, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["SyncTessera", P], T]:
    """The method with the same parameters, types and docstring that returns when its answer is there."""

    @wraps(ask)
    def method(self: "SyncTessera", /, *given: P.args, **named: P.kwargs) -> T:
        return self._done(ask(self._tessera, *given, **named))

    return method


def _iterates(
    ask: Callable[Concatenate[Tessera, P], AsyncGenerator[T, None]],
) -> Callable[Concatenate["SyncTessera", P], Iterator[T]]:
    """The same for a method whose answers come one by one."""

    @wraps(ask)
    def method(self: "SyncTessera", /, *given: P.args, **named: P.kwargs) -> Iterator[T]:
        return self._each(ask(self._tessera, *given, **named))

    shown = signature(ask).replace(return_annotation=Iterator)  # by `help`, which else shows that of `ask`
    method.__signature__ = shown  # type: ignore[attr-defined]
    return method


class SyncTessera:
    """One tenant's connection to a shard; each method is that of `Tessera` with the same name, and waits."""

    def __init__(self, tessera: Tessera, loop: asyncio.AbstractEventLoop) -> None:
        self._tessera, self._loop = tessera, loop

    @classmethod
    @contextmanager
    def connect(
        cls,
        tenant: str | None = None,
        *,
        home: Path | None = None,
        shard: str | None = None,
        context: str | None = None,
    ) -> Iterator["SyncTessera"]:
        """Connects as `Tessera.connect` does."""
        loop = asyncio.new_event_loop()
        thread = Thread(target=loop.run_forever, daemon=True)
        thread.start()
        connection = Tessera.connect(tenant, home=home, shard=shard, context=context)
        try:
            tessera = _done(loop, connection.__aenter__())
            try:
                yield cls(tessera, loop)
            finally:
                _done(loop, connection.__aexit__(None, None, None))
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    submit = _waits(Tessera.submit)
    rerun = _waits(Tessera.rerun)
    dry_run = _waits(Tessera.dry_run)
    submit_many = _waits(Tessera.submit_many)
    submit_template = _waits(Tessera.submit_template)
    get = _waits(Tessera.get)
    list = _waits(Tessera.list)
    wait = _waits(Tessera.wait)
    logs = _iterates(Tessera.logs)
    explain = _waits(Tessera.explain)
    events = _iterates(Tessera.events)
    cancel = _waits(Tessera.cancel)
    hold = _waits(Tessera.hold)
    release = _waits(Tessera.release)
    set_priority = _waits(Tessera.set_priority)
    move = _waits(Tessera.move)
    update = _waits(Tessera.update)
    requeue = _waits(Tessera.requeue)
    scale = _waits(Tessera.scale)
    roll = _waits(Tessera.roll)
    shift_roles = _waits(Tessera.shift_roles)
    resize = _waits(Tessera.resize)
    checkpoint = _waits(Tessera.checkpoint)
    answer_move = _waits(Tessera.answer_move)
    tell_dataset = _waits(Tessera.tell_dataset)
    report_health = _waits(Tessera.report_health)

    def _done(self, work: Coroutine[Any, Any, T]) -> T:
        return _done(self._loop, work)

    def _each(self, source: AsyncGenerator[T, None]) -> Iterator[T]:
        try:
            while True:
                try:
                    yield self._done(_next(source))
                except StopAsyncIteration:
                    return
        finally:
            self._done(source.aclose())


def submit(
    spec: "JobSpec | Mapping[str, Any]",
    key: str | None = None,
    *,
    tenant: str | None = None,
    home: Path | None = None,
    shard: str | None = None,
) -> Submitted:
    """Submit one job from a script that is not asynchronous, or a notebook; connects for this one call."""
    with SyncTessera.connect(tenant, home=home, shard=shard) as tessera:
        return tessera.submit(spec, key)


async def _next(source: AsyncGenerator[T, None]) -> T:
    return await anext(source)


def _done(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
    """The result of work in the loop's thread; Ctrl-C here cancels it there."""
    future = asyncio.run_coroutine_threadsafe(work, loop)
    try:
        return future.result()
    except KeyboardInterrupt:
        future.cancel()
        raise
