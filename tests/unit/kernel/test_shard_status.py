"""How a shard is, by what its services leave in NATS and Redis: who leads, what waits, who is ready."""

from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from tessera.kernel.errors import Transient
from tessera.kernel.memory.broker import MemoryBroker
from tessera.kernel.memory.bus import MemoryBus
from tessera.kernel.messaging.facts import Facts
from tessera.kernel.ports import Outgoing
from tessera.kernel.process.shard_status import SILENT_MS, WAITING_MS, StatusReader, judge
from tessera_schemas import subjects
from tessera_schemas.shard.services import SERVICES
from tessera_schemas.shard.status import ShardStatus
from tests.builders import SHARD, admitted
from tests.virtual_time import VirtualClock


class Shard:
    """A shard of which every service lives and is ready, and a scheduler leads; its ledger has taken in fact 0."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.broker = MemoryBroker(self.clock)
        self.broker.add_shard(SHARD)
        self.bus = MemoryBus(self.broker)
        self.redis: Any = 7
        self.tail: Any = {"ts": self.clock.now_ms(), "facts_upto": 0}
        for service in SERVICES:
            self.probe(service)
        self.lead("scheduler-1")

    def store(self, subject: str, data: Any) -> None:
        self.broker.store(Outgoing(subject, orjson.dumps(data)))

    def probe(self, service: str, **unwell: str) -> None:
        self.store(subjects.lease(SHARD, service, f"probe.{service}-1"), {"format": 4, "unwell": unwell})

    def lead(self, holder: str) -> None:
        self.store(subjects.lease(SHARD, "scheduler", "leader"), {"holder": holder})

    async def status(self, role: str = "operator", in_full: bool = True) -> ShardStatus:
        async def tail() -> Any:
            return SimpleNamespace(seq=41, data=orjson.dumps(self.tail))

        async def cursor() -> int:
            if isinstance(self.redis, Exception):
                raise self.redis
            return cast(int, self.redis)

        ledger, store = cast(Any, SimpleNamespace(tail=tail)), cast(Any, SimpleNamespace(cursor=cursor))
        return judge(await StatusReader(self.bus, ledger, store, self.clock, SHARD, role).look(), SHARD, in_full)


def whats(status: ShardStatus) -> list[str]:
    return [trouble.what for trouble in status.troubles]


@pytest.fixture
def shard() -> Shard:
    return Shard()


async def test_a_shard_that_is_well_says_who_leads_and_has_no_trouble(shard: Shard) -> None:
    status = await shard.status()
    assert (status.well, status.standstill, status.leader, status.ledger_n) == (True, "", "scheduler-1", 41)
    assert (status.views_n, status.waiting_since_ts, status.ledger_ts) == (7, 0, shard.tail["ts"])
    assert [one.service for one in status.services] == list(SERVICES)


@pytest.mark.parametrize("how", ["let go", "silent", "never there"])
async def test_without_a_leader_nothing_is_decided(shard: Shard, how: str) -> None:
    if how == "let go":
        shard.lead("")
    elif how == "silent":
        shard.clock.now += SILENT_MS / 1000
        for service in SERVICES:
            shard.probe(service)
    else:
        shard.broker.stream(subjects.stream("LEASES", SHARD)).purge(10_000)
        for service in SERVICES:
            shard.probe(service)
    status = await shard.status()
    assert (status.well, status.led, status.leader) == (False, False, "")
    assert status.standstill.startswith("no scheduler leads: nothing new starts")
    assert whats(status) == [status.standstill]


@pytest.mark.parametrize("kind", ["SUBMIT", "CONTROL"])
async def test_a_command_that_admission_does_not_answer_is_told_once_it_waited_for_long(
    shard: Shard, kind: str
) -> None:
    shard.store(subjects.submit(SHARD, "lab") if kind == "SUBMIT" else f"control.{SHARD}", {})
    began = shard.clock.now_ms()
    assert (await shard.status()).well
    shard.clock.now += WAITING_MS / 1000
    shard.lead("scheduler-1")
    status = await shard.status()
    assert status.waiting_since_ts == began
    assert status.standstill == "the ledger has not answered what was sent 15s ago"


async def test_a_fact_that_the_ledger_does_not_take_is_told_and_one_that_it_took_is_not(shard: Shard) -> None:
    began = shard.clock.now_ms()
    await Facts(shard.bus, SHARD, "admission").publish(admitted())
    shard.clock.now += 60
    shard.lead("scheduler-1")
    for service in SERVICES:
        shard.probe(service)
    for role in ("operator", "gateway"):
        assert (await shard.status(role)).waiting_since_ts == began
    assert whats(await shard.status()) == ["the ledger has not answered what was sent 1m ago"]
    shard.tail["facts_upto"] = 1
    assert (await shard.status()).well


async def test_a_scheduler_that_lost_its_lease_and_goes_on_leads_all_the_same(shard: Shard) -> None:
    shard.lead("")
    shard.store(subjects.lease(SHARD, "scheduler", "probe.scheduler-2"), {"format": 4, "leads": True})
    assert (await shard.status()).leader == "scheduler-2"
    shard.store(subjects.lease(SHARD, "scheduler", "probe.scheduler-2"), {})
    assert not (await shard.status()).led


async def test_who_is_not_ready_or_not_there_is_named_with_why(shard: Shard) -> None:
    shard.probe("binder", looks="no good look for 35 s")
    shard.store(subjects.lease(SHARD, "queueing", "probe.queueing-1"), {})
    assert whats(await shard.status()) == [
        "no queueing is heard of: nothing new gets into line; what is in line still starts",
        "binder-1 is not ready: looks: no good look for 35 s",
    ]


async def test_a_tenant_sees_neither_names_nor_words_of_instances(shard: Shard) -> None:
    shard.probe("binder", looks="no answer of https://10.0.0.1")
    status = await shard.status("gateway", in_full=False)
    assert (status.led, status.leader, status.well) == (True, "", False)
    assert whats(status) == ["binder is not ready"]
    assert "-1" not in status.to_bytes().decode()
    assert "10.0.0.1" not in status.to_bytes().decode()


async def test_what_does_not_answer_is_said_and_hides_nothing_else(shard: Shard) -> None:
    shard.redis = Transient("Redis: connection refused")
    shard.lead("")
    assert whats(await shard.status()) == [
        "Redis: Redis: connection refused",
        (await shard.status()).standstill,
    ]
    del shard.broker.streams[subjects.stream("LEASES", SHARD)]
    status = await shard.status()
    assert "LEASES" in status.troubles[0].what
    assert status.standstill == ""
    shard.tail = {}
    assert (await shard.status()).standstill == "NATS does not answer"


async def test_a_shard_of_which_nothing_is_heard_has_no_leader_and_no_services(shard: Shard) -> None:
    shard.clock.now += 3600
    status = await shard.status()
    assert (status.led, status.services) == (False, ())
    assert len(status.troubles) == len(SERVICES)
