"""`POST /v1/consequences`: who may ask about which order, and what is answered; nothing is sent."""

from typing import Any

from tests.builders import admitted, job_spec, role
from tests.unit.gateway.gateway_world import World

PATH = "/v1/consequences"


def drain(**more: Any) -> dict[str, Any]:
    return {"command": {"kind": "drain_node", "v": 1, "node": "node-a", **more}}


async def test_an_operator_reads_who_goes_and_a_tenant_only_of_its_own_jobs(world: World) -> None:
    job = admitted("k1", job_spec(role(replicas=2, gpus=8), name="train"), "lab")
    await world.commit(job)
    await world.commit(orders=(world.committed.line(),))
    cancel = {"command": {"kind": "cancel_job", "v": 1, "job_id": job.job_id}}
    config = world.committed.state.config
    body = config.body.model_dump(mode="json")
    body["queues"][0]["stop_policy"] = "hold_and_drain"
    apply = {"command": {"kind": "apply_config", "v": 1, "expected_version": config.version, "body": body}}
    operator, lab, other = world.token(None), world.token("lab"), world.token("other")
    async with world.gateway():
        emptied = await world.ask("POST", PATH, operator, drain(evict=True))
        applied = await world.ask("POST", PATH, operator, apply)
        own = await world.ask("POST", PATH, lab, cancel)
        refused = [await world.ask("POST", PATH, lab, each) for each in (drain(), apply)]
        stranger = await world.ask("POST", PATH, other, cancel)
        wrong = await world.ask("POST", PATH, operator, {"command": {"kind": "submit_job", "v": 1}})
    assert (emptied.status, emptied.body["runs"], emptied.body["gpu_milli"]) == (200, 1, 16_000)
    assert emptied.body["stopped"][0]["code"] == "NodeDrained"
    assert any("train" in sentence for sentence in emptied.body["sentences"])
    assert applied.body["stopped"][0]["code"] == "QueueDrained"
    assert (own.status, own.body["stopped"][0]["name"]) == (200, "train")
    assert [each.status for each in refused] == [403, 403]
    assert (stranger.status, wrong.status) == (404, 422)
    assert world.commands == []
