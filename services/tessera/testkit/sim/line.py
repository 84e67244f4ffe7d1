"""
`python -m tessera.testkit.sim.line`: small worlds drawn by seeds, run by all services without faults, and judged.

A world has one to four nodes of eight GPUs, one or two models, and the configuration that `config init` writes: one
queue whose quota is the pool's GPUs. Its jobs come faster than they can run: singles, whole nodes and gangs of three
classes, with time limits a little above what they take. `testkit/line_judge` judges what a subscriber saw.
"""

import argparse
import asyncio
import logging
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from random import Random
from typing import Any

import structlog
from rich.console import Console
from rich.table import Table

from tessera.kernel.memory.bus import MemoryBus
from tessera.kernel.ports import Outgoing
from tessera.testkit.line_judge import (
    AskedJob,
    LineFigures,
    LineVerdict,
    Schedule,
    WholeGpus,
    judge,
    read_schedule,
    sum_up,
)
from tessera.testkit.sim.coverage import SIMULATED, Coverage
from tessera.testkit.sim.faults import Rates
from tessera.testkit.sim.loop import VirtualLoop
from tessera.testkit.sim.services import SHARD, SimulatedServices
from tessera_local.cluster.in_memory import drive
from tessera_local.cluster.machines.nodes import NodeRow, node_object
from tessera_schemas.base import job_id
from tessera_schemas.cluster.labels import SIMULATE_PREFIX
from tessera_schemas.commands import ApplyConfig, SubmitJob
from tessera_schemas.config import ConfigBody, Policy, Queue, Quota, Tenant
from tessera_schemas.job import JobSpec, Resources, Role, Template
from tessera_schemas.shard.recommended import POLICY
from tessera_schemas.subjects import control, submit

SEVEN = tuple(range(1, 8))
"""The seeds whose figures stand in the docs."""
GPUS = 8
JOBS = 30
MIB = 2**20
TENANT, QUEUE = "lab", "default"
CLASSES = {"low": -100, "normal": 0, "high": 100}
MIN_RUNTIME_SECONDS = 20
SETTINGS: dict[str, dict[str, Any]] = {
    "scheduler": {"checkpoint_every": 1000},
    "projection": {"snapshot_seconds": 600.0},
    "binder": {"resync_seconds": 60.0},
}
QUIET_SECONDS = 3600.0
RECOMMENDED = {found.field: found.value for found in POLICY}


def draw_world(seed: int, one_class: bool = False) -> tuple[tuple[WholeGpus, ...], dict[str, tuple[AskedJob, float]]]:
    """Nodes, and by key each job with the seconds that its programs run; `at_ms` is when it is submitted."""
    random = Random(seed)
    models = random.choice((("H100",), ("H100",), ("H100", "A100")))
    nodes = tuple(WholeGpus(f"node-{at}", GPUS, models[at % len(models)]) for at in range(random.randint(1, 4)))
    of = {model: sum(node.gpus for node in nodes if node.model == model) for model in {node.model for node in nodes}}
    jobs, at_ms = dict[str, tuple[AskedJob, float]](), 0
    for number in range(JOBS):
        model = random.choice(sorted(of))
        pods, gpus = random.choice(((1, 1), (1, 1), (1, 2), (1, 4), (1, 8), (2, 2), (2, 4), (2, 7), (2, 8), (4, 4)))
        while pods * gpus > of[model]:
            pods, gpus = max(1, pods // 2), gpus
        seconds = round(random.choice((random.uniform(4, 15), random.uniform(15, 90))), 1)
        value = random.choices(sorted(CLASSES.values()), weights=(2, 6, 1))[0] * (not one_class)
        # Offered a little more than the nodes can do, so that there is a line.
        at_ms += int(random.expovariate(1.0) * pods * gpus * seconds * 1000 / (1.2 * GPUS * len(nodes)))
        limit_ms = int(seconds * random.uniform(1.0, 1.3) + 3) * 1000
        one = frozenset({model}) if pods > 1 or random.random() < 0.8 else frozenset[str]()
        key = f"job-{number:02}"
        jobs[key] = AskedJob(key, at_ms, pods, gpus, limit_ms, value, one), seconds
    return nodes, jobs


def config_of(nodes: Iterable[WholeGpus], evicts: bool = True) -> ConfigBody:
    """As `config init` writes it: the pool's GPUs as quota, the recommended policy, or a preset that evicts nobody."""
    quota = Quota(resource="gpu_milli", nominal=sum(node.gpus for node in nodes) * 1000)
    own: dict[str, Any] = {"min_runtime_seconds": MIN_RUNTIME_SECONDS, **({} if evicts else {"preset": "off"})}
    policy = Policy.model_validate({**RECOMMENDED, **own})
    return ConfigBody(tenants=(Tenant(name=TENANT),), queues=(Queue(name=QUEUE, quotas=(quota,)),), policy=policy)


def spec_of(job: AskedJob, seconds: float) -> JobSpec:
    """The job as its user sends it; its name tells nothing of how long it runs."""
    classes = {value: name for name, value in CLASSES.items()}
    resources = Resources(cpu_milli=1000 * job.gpus, memory_bytes=MIB * job.gpus, gpus=job.gpus)
    role = Role(
        name="worker",
        replicas=job.pods,
        resources=resources,
        gpu_models=tuple(sorted(job.models)),
        template=Template(image="line:1", annotations={f"{SIMULATE_PREFIX}seconds": str(seconds)}),
    )
    return JobSpec(
        name=job.name,
        queue=QUEUE,
        priority_class=classes[job.value],
        roles=(role,),
        time_limit_seconds=job.limit_ms // 1000,
        termination_grace_seconds=1,
    )


def run_world(seed: int, one_class: bool = False, evicts: bool = True) -> Schedule:
    """The schedule that the services make of the seed's jobs, read from their public events."""
    loop = VirtualLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(_run(seed, one_class, evicts, loop))


def judge_world(seed: int, one_class: bool = False, evicts: bool = True) -> LineVerdict:
    """The verdict on the seed's world."""
    return judge(run_world(seed, one_class, evicts))


async def _run(seed: int, one_class: bool, evicts: bool, loop: VirtualLoop) -> Schedule:
    nodes, jobs = draw_world(seed, one_class)
    rates = Rates(Random(seed))
    rates.stop()
    services = SimulatedServices(loop, Random(seed), rates, Coverage(), settings=SETTINGS, lease_seconds=3600.0)
    client = MemoryBus(services.broker, "client")
    for node in nodes:
        row = NodeRow.sized(node.name, 1000 * node.gpus, node.gpus, node.gpus, node.model)
        services.cluster.create("nodes", "", node_object(row, row.name))
    driving = loop.create_task(drive(services.cluster, services.clock))
    for slot in SIMULATED:
        services.start(slot)
    try:
        command = ApplyConfig(kind="apply_config", v=1, expected_version=0, body=config_of(nodes, evicts))
        await client.publish(Outgoing(control(SHARD), command.to_bytes()))
        await services.clock.sleep(10.0)  # all nodes are known
        begin, begin_ms = loop.time(), services.clock.now_ms()
        for key, (job, seconds) in jobs.items():
            await services.clock.sleep(max(0.0, begin + job.at_ms / 1000 - loop.time()))
            sent = SubmitJob(kind="submit_job", v=1, key=key, spec=spec_of(job, seconds))
            await client.publish(Outgoing(submit(SHARD, TENANT), sent.to_bytes()))
        asked = {job_id(SHARD, TENANT, key): job for key, (job, _) in jobs.items()}
        events = services.broker.stream(f"EVENTS_{SHARD}").messages
        deadline = loop.time() + QUIET_SECONDS
        while loop.time() < deadline and _ended(message.subject for message in events.values()) < len(asked):
            await services.clock.sleep(5.0)
        await services.clock.sleep(5.0)
        stored = [message.data for message in events.values()]
    finally:
        driving.cancel()
        await services.close()
    if services.violations:
        raise AssertionError("; ".join(services.violations))
    return read_schedule(nodes, asked, stored, begin_ms, MIN_RUNTIME_SECONDS * 1000)


def _ended(subjects: Iterable[str]) -> int:
    return sum(subject.endswith((".job.succeeded.v1", ".job.failed.v1")) for subject in subjects)


def main() -> int:
    """Runs and judges the seeds asked for; prints a table, and with `--tell` what was found."""
    parser = argparse.ArgumentParser(prog="python -m tessera.testkit.sim.line", description=__doc__)
    parser.add_argument("--seeds", type=int, default=len(SEVEN), help="how many seeds (default 7)")
    parser.add_argument("--first", type=int, default=SEVEN[0], help="the first seed (default 1)")
    parser.add_argument("--workers", type=int, default=1, help="processes (default 1)")
    parser.add_argument("--one-class", action="store_true", help="all jobs are of one priority class: no evictions")
    parser.add_argument("--no-evictions", action="store_true", help="three classes under `preset: off`")
    parser.add_argument("--tell", action="store_true", help="say each delay, idle job and eviction that was found")
    asked = parser.parse_args()
    seeds = range(asked.first, asked.first + asked.seeds)
    with ProcessPoolExecutor(asked.workers, initializer=_keep_quiet) as pool:
        verdicts = list(pool.map(partial(judge_world, one_class=asked.one_class, evicts=not asked.no_evictions), seeds))
    console = Console() if sys.stdout.isatty() else Console(width=140)
    console.print(_table(seeds, verdicts))
    if asked.tell:
        for seed, verdict in zip(seeds, verdicts, strict=True):
            for said in (*verdict.delays, *verdict.idle, *verdict.dearer, *verdict.unfinished):
                console.print(f"{seed}: {said}", markup=False, highlight=False)
    return 0


def _keep_quiet() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def _table(seeds: Sequence[int], verdicts: Sequence[LineVerdict]) -> Table:
    heads = ("seed", "jobs", "mean wait", "gangs", "gangs' mean", "gangs' p99", "idle GPU-s", "delaying starts")
    made = Table(title="beside EASY backfill with true ends")
    for head in (*heads, "evictions", "dearer"):
        made.add_column(head, justify="right")
    for seed, verdict in zip(seeds, verdicts, strict=True):
        made.add_row(str(seed), *_cells(sum_up([verdict])))
    made.add_section()
    made.add_row("all", *_cells(sum_up(verdicts)))
    return made


def _cells(of: LineFigures) -> list[str]:
    ratios = f"{of.mean_wait:.2f}", str(of.gangs), f"{of.gangs_mean:.2f}", f"{of.gangs_p99:.2f}"
    found = of.idle_gpu_seconds, of.delaying_starts, of.evictions, of.dearer_evictions
    return [str(of.jobs), *ratios, *map(str, found)]


if __name__ == "__main__":
    sys.exit(main())
