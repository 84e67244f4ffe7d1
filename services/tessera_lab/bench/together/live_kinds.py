"""
A platform in which hundreds of different jobs wait, none of which fits: jobs admitted per second, and how soon a small
job of another queue starts.

A job of several pods holds most GPUs of all nodes but four, so that gangs of 5x8 GPUs wait and single GPUs are free.
"""

from tessera.kernel.clock import SystemClock
from tessera.kernel.ports import Clock
from tessera_lab.bench.report import ReportRow, percentile
from tessera_lab.bench.together.load import ADMITTED, ALLOCATED, RELEASED, EventCounter, send
from tessera_lab.bench.together.many_jobs import peak
from tessera_lab.bench.together.platform import GIB, QUEUE, BenchPlatform, job, start_platform, submits
from tessera_lab.bench.together.sizing import ranked
from tessera_schemas.commands import SubmitJob
from tessera_schemas.job import JobSpec, Resources, Role, Template

OTHER = "other"
EMPTY_NODES = 4
PODS_AT_ONCE = 1_000
AT_ONCE = 2_000
SAMPLES = 21
RUN_SECONDS = 36_000.0  # nothing ends meanwhile


async def live_kinds(jobs: int, kinds: int, nodes: int) -> list[ReportRow]:
    """
    `jobs` of that many kinds, behind as many of one kind, which are the floor; a platform of its own for each.

    Args: `nodes` of eight GPUs, more than four.
    """
    floor_rate, floor_ms, _, _ = await _waiting(jobs, 1, nodes)
    rate, milliseconds, most, seconds = await _waiting(jobs, kinds, nodes)
    many = nodes > 1_000
    case = f"{jobs:,} jobs of {kinds:,} kinds wait, none fits, {nodes:,} nodes: "
    one = "as many jobs of one kind"
    notes = {"s from the start until all nodes are known": seconds}
    return [
        ReportRow(case + "admitted", "jobs/s", f">= {500 if many else 1_000}", (rate,), one, (floor_rate,), notes),
        ReportRow(
            case + "submit to allocated of a job of another queue, p50",
            "ms",
            f"<= {100 if many else 50}",
            (percentile(milliseconds, 50),),
            one,
            (percentile(floor_ms, 50),),
            {"p90, ms": percentile(milliseconds, 90), "samples": SAMPLES, "MiB, most": ranked(most)},
        ),
    ]


async def _waiting(jobs: int, kinds: int, nodes: int) -> tuple[float, list[float], dict[str, float], float]:
    """
    Jobs admitted per second, milliseconds of each small job until it was allocated, MiB of each service, and seconds
    from the platform's start until it knew all nodes.
    """
    clock = SystemClock()
    began = clock.monotonic()
    async with start_platform(nodes, False, queues=(QUEUE, OTHER)) as on:
        seconds = clock.monotonic() - began
        events = await EventCounter.open(on.bus, on.shard, clock)
        filled = await _fill(on, events, nodes - EMPTY_NODES)
        began = clock.monotonic()
        for first in range(0, jobs, AT_ONCE):
            numbers = range(first, min(first + AT_ONCE, jobs))
            await send(on.bus, on.shard, [_command(f"w{number}", waiting_spec(number % kinds)) for number in numbers])
            await events.until(ADMITTED, filled + numbers.stop)
        rate = jobs / (clock.monotonic() - began)
        return rate, await _small_jobs(on, events, clock), peak(on), seconds


async def _fill(on: BenchPlatform, events: EventCounter, nodes: int) -> int:
    """Take five GPUs of each of so many nodes; returns the number of jobs that hold them."""
    sizes = [min(PODS_AT_ONCE, nodes - first) for first in range(0, nodes, PODS_AT_ONCE)]
    for number, size in enumerate(sizes):
        await send(on.bus, on.shard, submits(job(RUN_SECONDS, gpus=5, replicas=size), [f"fill-{number}"]))
        await events.until(ALLOCATED, number + 1)
    return len(sizes)


async def _small_jobs(on: BenchPlatform, events: EventCounter, clock: Clock) -> list[float]:
    took = []
    spec = job(0.0).model_copy(update={"queue": OTHER})
    for number in range(SAMPLES):
        seen, ended = events.count.get(ALLOCATED, 0), events.count.get(RELEASED, 0)
        began = clock.monotonic()
        await send(on.bus, on.shard, submits(spec, [f"small-{number}"]))
        took.append((await events.until(ALLOCATED, seen + 1) - began) * 1000)
        await events.until(RELEASED, ended + 1)
    return took


def waiting_spec(kind: int) -> JobSpec:
    """Five pods with all GPUs of a node each; kinds differ in CPU."""
    asked = Resources(cpu_milli=1000 + kind, memory_bytes=GIB, gpus=8)
    role = Role(name="worker", replicas=EMPTY_NODES + 1, resources=asked, template=Template(image="train:1"))
    return JobSpec(name="load", queue=QUEUE, roles=(role,))


def _command(key: str, spec: JobSpec) -> bytes:
    return SubmitJob(kind="submit_job", v=1, key=key, spec=spec).to_bytes()
