"""One shard with everything that projection meets, in memory and in virtual time."""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import count
from random import Random
from typing import Any

from tessera.kernel.errors import Transient, UnknownOutcome
from tessera.kernel.ledger.shard import Shard, decode_entry
from tessera.kernel.ledger.stream import StreamLedger
from tessera.kernel.memory.broker import MemoryBroker, Stream
from tessera.kernel.memory.bus import MemoryBus
from tessera.kernel.memory.store import MemoryStore, MemoryViews
from tessera.kernel.ports import Message, Outgoing
from tessera.kernel.redis.views_digest import views_digest
from tessera.kernel.service.context import Ports
from tessera.kernel.service.health import Health
from tessera.kernel.service.metrics import Metrics
from tessera.projection.events import events_of
from tessera.projection.main import serve
from tessera.projection.settings import ProjectionSettings
from tessera.projection.views import all_views
from tessera_schemas import subjects
from tessera_schemas.events import CURSOR_HEADER
from tests.builders import SHARD
from tests.virtual_time import VirtualClock


class Crash(Exception):
    """The process ends here."""


class Breaks:
    """Raises `error` at the given calls of one operation, counted from 1, before or after their effect."""

    def __init__(
        self, op: str, calls: Iterable[int], error: Exception, *, about: str = "", after: bool = False
    ) -> None:
        self._op, self._calls, self._error, self._about, self._after = op, frozenset(calls), error, about, after
        self._count = count(1)
        self._breaks = False

    async def before(self, op: str, subject: str = "") -> None:
        if op == self._op and subject.startswith(self._about):
            self._breaks = next(self._count) in self._calls
            if self._breaks and not self._after:
                raise self._error

    async def after(self, op: str, subject: str = "") -> None:
        if op == self._op and subject.startswith(self._about) and self._breaks and self._after:
            raise self._error

    def deliver(self, batch: list[Any]) -> list[Any]:
        return batch


class Away:
    """A store or bus whose calls fail while `error` is set; those whose name begins with `only`."""

    def __init__(self, error: Exception | None = None, only: str = "") -> None:
        self.error, self.only = error, only
        self.calls: list[str] = []

    async def before(self, op: str, subject: str = "") -> None:
        self.calls.append(op)
        if self.error is not None and (subject or op).startswith(self.only):
            raise self.error

    async def after(self, op: str, subject: str = "") -> None: ...

    def deliver(self, batch: list[Any]) -> list[Any]:
        return batch


class Chance:
    """Every so often a call fails, before or after its effect, in one of the ways that calls fail."""

    def __init__(self, random: Random, share: float, about: tuple[str, ...] = ("",)) -> None:
        self.random, self.share, self.about = random, share, about

    async def before(self, op: str, subject: str = "") -> None:
        if subject.startswith(self.about) and self.random.random() < self.share:
            raise UnknownOutcome("no answer") if op == "publish" and self.random.random() < 0.5 else Transient("away")

    async def after(self, op: str, subject: str = "") -> None:
        if subject.startswith(self.about) and op != "follow" and self.random.random() < self.share:
            raise UnknownOutcome("no answer")

    def deliver(self, batch: list[Any]) -> list[Any]:
        return batch


class World:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.broker, self.views = MemoryBroker(self.clock), MemoryViews(self.clock)
        self.broker.add_shard(SHARD)
        self.tasks: list[asyncio.Task[None]] = []
        self._names = count(1)

    def append(self, stored: Sequence[bytes]) -> None:
        for data in stored:
            self.broker.store(Outgoing(subjects.ledger(SHARD), data))

    def start(self, bus_faults: Any = None, store_faults: Any = None, **settings: Any) -> "Running":
        bus = MemoryBus(self.broker, "projection", bus_faults)
        metrics = Metrics("projection")
        cluster: Any = None  # projection has no business there
        ports = Ports(
            self.clock,
            bus,
            StreamLedger(bus, SHARD),
            MemoryStore(self.views, store_faults),
            cluster,
            Health(self.clock, metrics),
            metrics,
            f"projection-{next(self._names)}",
            str,
        )
        # Futures of a ledger without end take long, and most tests are not about them.
        running = Running(ports, ProjectionSettings(**{"quote_seconds": 0.0, **settings}))
        self.tasks.append(running.task)
        return running

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def stream(self, kind: str) -> Stream:
        return self.broker.stream(subjects.stream(kind, SHARD))

    def published(self) -> list[tuple[str, str, bytes]]:
        return [(m.subject, m.headers[CURSOR_HEADER], m.data) for m in self.stream("EVENTS").messages.values()]

    def events(self) -> list[tuple[str, bytes]]:
        """Subject and data of all that is stored, whether or not it has a cursor."""
        return [(m.subject, m.data) for m in self.stream("EVENTS").messages.values()]

    def lose_last_events(self, number: int) -> None:
        """As a server does that acknowledged before it synced, and then lost its power."""
        stream = self.stream("EVENTS")
        for _ in range(number):
            stream.remove(stream.last_seq)
            stream.last_seq -= 1

    def land_late(self) -> None:
        """What was on its way when its sender gave up arrives after all."""
        for out in list(self.broker.limbo):
            self.broker.land(out)


class Running:
    """A projection process."""

    def __init__(self, ports: Ports, settings: ProjectionSettings) -> None:
        self.ports, self.stop = ports, asyncio.Event()
        self.task = asyncio.ensure_future(serve(ports, settings, self.stop))

    @property
    def trouble(self) -> dict[str, str]:
        return {name: text for name, text in self.ports.health.readiness().items() if text != "ok"}

    async def kill(self) -> None:
        self.task.cancel()
        with suppress(asyncio.CancelledError, Crash):
            await self.task


def expected_events(stored: Sequence[bytes]) -> list[tuple[str, str, bytes]]:
    shard, found = Shard(), []
    for n, data in enumerate(stored, start=1):
        entry = decode_entry(Message("", n, data))
        found += [(e.subject, str(e.cursor), e.data) for e in events_of(SHARD, entry.message, shard.state)]
        shard.fold(entry)
    return found


def expected_digest(state: Any) -> str:
    rows: dict[str, dict[str, bytes]] = {}
    for change in all_views(state):
        assert change.value is not None
        rows.setdefault(change.view, {})[change.key] = change.value
    return views_digest(rows)


def held_digest(views: MemoryViews) -> str:
    return views_digest(views.current.views if views.current else {})


UNKNOWN = UnknownOutcome("no answer")
