"""Elastic jobs on real processes: large while nobody waits, small while somebody does, and never stopped for it."""

import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tessera_schemas.config import Policy
from tests.e2e.elastic_suite import (  # noqa: F401
    LARGEST,
    elastic,
    has_pods,
    test_it_grows_into_an_empty_cluster_gives_way_to_who_waits_and_grows_back,
    test_it_succeeds_with_all_that_it_grew_by,
)
from tests.e2e.live import Live, configuration, job
from tests.e2e.platform_checks import assert_all_is_well

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    """Nobody may be evicted, and what is elastic grows as soon as it can."""
    home: Path = tmp_path_factory.mktemp("platform")
    async with Live.at(home, configuration(policy=Policy(preset="off", grow_after_seconds=1))) as live:
        yield live


@pytest.mark.parametrize("service", ["binder", "reclamation", "scheduler", "preemption"])
async def test_it_changes_its_size_whoever_dies_meanwhile(live: Live, service: str) -> None:
    large = await live.submit(elastic(600))
    await live.until_phase(large.job_id, "running")
    await live.kill(service)
    await live.until(lambda state: has_pods(state, large.job_id, LARGEST), "it has the whole cluster")
    waiting = await live.submit(job("waiting", gpus=8, seconds=0.5))
    await live.kill(service)
    await live.until_ended(waiting.job_id)
    await live.until(lambda state: has_pods(state, large.job_id, LARGEST), "it has grown back")
    await live.clients["lab"].cancel(large.job_id)
    await assert_all_is_well(live)


async def test_without_a_planner_it_keeps_its_size_and_the_job_waits(live: Live) -> None:
    large = await live.submit(elastic(600))
    await live.until_phase(large.job_id, "running")
    await live.until(lambda state: has_pods(state, large.job_id, LARGEST), "it has the whole cluster")
    async with live.down("preemption", signal.SIGTERM):
        waiting = await live.submit(job("waiting", gpus=8, seconds=0.3))
        await live.until_phase(waiting.job_id, "queued")
        assert has_pods(live.state, large.job_id, LARGEST)
    await live.until_ended(waiting.job_id)
    await live.clients["lab"].cancel(large.job_id)
    await assert_all_is_well(live)
