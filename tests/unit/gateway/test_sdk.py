"""The SDK by HTTP, asynchronous or not, before a gateway on an in-memory shard."""

import asyncio
from collections.abc import Callable
from inspect import signature
from typing import Any

import pytest

from tessera.client import Failure, Refused, SyncTessera, Tessera
from tessera_schemas.commands import Answer
from tessera_schemas.reasons import Code, Reason
from tests.builders import SHARD
from tests.unit.gateway.gateway_world import World

SHORT = {"name": "train", "queue": "research", "gpus": 8, "cpu": 16, "memory": "64Gi", "image": "i"}


@pytest.fixture
def enter(world: World, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Makes the gateway that listens the one that the environment names, with a token of tenant lab."""
    token = world.token("lab")

    def name_it() -> None:
        for name in ("TESSERA_HOME", "TESSERA_NATS_URL", "TESSERA_CREDENTIALS_FILE"):
            monkeypatch.delenv(name, raising=False)
        for name, value in (("API", world.url), ("TOKEN", token), ("SHARD", SHARD)):
            monkeypatch.setenv(f"TESSERA_{name}", value)

    return name_it


def use(job: Any) -> list[Any]:
    """What a script does; the answers in order."""
    with SyncTessera.connect() as tessera:
        sent = tessera.submit(job, "k1")
        same = tessera.submit(job, "k1")
        tessera.hold(sent.job_id)
        tessera.release(sent.job_id)
        tessera.set_priority(sent.job_id, "high")
        tessera.move(sent.job_id, "prod")
        tessera.requeue(sent.job_id)
        with pytest.raises(TimeoutError):
            tessera.wait(sent.job_id, seconds=0.1)
        listed = [each.name for each in tessera.list(queue="research")]
        events = [event.data["job_id"] for event in tessera.events(sent.job_id, after=0, follow=False)]
        with pytest.raises(Failure, match="there is none with this id or name"):
            tessera.get("nobody")
        with pytest.raises(Refused, match=r"resources\.memory"):
            tessera.submit({**job, "memory": "lots"})
        tessera.cancel(sent.job_id, why="tried")
        return [
            sent.job_id == same.job_id,
            tessera.get("train").job_id == sent.job_id,
            tessera.explain("train"),
            listed,
            events,
        ]


async def test_a_script_submits_reads_and_orders_with_a_token_alone(world: World, enter: Callable[[], None]) -> None:
    async with world.gateway():
        enter()
        same, found, explained, listed, events = await asyncio.to_thread(use, SHORT)
    assert (same, found, listed) == (True, True, ["train"])
    assert (explained["phase"], explained["name"], explained["queue"]) == ("queued", "train", "research")
    assert len(events) == len(explained["story"]) > 0
    kinds = [command["kind"] for tenant, command in world.commands if tenant == "lab"]
    orders = ["hold_job", "release_job", "set_priority", "move_job", "requeue_job"]
    assert kinds == ["submit_job", "submit_job", *orders, "submit_job", "cancel_job"]
    assert world.commands[-2][1]["dry_run"] is True  # so that admission says all else that is against it
    assert world.commands[-5][1]["priority_class"] == "high"
    assert world.commands[-4][1]["queue"] == "prod"
    assert world.commands[-1][1]["why"] == "tried"


async def test_a_job_that_has_ended_runs_again_with_a_change_under_a_new_key(
    world: World, enter: Callable[[], None]
) -> None:
    world.committed.run_to_its_end("old", gpus=1)
    ended = world.committed.run_to_its_end("k1", gpus=2)
    await world.commit()

    def again() -> tuple[str, str]:
        with SyncTessera.connect() as tessera:
            first = tessera.rerun("train", changes={"roles.worker.resources.gpus": 4}, notify=lambda _: None)
            second = tessera.rerun(ended, "mine", held=True)
            assert tessera.rerun(ended, "mine", held=True).job_id == second.job_id
            return first.job_id, second.job_id

    async with world.gateway():
        enter()
        made = await asyncio.to_thread(again)
    assert len({ended, *made}) == 3
    first, second, _ = (command for _, command in world.commands)
    gpus = [each["spec"]["roles"][0]["resources"]["gpus"] for each in (first, second)]
    assert (gpus, second["key"], second["held"]) == ([4, 2], "mine", True)


ON_NATS = {"at", "judge", "send", "subscribe", "watch"}
"""Methods of `Tessera` for programs that are asynchronous: streams on NATS, and what other methods are made of."""


def test_the_sdk_for_scripts_has_each_method_with_the_same_parameters_and_docstring() -> None:
    methods = {name for name in vars(Tessera) if not name.startswith("_")} - ON_NATS
    assert methods == {name for name in vars(SyncTessera) if not name.startswith("_")}
    for name in sorted(methods):
        found, twin = (getattr(kind, name) for kind in (Tessera, SyncTessera))
        assert dict(signature(found).parameters) == dict(signature(twin).parameters), name
        assert name == "connect" or found.__doc__ == twin.__doc__, name
        assert "Async" not in str(signature(twin).return_annotation), name


async def test_of_many_jobs_each_has_its_own_outcome_in_order(world: World, enter: Callable[[], None]) -> None:
    def judge(_tenant: str, command: dict[str, Any]) -> Answer:
        refused = command["spec"]["name"] == "bad"
        reasons = (Reason(code=Code.NO_SUCH_QUEUE, field="queue"),) if refused else ()
        return Answer(accepted=not refused, reasons=reasons)

    world.judge = judge
    async with world.gateway():
        enter()
        async with Tessera.connect() as tessera:
            specs = [SHORT, {**SHORT, "name": "bad"}, {**SHORT, "name": "other"}]
            first = await tessera.submit_many(specs, "sweep")
            again = await tessera.submit_many(specs, "sweep")
    assert [getattr(each, "key", "refused") for each in first] == ["sweep-0", "refused", "sweep-2"]
    assert [(each.job_id, each.number) for each in (first[0], first[2])] == [
        (each.job_id, each.number) for each in (again[0], again[2])
    ]
    assert [(each.state) for each in (first[0], again[0])] == ["queued", "existing"]
    assert isinstance(first[1], Refused)
