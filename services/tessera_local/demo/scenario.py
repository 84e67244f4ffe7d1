"""
The play: submit, watch, kill a service, wait, judge.

What is shown while it runs comes from a durable subscriber of the tenant's events; what is said at the end comes from
everything that was stored.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from tessera.client.cluster import applying
from tessera.client.connect.connecting import open_bus, open_store, views_of
from tessera.client.connect.locating import find
from tessera.client.connect.shard_views import ShardViews
from tessera.client.connect.where import Where
from tessera.client.outcomes import Exit, Failure
from tessera.client.sending.ordering import poll
from tessera.client.sending.sdk import Tessera
from tessera.kernel.kubernetes.cluster import HttpCluster
from tessera_local.demo import story
from tessera_local.demo.clients import Clients
from tessera_local.demo.judging import PodRecorder, ShardRecords
from tessera_local.demo.picture import ENDED, FAILED, REFUSED, RUNNING, SUCCEEDED, WAITING, NodeShape, Picture
from tessera_local.demo.plan import QUEUES, SCHEDULER, SUBSCRIBER, TENANT, DemoPlan
from tessera_local.demo.screen import Screen, screen
from tessera_local.demo.summary import DemoOutcome, Kill
from tessera_local.platform import Platform
from tessera_schemas.config import ConfigBody, Policy, Queue, Quota, Tenant
from tessera_schemas.job import GPU_MILLI, JobSpec
from tessera_schemas.shard.receivers import Subscriber
from tessera_schemas.subjects import OPERATOR
from tessera_schemas.views import NodeView

APPLY_SECONDS = 20.0
ROOT = "cluster"
WORK_SECONDS = 120.0  # a machine may be slow; then what has not ended counts as lost
BACK_SECONDS = 30.0
READING_SECONDS = 2.0  # so long a sentence stays at least
LOOK_SECONDS = 0.05
KILL_AFTER_PART = 4  # once one in so many jobs has ended
LATE_PART = 10  # one in so many jobs is submitted while the killed service is away


@asynccontextmanager
async def open_scenario(plan: DemoPlan, platform: Platform) -> AsyncIterator["Scenario"]:
    """Open all that the scenario needs, configured and connected."""
    where = find(platform.directory)
    operator = where.identity(OPERATOR)
    cluster = HttpCluster(platform.cluster_url, operator.cluster_token)
    try:
        async with open_store(where, operator) as store, open_bus(where, operator) as bus:
            shapes = await _configured(where, views_of(where, OPERATOR), plan)
            async with Tessera.connect(TENANT, home=platform.directory) as tessera:
                shard_records = ShardRecords(bus, store, where.shard, platform.clock)
                yield Scenario(plan, platform, tessera, shard_records, PodRecorder(cluster), shapes)
    finally:
        await cluster.close()


async def _configured(where: Where, views: ShardViews, plan: DemoPlan) -> list[NodeShape]:
    """The nodes as the views show them, once they show all; then the tenant, its queue and its subscriber."""
    nodes: list[NodeView] = []

    async def all_seen() -> bool:
        nodes[:] = await views.nodes()
        return len(nodes) > len(plan.nodes)

    if not await poll(all_seen, APPLY_SECONDS, LOOK_SECONDS):
        raise Failure(Exit.UNAVAILABLE, f"demo: only {len(nodes)} of {len(plan.nodes) + 1} nodes were seen")
    body = configuration(plan)
    operator = where.identity(OPERATOR)
    change = applying.ConfigChange(await views.config(), body)
    await applying.put_in_force(where, operator, views, change, APPLY_SECONDS)
    await applying.provide(where, operator, change)
    return [NodeShape(node.name, node.gpu_model, node.gpus) for node in nodes if node.gpus]


def configuration(plan: DemoPlan) -> ConfigBody:
    """One tenant; the special node's queue, and two queues that share the other nodes and lend to each other."""
    half = Quota(resource="gpu_milli", nominal=plan.gpus * GPU_MILLI // len(QUEUES))
    shared = tuple(Queue(name=name, tenants=(TENANT,), parent=ROOT, quotas=(half,)) for name in QUEUES)
    listeners = (Subscriber(name=SUBSCRIBER), Subscriber(name=story.LISTENER))
    return ConfigBody(
        tenants=(Tenant(name=TENANT, subscribers=listeners),),
        queues=(Queue(name=ROOT), *shared, story.LINE),
        policy=Policy(start_timeout_seconds=60, preset="fair", min_runtime_seconds=0, evictions_max=2),
    )


class Scenario:
    """One performance."""

    def __init__(
        self,
        plan: DemoPlan,
        platform: Platform,
        tessera: Tessera,
        shard_records: ShardRecords,
        pods: PodRecorder,
        shapes: Sequence[NodeShape],
    ) -> None:
        self._plan, self._platform, self._clock = plan, platform, platform.clock
        self._tessera, self._shard_records, self._pods = tessera, shard_records, pods
        self._picture = Picture(shapes, self._clock.monotonic)
        self._story = story.DemoStory(tessera, self._clock)
        self._screen: Screen = screen(self._picture, len(plan.jobs), self._clock)
        self._clients = Clients(tessera, self._picture, self._clock)
        self._began = self._clock.monotonic()
        self._killed: Kill | None = None

    async def run_demo(self) -> DemoOutcome:
        """The story, then the mix; every change of a pod is recorded from the beginning."""
        recording = asyncio.ensure_future(self._pods.run())
        onlookers: list[asyncio.Future[Any]] = [recording]
        acting = asyncio.ensure_future(self._story.run())
        try:
            await self._first_failure_or(acting, onlookers)
            self._began = self._clock.monotonic()
            onlookers += [asyncio.ensure_future(look) for look in (self._listen(), self._screen.run())]
            performing = asyncio.ensure_future(self._act())
            onlookers.append(performing)
            await self._first_failure_or(performing, onlookers[:-1])
            return await performing
        finally:
            for one in (acting, *onlookers):
                one.cancel()
            await asyncio.gather(acting, *onlookers, return_exceptions=True)

    async def _first_failure_or(self, acting: asyncio.Future[Any], onlookers: Sequence[asyncio.Future[Any]]) -> None:
        """Wait for the act, but do not go on with it when an onlooker has failed."""
        watching = {acting, *onlookers}
        while not acting.done():
            done, watching = await asyncio.wait(watching, return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                one.result()

    async def _listen(self) -> None:
        async for event in self._tessera.subscribe(SUBSCRIBER):
            self._picture.take(event)

    async def _act(self) -> DemoOutcome:
        late = len(self._plan.jobs) // LATE_PART if self._plan.kill else 0
        first, later = self._plan.jobs[: len(self._plan.jobs) - late], self._plan.jobs[len(self._plan.jobs) - late :]
        self._screen.announce(f"Tenant {TENANT} submits {len(first)} jobs at once; each is admitted, then placed")
        await self._clients.submit(first)
        self._screen.announce("All are answered; what finds no room waits, gangs for all their pods")
        until = self._clock.monotonic() + WORK_SECONDS
        if self._plan.kill:
            await self._until(lambda: self._ended >= len(self._plan.jobs) // KILL_AFTER_PART, until)
            await self._kill(self._plan.kill, later)
        await self._until(lambda: not self._picture.counts[WAITING] or self._clients.all_ended, until)
        self._screen.announce("Nothing waits any more; the last jobs run to their end")
        await self._until(lambda: self._clients.all_ended, until)
        self._screen.announce("All work has ended; checker and replay read all that was stored")
        await self._shard_records.settle(self._pods)
        judgement = await self._shard_records.judge(
            [*self._story.acknowledged, *self._clients.acknowledged], self._pods
        )
        return DemoOutcome(
            jobs=len(self._plan.jobs) + len(self._story.acknowledged),
            gangs=self._plan.gangs,
            phases={phase: self._picture.counts[phase] for phase in (SUCCEEDED, FAILED, REFUSED)},
            reasons=self._clients.reasons,
            begun_ms=self._clients.begun_ms,
            judgement=judgement,
            evicted=self._picture.evicted,
            kill=self._killed,
        )

    async def _kill(self, service: str, later: Sequence[JobSpec]) -> None:
        """Kill it, go on submitting, and see when it is back."""
        counts, at, old = self._picture.counts, self._clock.monotonic(), self._platform.pid(service)
        killed_ms = self._clock.now_ms()
        self._platform.kill(service)
        self._screen.announce(
            f"kill -9 {service}: {counts[RUNNING]} jobs run on, {counts[WAITING]} wait, {len(later)} more are submitted"
        )
        await self._until(lambda: self._platform.pid(service) != old, at + BACK_SECONDS)
        last_n = await self._shard_records.tail_n()  # it is dead: what comes after is its successor's
        back, _ = await asyncio.gather(self._back(service, at, last_n, killed_ms), self._clients.submit(later))
        self._screen.announce(
            f"The {service} " + ("did not come back" if back is None else f"is back after {back:.1f} s")
        )
        self._killed = Kill(service, at - self._began, back, counts[RUNNING], len(later))
        await self._until(lambda: self._clients.all_ended, self._clock.monotonic() + READING_SECONDS)

    async def _back(self, service: str, at: float, last_n: int, killed_ms: int) -> float | None:
        """Seconds from the kill to the next decision, or for other services than the scheduler until it is ready."""
        if service == SCHEDULER:
            if not await self._until(lambda: self._picture.last_n > last_n, at + BACK_SECONDS):
                return None
            decided_ms = await self._shard_records.decided_after(last_n)
            return None if decided_ms is None else (decided_ms - killed_ms) / 1000
        while self._clock.monotonic() < at + BACK_SECONDS:
            if all(text == "ok" for text in (await self._platform.ready(service)).values()):
                return self._clock.monotonic() - at
            await self._clock.sleep(LOOK_SECONDS)
        return None

    async def _until(self, holds: Callable[[], bool], until: float) -> bool:
        """False when it does not hold by then."""
        while not holds():
            if self._clock.monotonic() > until:
                return False
            await self._clock.sleep(LOOK_SECONDS)
        return True

    @property
    def _ended(self) -> int:
        return sum(self._picture.counts[phase] for phase in ENDED)
