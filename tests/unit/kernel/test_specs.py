"""The fact that took a job in is found by the job's time alone, long after its end."""

import pytest

from tessera.kernel.clock import SystemClock
from tessera.kernel.ledger.specs import find_admitted, find_first_since
from tessera.kernel.ledger.stream import StreamLedger
from tessera.kernel.memory.broker import MemoryBroker
from tessera.kernel.memory.bus import MemoryBus
from tessera.kernel.ports import Outgoing
from tessera_schemas import subjects
from tests.builders import SHARD, admitted, job_spec
from tests.ledgers import Committed


class Stored:
    """What was committed, as a ledger in a stream."""

    def __init__(self) -> None:
        self.committed, self.broker = Committed().begin(), MemoryBroker(SystemClock())
        self.broker.add_shard(SHARD)
        self.ledger = StreamLedger(MemoryBus(self.broker), SHARD)

    def store(self) -> None:
        for data in self.committed.stored:
            self.broker.store(Outgoing(subjects.ledger(SHARD), data))


@pytest.fixture
def stored() -> Stored:
    return Stored()


async def test_each_job_is_found_also_beside_others_of_its_message_and_its_millisecond(stored: Stored) -> None:
    facts = [admitted(f"k{i}", job_spec(name=f"job-{i}")) for i in range(12)]
    stored.committed.commit(*facts[:5])
    for fact in facts[5:]:
        stored.committed.commit(fact)
    stored.store()
    for fact in facts:
        job = stored.committed.state.jobs.get(fact.job_id)
        assert job is not None
        assert await find_admitted(stored.ledger, job.job_id, job.submitted_ts) == fact


async def test_a_job_of_another_time_or_of_before_a_roll_over_is_not_found(stored: Stored) -> None:
    fact, later = admitted("k1"), admitted("k2")
    stored.committed.commit(fact)
    ts = stored.committed.state.ts
    stored.committed.commit(later)
    stored.store()
    assert await find_admitted(stored.ledger, fact.job_id, ts - 1) is None
    assert await find_admitted(stored.ledger, fact.job_id, stored.committed.state.ts + 10_000) is None
    stored.broker.stream(f"LEDGER_{SHARD}").purge(stored.committed.state.n)
    assert await find_admitted(stored.ledger, fact.job_id, ts) is None
    assert await find_admitted(stored.ledger, later.job_id, stored.committed.state.ts) == later


async def test_an_empty_ledger_has_nothing(stored: Stored) -> None:
    assert await find_admitted(stored.ledger, "a" * 20, 1) is None
    assert await find_first_since(stored.ledger, 1, 0, 5) == 1
