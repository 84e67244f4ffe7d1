"""
`GET /v1/services`, `POST /v1/jobs/ID/scale` and `/rollout`: who sees which services, and what is refused at once.
"""

from typing import Any

import pytest

from tessera.gateway.reading.groups import service_rows
from tessera_schemas.base import job_id
from tessera_schemas.facts import HoldRequested
from tessera_schemas.shard.records import RolloutRequested, ScaleRequested
from tessera_schemas.work.adopted import Adopted, Service
from tessera_schemas.work.arrays import SERVICE_TASKS, JobArray, ServiceSize
from tests.builders import SHARD, admitted, job_spec, role
from tests.rounds import Rounds
from tests.unit.gateway.gateway_world import World

CHAT = job_spec(
    role(gpus=2),
    name="chat",
    service=ServiceSize(min_replicas=0, max_replicas=3, replicas=2),
    array=JobArray(tasks=SERVICE_TASKS),
)
OWN = Service(kind="Deployment", name="search", uid="of-search", min_replicas=1)


def test_services_of_both_kinds_are_listed_with_what_runs_and_waits() -> None:
    rounds = Rounds(nodes={"node-a": 5})
    rounds.commit(admitted("chat", CHAT))
    rounds.settle()
    for key in ("search-0", "search-1"):
        adopted = Adopted(owner_kind="Pod", owner_name=key, uids=(f"uid-{key}",), service=OWN)
        rounds.commit(admitted(key, job_spec(role(gpus=1), name=key)).model_copy(update={"adopted": adopted}))
        rounds.settle()
    own, chat = service_rows(rounds.state, "lab")
    assert (own.name, own.replicas, own.running, own.waiting, own.min_replicas) == ("Deployment/search", 2, 1, 1, 1)
    assert (own.job_id, own.max_replicas) == ("", 0)
    assert (chat.name, chat.replicas, chat.running, chat.gpu_milli) == ("service/chat", 2, 2, 4000)
    assert (chat.job_id, chat.max_replicas, chat.queue) == (job_id(SHARD, "lab", "chat"), 3, "research")
    assert (own.guaranteed, chat.guaranteed) == (1, 0)
    assert own.why.startswith("NoFit: ")
    assert chat.why == ""
    assert service_rows(rounds.state, "other") == ()
    assert len(service_rows(rounds.state, None)) == 2


def test_a_service_at_no_replicas_is_listed() -> None:
    rounds = Rounds()
    rounds.commit(admitted("chat", CHAT))
    rounds.settle()
    service = job_id(SHARD, "lab", "chat")
    rounds.commit(ScaleRequested(kind="scale_requested", job_id=service, replicas=0, tenant="lab"))
    rounds.settle()
    (chat,) = service_rows(rounds.state, "lab")
    assert (chat.replicas, chat.running, chat.waiting, chat.gpu_milli) == (0, 0, 0, 0)


def test_a_service_says_why_it_has_fewer_replicas_than_it_wants() -> None:
    rounds = Rounds(nodes={"node-a": 3})
    rounds.commit(admitted("chat", CHAT))
    rounds.settle()
    service = job_id(SHARD, "lab", "chat")
    (short,) = service_rows(rounds.state, "lab")
    assert (short.replicas, short.running, short.waiting) == (2, 1, 1)
    assert short.why.startswith("NoFit: ")
    rounds.commit(HoldRequested(kind="hold_requested", job_id=service, tenant="lab"))
    rounds.settle()
    (held,) = service_rows(rounds.state, "lab")
    assert held.why.startswith("OnHold: ")


async def test_a_scale_is_sent_for_a_service_and_refused_for_others_and_beyond_its_bounds(world: World) -> None:
    await world.commit(admitted("chat", CHAT), admitted("train", job_spec(role(gpus=1), name="train")))
    token = world.token("lab")
    async with world.gateway():
        paths = {name: f"/v1/jobs/{job_id(SHARD, 'lab', name)}/scale" for name in ("chat", "train")}
        fine = await world.ask("POST", paths["chat"], token, {"replicas": 3})
        beyond = await world.ask("POST", paths["chat"], token, {"replicas": 4})
        none = await world.ask("POST", paths["train"], token, {"replicas": 1})
        listed = await world.ask("GET", "/v1/services", token)
    assert fine.status == 202
    assert (beyond.body["code"], beyond.body["field"]) == ("InvalidField", "replicas")
    assert (none.body["code"], none.body["field"]) == ("InvalidField", "job_id")
    assert [row["name"] for row in listed.body["items"]] == ["service/chat"]
    assert [command["replicas"] for _, command in world.commands if command["kind"] == "scale_service"] == [3]


async def roll(world: World, *bodies: dict[str, Any], name: str = "chat") -> list[Any]:
    token = world.token("lab")
    async with world.gateway():
        path = f"/v1/jobs/{job_id(SHARD, 'lab', name)}/rollout"
        return [await world.ask("POST", path, token, body) for body in bodies]


def wishes(world: World) -> list[dict[str, Any]]:
    return [command for _, command in world.commands if command["kind"] == "roll_service"]


async def test_a_rollout_sends_the_whole_programs_of_each_role_with_what_changes(world: World) -> None:
    await world.commit(admitted("chat", CHAT))
    spec = CHAT.model_dump(mode="json", exclude_unset=True, exclude={"array"})
    spec["roles"][0]["template"] = {"image": "chat:3", "args": ["--fast"]}
    fields = {"programs": {"worker": {"env": {"A": "b"}}}}
    answers = await roll(world, {"image": "chat:2", "max_surge": 2}, fields, {"spec": spec})
    assert [answer.status for answer in answers] == [202, 202, 202]
    assert [wish["programs"]["worker"] for wish in wishes(world)] == [
        {"image": "chat:2"},
        {"image": "train:1", "env": {"A": "b"}},
        {"image": "chat:3", "args": ["--fast"]},
    ]
    assert [wish.get("max_surge") for wish in wishes(world)] == [2, None, None]
    assert {wish["revision"] for wish in wishes(world)} == {1}


SPEC = CHAT.model_dump(mode="json", exclude_unset=True, exclude={"array"})
LARGER = {**SPEC, "roles": [{**SPEC["roles"][0], "resources": {"gpus": 4}}]}


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({}, "say spec"),
        ({"undo": True}, "undo"),
        ({"undo": True, "image": "chat:2"}, "say spec"),
        ({"image": "train:1"}, "programs"),
        ({"image": "chat:2", "revision": 4}, "revision"),
        ({"image": "chat:2", "max_surge": 0}, "max_surge"),
        ({"programs": {"head": {"image": "chat:2"}}}, "programs.head"),
        ({"programs": {"worker": {"volumes": []}}}, "programs.worker.volumes"),
        ({"spec": {**SPEC, "queue": "prod"}}, "queue"),
        ({"spec": LARGER}, "roles[0].resources.gpus"),
        ({"spec": {**SPEC, "service": {"min_replicas": 1}}}, "service.min_replicas"),
    ],
    ids=[
        "nothing",
        "an undo without a rollout",
        "an undo and an image",
        "the same",
        "another revision",
        "no way to move",
        "a role that is not there",
        "what is no program's",
        "another queue",
        "another size",
        "another minimum",
    ],
)
async def test_what_no_rollout_changes_is_refused_by_name(world: World, body: dict[str, Any], word: str) -> None:
    await world.commit(admitted("chat", CHAT))
    (answer,) = await roll(world, body)
    assert answer.status == 422
    assert word in answer.body.get("field", "") + answer.body["sentence"]
    assert not wishes(world)


async def test_only_services_are_rolled(world: World) -> None:
    await world.commit(admitted("train", job_spec(role(gpus=1), name="train")))
    (answer,) = await roll(world, {"image": "train:2"}, name="train")
    assert (answer.body["code"], answer.body["field"]) == ("InvalidField", "job_id")


def test_a_service_that_rolls_says_how_far_it_is_and_why_it_waits() -> None:
    rounds = Rounds(nodes={"node-a": 4})
    rounds.commit(admitted("chat", CHAT))
    rounds.settle()
    (before,) = service_rows(rounds.state, "lab")
    assert (before.revision, before.renewed, before.rollout) == (1, 2, "")
    asked = {"job_id": job_id(SHARD, "lab", "chat"), "tenant": "lab", "revision": 1}
    programs = {"worker": {"image": "chat:2"}}
    rounds.commit(RolloutRequested.model_validate({"kind": "rollout_requested", "programs": programs, **asked}))
    rounds.settle()
    (rolls,) = service_rows(rounds.state, "lab")
    assert (rolls.revision, rolls.renewed, rolls.running, rolls.rollout) == (2, 0, 2, "rolling")
    assert rolls.why.startswith("NoFit: ")
