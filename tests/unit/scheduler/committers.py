"""Committers on one in-memory broker, with a clock that a test moves and appends that a test breaks."""

import asyncio
import itertools
from typing import Any, cast

from tessera.engine import ENGINE_ID
from tessera.kernel.ledger.shard import Shard, decode_entry
from tessera.kernel.ledger.stream import StreamLedger, read_plain
from tessera.kernel.memory.broker import MemoryBroker
from tessera.kernel.memory.bus import Item, MemoryBus
from tessera.kernel.ports import Outgoing
from tessera.kernel.process.leases import Members
from tessera.kernel.service.context import Ports
from tessera.kernel.service.health import Health
from tessera.kernel.service.metrics import Metrics
from tessera.scheduler.cycle import Committer
from tessera.scheduler.main import serve
from tessera.scheduler.settings import SchedulerSettings
from tessera_schemas import subjects
from tessera_schemas.facts import AnyFact, FactMessage, owner
from tessera_schemas.ledger import LedgerMessage
from tessera_schemas.shard.orders import Order
from tests.builders import SHARD, admitted
from tests.virtual_time import VirtualClock


class Faults:
    """`before` and `after` a publish on a subject whose beginning is named: the next errors, in order."""

    def __init__(self) -> None:
        self.before_publish: dict[str, list[Exception]] = {}
        self.after_publish: dict[str, list[Exception]] = {}
        self.held: asyncio.Event | None = None

    async def before(self, op: str, subject: str) -> None:
        if op == "publish":
            if self.held is not None and subject.startswith("ledger."):
                await self.held.wait()
            _raise_next(self.before_publish, subject)

    async def after(self, op: str, subject: str) -> None:
        if op == "publish":
            _raise_next(self.after_publish, subject)

    def deliver(self, batch: list[Item]) -> list[Item]:
        return batch


def _raise_next(errors: dict[str, list[Exception]], subject: str) -> None:
    for prefix, waiting in errors.items():
        if subject.startswith(prefix) and waiting:
            raise waiting.pop(0)


class World:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.broker = MemoryBroker(self.clock)
        self.broker.add_shard(SHARD)
        self.bus = MemoryBus(self.broker)
        self._tx = itertools.count(1)

    def ports(self, instance: str = "scheduler-1", faults: Faults | None = None) -> Ports:
        bus = MemoryBus(self.broker, "scheduler", faults)
        metrics = Metrics("scheduler")
        return Ports(
            clock=self.clock,
            bus=bus,
            ledger=StreamLedger(bus, SHARD),
            store=cast(Any, None),
            cluster=cast(Any, None),
            health=Health(self.clock, metrics),
            metrics=metrics,
            instance=instance,
            new_tx=lambda: f"tx-{next(self._tx):08d}",
        )

    async def fact(self, fact: AnyFact, service: str = "") -> int:
        return await self.bus.publish(outgoing(fact, service))

    def at_once(self, *all_of_them: Outgoing) -> None:
        """Stored so that a follower sees all of them in one batch."""
        for out in all_of_them:
            self.broker.store(out)

    async def order(self, order: Order) -> int:
        return await self.bus.publish(Outgoing(subjects.order(SHARD, order.pool), order.to_bytes()))

    @property
    def ledger(self) -> list[LedgerMessage]:
        """The ledger as it is stored, folded and found consistent."""
        shard, messages = Shard(), self.broker.stream(subjects.stream("LEDGER", SHARD)).messages
        entries = [decode_entry(read_plain(stored)) for stored in messages.values()]
        for entry in entries:
            shard.fold(entry)
        return [entry.message for entry in entries]

    @property
    def kinds(self) -> list[list[str]]:
        """The records of each message, without the ones that open an epoch."""
        ours = ("format_raised", "epoch_opened", "checkpoint")
        return [[r.kind for r in message.records if r.kind not in ours] for message in self.ledger]

    @property
    def said(self) -> list[str]:
        """The same, all messages together."""
        return [kind for kinds in self.kinds for kind in kinds]

    @property
    def dead_letters(self) -> list[str]:
        messages = self.broker.stream(subjects.stream("DLQ", SHARD)).messages.values()
        return [message.headers["Tessera-Reason"] for message in messages]


def outgoing(fact: AnyFact, service: str = "") -> Outgoing:
    subject = subjects.fact(SHARD, service or owner(fact), fact.kind.replace("_", "-"))
    return Outgoing(subject, FactMessage(v=1, fact=fact).to_bytes())


class Leader:
    """A committer that leads in a task of its own."""

    def __init__(self, world: World, instance: str = "scheduler-1", **settings: Any) -> None:
        self.world, self.faults = world, Faults()
        self.shard, self.stop = Shard(), asyncio.Event()
        self.ports = world.ports(instance, self.faults)
        self.committer = Committer(self.ports, SchedulerSettings(shard=SHARD, **settings), self.shard)
        self.task = asyncio.create_task(self.committer.lead(self.stop))

    async def __aenter__(self) -> "Leader":
        await self.world.clock.run(0.1)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop.set()
        await self.world.clock.run(0.1)
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


class ActingBinder:
    """A binder's lease, renewed as a binder that is alive does; `acts` is what it says of itself."""

    def __init__(self, world: World) -> None:
        self.world, self.acts = world, True
        self._members = Members(world.bus, world.clock, SHARD, "binder", "binder-1", acts=lambda: self.acts)

    async def __aenter__(self) -> "ActingBinder":
        await self._members.join()
        await self.world.clock.run(5)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._members.leave()


class Served:
    """The whole service, with its lease and its standing by."""

    def __init__(self, world: World, instance: str) -> None:
        self.world, self.faults, self.stop = world, Faults(), asyncio.Event()
        self.ports = world.ports(instance, self.faults)
        self.task = asyncio.create_task(serve(self.ports, SchedulerSettings(shard=SHARD), self.stop))

    async def dies(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


def line_of(world: World, *keys: str, basis_n: int | None = None) -> Order:
    """An order of these jobs, as of the ledger's end or of `basis_n`."""
    jobs = tuple(admitted(key).job_id for key in keys)
    basis = len(world.ledger) if basis_n is None else basis_n
    return Order(v=1, pool="default", basis_n=basis, ts=1_000_000, engine=ENGINE_ID, policy=1, jobs=jobs)
