"""
Memory of every service after jobs that have ended: what live jobs need, and nothing of those that are forgotten.

A simulated shard without faults runs jobs of one kind, and its containers are counted whenever the time to remember
keys has passed. Whatever grew with the number of ended jobs is a leak, unless it stands for a server's disk or has a
bound that is larger than this test.
"""

import asyncio
import gc
from collections import deque
from random import Random
from typing import Any

from sortedcontainers import SortedList

from tessera.testkit.sim.loop import VirtualLoop
from tessera.testkit.sim.services import SETTINGS, SHARD
from tessera.testkit.sim.workload import SETTLED, TENANTS, apply_config, job_spec, submit_job
from tessera.testkit.sim.world import SLOTS, World
from tessera_schemas.job import JobSpec, Retry

JOBS = 40
REMEMBERED_SECONDS = 20
CONTAINERS = (dict, list, set, deque, SortedList)
SERVERS = ("Stream", "WatchLog", "Shelf", "World")
"""NATS' streams, the API server's history and events, and what the run itself writes down."""
BOUNDED = ("KnownJobs", "Templates", "PriceAware", "NodeTable", "RoomTable", "SearchLooks", "Period", "PastArrivals")
"""
Bounds of their own, beyond which they forget: the latest jobs, pods on nodes of one state, changes of nodes, the
names of a period of the account, and the newest submits that quotes are drawn from.
"""


def spec(key: int) -> JobSpec:
    """The same kind of job each time: what is learnt of kinds has bounds of its own."""
    found = job_spec(Random(1), gpus=1)
    role = found.roles[0].model_copy(update={"max_replicas": None})
    return found.model_copy(update={"name": "train", "roles": (role,), "retry": Retry(), "time_limit_seconds": None})


async def run_jobs(world: World, first: int) -> None:
    """So many jobs until nothing remembers them: the ledger's time passes with those that come last."""
    for key in range(first, first + JOBS):
        await world.send(submit_job(SHARD, 0.0, TENANTS[key % 2], f"key-{key}", spec(key)))
    assert await world.drain()
    for key in range(2):
        await world.services.clock.sleep(2.0 * REMEMBERED_SECONDS)
        await world.send(submit_job(SHARD, 0.0, TENANTS[0], f"tick-{first}-{key}", spec(key)))
        assert await world.drain()
    assert len(world.state().ended) <= 2


def containers() -> dict[int, Any]:
    gc.collect()
    return {id(one): one for one in gc.get_objects() if isinstance(one, CONTAINERS)}


def owners(one: Any, depth: int = 3) -> set[str]:
    """Names of the classes that hold a container, directly or in other containers."""
    found, todo = set[str](), [one]
    for _ in range(depth):
        nexts = [ref for each in todo for ref in gc.get_referrers(each)]
        found |= {type(ref).__name__ for ref in nexts}
        todo = [ref for ref in nexts if isinstance(ref, dict) and len(ref) < 10_000][:20]
    return found


def is_held(one: Any, *ours: Any) -> bool:
    """Whether anything but `ours` still holds the container: one that was replaced since is no leak."""
    return any(all(ref is not own for own in ours) for ref in gc.get_referrers(one))


async def grown(loop: VirtualLoop) -> list[str]:
    """Containers that got larger with the number of jobs that have ended and are forgotten."""
    world = World(1, loop)
    world.rates.stop()
    world.make_nodes()
    begun = [loop.create_task(going) for going in world.around()]
    for slot in SLOTS:
        world.services.start(slot)
    policy = SETTLED.policy.model_copy(update={"key_memory_seconds": REMEMBERED_SECONDS})
    await world.send(apply_config(SHARD, SETTLED.model_copy(update={"policy": policy}), 0))
    for batch in range(2):  # what is filled once, such as caches by kind, is full then
        await run_jobs(world, batch * JOBS)
    kept = tuple(containers().values())  # so that no later container gets the identity of one that is gone
    sizes = [len(one) for one in kept]
    await run_jobs(world, 2 * JOBS)
    larger = [one for one, size in zip(kept, sizes, strict=True) if len(one) - size >= JOBS // 2]
    found = [one for one in larger if is_held(one, kept, larger) and not owners(one) & {*SERVERS, *BOUNDED}]
    leaks = [f"{len(one)}: {owners(one)}, {next(iter(one))!r}" for one in found]
    for task in begun:
        task.cancel()
    await world.services.close()
    return leaks


def test_no_container_of_any_service_grows_with_jobs_that_have_ended(monkeypatch):
    monkeypatch.setitem(SETTINGS, "projection", {**SETTINGS["projection"], "ended_jobs_seconds": REMEMBERED_SECONDS})
    loop = VirtualLoop()
    try:
        asyncio.set_event_loop(loop)
        assert loop.run_until_complete(grown(loop)) == []
    finally:
        asyncio.set_event_loop(None)
        loop.close()
