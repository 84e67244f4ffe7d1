"""`tessera services update` and `rollout`: what is sent to the gateway, and how its answer is said."""

import asyncio
import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tessera.client.cli import app
from tessera.client.commands.shard.services import progress
from tessera.client.sending.sdk import Tessera
from tests.unit.client.small_gateway import Gateway

ID = "a" * 20
ROW = {
    "name": "service/chat",
    "tenant": "lab",
    "queue": "q",
    "job_id": ID,
    "replicas": 3,
    "running": 3,
    "waiting": 0,
    "min_replicas": 1,
    "max_replicas": 4,
    "gpu_milli": 3000,
    "revision": 2,
    "renewed": 1,
    "rollout": "rolling",
    "why": "",
}


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    served = Gateway()
    served.answers[f"/v1/jobs/{ID}/rollout"] = (202, {"job_id": ID, "state": "accepted", "as_of": 1})
    served.answers["/v1/services"] = (200, {"as_of": 1, "items": [ROW]})
    yield served
    served.close()


def told(gateway: Gateway, *words: str) -> Result:
    login = {"TESSERA_API": gateway.url, "TESSERA_TOKEN": "tessera_a_b", "COLUMNS": "200"}
    return CliRunner().invoke(app, ["services", *words], env=login)


def sent(gateway: Gateway) -> list[Any]:
    return [json.loads(body) for body in gateway.sent]


def test_a_file_an_image_and_an_undo_are_sent_as_they_are(gateway: Gateway, tmp_path: Path) -> None:
    file = tmp_path / "service.yaml"
    file.write_text("name: chat\ntemplate: {image: 'chat:2'}\n")
    revisions = count(1)
    gateway.answers["/v1/services"] = (200, lambda _: {"as_of": 1, "items": [{**ROW, "revision": next(revisions)}]})
    by_file = told(gateway, "update", ID, "-f", str(file), "--max-unavailable", "1")
    by_image = told(gateway, "update", ID, "--image", "chat:2")
    undone = told(gateway, "rollout", "undo", ID)
    assert [done.exit_code for done in (by_file, by_image, undone)] == [0, 0, 0], by_file.output
    assert sent(gateway) == [
        {"spec": {"name": "chat", "template": {"image": "chat:2"}}, "max_unavailable": 1},
        {"image": "chat:2"},
        {"undo": True},
    ]
    assert "is begun; `tessera services rollout status" in by_image.stdout


def test_an_update_without_anything_new_is_refused(gateway: Gateway) -> None:
    assert told(gateway, "update", ID).exit_code == 2
    assert not gateway.sent


def test_the_list_and_the_status_say_how_far_it_is(gateway: Gateway) -> None:
    assert "2 (1/3)" in told(gateway).stdout
    now = told(gateway, "rollout", "status", ID)
    assert (now.exit_code, now.stdout.strip()) == (0, progress(ROW))
    assert progress(ROW) == "revision 2: 1 of 3 replicas run it; the rollout goes on"
    assert progress({**ROW, "rollout": "", "renewed": 3}) == "revision 2: 3 of 3 replicas run it"


def test_a_rollout_that_stopped_gives_another_exit_code_with_its_reason(gateway: Gateway) -> None:
    stopped = {**ROW, "rollout": "stopped", "why": "RolloutStopped: replicas failed"}
    gateway.answers["/v1/services"] = (200, {"as_of": 1, "items": [stopped]})
    now = told(gateway, "rollout", "status", ID, "--wait")
    assert now.exit_code == 1
    assert "has stopped: RolloutStopped: replicas failed" in " ".join(now.stdout.split())


def test_the_sdk_sends_the_spec_in_full_form(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESSERA_API", gateway.url)
    monkeypatch.setenv("TESSERA_TOKEN", "tessera_a_b")

    async def roll() -> None:
        async with Tessera.connect() as tessera:
            await tessera.roll(ID, {"name": "chat", "gpus": 1, "image": "chat:2"}, pace={"max_surge": 2})
            await tessera.roll(ID, undo=True)

    asyncio.run(roll())
    whole, undone = sent(gateway)
    assert whole["max_surge"] == 2
    assert whole["spec"]["roles"][0]["template"] == {"image": "chat:2"}
    assert undone == {"undo": True}
