"""
Jobs per second from submit to allocated while everything runs: binder, pods starting, ending, cleaned away.

There are far more jobs than GPUs, so that nearly every allocation needs the whole life of an earlier job to be over:
the figure is that of the whole platform, not of a queue being filled.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from tessera.kernel.clock import SystemClock
from tessera_lab.bench.report import ReportRow
from tessera_lab.bench.together.load import ALLOCATED, RELEASED, EventCounter, send
from tessera_lab.bench.together.platform import GPUS_PER_NODE, TTL_SECONDS, job, start_platform, submits
from tessera_lab.bench.together.relay import HOPS, relay
from tessera_schemas.shard.services import SEPARATE

REACH = {False: ">= 600 jobs/s", True: ">= 400 jobs/s"}
RUN_SECONDS = 0.05
CLEANED_SECONDS = TTL_SECONDS + 1.0


async def throughput(jobs: int, rounds: int, nodes: int, sync: bool, layout: str = SEPARATE) -> list[ReportRow]:
    clock, rates, whole, floors = SystemClock(), [], [], []
    spent: list[dict[str, float]] = []
    stored: list[dict[str, float]] = []
    with TemporaryDirectory(prefix="tessera-bench-") as folder:
        async with relay(Path(folder), clock, sync) as floor, start_platform(nodes, sync, layout=layout) as on:
            events = await EventCounter.open(on.bus, on.shard, clock)
            for number in range(rounds):
                floors.append(jobs / await floor.burst(b"x" * 512, jobs))
                commands = submits(job(RUN_SECONDS), [f"t{number}-{i}" for i in range(jobs)])
                seen = events.count.get(ALLOCATED, 0), events.count.get(RELEASED, 0)
                had = await on.stored()
                before, began = on.cpu_seconds(), clock.monotonic()
                await send(on.bus, on.shard, commands)
                rates.append(jobs / (await events.until(ALLOCATED, seen[0] + jobs) - began))
                whole.append(jobs / (await events.until(RELEASED, seen[1] + jobs) - began))
                await clock.sleep(CLEANED_SECONDS)
                spent.append(_per_job(before, on.cpu_seconds(), 1e6 / jobs))
                stored.append(_per_job(had, await on.stored(), 1 / jobs))
    per_job = _medians(spent)
    ranked = dict(sorted(per_job.items(), key=lambda item: -item[1]))
    return [
        ReportRow(
            f"submit to allocated, sustained{', synced' if sync else ''}, {layout} services",
            "jobs/s",
            REACH[sync],
            tuple(rates),
            f"a bare relay of {HOPS} durable hops, messages/s",
            tuple(floors),
            {
                "submit to released, jobs/s": median(whole),
                "CPU us per job": ranked | {"all": sum(ranked.values())},
                "messages per job": _medians(stored),
                "GPUs": nodes * GPUS_PER_NODE,
            },
        )
    ]


def _per_job(before: Mapping[str, float], after: Mapping[str, float], unit: float) -> dict[str, float]:
    return {name: (value - before.get(name, 0)) * unit for name, value in after.items()}


def _medians(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: median(one[name] for one in rounds) for name in rounds[0]}
