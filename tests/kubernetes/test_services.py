"""
Services beside training on a real API server, with the real Deployment controller and HPA: scale-ups take what training
has borrowed, rollouts ask for their surge first, the minimum is kept, and quota comes back at no replicas.
"""

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from tests.e2e.live import eventually
from tests.kubernetes.conftest import running
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.played_metrics import PlayedMetrics, played_metrics
from tests.kubernetes.scaled_service import (
    CONTROLLER_FLAGS,
    LEAST,
    ScaledService,
    scale_ups,
    serving_beside_training,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")
NODES = 5


@pytest.fixture(scope="module")
def scaled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with running(tmp_path_factory.mktemp("kubernetes"), controller_flags=CONTROLLER_FLAGS) as plane:
        yield plane


@pytest.fixture(scope="module")
def metrics(scaled: ControlPlane) -> Iterator[PlayedMetrics]:
    with played_metrics(scaled) as metrics:
        yield metrics


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(scaled: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ScaledService]:
    async with serving_beside_training(scaled, tmp_path_factory.mktemp("platform"), NODES) as service:
        await service.fill()
        service.create(LEAST, strategy={"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}})
        await service.until_running(LEAST)
        yield service


async def test_a_rollout_gets_its_surge_from_training_and_stops_nothing_old_before(service: ScaledService) -> None:
    before = {pod["metadata"]["uid"] for pod in service.running()}
    service.roll("once")

    def done() -> bool:
        now = {pod["metadata"]["uid"] for pod in service.running()}
        return len(now) == LEAST and not now & before

    await eventually(done, "all replicas are new")
    await service.until_running(LEAST)
    assert service.lowest >= LEAST
    kept = [job for job in service.live.state.jobs.values() if job.in_minimum and job.adopted is not None]
    assert [str(job.adopted.service) for job in kept if job.adopted] == ["Deployment/chat"] * LEAST


async def test_a_rollout_without_quota_waits_stops_nothing_old_and_goes_on_once_there_is_room(
    service: ScaledService,
) -> None:
    """The service holds all of its queue's quota, so that its surge can neither be placed nor make room."""
    service.scale(NODES)
    await service.until_running(NODES)
    before, service.lowest = {pod["metadata"]["uid"] for pod in service.running()}, NODES
    service.roll("without room")
    await eventually(lambda: "WaitingForQuota" in service.said_of_waiting(), "the surge says that it waits for quota")
    assert {pod["metadata"]["uid"] for pod in service.running()} == before
    service.scale(NODES - 1)

    def done() -> bool:
        now = {pod["metadata"]["uid"] for pod in service.running()}
        return len(now) == NODES - 1 and not now & before

    await eventually(done, "all replicas are new")
    assert service.lowest >= NODES - 1
    service.scale(LEAST)
    await service.until_running(LEAST)


async def test_an_autoscaler_takes_what_training_borrows_and_gives_it_back(
    service: ScaledService, metrics: PlayedMetrics
) -> None:
    metrics.wanted = LEAST
    service.autoscale(NODES)
    seconds = await scale_ups(service, metrics, 6, NODES)
    assert len(seconds) == 6
    assert service.lowest >= LEAST


async def test_quota_comes_back_at_no_replicas(service: ScaledService) -> None:
    """An HPA rests while its target has no replicas."""
    service.scale(0)
    await eventually(lambda: service.in_training() == NODES, "training has the whole cluster")
