"""What a program says of its checkpoints, and jobs made from templates or submitted held, over HTTP."""

from typing import Any

import pytest

from tessera_schemas.base import job_id
from tessera_schemas.facts import PodsMade, RunStarted
from tests.builders import SHARD, admitted, config_body, config_proposed, job_spec, node_seen
from tests.unit.gateway.gateway_world import World

K1 = job_id(SHARD, "lab", "k1")
RUN = f"{K1}-1"
SPEC = job_spec().model_dump(mode="json", exclude_defaults=True)
TEMPLATE: dict[str, Any] = {
    "name": "tune",
    "parameters": [{"name": "lr", "type": "string", "default": "0.1"}],
    "spec": {**SPEC, "roles": [{**SPEC["roles"][0], "template": {"image": "tune:1", "args": ["--lr={lr}"]}}]},
}


async def running(world: World) -> None:
    world.committed.commit(admitted("k1"), node_seen())
    world.committed.commit(orders=(world.committed.line(),))
    world.committed.commit(PodsMade(kind="pods_made", run_id=RUN, uids=("uid-0",)))
    await world.commit(RunStarted(kind="run_started", run_id=RUN))


async def said(world: World, token: str, **body: Any) -> Any:
    return await world.ask("POST", f"/v1/jobs/{K1}/checkpoint", token, body)


async def test_a_checkpoint_goes_out_as_the_jobs_tenant_for_the_run_that_there_is(world: World) -> None:
    await running(world)
    token = world.token("lab")
    async with world.gateway():
        answer = await said(world, token, path="/data/step-100")
    assert (answer.status, answer.body["state"]) == (202, "accepted")
    told = {"kind": "report_checkpoint", "v": 1, "job_id": K1, "path": "/data/step-100", "attempt": 1, "tenant": "lab"}
    assert world.commands == [("lab", told)]


async def test_one_of_an_attempt_that_does_not_run_is_refused(world: World) -> None:
    await running(world)
    token = world.token("lab")
    async with world.gateway():
        assert (await said(world, token, path="/data/x", attempt=1)).status == 202
        answer = await said(world, token, path="/data/x", attempt=2)
    assert (answer.status, answer.code, answer.body["field"]) == (409, "NotRunning", "attempt")
    assert answer.body["sentence"] == (
        "NotRunning: attempt: the job, or the attempt named, is not running (attempt 1, said 2)"
    )


async def test_a_job_that_waits_has_no_checkpoint(world: World) -> None:
    await world.commit(admitted("k1"))
    token = world.token("lab")
    async with world.gateway():
        answer = await said(world, token, path="/data/x")
    assert (answer.status, answer.code) == (409, "NotRunning")
    assert not world.commands


async def test_a_job_that_has_ended_has_none_either(world: World) -> None:
    world.committed.run_to_its_end("k1")
    await world.publish_what_is_committed()
    token = world.token("lab")
    async with world.gateway():
        answer = await said(world, token, path="/data/x")
    assert (answer.status, answer.code) == (409, "AlreadyEnded")


async def test_another_tenants_job_does_not_exist(world: World) -> None:
    await running(world)
    token = world.token("ops")
    async with world.gateway():
        answer = await said(world, token, path="/data/x")
    assert (answer.status, answer.code) == (404, "NoSuchJob")


@pytest.mark.parametrize("path", ["", "a\nb", "x" * 1025, 7, None], ids=["none", "two lines", "long", "number", "null"])
async def test_a_path_that_could_not_be_handed_on_is_refused_by_name(world: World, path: Any) -> None:
    await running(world)
    token = world.token("lab")
    async with world.gateway():
        answer = await said(world, token, path=path)
    assert (answer.status, answer.code, answer.body["field"]) == (422, "InvalidField", "path")
    assert not world.commands


async def test_a_job_may_be_submitted_held(world: World) -> None:
    token = world.token("lab")
    async with world.gateway():
        await world.ask("POST", "/v1/jobs", token, {"key": "k1", "spec": SPEC, "held": True})
    assert world.commands[0][1]["held"] is True
    assert world.committed.state.jobs.get(K1).held


async def test_a_template_with_its_parameters_is_a_job(world: World) -> None:
    version = world.committed.state.config.version
    await world.commit(config_proposed(expected_version=version, body=config_body(templates=(TEMPLATE,))))
    token, body = world.token("lab"), {"key": "k1", "template": "tune", "parameters": {"lr": "0.3"}, "name": "mine"}
    async with world.gateway():
        first = await world.ask("POST", "/v1/jobs", token, body)
        again = await world.ask("POST", "/v1/jobs", token, body)
        other = await world.ask("POST", "/v1/jobs", token, {**body, "parameters": {"lr": "0.4"}})
    assert (first.status, first.body["job_id"]) == (201, K1)
    assert (again.status, again.body["state"]) == (200, "existing")
    assert (other.status, other.code) == (409, "IdempotencyConflict")
    assert world.commands[0] == (
        "lab",
        {
            "kind": "submit_template",
            "v": 1,
            "tenant": "lab",
            "key": "k1",
            "template": "tune",
            "parameters": {"lr": "0.3"},
            "name": "mine",
        },
    )


async def test_a_submit_says_a_job_or_a_template(world: World) -> None:
    token = world.token("lab")
    async with world.gateway():
        neither = await world.ask("POST", "/v1/jobs", token, {"key": "k1"})
    assert (neither.status, neither.code, neither.body["field"]) == (422, "MissingField", "spec")
    assert not world.commands


async def test_the_templates_are_listed_with_their_parameters_and_without_what_is_fixed(world: World) -> None:
    version = world.committed.state.config.version
    await world.commit(config_proposed(expected_version=version, body=config_body(templates=(TEMPLATE,))))
    token = world.token("lab")
    async with world.gateway():
        listed = await world.ask("GET", "/v1/templates", token)
    (template,) = listed.body["items"]
    assert (template["name"], template["overrides"]) == ("tune", ["name"])
    assert [(parameter["name"], parameter["default"]) for parameter in template["parameters"]] == [("lr", "0.1")]
    assert "spec" not in template
