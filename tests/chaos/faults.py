"""Each fault does its harm and mends it, or leaves to Tessera what Tessera must mend; it says what it did."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from random import Random

from redis.asyncio import Redis
from redis.exceptions import RedisError

from tessera.kernel.ports import ApiError
from tessera_local.platform import NATS, REDIS
from tessera_schemas.shard.services import SERVICES
from tests.chaos.accidents import Accidents
from tests.chaos.world import World, connected
from tests.e2e.live import TENANTS, eventually
from tests.full_disk import fill

Fault = Callable[[], Awaitable[str]]
LEASE_SECONDS = 2.0
LONGEST_DEADLINE_SECONDS = 15.0
"""To start, as `campaign_config` has it; a node is called lost after 3 s."""
HOUR_MS = 3_600_000
VERBS = ("list", "watch", "get", "create", "bind", "delete", "patch", "evict")
STATUSES = (409, 410, 429, 500, 503)


class Faults:
    """Faults of one platform."""

    def __init__(self, world: World, chance: Random, redis: Redis, disk: Path | None) -> None:
        """`disk` is the small file system that NATS stores on; None where none could be made."""
        self._world, self._chance, self._redis, self._disk = world, chance, redis, disk
        self._live, self._platform, self._api = world.live, world.live.platform, world.api
        self._ballast = disk / "ballast" if disk else None
        self._accidents = Accidents(world.api, chance)
        self.accidents: tuple[Fault, ...] = self._accidents.kinds
        self.services: tuple[Fault, ...] = (
            self.kill_a_service,
            self.pause_a_service,
            self.miss_a_service,
            self.kill_all_services,
        )
        self.servers: tuple[Fault, ...] = (
            self.kill_nats,
            self.pause_nats,
            self.kill_redis,
            self.wipe_redis,
            self.tear_redis,
            self.lose_power,
            *([self.fill_the_disk] if disk else []),
        )
        self.cluster: tuple[Fault, ...] = (
            self.refuse_calls,
            self.refuse_calls,
            self.lose_answers,
            self.lose_answers,
            self.close_watches,
            self.forget_history,
            self.repeat_events,
            self.drop_events,
            self.lose_a_node,
            self.power_a_node_off,
            self.remove_a_node,
            self.shrink_a_node,
            self.delete_a_pod,
        )
        self.clocks: tuple[Fault, ...] = (self.jump_a_clock, self.jump_a_clock, self.jump_all_clocks)
        self.stale: tuple[Fault, ...] = (self.wake_a_stale_committer, self.wake_a_stale_binder)

    # -- services

    def _service(self) -> str:
        return self._chance.choice(SERVICES)

    async def kill_a_service(self) -> str:
        name = self._service()
        self._platform.kill(name)
        return f"kill -9 {name}"

    async def pause_a_service(self) -> str:
        name, seconds = self._service(), self._chance.uniform(LEASE_SECONDS + 0.5, 2.5 * LEASE_SECONDS)
        self._platform.pause(name)
        await asyncio.sleep(seconds)
        self._platform.resume(name)
        return f"SIGSTOP {name} for {seconds:.1f} s"

    async def miss_a_service(self) -> str:
        """One service is absent for longer than any deadline of a run; its deadlines may end nothing by that."""
        name, seconds = self._service(), self._chance.uniform(1.05, 1.3) * LONGEST_DEADLINE_SECONDS
        self._platform.pause(name)
        await asyncio.sleep(seconds)
        self._platform.resume(name)
        return f"{name} absent for {seconds:.1f} s"

    async def kill_all_services(self) -> str:
        for name in SERVICES:
            self._platform.kill(name)
        return "kill -9 all services at once"

    # -- servers

    async def kill_nats(self) -> str:
        self._platform.kill(NATS)
        return "kill -9 nats-server"

    async def pause_nats(self) -> str:
        seconds = self._chance.uniform(1.0, 6.0)
        self._platform.pause(NATS)
        await asyncio.sleep(seconds)
        self._platform.resume(NATS)
        return f"SIGSTOP nats-server for {seconds:.1f} s"

    async def kill_redis(self) -> str:
        self._platform.kill(REDIS)
        return "kill -9 redis-server"

    async def wipe_redis(self) -> str:
        with suppress(RedisError, OSError):
            await self._redis.flushall()
        return "FLUSHALL"

    async def tear_redis(self) -> str:
        """The end of the append-only file is lost, in the middle of a command."""
        await self._platform.stop(REDIS, signal.SIGKILL)
        files = (self._platform.directory / "redis").rglob("*.aof")  # one file until Redis 7
        torn = max((file for file in files if ".base." not in file.name), key=lambda file: file.stat().st_mtime)
        size = torn.stat().st_size
        lost = self._chance.randrange(min(size, 65_536) + 1)
        os.truncate(torn, size - lost)
        await self._platform.start(REDIS)
        return f"Redis's append-only file torn, {lost} bytes lost"

    async def lose_power(self) -> str:
        """Every process at once, the servers too; the cluster is another machine."""
        for name in (NATS, REDIS, *SERVICES):
            self._platform.kill(name)
        return "power loss: kill -9 every service and server"

    async def fill_the_disk(self) -> str:
        assert self._ballast is not None
        await asyncio.to_thread(fill, self._ballast)
        seconds = self._chance.uniform(2.0, 5.0)
        await asyncio.sleep(seconds)
        self._ballast.unlink()
        await self._platform.restart(NATS)
        return f"NATS's disk full for {seconds:.1f} s, then room, and NATS restarted"

    # -- the cluster

    async def refuse_calls(self) -> str:
        verb, status = self._chance.choice(VERBS), self._chance.choice(STATUSES)
        count = self._chance.randrange(1, 8)
        await self._api.order("answer", verb=verb, status=status, count=count)
        return f"{count} {verb} answered {status}"

    async def lose_answers(self) -> str:
        verb, count, after = self._chance.choice(VERBS), self._chance.randrange(1, 5), self._chance.random() < 0.7
        await self._api.order("lose_answers", verb=verb, count=count, after_effect=after)
        return f"{count} {verb} lost {'after' if after else 'before'} their effect"

    async def close_watches(self) -> str:
        await self._api.order("close_watches")
        return "watches closed"

    async def forget_history(self) -> str:
        await self._api.order("expire_history")
        await self._api.order("close_watches")
        return "watches closed, history gone (410)"

    async def repeat_events(self) -> str:
        count = self._chance.randrange(1, 20)
        await self._api.order("repeat_events", count=count)
        return f"{count} events repeated on each watch"

    async def drop_events(self) -> str:
        count = self._chance.randrange(1, 20)
        await self._api.order("drop_events", count=count)
        return f"{count} events dropped on each watch, then 410"

    async def lose_a_node(self) -> str:
        node, seconds = await self._node(), self._chance.uniform(1.0, 6.0)
        await self._set("node_reachable", node, reachable=False)
        await asyncio.sleep(seconds)
        await self._set("node_reachable", node, reachable=True)
        return f"node {node} unreachable for {seconds:.1f} s"

    async def power_a_node_off(self) -> str:
        node, seconds = await self._node(), self._chance.uniform(1.0, 4.0)
        await self._set("node_reachable", node, reachable=False)
        await self._set("node_out_of_service", node, out=True)
        await asyncio.sleep(seconds)
        await self._set("node_out_of_service", node, out=False)
        await self._set("node_reachable", node, reachable=True)
        return f"node {node} powered off, said so, back after {seconds:.1f} s"

    async def remove_a_node(self) -> str:
        node, seconds = await self._node(), self._chance.uniform(0.5, 4.0)
        found = next(one for one in await self._api.items("nodes") if one["metadata"]["name"] == node)
        meta = {key: found["metadata"].get(key) or {} for key in ("labels", "annotations")}
        fresh = {**found, "metadata": {"name": node, **meta}}
        await self._set("node_gone", node)
        await asyncio.sleep(seconds)
        await self._again(lambda: self._api.call("POST", "/api/v1/nodes", fresh))
        return f"node {node} removed, another of its name after {seconds:.1f} s"

    async def shrink_a_node(self) -> str:
        node, left = await self._node(), self._chance.randrange(8)
        await self._set("node_gpus", node, gpus=left)
        await asyncio.sleep(self._chance.uniform(0.5, 3.0))
        await self._set("node_gpus", node, gpus=8)
        return f"node {node} had {left} GPUs of 8 for a while"

    async def delete_a_pod(self) -> str:
        pods = [pod for pod in await self._api.items("pods") if pod["metadata"]["namespace"] in TENANTS]
        if not pods:
            return "no pod to delete"
        meta, vanish = self._chance.choice(pods)["metadata"], self._chance.random() < 0.3
        with suppress(ApiError):
            await self._api.order("delete_pod", namespace=meta["namespace"], name=meta["name"], vanish=vanish)
        return f"pod {meta['name']} {'forced off' if vanish else 'deleted'} by somebody else"

    async def _node(self) -> str:
        return self._chance.choice(await self._world.node_names())

    async def _set(self, fault: str, node: str, **fields: object) -> None:
        await self._again(lambda: self._api.order(fault, node=node, **fields))

    async def _again(self, call: Callable[[], Awaitable[object]]) -> None:
        """Ordered errors hit us, too."""
        for _ in range(20):
            with suppress(ApiError):
                await call()
                return

    # -- time

    async def jump_a_clock(self) -> str:
        name, jump = self._service(), self._chance.choice((-HOUR_MS, HOUR_MS))
        self._world.skew(name, jump)
        await asyncio.sleep(self._chance.uniform(1.0, 4.0))
        if self._chance.random() < 0.7:
            self._world.skew(name, 0)
            return f"clock of {name} {jump / HOUR_MS:+.0f} h and back"
        return f"clock of {name} {jump / HOUR_MS:+.0f} h"

    async def jump_all_clocks(self) -> str:
        jump = self._chance.choice((-HOUR_MS, HOUR_MS, 0))
        for name in SERVICES:
            self._world.skew(name, jump)
        return f"all clocks {jump / HOUR_MS:+.0f} h"

    # -- the stale

    async def wake_a_stale_committer(self) -> str:
        """Another one leads when the first wakes up in the middle of what it was doing."""
        async with self._live.another("scheduler") as standby:
            await standby.until_ready()
            await self._live.until_ready("scheduler")
            epoch = self._live.state.epoch
            self._platform.pause("scheduler")
            try:
                await self._live.until(lambda state: state.epoch > epoch, "the standby leads")
                await asyncio.sleep(self._chance.uniform(0.2, 3.0))
            finally:
                self._platform.resume("scheduler")
            await asyncio.sleep(1.0)
        return "the committer asleep beyond its lease, woken beside its successor"

    async def wake_a_stale_binder(self) -> str:
        async with self._live.another("binder") as other:
            await other.until_ready()
            self._platform.pause("binder")
            await asyncio.sleep(self._chance.uniform(LEASE_SECONDS + 1, 3 * LEASE_SECONDS))
            self._platform.resume("binder")
            await asyncio.sleep(1.0)
        return "a binder asleep beyond its leases, woken beside another"

    # -- afterwards

    async def heal(self) -> None:
        """Whatever a fault left behind is put right: no order of a refusal, every node there, every clock right."""
        for name in SERVICES:
            self._world.skew(name, 0)
        await connected(self._live)
        await self._again(lambda: self._api.order("clear"))
        await self._accidents.heal()
        await eventually(self._redis_answers, "Redis answers")

    async def _redis_answers(self) -> bool:
        try:
            return bool(await self._redis.ping())
        except (RedisError, OSError):
            return False
