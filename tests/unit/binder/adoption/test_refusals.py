"""Refused work stands in the ledger's state, for as long as it is refused and its objects are there."""

from tests.builders import queue
from tests.unit.binder.adoption.adoption_world import NS, AdoptionWorld


def refused(world: AdoptionWorld) -> dict[str, str]:
    """The first reason by who is refused."""
    return {work.owner: work.reasons[0].code for work in world.state.refused.values()}


async def test_refusals_of_admission_and_binder_are_shown_with_owner_queue_and_reason() -> None:
    async with AdoptionWorld() as world:
        world.make_job("train", labels={"tessera.io/queue": "nowhere"})
        world.make_pod("apart", hostNetwork=False, volumes=[{"name": "scratch", "ephemeral": {}}])
        await world.run(20)
        assert refused(world) == {"Job/train": "NoSuchQueue", "Pod/apart": "NotSupportedYet"}
        (train,) = (work for work in world.state.refused.values() if work.owner == "Job/train")
        assert (train.tenant, train.queue) == (NS, "nowhere")
        said = len(world.said("work_refused"))
        await world.run(60)
        assert len(world.said("work_refused")) == said


async def test_a_refused_job_is_shown_no_more_once_it_is_gone_or_taken_in() -> None:
    async with AdoptionWorld() as world:
        world.make_job("gone", labels={"tessera.io/queue": "nowhere"})
        world.make_job("mended", labels={"tessera.io/queue": "later"})
        await world.run(20)
        assert set(refused(world)) == {"Job/gone", "Job/mended"}
        for pod in world.owned("gone"):
            world.core.delete("pods", NS, pod["metadata"]["name"])
        world.core.delete("jobs", NS, "gone")
        await world.configure(queue("research"), queue("later"))
        await world.run(60)
        assert refused(world) == {}
        assert world.only("mended").phase == "running"


async def test_what_went_while_the_binder_was_down_is_cleared_when_it_is_back() -> None:
    async with AdoptionWorld() as world:
        world.make_pod("alone", labels={"tessera.io/queue": "nowhere"})
        await world.run(10)
        await world.stop("binder")
        world.core.delete("pods", NS, "alone")
        world.start_binder()
        await world.run(30)
        assert refused(world) == {}


async def test_a_flood_of_refused_pods_is_shown_in_part_and_said_a_few_at_a_time() -> None:
    async with AdoptionWorld() as world:
        for number in range(60):
            world.make_pod(f"each-{number}", labels={"tessera.io/queue": "nowhere"})
        await world.run(4)
        assert len(world.said("work_refused")) <= 25
        await world.run(90)
        assert len(refused(world)) == 32
        assert len(world.said("work_refused")) <= 40
