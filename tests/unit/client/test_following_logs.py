"""`logs -f` of a pod that is still on its way, which is waited for, and of a gateway that restarts meanwhile."""

import io
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from tessera.client.commands.jobs import logs
from tessera.client.outcomes import Exit, Failure, NotYet
from tessera.client.sending import job_logs
from tessera.client.sending.job_logs import LogPart, LogPlace
from tessera.kernel.errors import Transient
from tessera_schemas.reasons import PublicReason
from tessera_schemas.views import JobView

CREATING = NotYet(Exit.CONFLICT, "the job does not run now (container is waiting to start: ContainerCreating)")


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A job whose pod has a log at the third time that it is asked."""
    view = SimpleNamespace(phase="running", attempt=1, started_ts=1, asked=0, job_id="a" * 20)

    async def found(*_: Any) -> SimpleNamespace:
        return view

    async def pieces(*_: Any, **__: Any) -> AsyncIterator[bytes]:
        view.asked += 1
        if view.asked < 3:
            raise CREATING
        yield b"one\n"

    monkeypatch.setattr(logs, "until_started", found)
    monkeypatch.setattr(logs, "api_of", lambda *_: None)
    monkeypatch.setattr(job_logs, "log_pieces", pieces)
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


class Log:
    """A log that grows by a line each time that it is followed, and then cuts the connection, but for the last time."""

    def __init__(self, lines: list[bytes]) -> None:
        self.lines, self.kept_from, self.there = lines, 0, 1
        self.asked: list[LogPart] = []

    async def pieces(self, _api: Any, _job: Any, part: LogPart, **_: Any) -> AsyncIterator[bytes]:
        self.asked.append(part)
        lines = self.lines[self.kept_from : self.there]
        for line in lines[-part.tail :] if part.tail else lines:
            yield line
        if part.follow and self.there < len(self.lines):
            self.there += 1
            raise Transient("the connection was lost")


def followed(log: Log, monkeypatch: pytest.MonkeyPatch) -> Log:
    monkeypatch.setattr(job_logs, "log_pieces", log.pieces)
    return log


@pytest.mark.parametrize("how", [{}, {"tail": 1}, {"newest": 60}], ids=["whole", "tail", "since"])
async def test_a_log_that_is_followed_goes_on_from_where_it_stood_and_says_each_cut_once(
    job: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], how: dict[str, Any]
) -> None:
    log = followed(Log([b"one\n", b"two\n", b"two\n" if not how else b"three\n", b"end\n"]), monkeypatch)
    assert await copied(follow=True, **how) == b"".join(log.lines)
    said = capsys.readouterr().err.splitlines()
    assert said == 3 * ["the connection was lost; it goes on from where it stood as soon as there is an answer"]
    assert [part.follow for part in log.asked] == [True, *(3 * [False, True])]
    assert {part.attempt for part in log.asked} == {1}


async def test_a_log_that_was_rotated_meanwhile_goes_on_and_one_that_lost_its_place_says_so(
    job: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(job_logs, "RECENT_BYTES", 4)
    log = followed(Log([b"one\n", b"two\n", b"end\n"]), monkeypatch)
    monkeypatch.setattr(logs, "_say_that_it_begins_again", lambda: setattr(log, "told", True))

    async def until_started(*_: Any) -> SimpleNamespace:
        log.kept_from = max(0, log.there - 2)
        return job

    monkeypatch.setattr(logs, "until_started", until_started)
    assert await copied(follow=True) == b"one\ntwo\nend\n"
    assert not hasattr(log, "told")
    place = LogPlace(is_whole=True)
    place.move(b"one\ntwo\n")
    assert place.begin_again(b"other\n") is None
    assert place.begin_again(b"other\nend\n") == b"end\n"


async def test_a_gateway_that_stays_away_is_told_once_and_ends_what_does_not_follow(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = SimpleNamespace(
        phase="running", attempt=1, started_ts=1, reason=None, job_id="a" * 20, name="train", array=None
    )
    answers: list[Any] = [Transient("away"), Transient("away"), Transient("away"), job]

    class Views:
        async def job(self, _named: str) -> Any:
            answer = answers.pop(0)
            if isinstance(answer, Transient):
                raise answer
            return answer

    monkeypatch.setattr(logs, "POLL_SECONDS", 0)
    monkeypatch.setattr(logs, "views_of", lambda *_: Views())
    where: Any = SimpleNamespace()
    with pytest.raises(Transient):
        await logs.until_started(where, None, "train", follow=False)
    assert await logs.until_started(where, None, "train", follow=True) is job
    assert capsys.readouterr().err == "away; it goes on from where it stood as soon as there is an answer\n"


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


def of_shard(monkeypatch: pytest.MonkeyPatch, job: JobView) -> Any:
    """A shard of one job."""

    async def found(_: str) -> JobView:
        return job

    monkeypatch.setattr(logs, "views_of", lambda *_: SimpleNamespace(job=found))
    monkeypatch.setattr(logs, "api_of", lambda *_: None)
    return SimpleNamespace()


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

    monkeypatch.setattr(job_logs, "log_pieces", pieces)
    to = io.BytesIO()
    await logs.copy_log(of_shard(monkeypatch, waiting(phase, attempt)), None, "train", to, **how)
    assert (to.getvalue(), asked) == (b"one\n", [expected])


@pytest.mark.parametrize(
    ("phase", "attempt", "how"),
    [("queued", 0, {}), ("binding", 1, {}), ("binding", 2, {"attempt": 2}), ("queued", 1, {"attempt": 2})],
)
async def test_a_run_that_has_not_started_has_no_log(
    monkeypatch: pytest.MonkeyPatch, phase: str, attempt: int, how: dict[str, Any]
) -> None:
    where = of_shard(monkeypatch, waiting(phase, attempt))
    with pytest.raises(Failure, match="has not started yet"):
        await logs.copy_log(where, None, "train", io.BytesIO(), **how)
