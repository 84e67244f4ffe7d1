"""The Service that gives a run's pods their names: there before them, gone after them, whoever dies in between."""

from typing import Any

from tessera.binder.launchers.naming import service_name, service_of
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import RUN_LABEL, SHARD_LABEL
from tests.builders import SHARD, admitted
from tests.unit.binder.cluster_world import World, train


def services(world: World) -> list[Json]:
    return [version.object for version in world.core.list("services")[0]]


def names(world: World) -> list[str]:
    return sorted(service["metadata"]["name"] for service in services(world))


def torchrun(**more: Any) -> Any:
    return train(launcher="torchrun", **more)


def leftover(world: World, run_id: str, n: int = 1, **labels: str) -> None:
    """A Service as a binder leaves it that died."""
    body = service_of(world.job(run_id.rpartition("-")[0]), run_id, n)
    body["metadata"]["labels"] |= {SHARD_LABEL: SHARD, **labels}
    world.core.create("services", "lab", body)


async def test_a_torchrun_gang_has_a_service_of_its_shard_that_selects_its_pods() -> None:
    async with World() as world:
        job = await world.submit(spec=torchrun(replicas=2))
        (service,) = services(world)
        run_id = world.current(job).run_id
        assert service["metadata"]["labels"][SHARD_LABEL] == SHARD
        assert service["spec"]["selector"] == {RUN_LABEL: run_id}
        assert {pod["spec"]["subdomain"] for pod in world.pods(run_id)} == {service["metadata"]["name"]}


async def test_the_service_is_there_before_the_first_pod() -> None:
    async with World() as world:
        await world.submit(spec=torchrun(replicas=2))
        (service,) = services(world)
        versions = [int(pod["metadata"]["uid"][-12:], 16) for pod in world.pods()]
        assert int(service["metadata"]["uid"][-12:], 16) < min(versions)


async def test_a_plain_gang_has_none() -> None:
    async with World() as world:
        await world.submit(spec=train(replicas=2))
        assert services(world) == []


async def test_it_goes_when_the_run_has_ended_and_is_released() -> None:
    async with World() as world:
        job = await world.submit(spec=torchrun(seconds=5))
        await world.run(10)
        assert world.job(job).phase == "succeeded"
        assert services(world) == []


async def test_the_next_attempt_has_one_of_its_own_and_the_old_one_goes() -> None:
    async with World() as world:
        job = await world.submit(spec=torchrun(replicas=2))
        world.core.vanish("lab", f"{world.current(job).run_id}-1")
        await world.run(12)
        assert world.current(job).attempt == 2
        assert names(world) == [service_name(f"{job}-2")]


async def test_one_that_somebody_deletes_under_a_run_is_made_again() -> None:
    async with World() as world:
        await world.submit(spec=torchrun())
        (name,) = names(world)
        world.core.delete("services", "lab", name)
        await world.run(2)
        assert names(world) == [name]


async def test_one_that_is_deleted_again_and_again_is_not_made_as_often() -> None:
    """Two binders, of which one is behind on the ledger, would do nothing else, as fast as the API server answers."""
    async with World() as world:
        await world.submit(spec=torchrun())
        (name,) = names(world)
        made = 0
        for _ in range(20):
            if names(world):
                world.core.delete("services", "lab", name)
                made += 1
            await world.run(0.25)
        assert 2 <= made <= 4
        await world.run(12)
        assert names(world) == [name]


async def test_a_binder_that_dies_before_it_is_deleted_leaves_it_to_the_next_one() -> None:
    async with World() as world:
        job = await world.submit(spec=torchrun(seconds=600))
        run_id = world.current(job).run_id
        await world.stop("binder")
        world.core.vanish("lab", f"{run_id}-0")  # as if all that was left of the run were its Service
        world.start_binder()
        await world.run(12)
        assert service_name(run_id) not in names(world)


async def test_one_of_a_run_that_the_ledger_never_knew_is_deleted() -> None:
    async with World() as world:
        job = await world.submit(spec=train())
        leftover(world, f"{job}-7")
        await world.run(2)
        assert services(world) == []


async def test_one_beyond_the_ledgers_end_is_deleted_once_it_is_certain_that_the_ledger_lost_it() -> None:
    async with World() as world:
        job = await world.submit(spec=train())
        leftover(world, f"{job}-7", n=world.state.n + 1000)
        await world.run(2)
        assert names(world) == [service_name(f"{job}-7")]
        await world.run(30)
        assert names(world) == []


async def test_one_of_another_shard_is_left_alone() -> None:
    async with World() as world:
        job = await world.submit(spec=train())
        leftover(world, f"{job}-7", **{SHARD_LABEL: "elsewhere"})
        await world.run(2)
        assert names(world) == [service_name(f"{job}-7")]


async def test_an_answer_that_was_lost_makes_no_second_one() -> None:
    async with World() as world:
        world.core.faults.lose_answers("create")
        await world.submit(spec=torchrun())
        assert len(services(world)) == 1


async def test_a_stranger_of_the_same_name_ends_the_attempt_with_its_name() -> None:
    async with World() as world:
        fact = admitted("k1", torchrun())
        body = {"metadata": {"name": service_name(f"{fact.job_id}-1")}, "spec": {}}
        world.core.create("services", "lab", body)
        await world.commit(fact)
        await world.run(10)
        job = world.job(fact.job_id)
        assert (job.phase, job.attempt, job.strikes) == ("running", 2, 0)
        (said,) = world.said("bind_failed")
        assert "exists and is not ours" in said.reason.detail
        assert names(world) == [service_name(f"{fact.job_id}-{attempt}") for attempt in (1, 2)]


async def test_a_pod_that_its_owner_named_below_a_service_of_his_own_gets_none_of_ours() -> None:
    async with World() as world:
        job = await world.submit(spec=train())
        run_id = world.current(job).run_id
        labels = {RUN_LABEL: run_id, SHARD_LABEL: SHARD}
        spec = {"schedulerName": "tessera", "subdomain": "theirs", "containers": [{"name": "main", "image": "img"}]}
        world.core.create("pods", "lab", {"metadata": {"name": "theirs-0", "labels": labels}, "spec": spec})
        await world.run(1)
        assert services(world) == []
