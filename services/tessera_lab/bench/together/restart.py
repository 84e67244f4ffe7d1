"""Time until a scheduler decides again after its process was started anew, with many live jobs in its state."""

import asyncio

from tessera.client.connect.connecting import open_bus
from tessera.kernel.clock import SystemClock
from tessera.kernel.nats.bus import NatsBus
from tessera.kernel.ports import Clock
from tessera_lab.bench.report import ReportRow
from tessera_lab.bench.together.load import ADMITTED, EventCounter, send
from tessera_lab.bench.together.platform import BenchPlatform, job, start_platform, submits
from tessera_local.up import bare_import_seconds
from tessera_schemas import subjects
from tessera_schemas.shard.ledger_form import plain_json

SCHEDULER = "scheduler"
RUN_SECONDS = 3600.0  # nothing ends meanwhile
OPEN_SECONDS = 60.0
SETTLE_SECONDS = 2.0


class Epochs:
    """Hears the ledger message with which a committer opens its epoch."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._opened = clock, asyncio.Event()
        self.at = 0.0

    async def listen(self, bus: NatsBus, shard: str) -> None:
        await bus.listen(subjects.live(subjects.ledger(shard)), self._on_message)

    def _on_message(self, _subject: str, data: bytes) -> None:
        if b'"holder":"' in plain_json(data)[:1024]:  # only the opening message has one, before all facts
            self.at = self._clock.monotonic()
            self._opened.set()

    async def next(self) -> float:
        """Time at which the next epoch was opened."""
        self._opened.clear()
        async with asyncio.timeout(OPEN_SECONDS):
            await self._opened.wait()
        return self.at


async def restart(jobs: int, rounds: int, nodes: int) -> list[ReportRow]:
    clock, orderly, killed, floors = SystemClock(), [], [], []
    async with start_platform(nodes, sync=False) as on, open_bus(on.place, on.place.identity(subjects.OPERATOR)) as bus:
        events = await EventCounter.open(on.bus, on.shard, clock)
        epochs = Epochs(clock)
        await epochs.listen(bus, on.shard)
        await send(on.bus, on.shard, submits(job(RUN_SECONDS), [f"r{i}" for i in range(jobs)]))
        await events.until(ADMITTED, jobs)
        await clock.sleep(SETTLE_SECONDS)
        for _ in range(rounds):
            floors.append((await bare_import_seconds([SCHEDULER], clock))[SCHEDULER])
            orderly.append(await _orderly(on, epochs, clock))
            killed.append(await _killed(on, epochs, clock))
        stored = await on.stored()
    return [
        ReportRow(
            f"start of the scheduler with {jobs:,} live jobs, until it decides",
            "s",
            "<= 3 s",
            tuple(orderly),
            "Python and the imports alone",
            tuple(floors),
            {"after kill -9, lease run out, s": max(killed), "ledger messages": stored["ledger messages"]},
        )
    ]


async def _orderly(on: BenchPlatform, epochs: Epochs, clock: Clock) -> float:
    await on.platform.stop(SCHEDULER)
    opened, began = asyncio.ensure_future(epochs.next()), clock.monotonic()
    await on.platform.start(SCHEDULER)
    return await opened - began


async def _killed(on: BenchPlatform, epochs: Epochs, clock: Clock) -> float:
    """From the kill on: the supervisor's pause and what is left of the old lease are part of it."""
    opened, began = asyncio.ensure_future(epochs.next()), clock.monotonic()
    on.platform.kill(SCHEDULER)
    return await opened - began
