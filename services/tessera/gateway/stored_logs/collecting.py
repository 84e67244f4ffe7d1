"""
Collects the logs of runs as they end, while the pods are still there.

One gateway of a shard does it at a time, by a lease. A run that is stopped is followed from then on, so that what its
pods write in their grace is kept, too; one that ended by itself is read once. What was missed while no gateway was up
is caught up with from the state: runs that are stopping, and jobs that ended within the last hour and since everything
was collected. Pods that users made themselves are not ours to read.
"""

import asyncio
from collections import deque
from contextlib import aclosing
from dataclasses import dataclass

import structlog

from tessera.domain.entities import EndedJob, Job, Run
from tessera.domain.state import State
from tessera.gateway.measures import Measures
from tessera.gateway.stored_logs.bounds import FILE_BYTES, BoundedStore
from tessera.gateway.stored_logs.outages import LogOutage
from tessera.gateway.stored_logs.progress import Progress
from tessera.gateway.stored_logs.stores import LogName, StoredLog
from tessera.kernel.errors import Full, Transient
from tessera.kernel.ledger.shard import Entry
from tessera.kernel.ports import ApiError, Clock, Cluster
from tessera.kernel.process.leases import Leadership
from tessera.kernel.tasks.task_group import cancel_all, gather_all, run_loops
from tessera.kernel.tasks.worklist import Worklist
from tessera_schemas.base import run_id
from tessera_schemas.cluster.labels import pod_name
from tessera_schemas.facts import RunEnded
from tessera_schemas.ledger import Allocated, LedgerMessage, Released, Revoked, Shrunk
from tessera_schemas.shard.records import RolesShifted


class NewestPart:
    """Holds at most `bytes_max` of what is added, the newest, from the beginning of a line on."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._pieces: deque[bytes] = deque()
        self._held = self._added = 0

    def __bool__(self) -> bool:
        return self._added > 0

    def add(self, piece: bytes) -> None:
        """Append a piece; the oldest that no longer fit are dropped."""
        self._added += len(piece)
        piece = piece[-self._bytes_max :]
        self._pieces.append(piece)
        self._held += len(piece)
        while self._held - len(self._pieces[0]) >= self._bytes_max:
            self._held -= len(self._pieces.popleft())

    def text(self) -> bytes:
        """The held text, with a line before it that says how much is not."""
        whole = b"".join(self._pieces)
        if self._added <= self._bytes_max:
            return whole
        notice = b"[the beginning of this log was not kept: it is longer than the bound of a job's logs]\n"
        part = whole[-max(0, self._bytes_max - len(notice)) :]
        return notice + part[part.find(b"\n") + 1 :]


RUNS_AT_ONCE = 16
READS_AT_ONCE = 64
CATCH_UP_MS = 3_600_000
CATCH_UP_ATTEMPTS = 2
LOOK_SECONDS = 1.0
RELEASED_SECONDS = 10.0
# How long a log may go on after the ledger has released its run.
TRIES_MAX, REFUSED_TRIES_MAX = 60, 6
# The second where the cluster says 403: a server that starts may, for seconds, and one without our right there always.
WAITING_MAX = 4096
# So many runs are named while an outage lasts; the others are caught up with from the state after it.
PARTS_AFTER_TRIES = 3
# So many times a log that breaks off is read anew; then what there is of it is kept.
PROGRESS_SECONDS = 10.0
PRUNE_SECONDS = 6 * 3600.0
DAY_MS = 86_400_000
GONE = (400, 404)
# Answers about a pod that is not there, or whose container never started.

log = structlog.get_logger()


class LogCollector:
    """Collects into `store`; `bytes_max` bounds all attempts of a job, of which one run takes half."""

    def __init__(
        self,
        cluster: Cluster,
        store: BoundedStore,
        state: State,
        shard: str,
        clock: Clock,
        measures: Measures,
        bytes_max: int,
        days: int,
    ) -> None:
        self._cluster, self._store, self._state, self._shard = cluster, store, state, shard
        self._clock, self._measures, self._bytes_max, self._days = clock, measures, bytes_max, days
        self._worklist: Worklist | None = None
        self._progress = Progress(store.store, shard)
        self._ranks: dict[str, set[int]] = {}
        self._users_own, self._refused = set[str](), set[str]()
        self._reading = asyncio.Semaphore(READS_AT_ONCE)
        self._outage = LogOutage(cluster, store.store, shard, clock)
        self._unnamed_since_ts: int | None = None

    def _note_ranks(self, record: Shrunk | RolesShifted | Released | Revoked) -> None:
        if not isinstance(record, Revoked) and record.ranks and record.run_id not in self._users_own:
            self._ranks.setdefault(record.run_id, set()).update(record.ranks)

    async def on_ledger(self, entries: list[Entry]) -> None:
        """Names what has begun to end: runs, and single pods of runs that go on."""
        if self._worklist is None:
            return
        named: dict[str, LedgerMessage] = {}
        for entry in entries:
            message = entry.message
            named |= {taken.fact.run_id: message for taken in message.facts if isinstance(taken.fact, RunEnded)}
            for record in message.records:
                if isinstance(record, Allocated):
                    self._note_users_own(record.job_id)
                if isinstance(record, Shrunk | RolesShifted | Released | Revoked):
                    named[record.run_id] = message
                    self._note_ranks(record)
        for run, message in named.items():
            if run not in self._users_own:
                self._name(run, message.n, message.ts)
            elif self._state.runs.get(run) is None:
                self._users_own.discard(run)

    def _name(self, run: str, n: int, ts: int) -> None:
        if self._worklist is None:
            return
        if self._outage.looking.locked() and len(self._progress) >= WAITING_MAX:
            if self._unnamed_since_ts is None:
                self._unnamed_since_ts = ts
            return
        self._progress.named(run, n, ts)
        self._worklist.name(run)

    def _note_users_own(self, job_id: str) -> None:
        # Of an ended job nobody knows any more whether it was adopted.
        job = self._state.jobs.get(job_id)
        if job is not None and job.adopted is not None:
            self._users_own.add(job.run_id)

    async def run(self, leadership: Leadership) -> None:
        """Collect whenever this gateway leads, for ever."""
        try:
            while True:
                await leadership.acquire()
                await self._lead(leadership)
        finally:
            await leadership.release()

    async def _lead(self, leadership: Leadership) -> None:
        async def until_lost() -> None:
            while leadership.held:
                await self._clock.sleep(LOOK_SECONDS)

        self._store.forget()
        self._unnamed_since_ts = None
        since = max(await self._progress.begin(self._state.ts), self._clock.now_ms() - CATCH_UP_MS)
        self._worklist = Worklist(self._collect, self._clock, RUNS_AT_ONCE, self._state.tenant_of_run)
        self._catch_up(since)
        loops = self._worklist.run(), self._keep_pruned(), self._keep_progress()
        try:
            await run_loops(asyncio.Event(), until_lost(), *loops)
            await self._progress.write(self._state.ts)
        finally:
            self._worklist = None
            await self._store.write_used()
            self._ranks.clear()
            self._users_own.clear()

    def _catch_up(self, since: int) -> None:
        for run in self._state.runs.values():
            self._note_users_own(run.job_id)
            if run.stopping:
                self._name(run.run_id, self._state.n, since)
        for job in self._state.remembered.newest_first():
            if job.ended_ts < since:
                break
            for attempt in range(max(1, job.attempt - CATCH_UP_ATTEMPTS + 1), job.attempt + 1):
                self._name(run_id(job.job_id, attempt), self._state.n, job.ended_ts)

    # -- one run

    async def _collect(self, name: str) -> None:
        # Read and store each due log that is not stored yet. Raises Transient or ApiError to be tried again.
        n, is_released = self._state.n, self._state.runs.get(name) is None
        job_id, _, attempt = name.rpartition("-")
        job = self._state.jobs.get(job_id) or self._state.ended.get(job_id)
        ranks = [] if job is None else self._due(name, job)
        if job is not None and ranks:
            tries = self._worklist.failures(name) if self._worklist else 0
            run = _EndingRun(name, int(attempt), job, self._bytes_max // 2 // max(job.pods, len(ranks)), tries)
            await self._collect_run(run, ranks)
        if is_released:
            self._ranks.pop(name, None)
        self._progress.collected(name, n)

    async def _collect_run(self, run: "_EndingRun", ranks: list[int]) -> None:
        async with self._outage.looking:  # nobody tries while one lasts
            pass
        while True:
            try:
                return await self._store_missing(run, ranks)
            except (ApiError, Transient) as error:
                was_outage, since, self._unnamed_since_ts = await self._outage.outlast(), self._unnamed_since_ts, None
                if since is not None:
                    self._catch_up(since)
                if was_outage:
                    continue
                tenant, refused = run.job.tenant, isinstance(error, ApiError) and error.status == 403
                known = refused and tenant in self._refused  # told once, and until it is mended no run is tried again
                if not known and run.tries < (REFUSED_TRIES_MAX if refused else TRIES_MAX):
                    raise
                if not known:
                    log.warning("log_not_collected", job=run.job.job_id, run=run.name, tenant=tenant, error=str(error))
                if refused:
                    self._refused.add(tenant)
                self._measures.logs.labels("failed").inc()
                return None

    async def _store_missing(self, run: "_EndingRun", ranks: list[int]) -> None:
        # A stored log is never read again, since a node may have less of it by then.
        have = await self._store.logs_of(run.job.tenant, run.job.job_id)
        names = (LogName(run.job.tenant, run.job.job_id, run.attempt, rank) for rank in ranks)
        stored = await gather_all(*(self._collect_pod(run, name) for name in names if name not in have))
        if any(stored) and run.attempt > 1:
            await self._trim(run.job.tenant, run.job.job_id)

    def _due(self, name: str, job: Job | EndedJob) -> list[int]:
        # Ranks whose pods end or have ended; of users' own pods none.
        if isinstance(job, Job) and job.adopted is not None:
            return []
        run, named = self._state.runs.get(name), self._ranks.get(name, set())
        if run is None:
            return sorted({*range(job.pods), *named})
        if run.stopping:
            return sorted({*(place.rank for place in run.all_placements), *named})
        return sorted(named)

    async def _collect_pod(self, run: "_EndingRun", pod: LogName) -> bool:
        # Whether the log was stored; one that is not there, or goes on after all, is not.
        newest = NewestPart(max(1024, min(run.pod_bytes_max, self._store.share - FILE_BYTES)))
        async with self._reading:
            try:
                whole = await self._read(run.job.tenant, run.name, pod.rank, newest)
            except ApiError as error:
                if error.status in GONE:
                    self._measures.logs.labels("gone").inc()
                    return False
                raise
            except Transient:
                if not newest or run.tries < PARTS_AFTER_TRIES:
                    raise
                whole = True
        self._refused.discard(run.job.tenant)
        if not whole:
            return False
        try:
            await self._store.put(pod, newest.text())
        except Full as error:
            log.warning("log_not_kept", job=run.job.job_id, run=run.name, tenant=run.job.tenant, error=str(error))
            self._measures.logs.labels("no_room").inc()
            return False
        self._measures.logs.labels("collected").inc()
        return True

    async def _read(self, tenant: str, name: str, rank: int, newest: NewestPart) -> bool:
        # Read to the end; False when the pod is not stopped after all.
        following = self._state.runs.get(name) is not None

        async def read() -> None:
            async with aclosing(self._cluster.read_log(tenant, pod_name(name, rank), follow=following)) as pieces:
                async for piece in pieces:
                    newest.add(piece)

        reading, left = asyncio.ensure_future(read()), RELEASED_SECONDS
        try:
            while not reading.done():
                await asyncio.wait({reading}, timeout=LOOK_SECONDS)
                run = self._state.runs.get(name)
                if run is not None and not (run.stopping or rank in self._ranks.get(name, ())):
                    return False
                left -= LOOK_SECONDS if _is_released(run, rank) else 0
                if left <= 0 and not reading.done():
                    return bool(newest)  # a node that nobody reaches never ends it
            reading.result()
        finally:
            await cancel_all(reading)
        return True

    # -- bounds

    async def _trim(self, tenant: str, job_id: str) -> None:
        # Remove the oldest attempts of a job until the others are within its bound.
        by_attempt: dict[int, list[StoredLog]] = {}
        for name, each in (await self._store.logs_of(tenant, job_id)).items():
            by_attempt.setdefault(name.attempt, []).append(each)
        total = sum(each.bytes for logs in by_attempt.values() for each in logs)
        for attempt in sorted(by_attempt)[:-1]:
            if total <= self._bytes_max:
                return
            await self._store.remove([each.key for each in by_attempt[attempt]])
            total -= sum(each.bytes for each in by_attempt[attempt])

    async def _keep_progress(self) -> None:
        while True:
            await self._clock.sleep(PROGRESS_SECONDS)
            await self._progress.write(self._state.ts)
            await self._store.write_used()

    async def _keep_pruned(self) -> None:
        while True:
            try:
                await self._prune()
            except Transient as error:
                log.warning("old_logs_not_removed", error=str(error))
            await self._clock.sleep(PRUNE_SECONDS)

    async def _prune(self) -> None:
        before = self._clock.now_ms() - self._days * DAY_MS
        removed = 0
        async for batch in self._store.store.batches(self._shard):
            old = [each.key for each in batch if each.written_ms < before]
            await self._store.remove(old)
            removed += len(old)
        if removed:
            log.info("old_logs_removed", logs=removed, days=self._days)


@dataclass(frozen=True, slots=True)
class _EndingRun:
    """A run whose logs are due: `name` is the run's id, `tries` how often in a row it has failed."""

    name: str
    attempt: int
    job: Job | EndedJob
    pod_bytes_max: int
    tries: int


def _is_released(run: Run | None, rank: int) -> bool:
    return run is None or rank in run.released_ranks
