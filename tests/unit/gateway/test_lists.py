"""What the command asks of the lists: an order by turn, a count, jobs by name, groups, and the configuration."""

from tessera_schemas.base import job_id
from tessera_schemas.config import ConfigBody, Limits, Queue
from tests.builders import SHARD, admitted, config_body, config_proposed, job_spec, role, work_refused
from tests.unit.gateway.gateway_world import World

K1 = job_id(SHARD, "lab", "k1")


async def keys_of(world: World, query: str, token: str) -> list[str]:
    """Keys of the page's jobs, in its order."""
    answer = await world.ask("GET", f"/v1/jobs?{query}", token)
    assert answer.status == 200, answer.body
    return [job["key"] for job in answer.body["items"]]


async def test_live_jobs_come_first_then_refused_work_then_ended_jobs_each_oldest_first(world: World) -> None:
    await world.commit(admitted("k1"))
    await world.commit(work_refused())
    await world.commit(admitted("k2"), admitted("k3"))
    token = world.token("lab")
    async with world.gateway():
        every = await world.ask("GET", "/v1/jobs?order=live", token)
        first = await world.ask("GET", "/v1/jobs?order=live&limit=2&count=true", token)
        second = await world.ask("GET", f"/v1/jobs?order=live&limit=2&cursor={first.body['next']}", token)
    phases = [job["phase"] for job in every.body["items"]]
    assert phases == ["queued", "queued", "queued", "refused"]
    assert every.body["items"][0]["key"] == "k1"
    assert first.body["items"] + second.body["items"] == every.body["items"]
    assert (first.body["count"], "count" in second.body) == (4, False)


async def test_a_count_is_of_ones_own_jobs_that_are_wanted(world: World) -> None:
    await world.commit(*(admitted(f"k{i}", tenant=tenant) for i in range(3) for tenant in ("lab", "other")))
    lab, operator = world.token("lab"), world.token(None)
    async with world.gateway():

        async def count(query: str, token: str) -> object:
            return (await world.ask("GET", f"/v1/jobs?limit=1&count=true&{query}", token)).body.get("count")

        assert await count("", lab) == 3
        assert await count("", operator) == 6
        assert await count("tenant=other", operator) == 3
        assert await count("phase=queued&queue=research", lab) == 3
        assert await count("phase=running", lab) == 0
        assert await count("queue=elsewhere", lab) == 0
        assert await count("search=k", lab) is None


async def test_jobs_are_found_by_their_name_their_number_or_the_beginning_of_their_id(world: World) -> None:
    await world.commit(admitted("k1", job_spec(name="one")), admitted("k2", job_spec(name="two")))
    token = world.token("lab")
    async with world.gateway():
        number = (await world.ask("GET", f"/v1/jobs/{K1}", token)).body["job"]["number"]
        assert await keys_of(world, f"named={number}", token) == ["k1"]
        assert await keys_of(world, "named=two", token) == ["k2"]
        assert await keys_of(world, f"named={K1[:4]}", token) == ["k1"]
        assert await keys_of(world, f"named={K1[:3]}", token) == []


async def test_live_jobs_are_grouped_by_tenant_and_by_why_they_wait(world: World) -> None:
    await world.commit(
        admitted("k1", job_spec(role(gpus=8))), admitted("k2", job_spec(role(gpus=4))), admitted("k3", tenant="other")
    )
    lab, operator = world.token("lab"), world.token(None)
    async with world.gateway():
        own = (await world.ask("GET", "/v1/work", lab)).body
        every = (await world.ask("GET", "/v1/work", operator)).body
    assert [(group["name"], group["waiting"], group["running"]) for group in own["tenants"]] == [("lab", 2, 0)]
    assert [group["name"] for group in every["tenants"]] == ["lab", "other"]
    assert sum(group["waiting"] for group in every["reasons"]) == 3
    assert own["tenants"][0]["wanted_milli"] == 12_000


async def test_the_configuration_in_force_is_for_operators(world: World) -> None:
    body, lab, operator = config_body(Queue(name="prod")), world.token("lab"), world.token(None)
    unlimited = body.tenants[0].model_copy(update={"limits": Limits(jobs=None)})
    body = body.model_copy(update={"tenants": (unlimited, *body.tenants[1:])})
    version = world.committed.state.config.version
    await world.commit(config_proposed(body, version))
    async with world.gateway():
        shown = await world.ask("GET", "/v1/config", operator)
        refused = await world.ask("GET", "/v1/config", lab)
    assert shown.body["config"]["version"] == version + 1
    assert ConfigBody.model_validate(shown.body["config"]["body"]) == body, "what is not limited stays so"
    assert (refused.status, refused.code) == (403, "Forbidden")
