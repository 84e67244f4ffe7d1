"""
The shared views as the gateway serves them: read from Redis when they are asked for, in bounded time, once for all who
ask at the same moment.

A list may be `age_seconds` old, and says as of which n it holds. Only rows whose bytes changed are decoded again.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import takewhile
from typing import Generic, NamedTuple, TypeVar

import structlog
from sortedcontainers import SortedKeyList

from tessera.domain.work.phases import TERMINAL
from tessera.gateway.entrance.loop_shares import MeteredSteps
from tessera.gateway.entrance.problems import refused
from tessera.kernel.clock import thread_seconds
from tessera.kernel.errors import Transient
from tessera.kernel.messaging.rates import MILLION
from tessera.kernel.ports import Clock, ProjectionStore
from tessera.kernel.process.shard_status import StatusReader, StatusTraces
from tessera_schemas.base import Lenient
from tessera_schemas.config import Config
from tessera_schemas.reasons import Code
from tessera_schemas.views import JobView, NodeView, QueueView
from tessera_schemas.work.arrays import FAMILY

REST, SHORT_SECONDS = 5, 0.05
DECODED_AT_ONCE = 2_000  # then others run
REFUSED = "refused"
# View and phase of users' work in Kubernetes that is turned away.
BEHIND_SECONDS = 0.02  # between looks at views that do not have yet what the ledger has

log = structlog.get_logger()

M = TypeVar("M", bound=Lenient)
T = TypeVar("T")
ListPlace = tuple[int, int, str]
# A job's place in a list: jobs of a lower place come first.


class Rows(Generic[M]):
    """One view, decoded; `changed` is told of every row that came, changed (old, new) or went."""

    def __init__(
        self,
        view: str,
        model: type[M],
        store: ProjectionStore,
        clock: Clock,
        age_seconds: float,
        changed: Callable[[M | None, M | None], None] = lambda old, new: None,
    ) -> None:
        self._view, self._model, self._store, self._clock = view, model, store, clock
        self._age_seconds, self._changed = age_seconds, changed
        self._stored: dict[str, bytes] = {}
        self.rows: dict[str, M] = {}
        self.as_of = 0
        self._fresh_until = float("-inf")
        self._reading: asyncio.Task[None] | None = None

    async def fresh(self) -> None:
        """Have `rows` no older than `age_seconds`. Raises Transient."""
        if self._clock.monotonic() < self._fresh_until:
            return
        if self._reading is None:
            self._reading = asyncio.create_task(self._read_and_rest(), name=f"read {self._view}")
            self._reading.add_done_callback(self._done)
        await asyncio.shield(self._reading)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._reading = None
        if not task.cancelled():
            task.exception()  # told to whoever waits; nobody may, if they gave up

    async def _read_and_rest(self) -> None:
        # Reading is a cost of all who ask: one that is long takes a fifth of the loop, and the list is older then.
        began, took_us = self._clock.monotonic(), list[int]()
        await MeteredSteps(self._read(), thread_seconds, took_us.append)
        rest = REST * sum(took_us) / MILLION
        self._fresh_until = began + (self._age_seconds if rest < SHORT_SECONDS else max(self._age_seconds, rest))

    async def _read(self) -> None:
        n = await self._store.cursor()
        if n and (n != self.as_of or not self.rows):
            n, (rows,) = await self._store.rows_as_of(self._view)
            if n:
                await self._take(rows)
                self.as_of = n
        if n == 0:
            raise Transient("the views are being built")

    async def _take(self, found: dict[str, bytes]) -> None:
        decoded = 0
        for key, data in found.items():
            if self._stored.get(key) != data:
                self._put(key, data, self._model.from_bytes(data))
                decoded += 1
                if decoded % DECODED_AT_ONCE == 0:
                    await self._clock.sleep(0)
        for key in [key for key in self._stored if key not in found]:
            self._put(key, None, None)

    def _put(self, key: str, data: bytes | None, new: M | None) -> None:
        self._changed(self.rows.get(key), new)
        if data is None or new is None:
            del self._stored[key], self.rows[key]
        else:
            self._stored[key], self.rows[key] = data, new


def age(job: JobView) -> ListPlace:
    """Newest first; ends in the id, so that no two are alike."""
    return (0, -job.submitted_ts, job.job_id)


def turn(job: JobView) -> ListPlace:
    """Live jobs first, then refused work, then ended jobs; each oldest first, then by id."""
    return (RANKS.get(job.phase, 0), job.submitted_ts, job.job_id)


RANKS = {REFUSED: 1, **{phase.value: 2 for phase in TERMINAL}}
ORDERS: dict[str, Callable[[JobView], ListPlace]] = {"newest": age, "live": turn}
Jobs = dict[str | None, SortedKeyList[JobView]]


class ListedKind(NamedTuple):
    """The fields by which jobs are counted; `runs_tasks`: a live array with tasks that run."""

    tenant: str
    queue: str
    phase: str
    is_task: bool
    runs_tasks: bool

    @classmethod
    def of(cls, job: JobView) -> "ListedKind":
        """The kind of a job."""
        runs_tasks = job.array is not None and job.array.running > 0 and not job.ended_ts
        return cls(job.tenant, job.queue, job.phase, bool(job.task_of), runs_tasks)


class JobList:
    """
    All jobs and each tenant's, in each order; a page goes on behind the place of its predecessor's last job.

    Among them users' work in Kubernetes that is refused, whose ids are no jobs'.
    """

    def __init__(self, store: ProjectionStore, clock: Clock, age_seconds: float) -> None:
        self._rows = [Rows(view, JobView, store, clock, age_seconds, self._changed) for view in ("jobs", REFUSED)]
        self.kinds = Counter[ListedKind]()
        self._lists: dict[str, Jobs] = {order: {None: SortedKeyList(key=key)} for order, key in ORDERS.items()}

    async def fresh(self) -> int:
        """Raises Transient. Returns the n as of which the list holds."""
        for rows in self._rows:
            await rows.fresh()
        return min(rows.as_of for rows in self._rows)

    def after(self, tenant: str | None, place: ListPlace | None, order: str = "newest") -> Iterator[JobView]:
        """The jobs of a tenant, or of all, that come behind `place` in this order."""
        jobs = self._lists[order].get(tenant)
        if jobs is None:
            return iter(())
        return iter(jobs) if place is None else jobs.irange_key(min_key=place, inclusive=(False, True))

    def live(self, tenant: str | None) -> Iterator[JobView]:
        """Jobs of a tenant, or of all, that have not ended."""
        return takewhile(lambda job: turn(job)[0] == 0, self.after(tenant, None, "live"))

    def tasks(self, array_id: str, submitted_ts: int, place: ListPlace | None) -> Iterator[JobView]:
        """The tasks of an array by their indexes, those behind `place`: they are as old as it, and begin as its id."""
        family, jobs = array_id[:FAMILY], self._lists["newest"][None]
        first, last = place or (0, -submitted_ts, family), (0, -submitted_ts, f"{family}~")
        return (job for job in jobs.irange_key(first, last, (False, True)) if job.task_of == array_id)

    def _changed(self, old: JobView | None, new: JobView | None) -> None:
        self.kinds.subtract(() if old is None else (ListedKind.of(old),))
        self.kinds.update(() if new is None else (ListedKind.of(new),))
        for order, key in ORDERS.items():
            for row, add in ((old, False), (new, True)):
                for name in () if row is None else (None, row.tenant):
                    jobs = self._lists[order].setdefault(name, SortedKeyList(key=key))
                    if add:
                        jobs.add(row)
                    else:
                        jobs.remove(row)


class SharedViews:
    """Every reading of Redis. Each raises Refusal when it is away."""

    def __init__(self, store: ProjectionStore, clock: Clock, seconds: float, age_seconds: float) -> None:
        self._store, self._clock, self._seconds = store, clock, seconds
        self._jobs = JobList(store, clock, age_seconds)
        self._nodes = Rows("nodes", NodeView, store, clock, age_seconds)
        self._queues = Rows("queues", QueueView, store, clock, age_seconds)
        self._away = False

    async def jobs(self) -> tuple[int, JobList]:
        """Jobs, and the ledger number that they are as of; raises Refusal while Redis is away."""
        return await self._in_time(self._jobs.fresh()), self._jobs

    async def config(self) -> tuple[int, Config]:
        """Configuration in force, of version 0 before the first; raises Refusal while Redis is away."""
        n, (stored,) = await self._in_time(self._store.fields_as_of(("config", "config")))
        return n, Config() if stored is None else Config.model_validate_json(stored)

    async def nodes(self) -> tuple[int, list[NodeView]]:
        """Nodes by pool and name, and the ledger number that they are as of; raises Refusal while Redis is away."""
        await self._in_time(self._nodes.fresh())
        return self._nodes.as_of, sorted(self._nodes.rows.values(), key=lambda node: (node.pool, node.name))

    async def queues(self) -> tuple[int, list[QueueView]]:
        """Queues by name, and the ledger number that they are as of; raises Refusal while Redis is away."""
        await self._in_time(self._queues.fresh())
        return self._queues.as_of, sorted(self._queues.rows.values(), key=lambda queue: queue.name)

    async def job(self, job_id: str, min_n: int) -> tuple[int, JobView | None]:
        """The job or refused work; "not found" is trusted only from views at or past ledger number `min_n`."""
        return await self._in_time(self._job(job_id, min_n))

    async def jobs_of(self, ids: Sequence[str], min_n: int) -> tuple[int, list[JobView]]:
        """Jobs and refused work with these ids, those that are shown, from views at or past ledger number `min_n`."""
        return await self._in_time(self._jobs_of(ids, min_n))

    async def _jobs_of(self, ids: Sequence[str], min_n: int) -> tuple[int, list[JobView]]:
        asked = [(view, job_id) for job_id in ids for view in ("jobs", REFUSED)]
        while True:
            n, found = await self._store.fields_as_of(*asked)
            if n >= min_n:
                return n, [JobView.from_bytes(stored) for stored in found if stored is not None]
            await self._clock.sleep(BEHIND_SECONDS)

    async def _job(self, job_id: str, min_n: int) -> tuple[int, JobView | None]:
        while True:
            n, found = await self._store.fields_as_of(("jobs", job_id), ("refused", job_id))
            stored = next(filter(None, found), None)
            if stored is not None or n >= min_n:
                return n, None if stored is None else JobView.from_bytes(stored)
            await self._clock.sleep(BEHIND_SECONDS)

    async def _in_time(self, work: Awaitable[T]) -> T:
        # Answer of Redis in time; its outage is logged once, and its return once.
        try:
            async with asyncio.timeout(self._seconds):
                found = await work
        except (Transient, TimeoutError) as error:
            if not self._away:
                log.warning("views_away", error=str(error) or "no answer in time")
            self._away = True
            detail = "the shared views; submits, cancels, explain and events go on without them"
            raise refused(Code.UNAVAILABLE, "redis", detail) from error
        if self._away:
            log.info("views_back")
        self._away = False
        return found


FRESH_SECONDS = 1.0


class SharedStatus:
    def __init__(self, reader: StatusReader, clock: Clock) -> None:
        self._reader, self._clock = reader, clock
        self._seen: StatusTraces | None = None
        self._seen_at = 0.0
        self._looking = asyncio.Lock()

    async def seen(self) -> StatusTraces:
        """The last look, if it is fresh, else a new one."""
        async with self._looking:
            if self._seen is None or self._clock.monotonic() - self._seen_at >= FRESH_SECONDS:
                self._seen, self._seen_at = await self._reader.look(), self._clock.monotonic()
            return self._seen
