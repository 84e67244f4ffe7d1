"""Whoever follows the ledger for the gateway knows whether somebody waits for what it says next."""

from tessera.gateway.operations.commanding import Arrivals
from tessera.kernel.clock import SystemClock
from tessera.kernel.ledger.shard import Entry
from tessera_schemas.base import job_id
from tessera_schemas.facts import JobRefused
from tessera_schemas.reasons import Code, Reason
from tests.builders import SHARD
from tests.ledgers import Committed
from tests.virtual_time import VirtualClock

JOB = job_id(SHARD, "lab", "k1")


async def test_somebody_is_expected_from_the_first_submit_until_the_last_has_its_answer() -> None:
    arrivals, seen = Arrivals(VirtualClock()), list[bool]()
    seen.append(arrivals.expected.is_set())
    async with arrivals.expecting("a"):
        seen.append(arrivals.expected.is_set())
        async with arrivals.expecting("a"), arrivals.expecting("b"):
            seen.append(arrivals.expected.is_set())
        seen.append(arrivals.expected.is_set())
    seen.append(arrivals.expected.is_set())
    assert seen == [False, True, True, True, False]


async def test_the_record_of_a_try_that_was_refused_for_now_says_nothing_of_the_next() -> None:
    """It is counted and comes a second later, when the same key may have been accepted."""
    arrivals, settled = Arrivals(SystemClock()), list[list[str] | None]()
    for code in (Code.TENANT_BUDGET_EXCEEDED, Code.LEDGER_FULL, Code.NO_SUCH_QUEUE):
        fact = JobRefused(kind="job_refused", tenant="lab", job_id=JOB, reasons=(Reason(code=code),))
        async with arrivals.expecting(JOB) as arrival:
            await arrivals.on_ledger([Entry(Committed().commit(fact, holder="scheduler-1"), b"")])
            said = await arrival.within(0.01)
            settled.append(None if said is None else [reason.code for reason in said])
    assert settled == [None, None, ["NoSuchQueue"]]
