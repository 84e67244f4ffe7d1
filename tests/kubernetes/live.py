"""
The whole platform as real processes on a real API server: its binder and reclamation talk to Kubernetes as the service
accounts that the Helm chart gives them, everything else is as in `tests/e2e`.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

from tessera.kernel.clock import SystemClock
from tessera.kernel.kubernetes.cluster import HttpCluster
from tessera.kernel.kubernetes.informer import Informer
from tessera.testkit.checker import PodChange
from tessera_local.platform import EACH, Platform
from tessera_schemas.config import ConfigBody
from tessera_schemas.job import JobSpec
from tessera_schemas.shard.services import COMPACT, LAYOUTS, SERVICES
from tests.e2e.live import TENANTS, Json, Live, eventually, job
from tests.kubernetes import deployed
from tests.kubernetes.control_plane import ControlPlane


class KubernetesPlatform(Platform):
    """By process: `urls` are other ways to the API server, through a proxy, say; `settings` are further ones."""

    def __init__(
        self,
        directory: Path,
        plane: ControlPlane,
        urls: Mapping[str, str] | None = None,
        settings: Mapping[str, Mapping[str, str]] | None = None,
        layout: str = COMPACT,
        **more: Any,
    ) -> None:
        super().__init__(directory, tenants=TENANTS, cluster=False, layout=layout, **more)
        self.plane, self._settings = plane, settings or {}
        accounts = {process: EACH if len(of) > 1 else process for process, of in LAYOUTS[layout].items()}
        alone = {process for process, of in LAYOUTS[layout].items() if len(of) == 1}
        shared = ({*(urls or {})} - LAYOUTS[layout].keys()) | (self._settings.keys() - alone)
        assert not shared, f"{sorted(shared)}: in layout {layout} these have no process of their own to be set up"
        self._kubeconfigs = {
            accounts[process]: plane.kubeconfig(
                process, deployed.token_of(plane, process), (urls or {}).get(process, "")
            )
            for process in {"binder", "reclamation", "followers"} & accounts.keys()
        }

    def environment(self, identity: str, shard: str | None = None) -> dict[str, str]:
        found = super().environment(identity, shard)
        kubeconfig = self._kubeconfigs.get(identity)
        found |= self._settings.get(identity, {})
        return {**found, "KUBECONFIG": str(kubeconfig)} if kubeconfig else found


class KubernetesLive(Live):
    platform: KubernetesPlatform

    @property
    def plane(self) -> ControlPlane:
        return self.platform.plane

    def cluster(self) -> HttpCluster:
        return self.plane.cluster()

    def is_ours(self, pod: Json) -> bool:
        """Others run pods in this cluster, too."""
        return pod["metadata"]["namespace"] in TENANTS and super().is_ours(pod)

    async def _watch_pods(self) -> None:
        """A server that was started again has forgotten its changes: then what is there is listed and compared."""
        cluster = self.cluster()
        informer = Informer(cluster, "pods", SystemClock())
        try:
            while True:
                for delta in await informer.next():
                    if self.is_ours(delta.object):
                        self.pods.append(PodChange(delta.type, delta.object))
        finally:
            await informer.close()
            await cluster.close()


@asynccontextmanager
async def live_on(
    plane: ControlPlane,
    directory: Path,
    body: ConfigBody,
    services: Sequence[str] = SERVICES,
    urls: Mapping[str, str] | None = None,
    settings: Mapping[str, Mapping[str, str]] | None = None,
    layout: str = COMPACT,
) -> AsyncIterator[KubernetesLive]:
    """
    Everything started, `body` in force, the tenants' namespaces there.

    Nine processes of their own would spend half a processor on waiting; who kills one of them asks for `SEPARATE`.
    """
    deployed.deploy(plane, layout=layout)
    for tenant in TENANTS:
        deployed.let_in(plane, tenant)
    async with (
        KubernetesPlatform(directory, plane, urls, settings, layout, services=services) as platform,
        KubernetesLive.on(platform, body) as live,
    ):
        assert isinstance(live, KubernetesLive)
        yield live


KINDS: tuple[JobSpec, ...] = (
    job("single", seconds=0.3),
    job("gang", gpus=2, replicas=3, seconds=0.4),
    job("node", gpus=8, seconds=0.2),
    job("wide", gpus=1, replicas=6, seconds=0.3),
)


@asynccontextmanager
async def load(live: KubernetesLive, at_least: int = 12, every_seconds: float = 0.15) -> AsyncIterator[None]:
    """Submit jobs of both tenants from before the body until after it, then see all of them succeed."""
    submitted: list[str] = []
    enough = asyncio.Event()

    async def submit() -> None:
        for spec, tenant in zip(cycle(KINDS), cycle(TENANTS), strict=False):
            submitted.append((await live.submit(spec, tenant, answer_seconds=0)).job_id)
            if enough.is_set() and len(submitted) >= at_least:
                return
            await asyncio.sleep(every_seconds)

    submitting = asyncio.create_task(submit())
    try:
        await eventually(lambda: len(submitted) >= 4, "the load has begun")
        yield
    finally:
        enough.set()
        await submitting
    await live.until_ended(*submitted)
    assert {live.phase(job_id) for job_id in submitted} == {"succeeded"}
