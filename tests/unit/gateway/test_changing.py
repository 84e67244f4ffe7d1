"""The spec of a job, as it is and with a change, and the priority classes that it may get."""

from tessera_schemas.config import Tenant
from tests.builders import SHARD, admitted, config_body, config_proposed, job_spec, role
from tests.unit.gateway.gateway_world import World

LARGE = job_spec(role(replicas=3, gpus=8), name="large")
JOB = f"/v1/jobs/{admitted('k1').job_id}"


async def test_a_change_that_explain_offers_is_shown_and_what_it_shows_may_be_submitted(world: World) -> None:
    await world.commit(admitted("k1", LARGE))
    await world.commit(orders=(world.committed.line(),))
    token = world.token("lab")
    async with world.gateway():
        offered = (await world.ask("GET", f"{JOB}/explain", token)).body["changes"]
        change = next(one for one in offered if one["submittable"])
        query = "&".join(f"{name}={change[name]}" for name in ("kind", "role", "value"))
        shown = (await world.ask("GET", f"{JOB}/spec?{query}", token)).body
        assert shown["differences"] == [{"field": "roles.worker.resources.gpus", "before": 8, "after": 4}]
        sent = await world.ask("POST", "/v1/jobs", token, {"key": "k2", "spec": shown["spec"]})
        assert sent.status == 201
        plain = (await world.ask("GET", f"{JOB}/spec", token)).body
    assert plain["differences"] == []
    assert plain["spec"] == LARGE.model_dump(mode="json", exclude_none=True)


async def test_no_change_is_submittable_for_an_operator_who_submits_no_jobs(world: World) -> None:
    await world.commit(admitted("k1", LARGE))
    await world.commit(orders=(world.committed.line(),))
    operator = world.token(None)
    async with world.gateway():
        offered = (await world.ask("GET", f"{JOB}/explain", operator)).body["changes"]
    assert offered
    assert not any(change["submittable"] for change in offered)


async def test_who_may_not_see_a_job_is_told_neither_spec_nor_classes(world: World) -> None:
    await world.commit(admitted("k1", LARGE))
    stranger = world.token("other")
    async with world.gateway():
        for path in ("spec", "priority"):
            assert (await world.ask("GET", f"{JOB}/{path}", stranger)).status == 404


async def test_a_change_that_is_none_is_refused_in_words(world: World) -> None:
    await world.commit(admitted("k1", LARGE))
    token = world.token("lab")
    async with world.gateway():
        for query, words in (
            ("kind=evict", "no change of a spec is called evict"),
            ("kind=pods&role=nobody", "the job has no role nobody"),
            ("kind=gpus&role=worker&value=-1", "the changed spec would be invalid"),
        ):
            said = await world.ask("GET", f"{JOB}/spec?{query}", token)
            assert (said.status, said.code) == (422, "InvalidField")
            assert words in said.body["sentence"]


async def test_the_classes_of_a_job_are_those_granted_to_its_tenant_highest_first(world: World) -> None:
    await world.commit(admitted("k1", LARGE))
    token, operator = world.token("lab"), world.token(None)
    async with world.gateway():
        every = (await world.ask("GET", f"{JOB}/priority", token)).body
        assert every["priority_class"] == "normal"
        assert [one["value"] for one in every["classes"]] == sorted(
            (one["value"] for one in every["classes"]), reverse=True
        )
        body = config_body()
        granted = tuple(
            Tenant(name=one.name, priority_classes=("low", "normal")) if one.name == "lab" else one
            for one in body.tenants
        )
        await world.commit(config_proposed(body.model_copy(update={"tenants": granted}), 1))
        for asks in (token, operator):
            found = (await world.ask("GET", f"{JOB}/priority", asks)).body["classes"]
            assert [one["name"] for one in found] == ["normal", "low"]


async def test_the_spec_of_a_job_that_has_ended_is_that_which_was_submitted(world: World) -> None:
    ended = [world.committed.run_to_its_end(f"k{i}", gpus=1 + i) for i in range(8)]
    await world.commit()
    token, stranger = world.token("lab"), world.token("other")
    async with world.gateway():
        for i, job in enumerate(ended):
            shown = await world.ask("GET", f"/v1/jobs/{job}/spec", token)
            assert shown.status == 200
            assert shown.body["spec"]["roles"][0]["resources"]["gpus"] == 1 + i
        changed = (await world.ask("GET", f"/v1/jobs/{ended[3]}/spec?kind=gpus&role=worker&value=2", token)).body
        assert changed["differences"] == [{"field": "roles.worker.resources.gpus", "before": 4, "after": 2}]
        sent = await world.ask("POST", "/v1/jobs", token, {"key": "again", "spec": shown.body["spec"]})
        assert sent.status == 201
        assert (await world.ask("GET", f"/v1/jobs/{ended[0]}/spec", stranger)).status == 404


async def test_a_spec_that_left_the_ledger_by_a_roll_over_says_where_it_is(world: World) -> None:
    ended = world.committed.run_to_its_end("old", gpus=1)
    await world.commit(admitted("k1", LARGE))
    token, ledger = world.token("lab"), world.broker.stream(f"LEDGER_{SHARD}")
    async with world.gateway():
        ledger.purge(world.committed.state.n)
        said = await world.ask("GET", f"/v1/jobs/{ended}/spec", token)
    assert (said.status, said.code) == (410, "RolledOver")
    assert "the operator's backup has it" in said.body["sentence"]
