"""Time of one small job from its acknowledged submit to `job.allocated` at a subscriber, all else idle."""

from pathlib import Path
from tempfile import TemporaryDirectory

from tessera.kernel.clock import SystemClock
from tessera_lab.bench.report import ReportRow, percentile
from tessera_lab.bench.together.load import ALLOCATED, RELEASED, EventCounter, send
from tessera_lab.bench.together.platform import job, start_platform, submits
from tessera_lab.bench.together.relay import HOPS, relay
from tessera_schemas.shard.services import SEPARATE

REACH = {50: "<= 15 ms unsynced", 99: "<= 50 ms unsynced"}
PAUSE_SECONDS = 0.005  # after the job's end, so that the next one finds everything idle
WARM = 20


async def latency(samples: int, rounds: int, nodes: int, sync: bool, layout: str = SEPARATE) -> list[ReportRow]:
    clock = SystemClock()
    found: dict[int, list[float]] = {50: [], 99: []}
    floors: dict[int, list[float]] = {50: [], 99: []}
    with TemporaryDirectory(prefix="tessera-bench-") as folder:
        async with relay(Path(folder), clock, sync) as floor, start_platform(nodes, sync, layout=layout) as on:
            events = await EventCounter.open(on.bus, on.shard, clock)
            for number in range(-1, rounds):
                ours, bare = [], []
                for i in range(samples if number >= 0 else min(WARM, samples)):
                    bare.append(await floor.one(b"x" * 512) * 1000)
                    (command,) = submits(job(0.0), [f"l{number}-{i}"])
                    seen, ended = events.count.get(ALLOCATED, 0), events.count.get(RELEASED, 0)
                    await send(on.bus, on.shard, [command])
                    acknowledged = clock.monotonic()
                    allocated = await events.until(ALLOCATED, seen + 1)
                    ours.append(max(0.0, allocated - acknowledged) * 1000)  # heard before we read the ack: no time
                    await events.until(RELEASED, ended + 1)
                    await clock.sleep(PAUSE_SECONDS)
                for rank in found if number >= 0 else ():
                    found[rank].append(percentile(ours, rank))
                    floors[rank].append(percentile(bare, rank))
    return [
        ReportRow(
            f"submit acknowledged to job.allocated, idle, p{rank}{', synced' if sync else ''}",
            "ms",
            REACH[rank],
            tuple(found[rank]),
            f"a bare relay of {HOPS} durable hops, p{rank}",
            tuple(floors[rank]),
            {"samples a round": samples},
        )
        for rank in found
    ]
