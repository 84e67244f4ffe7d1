"""A request to resize pods in place is answered with what the ledger made of it."""

import asyncio
from pathlib import Path
from typing import Any

from tessera_schemas.base import job_id
from tessera_schemas.commands import Answer
from tessera_schemas.facts import AnyFact, RequeueRequested
from tessera_schemas.shard.records import ResizeRequested
from tessera_schemas.work.spec_changes import PodSize
from tests.builders import SHARD
from tests.rounds import Rounds, share
from tests.unit.gateway.gateway_world import World

GIB = 2**30
JOB = job_id(SHARD, "lab", "grows")
PATH = f"/v1/jobs/{JOB}/resources"


def a_running_job() -> Rounds:
    rounds = Rounds(share("research", 8, parent=None))
    rounds.submit("grows", cpu_milli=4000, memory_bytes=8 * GIB)
    rounds.round(plans=False)
    rounds.round(plans=False)
    return rounds


class Resizing:
    """Admission takes what is asked for, and the committer takes in another fact before it, if there is one."""

    def __init__(self, directory: Path, first: AnyFact | None = None) -> None:
        self.world, self.first, self.tasks = World(directory, committed=a_running_job()), first, list[Any]()
        self.world.judge = self.judge

    def commit(self, key: str, size: dict[str, Any]) -> None:
        assert isinstance(self.world.committed, Rounds)
        said = PodSize.model_validate(size)
        fact = ResizeRequested(kind="resize_requested", job_id=JOB, size=said, key=key, tenant="lab")
        self.world.committed.commit(fact)

    def judge(self, tenant: str, command: dict[str, Any]) -> Answer:
        if self.first is not None:
            assert isinstance(self.world.committed, Rounds)
            self.world.committed.commit(self.first)
        self.commit(command["key"], {name: command[name] for name in PodSize.model_fields if name in command})
        self.tasks.append(asyncio.get_running_loop().create_task(self.world.publish_what_is_committed()))
        return Answer(accepted=True)


async def test_a_resize_is_accepted_and_the_size_that_pods_have_is_no_news(tmp_path: Path) -> None:
    resizing = Resizing(tmp_path)
    world, token = resizing.world, resizing.world.token("lab")
    await world.publish_what_is_committed()
    async with world.gateway():
        for _ in range(2):
            said = await world.ask("POST", PATH, token, {"cpu_milli": 8000})
            assert (said.status, said.body["state"]) == (202, "accepted")
    assert isinstance(world.committed, Rounds)
    assert world.committed.job("grows").amount.cpu_milli == 8000


async def test_what_does_not_fit_is_refused_before_it_is_sent_or_with_the_reasons_of_the_ledger(tmp_path: Path) -> None:
    stops = RequeueRequested(kind="requeue_requested", job_id=JOB, tenant="lab")
    resizing = Resizing(tmp_path, first=stops)
    world, token = resizing.world, resizing.world.token("lab")
    await world.publish_what_is_committed()
    async with world.gateway():
        said = await world.ask("POST", PATH, token, {"cpu_milli": 90_000})
        assert (said.status, said.code) == (422, "ResizeDoesNotFit")
        assert (await world.ask("POST", PATH, token, {})).status == 422
        assert not resizing.tasks
        said = await world.ask("POST", PATH, token, {"cpu_milli": 8000})
        assert said.code == "NotRunning"
        assert len(resizing.tasks) == 1
