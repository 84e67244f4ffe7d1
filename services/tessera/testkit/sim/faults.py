"""
Faults in one service's calls: lose, lose the answer, delay, repeat, reorder, cut off, kill.

Chance comes from the run's seeded generator alone. Every fault is counted under its name, so that a run can say which
ones never happened.
"""

import asyncio
from collections.abc import Callable
from enum import StrEnum
from random import Random

from tessera.kernel.errors import Transient, UnknownOutcome
from tessera.kernel.memory.bus import Item
from tessera.kernel.ports import Clock
from tessera.testkit.sim.coverage import Coverage


class Road(StrEnum):
    """Way by which a service reaches others."""

    NATS = "nats"
    LEDGER = "ledger"
    REDIS = "redis"
    CLUSTER = "cluster"


class Crashed(asyncio.CancelledError):
    """The service died here: whatever it still wanted to do outside does not happen."""


class Rates:
    """Chances per call, in thousandths; all zero once `stop` was called."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.lost, self.answer_lost, self.delayed = 4, 4, 25
        self.dropped, self.repeated, self.reordered = 15, 15, 15

    def hit(self, per_mille: int) -> bool:
        """Draws whether a fault of this chance, in thousandths, happens now."""
        return per_mille > 0 and self.random.randrange(1000) < per_mille

    def stop(self) -> None:
        """Sets all chances to zero, so that nothing fails from now on."""
        self.lost = self.answer_lost = self.delayed = self.dropped = self.repeated = self.reordered = 0


class ServiceFaults:
    """The fault hook of one service instance, on its bus, its store and its cluster calls."""

    def __init__(
        self, service: str, clock: Clock, rates: Rates, coverage: Coverage, die: Callable[[str], None]
    ) -> None:
        self.service, self._clock, self._rates, self._coverage, self._die = service, clock, rates, coverage, die
        self.dead = False
        self.crash_at: int | None = None
        self.crash_point = ""
        self.cut_off = False
        self.cut_roads: set[Road] = set()
        self.calls = 0
        self._paused = 0.0

    def pause(self, seconds: float) -> None:
        """The process stands still for so long at its next call, and then goes on with that very call."""
        self._paused = seconds

    def on(self, road: "Road") -> "RoadFaults":
        """The hook of the calls on one road, which may be cut off alone."""
        return RoadFaults(self, road)

    def _is_cut(self, road: "Road", subject: str) -> bool:
        """Whether a call gets nowhere; the ledger's leader may be away while the rest of NATS is there."""
        to_ledger = Road.LEDGER in self.cut_roads and subject.lower().startswith("ledger")
        return self.cut_off or road in self.cut_roads or to_ledger

    async def before(self, op: str, subject: str = "", road: "Road | None" = None) -> None:
        """Delays, loses or cuts off a call before it is made; raises Transient or UnknownOutcome for a call lost."""
        point = f"{op} {subject.split('.')[0]}".strip()
        self._step(f"{self.service} before {point}")
        if self._paused:
            seconds, self._paused = self._paused, 0.0
            await self._clock.sleep(seconds)
            self._alive()
        if self._is_cut(road or Road.NATS, subject):
            await self._clock.sleep(self._rates.random.uniform(0.05, 0.3))
            self._alive()
            raise Transient("partitioned")
        if self._rates.hit(self._rates.delayed):
            self._coverage.fault("delay")
            await self._clock.sleep(self._rates.random.uniform(0.001, 0.4))
            self._alive()
        if self._rates.hit(self._rates.lost):
            if op == "publish" and self._rates.random.randrange(2):
                self._coverage.fault("zombie append" if subject.startswith("ledger") else "late publish")
                raise UnknownOutcome("the request hangs somewhere")
            self._coverage.fault("request lost")
            raise Transient("the request was lost")

    async def after(self, op: str, subject: str = "") -> None:
        """Loses the answer of a call that was made, by chance: raises UnknownOutcome."""
        point = f"{op} {subject.split('.')[0]}".strip()
        self._step(f"{self.service} after {point}")
        if self._rates.hit(self._rates.answer_lost):
            self._coverage.fault("answer lost")
            raise UnknownOutcome("the answer was lost")

    def deliver(self, batch: list[Item]) -> list[Item]:
        """Drops the end of a batch, repeats an item or changes the order, by chance; returns what is delivered."""
        if self._rates.hit(self._rates.dropped):
            self._coverage.fault("drop")
            batch = batch[: self._rates.random.randrange(len(batch))]
        if batch and self._rates.hit(self._rates.repeated):
            self._coverage.fault("repeat")
            batch.append(batch[self._rates.random.randrange(len(batch))])
        if len(batch) > 1 and self._rates.hit(self._rates.reordered):
            self._coverage.fault("reorder")
            self._rates.random.shuffle(batch)
        return batch

    def _alive(self) -> None:
        if self.dead:
            raise Crashed

    def _step(self, point: str) -> None:
        """Each call is two places to die at: before its effect and after it."""
        self._alive()
        self.calls += 1
        if point == self.crash_point or (self.crash_at is not None and self.calls >= self.crash_at):
            self.dead = True
            self._coverage.crash(point)
            self._die(self.service)
            raise Crashed


class RoadFaults:
    """A service's fault hook, as the adapter of one road has it."""

    def __init__(self, faults: ServiceFaults, road: Road) -> None:
        self._faults, self._road = faults, road

    async def before(self, op: str, subject: str = "") -> None:
        """As `ServiceFaults.before`, on this road."""
        await self._faults.before(op, subject, self._road)

    async def after(self, op: str, subject: str = "") -> None:
        """As `ServiceFaults.after`."""
        await self._faults.after(op, subject)

    def deliver(self, batch: list[Item]) -> list[Item]:
        """As `ServiceFaults.deliver`."""
        return self._faults.deliver(batch)
