"""`get -o yaml` shows what a job was submitted with, also long after its end; where that is gone, it says so."""

from contextlib import asynccontextmanager
from typing import Any

import pytest
import yaml

from tessera.client.commands.context import ShardOptions
from tessera.client.commands.shard import views as command
from tessera.client.connect.where import Where
from tessera.client.outcomes import Refused
from tessera.client.sending.rerunning import find_spec
from tessera.client.views.rendering import Output
from tessera.kernel.clock import SystemClock
from tessera.kernel.memory.broker import MemoryBroker
from tessera.kernel.memory.bus import MemoryBus
from tessera.kernel.memory.store import MemoryStore, MemoryViews
from tessera.kernel.ports import Outgoing
from tessera.projection.views import all_views
from tessera_schemas import subjects
from tessera_schemas.reasons import Code
from tests.builders import SHARD
from tests.ledgers import Committed


@pytest.fixture
async def broker(monkeypatch: pytest.MonkeyPatch) -> MemoryBroker:
    """A ledger with an ended job of one GPU and a later one of two, and the views of it, open to an operator."""
    committed, broker, views = Committed().begin(), MemoryBroker(SystemClock()), MemoryViews(SystemClock())
    committed.run_to_its_end("k1", gpus=1)
    committed.run_to_its_end("k2", gpus=2)
    broker.add_shard(SHARD)
    for data in committed.stored:
        broker.store(Outgoing(subjects.ledger(SHARD), data))
    await MemoryStore(views).replace(committed.state.n, list(all_views(committed.state)))

    @asynccontextmanager
    async def bus(*_: Any) -> Any:
        yield MemoryBus(broker)

    @asynccontextmanager
    async def store(*_: Any) -> Any:
        yield MemoryStore(views)

    for name, fake in (("bus", bus), ("store", store), ("identity", lambda *_: None)):
        monkeypatch.setattr(Where, name, fake)
    monkeypatch.setattr(Where, "can_be", lambda _, name: name in (subjects.OPERATOR, "lab"))
    monkeypatch.setattr(ShardOptions, "find", lambda _: Where(SHARD))
    return broker


async def test_the_spec_of_the_newest_job_of_a_name_is_found(broker: MemoryBroker) -> None:
    spec, tenant = await find_spec(Where(SHARD), None, "train")
    assert (spec["roles"][0]["resources"]["gpus"], tenant) == (2, "lab")


async def test_a_spec_that_was_rolled_over_is_refused_by_that_name(broker: MemoryBroker) -> None:
    broker.stream(f"LEDGER_{SHARD}").purge(len(list(broker.stream(f"LEDGER_{SHARD}").read(">", 1))))
    with pytest.raises(Refused) as told:
        await find_spec(Where(SHARD), None, "train")
    assert told.value.reasons[0].code == Code.ROLLED_OVER


def test_it_stands_in_what_programs_read(broker: MemoryBroker, capsys: pytest.CaptureFixture[str]) -> None:
    command.get(job="train", output=Output.YAML, home=None, shard=None, context=None, identity=None)
    shown = yaml.safe_load(capsys.readouterr().out)
    assert shown["spec"]["roles"][0]["template"]["image"]
