"""A configuration that the committer refuses for jobs that came in between is not waited for until the time is over."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from tessera.client import applying
from tessera.client.outcomes import Exit, Failure, Refused
from tessera_schemas.commands import Answer
from tessera_schemas.config import Config, Queue
from tessera_schemas.reasons import Code
from tessera_schemas.views import JobView
from tests.builders import config_body

WAITS = JobView.model_validate(
    {"job_id": "a", "tenant": "lab", "queue": "research", "name": "train", "key": "k", "phase": "queued"}
    | {"attempt": 0, "pods": 1, "gpu_milli": 0, "submitted_ts": 1, "priority": 0, "priority_class": "normal"}
)
NOW = Config(version=1, body=config_body())


class Views:
    """The configuration stays as it is; the job is there."""

    async def config(self) -> Config:
        return NOW

    async def jobs(self) -> list[JobView]:
        return [WAITS]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Commands that were sent, all of them accepted by admission."""
    commands: list[Any] = []

    async def ask(_: str, command: Any, **more: Any) -> Answer:
        commands.append(command)
        return Answer(accepted=True)

    async def opened(*_: Any) -> Any:
        return SimpleNamespace(ask=ask)

    monkeypatch.setattr(applying, "Requester", SimpleNamespace(open=opened))
    monkeypatch.setattr(applying, "STRANDED_SECONDS", 0.01)
    return commands


async def apply(abandon: bool) -> Config:
    @asynccontextmanager
    async def bus(_: Any) -> AsyncIterator[None]:
        yield None

    where: Any = SimpleNamespace(bus=bus, shard="main")
    operator: Any = SimpleNamespace(identity=SimpleNamespace(name="operator"))
    views: Any = Views()
    change = applying.ConfigChange(NOW, config_body(Queue(name="else")), abandon)
    return await applying.put_in_force(where, operator, views, change, 0.5)


async def test_jobs_that_came_in_between_are_told_as_the_reason(sent: list[Any]) -> None:
    with pytest.raises(Refused) as refused:
        await apply(abandon=False)
    assert [reason.code for reason in refused.value.reasons] == [Code.STILL_IN_USE]
    assert sent[0].abandon is False


async def test_what_was_to_be_abandoned_is_waited_for(sent: list[Any]) -> None:
    with pytest.raises(Failure) as late:
        await apply(abandon=True)
    assert late.value.code is Exit.GAVE_UP
    assert sent[0].abandon is True


@pytest.mark.parametrize(
    ("why", "version", "code"), [("no scheduler leads", 1, Exit.UNAVAILABLE), ("", 0, Exit.CONFLICT), ("", 1, None)]
)
async def test_that_nothing_changes_is_believed_only_of_views_that_lack_nothing(
    monkeypatch: pytest.MonkeyPatch, why: str, version: int, code: Exit | None
) -> None:
    async def lacks(_: Any) -> str:
        return why

    monkeypatch.setattr(applying, "why_views_lack", lacks)
    change = applying.ConfigChange(NOW.model_copy(update={"version": version}), config_body())
    if code is None:
        await applying.check_unchanged(SimpleNamespace(), Views(), change)  # type: ignore[arg-type]
        return
    with pytest.raises(Failure, match="nothing was sent") as refused:
        await applying.check_unchanged(SimpleNamespace(), Views(), change)  # type: ignore[arg-type]
    assert refused.value.code is code
