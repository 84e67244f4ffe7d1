"""The Service and the key of a run: there before its pods, gone after them, whoever dies in between."""

from typing import Any

from tessera.binder.launchers.naming import service_name, service_of
from tessera.kernel.errors import Transient
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import RUN_LABEL, SHARD_LABEL
from tessera_schemas.job import JobSpec
from tests.builders import SHARD, admitted
from tests.unit.binder.cluster_world import World, train


def services(world: World) -> list[Json]:
    return [version.object for version in world.core.list("services")[0]]


def names(world: World) -> list[str]:
    return sorted(service["metadata"]["name"] for service in services(world))


def torchrun(**more: Any) -> Any:
    return train(launcher="torchrun", **more)


def keys(world: World) -> list[Json]:
    return [version.object for version in world.core.list("secrets")[0]]


def steps(**more: Any) -> JobSpec:
    spec: JobSpec = train(launcher="steps", **more)
    worker = spec.roles[0]
    template = worker.template.model_copy(update={"command": ("train",)})
    return spec.model_copy(update={"roles": (worker.model_copy(update={"template": template}),)})


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


def with_steps(**settings: Any) -> World:
    return World(steps_image="steps:1", **settings)


def number_of(made: Json) -> int:
    """The number of an object, in the order in which all were made."""
    return int(made["metadata"]["uid"][-12:], 16)


async def test_a_run_with_steps_has_a_key_of_its_own_after_its_service_and_before_its_pods() -> None:
    async with with_steps() as world:
        jobs = [await world.submit(key, steps(replicas=2)) for key in ("k1", "k2")]
        assert sorted(key["metadata"]["name"] for key in keys(world)) == names(world)
        assert names(world) == sorted(service_name(f"{job}-1") for job in jobs)
        assert len({key["data"]["key"] for key in keys(world)}) == 2
        for key, service in zip(keys(world), services(world), strict=True):
            assert key["metadata"]["labels"] == service["metadata"]["labels"]
            run_id = key["metadata"]["labels"][RUN_LABEL]
            assert number_of(service) < number_of(key) < min(number_of(pod) for pod in world.pods(run_id))


async def test_the_simulated_program_of_a_run_with_steps_runs_and_its_key_goes_with_the_run() -> None:
    async with with_steps() as world:
        job = await world.submit(spec=steps(seconds=5))
        assert len(keys(world)) == 1
        await world.run(10)
        assert world.job(job).phase == "succeeded"
        assert (services(world), keys(world)) == ([], [])


async def test_the_next_attempt_has_another_key() -> None:
    async with with_steps() as world:
        job = await world.submit(spec=steps(replicas=2))
        (first,) = keys(world)
        world.core.vanish("lab", f"{world.current(job).run_id}-1")
        await world.run(12)
        (second,) = keys(world)
        assert second["metadata"]["name"] == service_name(f"{job}-2")
        assert second["data"] != first["data"]


async def test_a_binder_that_died_after_the_key_leaves_the_key_as_it_is() -> None:
    async with with_steps() as world:
        made = admitted("k1", steps(replicas=2))
        refused = world.core.create

        def no_pods(resource: str, *words: Any) -> Any:
            if resource == "pods":
                raise Transient("connection refused")
            return refused(resource, *words)

        world.core.create = no_pods  # type: ignore[method-assign]
        await world.commit(made)
        await world.run(1)
        before = keys(world)
        await world.stop("binder")
        world.core.create = refused  # type: ignore[method-assign]
        world.start_binder()
        await world.run(3)
        assert world.job(made.job_id).phase == "running"
        assert keys(world) == before
        assert len(before) == 1


async def test_an_answer_about_a_key_that_was_lost_makes_no_second_attempt() -> None:
    async with with_steps() as world:
        world.core.faults.lose_answers("create", 2)
        job = await world.submit(spec=steps())
        assert world.current(job).attempt == 1
        assert len(keys(world)) == 1


async def test_a_strangers_secret_of_that_name_ends_the_attempt_with_its_name_and_stays() -> None:
    async with with_steps() as world:
        fact = admitted("k1", steps())
        body = {"metadata": {"name": service_name(f"{fact.job_id}-1")}, "data": {"key": "dGhlaXJz"}}
        world.core.create("secrets", "lab", body)
        await world.commit(fact)
        await world.run(10)
        job = world.job(fact.job_id)
        assert (job.phase, job.attempt, job.strikes) == ("running", 2, 0)
        (said,) = world.said("bind_failed")
        assert said.reason.detail == f"secret {service_name(f'{fact.job_id}-1')} exists and is not ours"
        await world.run(20)
        assert [key["metadata"]["name"][-1] for key in keys(world)] == ["1", "2"]
        assert names(world) == [service_name(f"{fact.job_id}-2")]


async def test_a_binder_without_the_image_says_what_it_lacks() -> None:
    async with World() as world:
        fact = admitted("k1", steps())
        await world.commit(fact)
        await world.run(2)
        assert "steps_image" in world.said("bind_failed")[0].reason.detail
        assert world.pods() == keys(world) == services(world) == []
