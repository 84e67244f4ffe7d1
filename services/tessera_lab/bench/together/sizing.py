"""Sizing of an installation: CPU per job and memory of each service, and how the streams grow."""

from collections.abc import Mapping
from pathlib import Path

from tessera.client.connect.connecting import open_bus
from tessera.kernel.clock import SystemClock
from tessera_lab.bench.report import ReportRow
from tessera_lab.bench.together.load import RELEASED, EventCounter, send
from tessera_lab.bench.together.platform import BenchPlatform, job, start_platform, submits
from tessera_local.platform import NATS, REDIS
from tessera_schemas import subjects

KIB, MIB = 1024, 2**20
RUN_SECONDS, BATCH = 0.5, 20
REST_SECONDS = 10.0


async def sizing(jobs: int, nodes: int, layout: str) -> list[ReportRow]:
    """Jobs in small batches, one after the other, as they come in a day: no batch is large enough to be cheap."""
    clock = SystemClock()
    async with start_platform(nodes, False, layout=layout) as on:
        events = await EventCounter.open(on.bus, on.shard, clock)
        asleep = on.cpu_seconds()
        await clock.sleep(REST_SECONDS)
        rest, before, stored = resident(on), on.cpu_seconds(), await stream_bytes(on)
        commands = submits(job(RUN_SECONDS), [f"s{number}" for number in range(jobs)])
        began = clock.monotonic()
        for first in range(0, jobs, BATCH):
            await send(on.bus, on.shard, commands[first : first + BATCH])
            await events.until(RELEASED, min(first + BATCH, jobs))
        seconds = clock.monotonic() - began
        spent, after = on.cpu_seconds(), resident(on)
        grown = {name: size - stored[name] for name, size in (await stream_bytes(on)).items()}
    at_rest = {name: (before[name] - asleep[name]) * 1e3 / REST_SECONDS for name in before}
    per_job = {name: (spent[name] - before[name]) * 1e3 / jobs for name in before}
    return [
        ReportRow(
            f"sizing, {nodes} nodes, {layout} services",
            "ms of CPU per job, all processes",
            "none: what to plan with",
            (sum(per_job.values()),),
            "of these NATS and Redis",
            (per_job[NATS] + per_job[REDIS],),
            {
                "CPU ms per job": ranked(per_job),
                "CPU ms per second at rest": ranked(at_rest),
                "MiB at rest": ranked(rest),
                f"MiB after {jobs} jobs": ranked(after),
                "KiB per job": {name: size / jobs / KIB for name, size in grown.items()},
                "jobs/s": jobs / seconds,
            },
        )
    ]


def ranked(found: Mapping[str, float]) -> dict[str, float]:
    """The largest first."""
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def resident(on: BenchPlatform) -> dict[str, float]:
    """MiB of memory that is each service's own, or shared with the process that it was forked from."""
    pids = {name: on.platform.pid(name) for name in on.platform.parts}
    return {name: resident_bytes(pid) / MIB for name, pid in pids.items() if pid is not None}


async def stream_bytes(on: BenchPlatform) -> dict[str, int]:
    """Bytes in each of the streams that grow with every job."""
    async with open_bus(on.place, on.place.identity(subjects.OPERATOR)) as bus:
        return {
            name: (await bus.usage(subjects.stream(name, on.shard))).bytes for name in ("LEDGER", "FACTS", "EVENTS")
        }


def resident_bytes(pid: int) -> int:
    """Bytes of memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * KIB for line in lines if line.startswith("VmRSS"))
