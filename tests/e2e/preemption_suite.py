"""Preemption and reclaim on whichever cluster the fixture `live` is: simulated, or a real API server."""

import signal

import pytest

from tessera.client.ledger.replay import verify
from tessera.domain.state import State
from tessera.domain.work.phases import Phase
from tessera_schemas.ledger import LEDGER_MESSAGE, EarmarkSet, Revoked
from tests.e2e.live import Live, job
from tests.e2e.platform_checks import assert_all_is_well

HOW = pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])


def evicted(live: Live, owner: str) -> list[str]:
    """The runs that were stopped for the job."""
    records = [record for stored in live.stored for record in LEDGER_MESSAGE.validate_json(stored).records]
    assert sum(isinstance(record, EarmarkSet) and record.owner == owner for record in records) <= 1
    return [record.run_id for record in records if isinstance(record, Revoked) and record.by == owner]


def second_run(state: State, job_id: str) -> bool:
    known = state.jobs.get(job_id)
    return known is not None and (known.attempt, known.phase) == (2, Phase.RUNNING)


@HOW
async def test_with_preemption_alone_the_urgent_job_runs_and_its_victim_comes_back(live: Live, how: int) -> None:
    low = await live.submit(job("low", gpus=8, replicas=4, seconds=3600, priority_class="low"))
    await live.until_phase(low.job_id, "running")
    async with live.down("preemption", how):
        urgent = await live.submit(job("urgent", gpus=8, seconds=0.3, priority_class="urgent"))
        await live.until(lambda state: state.jobs.get(urgent.job_id) is not None, "it is taken in")
        assert evicted(live, urgent.job_id) == []
    await live.until_ended(urgent.job_id)
    assert evicted(live, urgent.job_id) == [f"{low.job_id}-1"]
    await live.until(lambda state: second_run(state, low.job_id), "the victim runs again")
    await live.clients["lab"].cancel(low.job_id)
    await assert_all_is_well(live)


async def test_lent_quota_is_taken_back_and_every_plan_can_be_made_again(live: Live) -> None:
    guest = await live.submit(job("guest", gpus=8, replicas=4, seconds=3600, queue="guest"))
    await live.until_phase(guest.job_id, "running")
    owner = await live.submit(job("owner", gpus=8, seconds=0.3))
    await live.until_ended(owner.job_id)
    assert evicted(live, owner.job_id) == [f"{guest.job_id}-1"]
    await live.clients["lab"].cancel(guest.job_id)
    await assert_all_is_well(live)
    report = verify(live.stored)
    assert report.findings == []
    assert report.plans >= 1
