"""Answers over HTTP of a job that is asked to move, so that another one finds its room in one piece."""

from pathlib import Path
from typing import Any

import pytest

from tests.scattered import scattered, stuck
from tests.unit.gateway.gateway_world import World


async def asked(directory: Path, rounds: int) -> tuple[World, str]:
    """A shard, and the id of a job of tenant lab that runs there, and with `rounds` is asked to move."""
    made = stuck(scattered(move_answer_seconds=60))
    for _ in range(rounds):
        made.round()
    world = World(directory, committed=made)
    await world.publish_what_is_committed()
    return world, made.job("a").job_id


@pytest.mark.parametrize("accept", [True, False])
async def test_the_answer_goes_out_as_the_jobs_tenant_for_the_run_that_there_is(tmp_path: Path, accept: bool) -> None:
    world, job = await asked(tmp_path, rounds=1)
    token = world.token("lab")
    async with world.gateway():
        answer = await world.ask("POST", f"/v1/jobs/{job}/move", token, {"accept": accept})
    assert (answer.status, answer.body["state"]) == (202, "accepted")
    told: dict[str, Any] = {"kind": "answer_move", "v": 1, "job_id": job, "accept": accept, "attempt": 1}
    assert world.commands == [("lab", {**told, "tenant": "lab"})]


@pytest.mark.parametrize(
    ("rounds", "tenant", "body", "refused"),
    [
        pytest.param(0, "lab", {"accept": True}, (409, "NoMoveOffered"), id="nobody asks"),
        pytest.param(1, "lab", {"accept": True, "attempt": 2}, (409, "NotRunning"), id="another attempt"),
        pytest.param(1, "lab", {}, (422, "MissingField"), id="no answer"),
        pytest.param(1, "ops", {"accept": True}, (404, "NoSuchJob"), id="another tenant"),
    ],
)
async def test_other_answers_are_refused(
    tmp_path: Path, rounds: int, tenant: str, body: dict[str, Any], refused: tuple[int, str]
) -> None:
    world, job = await asked(tmp_path, rounds)
    token = world.token(tenant)
    async with world.gateway():
        answer = await world.ask("POST", f"/v1/jobs/{job}/move", token, body)
    assert (answer.status, answer.code) == refused
    assert not world.commands
