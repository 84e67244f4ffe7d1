"""
The SDK for programs that are not asynchronous: every call waits for its answer.

    with SyncTessera.connect() as tessera:
        sent = tessera.submit({"name": "train", "gpus": 8, ...})
        for line in tessera.logs(sent.job_id, follow=True):
            print(line)

Its event loop is in a thread of its own, so that it works in a notebook, where a loop runs already.
"""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

from tessera.client.outcomes import Refused, Submitted
from tessera.client.sending.sdk import Notify, Tessera, to_stderr
from tessera_schemas.subjects import ANSWER_SECONDS

if TYPE_CHECKING:
    from tessera_schemas.events import CloudEvent
    from tessera_schemas.job import JobSpec
    from tessera_schemas.views import JobView
    from tessera_schemas.work.arrays import Dependency

T = TypeVar("T")


class SyncTessera:
    """One tenant's connection to a shard; each method is that of `Tessera` with the same name."""

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

    def submit(
        self,
        spec: "JobSpec | Mapping[str, Any]",
        key: str | None = None,
        *,
        held: bool = False,
        answer_seconds: float = ANSWER_SECONDS,
        publish_seconds: float | None = None,
        notify: Notify = to_stderr,
    ) -> Submitted:
        """Submit a job once, however often this is called with the same key. Raises Refused with all reasons."""
        more: dict[str, Any] = {"answer_seconds": answer_seconds, "publish_seconds": publish_seconds, "notify": notify}
        return self._done(self._tessera.submit(spec, key, held=held, **more))

    def rerun(
        self,
        job: str,
        key: str | None = None,
        *,
        changes: Mapping[str, Any] | None = None,
        held: bool = False,
        notify: Notify = to_stderr,
    ) -> Submitted:
        """Submit the spec of a job again as a new job, with `changes` by path. Raises Refused with all reasons."""
        return self._done(self._tessera.rerun(job, key, changes=changes, held=held, notify=notify))

    def dry_run(
        self, spec: "JobSpec | Mapping[str, Any]", key: str | None = None, *, answer_seconds: float = ANSWER_SECONDS
    ) -> str:
        """Ask whether the job would be admitted now; nothing is taken in. Raises Refused, Transient."""
        return self._done(self._tessera.dry_run(spec, key, answer_seconds=answer_seconds))

    def submit_many(
        self, specs: "Sequence[JobSpec | Mapping[str, Any]]", key: str | None = None, *, held: bool = False
    ) -> Sequence[Submitted | Refused]:
        """Submit jobs side by side; what became of each, in their order."""
        return self._done(self._tessera.submit_many(specs, key, held=held))

    def submit_template(
        self,
        template: str,
        parameters: Mapping[str, str | int] | None = None,
        key: str | None = None,
        *,
        overrides: Mapping[str, str] | None = None,
        held: bool = False,
        answer_seconds: float = ANSWER_SECONDS,
        publish_seconds: float | None = None,
        notify: Notify = to_stderr,
    ) -> Submitted:
        """Submit what a template of the configuration makes of these parameters; else as `submit`."""
        more: dict[str, Any] = {"answer_seconds": answer_seconds, "publish_seconds": publish_seconds, "notify": notify}
        return self._done(
            self._tessera.submit_template(template, parameters, key, overrides=overrides, held=held, **more)
        )

    def get(self, job: str) -> "JobView":
        """A job by its id, the unique beginning of one, or its name. Raises Failure."""
        return self._done(self._tessera.get(job))

    def list(
        self, *, queue: str | None = None, name: str | None = None, phases: Sequence[str] = ()
    ) -> "Sequence[JobView]":
        """Jobs of this tenant that match: live ones first, then by age."""
        return self._done(self._tessera.list(queue=queue, name=name, phases=phases))

    def wait(self, job: str | Submitted, seconds: float | None = None) -> "JobView":
        """See `Tessera.wait`."""
        return self._done(self._tessera.wait(job, seconds))

    def logs(
        self,
        job: str,
        *,
        rank: int = 0,
        attempt: int | None = None,
        follow: bool = False,
        tail: int = 0,
        since_seconds: int = 0,
    ) -> Iterator[str]:
        """Lines that a pod of a job has written, with `follow` those to come. Raises Failure where there are none."""
        return self._each(
            self._tessera.logs(job, rank=rank, attempt=attempt, follow=follow, tail=tail, since_seconds=since_seconds)
        )

    def explain(self, job: str) -> dict[str, Any]:
        """Why a job stands where it stands, as `tessera explain -o json` prints it. Raises Failure."""
        return self._done(self._tessera.explain(job))

    def events(
        self, job: str | None = None, *, after: int | None = None, follow: bool = True
    ) -> "Iterator[CloudEvent]":
        """Public events of this tenant, or of one job by its id, as `Tessera.events` gives them."""
        return self._each(self._tessera.events(job, after=after, follow=follow))

    def cancel(self, job: str, why: str = "", now: bool = False) -> None:
        """Ask for a job to be cancelled, by its id; returns once the request is stored. Raises Refused."""
        self._done(self._tessera.cancel(job, why, now))

    def hold(self, job: str) -> None:
        """Ask that a job, by its id, does not start (again) until it is released. Raises Refused."""
        self._done(self._tessera.hold(job))

    def release(self, job: str) -> None:
        """Ask that a held job, by its id, may start. Raises Refused."""
        self._done(self._tessera.release(job))

    def set_priority(self, job: str, priority_class: str) -> None:
        """Ask that a job, by its id, gets another priority class, of those granted to it. Raises Refused."""
        self._done(self._tessera.set_priority(job, priority_class))

    def move(self, job: str, queue: str) -> None:
        """Ask that a waiting job, by its id, waits in another queue. Raises Refused."""
        self._done(self._tessera.move(job, queue))

    def update(
        self,
        job: str,
        *,
        time_limit_seconds: int | None = None,
        after: "Sequence[Dependency | Mapping[str, Any]] | None" = None,
        begin_ts: int | None = None,
        name: str | None = None,
    ) -> None:
        """Ask that fields of a job, by its id, get other values, as `Tessera.update` says. Raises Refused."""
        self._done(
            self._tessera.update(job, time_limit_seconds=time_limit_seconds, after=after, begin_ts=begin_ts, name=name)
        )

    def requeue(self, job: str) -> None:
        """
        Ask that the run of a job of this tenant is stopped, with its notice, and the job put back in line; no attempt
        is spent. Raises Refused.
        """
        self._done(self._tessera.requeue(job))

    def checkpoint(self, job: str, path: str, attempt: int = 0, at: str = "") -> None:
        """Say that the job's program has saved its work at `path`. Raises Refused."""
        self._done(self._tessera.checkpoint(job, path, attempt, at))

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
