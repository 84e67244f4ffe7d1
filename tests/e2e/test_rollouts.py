"""A rollout as people type it, on real processes: the pods get their new image one after the other."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tessera.domain.state import State
from tessera_schemas.work.arrays import ServiceSize
from tests.e2e.live import Live, configuration, eventually, job
from tests.e2e.platform_checks import assert_all_is_well

pytestmark = pytest.mark.asyncio(loop_scope="module")
REPLICAS = 2


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    async with Live.at(tmp_path_factory.mktemp("rollouts"), configuration()) as live:
        yield live


def at_work(state: State, service: str) -> int:
    runs = [state.runs.get(replica.run_id) for replica in state.jobs.values() if replica.task_of == service]
    return sum(run is not None and run.started and not run.stopping for run in runs)


async def images(live: Live, service: str) -> list[str]:
    """Images of the pods of the service's replicas that are not being deleted."""
    cluster = live.cluster()
    try:
        found, _ = await cluster.list("pods")
    finally:
        await cluster.close()
    runs = tuple(job.run_id for job in live.state.jobs.values() if job.task_of == service)
    own = [pod for pod in found if pod["metadata"]["name"].startswith(runs)]
    return sorted(pod["spec"]["containers"][0]["image"] for pod in own if "deletionTimestamp" not in pod["metadata"])


async def test_an_image_is_rolled_out_and_back_pod_by_pod(live: Live) -> None:
    await live.until_nodes_are_known()
    size = ServiceSize(min_replicas=REPLICAS, max_replicas=3)
    sent = await live.submit(job("serves", seconds=3600, time_limit_seconds=None, service=size))
    service = sent.job_id
    await live.until(lambda state: at_work(state, service) == REPLICAS, "its replicas run")
    forth, back = ("update", service, "--image", "train:2"), ("rollout", "undo", service)
    for image, words in (("train:2", forth), ("train:1", back)):
        said = await live.command("services", *words, "--as", "lab")
        assert said.code == 0, said
        followed = await live.command("services", "rollout", "status", service, "--wait", "--as", "lab")
        assert followed.code == 0, followed
        await live.until_folded()
        assert not live.state.jobs.get(service).array.rollout_state

        async def all_have_it(image: str = image) -> bool:
            return await images(live, service) == [image] * REPLICAS

        await eventually(all_have_it, f"the pods run {image}")
    assert (await live.command("cancel", service, "--as", "lab")).code == 0
    await live.until_ended(service)
    await assert_all_is_well(live)
