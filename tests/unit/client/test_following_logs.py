"""`logs -f` of a pod that is still on its way: it is waited for while its job may yet start it."""

import io
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from tessera.client.commands import logs
from tessera.client.outcomes import Exit, NotYet

CREATING = NotYet(Exit.CONFLICT, "the job does not run now (container is waiting to start: ContainerCreating)")


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A job whose pod has a log at the third time that it is asked."""
    view = SimpleNamespace(job_id="a" * 20, phase="running", attempt=1, asked=0)

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
