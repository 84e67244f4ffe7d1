"""A shard in which very many jobs wait: seconds of commands, and a cold start of all services with its memory."""

import asyncio
import resource
import sys
from pathlib import Path

from tessera.client.connect.connecting import open_bus, open_store
from tessera.kernel.clock import SystemClock
from tessera_lab.bench.report import ReportRow
from tessera_lab.bench.together.load import ADMITTED, EventCounter, send
from tessera_lab.bench.together.platform import TENANT, BenchPlatform, job, start_platform, submits
from tessera_lab.bench.together.sizing import MIB, ranked, resident
from tessera_schemas import subjects
from tessera_schemas.base import job_id

RUN_SECONDS = 36_000.0  # nothing ends meanwhile
AT_ONCE = 2_000
SETTLE_SECONDS, SETTLED_SECONDS = 2.0, 300.0
PEAK = "VmHWM"


async def many_jobs(jobs: int, rounds: int, nodes: int) -> list[ReportRow]:
    """Submit `jobs` of which few can start; then read them by command, and start all services anew."""
    clock = SystemClock()
    async with start_platform(nodes, False) as on:
        events = await EventCounter.open(on.bus, on.shard, clock)
        keys = [f"m{number}" for number in range(jobs)]
        for first in range(0, jobs, AT_ONCE):
            await send(on.bus, on.shard, submits(job(RUN_SECONDS), keys[first : first + AT_ONCE]))
            await events.until(ADMITTED, min(first + AT_ONCE, jobs))
        await _settled(on)
        stored, held = await _stored_bytes(on), resident(on)
        named = job_id(on.shard, TENANT, keys[jobs // 2])
        looks = {
            "ls": ("ls",),
            "ls of a queue and phase": ("ls", "-q", "load", "-p", "queued"),
            "top": ("top", "--once"),
            "get": ("get", named),
            "explain": ("explain", named),
        }
        floors = [await _seconds(on, "--version") for _ in range(rounds)]
        rows = []
        for name, words in looks.items():
            took = [await _seconds(on, *words) for _ in range(rounds)]
            rows.append(
                ReportRow(
                    f"`tessera {name}` while {jobs:,} jobs wait",
                    "s",
                    "<= 1 s",
                    tuple(wall for wall, _ in took),
                    "`tessera --version`",
                    tuple(wall for wall, _ in floors),
                    {"CPU s": min(cpu for _, cpu in took)},
                )
            )
        began = clock.monotonic()
        before = on.cpu_seconds()
        await asyncio.gather(*(on.platform.stop(name) for name in on.platform.parts))
        stopped, began = clock.monotonic() - began, clock.monotonic()
        await asyncio.gather(*(on.platform.start(name) for name in on.platform.parts))
        seconds = clock.monotonic() - began
        spent = on.cpu_seconds()
        notes = {
            "orderly stop, s": stopped,
            "CPU s of each": ranked({name: spent[name] for name in on.platform.parts}),
            "of NATS": spent["nats"] - before["nats"],
            "seconds of each": ranked({name: on.platform.timings.get(name, 0.0) for name in on.platform.parts}),
            "MiB, most": ranked(peak(on)),
            "MiB before the stop": ranked(held),
            "stored MiB": stored,
        }
        rows.append(
            ReportRow(
                f"cold start of all services with {jobs:,} jobs, until all are ready",
                "s",
                "<= 10 s",
                (seconds,),
                "`tessera --version`",
                (floors[0][0],),
                notes,
            )
        )
    return rows


def peak(on: BenchPlatform) -> dict[str, float]:
    """MiB that each service has had at most."""
    pids = {name: on.platform.pid(name) for name in on.platform.parts}
    return {name: _most_bytes(pid) / MIB for name, pid in pids.items() if pid is not None}


async def _settled(on: BenchPlatform) -> None:
    """Returns once the ledger stands still and the views are up to it. Raises TimeoutError after five minutes."""
    clock, before = SystemClock(), -1
    async with (
        asyncio.timeout(SETTLED_SECONDS),
        open_bus(on.place, on.place.identity(subjects.OPERATOR)) as bus,
        open_store(on.place, on.place.identity(subjects.OPERATOR)) as store,
    ):
        while True:
            tail = await bus.last(subjects.stream("LEDGER", on.shard), ">")
            now = 0 if tail is None else tail.seq
            if now == before and await store.cursor() >= now:
                return
            before = now
            await clock.sleep(SETTLE_SECONDS)


async def _stored_bytes(on: BenchPlatform) -> dict[str, float]:
    found = {}
    async with open_bus(on.place, on.place.identity(subjects.OPERATOR)) as bus:
        for kind in ("LEDGER", "FACTS", "EVENTS", "SNAP", "ORDERS"):
            usage = await bus.usage(subjects.stream(kind, on.shard))
            found[kind] = usage.bytes / MIB
    return found


async def _seconds(on: BenchPlatform, *words: str) -> tuple[float, float]:
    """Runs one command to its end. Raises RuntimeError when it fails."""
    clock = SystemClock()
    began, before = clock.monotonic(), _children_seconds()
    command = [sys.executable, "-m", "tessera", *words]
    if words != ("--version",):
        command += ["--home", str(on.platform.directory)]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    _, said = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"tessera {' '.join(words)}: {said.decode()}")
    return clock.monotonic() - began, _children_seconds() - before


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _most_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(PEAK))
