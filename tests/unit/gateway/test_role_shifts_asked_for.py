"""A request to move pods between the roles of a run is answered with what the ledger made of it."""

import asyncio
from pathlib import Path
from typing import Any

from tessera.engine.preemption.shifts import shift_faults
from tessera_schemas.base import job_id
from tessera_schemas.commands import Answer
from tessera_schemas.shard.records import RolesRequested
from tests.builders import SHARD
from tests.rounds import Rounds
from tests.unit.gateway.gateway_world import World
from tests.unit.scheduler.role_jobs import rl_job

RL = job_id(SHARD, "lab", "rl")
PATH = f"/v1/jobs/{RL}/roles"


def requested(key: str, **steps: int) -> RolesRequested:
    return RolesRequested(kind="roles_requested", job_id=RL, roles=steps, key=key, tenant="lab")


class Racing:
    """Admission takes what is asked for, and the committer takes in another request before it, if there is one."""

    def __init__(self, directory: Path, first: RolesRequested | None = None) -> None:
        self.world, self.first, self.tasks = World(directory, committed=rl_job()), first, list[asyncio.Task[None]]()
        self.world.judge = self.judge

    @property
    def rounds(self) -> Rounds:
        assert isinstance(self.world.committed, Rounds)
        return self.world.committed

    def judge(self, tenant: str, command: dict[str, Any]) -> Answer:
        if self.first is not None:
            self.rounds.commit(self.first)
        self.rounds.commit(requested(command["key"], **command["roles"]))
        self.tasks.append(asyncio.get_running_loop().create_task(self.world.publish_what_is_committed()))
        return Answer(accepted=True)


async def test_what_the_ledger_refuses_after_admission_has_taken_it_is_answered_with_its_reasons(
    tmp_path: Path,
) -> None:
    racing = Racing(tmp_path, requested("other", trainer=-1, rollout=1))
    world, token = racing.world, racing.world.token("lab")
    await world.publish_what_is_committed()
    asked: dict[str, Any] = {"roles": {"trainer": -1, "rollout": 1}, "key": "mine"}
    async with world.gateway():
        assert shift_faults(racing.rounds.state, racing.rounds.state.jobs.get(RL), "mine", asked["roles"], {}) == []
        said = await world.ask("POST", PATH, token, asked)
    assert (said.status, said.code) == (422, "ShiftUnderWay")


async def test_a_shift_that_the_ledger_carries_out_is_accepted_and_so_is_its_repeat(tmp_path: Path) -> None:
    racing = Racing(tmp_path)
    world, token = racing.world, racing.world.token("lab")
    await world.publish_what_is_committed()
    asked: dict[str, Any] = {"roles": {"trainer": -1, "rollout": 1}, "key": "mine"}
    async with world.gateway():
        for _ in range(2):
            said = await world.ask("POST", PATH, token, asked)
            assert (said.status, said.body["state"]) == (202, "accepted")
    assert racing.rounds.run("rl").shifts == ("mine",)
