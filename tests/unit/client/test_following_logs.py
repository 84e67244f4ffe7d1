"""`logs -f` of a pod that is still on its way: it is waited for while its job may yet start it."""

import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from tessera.client.commands import logs
from tessera.client.outcomes import Exit, Failure, NotYet
from tessera_schemas.reasons import PublicReason
from tessera_schemas.views import JobView

CREATING = NotYet(Exit.CONFLICT, "the job does not run now (container is waiting to start: ContainerCreating)")


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A job whose pod has a log at the third time that it is asked."""
    view = SimpleNamespace(phase="running", attempt=1, started_ts=1, asked=0)

    async def found(*_: Any) -> SimpleNamespace:
        return view

    async def pieces(*_: Any, **__: Any) -> AsyncIterator[bytes]:
        view.asked += 1
        if view.asked < 3:
            raise CREATING
        yield b"one\n"

    monkeypatch.setattr(logs, "until_started", found)
    monkeypatch.setattr(logs, "log_pieces", pieces)
    monkeypatch.setattr(logs, "POLL_SECONDS", 0)
    return view


async def copied(**how: Any) -> bytes:
    to = io.BytesIO()
    await logs.copy_log(SimpleNamespace(), None, "train", to, **how)  # type: ignore[arg-type]
    return to.getvalue()


async def test_a_container_that_is_being_created_is_waited_for_and_told_once(
    job: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await copied(follow=True) == b"one\n"
    assert capsys.readouterr().err == f"{CREATING}\n"


@pytest.mark.parametrize("how", [{}, {"follow": True, "attempt": 2}], ids=["not followed", "no such attempt"])
async def test_what_nobody_waits_for_is_told_at_once(job: SimpleNamespace, how: dict[str, Any]) -> None:
    with pytest.raises(NotYet, match="ContainerCreating"):
        await copied(**how)


async def test_a_pod_that_never_started_is_not_waited_for_once_its_job_has_ended(job: SimpleNamespace) -> None:
    job.phase = "failed"
    with pytest.raises(NotYet, match="ContainerCreating"):
        await copied(follow=True)


def waiting(phase: str, attempt: int) -> JobView:
    return JobView(
        job_id="a" * 26,
        tenant="lab",
        queue="default",
        name="train",
        key="k1",
        phase=phase,
        priority=0,
        attempt=attempt,
        pods=1,
        gpu_milli=0,
        submitted_ts=1,
        reason=PublicReason(code="BackOff"),
    )


class Shard:
    """A shard of one job."""

    def __init__(self, job: JobView) -> None:
        self._job = job

    @asynccontextmanager
    async def views(self) -> AsyncIterator[Any]:
        yield SimpleNamespace(job=self._found)

    async def _found(self, _: str) -> JobView:
        return self._job


@pytest.mark.parametrize(
    ("phase", "attempt", "how", "expected"),
    [
        ("queued", 1, {}, 1),
        ("queued", 2, {}, 2),
        ("queued", 2, {"attempt": 1}, 1),
        ("queued", 2, {"attempt": 2, "follow": True}, 2),
        ("binding", 2, {}, 1),
        ("allocated", 3, {"attempt": 2}, 2),
    ],
)
async def test_a_job_that_waits_for_its_next_run_shows_the_last_one(
    monkeypatch: pytest.MonkeyPatch, phase: str, attempt: int, how: dict[str, Any], expected: int
) -> None:
    asked = []

    async def pieces(_: Any, found: JobView, part: logs.LogPart, **__: Any) -> AsyncIterator[bytes]:
        asked.append(part.attempt)
        yield b"one\n"

    monkeypatch.setattr(logs, "log_pieces", pieces)
    to = io.BytesIO()
    await logs.copy_log(Shard(waiting(phase, attempt)), None, "train", to, **how)  # type: ignore[arg-type]
    assert (to.getvalue(), asked) == (b"one\n", [expected])


@pytest.mark.parametrize(
    ("phase", "attempt", "how"),
    [("queued", 0, {}), ("binding", 1, {}), ("binding", 2, {"attempt": 2}), ("queued", 1, {"attempt": 2})],
)
async def test_a_run_that_has_not_started_has_no_log(phase: str, attempt: int, how: dict[str, Any]) -> None:
    with pytest.raises(Failure, match="has not started yet"):
        await logs.copy_log(Shard(waiting(phase, attempt)), None, "train", io.BytesIO(), **how)  # type: ignore[arg-type]
