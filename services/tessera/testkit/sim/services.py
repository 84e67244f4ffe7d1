"""
The services of a simulated shard: started, stopped, crashed, partitioned and replaced like processes.

Services of a group share one: they read the same books, and a crash of one takes all of them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from random import Random
from typing import Any

from tessera.engine.pricing.pricing_problem import PricingProblem
from tessera.kernel.errors import InvariantViolation, RolledOver, Transient
from tessera.kernel.ledger.stream import StreamLedger
from tessera.kernel.memory.broker import MemoryBroker
from tessera.kernel.memory.bus import MemoryBus
from tessera.kernel.memory.store import MemoryStore, MemoryViews
from tessera.kernel.process.settings import ServiceSettings
from tessera.kernel.service.context import Ports
from tessera.kernel.service.health import Health
from tessera.kernel.service.metrics import Metrics
from tessera.kernel.tasks.shared import Shared
from tessera.reclamation.prices.handlers import Learn
from tessera.testkit.sim.coverage import CRASH_POINTS, Coverage
from tessera.testkit.sim.devices.power import SimulatedPower
from tessera.testkit.sim.faults import Crashed, Rates, Road, ServiceFaults
from tessera.testkit.sim.loop import VirtualClock, VirtualLoop
from tessera_local.cluster.core import SimCluster
from tessera_local.cluster.in_memory import MemoryCluster
from tessera_local.cluster.objects.store import Options

SHARD = "main"
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "scheduler": {"checkpoint_every": 16},
    "projection": {"snapshot_seconds": 1.0},
    "binder": {"resync_seconds": 2.0},
}
"""As small as a simulated run needs them."""
ACK_WAIT_SECONDS = 10.0
"""A third of a server's, so that what was lost comes again while other things still fail."""
ODD_EVERY = 5
"""Of so many versions of objects one is said in odd words: null times, lists that are missing, a strange phase."""
AT_ONCE = {"learn_from_arrivals": 1}


def service(
    name: str, settings_of: Mapping[str, Mapping[str, Any]]
) -> tuple[Callable[..., Awaitable[None]], ServiceSettings]:
    """A service's `serve` and its settings."""
    main, settings = import_module(f"tessera.{name}.main"), import_module(f"tessera.{name}.settings")
    model: type[ServiceSettings] = getattr(settings, f"{name.capitalize()}Settings")
    return main.serve, model(shard=SHARD, **settings_of.get(name, {}))


@dataclass(slots=True)
class Member:
    """One running instance of a service."""

    name: str
    ports: Ports
    faults: ServiceFaults
    clock: VirtualClock
    stop: asyncio.Event
    task: asyncio.Task[None]


class SimulatedServices:
    """Every instance of every service, and what they share."""

    def __init__(
        self,
        loop: VirtualLoop,
        random: Random,
        rates: Rates,
        coverage: Coverage,
        learn: Learn | None = None,
        settings: Mapping[str, Mapping[str, Any]] = SETTINGS,
        clock: Callable[[VirtualLoop, int], VirtualClock] = VirtualClock,
        lease_seconds: float | None = None,
        groups: Sequence[Sequence[str]] = (),
    ) -> None:
        """
        `learn` prices the problems of reclamation; without it what comes of them is made up, after a while. `clock`
        makes the clock of an instance whose wall clock is wrong by so many milliseconds. `lease_seconds` may be more
        than an operator may say. `groups` share a process each.
        """
        self._clock_of = clock
        self._of_all = {} if lease_seconds is None else {"lease_seconds": lease_seconds}
        self.loop, self.random, self.rates, self.coverage = loop, random, rates, coverage
        self.clock = VirtualClock(loop)
        self.broker = MemoryBroker(self.clock)
        self.broker.add_shard(SHARD, ACK_WAIT_SECONDS)
        self.cluster = SimCluster(self.clock, random.randrange(1 << 30), Options(odd_every=ODD_EVERY))
        self._power = SimulatedPower(self.cluster, self.clock, coverage)
        self.views = MemoryViews(self.clock)
        self._learn, self._settings, self._groups = learn, settings, groups
        self.members: dict[str, Member] = {}
        self.violations: list[str] = []
        self._started = 0
        self._processes: dict[str, Shared] = {}
        self._reviving: dict[str, asyncio.Task[None]] = {}

    def start(self, slot: str, skew_ms: int = 0) -> None:
        """Start an instance in `slot`, such as `binder` or `scheduler/2`, in the process that it belongs to."""
        name = slot.split("/")[0]
        self._started += 1
        faults = ServiceFaults(name, self.clock, self.rates, self.coverage, lambda _: self._fall(slot))
        clock, stop = self._clock_of(self.loop, skew_ms), asyncio.Event()
        serve, settings = service(name, self._settings)
        settings = settings.model_copy(update=self._of_all)
        if name == "reclamation":
            serve = partial(serve, learn=self._learn or self._make_up, switch=self._power)
            settings = settings if self._learn else settings.model_copy(update=AT_ONCE)
        ports = self._ports(name, faults, clock, self._processes.setdefault(self._process_of(slot), Shared()))
        task = self.loop.create_task(self._run(slot, serve, ports, settings, stop))
        self.members[slot] = Member(name, ports, faults, clock, stop, task)

    async def _make_up(self, problem: PricingProblem, seconds: float) -> tuple[int, ...]:
        """A process that learns may take its time, or come to nothing."""
        await self.clock.sleep(self.random.uniform(0.0, 3.0))
        if self.random.random() < 0.2:
            raise Transient("learning came to nothing")
        return tuple(gpus * milli * (1500 if models else 1000) for _, milli, gpus, models, _ in problem.kinds)

    def _process_of(self, slot: str) -> str:
        name, slash, replica = slot.partition("/")
        return "+".join(next((group for group in self._groups if name in group), (name,))) + slash + replica

    def _ports(self, name: str, faults: ServiceFaults, clock: VirtualClock, shared: Shared) -> Ports:
        bus = MemoryBus(self.broker, name, faults.on(Road.NATS))
        cluster = MemoryCluster(self.cluster, clock, name)
        by_api = faults.on(Road.CLUSTER)
        cluster.before, cluster.after = by_api.before, by_api.after
        metrics = Metrics(name)
        random = Random(self._started)
        return Ports(
            clock=clock,
            bus=bus,
            ledger=StreamLedger(bus, SHARD),
            store=MemoryStore(self.views, faults.on(Road.REDIS)),
            cluster=cluster,
            health=Health(clock, metrics),
            metrics=metrics,
            instance=f"{name}-{self._started}",
            new_tx=lambda: f"{random.getrandbits(128):032x}",
            new_key=lambda: random.randbytes(32),
            shared=shared,
        )

    async def _run(
        self, slot: str, serve: Callable[..., Awaitable[None]], ports: Ports, settings: Any, stop: asyncio.Event
    ) -> None:
        """A service: it ends when told, halts on a violation, and is started again alone after anything else."""
        try:
            await serve(ports, settings, stop)
        except InvariantViolation as error:
            self.violations.append(f"{slot} halted: {error}")
        except RolledOver:
            self.coverage.fault("begun anew after a roll-over")
            if self._processes.get(process := self._process_of(slot)) is ports.shared:
                self._processes[process] = Shared()  # the others come to it when they fail of the same
            self._fall(slot, alone=True)
        except Transient:
            self._fall(slot, alone=True)

    def _fall(self, slot: str, alone: bool = False) -> None:
        """The instance is gone, and all of its process unless `alone`; a supervisor brings them after a while."""
        if slot not in self.members:
            return
        process, fallen = self._process_of(slot), [slot]
        if not alone or process == slot:
            fallen = [each for each in (*self.members, *self._reviving) if self._process_of(each) == process]
            del self._processes[process]
        seconds = self.random.uniform(0.05, 2.0)
        for each in fallen:
            if (member := self.members.pop(each, None)) is not None:
                member.faults.dead = True
                self.loop.call_soon(member.task.cancel)
            elif each in self._reviving:
                self._reviving[each].cancel()
            self._reviving[each] = self.loop.create_task(self._revive(each, seconds))

    async def _revive(self, slot: str, seconds: float) -> None:
        await self.clock.sleep(seconds)
        del self._reviving[slot]
        self.start(slot)

    def set_clocks_right(self) -> None:
        """Set every instance's wall clock right; one that was an hour behind jumps."""
        for member in self.members.values():
            member.clock.skew_ms = 0

    def crash(self, slot: str) -> None:
        """Let the instance die at one of its next calls, any or a named one, before or after the call's effect."""
        member = self.members.get(slot)
        if member is None or member.faults.crash_point or member.faults.crash_at is not None:
            return
        if self.random.randrange(3):
            when, call = self.random.choice(("before", "after")), self.random.choice(CRASH_POINTS[member.name])
            member.faults.crash_point = f"{member.name} {when} {call}"
        else:
            member.faults.crash_at = member.faults.calls + self.random.randrange(1, 40)

    def kill(self, slot: str) -> None:
        """Let the instance die where it stands."""
        if slot in self.members:
            self.coverage.crash(f"{self.members[slot].name} where it stood")
            self._fall(slot)

    async def close(self) -> None:
        """Ends every instance; what a service failed of, other than a crash that was made, is a violation."""
        tasks = [member.task for member in self.members.values()] + list(self._reviving.values())
        for member in self.members.values():
            member.faults.dead = True
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception) and not isinstance(result, Crashed | asyncio.CancelledError):
                self.violations.append(f"a service failed: {result!r}")
