"""
Fencing on a real API server, where the binder has the chart's rights alone: a node falls silent, a webhook turns it
off, and its gang restarts elsewhere without a person.
"""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp import web

from tessera_schemas.cluster.fencing import Fencing
from tessera_schemas.cluster.labels import OUT_OF_SERVICE_TAINT
from tessera_schemas.config import Policy
from tessera_schemas.shard.services import SEPARATE
from tests.e2e.live import configuration, eventually, job
from tests.e2e.platform_checks import assert_all_is_well
from tests.kubernetes import deployed
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.live import KubernetesLive, live_on
from tests.kubernetes.users_objects import Json

pytestmark = pytest.mark.asyncio(loop_scope="module")

LONG = 600.0


@dataclass
class Power:
    """A webhook that turns machines off: the first answer is that it is under way, all others that it is done."""

    url: str = ""
    asked: list[tuple[str, Json]] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.Response:
        self.asked.append((request.headers["Idempotency-Key"], json.loads(await request.read())))
        return web.json_response({"state": "pending" if len(self.asked) == 1 else "off"})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def power() -> AsyncIterator[Power]:
    power, app = Power(), web.Application()
    app.router.add_post("/fence", power.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    power.url = f"http://127.0.0.1:{runner.addresses[0][1]}/fence"
    yield power
    await runner.cleanup()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(
    own_plane: ControlPlane, power: Power, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[KubernetesLive]:
    own_plane.add_nodes(3, "gpu")
    secret: Path = tmp_path_factory.mktemp("secret") / "secret"
    secret.write_text("a-secret-of-many-bytes\n")
    secret.chmod(0o600)
    signing = {"TESSERA_FENCING_SECRET": str(secret), "TESSERA_FENCING_ALLOW_HTTP": "true"}
    fencing = Fencing(url=power.url, after_seconds=1, timeout_seconds=120)
    body = configuration(policy=Policy(node_lost_seconds=2), fencing=fencing)
    settings = {"reclamation": signing}
    async with live_on(
        own_plane, tmp_path_factory.mktemp("platform"), body, settings=settings, layout=SEPARATE
    ) as live:
        deployed.deploy(own_plane, layout=SEPARATE, fencing={"enabled": True, "secret": "tessera-fencing"})
        yield live


def node(live: KubernetesLive, name: str) -> Json:
    return live.plane.api().get(f"/api/v1/nodes/{name}")


def taints(live: KubernetesLive, name: str) -> set[str]:
    return {taint["key"] for taint in node(live, name)["spec"].get("taints", ())}


def nodes_of(live: KubernetesLive, job_id: str, attempt: int) -> set[str]:
    """Nodes of the attempt, once it runs; none before."""
    known = live.state.jobs.get(job_id)
    run = None if known is None or known.phase != "running" else live.state.runs.get(known.run_id)
    placed = () if run is None or run.attempt != attempt else run.placements
    return {placement.node for placement in placed}


async def test_a_silent_node_is_turned_off_once_and_its_gang_restarts_elsewhere(
    live: KubernetesLive, power: Power
) -> None:
    gang = (await live.submit(job("gang", gpus=8, replicas=2, seconds=LONG))).job_id
    await eventually(lambda: bool(nodes_of(live, gang, 1)), "the gang runs")
    silent = min(nodes_of(live, gang, 1))
    path = f"/api/v1/nodes/{silent}"
    live.plane.api().patch(path, {"metadata": {"labels": {"type": None}}})  # its kubelet is gone
    await eventually(lambda: OUT_OF_SERVICE_TAINT in taints(live, silent), "it is out of service")
    await eventually(lambda: bool(nodes_of(live, gang, 2)), "the gang runs elsewhere")
    assert silent not in nodes_of(live, gang, 2)
    assert len({key for key, _ in power.asked}) == 1, "each call bears the same key"
    assert {said["node"] for _, said in power.asked} == {silent}
    assert len(power.asked) == 2, "confirmed once, it is not called again"

    # It was off: it answers from another boot.
    live.plane.api().patch(f"{path}/status", {"status": {"nodeInfo": {"bootID": "another-boot"}}})
    live.plane.api().patch(path, {"metadata": {"labels": {"type": "kwok"}}})
    await eventually(lambda: OUT_OF_SERVICE_TAINT not in taints(live, silent), "it is in service again")
    live.plane.wait_for_nodes([silent])
    await live.clients["lab"].cancel(gang)
    await assert_all_is_well(live)
