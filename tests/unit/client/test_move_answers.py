"""`tessera move` and `answer_move` of the SDK: what is sent to the gateway, and how its answer is said."""

import json
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner, Result

from tessera.client import Failure, SyncTessera
from tessera.client.cli import app
from tessera.client.outcomes import Exit
from tests.unit.client.small_gateway import Gateway, job

ID = "a" * 20
PATH = f"/v1/jobs/{ID}/move"


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gateway]:
    served = Gateway()
    monkeypatch.setenv("TESSERA_API", served.url)
    monkeypatch.setenv("TESSERA_TOKEN", "tessera_a_b")
    monkeypatch.delenv("TESSERA_ATTEMPT", raising=False)
    served.answers[f"/v1/jobs/{ID}"] = (200, {"as_of": 1, "job": job("a")})
    served.answers[PATH] = (202, {"job_id": ID, "state": "accepted", "as_of": 1})
    yield served
    served.close()


def move(*options: str) -> Result:
    return CliRunner().invoke(app, ["move", ID, *options])


@pytest.mark.parametrize(("option", "accept", "said"), [("--accept", True, "moves"), ("--veto", False, "stays")])
def test_an_answer_is_sent_and_told(gateway: Gateway, option: str, accept: bool, said: str) -> None:
    done = move(option, "--attempt", "2")
    assert (done.exit_code, done.output) == (0, f"job {ID}: it {said}, and that is told\n")
    assert [json.loads(body) for body in gateway.sent] == [{"accept": accept, "attempt": 2}]


def test_without_an_answer_nothing_is_sent(gateway: Gateway) -> None:
    assert move().exit_code == Exit.USAGE
    assert gateway.sent == []


def test_a_program_answers_by_the_sdk_and_hears_that_nobody_asks(gateway: Gateway) -> None:
    with SyncTessera.connect() as tessera:
        tessera.answer_move(ID, accept=False)
    assert [json.loads(body) for body in gateway.sent] == [{"accept": False}]
    no = {"code": "NoMoveOffered", "sentence": "NoMoveOffered: job_id: nobody has asked the job to move"}
    gateway.answers[PATH] = (409, {**no, "reasons": [{"code": "NoMoveOffered", "field": "job_id"}]})
    with SyncTessera.connect() as tessera, pytest.raises(Failure, match="nobody has asked") as failed:
        tessera.answer_move(ID, accept=True)
    assert failed.value.code is Exit.CONFLICT
