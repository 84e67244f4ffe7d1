"""A local platform whose services act on a real API server, and what every process has spent."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tessera.client.cluster.applying import ConfigChange, put_in_force
from tessera.client.connect.connecting import views_of
from tessera.client.connect.locating import find
from tessera.client.connect.shard_views import ShardViews
from tessera_lab.bench.together.platform import cpu_seconds_of
from tessera_local.platform import NATS, REDIS, Platform
from tessera_schemas import subjects
from tessera_schemas.config import Config, ConfigBody, Limits, Queue, Tenant
from tessera_schemas.shard.services import SEPARATE
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.live import KubernetesPlatform

TENANT = "lab"
APPLY_SECONDS = 30.0
NODES_SECONDS = 120.0
CATCH_UP_SECONDS = 8.0


@asynccontextmanager
async def platform_on(plane: ControlPlane, folder: Path) -> AsyncIterator[Platform]:
    """All services with the accounts that `deploy` made, configured for one tenant and one queue without limits."""
    async with KubernetesPlatform(folder, plane, layout=SEPARATE, notify=lambda _: None) as platform:
        place = find(platform.directory, {}, platform.shard)
        operator = place.identity(subjects.OPERATOR)
        body = ConfigBody(
            tenants=(Tenant(name=TENANT, limits=Limits(jobs=None, submits_per_second=None, bytes_per_second=None)),),
            queues=(Queue(name="default"),),
        )
        views = views_of(place, subjects.OPERATOR)
        await put_in_force(place, operator, views, ConfigChange(Config(), body), APPLY_SECONDS)
        await _know(views, len(plane.api().items("/api/v1/nodes")))
        yield platform


async def _know(views: ShardViews, nodes: int) -> None:
    """What a scheduler has listed before anybody asks it for anything; kube-scheduler has, by then."""
    async with asyncio.timeout(NODES_SECONDS):
        while len(await views.nodes()) < nodes:
            await asyncio.sleep(0.2)


def platforms_pids(platform: Platform) -> dict[str, int]:
    pids = {name: platform.pid(name) for name in (NATS, REDIS, *platform.parts)}
    return {name: pid for name, pid in pids.items() if pid is not None}


@contextmanager
def stopped(pids: Sequence[int]) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@asynccontextmanager
async def standing_still(pids: Sequence[int]) -> AsyncIterator[None]:
    """These processes stopped meanwhile; afterwards they have a while to catch up with what they missed."""
    try:
        with stopped(pids):
            yield
    finally:
        await asyncio.sleep(CATCH_UP_SECONDS)


@dataclass(frozen=True, slots=True)
class Spending:
    """CPU seconds of every process since it began, by name."""

    seconds: Mapping[str, float]

    @classmethod
    def now(cls, plane: ControlPlane, pids: Mapping[str, int]) -> "Spending":
        ours = {"client": os.getpid(), **pids}
        theirs = {name: part.process.pid for name, part in plane.parts.items() if part.process is not None}
        return cls({name: cpu_seconds_of(pid) for name, pid in (ours | theirs).items()})

    def since(self, before: "Spending", unit: float) -> dict[str, float]:
        return {name: (value - before.seconds.get(name, 0.0)) * unit for name, value in self.seconds.items()}
