"""Cost of one tenant's flood for another tenant of the same queue: from submit to end, beside the same without it."""

from collections.abc import Sequence

from tessera.client.connect.connecting import open_bus
from tessera.client.ledger.reading import ledger_of
from tessera.kernel.clock import SystemClock
from tessera.kernel.nats.bus import NatsBus
from tessera.kernel.ports import Clock, Outgoing
from tessera_lab.bench.report import ReportRow, percentile
from tessera_lab.bench.together.load import RELEASED, EventCounter
from tessera_lab.bench.together.platform import TENANT, BenchPlatform, job, start_platform, submits
from tessera_schemas import subjects
from tessera_schemas.base import job_id
from tessera_schemas.ledger import LEDGER_MESSAGE, Allocated, Released

FLOOD = "flood"
NODES = 4
JOB_SECONDS, EVERY_SECONDS, SAMPLES = 10.0, 1.0, 25
"""So the tenant has 10 jobs at once, on 32 GPUs of which half are its share."""
FLOODS_SECONDS = (1.0, 1.5, 2.0, 2.5, 3.0)
"""Of different lengths, so that a GPU comes free now and then, and not all of them at one moment."""

Took = tuple[float, float]
"""Milliseconds from a job's submit to its allocation, and to its end."""


async def flood(jobs: int, rounds: int) -> list[ReportRow]:
    clock = SystemClock()
    alone: list[list[Took]] = []
    beside: list[list[Took]] = []
    async with start_platform(NODES, False, (TENANT, FLOOD)) as on, open_bus(on.place, on.place.tenant(FLOOD)) as other:
        events = await EventCounter.open(on.bus, on.shard, clock)
        await _paced(on, events, clock, "warm", 2)
        for number in range(rounds):
            alone.append(await _paced(on, events, clock, f"alone-{number}"))
            for at, seconds in enumerate(FLOODS_SECONDS):
                keys = [f"flood-{number}-{i}" for i in range(at, jobs, len(FLOODS_SECONDS))]
                await _send(other, on.shard, FLOOD, seconds, keys)
            beside.append(await _paced(on, events, clock, f"beside-{number}"))
            if number + 1 < rounds:
                await _drained(on, clock)
    return [
        ReportRow(
            f"submit to {what} of a job of {JOB_SECONDS:g} s beside another tenant's {jobs} at once, p{rank}",
            "ms",
            reach,
            tuple(percentile([took[part] for took in found], rank) for found in beside),
            f"the same without them, p{rank}",
            tuple(percentile([took[part] for took in found], rank) for found in alone),
            {"samples a round": SAMPLES, "GPUs": NODES * 8},
        )
        for part, what, reach in ((1, "end", "<= 1.2 of alone"), (0, "allocation", "the rest of it"))
        for rank in (50, 99)
    ]


async def _paced(
    on: BenchPlatform, events: EventCounter, clock: Clock, name: str, samples: int = SAMPLES
) -> list[Took]:
    """
    Times of a tenant's jobs, submitted one at a time, by the times of the ledger.

    Events only say when all have ended: their publisher gives way when CPU is short.
    """
    began, ended = dict[str, int](), events.count.get(RELEASED, 0)
    for number in range(samples):
        key = f"{name}-{number}"
        began[job_id(on.shard, TENANT, key)] = clock.now_ms()
        await _send(on.bus, on.shard, TENANT, JOB_SECONDS, [key])
        await clock.sleep(EVERY_SECONDS)
    await events.until(RELEASED, ended + samples)
    allocated, released = await _moments(on)
    return [(float(allocated[job] - ts), float(released[job] - ts)) for job, ts in began.items()]


async def _moments(on: BenchPlatform) -> tuple[dict[str, int], dict[str, int]]:
    """Times at which each job was allocated, and released as a whole, by the ledger."""
    allocated, released = dict[str, int](), dict[str, int]()
    async with open_bus(on.place, on.place.identity(subjects.OPERATOR)) as bus:
        async for _, data in ledger_of(bus, on.shard).messages():
            message = LEDGER_MESSAGE.validate_json(data)
            for record in message.records:
                if isinstance(record, Allocated):
                    allocated[record.job_id] = message.ts
                elif isinstance(record, Released) and not record.ranks:
                    released[record.run_id.rpartition("-")[0]] = message.ts
    return allocated, released


async def _send(bus: NatsBus, shard: str, tenant: str, seconds: float, keys: Sequence[str]) -> None:
    await bus.publish_all([Outgoing(subjects.submit(shard, tenant), data) for data in submits(job(seconds), keys)])


async def _drained(on: BenchPlatform, clock: Clock) -> None:
    """Waits until the ledger stands still: the flood has ended."""
    before = -1
    while (now := (await on.stored())["ledger messages"]) != before:
        before = now
        await clock.sleep(2 * max(FLOODS_SECONDS))
