"""
The chart by Helm itself, on a real API server, with a kubelet that runs the services' pods as processes: installed,
upgraded under load from the version before, and uninstalled, with the identities that its own Job keeps.
"""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml

from tessera.kernel.provisioning.secrets import IDENTITY_KEY
from tessera_local.platform import Platform
from tessera_schemas.cluster.labels import FINALIZER
from tessera_schemas.shard.services import SERVICES
from tests.e2e.live import TENANTS, configuration, eventually, job, tessera
from tests.e2e.platform_checks import assert_all_is_well
from tests.kubernetes.control_plane import ControlPlane, wait_until
from tests.kubernetes.deployed import CHART, NAMESPACE, RELEASE, add_namespace, helm
from tests.kubernetes.kubelet import Kubelet
from tests.kubernetes.live import KubernetesLive, KubernetesPlatform, load

pytestmark = pytest.mark.asyncio(loop_scope="module")

Json = dict[str, Any]
SECONDS = "180s"
REPLACED_SECONDS = 120.0
ONE_EACH = {f"services.{service}.replicas": 1 for service in SERVICES if service != "scheduler"}
SYSTEM = f"/api/v1/namespaces/{NAMESPACE}"


class Servers(KubernetesPlatform):
    """NATS and Redis outside of the cluster; the services are the cluster's."""

    def __init__(self, directory: Path, plane: ControlPlane) -> None:
        Platform.__init__(self, directory, services=(), tenants=TENANTS, cluster=False)
        self.plane, self._settings, self._kubeconfigs = plane, {}, {}

    def values(self) -> Json:
        """What the chart has to be told of them."""
        return {
            "nats": {"enabled": False, "url": self.nats.url, "monitorUrl": self.nats.monitor_url},
            "redis": {"enabled": False, "url": self.redis.url},
            "init.streamReplicas": 1,
            "init.ledgerGib": 2,
            "tenants": list(TENANTS),
            "settings": {"allow_unsynced": True},
            "services.gateway.settings": {"api_port": 0},  # pods share this machine's network
            **ONE_EACH,
        }


def chart_version() -> str:
    return str(yaml.safe_load((CHART / "Chart.yaml").read_text())["version"])


class Helm:
    """Helm with a kubeconfig of this cluster. What it refuses is raised, with what the pods said."""

    def __init__(self, plane: ControlPlane, kubelet: Kubelet) -> None:
        self._plane, self._kubelet = plane, kubelet

    async def __call__(self, *arguments: str, values: Json | None = None, wait: bool = True) -> str:
        said = [f"--set-json={key}={json.dumps(value)}" for key, value in (values or {}).items()]
        waiting = ["--wait", "--timeout", SECONDS] if wait else []
        where = ["--namespace", NAMESPACE, "--kubeconfig", str(self._plane.kubeconfig())]
        done = await asyncio.to_thread(helm, *arguments, *where, *said, *waiting)
        assert done.returncode == 0, f"{done.stderr}\n{self._kubelet.logs()}"
        return done.stdout


@pytest.fixture(scope="module")
def version_before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The chart as the version before it: nothing was released with a chart yet, so that only its number is older."""
    folder = tmp_path_factory.mktemp("before") / "tessera"
    shutil.copytree(CHART, folder)
    chart = yaml.safe_load((folder / "Chart.yaml").read_text())
    (folder / "Chart.yaml").write_text(yaml.safe_dump({**chart, "version": f"{chart_version()}-before"}))
    return folder


@pytest.fixture(scope="module")
def kubelet(own_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Any:
    add_namespace(own_plane)
    for tenant in TENANTS:
        own_plane.add_namespace(tenant)
    own_plane.add_nodes(4, "gpu")
    with Kubelet(own_plane, tmp_path_factory.mktemp("kubelet"), NAMESPACE) as kubelet:
        yield kubelet


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(
    own_plane: ControlPlane, kubelet: Kubelet, version_before: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[KubernetesLive]:
    async with Servers(tmp_path_factory.mktemp("servers"), own_plane) as servers:
        await synchronise(servers)
        await Helm(own_plane, kubelet)("install", RELEASE, str(version_before), values=servers.values())
        async with KubernetesLive.on(servers, configuration()) as live:
            assert isinstance(live, KubernetesLive)
            await live.until_nodes_are_known()
            yield live


async def synchronise(servers: Servers) -> str:
    """What an operator's machine does with its directory of identities."""
    words = ("cluster", "sync-secrets", "--credentials", str(servers.credentials.root), "-n", NAMESPACE)
    said = await tessera(*words, environment={"KUBECONFIG": str(servers.plane.kubeconfig())})
    assert said.code == 0, said.err
    return said.out


def secrets(plane: ControlPlane) -> dict[str, Json]:
    """The data of the identities' Secrets, by name."""
    found = plane.api().items(f"{SYSTEM}/secrets", labelSelector="app.kubernetes.io/component=credentials")
    return {one["metadata"]["name"]: one["data"] for one in found}


def pods(plane: ControlPlane) -> list[Json]:
    return plane.api().items(f"{SYSTEM}/pods")


def ours(plane: ControlPlane, kind: str) -> set[str]:
    """The names of the release's objects of one kind."""
    names = {one["metadata"]["name"] for one in plane.api().items(f"{SYSTEM}/{kind}")}
    return {name for name in names if name.startswith(RELEASE)}


async def replaced(plane: ControlPlane, old: set[str]) -> list[Json]:
    """The pods of the services once none of `old` is left: Helm may come back before a controller has begun."""

    def of_services() -> list[Json]:
        return [pod for pod in pods(plane) if pod["metadata"]["labels"]["app.kubernetes.io/component"] in SERVICES]

    def is_done() -> bool:
        found = of_services()
        return bool(found) and not old & {pod["metadata"]["uid"] for pod in found}

    await eventually(is_done, "every pod is replaced", REPLACED_SECONDS)
    return of_services()


async def test_an_upgrade_under_load_loses_nothing_and_keeps_every_password(
    live: KubernetesLive, kubelet: Kubelet
) -> None:
    plane = live.plane
    before, old = secrets(plane), {pod["metadata"]["uid"] for pod in pods(plane)}
    assert len(before) == len(SERVICES) + 4
    values = live.platform.values() | {"settings": {"allow_unsynced": True, "log_level": "warning"}}  # type: ignore[attr-defined]
    async with load(live, every_seconds=1.0):
        await Helm(plane, kubelet)("upgrade", RELEASE, str(CHART), values=values)
    assert secrets(plane) == before
    services = await replaced(plane, old)
    assert {pod["metadata"]["labels"]["helm.sh/chart"] for pod in services} == {f"tessera-{chart_version()}"}
    assert not ours(plane, "serviceaccounts") & {f"{RELEASE}-init", f"{RELEASE}-upgrade"}, (
        "who may write Secrets is gone with the hook"
    )
    await assert_all_is_well(live)


async def test_a_rollback_under_load_loses_nothing_and_the_ledger_stays_as_it_is(
    live: KubernetesLive, kubelet: Kubelet
) -> None:
    """The streams too: Helm runs no hook of an upgrade on a rollback."""
    plane = live.plane
    before, old = secrets(plane), {pod["metadata"]["uid"] for pod in pods(plane)}
    async with load(live, every_seconds=1.0):
        await Helm(plane, kubelet)("rollback", RELEASE)
    assert secrets(plane) == before
    services = await replaced(plane, old)
    assert {pod["metadata"]["labels"]["helm.sh/chart"] for pod in services} == {f"tessera-{chart_version()}-before"}
    await assert_all_is_well(live)


async def test_an_uninstall_leaves_no_pod_with_our_finalizer_and_what_runs_goes_on(
    live: KubernetesLive, kubelet: Kubelet
) -> None:
    plane = live.plane
    running = await live.submit(job("long", gpus=8, seconds=600), "lab")
    await live.until_phase(running.job_id, "running")
    (pod,) = plane.api().items("/api/v1/namespaces/lab/pods")
    assert FINALIZER in pod["metadata"]["finalizers"]

    await Helm(plane, kubelet)("uninstall", RELEASE)
    (left,) = plane.api().items("/api/v1/namespaces/lab/pods")
    assert (left["metadata"]["uid"], left["status"]["phase"]) == (pod["metadata"]["uid"], "Running")
    assert not left["metadata"].get("finalizers")
    assert len(secrets(plane)) == len(SERVICES) + 4, "another installation can go on with these"
    for kind in ("pods", "services", "serviceaccounts", "configmaps"):
        await asyncio.to_thread(wait_until, lambda kind=kind: not ours(plane, kind), f"no {kind} are left")
    plane.api().delete(f"/api/v1/namespaces/lab/pods/{pod['metadata']['name']}")
    await asyncio.to_thread(
        wait_until, lambda: not plane.api().items("/api/v1/namespaces/lab/pods"), "a deleted pod goes"
    )


async def test_a_first_installation_makes_its_identities_itself(
    own_plane: ControlPlane, kubelet: Kubelet, live: KubernetesLive
) -> None:
    """NATS is not there yet: what it needs to let anybody in are the very files that the Job makes first."""
    for name in secrets(own_plane):
        own_plane.api().delete(f"{SYSTEM}/secrets/{name}")
    values = live.platform.values() | {f"services.{name}.replicas": 0 for name in ("admission", "binder", "gateway")}  # type: ignore[attr-defined]
    values["nats"] = values["nats"] | {"url": "nats://127.0.0.1:1"}
    own = Helm(own_plane, kubelet)
    await own("install", RELEASE, str(CHART), values=values, wait=False)
    await asyncio.to_thread(wait_until, lambda: len(secrets(own_plane)) == len(SERVICES) + 4, "the Secrets are made")
    assert set(secrets(own_plane)[f"{RELEASE}-binder"]) == {IDENTITY_KEY}
    await own("uninstall", RELEASE)
