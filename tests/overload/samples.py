"""What is looked at while it lasts: memory of every process, and how far events and views are behind the ledger."""

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tessera.client.connect.connecting import open_bus, open_store
from tessera.kernel.clock import SystemClock
from tessera.kernel.errors import Transient
from tessera.kernel.nats.bus import NatsBus
from tessera.kernel.redis.store import RedisStore
from tessera.projection.events import Cursor
from tessera_lab.bench.together.platform import BenchPlatform
from tessera_lab.bench.together.sizing import MIB, resident_bytes
from tessera_local.platform import CLUSTER, NATS, REDIS
from tessera_schemas import subjects
from tessera_schemas.events import CURSOR_HEADER

EVERY_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Sample:
    """One look: seconds, the ledger's end, how far events and views are, and MiB by process."""

    at: float
    end: int
    events: int
    views: int
    mib: dict[str, float]


@dataclass
class Samples:
    """All looks in their order."""

    taken: list[Sample] = field(default_factory=list)

    def behind(self, what: str) -> list[float]:
        """For each look, the seconds for which the ledger has been further than `events` or `views` are now."""
        ends = [sample.end for sample in self.taken]
        found = []
        for sample in self.taken:
            first = bisect_right(ends, getattr(sample, what))  # the first look at which the ledger was further
            found.append(max(0.0, sample.at - self.taken[first].at) if first < len(self.taken) else 0.0)
        return found

    def most(self, name: str, part: slice = slice(None)) -> float:
        """The most memory of a process, in MiB."""
        return max(sample.mib.get(name, 0.0) for sample in self.taken[part])

    @property
    def names(self) -> Sequence[str]:
        """Every process that was seen."""
        return sorted({name for sample in self.taken for name in sample.mib})


@asynccontextmanager
async def looking(on: BenchPlatform) -> AsyncIterator[Samples]:
    """Look twice a second for as long as the body lasts."""
    operator, samples = on.place.identity(subjects.OPERATOR), Samples()
    async with open_bus(on.place, operator) as bus, open_store(on.place, operator) as store:
        task = asyncio.create_task(_look(on, bus, store, samples))
        try:
            yield samples
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def _look(on: BenchPlatform, bus: NatsBus, store: RedisStore, samples: Samples) -> None:
    clock = SystemClock()
    names = (NATS, REDIS, CLUSTER, *on.platform.parts)
    while True:
        try:
            views = await store.cursor()
            event = await bus.last(subjects.stream("EVENTS", on.shard), ">")
            end = await bus.last(subjects.stream("LEDGER", on.shard), ">")
        except Transient:
            await clock.sleep(EVERY_SECONDS)
            continue
        mib = {name: resident_bytes(pid) / MIB for name in names if (pid := on.platform.pid(name)) is not None}
        published = 0 if event is None else Cursor.parse(event.headers[CURSOR_HEADER]).n
        samples.taken.append(Sample(clock.monotonic(), 0 if end is None else end.seq, published, views, mib))
        await clock.sleep(EVERY_SECONDS)
