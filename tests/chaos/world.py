"""The platform of a campaign, and what is seen of it: the ledger's ends of jobs, and the pods, through any fault."""

import asyncio
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp

from tessera.kernel.errors import Transient
from tessera.kernel.ports import ApiError
from tessera.testkit.checker import PodChange
from tessera_local.child_process import Spawn
from tessera_local.platform import NATS, Platform
from tessera_schemas import subjects
from tessera_schemas.base import job_id
from tessera_schemas.config import ConfigBody, Policy, Queue, Quota
from tessera_schemas.ledger import LEDGER_MESSAGE, Finished, JobTurnedAway
from tessera_schemas.shard.services import LAYOUTS, SERVICES
from tests.chaos.skewed import write_skew
from tests.e2e.live import GPUS, LAYOUT, TENANTS, Live, configuration, eventually

Json = dict[str, Any]
SETTLE_SECONDS = 240.0
ODD_EVERY = 5
ONE_CLOCK = {service: of[0] for of in LAYOUTS[LAYOUT].values() for service in of}  # of the services of a process


def campaign_config() -> ConfigBody:
    """A team that owns half of the cluster and lends it to guests; whoever borrows gives back at once."""
    half = Quota(resource="gpu_milli", nominal=GPUS * 500)
    queues = (
        Queue(name="all"),
        Queue(name="default", parent="all", quotas=(half,)),
        Queue(name="guest", parent="all", quotas=(half,)),
    )
    policy = Policy(
        preset="fair", min_runtime_seconds=0, node_lost_seconds=3, start_timeout_seconds=15, mass_stop_seconds=5
    )
    return configuration(queues=queues, policy=policy)


class Api:
    """The simulated cluster as its operator and its users see it, and the faults that can be ordered of it."""

    def __init__(self, url: str, token: str) -> None:
        self._session = aiohttp.ClientSession(url, headers={"Authorization": f"Bearer {token}"})

    async def close(self) -> None:
        await self._session.close()

    async def order(self, fault: str, **fields: Any) -> None:
        await self.call("POST", "/admin/faults", {"fault": fault, **fields})

    async def call(self, method: str, path: str, body: Json | None = None) -> Json:
        """Raises ApiError, also for an answer that was lost (status 0)."""
        try:
            async with self._session.request(method, path, json=body) as answer:
                found: Json = await answer.json()
                if answer.status >= 400:
                    raise ApiError(answer.status, str(found.get("reason")), str(found.get("message")))
                return found
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiError(0, "Lost", repr(error)) from error

    async def items(self, kind: str) -> list[Json]:
        items: list[Json] = (await self.call("GET", f"/api/v1/{kind}"))["items"]
        return items


@dataclass
class ChaosLive(Live):
    """A shard under faults. `ends` counts the records that end a job, by job; `outcomes` holds the newest."""

    ends: Counter[str] = field(default_factory=Counter)
    outcomes: dict[str, str] = field(default_factory=dict)
    read: int = 0

    async def look_at_ends(self) -> None:
        """Take in what was stored since the last look."""
        for stored in self.stored[self.read :]:
            message = LEDGER_MESSAGE.validate_json(stored)
            for record in message.records:
                if isinstance(record, Finished):
                    self.ends[record.job_id] += 1
                    self.outcomes[record.job_id] = record.phase
                elif isinstance(record, JobTurnedAway):
                    fact = message.facts[record.fact].fact
                    self.outcomes.setdefault(str(getattr(fact, "job_id", "")), f"turned away: {fact}")
        self.read = len(self.stored)

    def due(self) -> list[str]:
        return [job_id(self.shard_name, tenant, key) for tenant, key in self.acknowledged]

    async def settle(self) -> None:
        """Wait until every service is ready, every acknowledged job has ended and every run is released."""
        for service in self.platform.services:
            await self.until_ready(service)
        due = set(self.due())
        await self.until(
            lambda state: due <= self.taken_in and not len(state.jobs) and not len(state.runs),
            "every acknowledged job has ended and every run is released",
            SETTLE_SECONDS,
        )

    def unwell(self) -> list[str]:
        """Acknowledged submits that did not end exactly once, as sentences."""
        wrong = {job: self.ends[job] for job in self.due() if self.ends[job] != 1}
        return [f"job {job} ended {times} times ({self.outcomes.get(job)})" for job, times in wrong.items()]

    async def _watch_pods(self) -> None:
        """Lists again when the history is gone; what went meanwhile is shown as deleted."""
        cluster, there = self.cluster(), dict[str, Json]()
        try:
            while True:
                with suppress(Transient, ApiError):
                    found, version = await cluster.list("pods")
                    now = {pod["metadata"]["uid"]: dict(pod) for pod in found if self.is_ours(dict(pod))}
                    self.pods += [PodChange("DELETED", pod) for uid, pod in there.items() if uid not in now]
                    self.pods += [PodChange("MODIFIED", pod) for pod in now.values()]
                    there = now
                    while True:
                        with suppress(Transient):
                            async for event in cluster.watch("pods", version):
                                version = event.object["metadata"]["resourceVersion"]
                                if event.type != "BOOKMARK" and self.is_ours(dict(event.object)):
                                    self._see(there, event.type, dict(event.object))
                        await asyncio.sleep(0.05)
                await asyncio.sleep(0.1)
        finally:
            await cluster.close()

    def _see(self, there: dict[str, Json], kind: str, pod: Json) -> None:
        self.pods.append(PodChange(kind, pod))
        if kind == "DELETED":
            there.pop(pod["metadata"]["uid"], None)
        else:
            there[pod["metadata"]["uid"]] = pod


@dataclass
class World:
    """One platform of the campaign, with its operator's hands."""

    live: ChaosLive
    api: Api
    skews: Path

    def skew(self, service: str, milliseconds: int) -> None:
        write_skew(self.skews / ONE_CLOCK[service], milliseconds)

    async def node_names(self) -> list[str]:
        return sorted(node["metadata"]["name"] for node in await self.api.items("nodes"))


class ChaosPlatform(Platform):
    """A platform whose services have clocks that can be moved, and that notes whatever its supervisor sees end."""

    def __init__(self, directory: Path, *, sync: bool) -> None:
        skews = directory / "skews"
        skews.mkdir(parents=True)
        for service in SERVICES:
            write_skew(skews / service, 0)
        self.ended: list[str] = []
        self.skews = skews

        def command(services: Sequence[str], shard: str) -> Sequence[str]:
            return [sys.executable, "-m", "tests.chaos.skewed", str(skews / services[0]), "+".join(services), shard]

        say = self.ended.append
        super().__init__(directory, tenants=TENANTS, sync=sync, layout=LAYOUT, notify=say, command=command)

    def _spawn_cluster(self) -> Spawn:
        """A cluster that says null now and then where the API may."""
        spawn = super()._spawn_cluster()
        return replace(spawn, command=[*spawn.command, "--odd-every", str(ODD_EVERY)])


@asynccontextmanager
async def opened(platform: ChaosPlatform) -> AsyncIterator[World]:
    """A platform that runs, configured for the campaign and looked at."""
    async with ChaosLive.on(platform, campaign_config()) as live:
        assert isinstance(live, ChaosLive)
        api = Api(platform.cluster_url, platform.credentials.read(subjects.OPERATOR).cluster_token)
        try:
            yield World(live, api, platform.skews)
        finally:
            await api.close()


async def readiness(platform: Platform) -> str:
    """What each service says that is not well, in one line."""
    said = {service: await platform.ready(service) for service in platform.services}
    each = {name: {k: v for k, v in texts.items() if v != "ok"} for name, texts in said.items()}
    unwell = {name: texts for name, texts in each.items() if texts}
    return json.dumps(unwell) if unwell else "none"


async def connected(live: Live) -> None:
    await eventually(lambda: live.bus.connected, f"{NATS} answers")
