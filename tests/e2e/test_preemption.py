"""Preemption and reclaim on real processes: room is made for who has a right to it, and nobody is evicted twice."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tessera.client.ledger.replay import verify
from tessera_schemas.config import Policy, Queue, Quota
from tests.e2e.live import GPUS, Live, configuration, job
from tests.e2e.platform_checks import assert_all_is_well
from tests.e2e.preemption_suite import (  # noqa: F401
    evicted,
    test_lent_quota_is_taken_back_and_every_plan_can_be_made_again,
    test_with_preemption_alone_the_urgent_job_runs_and_its_victim_comes_back,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    """A team that owns the whole cluster, half of it through its queue, and lends it to another one."""
    home: Path = tmp_path_factory.mktemp("platform")
    half = Quota(resource="gpu_milli", nominal=GPUS * 500)
    queues = (
        Queue(name="all"),
        Queue(name="team", parent="all", quotas=(half,)),
        Queue(name="default", parent="team", quotas=(half,)),
        Queue(name="guest", parent="all"),
    )
    policy = Policy(preset="fair", min_runtime_seconds=0)
    async with Live.at(home, configuration(queues=queues, policy=policy)) as live:
        yield live


async def test_what_is_a_teams_own_comes_back_to_its_queue_and_explain_names_who_has_it(live: Live) -> None:
    """The queue itself has half of what the job asks for; the rest is of the queue above it."""
    guest = await live.submit(job("guest", gpus=8, replicas=4, seconds=3600, queue="guest"))
    await live.until_phase(guest.job_id, "running")
    async with live.down("reclamation"):
        owner = await live.submit(job("owner", gpus=8, replicas=4, seconds=0.3))
        await live.until(lambda state: state.jobs.get(owner.job_id) is not None, "it is taken in")
        said = await live.command("explain", owner.job_id, "--as", "operator")
        told = f"Lent of what is queue team's own to queue guest, 32 GPUs in 1 run ({guest.job_id}-1)"
        assert told in " ".join(said.out.split())
    await live.until_ended(owner.job_id)
    assert evicted(live, owner.job_id) == [f"{guest.job_id}-1"]
    await live.clients["lab"].cancel(guest.job_id)
    await assert_all_is_well(live)
    assert verify(live.stored).findings == []
