"""
The whole platform on a real API server with twenty nodes of eight GPUs: jobs run, end, and leave nothing behind.

In the layout `compact`, with the accounts that the chart gives its processes; the other files here are `separate`.
"""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tessera_schemas.shard.services import COMPACT
from tests.e2e.live import configuration, job
from tests.e2e.platform_checks import assert_all_is_well
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.live import KubernetesLive, live_on

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(own_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[KubernetesLive]:
    own_plane.add_nodes(20, "gpu")
    async with live_on(own_plane, tmp_path_factory.mktemp("platform"), configuration(), layout=COMPACT) as live:
        yield live


async def test_gangs_and_single_jobs_run_to_their_ends_and_every_gpu_is_free_again(live: KubernetesLive) -> None:
    gang = await live.submit(job("gang", gpus=2, replicas=8, seconds=0.5))
    singles = [await live.submit(job(f"single-{n}", gpus=1, seconds=0.2), "ops") for n in range(6)]
    failing = await live.submit(job("failing", exit_code=3))
    ends = [gang.job_id, failing.job_id, *(done.job_id for done in singles)]
    await live.until_ended(*ends)
    assert [live.phase(gang.job_id), live.phase(failing.job_id)] == ["succeeded", "failed"]
    assert {live.phase(done.job_id) for done in singles} == {"succeeded"}
    assert live.state.ended.get(failing.job_id).exit_code == 3  # type: ignore[union-attr]
    await live.until_idle()
    assert all(set(node.gpu_free) == {1000} for node in live.state.nodes.values())
    await assert_all_is_well(live)
