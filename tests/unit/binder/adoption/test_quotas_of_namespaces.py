"""
Jobs of which the namespace takes only some pods, as under a ResourceQuota: their owners are told its name, and where
waiting work waits suspended one is let through after the other.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
import pytest_asyncio

from tessera_local.cluster.api.values import rfc3339
from tessera_local.cluster.objects.jobs import JobController
from tessera_local.cluster.objects.shelf import Version
from tessera_schemas.cluster.labels import ENDED_PHASES
from tessera_schemas.config import Queue
from tests.unit.binder.adoption.adoption_world import NS, AdoptionWorld

QUOTA = 6
WORDS = "exceeded quota: small, requested: requests.nvidia.com/gpu=1, used: requests.nvidia.com/gpu=6"


class UnderAQuota(JobController):
    """Makes one pod of each Job at a time, as several workers of the real controller do, while the quota takes it."""

    def _make(self, job: Version, active: Sequence[Version], done: Sequence[str], number: int) -> None:
        pods = [pod for pod in self._cluster.list("pods")[0] if pod.phase not in ENDED_PHASES]
        if number > 0 and len(pods) >= QUOTA:
            self._refuse(job)
        else:
            super()._make(job, active, done, min(number, 1))

    def _refuse(self, job: Version) -> None:
        self._made += 1
        now = rfc3339(self._clock.now_ms())
        event = {
            "metadata": {"name": f"{job.meta['name']}.{self._made}"},
            "involvedObject": {"kind": "Job", "name": job.meta["name"], "namespace": NS, "uid": job.uid},
            "reason": "FailedCreate",
            "type": "Warning",
            "message": f'Error creating: pods "{job.meta["name"]}-x" is forbidden: {WORDS}',
            "lastTimestamp": now,
        }
        self._cluster.create("events", NS, event)


@pytest_asyncio.fixture
async def world() -> AsyncIterator[AdoptionWorld]:
    async with AdoptionWorld(nodes=("node-a", "node-b")) as world:
        await world.stop("jobs")
        world._tasks["jobs"] = [asyncio.create_task(UnderAQuota(world.core, world.clock).run())]
        yield world


def told(world: AdoptionWorld, name: str) -> list[str]:
    events = (event for event in world.events() if event["involvedObject"]["name"] == name)
    return [event["message"] for event in events if event["reason"] == "PodsMissing"]


async def test_both_owners_of_gangs_that_lock_each_other_are_told_the_name_of_the_quota(world: AdoptionWorld) -> None:
    for name in ("a", "b"):
        world.make_job(name, pods=4)
    await world.run(30)
    assert not world.state.runs
    for name in ("a", "b"):
        assert "exceeded quota: small" in told(world, name)[0]
        assert "exceeded quota: small" in world.condition(world.owned(f"{name}-")[0])["message"]
        assert "exceeded quota: small" in str(world.job_object(name)["status"]["conditions"])
    refused = {work.owner: work.reasons[0].detail for work in world.state.refused.values()}
    assert refused.keys() == {"Job/a", "Job/b"}
    assert all("exceeded quota: small" in detail for detail in refused.values())


@pytest.mark.parametrize("suspended", [False, True], ids=["by their queue", "at their creation"])
async def test_of_gangs_that_lock_each_other_one_is_let_through_after_the_other(
    world: AdoptionWorld, suspended: bool
) -> None:
    if not suspended:
        await world.configure(Queue(name="research", suspend_waiting=True))
    for name in ("a", "b"):
        world.make_job(name, pods=4, seconds=60, **({"suspend": True} if suspended else {}))
    most = 0
    for _ in range(600):
        await world.run(1)
        most = max(most, sum(pod["status"]["phase"] == "Running" for pod in world.owned("")))
        if len(world.ended("")) == 2:
            break
    assert [job.phase for job in world.ended("")] == ["succeeded", "succeeded"]
    assert most == 4, "one gang at a time"
    for name in ("a", "b"):
        assert world.job_object(name)["status"]["failed"] == 0
    assert not world.state.refused


@pytest.mark.parametrize("suspended", [False, True])
async def test_a_deadline_that_runs_while_its_job_waits_is_warned_of(world: AdoptionWorld, suspended: bool) -> None:
    world.make_job("a", pods=2, activeDeadlineSeconds=600, suspend=suspended)
    await world.run(10)
    told = [event["message"] for event in world.events() if event["reason"] == "NotHonoured"]
    assert ["spec.activeDeadlineSeconds: it runs while its pods wait" in message for message in told] == (
        [] if suspended else [True]
    )
