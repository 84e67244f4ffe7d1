"""A configured platform to load, the tenant that loads it, and what its processes spend."""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tessera.client.cluster.applying import ConfigChange, put_in_force
from tessera.client.connect.connecting import open_bus, open_store, views_of
from tessera.client.connect.locating import find
from tessera.client.connect.where import Where
from tessera.kernel.clock import SystemClock
from tessera.kernel.nats.bus import NatsBus
from tessera_local.platform import CLUSTER, NATS, REDIS, Platform, default_nodes
from tessera_schemas import subjects
from tessera_schemas.commands import SubmitJob
from tessera_schemas.config import Config, ConfigBody, Limits, Queue, Tenant
from tessera_schemas.job import JobSpec, Resources, Role, Template
from tessera_schemas.shard.services import SEPARATE

TENANT, QUEUE = "load", "load"
GPUS_PER_NODE = 8
TTL_SECONDS = 1
GIB = 2**30
APPLY_SECONDS = 30.0
NODES_SECONDS, POLL_SECONDS = 300.0, 0.2
UNLIMITED = Limits(jobs=None, submits_per_second=None, bytes_per_second=None)
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class BenchPlatform:
    """A shard of a platform that takes the tenant's jobs, and the tenant's own connection to it."""

    platform: Platform
    bus: NatsBus
    place: Where

    @property
    def shard(self) -> str:
        return self.place.shard

    def cpu_seconds(self) -> dict[str, float]:
        """CPU time so far of every process of the platform, and of this one, which makes the load."""
        names = (NATS, REDIS, CLUSTER, *self.platform.parts)
        pids = {name: self.platform.pid(name) for name in names} | {"load client": os.getpid()}
        return {name: cpu_seconds_of(pid) for name, pid in pids.items() if pid is not None}

    async def stored(self) -> dict[str, int]:
        """Number of messages of its own making that the platform has stored so far, by stream."""
        kinds = {"facts": "FACTS", "ledger messages": "LEDGER", "orders": "ORDERS", "events": "EVENTS"}
        found = {}
        async with open_bus(self.place, self.place.identity(subjects.OPERATOR)) as bus:
            for name, kind in kinds.items():
                newest = await bus.last(subjects.stream(kind, self.shard), ">")
                found[name] = 0 if newest is None else newest.seq
        return found


@asynccontextmanager
async def start_platform(
    nodes: int,
    sync: bool,
    tenants: Sequence[str] = (TENANT,),
    queues: Sequence[str] = (QUEUE,),
    limits: Limits = UNLIMITED,
    layout: str = SEPARATE,
) -> AsyncIterator[BenchPlatform]:
    """A fresh platform with that many nodes of eight GPUs, configured for tenants with these limits, and queues."""
    async with start_shards(nodes, sync, [subjects.MAIN_SHARD], tenants, queues, limits, layout) as (one,):
        yield one


@asynccontextmanager
async def start_shards(
    nodes: int,
    sync: bool,
    shards: Sequence[str],
    tenants: Sequence[str] = (TENANT,),
    queues: Sequence[str] = (QUEUE,),
    limits: Limits = UNLIMITED,
    layout: str = SEPARATE,
) -> AsyncIterator[list[BenchPlatform]]:
    """The same with several shards, each with that many nodes."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="tessera-bench-")))
        described = folder / "nodes.yaml"
        described.write_text(default_nodes(shards, nodes))
        platform = Platform(folder / "up", nodes=described, tenants=tenants, shards=shards, sync=sync, layout=layout)
        await stack.enter_async_context(platform)
        found = []
        for shard in shards:
            place = find(platform.directory, {}, shard)
            await _configure(place, tenants, queues, limits)
            await _nodes_known(place, nodes)
            bus = await stack.enter_async_context(open_bus(place, place.tenant(tenants[0])))
            found.append(BenchPlatform(platform, bus, place))
        yield found


async def _configure(place: Where, tenants: Sequence[str], queues: Sequence[str], limits: Limits) -> None:
    operator = place.identity(subjects.OPERATOR)
    named = tuple(Tenant(name=name, limits=limits) for name in tenants)
    body = ConfigBody(tenants=named, queues=tuple(Queue(name=name) for name in queues))
    views = views_of(place, subjects.OPERATOR)
    await put_in_force(place, operator, views, ConfigChange(Config(), body), APPLY_SECONDS)


async def _nodes_known(place: Where, nodes: int) -> None:
    """
    Return once the views hold all nodes.

    A job that more nodes are needed for than are known is refused for good. Raises TimeoutError.
    """
    clock = SystemClock()
    async with asyncio.timeout(NODES_SECONDS), open_store(place, place.identity(subjects.OPERATOR)) as store:
        while len((await store.rows_as_of("nodes"))[1][0]) < nodes:
            await clock.sleep(POLL_SECONDS)


def job(seconds: float, gpus: int = 1, replicas: int = 1) -> JobSpec:
    """A job whose pods pretend to work for so long."""
    asked = Resources(cpu_milli=1000, memory_bytes=GIB, gpus=gpus)
    template = Template(image="train:1", annotations={"tessera.io/simulate-seconds": str(seconds)})
    role = Role(name="worker", replicas=replicas, resources=asked, template=template)
    return JobSpec(name="load", queue=QUEUE, roles=(role,), ttl_seconds_after_finished=TTL_SECONDS)


def submits(spec: JobSpec, keys: Sequence[str]) -> list[bytes]:
    """The commands, ready to be sent."""
    return [SubmitJob(kind="submit_job", v=1, key=key, spec=spec).to_bytes() for key in keys]


def cpu_seconds_of(pid: int) -> float:
    """User and system time of a process, in steps of the kernel's tick (usually 10 ms)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND
