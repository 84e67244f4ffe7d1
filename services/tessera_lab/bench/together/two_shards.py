"""
Jobs per second of two shards together, beside one of them alone in the same run.

Both share this machine's CPU, its disk, one nats-server, one Redis and one simulated cluster; they share no committer,
no stream and no lock. So the ratio says what a second shard costs the first on the same machine: 1 means only the CPU
that both want. That a shard more brings throughput can be seen only where each has a machine of its own: up to 2.
"""

import asyncio
import os
from collections.abc import Sequence

from tessera.kernel.clock import SystemClock
from tessera_lab.bench.report import ReportRow
from tessera_lab.bench.together.load import ALLOCATED, RELEASED, EventCounter, send
from tessera_lab.bench.together.platform import GPUS_PER_NODE, TTL_SECONDS, BenchPlatform, job, start_shards, submits
from tessera_schemas.subjects import MAIN_SHARD

RUN_SECONDS = 0.05
CLEANED_SECONDS = TTL_SECONDS + 1.0


async def two_shards(jobs: int, rounds: int, nodes: int) -> list[ReportRow]:
    """`jobs` for each shard; `nodes` of each."""
    clock = SystemClock()
    alone: list[float] = []
    together: list[float] = []
    async with start_shards(nodes, False, [MAIN_SHARD, "b"]) as both:
        counters = [await EventCounter.open(on.bus, on.shard, clock) for on in both]
        for number in range(rounds):
            for rates, count in ((alone, 1), (together, 2)):
                began = clock.monotonic()
                loads = zip(both[:count], counters[:count], strict=True)
                ends = await asyncio.gather(*(_load(on, events, f"{number}-{count}", jobs) for on, events in loads))
                rates.append(count * jobs / (max(ends) - began))
                await clock.sleep(CLEANED_SECONDS)
    return [
        ReportRow(
            "submit to allocated, two shards side by side",
            "jobs/s",
            ">= 0.8 of one alone on shared CPU",
            tuple(together),
            "one of them alone, jobs/s, while the other idles",
            tuple(alone),
            {"cores shared by everything": os.cpu_count() or 0, "GPUs of each": nodes * GPUS_PER_NODE},
        )
    ]


async def _load(on: BenchPlatform, events: EventCounter, name: str, jobs: int) -> float:
    """Time at which the last of so many jobs was allocated; all of them are released when this returns."""
    commands: Sequence[bytes] = submits(job(RUN_SECONDS), [f"{name}-{i}" for i in range(jobs)])
    allocated, released = events.count.get(ALLOCATED, 0), events.count.get(RELEASED, 0)
    await send(on.bus, on.shard, commands)
    end = await events.until(ALLOCATED, allocated + jobs)
    await events.until(RELEASED, released + jobs)
    return end
