"""
Bounds of stored logs: what those of all tenants take together, and each tenant's equal share of it.

Whoever collects writes and removes by `BoundedStore`, which makes room among the oldest logs of the same tenant before
it writes: nobody's logs go for another tenant's. What each tenant has, and since when its oldest are gone, lies beside
the logs, for the gateways that only read.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import orjson
import structlog

from tessera.gateway.measures import Measures
from tessera.gateway.stored_logs.stores import LogName, LogStore, StoredLog, log_key, read_log_key
from tessera.kernel.errors import Full, Transient
from tessera.kernel.ports import Clock

FILE_BYTES = 4_608
# Each log counts as so much beside its text: a block that it does not fill, its inode and its entry.
USED = "{shard}/.used"
NEARLY_FULL_PERCENT = 90
TenantNames = Callable[[], Sequence[str]]

log = structlog.get_logger()


@dataclass(slots=True)
class UsedShare:
    """
    Bytes that the stored logs of one tenant count, of at most `bytes_max`.

    All that was written up to `gone_ms`, in milliseconds since the Unix epoch, made room for newer logs; 0: nothing.
    """

    bytes: int = 0
    bytes_max: int = 0
    gone_ms: int = 0

    @property
    def is_nearly_full(self) -> bool:
        """Whether the next logs make the oldest go, or nearly."""
        return self.bytes * 100 >= self.bytes_max * NEARLY_FULL_PERCENT


@dataclass(slots=True)
class _Shelf:
    """Logs of one tenant by their keys, the oldest first."""

    used: UsedShare
    logs: dict[str, StoredLog] = field(default_factory=dict)
    of_jobs: dict[str, dict[LogName, str]] = field(default_factory=dict)
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    def put(self, found: StoredLog, name: LogName) -> None:
        self.take(found.key)
        self.logs[found.key] = found
        self.of_jobs.setdefault(name.job_id, {})[name] = found.key
        self.used.bytes += found.bytes + FILE_BYTES

    def take(self, key: str) -> None:
        gone, name = self.logs.pop(key, None), read_log_key(key)
        if gone is None or name is None:
            return
        self.used.bytes -= gone.bytes + FILE_BYTES
        of_job = self.of_jobs[name.job_id]
        of_job.pop(name, None)
        if not of_job:
            del self.of_jobs[name.job_id]

    def oldest_above(self, bytes_max: int) -> list[StoredLog]:
        """The oldest logs, without which the others are within so many bytes."""
        found, left = list[StoredLog](), self.used.bytes
        for each in self.logs.values():
            if left <= bytes_max:
                break
            found.append(each)
            left -= each.bytes + FILE_BYTES
        return found


class BoundedStore:
    """A log store of which no tenant takes more than its share, for the one gateway that writes."""

    def __init__(
        self, store: LogStore, shard: str, tenants: TenantNames, bytes_max: int, clock: Clock, measures: Measures
    ):
        self.store, self._shard, self._tenants, self._bytes_max = store, shard, tenants, bytes_max
        self._clock, self._measures, self._written = clock, measures, b""
        self._shelves: dict[str, _Shelf] = {}
        self._counted, self._counting = False, asyncio.Lock()
        measures.log_bytes_max.set(bytes_max)

    @property
    def share(self) -> int:
        """Bytes that each tenant may have: equal parts for all that are configured or have logs."""
        having = (tenant for tenant, shelf in self._shelves.items() if shelf.logs)
        return self._bytes_max // max(1, len({*self._tenants(), *having}))

    def forget(self) -> None:
        """Count anew before the next write: another gateway may have written meanwhile."""
        self._shelves, self._counted = {}, False

    async def logs_of(self, tenant: str, job_id: str) -> dict[LogName, StoredLog]:
        """Logs of a job that are stored or being written."""
        await self._count()
        shelf = self._shelf(tenant)
        return {name: shelf.logs[key] for name, key in shelf.of_jobs.get(job_id, {}).items()}

    async def put(self, name: LogName, text: bytes) -> None:
        """Make room among the tenant's own logs, then write. Raises Full for what is larger than a tenant's share."""
        await self._count()
        shelf, key = self._shelf(name.tenant), log_key(self._shard, name)
        async with shelf.writing:
            shelf.put(StoredLog(key, len(text), self._clock.now_ms()), name)  # before it is there: others count it, too
            try:
                await self._make_room_for(shelf, len(text) + FILE_BYTES)
                await self.store.put(key, text)
            except BaseException:
                shelf.take(key)
                raise
            finally:
                self._report()

    async def _make_room_for(self, shelf: _Shelf, size: int) -> None:
        share = self.share
        if size > share:
            raise Full(f"a log of {size} bytes is more than a tenant's share of stored logs, which is {share}")
        await self._shorten(shelf, share)
        if self._total() > self._bytes_max:  # shares became smaller: whoever has more than that gives it now
            for each in list(self._shelves.values()):
                await self._shorten(each, share)

    async def remove(self, keys: Sequence[str]) -> None:
        """Remove logs, and count them no more."""
        await self.store.remove(keys)
        for key in keys:
            if shelf := self._shelves.get(key.split("/")[1]):
                shelf.take(key)

    async def write_used(self) -> None:
        """Say beside the logs what each tenant has, where that has changed; a store that is away gets it later."""
        data = orjson.dumps({tenant: shelf.used for tenant, shelf in sorted(self._shelves.items())})
        if not self._counted or data == self._written:
            return
        try:
            await self.store.put(USED.format(shard=self._shard), data)
            self._written = data
        except Transient as error:
            log.info("used_log_bytes_not_written", error=str(error))

    async def _shorten(self, shelf: _Shelf, bytes_max: int) -> None:
        oldest = shelf.oldest_above(bytes_max)
        if oldest:
            await self.remove([each.key for each in oldest])
            shelf.used.gone_ms = max(shelf.used.gone_ms, *(each.written_ms for each in oldest))
            self._measures.logs_gone.inc(len(oldest))

    async def _count(self) -> None:
        # Read what there is, once.
        async with self._counting:
            if self._counted:
                return
            found = [each async for batch in self.store.batches(self._shard) for each in batch]
            gone = await read_used(self.store, self._shard)
            for each in sorted(found, key=lambda each: (each.written_ms, each.key)):
                name = read_log_key(each.key)
                if name is not None:  # what others put there is theirs
                    self._shelf(name.tenant).put(each, name)
            for tenant in gone.keys() & {*self._tenants(), *self._shelves}:
                self._shelf(tenant).used.gone_ms = gone[tenant].gone_ms
            self._counted = True
            self._report()

    def _shelf(self, tenant: str) -> _Shelf:
        return self._shelves.setdefault(tenant, _Shelf(UsedShare()))

    def _total(self) -> int:
        return sum(shelf.used.bytes for shelf in self._shelves.values())

    def _report(self) -> None:
        share = self.share
        for shelf in self._shelves.values():
            shelf.used.bytes_max = share
        self._measures.log_bytes.set(self._total())
        self._measures.log_tenants_full.set(sum(each.used.is_nearly_full for each in self._shelves.values()))


async def read_used(store: LogStore, shard: str) -> dict[str, UsedShare]:
    """Bytes that each tenant's stored logs take, as whoever collects wrote it last. Raises Transient."""
    written = await store.get(USED.format(shard=shard))
    try:
        return {tenant: UsedShare(**found) for tenant, found in orjson.loads(written or b"{}").items()}
    except (ValueError, TypeError, AttributeError) as error:
        log.warning("used_log_bytes_not_read", error=str(error))
        return {}
