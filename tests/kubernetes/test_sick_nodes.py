"""Nodes that others say are sick, on a real API server: conditions of node-problem-detector, and NVSentinel's label."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tessera_schemas.cluster.health import HealthCause, HealthPolicy
from tessera_schemas.shard.services import SEPARATE
from tests.e2e.live import configuration, job
from tests.e2e.platform_checks import assert_all_is_well
from tests.kubernetes.api import STRATEGIC_PATCH
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.live import KubernetesLive, live_on
from tests.kubernetes.users_objects import Json

pytestmark = pytest.mark.asyncio(loop_scope="module")

LONG = 600.0
SENTINEL = "dgxc.nvidia.com/nvsentinel-state"
SOON = {"TESSERA_UTILISATION_SECONDS": "1", "TESSERA_HEALTH_GONE_SECONDS": "2", "TESSERA_HEALTH_LOOKS": "2"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(own_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[KubernetesLive]:
    own_plane.add_nodes(3)
    body, settings = configuration(health=HealthPolicy(out_percent=40)), {"reclamation": SOON}
    directory = tmp_path_factory.mktemp("platform")
    async with live_on(own_plane, directory, body, settings=settings, layout=SEPARATE) as live:
        yield live


async def running(live: KubernetesLive, name: str) -> tuple[str, str]:
    """Id of a job that fills a node, and the node."""
    done = await live.submit(job(name, gpus=8, seconds=LONG))
    await live.until_phase(done.job_id, "running")
    return done.job_id, node_of(live, done.job_id)


def node_of(live: KubernetesLive, job_id: str) -> str:
    known = live.state.jobs.get(job_id)
    run = known and live.state.runs.get(known.run_id)
    assert run, f"{job_id} has no run"
    return str(run.placements[0].node)


def label(live: KubernetesLive, node: str, state: str | None) -> None:
    live.plane.api().patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {SENTINEL: state}}})


def say(live: KubernetesLive, node: str, status: str, reason: str) -> None:
    """What node-problem-detector writes: a condition of its own among those of the kubelet."""
    condition = {
        "type": "KernelDeadlock",
        "status": status,
        "reason": reason,
        "message": "task docker:7 blocked for more than 120 seconds.",
        "lastHeartbeatTime": "2026-01-01T00:00:00Z",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    change: Json = {"status": {"conditions": [condition]}}
    live.plane.api().patch(f"/api/v1/nodes/{node}/status", change, STRATEGIC_PATCH)


def causes(live: KubernetesLive, node: str) -> list[tuple[str, HealthCause]]:
    known = live.state.health.get(node)
    return [] if known is None else [(each.source, each.ailment.cause) for each in known.ailments]


async def end(live: KubernetesLive, *jobs: str) -> None:
    for each in jobs:
        await live.clients["lab"].cancel(each)
    await live.until_ended(*jobs)


async def test_a_node_with_a_deadlocked_kernel_takes_nothing_new_and_is_open_again_once_it_is_well(
    live: KubernetesLive,
) -> None:
    stays, node = await running(live, "stays")
    say(live, node, "True", "DockerHung")
    await live.until(lambda state: state.drains.get(node) is not None, f"{node} is closed")
    assert causes(live, node) == [("conditions", HealthCause.NODE_CONDITION)]
    assert live.state.jobs.get(stays).attempt == 1  # type: ignore[union-attr]
    say(live, node, "False", "KernelHasNoDeadlock")
    await live.until(lambda state: state.drains.get(node) is None, f"{node} is open again")
    assert causes(live, node) == []
    await end(live, stays)


async def test_runs_stay_where_nvsentinel_quarantines_and_leave_when_it_drains(live: KubernetesLive) -> None:
    moves, node = await running(live, "moves")
    label(live, node, "quarantined")
    await live.until(lambda state: state.drains.get(node) is not None, f"{node} is closed")
    assert causes(live, node) == [("nvsentinel", HealthCause.QUARANTINED)]
    assert live.state.jobs.get(moves).attempt == 1  # type: ignore[union-attr]
    label(live, node, "draining")

    def has_moved(state: object) -> bool:
        known = live.state.jobs.get(moves)
        return known is not None and known.attempt == 2 and known.phase == "running"

    await live.until(has_moved, "the run goes on elsewhere")
    assert node_of(live, moves) != node
    label(live, node, "drain-succeeded")
    await live.until(
        lambda state: causes(live, node) == [("nvsentinel", HealthCause.QUARANTINED)], "it asks for nothing more"
    )
    label(live, node, None)
    await live.until(lambda state: state.drains.get(node) is None, f"{node} is open again")
    await end(live, moves)
    await assert_all_is_well(live)
