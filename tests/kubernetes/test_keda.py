"""
The chart's ScaledObjects in the hands of KEDA's own operator: commands that wait in a real JetStream make admission's
Deployment grow, and once they are worked off it shrinks again.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio
import yaml

from tessera.client.connect.locating import find
from tessera.client.sending.sdk import Tessera
from tessera_local.platform import Platform
from tests.e2e.live import TENANTS, eventually, job
from tests.kubernetes.binaries import Unavailable
from tests.kubernetes.conftest import running
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.deployed import NAMESPACE, RELEASE, Kubectl, add_namespace, documents, rendered
from tests.kubernetes.keda import AUTOSCALING, keda

pytestmark = pytest.mark.asyncio(loop_scope="module")

Json = dict[str, Any]
LAG, LEAST, MOST = 20, 2, 5
PATIENCE = 120.0


@pytest.fixture(scope="module")
def scaled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    folder = tmp_path_factory.mktemp("keda")
    with running(tmp_path_factory.mktemp("kubernetes"), controller_flags=AUTOSCALING) as plane:
        try:
            with keda(plane, folder):
                yield plane
        except Unavailable as error:
            pytest.skip(str(error))  # in CI, too: to build it takes longer than everything else here


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def servers(scaled: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Platform]:
    """NATS with its streams, and admission, of which the chart's Deployment has pods that nothing runs."""
    folder = tmp_path_factory.mktemp("platform")
    async with Platform(
        folder, services=("admission", "scheduler", "projection"), tenants=TENANTS, cluster=False
    ) as platform:
        values = {
            "nats": {"enabled": False, "url": platform.nats.url, "monitorUrl": platform.nats.monitor_url},
            "services.admission.autoscaling": {"kind": "keda", "min": LEAST, "max": MOST, "lag": LAG},
            "services.binder.autoscaling.kind": "keda",
            "keda": {"pollingSeconds": 1, "cooldownSeconds": 1},
        }
        add_namespace(scaled)
        wanted = [one for one in documents(rendered(values)) if one["kind"] != "Job"]
        Kubectl(scaled)("apply", "--namespace", NAMESPACE, "-f", "-", stdin=yaml.safe_dump_all(wanted))
        yield platform


def autoscalers(plane: ControlPlane) -> dict[str, Json]:
    """What KEDA made, by the Deployment that it scales."""
    found = plane.api().items(f"/apis/autoscaling/v2/namespaces/{NAMESPACE}/horizontalpodautoscalers")
    return {one["spec"]["scaleTargetRef"]["name"]: one for one in found}


def replicas(plane: ControlPlane) -> int:
    found = plane.api().get(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{RELEASE}-admission")
    return int(found["spec"]["replicas"])


def is_ready(plane: ControlPlane, name: str) -> bool:
    found = plane.api().get(f"/apis/keda.sh/v1alpha1/namespaces/{NAMESPACE}/scaledobjects/{name}")
    conditions = found.get("status", {}).get("conditions", ())
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


async def until(condition: Any, what: str) -> None:
    await eventually(lambda: asyncio.to_thread(condition), what, PATIENCE)


async def test_keda_takes_every_scaled_object_and_makes_its_autoscaler(scaled: ControlPlane, servers: Platform) -> None:
    for service in ("admission", "binder"):
        name = f"{RELEASE}-{service}"
        await until(lambda name=name: is_ready(scaled, name), f"KEDA takes {name}")
        await until(lambda name=name: name in autoscalers(scaled), f"{name} has an autoscaler")
    made = {name: one["spec"] for name, one in autoscalers(scaled).items()}
    (lag,) = made[f"{RELEASE}-admission"]["metrics"]
    assert (lag["type"], lag["external"]["target"]) == ("External", {"type": "AverageValue", "averageValue": str(LAG)})
    (cpu,) = made[f"{RELEASE}-binder"]["metrics"]
    assert (cpu["resource"]["name"], cpu["resource"]["target"]["averageUtilization"]) == ("cpu", 70)
    bounds = made[f"{RELEASE}-admission"]
    assert (bounds["minReplicas"], bounds["maxReplicas"]) == (LEAST, MOST)


async def test_waiting_commands_bring_replicas_which_go_again_with_them(
    scaled: ControlPlane, servers: Platform
) -> None:
    await until(lambda: replicas(scaled) == LEAST, "the Deployment is as the chart has it")
    await servers.stop("admission")
    place = find(servers.directory)
    async with Tessera.at(place, place.identity("lab")) as client:
        for number in range(LAG * 3):
            await client.submit(job(), f"waits-{number}", answer_seconds=0)
        await until(lambda: replicas(scaled) == 3, f"{LAG * 3} commands want three")
        for number in range(LAG * 6):
            await client.submit(job(), f"waits-longer-{number}", answer_seconds=0)
        await until(lambda: replicas(scaled) == MOST, f"{LAG * 9} commands want more than there may be")
    await servers.start("admission")
    await until(lambda: replicas(scaled) == LEAST, "nothing waits, and the least are left")
