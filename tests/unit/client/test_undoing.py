"""An undo is sent although the lists show nothing to undo: with nobody leading they lack what is to be undone."""

from types import SimpleNamespace
from typing import Any

import pytest

from tessera.client.commands.jobs import orders
from tessera.client.commands.nodes import drains
from tessera.client.commands.shard import queues
from tessera.client.connect import shard_status
from tessera.client.outcomes import Exit, Failure
from tessera.client.sending import ordering
from tessera_schemas.shard.status import ShardStatus
from tessera_schemas.views import JobView, NodeView, QueueView

JOB = JobView.model_validate(
    {"job_id": "a" * 20, "tenant": "lab", "queue": "research", "name": "train", "key": "k", "phase": "queued"}
    | {"attempt": 0, "pods": 1, "gpu_milli": 0, "submitted_ts": 1, "priority": 0}
)
NODE = NodeView(name="node-a", pool="default", ready=True)
DRAINED = NodeView(name="node-b", pool="default", ready=True, drained=True)


class Shard:
    """A shard whose views show a job that is not held and a node that is not drained."""

    shard, login = "main", None

    def can_be(self, _: str) -> bool:
        return False

    async def job(self, _: str) -> JobView:
        return JOB

    async def jobs(self, *_: Any, **__: Any) -> list[JobView]:
        return [JOB]

    async def live_job(self, _: str) -> JobView:
        return JOB

    async def nodes(self) -> list[NodeView]:
        return [NODE, DRAINED]

    async def queues(self) -> list[QueueView]:
        return [QueueView(name=name, pool="default", weight=1) for name in ("research", "night")]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Commands that were sent."""
    commands: list[Any] = []

    async def send(_: Any, identity: str | None, command: Any, job: str = "") -> bool:
        commands.append(command.kind)
        return True

    async def send_all(_: Any, identity: str | None, many: Any) -> bool:
        commands.extend((command.kind, command.queue) for _, command in many)
        return True

    async def found(*_: Any) -> str:
        return JOB.job_id

    async def told(*_: Any, **__: Any) -> None: ...

    for reader in (ordering, orders, drains, queues):
        monkeypatch.setattr(reader, "views_of", lambda shard, *_: shard)
    for asker in (orders, drains, queues):
        monkeypatch.setattr(asker, "ask_first", told)
    monkeypatch.setattr(ordering, "send", send)
    monkeypatch.setattr(ordering, "send_all", send_all)
    monkeypatch.setattr(ordering, "find_job_id", found)
    monkeypatch.setattr(
        ordering, "choose_identity", lambda *_: SimpleNamespace(identity=SimpleNamespace(role="operator"))
    )
    return commands


def lacks(monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    async def look(_: Any) -> str:
        return why

    monkeypatch.setattr(orders, "why_views_lack", look)
    monkeypatch.setattr(drains, "why_views_lack", look)
    monkeypatch.setattr(queues, "why_views_lack", look)


AT: Any = SimpleNamespace(find=Shard, identity=None, views=Shard)


async def release() -> Exit | None:
    return await orders.order_job(
        AT,
        "train",
        "release",
        lambda _: SimpleNamespace(kind="release_job"),
        lambda view: not view.held,
        str,
        None,
        "is not held",  # type: ignore[arg-type,return-value]
    )


async def test_a_release_that_nobody_may_have_decided_yet_is_stored(
    monkeypatch: pytest.MonkeyPatch, sent: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    lacks(monkeypatch, "no scheduler leads")
    assert await release() is Exit.GAVE_UP
    assert sent == ["release_job"]
    said = capsys.readouterr()
    assert (said.out, "no scheduler leads" in said.err) == ("", True)


async def test_that_a_job_is_not_held_is_said_of_lists_that_lack_nothing(
    monkeypatch: pytest.MonkeyPatch, sent: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    lacks(monkeypatch, "")
    assert await release() is None
    assert sent == ["release_job"]
    assert "is not held; nothing changes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("by_operator", "said"),
    [
        (True, f"job {JOB.job_id} is held by an operator, who alone releases it\n"),
        (False, f"job {JOB.job_id} is held; nothing changes\n"),
    ],
)
async def test_an_operators_hold_of_a_job_that_its_owner_holds_changes_who_may_release_it(
    monkeypatch: pytest.MonkeyPatch, sent: list[Any], capsys: pytest.CaptureFixture[str], by_operator: bool, said: str
) -> None:
    lacks(monkeypatch, "")
    held = JOB.model_copy(update={"held": True})
    shown = [held, held.model_copy(update={"operator_hold": by_operator})]

    async def next_shown(*_: str) -> JobView:
        return shown.pop(0)

    def hold_job(_: str) -> Any:
        return SimpleNamespace(kind="hold_job")

    monkeypatch.setattr(Shard, "job", next_shown)
    assert await orders.order_job(AT, "train", "hold", hold_job, lambda view: view.held, orders.say_held) is None
    assert (sent, capsys.readouterr().out) == (["hold_job"], said)


@pytest.mark.parametrize("why", ["no scheduler leads", ""])
async def test_an_undrain_is_sent_whatever_the_lists_show(
    monkeypatch: pytest.MonkeyPatch, sent: list[Any], why: str
) -> None:
    lacks(monkeypatch, why)
    command: Any = SimpleNamespace(kind="drain_node", node="node-a", undo=True)
    if why:
        with pytest.raises(Failure, match="not carried out") as failed:
            await drains.give(Shard(), AT, command, NODE)  # type: ignore[arg-type]
        assert failed.value.code is Exit.GAVE_UP
    else:
        await drains.give(Shard(), AT, command, NODE)  # type: ignore[arg-type]
    assert sent == ["drain_node"]


@pytest.mark.parametrize("why", ["no scheduler leads", ""])
async def test_a_move_back_of_a_named_job_is_sent_unless_it_surely_waits_there(
    monkeypatch: pytest.MonkeyPatch, sent: list[Any], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`queue move research night` may be on its way; the lists show the job in `research` still."""
    lacks(monkeypatch, why)
    back: Any = queues.move.__wrapped__(AT, "night", "research", ["train"])  # type: ignore[attr-defined]
    if why:
        with pytest.raises(Failure, match="stored, and not answered") as failed:
            await back
        assert (failed.value.code, sent) == (Exit.GAVE_UP, [("move_job", "research")])
    else:
        assert await back is None
        assert (sent, capsys.readouterr().out) == ([], "queue night: no job of it waits of those\n")


async def test_a_second_drain_that_nobody_may_have_decided_names_no_job_that_restarts(
    monkeypatch: pytest.MonkeyPatch, sent: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    lacks(monkeypatch, "no scheduler leads")
    with pytest.raises(Failure, match="not carried out"):
        await drains.drain.__wrapped__(AT, "node-b", evict=True)  # type: ignore[attr-defined]
    assert (sent, capsys.readouterr().out) == (["drain_node"], "")


@pytest.mark.parametrize(
    ("found", "lack"),
    [
        ({}, ""),
        ({"led": False}, "no scheduler leads"),
        ({"standstill": "NATS does not answer"}, "NATS does not answer"),
        ({"waiting_since_ts": 90}, "is not decided yet"),
        ({"waiting_since_ts": 110}, ""),
        ({"ledger_n": 8}, "hold up to record 7 of 8"),
    ],
)
def test_views_lack_nothing_once_all_is_decided_and_shown(found: dict[str, Any], lack: str) -> None:
    status = ShardStatus.model_validate({"ts": 120, "well": True, "led": True, "ledger_n": 7, "views_n": 7} | found)
    said = shard_status.lacking(status, 100)
    assert lack in said
    assert bool(said) == bool(lack)


@pytest.mark.parametrize(("limit", "code"), [(1, None), (0, Exit.CONFLICT)], ids=["its doing", "of others"])
async def test_an_order_that_ends_its_job_has_reached_it(
    monkeypatch: pytest.MonkeyPatch, sent: list[Any], capsys: pytest.CaptureFixture[str], limit: int, code: Exit | None
) -> None:
    """A time limit that is over already: by the time that the views are asked, the job has ended by it."""
    shown = iter([JOB, JOB.model_copy(update={"phase": "failed", "time_limit_seconds": limit})])

    async def job(_: Shard, __: str) -> JobView:
        return next(shown)

    monkeypatch.setattr(Shard, "job", job)
    monkeypatch.setattr(Shard, "live_job", job)
    answered = await orders.order_job(
        AT,
        "train",
        "update",
        lambda _: SimpleNamespace(kind="update_job"),  # type: ignore[arg-type,return-value]
        lambda view: view.time_limit_seconds == 1,
        lambda _: "has its new time limit now",
    )
    assert answered is code
    said = capsys.readouterr()
    assert ("has its new time limit now" in said.out, "had ended" in said.err) == (code is None, code is not None)
