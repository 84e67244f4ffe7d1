"""A configuration that the committer refuses for jobs that came in between is not waited for until the time is over."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tessera.client.cluster import applying
from tessera.client.commands.shard import config, queues
from tessera.client.outcomes import Exit, Failure, Refused
from tessera.client.views.rendering import Output
from tessera_schemas.commands import Answer
from tessera_schemas.config import Config, Queue
from tessera_schemas.reasons import Code
from tessera_schemas.views import JobView, NodeView
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

    async def jobs(self, *_: Any) -> list[JobView]:
        return [WAITS]

    async def nodes(self) -> list[NodeView]:
        return []


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
    monkeypatch.setattr(applying, "open_bus", no_bus)
    monkeypatch.setattr(applying, "STRANDED_SECONDS", 0.01)
    return commands


@asynccontextmanager
async def no_bus(*_: Any) -> AsyncIterator[None]:
    yield None


OPERATOR: Any = SimpleNamespace(identity=SimpleNamespace(name="operator"))
WHERE: Any = SimpleNamespace(shard="main", identity=lambda _: OPERATOR)
AT: Any = None  # where the shard is, which the tests say


def lacks(monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    """The views that the commands read, and why they may lack something."""

    async def look(*_: Any, **__: Any) -> str:
        return why

    async def provide(*_: Any) -> list[str]:
        return []

    monkeypatch.setattr(applying, "why_views_lack", look)
    monkeypatch.setattr(applying, "provide", provide)
    monkeypatch.setattr(config, "operators_views", lambda _: (WHERE, Views()))
    monkeypatch.setattr(queues, "operators_views", lambda _: (WHERE, Views()))
    monkeypatch.setattr(queues, "SEEN_SECONDS", 0.2)


async def apply(monkeypatch: pytest.MonkeyPatch, abandon: bool) -> Config:
    lacks(monkeypatch, "")
    views: Any = Views()
    change = applying.ConfigChange(NOW, config_body(Queue(name="else")), abandon)
    return await applying.put_in_force(WHERE, OPERATOR, views, change, 0.5)


async def test_jobs_that_came_in_between_are_told_as_the_reason(
    monkeypatch: pytest.MonkeyPatch, sent: list[Any]
) -> None:
    with pytest.raises(Refused) as refused:
        await apply(monkeypatch, abandon=False)
    assert [reason.code for reason in refused.value.reasons] == [Code.STILL_IN_USE]
    assert sent[0].abandon is False


async def test_what_was_to_be_abandoned_is_waited_for(monkeypatch: pytest.MonkeyPatch, sent: list[Any]) -> None:
    with pytest.raises(Failure) as late:
        await apply(monkeypatch, abandon=True)
    assert late.value.code is Exit.GAVE_UP
    assert sent[0].abandon is True


@pytest.mark.parametrize(("why", "version", "sure"), [("no scheduler leads", 1, False), ("", 0, False), ("", 1, True)])
async def test_that_nothing_changes_is_believed_only_of_views_that_lack_nothing(
    monkeypatch: pytest.MonkeyPatch, why: str, version: int, sure: bool
) -> None:
    lacks(monkeypatch, why)
    change = applying.ConfigChange(NOW.model_copy(update={"version": version}), config_body())
    assert await applying.is_surely_in_force(SimpleNamespace(), Views(), change) is sure  # type: ignore[arg-type]


def coroutine_of(command: Any, *given: Any, **more: Any) -> Any:
    """A command's own work, without the process' exit code."""
    return command.__wrapped__(AT, *given, **more)


async def apply_file(tmp_path: Path, **more: Any) -> None:
    file = tmp_path / "shard.yaml"
    file.write_text(applying.shown(NOW.body))  # type: ignore[arg-type]
    options = {"yes": False, "dry_run": False, "abandon": False, "timeout": 0.2, "output": Output.TABLE}
    await coroutine_of(config.apply, file, **options | more)


@pytest.mark.parametrize("command", ["apply", "queue release"])
async def test_an_unchanged_configuration_is_sent_while_the_views_may_lack_what_it_undoes(
    monkeypatch: pytest.MonkeyPatch, sent: list[Any], tmp_path: Path, command: str
) -> None:
    """It names the version that is known; the committer judges it once it leads, after what was sent before."""
    lacks(monkeypatch, "no scheduler leads")
    with pytest.raises(Failure, match=r"not answered.*no scheduler leads") as late:
        await (apply_file(tmp_path) if command == "apply" else coroutine_of(queues.release, "research"))
    assert late.value.code is Exit.GAVE_UP
    assert [(one.expected_version, one.body) for one in sent] == [(NOW.version, NOW.body)]


@pytest.mark.parametrize("command", ["apply", "queue release"])
async def test_an_unchanged_configuration_is_not_sent_where_nothing_can_come_first(
    monkeypatch: pytest.MonkeyPatch,
    sent: list[Any],
    tmp_path: Path,
    command: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lacks(monkeypatch, "")
    await (apply_file(tmp_path) if command == "apply" else coroutine_of(queues.release, "research"))
    assert (sent, "nothing changes" in capsys.readouterr().out) == ([], True)


async def test_a_dry_run_sends_nothing_and_says_that_another_may_come_first(
    monkeypatch: pytest.MonkeyPatch, sent: list[Any], tmp_path: Path
) -> None:
    lacks(monkeypatch, "no scheduler leads")
    with pytest.raises(Failure, match="another may come") as unsure:
        await apply_file(tmp_path, dry_run=True)
    assert (unsure.value.code, sent) == (Exit.UNAVAILABLE, [])
