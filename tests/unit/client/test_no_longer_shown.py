"""A job that ended long ago gets one answer, whichever way it is asked for: that it is shown no longer."""

from contextlib import asynccontextmanager
from typing import Any

import pytest
import typer

from tessera.client.commands.context import ShardOptions
from tessera.client.commands.shard import views as command
from tessera.client.connect.where import Where
from tessera.client.outcomes import Exit
from tessera.client.views.rendering import Output
from tessera.kernel.clock import SystemClock
from tessera.kernel.memory.broker import MemoryBroker
from tessera.kernel.memory.bus import MemoryBus
from tessera.kernel.memory.store import MemoryStore, MemoryViews
from tessera.kernel.ports import Outgoing
from tessera_schemas import subjects
from tests.builders import SHARD
from tests.ledgers import Committed


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> str:
    """Id of a job that has ended, in a ledger that the operator reads and in no view."""
    committed, broker = Committed().begin(), MemoryBroker(SystemClock())
    job = committed.run_to_its_end("k1")
    broker.add_shard(SHARD)
    for data in committed.stored:
        broker.store(Outgoing(subjects.ledger(SHARD), data))

    @asynccontextmanager
    async def bus(*_: Any) -> Any:
        yield MemoryBus(broker)

    @asynccontextmanager
    async def store(*_: Any) -> Any:
        yield MemoryStore(MemoryViews(SystemClock()))

    for name, fake in (("bus", bus), ("store", store), ("identity", lambda *_: None)):
        monkeypatch.setattr(Where, name, fake)
    monkeypatch.setattr(Where, "can_be", lambda _, name: name == subjects.OPERATOR)
    monkeypatch.setattr(ShardOptions, "find", lambda _: Where(SHARD))
    return job


def exit_of_get(named: str, identity: str | None = None) -> int:
    with pytest.raises(typer.Exit) as ends:
        command.get(job=named, output=Output.TABLE, home=None, shard=None, context=None, identity=identity)
    return ends.value.exit_code


def test_get_from_redis_says_of_a_dropped_job_what_http_says(ended: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_of_get(ended) == Exit.REFUSED
    said = capsys.readouterr().err
    assert said.startswith("refused: NoLongerShown: job_id: ")
    assert "succeeded; its records are in the ledger" in said


@pytest.mark.parametrize(("named", "identity"), [("k1", None), ("a" * 20, None), ("", "lab")])
def test_what_nobody_knows_or_may_know_stays_not_found(ended: str, named: str, identity: str | None) -> None:
    assert exit_of_get(named or ended, identity) == Exit.NOT_FOUND
