"""
docker-compose.yml at a real Kubernetes API, as docs/install.md says for one host: no simulated cluster, a kubeconfig
whose account has the rights of the chart's binder.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path

import pytest
import pytest_asyncio

from tessera_schemas.shard.services import SERVICES
from tests.containers.compose import ComposeStack
from tests.containers.engine import docker
from tests.e2e.live import TENANTS, configuration, eventually, job
from tests.e2e.platform_checks import assert_all_is_well
from tests.kubernetes import deployed
from tests.kubernetes.conftest import running
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.live import KubernetesLive

pytestmark = pytest.mark.asyncio(loop_scope="module")
PATIENCE = 180.0


@dataclass(kw_only=True)
class StackAtCluster(ComposeStack):
    """Its binder and reclamation read one kubeconfig."""

    plane: ControlPlane


@pytest.fixture(scope="module")
def plane(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """One that containers reach: it listens where they see this machine."""
    found = docker("network", "inspect", "bridge", "-f", "{{(index .IPAM.Config 0).Subnet}}")
    address = str(ip_network(found.stdout.strip())[1])  # the machine's own, not each engine says it
    with running(tmp_path_factory.mktemp("kubernetes"), address=address) as plane:
        deployed.deploy(plane)
        for tenant in TENANTS:
            deployed.let_in(plane, tenant)
        plane.add_nodes(2, gpus=8)
        yield plane


@pytest.fixture(scope="module")
def stack(images: str, plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StackAtCluster]:
    folder = tmp_path_factory.mktemp("stack")
    kubeconfig = kubeconfig_for_containers(plane, folder)
    settings = {"TESSERA_CLUSTER_URL": "", "TESSERA_KUBECONFIG": str(kubeconfig)}
    stack = StackAtCluster(folder, "tessera-cluster", profiles="", settings=settings, plane=plane)
    stack.compose("down", "-v", "--remove-orphans")
    try:
        stack.make("compose-up")
        yield stack
    finally:
        stack.compose("down", "-v", "--remove-orphans", "-t", "2")


def kubeconfig_for_containers(plane: ControlPlane, folder: Path) -> Path:
    """Of the binder's account, whose rights include reclamation's; readable by user 10001."""
    path = folder / "kubeconfig"
    path.write_text(plane.kubeconfig("binder", deployed.token_of(plane, "binder")).read_text())
    path.chmod(0o644)
    return path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(stack: StackAtCluster) -> AsyncIterator[KubernetesLive]:
    for service in SERVICES:
        ready = lambda service=service: asyncio.to_thread(stack.is_ready, service)  # noqa: E731
        await eventually(ready, f"{service} is ready", PATIENCE)
    await asyncio.to_thread(stack.configure, configuration())
    async with KubernetesLive.on(stack) as live:  # type: ignore[arg-type]  # it has what a live test looks at
        assert isinstance(live, KubernetesLive)
        await live.until_nodes_are_known()
        yield live


async def test_nobody_plays_a_cluster(stack: StackAtCluster) -> None:
    assert stack.containers("cluster") == []


async def test_pods_of_a_gang_are_made_and_bound_where_the_kubeconfig_leads(live: KubernetesLive) -> None:
    done = await live.submit(job("gang", gpus=8, replicas=2, seconds=2))
    await live.until_phase(done.job_id, "running")
    pods = live.plane.api().items("/api/v1/namespaces/lab/pods")
    assert {pod["spec"]["nodeName"] for pod in pods} == {"gpu-0", "gpu-1"}
    assert {pod["metadata"]["labels"]["tessera.io/job"] for pod in pods} == {done.job_id}
    await live.until_ended(done.job_id)
    assert live.phase(done.job_id) == "succeeded"
    await assert_all_is_well(live)
